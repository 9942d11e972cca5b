# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""The control loop on an arm with three joints: nothing in it is about two."""

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import pytest

from metactl_ros.baselines import ESTIMATE
from metactl_ros.control.estimators.choice import EstimatorSettings
from metactl_ros.control.estimators.disturbance import IntegralSettings, MomentumObserverSettings
from metactl_ros.control.loop import ControlLoop
from metactl_ros.control.lyapunov import solve_lyapunov
from metactl_ros.control.modes import Cause, Mode
from metactl_ros.control.shield import Reason
from metactl_ros.dynamics.rigid_body import JointLimits
from metactl_ros.motion.reference import Sinusoid
from metactl_ros.settings import load_settings
from metactl_ros.signals import ArmState, seconds
from metactl_ros.sim.rollout import without_warmup

NUM_STEPS, PERIOD_NS, DT_S = 50, 10_000_000, 0.01
LIMITS = JointLimits(
    effort_nm=(60.0, 40.0, 20.0),
    effort_rate_nmps=(1500.0, 1000.0, 500.0),
    position_rad=(2.5, 2.5, 2.5),
    velocity_radps=(6.0, 6.0, 6.0),
)
M = np.array([[1.4, 0.5, 0.1], [0.5, 0.8, 0.2], [0.1, 0.2, 0.3]])  # kg m^2, in every posture
GRAVITY_NM = np.array([15.0, 8.0, 3.0])
LACK_NM = np.array([3.0, -2.0, 1.0])
BANDWIDTH_RADPS = 20.0
ESTIMATORS = {
    'integral': EstimatorSettings(integral=IntegralSettings(rate_per_s2=200.0)),
    'momentum': EstimatorSettings(
        momentum_observer=MomentumObserverSettings(bandwidth_radps=BANDWIDTH_RADPS)
    ),
}
EACH = pytest.mark.parametrize('name', ESTIMATORS)


class Posture:
    """A body whose inertia is the same in every posture, so that there is no Coriolis torque."""

    def __init__(self, body, q_rad):
        self._M, self._q, self._gravity_nm = body.M, q_rad, body.gravity_nm

    @cached_property
    def gravity(self):
        return self._gravity_nm * np.cos(self._q)

    @property
    def bias(self):
        return self.gravity

    @property
    def diagonal(self):
        return np.broadcast_to(np.diag(self._M), self._q.shape)

    @property
    def momentum_flow(self):
        return np.zeros(self._q.shape)

    def apply(self, x):
        return x @ self._M

    def solve(self, torque_nm):
        return np.linalg.solve(self._M, torque_nm[..., np.newaxis])[..., 0]

    def coriolis(self, v_radps):
        return np.zeros(v_radps.shape)


@dataclass(frozen=True)
class Body:
    M: np.ndarray
    gravity_nm: np.ndarray
    num_joints: int = 3

    def at(self, q_rad, _qd_radps):
        return Posture(self, q_rad)

    def inertia_matrix(self, q_rad):
        return np.broadcast_to(self.M, (*q_rad.shape[:-1], 3, 3))


@dataclass(frozen=True)
class ThreeJoints:
    """An `ArmModel`; a payload changes nothing."""

    joint_names: tuple[str, ...] = ('base', 'shoulder', 'elbow')
    limits: JointLimits = LIMITS

    def body(self, _payload_kg=0.0):
        return Body(M, GRAVITY_NM)

    def body_per_kg(self):
        return Body(0.0 * M, 0.0 * GRAVITY_NM)

    def smallest_inertia_kgm2(self):
        return float(np.linalg.eigvalsh(M).min())


ARM = ThreeJoints()


def loop_with(name):
    shipped = without_warmup(load_settings().controller)
    P = solve_lyapunov(np.eye(6), shipped.law, shipped.lyapunov.alpha_per_s)
    lyapunov = replace(shipped.lyapunov, p_matrix=tuple(map(tuple, P.tolist())))
    columns = (*shipped.gain_box.feed_forward, ESTIMATE)
    controller = replace(
        shipped,
        lyapunov=lyapunov,
        gain_box=replace(shipped.gain_box, feed_forward=columns),
        context=replace(shipped.context, num_extra=3),
        estimator=ESTIMATORS[name],
    )
    return ControlLoop(ARM, controller)


