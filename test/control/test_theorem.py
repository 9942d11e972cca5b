# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""The stability theorem of docs/theorem.md as a test.

In continuous time V <= v_0 + (V(0) - v_0) e^(-alpha t), on any plant that lacks nothing but what
is estimated, up to rho. A sampled controller holds its effort for one period and exceeds the bound
by at most something proportional to the period; with v_0 = 0 the bound goes to zero and
feed-forward acts at first order, so a finite step cannot meet it exactly.
"""

from dataclasses import replace
from typing import NamedTuple

import numpy as np
import pytest
from support.three_joints import controller_for_three, GAIN_BOX, LAW, ThreeJoints

from metactl_ros.baselines import estimating_box, load_classical
from metactl_ros.control.estimators.choice import EstimatorSettings
from metactl_ros.control.estimators.disturbance import MomentumObserverSettings
from metactl_ros.control.gain_map import GainMap
from metactl_ros.control.law import (
    computed_torque,
    holding_torque,
    make_features,
    nominal_gains,
    tracking_error,
    TrackingState,
)
from metactl_ros.control.loop import ControlLoop
from metactl_ros.control.lyapunov import LyapunovFunction
from metactl_ros.control.shield import Shield
from metactl_ros.dynamics.friction import friction_torque
from metactl_ros.motion.reference import Sinusoid
from metactl_ros.settings import load_settings
from metactl_ros.signals import seconds
from metactl_ros.sim.rk4_arm import Rk4Arm
from metactl_ros.sim.rollout import without_warmup
from metactl_ros.sim.task import draw_evaluation

NUM_ROLLOUTS = 200
# Largest excess of V over the bound at 10 ms and the shipped v_0 = 6e-4, in the units of V. Found:
# 0.021, which is 34 v_0. A new random feed-forward of up to 9 N m at every step makes it out of
# nothing; without the shield it is four times as much.
MARGIN_AT_10_MS = 0.03


def largest_excess(settings, no_friction, rate_hz, target_error_rad, duration_s):
    """Return the largest V - bound over all rollouts and instants."""
    lyapunov = replace(settings.controller.lyapunov, target_error_rad=target_error_rad)
    law = replace(settings.controller.law, rate_hz=rate_hz)
    controller = replace(without_warmup(settings.controller), lyapunov=lyapunov, law=law)
    unlimited = replace(
        settings.arm.limits, effort_nm=(1e6, 1e6), effort_rate_nmps=(1e9, 1e9)
    )  # the theorem is about the law, not about clipped efforts
    loop = ControlLoop(replace(settings.arm, limits=unlimited), controller)
    plant = Rk4Arm(settings.arm, no_friction, rate_hz)
    episodes = draw_evaluation(settings.plant.task, 11, 0.0, NUM_ROLLOUTS, 2.0)
    rng = np.random.default_rng(12)
    state = plant.reset(episodes.start)
    loop.reset(state)
    alpha, level, first, worst = lyapunov.alpha_per_s, loop.lyapunov.target_level, None, -np.inf
    for _ in range(round(duration_s * rate_hz)):
        proposal = rng.uniform(-1.0, 1.0, (NUM_ROLLOUTS, loop.gain_map.size))
        t = seconds(state.stamp_ns)
        step = loop.actuate(proposal, state, episodes.reference.at(t), state.stamp_ns)
        value = step.decision.half_space.value
        first = value if first is None else first
        bound = level + (first - level) * np.exp(-alpha * t)
        worst = max(worst, float((value - bound).max()))
        state = plant.step(step.effort_nm)
    return worst, level


@pytest.mark.parametrize('target_error_rad', [0.0, 0.02])
def test_the_excess_over_the_bound_falls_in_proportion_to_the_step(
    settings, no_friction, target_error_rad
):
    excess = [
        largest_excess(settings, no_friction, rate, target_error_rad, 2.0)[0]
        for rate in (500.0, 1000.0, 2000.0)
    ]
    assert excess[1] <= 0.5 * excess[0] + 1e-12, excess
    assert excess[2] <= 0.5 * excess[1] + 1e-12, excess


def test_at_100_hz_and_the_shipped_level_the_excess_stays_within_a_stated_margin(
    settings, no_friction
):
    shipped = settings.controller.lyapunov.target_error_rad
    worst, _ = largest_excess(settings, no_friction, 100.0, shipped, 5.0)
    assert worst <= MARGIN_AT_10_MS


def test_without_the_shield_random_gains_break_the_bound(settings, no_friction, monkeypatch):
    shipped = settings.controller.lyapunov.target_error_rad
    shielded, _ = largest_excess(settings, no_friction, 500.0, shipped, 2.0)
    monkeypatch.setattr('metactl_ros.control.shield.Shield.__init__.__defaults__', ('count',))
    monkeypatch.setattr('metactl_ros.control.loop.ControlLoop.__init__.__defaults__', ('count',))
    unshielded, _ = largest_excess(settings, no_friction, 500.0, shipped, 2.0)
    assert unshielded > 5.0 * shielded


# Of the plant that lacks what the estimate does not know, in continuous time: efforts follow the
# state at every stage of a Runge-Kutta step, so that nothing is sampled but the random proposals.
STEP_S, DURATION_S, HELD_STEPS = 1e-3, 1.5, 20
NUM_ARMS = 24
# Of v_0; found: 0.001, and a quarter of it with half the step.
TOLERANCE = 0.005
OBSERVER = EstimatorSettings(momentum_observer=MomentumObserverSettings(bandwidth_radps=20.0))
SHIPPED = load_settings()


class Case(NamedTuple):
    """An arm, its controller, and what its estimate may be off by."""

    arm: object
    controller: object
    rho_nm: tuple[float, ...]


TWO = Case(
    SHIPPED.arm,
    replace(SHIPPED.controller, gain_box=estimating_box(SHIPPED.controller), estimator=OBSERVER),
    (0.4, 0.2),
)
THREE = Case(
    ThreeJoints(),
    controller_for_three(LAW, replace(GAIN_BOX, kp_per_s2=(0.0, 400.0)), OBSERVER),
    (0.5, 0.3, 0.1),
)
CASES = pytest.mark.parametrize('case', [TWO, THREE], ids=['two joints', 'three joints'])


class ClosedLoop:
    """Arms on a plant of true d = d^ + rho sign(M^^-1 w): the worst at every instant."""

    def __init__(self, case, margin_nm, seed=0, misread_radps=0.0):
        self.arm, self.law, self.rho_nm = case.arm, case.controller.law, np.array(case.rho_nm)
        self.misread_radps = misread_radps
        box, n = case.controller.gain_box, len(case.rho_nm)
        self.n, self.rng, self.layout = n, np.random.default_rng(seed), box.layout
        of_rho = replace(case.controller.lyapunov, rho_nm=case.rho_nm)
        inertias = case.arm.sample_inertias()
        whole = LyapunovFunction(of_rho, self.law, inertias)
        self.level, self.radius_rad = whole.target_level, whole.error_radius_rad
        self.P, self.alpha_per_s = whole.P, whole.alpha_per_s
        # A shield that knows no margin has the v_0 of one that does, so that the two compare.
        wary = replace(of_rho, rho_nm=margin_nm)
        self.lyapunov = LyapunovFunction(wary, self.law, inertias)
        self.lyapunov.target_level = self.level
        self.map = GainMap(box, n)
        self.shield = Shield(self.map, nominal_gains(self.law, self.layout, n))
        self.motion = Sinusoid(
            np.full((NUM_ARMS, n), 0.6),
            np.broadcast_to(1.0 + 0.5 * np.arange(n), (NUM_ARMS, n)),
            self.rng.uniform(0.0, 6.0, (NUM_ARMS, n)),
        )
        self.phase = self.rng.uniform(0.0, 6.0, (NUM_ARMS, n))

    def judge(self, t, q, qd, proposal):
        """Return the acceleration of the true plant, and the true error."""
        wanted = self.motion.at(t)
        seen = qd + self.misread_radps
        at = TrackingState(q, seen, wanted.q_rad, wanted.qd_radps, wanted.qdd_radps2)
        posture, error = self.arm.body().at(q, seen), tracking_error(self.law, at)
        estimate = 3.0 * np.sin(2.0 * t + self.phase)
        features = make_features(self.law, self.layout, error, at.qd_desired, estimate)
        space = self.lyapunov.half_space(posture, error, features, estimate)
        # The first half of the arms proposes what makes V grow most, the others anything.
        is_worst = np.arange(NUM_ARMS)[:, np.newaxis] < NUM_ARMS // 2
        proposal = np.where(is_worst, np.sign(space.normal), proposal)
        gains = self.shield.admit(proposal, space).gains
        hold = holding_torque(posture.bias, features, gains)
        tau = computed_torque(posture, hold, at.qdd_desired, features, gains)
        lack = estimate + self.rho_nm * np.sign(space.Minv_w)
        true = self.arm.body().at(q, qd)
        error = tracking_error(self.law, at._replace(qd=qd))
        return true.solve(tau - true.bias - lack), error

    def run(self, first_error_rad):
        """Return V, shape (T, N), and |e|, from arms that begin so far from their reference."""
        start = self.motion.at(0.0)
        q = start.q_rad - first_error_rad * self.rng.normal(size=(NUM_ARMS, self.n))
        x = np.concatenate([q, start.qd_radps], axis=-1)
        values, errors = [], []
        for k in range(round(DURATION_S / STEP_S)):
            if k % HELD_STEPS == 0:
                proposal = self.rng.uniform(-1.0, 1.0, (NUM_ARMS, self.map.size))
            t, h = k * STEP_S, STEP_S

            def rate(at_s, x, proposal=proposal):
                q, qd = x[..., : self.n], x[..., self.n :]
                return np.concatenate([qd, self.judge(at_s, q, qd, proposal)[0]], axis=-1)

            qdd, error = self.judge(t, x[..., : self.n], x[..., self.n :], proposal)
            xi = np.concatenate([error.e_rad, error.s_radps], axis=-1)
            values.append(0.5 * np.sum(xi @ self.P * xi, axis=-1))
            errors.append(np.linalg.norm(error.e_rad, axis=-1))
            a = np.concatenate([x[..., self.n :], qdd], axis=-1)
            b = rate(t + h / 2, x + h / 2 * a)
            c = rate(t + h / 2, x + h / 2 * b)
            d = rate(t + h, x + h * c)
            x = x + h / 6 * (a + 2 * b + 2 * c + d)
        return np.array(values), np.array(errors)

    def excess(self, values):
        """Return the largest V - bound, in units of v_0."""
        t = STEP_S * np.arange(len(values))[:, np.newaxis]
        bound = self.level + (values[0] - self.level) * np.exp(-self.alpha_per_s * t)
        return float((values - bound).max() / self.level)


@CASES
def test_no_lack_within_rho_of_the_estimate_breaks_the_bound_on_the_true_plant(case):
    loop = ClosedLoop(case, case.rho_nm)
    values, _ = loop.run(first_error_rad=3.0 * loop.radius_rad)
    assert (values[0] > loop.level).any()
    assert loop.excess(values) <= TOLERANCE


@CASES
def test_arms_that_begin_within_the_level_stay_within_the_certified_error(case):
    loop = ClosedLoop(case, case.rho_nm)
    values, errors = loop.run(first_error_rad=0.02 * loop.radius_rad)
    assert (values[0] <= loop.level).all()
    assert values.max() <= (1.0 + TOLERANCE) * loop.level
    assert errors.max() <= (1.0 + TOLERANCE) * loop.radius_rad
    assert values.max() > 0.5 * loop.level  # the adversary does what it can


@CASES
def test_a_shield_without_the_margin_lets_a_lack_within_rho_break_the_bound(case):
    loop = ClosedLoop(case, 0.0)
    values, _ = loop.run(first_error_rad=0.02 * loop.radius_rad)
    assert loop.excess(values) > 10.0  # found: 22 and 44


def test_a_state_that_is_misread_breaks_the_bound_within_rho():
    """Why the theorem is about a state that is known: velocities are told 0.1 rad / s too high."""
    loop = ClosedLoop(TWO, TWO.rho_nm, misread_radps=0.1)
    values, _ = loop.run(first_error_rad=0.02 * loop.radius_rad)
    assert loop.excess(values) > 0.5


def lack_of(settings, step, state, memory_nm, payload_kg):
    """Return d of a simulated arm: what of the effort the model does not explain, N m."""
    friction = friction_torque(settings.plant.friction, state.qd_radps, memory_nm)
    body, model = (
        settings.arm.body(payload_kg),
        settings.arm.body().at(state.q_rad, state.qd_radps),
    )
    qdd = body.forward_dynamics(state.q_rad, state.qd_radps, step.effort_nm - friction)
    return step.effort_nm - model.apply(qdd) - model.bias


@pytest.mark.parametrize('rho_nm', [(0.11, 0.1), (1.5, 0.6)])
def test_on_the_simulated_arm_the_condition_holds_wherever_the_estimate_is_within_rho(rho_nm):
    """The tuned momentum observer, friction with memory, and payloads that the model lacks."""
    shipped, policy = load_classical('momentum_observer', SHIPPED.controller, None, 0.0)
    lyapunov = replace(shipped.lyapunov, rho_nm=rho_nm)
    loop = ControlLoop(SHIPPED.arm, without_warmup(replace(shipped, lyapunov=lyapunov)))
    plant = Rk4Arm(SHIPPED.arm, SHIPPED.plant.friction, shipped.law.rate_hz)
    episodes = draw_evaluation(SHIPPED.plant.task, 5, 0.75, 10, 2.0)
    state = plant.reset(episodes.start)
    loop.reset(state)
    is_within, is_free, is_met, errors = [], [], [], []
    for _ in range(300):
        wanted = episodes.reference.at(seconds(state.stamp_ns))
        window = loop.observe(state, wanted, episodes.payload_estimate_kg)
        step = loop.actuate(policy(window), state, wanted, state.stamp_ns)
        off = lack_of(SHIPPED, step, state, plant.memory_nm, 0.75) - step.estimate_nm
        space = step.decision.half_space
        margin = np.abs(space.Minv_w) @ np.array(rho_nm)
        true_excess = step.excess_after_limits - margin + np.sum(space.Minv_w * off, axis=-1)
        is_within.append((np.abs(off) <= rho_nm).all(axis=-1))
        is_free.append((step.effort_nm == step.wanted_nm).all(axis=-1))
        is_met.append(true_excess <= 1e-9)
        errors.append(np.linalg.norm(wanted.q_rad - state.q_rad, axis=-1))
        state = plant.step(step.effort_nm)
    is_within, is_free, is_met = map(np.array, (is_within, is_free, is_met))
    assert is_met[is_within & is_free].all()
    assert is_met.mean() > 0.99  # also where it is further off
    share = {(0.11, 0.1): 0.4, (1.5, 0.6): 0.9}[rho_nm]
    assert is_within[20:].mean() > share
    assert np.array(errors)[100:].max() <= loop.lyapunov.error_radius_rad
