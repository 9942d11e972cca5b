# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
from dataclasses import replace
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st
import numpy as np
import pytest
from support.episodes import start
from support.estimator_inputs import (
    ARM,
    assert_batch_equals_arms,
    at_goal,
    estimator_input,
    FRICTION,
    LAW,
    NO_FRICTION,
    random_inputs,
    ride,
)

from metactl_ros.control.estimators.choice import EstimatorSettings, make_estimator
from metactl_ros.control.estimators.slotine_li import SlotineLiSettings
from metactl_ros.control.law import (
    AdmissibleGains,
    computed_torque,
    GainLayout,
    holding_torque,
    make_features,
)
from metactl_ros.signals import Reference
from metactl_ros.sim.rk4_arm import Rk4Arm

MODEL = ARM.body()
PER_KG = ARM.body_per_kg()
K_D, SLOPE = 60.0, LAW.slope_per_s
THETA = (K_D, K_D, SLOPE, SLOPE, 0.0, 0.0, 1.0, 1.0)
BANK_S = (0.5, 2.0, 8.0)
SETTINGS = SlotineLiSettings(
    payload_rate=0.1,
    coulomb_rate=20.0,
    viscous_rate=5.0,
    memory_rate=10.0,
    memory_horizons_s=BANK_S,
    payload_most_kg=3.0,
    coulomb_most_nm=10.0,
    viscous_most_nmsprad=10.0,
    memory_most_nmprad=30.0,
)
RATES = ('payload_rate', 'coulomb_rate', 'viscous_rate', 'memory_rate')
STUBBORN = replace(SETTINGS, **dict.fromkeys(RATES, 0.0))


def estimator_of(settings):
    return make_estimator(EstimatorSettings(slotine_li=settings), ARM, LAW)


class Textbook:
    """Slotine and Li's controller in matrices; a = (payload, then Coulomb, ... of each joint)."""

    def __init__(self, settings, payload_kg):
        self.tau_s = np.array(settings.memory_horizons_s)
        of_joint = lambda c, v, m: [c, v, *[m] * len(self.tau_s)]  # noqa: E731
        rates = of_joint(settings.coulomb_rate, settings.viscous_rate, settings.memory_rate)
        most = of_joint(
            settings.coulomb_most_nm, settings.viscous_most_nmsprad, settings.memory_most_nmprad
        )
        self.gamma = np.array([settings.payload_rate, *rates, *rates])
        self.most = np.array([settings.payload_most_kg, *most, *most])
        self.a = np.zeros(len(self.gamma))
        self.a[0] = np.clip(payload_kg, 0.0, self.most[0])
        self.z, self.qd = np.zeros((2, len(self.tau_s))), None

    def regressor(self, q, qd, qd_desired, qd_r, qdd_r):
        size = 2 + len(self.tau_s)
        Y = np.zeros((2, 1 + 2 * size))
        C, g = PER_KG.coriolis_matrix(q, qd), PER_KG.gravity(q)
        Y[:, 0] = PER_KG.inertia_matrix(q) @ qdd_r + C @ qd_r + g
        for joint in range(2):
            coulomb = np.tanh(qd_desired[joint] / LAW.coulomb_smoothing_radps)
            begin = 1 + joint * size
            Y[joint, begin : begin + size] = [coulomb, qd[joint], *self.z[joint]]
        return Y

    def effort(self, q, qd, wanted, passed_s):
        fade = np.exp(-passed_s / self.tau_s)
        mean = 0.5 * (qd + (qd if self.qd is None else self.qd))
        self.z = fade * self.z + (1.0 - fade) * self.tau_s * mean[:, np.newaxis]
        self.qd = qd
        e, e_dot = wanted.q_rad - q, wanted.qd_radps - qd
        qd_r, qdd_r = wanted.qd_radps + SLOPE * e, wanted.qdd_radps2 + SLOPE * e_dot
        s = qd_r - qd
        Y = self.regressor(q, qd, wanted.qd_radps, qd_r, qdd_r)
        self.a = np.clip(self.a + passed_s * self.gamma * (Y.T @ s), 0.0, self.most)
        M, C = MODEL.inertia_matrix(q), MODEL.coriolis_matrix(q, qd)
        g = MODEL.gravity(q)
        return M @ qdd_r + C @ qd_r + g + Y @ self.a + K_D * M @ s