def run(name, lead=(), actions=None, phase=0.0, spoil=None):
    """Return steps and windows of an arm, or of a batch, that begins on a sinusoid."""
    loop, body = loop_with(name), ARM.body()
    amplitude = np.broadcast_to([0.5, 0.4, 0.3], (*lead, 3))
    motion = Sinusoid(
        amplitude, np.broadcast_to([2.0, 3.0, 4.0], (*lead, 3)), phase + 0 * amplitude
    )
    first = motion.at(0.0)
    q, qd = first.q_rad, first.qd_radps
    before = loop.reset(ArmState(0, q, qd))
    steps, windows = [], []
    for k in range(NUM_STEPS):
        seen = (q, qd) if spoil is None else spoil(q, qd)
        state, wanted = ArmState(k * PERIOD_NS, *seen), motion.at(seconds(k * PERIOD_NS))
        windows.append(loop.observe(state, wanted, 0.0))
        nominal = np.broadcast_to(loop.nominal_action, (*lead, loop.gain_map.size))
        action = nominal if actions is None else actions[k]
        step = loop.actuate(action, state, wanted, k * PERIOD_NS)
        assert np.isfinite(step.effort_nm).all()
        assert (np.abs(step.effort_nm) <= LIMITS.effort_nm).all()
        reach_nm = DT_S * np.array(LIMITS.effort_rate_nmps)
        assert (np.abs(step.effort_nm - before) <= reach_nm + 1e-9).all()
        before = step.effort_nm
        steps.append(step)
        for _ in range(10):
            qdd = body.at(q, qd).solve(step.effort_nm - LACK_NM - body.at(q, qd).gravity)
            qd = qd + 0.1 * DT_S * qdd
            q = q + 0.1 * DT_S * qd
    return steps, np.stack(windows)


def random_actions(*lead):
    return np.random.default_rng(3).uniform(-1.0, 1.0, (NUM_STEPS, *lead, 15))


@EACH
@pytest.mark.parametrize('lead', [(), (4,), (2, 3)])
def test_everything_has_three_joints(name, lead):
    steps, windows = run(name, lead)
    assert windows.shape == (NUM_STEPS, *lead, 50, 4 * 3 + 3 + 3)
    last = steps[-1]
    for found in (last.effort_nm, last.wanted_nm, last.estimate_nm):
        assert found.shape == (*lead, 3)
    assert last.decision.gains.theta.shape == (*lead, 15)
    assert last.excess_after_limits.shape == last.modes.shape == lead


@EACH
def test_the_nominal_gains_are_certified_and_never_moved(name):
    steps, _ = run(name)
    for step in steps:
        assert step.modes == Mode.NOMINAL
        assert step.decision.reason == Reason.ADMITTED
        assert step.decision.excess <= 1e-9


@EACH
def test_whatever_is_proposed_is_admissible_when_it_comes_out(name):
    steps, _ = run(name, actions=random_actions())
    assert {int(step.modes) for step in steps} == {Mode.NOMINAL}
    assert max(float(step.decision.excess) for step in steps) <= 1e-9
    assert any(step.decision.was_moved for step in steps)


@EACH
def test_a_batch_equals_its_arms_one_by_one(name):
    actions, phases = random_actions(4), np.linspace(0.0, 1.5, 4)[:, np.newaxis]
    together, windows = run(name, (4,), actions, phases)
    for arm in range(4):
        alone, window = run(name, (), actions[:, arm], phases[arm])
        np.testing.assert_allclose(windows[:, arm], window, rtol=1e-9, atol=1e-9)
        for one, all_of_them in zip(alone, together, strict=True):
            np.testing.assert_allclose(
                all_of_them.effort_nm[arm], one.effort_nm, rtol=1e-9, atol=1e-9
            )
            assert all_of_them.modes[arm] == one.modes


def test_the_momentum_observer_finds_what_each_of_the_joints_lacks():
    steps, _ = run('momentum')
    found = np.array([step.estimate_nm for step in steps])
    share = -np.expm1(-BANDWIDTH_RADPS * DT_S * np.arange(NUM_STEPS))
    np.testing.assert_allclose(found, share[:, np.newaxis] * LACK_NM, rtol=0, atol=0.05)


def test_a_broken_sensor_of_the_third_joint_is_named():
    steps, _ = run('integral', spoil=lambda q, qd: (q, qd * [1.0, 1.0, -1.0]))
    assert Mode(int(steps[-1].modes)) == Mode.FAULT
    assert Cause(int(steps[-1].causes)) == Cause.POSITION_VELOCITY_MISMATCH
    assert steps[-1].joints == 2
