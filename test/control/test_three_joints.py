# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""The control loop on an arm with three joints: nothing in it is about two."""

from dataclasses import replace
from itertools import permutations

import numpy as np
import pytest
from support.three_joints import (
    box_in_order,
    controller_for_three,
    FRICTION,
    GAIN_BOX,
    in_order,
    LAW,
    LIMITS,
    ThreeJoints,
)

from metactl_ros.baselines import ESTIMATE
from metactl_ros.control.estimators.choice import EstimatorSettings
from metactl_ros.control.estimators.disturbance import IntegralSettings, MomentumObserverSettings
from metactl_ros.control.estimators.friction_observers import LugreSettings, OracleSettings
from metactl_ros.control.estimators.slotine_li import SlotineLiSettings
from metactl_ros.control.loop import ControlLoop
from metactl_ros.control.modes import Cause, Mode
from metactl_ros.control.shield import Reason
from metactl_ros.errors import ConfigError
from metactl_ros.motion.reference import Sinusoid
from metactl_ros.settings import load_settings
from metactl_ros.signals import ArmState, seconds

NUM_STEPS, PERIOD_NS, DT_S = 50, 10_000_000, 0.01
LACK_NM = np.array([3.0, -2.0, 1.0])
BANDWIDTH_RADPS = 20.0
SHIPPED = load_settings().controller
SHIPPED_BOX = replace(SHIPPED.gain_box, feed_forward=(*SHIPPED.gain_box.feed_forward, ESTIMATE))
INTEGRAL = EstimatorSettings(integral=IntegralSettings(rate_per_s2=200.0))
MOMENTUM = EstimatorSettings(
    momentum_observer=MomentumObserverSettings(bandwidth_radps=BANDWIDTH_RADPS)
)
LUGRE = LugreSettings(
    stiffness_nmprad=(100.0, 80.0, 60.0),
    damping_nmsprad=(0.1, 0.2, 0.3),
    coulomb_nm=(2.0, 1.0, 0.3),
    static_nm=(3.0, 1.2, 0.5),
    stribeck_velocity_radps=(0.1, 0.2, 0.3),
    viscous_nmsprad=(0.5, 0.3, 0.1),
    correction=(1.0, 2.0, 0.5),
)
SLOTINE_LI = SlotineLiSettings(
    payload_rate=0.0,
    coulomb_rate=20.0,
    viscous_rate=5.0,
    memory_rate=10.0,
    memory_horizons_s=(0.5, 2.0),
    payload_most_kg=3.0,
    coulomb_most_nm=10.0,
    viscous_most_nmsprad=10.0,
    memory_most_nmprad=30.0,
)
CONTROLLERS = {
    'integral': (SHIPPED.law, SHIPPED_BOX, INTEGRAL),
    'momentum': (SHIPPED.law, SHIPPED_BOX, MOMENTUM),
    'momentum per joint': (LAW, GAIN_BOX, MOMENTUM),
    'adaptive per joint': (LAW, GAIN_BOX, EstimatorSettings(slotine_li=SLOTINE_LI)),
    'lugre per joint': (LAW, GAIN_BOX, EstimatorSettings(lugre_observer=LUGRE)),
    'oracle per joint': (
        LAW,
        GAIN_BOX,
        EstimatorSettings(oracle=OracleSettings(friction=FRICTION, payload_kg=0.0, tau_z_s=2.0)),
    ),
}
EACH = pytest.mark.parametrize('name', CONTROLLERS)
PER_JOINT = pytest.mark.parametrize('name', [n for n in CONTROLLERS if 'per joint' in n])


def estimator_in_order(estimator, order):
    if estimator.lugre_observer is not None:
        return EstimatorSettings(lugre_observer=in_order(estimator.lugre_observer, order))
    if estimator.oracle is not None:
        oracle = estimator.oracle
        return EstimatorSettings(oracle=replace(oracle, friction=in_order(FRICTION, order)))
    return estimator


def run(name, lead=(), actions=None, phase=0.0, spoil=None, order=(0, 1, 2)):
    """Return steps and windows of an arm, or of a batch, that begins on a sinusoid."""
    law, box, estimator = CONTROLLERS[name]
    return run_with(
        controller_for_three(
            in_order(law, order), box_in_order(box, order), estimator_in_order(estimator, order)
        ),
        lead,
        actions,
        phase,
        spoil,
        order,
    )


def run_with(controller, lead=(), actions=None, phase=0.0, spoil=None, order=(0, 1, 2)):
    limits, joints = in_order(LIMITS, order), list(order)
    arm = ThreeJoints(limits=limits, order=order)
    loop, body = ControlLoop(arm, controller), arm.body()
    lack_nm = LACK_NM[joints]
    amplitude = np.broadcast_to(np.array([0.5, 0.4, 0.3])[joints], (*lead, 3))
    omega = np.broadcast_to(np.array([2.0, 3.0, 4.0])[joints], (*lead, 3))
    motion = Sinusoid(amplitude, omega, phase + 0 * amplitude)
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
        assert (np.abs(step.effort_nm) <= limits.effort_nm).all()
        reach_nm = DT_S * np.array(limits.effort_rate_nmps)
        assert (np.abs(step.effort_nm - before) <= reach_nm + 1e-9).all()
        before = step.effort_nm
        steps.append(step)
        for _ in range(10):
            qdd = body.at(q, qd).solve(step.effort_nm - lack_nm - body.at(q, qd).gravity)
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