def effort_of(estimator, here):
    estimate = estimator.update(here)
    layout = GainLayout(True, ('estimate',))
    features = make_features(LAW, layout, here.error, here.at.qd_desired, estimate)
    gains = AdmissibleGains(np.array(THETA))
    hold = holding_torque(here.posture.bias, features, gains)
    return computed_torque(here.posture, hold, here.at.qdd_desired, features, gains)


def textbook_effort(book, here):
    return book.effort(here.at.q, here.at.qd, Reference(*here.at[2:]), here.passed_s)


@pytest.mark.parametrize('growth', [1.0, 1e4], ids=['within', 'at the bounds'])
def test_the_law_is_slotine_and_lis(growth):
    settings = replace(SETTINGS, **{name: growth * getattr(SETTINGS, name) for name in RATES})
    estimator, inputs = estimator_of(settings), random_inputs(1, 40)
    book = Textbook(settings, inputs[0].payload_estimate_kg)
    for here in inputs:
        here = here._replace(may_learn=np.array(True))
        expected = textbook_effort(book, here)
        np.testing.assert_allclose(effort_of(estimator, here), expected, rtol=1e-12, atol=1e-11)
    at_bound = np.isin(book.a, [0.0, *book.most])
    assert np.any(at_bound) if growth > 1.0 else not np.all(at_bound)


def adaptive_ride(settings, friction, rate_hz):
    """Return V and what it must have lost so far, on an arm that the regressor describes."""
    payload_kg, payload_estimate_kg = 1.0, 0.6
    run = ride(
        EstimatorSettings(slotine_li=settings),
        THETA,
        round(1.0 * rate_hz),
        rate_hz=rate_hz,
        friction=friction,
        payload_kg=payload_kg,
        payload_estimate_kg=payload_estimate_kg,
    )
    of_joint = [0.0, friction.viscous_nmsprad, 0.0, friction.memory_gain_nmprad, 0.0]
    a, true = np.array([payload_kg, *of_joint, *of_joint]), ARM.body(payload_kg)
    book, value, rate = Textbook(settings, payload_estimate_kg), [], []
    learns = book.gamma > 0.0
    for k, (q, qd, s) in enumerate(zip(run.q, run.qd, run.s, strict=True)):
        wanted = Reference(run.q_desired[k], run.qd_desired[k], run.qdd_desired[k])
        book.effort(q, qd, wanted, (k > 0) / rate_hz)
        unknown = np.sum((a - book.a)[learns] ** 2 / book.gamma[learns])
        value.append(0.5 * s @ true.inertia_matrix(q) @ s + 0.5 * unknown)
        rate.append(K_D * s @ MODEL.inertia_matrix(q) @ s)
    lost = np.cumsum([0.0, *(0.5 * (a + b) / rate_hz for a, b in pairwise(rate))])
    return np.array(value), lost


def test_the_lyapunov_function_falls_with_every_step_by_k_d_s_m_s_or_more():
    """Payload, viscous friction and a memory of 2 s; a bound that is reached takes the rest."""
    friction = replace(FRICTION, coulomb_nm=0.0, static_nm=0.0)
    value, lost = adaptive_ride(SETTINGS, friction, 1000.0)
    assert np.all(np.diff(value) < 0.0)
    assert np.all(value[0] - value >= lost)
    assert lost[-1] > 0.05 * value[0]


def test_without_a_bound_in_the_way_the_lyapunov_function_loses_k_d_s_m_s_and_nothing_else():
    """Up to the length of a step: half as long, half as far off."""
    settings, misses = replace(STUBBORN, payload_rate=SETTINGS.payload_rate), []
    for rate_hz in (250.0, 500.0):
        value, lost = adaptive_ride(settings, NO_FRICTION, rate_hz)
        misses.append(np.abs(value[0] - value - lost).max() / lost[-1])
    assert misses[1] < 0.01
    assert misses[0] / misses[1] == pytest.approx(2.0, abs=0.1)


@given(seed=st.integers(0, 10**6), growth=st.floats(0.0, 1e9))
def test_no_parameter_leaves_its_bounds_however_fast_it_is_learnt(seed, growth):
    estimator = estimator_of(replace(SETTINGS, **dict.fromkeys(RATES, growth)))
    book = Textbook(SETTINGS, 0.0)
    for here in random_inputs(seed, 12):
        found = estimator.update(here)
        (q, qd, _, qd_desired, qdd_desired), s = here.at, here.error.s_radps
        textbook_effort(book, here)  # for its filters
        qdd_r = qdd_desired + SLOPE * here.error.e_dot_radps
        Y = book.regressor(q, qd, qd_desired, qd + s, qdd_r)
        least, most = np.minimum(Y, 0.0) @ book.most, np.maximum(Y, 0.0) @ book.most
        rest = found - MODEL.coriolis_matrix(q, qd) @ s
        assert np.all((least - 1e-9 <= rest) & (rest <= most + 1e-9))


