# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""What the control loop does not do, whatever it is asked."""

import numpy as np
import pytest

from metactl_ros.control.loop import ControlLoop
from metactl_ros.control.modes import Health, Mode
from metactl_ros.errors import ConfigError
from metactl_ros.motion.reference import Hold
from metactl_ros.settings import load_settings
from metactl_ros.signals import ArmState, Reference
from metactl_ros.sim.rollout import without_warmup

SETTINGS = load_settings()
ARM, CONTROLLER = SETTINGS.arm, without_warmup(SETTINGS.controller)
RATE_NMPS = np.array(ARM.limits.effort_rate_nmps)
PERIOD_NS = 10_000_000
POSTURE = np.array([0.3, 0.4])


def at_rest(q_rad=POSTURE, stamp_ns=0):
    q = np.array(q_rad, dtype=np.float64)
    return ArmState(stamp_ns, q, np.zeros_like(q))


def far_hold(q_rad=(2.3, 2.0)):
    return Hold(np.array(q_rad, dtype=np.float64)).at(0.0)


@pytest.fixture
def loop():
    loop = ControlLoop(ARM, CONTROLLER)
    loop.reset(at_rest())
    return loop


@pytest.mark.parametrize('q', [[np.nan, 0.0], [[np.nan, 0.0], [0.3, 0.4]], [np.inf, 0.0]])
def test_a_loop_does_not_begin_with_a_state_that_is_not_finite(q):
    with pytest.raises(ConfigError, match='expected a finite state'):
        ControlLoop(ARM, CONTROLLER).reset(at_rest(q))


def test_a_loop_does_not_act_before_it_was_reset():
    loop = ControlLoop(ARM, CONTROLLER)
    with pytest.raises(ConfigError, match='call reset first'):
        loop.actuate(np.zeros(8), at_rest(), far_hold(), 0)


@pytest.mark.parametrize('shape', [(7,), (1, 8), ()])
def test_an_action_of_the_wrong_shape_is_refused(loop, shape):
    with pytest.raises(ConfigError, match=r'expected an action of shape \(8,\)'):
        loop.actuate(np.zeros(shape), at_rest(), far_hold(), 0)


@pytest.mark.parametrize('spacing_ns', [0, 100_000, 3_000_000, PERIOD_NS, 5 * PERIOD_NS])
def test_the_effort_changes_by_its_rate_times_the_time_that_passed_and_a_period_at_most(
    loop, spacing_ns
):
    before = loop.actuate(loop.nominal_action, at_rest(), far_hold(), 0).effort_nm
    after = loop.actuate(loop.nominal_action, at_rest(), far_hold(), spacing_ns).effort_nm
    allowed = RATE_NMPS * min(spacing_ns, PERIOD_NS) * 1e-9
    change = np.abs(after - before)
    assert (change <= allowed + 1e-9).all()
    assert np.isclose(change, allowed, rtol=0, atol=1e-9).any()  # as far as one joint may go


def test_a_clock_that_steps_back_stands_still(loop):
    stale = Health(state_is_fresh=False)
    loop.actuate(loop.nominal_action, at_rest(), far_hold(), 10**9)
    faded = [
        loop.actuate(loop.nominal_action, at_rest(), far_hold(), now, stale)
        for now in (1_010_000_000, 1_150_000_000, 0, 20_000_000, 1_220_000_000, 1_230_000_000)
    ]
    wanted = [float(step.wanted_nm[0]) for step in faded]
    assert wanted[1] == wanted[2] == wanted[3]
    assert wanted[4] == 0.0
    assert all(step.modes == Mode.BLIND for step in faded)


def test_the_gains_that_were_handed_out_cannot_change_the_next_ones(loop):
    step = loop.actuate(np.full(8, np.nan), at_rest(), far_hold(), 0)
    nominal = step.decision.gains.theta.copy()
    step.decision.gains.theta[...] = 0.0
    again = loop.actuate(np.full(8, np.nan), at_rest(), far_hold(), PERIOD_NS)
    np.testing.assert_array_equal(again.decision.gains.theta, nominal)
    for fixed in (loop.gain_map.lower, loop.gain_map.upper):
        with pytest.raises(ValueError, match='read-only'):
            fixed += 0.9
    with pytest.raises(ValueError, match='read-only'):
        loop.nominal_action += 0.9
    with pytest.raises(ValueError, match='read-only'):
        step.modes[...] = 0