@PER_JOINT
@pytest.mark.parametrize('order', list(permutations(range(3)))[1:])
def test_joints_in_another_order_get_the_same_efforts_in_that_order(name, order):
    actions, joints = random_actions(), list(order)
    steps, _ = run(name, actions=actions)
    others = actions.reshape(NUM_STEPS, 5, 3)[..., joints].reshape(actions.shape)
    swapped, _ = run(name, actions=others, order=order)
    for one, other in zip(steps, swapped, strict=True):
        theta = one.decision.gains.theta.reshape(5, 3)[:, joints].ravel()
        np.testing.assert_allclose(other.decision.gains.theta, theta, rtol=0, atol=1e-7)
        np.testing.assert_allclose(other.effort_nm, one.effort_nm[joints], rtol=0, atol=1e-7)


def thrice(settings):
    """Return settings with each number stated once per joint."""
    values = {name: getattr(settings, name) for name in settings.__slots__}
    return replace(settings, **{name: (value,) * 3 for name, value in values.items()})


def test_settings_with_equal_entries_are_those_of_one_number_to_the_bit():
    plain = load_settings().plant.friction
    oracle = OracleSettings(friction=plain, payload_kg=0.0, tau_z_s=2.0)
    lugre = in_order(LUGRE, (0, 0, 0))
    one_lugre = LugreSettings(**{name: getattr(lugre, name)[0] for name in LUGRE.__slots__})
    law, box = SHIPPED.law, SHIPPED_BOX
    columns = tuple(replace(entry, ends=(entry.ends,) * 3) for entry in box.feed_forward)
    law_thrice = replace(
        law,
        nominal_kd_per_s=(law.nominal_kd_per_s,) * 3,
        nominal_lambda_per_s=(law.nominal_lambda_per_s,) * 3,
        coulomb_smoothing_radps=(law.coulomb_smoothing_radps,) * 3,
    )
    box_thrice = replace(
        box,
        kd_per_s=(box.kd_per_s,) * 3,
        lambda_per_s=(box.lambda_per_s,) * 3,
        feed_forward=columns,
    )
    for one, three in (
        ({'oracle': oracle}, {'oracle': replace(oracle, friction=thrice(plain))}),
        ({'lugre_observer': one_lugre}, {'lugre_observer': lugre}),
        ({'slotine_li': SLOTINE_LI}, {'slotine_li': SLOTINE_LI}),
    ):
        first = controller_for_three(law, box, EstimatorSettings(**one))
        second = controller_for_three(law_thrice, box_thrice, EstimatorSettings(**three))
        assert first.lyapunov == second.lyapunov
        results = [run_with(each, actions=random_actions()) for each in (first, second)]
        np.testing.assert_array_equal(results[0][1], results[1][1])
        for a, b in zip(results[0][0], results[1][0], strict=True):
            np.testing.assert_array_equal(a.effort_nm, b.effort_nm)
            np.testing.assert_array_equal(a.decision.gains.theta, b.decision.gains.theta)


LUGRE_OF_TWO = EstimatorSettings(lugre_observer=replace(in_order(LUGRE, (0, 1)), correction=1.0))
ORACLE_OF_TWO = EstimatorSettings(
    oracle=OracleSettings(friction=in_order(FRICTION, (0, 1)), payload_kg=0.0, tau_z_s=2.0)
)


@pytest.mark.parametrize(
    ('changed', 'key'),
    [
        ({'law': in_order(LAW, (0, 1))}, 'LawSettings.nominal_kd_per_s'),
        ({'gain_box': box_in_order(GAIN_BOX, (0, 1))}, 'GainBox.kd_per_s'),
        ({'estimator': LUGRE_OF_TWO}, 'LugreSettings.stiffness_nmprad'),
        ({'estimator': ORACLE_OF_TWO}, 'Friction.coulomb_nm'),
    ],
)
def test_what_is_stated_for_two_joints_is_refused_for_three(changed, key):
    controller = controller_for_three(*CONTROLLERS['integral'])
    with pytest.raises(ConfigError, match=f'{key}: expected 3 entries, one per joint, found 2'):
        replace(controller, **changed)


def test_gains_for_different_numbers_of_joints_are_refused():
    with pytest.raises(ConfigError, match=r'nominal_lambda_per_s: expected 2 .*, found 3'):
        replace(LAW, nominal_kd_per_s=(30.0, 25.0))