def test_nothing_is_learnt_while_it_may_not_but_the_bank_goes_on():
    adaptive, fixed = estimator_of(SETTINGS), estimator_of(STUBBORN)
    inputs = random_inputs(4, 20)
    for here in inputs:
        here = here._replace(may_learn=np.array(False))
        np.testing.assert_array_equal(adaptive.update(here), fixed.update(here))
    last = inputs[-1]._replace(may_learn=np.array(True))
    book = Textbook(SETTINGS, inputs[0].payload_estimate_kg)
    book.gamma, learnt = 0.0 * book.gamma, book.gamma
    for here in [*inputs, last]:
        if here is last:
            book.gamma = learnt
        expected = textbook_effort(book, here)
    np.testing.assert_allclose(effort_of(adaptive, last), expected, rtol=1e-12, atol=1e-11)


def bank_miss(horizon_s, rate_hz):
    """Return how far the bank is from the memory of a simulated arm, in N m per N m / rad."""
    settings = replace(
        STUBBORN, memory_rate=1e12, memory_horizons_s=(horizon_s,), memory_most_nmprad=1.0
    )
    estimator = estimator_of(settings)
    plant = Rk4Arm(ARM, replace(FRICTION, memory_gain_nmprad=1.0), rate_hz)
    state = plant.reset(start([0.3, 0.4], [0.8, -0.6], tau_z_s=horizon_s))
    misses = []
    for k in range(round(1.5 * rate_hz)):
        q, qd = state.q_rad, state.qd_radps
        if k / rate_hz == 0.1:  # lagging as the memory is: the weight goes to its bound, one
            ahead = Reference(q, qd + np.sign(plant.memory_nm), np.zeros(2))
            estimator.update(estimator_input(q, qd, ahead, passed_s=1.0 / rate_hz))
        else:
            here = at_goal(q, qd, passed_s=(k > 0) / rate_hz, learn=False)
            found = estimator.update(here)
            if k / rate_hz > 0.1:
                misses.append(np.abs(found - plant.memory_nm).max())
        t = k / rate_hz
        drive = np.array([25.0 * np.cos(5.0 * t), -8.0 * np.cos(7.0 * t)])
        state = plant.step(drive + MODEL.gravity(q))
    assert np.abs(plant.memory_nm).max() > 0.1
    return max(misses)


@pytest.mark.parametrize('horizon_s', BANK_S)
def test_the_bank_follows_the_memory_of_the_friction_model(horizon_s):
    """Up to the trapezoid between two states, which falls with the square of their distance."""
    far, near = bank_miss(horizon_s, 100.0), bank_miss(horizon_s, 200.0)
    assert far < 6e-4
    assert far / near == pytest.approx(4.0, abs=0.3)


@pytest.mark.parametrize(
    ('estimate_kg', 'begin_kg'), [(0.7, 0.7), (-0.4, 0.0), (9.0, 3.0), (np.array(0.7), 0.7)]
)
def test_the_payload_begins_at_its_estimate_within_its_bounds(estimate_kg, begin_kg):
    estimator = estimator_of(SETTINGS)
    q, qd, qdd = np.random.default_rng(5).uniform(-1.5, 1.5, (3, 2))
    load = PER_KG.inertia_matrix(q) @ qdd + PER_KG.at(q, qd).bias
    for _ in range(2):
        for told_kg in (estimate_kg, estimate_kg + 1.0):  # only the first counts
            here = at_goal(q, qd, qdd, payload_kg=told_kg, learn=False)
            np.testing.assert_allclose(estimator.update(here), begin_kg * load, rtol=1e-12)
        estimator.reset()


@pytest.mark.parametrize('horizons_s', [BANK_S, ()], ids=['memory', 'none'])
def test_a_batch_equals_its_arms_one_by_one(horizons_s):
    settings = replace(SETTINGS, memory_horizons_s=horizons_s)
    assert_batch_equals_arms(EstimatorSettings(slotine_li=settings))