def test_a_buffer_that_the_caller_reuses_does_not_change_what_was_seen():
    q = np.array([[0.3, 0.4], [0.1, 0.2]])
    loop = ControlLoop(ARM, CONTROLLER)
    loop.reset(at_rest(q))
    state = at_rest(q)
    loop.actuate(np.tile(loop.nominal_action, (2, 1)), state, far_hold(q), 0)
    state.q_rad[...] = np.nan
    step = loop.actuate(np.tile(loop.nominal_action, (2, 1)), state, far_hold(q), PERIOD_NS)
    assert np.all(step.modes == Mode.BLIND)
    assert np.all(np.isfinite(step.effort_nm))


@pytest.mark.parametrize('begin', ['reset', 'resume'])
def test_what_a_loop_began_with_does_not_change_with_the_buffers_of_the_caller(loop, begin):
    state, effort = at_rest(), np.array([5.0, -5.0])
    told = effort.copy()
    handed_out = loop.reset(state, told)
    if begin == 'resume':
        loop.resume(told)
    state.q_rad[...] = told[...] = handed_out[...] = np.nan
    step = loop.actuate(loop.nominal_action, state, far_hold(), 0)
    assert step.modes == Mode.BLIND
    assert (np.abs(step.effort_nm - effort) <= RATE_NMPS * 0.01 + 1e-9).all()


def test_an_effort_that_the_caller_overwrites_does_not_change_from_where_the_rate_is_limited(loop):
    first = loop.actuate(loop.nominal_action, at_rest(), far_hold(), 0).effort_nm
    sent = first.copy()
    first[...] = 0.0
    second = loop.actuate(loop.nominal_action, at_rest(), far_hold(), PERIOD_NS).effort_nm
    assert (np.abs(second - sent) <= RATE_NMPS * 0.01 + 1e-9).all()
    assert (np.abs(second) > RATE_NMPS * 0.01).any()


def test_a_payload_estimate_that_is_no_number_is_not_given_to_a_policy_that_acts(loop):
    loop.actuate(loop.nominal_action, at_rest(), far_hold(POSTURE), 0)
    window = loop.observe(at_rest(stamp_ns=PERIOD_NS), far_hold(POSTURE), np.nan)
    step = loop.actuate(loop.nominal_action, at_rest(), far_hold(POSTURE), PERIOD_NS)
    assert np.all(np.isfinite(window))
    assert step.modes == Mode.FALLBACK


def test_an_arm_beyond_its_velocity_limit_is_stopped(loop):
    fast = ArmState(0, POSTURE, np.array([0.0, ARM.limits.velocity_radps[1] * 1.01]))
    step = loop.actuate(loop.nominal_action, fast, far_hold(POSTURE), 0)
    assert step.modes == Mode.STOP


@pytest.mark.parametrize(('factor', 'mode'), [(0.99, Mode.NOMINAL), (1.01, Mode.STOP)])
@pytest.mark.parametrize('signal', ['position', 'velocity', 'acceleration'])
def test_a_reference_is_followed_up_to_its_limits_and_not_beyond(loop, signal, factor, mode):
    most = {
        'position': ARM.limits.position_rad[1],
        'velocity': ARM.limits.velocity_radps[1],
        'acceleration': ARM.limits.effort_nm[1] / ARM.smallest_inertia_kgm2(),
    }
    row = {name: np.zeros(2) for name in most}
    row['position'] = POSTURE.copy()
    row[signal][1] = factor * most[signal]
    step = loop.actuate(loop.nominal_action, at_rest(), Reference(*row.values()), 0)
    assert step.modes == mode


def test_a_measured_effort_beyond_the_limit_is_taken_as_the_limit():
    loop = ControlLoop(ARM, CONTROLLER)
    loop.reset(at_rest(), np.array([1e6, -1e6]))
    step = loop.actuate(loop.nominal_action, at_rest(), far_hold((-2.3, 2.0)), 0)
    most = np.array(ARM.limits.effort_nm)
    assert (np.abs(step.effort_nm - [most[0], -most[1]]) <= RATE_NMPS * 0.01 + 1e-9).all()
