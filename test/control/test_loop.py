# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
from dataclasses import replace

import numpy as np
import pytest
from support.episodes import start

from metactl_ros.control.loop import ControlLoop
from metactl_ros.control.modes import Cause, Health, HEALTHY, Mode
from metactl_ros.control.shield import Reason
from metactl_ros.motion.reference import Hold, Sinusoid
from metactl_ros.settings import load_settings
from metactl_ros.signals import ArmState, Reference, seconds
from metactl_ros.sim.rk4_arm import Rk4Arm
from metactl_ros.sim.rollout import unguarded, without_warmup

SETTINGS = load_settings()
ARM, CONTROLLER = SETTINGS.arm, without_warmup(SETTINGS.controller)
LIMIT_NM = np.array(ARM.limits.effort_nm)
REACH_NM = np.array(ARM.limits.effort_rate_nmps) / CONTROLLER.law.rate_hz
PERIOD_NS = 10_000_000
STALE, NO_GOAL = Health(state_is_fresh=False), Health(reference_is_valid=False)
LATE, ERROR = Health(policy_is_on_time=False), Health(error=Cause.INTERNAL_ERROR)

TASK = SETTINGS.plant.task
MOTION = Sinusoid(np.array(TASK.amplitude_rad), np.array(TASK.omega_radps), np.zeros(2))


def at_rest(q_rad, stamp_ns=0):
    q = np.array(q_rad, dtype=np.float64)
    return ArmState(stamp_ns, q, np.zeros_like(q))


def hold(q_rad):
    return Hold(np.array(q_rad, dtype=np.float64)).at(0.0)


def begun(q_rad, controller=CONTROLLER, **options):
    loop = ControlLoop(ARM, controller, **options)
    loop.reset(at_rest(q_rad))
    return loop


def run(signals, action):
    q = signals[0, 0]
    controller = unguarded(CONTROLLER)  # random walks are no motion of an arm
    loop = ControlLoop(ARM, replace(controller, modes=replace(CONTROLLER.modes, warmup_ticks=5)))
    loop.reset(ArmState(0, q, np.zeros_like(q)))
    efforts, modes, windows = [], [], []
    for k, (measured, velocity, *goal) in enumerate(signals):
        state, reference = ArmState(k * PERIOD_NS, measured, velocity), Reference(*goal)
        windows.append(loop.observe(state, reference, 0.5))
        step = loop.actuate(action[k], state, reference, k * PERIOD_NS)
        efforts.append(step.effort_nm)
        modes.append(step.modes)
    return np.stack(efforts), np.stack(modes), np.stack(windows)


def random_signals(num_steps, num_arms):
    rng = np.random.default_rng(7)
    walk = np.cumsum(rng.normal(0.0, 0.02, (num_steps, num_arms, 2)), axis=0)
    others = rng.normal(0.0, 0.3, (num_steps, 4, num_arms, 2))
    signals = np.concatenate([walk[:, np.newaxis], others], axis=1)
    signals[:, 2] += walk
    return signals, rng.uniform(-1.2, 1.2, (num_steps, num_arms, 8))


def assert_batch_equals_arms(signals, action):
    effort, modes, windows = run(signals, action)
    for arm in range(signals.shape[2]):
        alone = run(signals[:, :, arm], action[:, arm])
        np.testing.assert_array_equal(modes[:, arm], alone[1])
        np.testing.assert_allclose(effort[:, arm], alone[0], rtol=1e-12, atol=1e-12)
        np.testing.assert_array_equal(windows[:, arm], alone[2])
    return modes


def test_a_batch_equals_its_arms_one_by_one():
    modes = assert_batch_equals_arms(*random_signals(60, 5))
    assert np.all(modes[5:] == Mode.NOMINAL)


def test_a_batch_equals_its_arms_one_by_one_when_each_fails_in_its_own_way():
    signals, action = random_signals(80, 5)
    signals[20, 0, 0] = np.nan
    signals[30:33, 1, 1, 0] = np.inf
    signals[35:40, 2, 2] = np.nan
    signals[50:55, 4, 1] = np.nan
    action[45, 3] = np.nan
    modes = assert_batch_equals_arms(signals, action)
    assert modes[[20, 30, 35, 45], range(4)].tolist() == [4, 4, 3, 2]
    assert np.all(modes[5:, 4] == Mode.NOMINAL)


def test_one_arm_without_a_state_is_blind_and_the_others_do_not_notice():
    signals, action = random_signals(40, 5)
    good, _, _ = run(signals, action)
    signals[20:, 0, 3] = np.nan
    effort, modes, _ = run(signals, action)
    others = [0, 1, 2, 4]
    assert np.all(modes[20:, 3] == Mode.BLIND)
    assert np.all(modes[20:, others] == Mode.NOMINAL)
    np.testing.assert_array_equal(effort[:, others], good[:, others])


@pytest.mark.parametrize('value', [1e150, -1e308])
def test_an_absurd_number_in_one_arm_does_not_disturb_the_others(value):
    signals, action = random_signals(40, 5)
    good, _, _ = run(signals, action)
    for arm in range(4):
        signals[20 + arm, arm, arm, 0] = value
    effort, modes, _ = run(signals, action)
    assert np.all(modes[[20, 21, 22, 23], range(4)] != Mode.NOMINAL)
    np.testing.assert_array_equal(effort[:, 4], good[:, 4])


@pytest.mark.parametrize('value', [1e20, 1e308])
@pytest.mark.parametrize('signal', ['q_rad', 'qd_radps', 'qdd_radps2'])
def test_an_absurd_reference_is_never_followed(signal, value):
    loop = begun([0.3, 1.3])
    reference = replace(hold([0.3, 1.3]), **{signal: np.array([0.0, value])})
    step = loop.actuate(loop.nominal_action, at_rest([0.3, 1.3]), reference, 0)
    assert step.modes != Mode.NOMINAL


def stopped_run(num_steps, stop_from, stop_until, payload_kg=0.75):
    loop = ControlLoop(ARM, SETTINGS.controller)
    plant = Rk4Arm(ARM, SETTINGS.plant.friction, CONTROLLER.law.rate_hz)
    first = MOTION.at(0.0)
    state = plant.reset(start(first.q_rad, first.qd_radps, payload_kg=payload_kg))
    loop.reset(state)
    states, modes = [], []
    for k in range(num_steps):
        reference = MOTION.at(seconds(state.stamp_ns))
        health = NO_GOAL if stop_from <= k < stop_until else HEALTHY
        loop.observe(state, reference, payload_kg)
        step = loop.actuate(loop.nominal_action, state, reference, state.stamp_ns, health)
        states.append(state)
        modes.append(int(step.modes))
        state = plant.step(step.effort_nm)
    return np.array(modes), np.array([x.q_rad for x in states]), [x.qd_radps for x in states]


def test_without_a_reference_the_arm_comes_to_rest_within_a_second():
    modes, _, qd = stopped_run(250, 100, 250)
    assert np.all(modes[100:] == Mode.STOP)
    assert np.abs(qd[99]).max() > 0.3
    assert np.abs(qd[200:]).max() < 0.01


def test_stop_holds_the_posture_in_which_it_was_entered():
    _, q, _ = stopped_run(250, 100, 250)
    assert np.abs(q[100:] - q[100]).max() < 0.06


def test_a_stopped_arm_follows_again_when_the_reference_returns():
    modes, q, _ = stopped_run(400, 100, 200)
    assert np.all(modes[200:] == Mode.NOMINAL)
    _, deferred_signals, _ = stopped_run(400, 0, 0)
    assert np.abs(q - deferred_signals)[200].max() > 0.2
    assert np.abs(q - deferred_signals)[350:].max() < 0.02


def blind_steps(ramp_s, num_steps=40):
    controller = replace(CONTROLLER, modes=replace(CONTROLLER.modes, blind_ramp_s=ramp_s))
    loop = begun([0.3, 0.4], controller)
    loop.actuate(loop.nominal_action, at_rest([0.3, 0.4]), hold([0.3, 0.4]), 0)
    times = range(PERIOD_NS, (num_steps + 1) * PERIOD_NS, PERIOD_NS)
    lost = at_rest([np.nan, np.nan])
    return [loop.actuate(loop.nominal_action, lost, hold([0.9, 0.9]), now) for now in times]


def test_a_blind_arm_gets_gravity_torque_that_fades_linearly_to_zero():
    steps = blind_steps(0.2)
    gravity = ARM.body().gravity(np.array([0.3, 0.4]))
    share = np.clip(1.0 - np.arange(40) / 20.0, 0.0, 1.0)
    assert {int(step.modes) for step in steps} == {Mode.BLIND}
    found = [step.effort_nm for step in steps]
    np.testing.assert_allclose(found, share[:, np.newaxis] * gravity, rtol=0, atol=1e-12)


def test_a_blind_arm_with_brakes_gets_zero_torque_as_fast_as_the_rate_allows():
    steps = blind_steps(0.0)
    gravity = ARM.body().gravity(np.array([0.3, 0.4]))
    np.testing.assert_array_equal([step.wanted_nm for step in steps], np.zeros((40, 2)))
    np.testing.assert_allclose(steps[0].effort_nm, np.maximum(gravity - REACH_NM, 0.0))
    np.testing.assert_array_equal(steps[3].effort_nm, [0.0, 0.0])


def test_a_fault_takes_the_torque_away_as_fast_as_the_rate_allows():
    loop = begun([0.3, 0.4])
    previous = ARM.body().gravity(np.array([0.3, 0.4]))
    for now in range(0, 5 * PERIOD_NS, PERIOD_NS):
        health = ERROR if now == 0 else HEALTHY
        step = loop.actuate(
            loop.nominal_action, at_rest([0.3, 0.4]), hold([0.3, 0.4]), now, health
        )
        assert step.modes == Mode.FAULT
        np.testing.assert_allclose(step.effort_nm, np.maximum(previous - REACH_NM, 0.0))
        previous = step.effort_nm
    np.testing.assert_array_equal(previous, [0.0, 0.0])


@pytest.mark.parametrize('measured', [[0.0, 0.0], [-20.0, 5.0], [149.0, -59.0]])
def test_a_reset_begins_within_the_rate_of_the_measured_effort(measured):
    loop = ControlLoop(ARM, CONTROLLER)
    loop.reset(at_rest([0.3, 0.4]), np.array(measured))
    step = loop.actuate(loop.nominal_action, at_rest([0.3, 0.4]), hold([1.3, 0.4]), 0)
    assert np.all(np.abs(step.effort_nm - measured) <= REACH_NM + 1e-9)


def test_a_reset_without_a_measured_effort_begins_with_the_torque_that_holds_the_arm():
    loop = begun([0.3, 0.4])
    step = loop.actuate(loop.nominal_action, at_rest([0.3, 0.4]), hold([0.3, 0.4]), 0)
    gravity = ARM.body().gravity(np.array([0.3, 0.4]))
    np.testing.assert_allclose(step.effort_nm, gravity, rtol=0, atol=1e-12)


def test_a_reset_empties_the_window():
    loop = begun([0.3, 0.4])
    loop.observe(at_rest([0.3, 0.4], 5 * PERIOD_NS), hold([0.3, 0.4]), 0.5)
    loop.reset(at_rest([0.1, 0.2]))
    window = loop.observe(at_rest([0.1, 0.2]), hold([0.1, 0.2]), 0.5)
    np.testing.assert_array_equal(window[:, :2], [[0.1, 0.2]] * 50)


def test_observing_survives_references_that_are_not_finite():
    loop = begun([0.3, 0.4])
    for k, value in enumerate([0.0, np.inf, -np.inf, np.nan, 1e308, -1e308, 0.0]):
        state = at_rest([0.3, 0.4], 3 * k * PERIOD_NS)
        reference = replace(hold([0.0, 0.0]), q_rad=np.array([0.0, value]))
        assert loop.observe(state, reference, 0.5).shape == (50, 11)


@pytest.mark.parametrize('q', [[0.3, 0.4], [[0.3, 0.4], [0.1, 0.2]]], ids=['one', 'batch'])
@pytest.mark.parametrize('measured', [np.nan, np.inf, 1e6])
def test_a_measured_effort_that_cannot_be_still_gives_a_sound_one(q, measured):
    loop = ControlLoop(ARM, CONTROLLER)
    loop.reset(at_rest(q), np.full_like(q, measured))
    action = np.broadcast_to(loop.nominal_action, (*np.shape(q)[:-1], 8))
    step = loop.actuate(action, at_rest(q), hold(q), 0)
    assert np.all(np.abs(step.effort_nm) <= LIMIT_NM)


def random_situations(count, spread_rad):
    rng = np.random.default_rng(8)
    for _ in range(count):
        q, qd = rng.uniform(-2, 2, 2), rng.uniform(-3, 3, 2)
        goal = Reference(
            q + rng.normal(0, spread_rad, 2), rng.normal(0, 1, 2), rng.normal(0, 2, 2)
        )
        yield ArmState(0, q, qd), goal, rng.uniform(-1, 1, 8)


def test_nominal_gains_pass_the_shield_unchanged_at_every_state():
    loop, law = begun([0.0, 0.0]), CONTROLLER.law
    expected = np.repeat([law.nominal_kd_per_s, law.nominal_lambda_per_s, 0.0, 0.0], 2)
    for state, reference, _ in random_situations(500, 0.5):
        decision = loop.actuate(loop.nominal_action, state, reference, 0).decision
        assert decision.reason == Reason.ADMITTED
        np.testing.assert_allclose(decision.gains.theta, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ('warmup_ticks', 'health', 'mode'),
    [
        (5, HEALTHY, Mode.WARMUP),
        (0, LATE, Mode.FALLBACK),
        (0, NO_GOAL, Mode.STOP),
        (0, STALE, Mode.BLIND),
        (0, ERROR, Mode.FAULT),
    ],
)
def test_only_nominal_uses_the_gains_of_the_policy(warmup_ticks, health, mode):
    modes = replace(CONTROLLER.modes, warmup_ticks=warmup_ticks)
    loop = begun([0.3, 0.4], replace(CONTROLLER, modes=modes))
    step = loop.actuate(np.full(8, 0.1), at_rest([0.3, 0.4]), hold([0.4, 0.5]), 0, health)
    assert step.modes == mode
    expected = loop.gain_map.gains(loop.nominal_action)
    np.testing.assert_array_equal(step.decision.gains.theta, expected)


@pytest.mark.parametrize('size', [1.5, 1e3, 1e20, 1e308])
def test_a_proposal_far_outside_the_box_still_gives_admissible_gains(size):
    rng = np.random.default_rng(9)
    for _ in range(1000):
        q, qd, action = rng.uniform(-1, 1, 2), rng.uniform(-1, 1, 2), rng.uniform(-1, 1, 8)
        far = np.where(rng.random(8) < 0.5, np.sign(action) * size, action)
        goal = hold(q + rng.normal(0, 0.3, 2))
        step = begun(q).actuate(far, ArmState(0, q, qd), goal, 0)
        assert step.modes in (Mode.NOMINAL, Mode.FALLBACK)
        assert step.decision.excess <= 1e-9


@pytest.mark.parametrize(
    'health', [HEALTHY, LATE, STALE, ERROR], ids=['ok', 'late', 'stale', 'error']
)
def test_the_excess_after_limits_is_that_of_the_effort_that_is_sent(health):
    P, slope = np.array(CONTROLLER.lyapunov.p_matrix), CONTROLLER.law.slope_per_s
    for state, reference, action in random_situations(50, 0.3):
        loop = ControlLoop(ARM, CONTROLLER)
        loop.reset(state)
        step = loop.actuate(action, state, reference, 0, health)
        qdd = ARM.body().forward_dynamics(state.q_rad, state.qd_radps, step.effort_nm)
        e, e_dot = reference.q_rad - state.q_rad, reference.qd_radps - state.qd_radps
        xi = np.concatenate([e, e_dot + slope * e])
        xi_dot = np.concatenate([e_dot, reference.qdd_radps2 - qdd + slope * e_dot])
        level = 0.5 * xi @ P @ xi - loop.lyapunov.target_level
        expected = xi @ P @ xi_dot + loop.lyapunov.alpha_per_s * level
        assert step.excess_after_limits == pytest.approx(expected, rel=1e-9, abs=1e-9)


def test_violations_count_only_in_a_row():
    lyapunov = replace(CONTROLLER.lyapunov, target_error_rad=0.0, disturbance_radps2=1.0)
    loop = begun([0.3, 0.4], replace(CONTROLLER, lyapunov=lyapunov))
    nominal = loop.gain_map.gains(loop.nominal_action)
    modes = []
    for k in range(150):
        is_apart = k % 2 == 1 or k >= 100
        reference = hold([0.301, 0.401] if is_apart else [0.3, 0.4])
        step = loop.actuate(np.zeros(8), at_rest([0.3, 0.4]), reference, k * PERIOD_NS)
        modes.append(int(step.modes))
        if step.modes == Mode.NOMINAL:
            assert (step.decision.half_space.excess(nominal) > 1e-6) == is_apart
    assert modes == [Mode.NOMINAL] * 108 + [Mode.STOP] * 40 + [Mode.FAULT] * 2


def test_counting_lets_an_inadmissible_proposal_pass_and_reports_its_distance():
    enforced, counted = begun([0.3, 0.4]), begun([0.3, 0.4], enforcement='count')
    state, reference = at_rest([0.3, 0.4]), hold([0.35, 0.45])
    first = enforced.actuate(enforced.nominal_action, state, reference, 0).decision
    worst = np.sign(first.half_space.normal)
    strict = enforced.actuate(worst, state, reference, PERIOD_NS).decision
    loose = counted.actuate(worst, state, reference, 0).decision
    np.testing.assert_array_equal(loose.gains.theta, counted.gain_map.gains(worst))
    assert loose.excess > 0.0
    assert strict.excess <= 1e-12
    assert loose.distance == strict.distance > 0.0
    assert loose.was_moved


def test_what_counted_gains_break_is_no_violation_of_the_limits_and_stops_nothing():
    loop = begun([0.3, 0.4], unguarded(CONTROLLER), enforcement='count')
    state, reference = at_rest([0.3, 0.4]), hold([0.35, 0.45])
    action, excesses, modes = loop.nominal_action, [], []
    for k in range(60):
        step = loop.actuate(action, state, reference, k * PERIOD_NS)
        action = np.sign(step.decision.half_space.normal)
        excesses.append(float(step.excess_after_limits))
        modes.append(int(step.modes))
    assert min(excesses[10:]) > CONTROLLER.modes.violation_tolerance
    assert set(modes) == {Mode.NOMINAL}


def test_what_a_fading_torque_lacks_is_no_violation_of_the_condition():
    loop, state, reference = begun([0.3, 0.4]), at_rest([0.3, 0.4]), hold([0.35, 0.35])
    loop.actuate(loop.nominal_action, state, reference, 0)
    for k in range(1, 100):
        step = loop.actuate(loop.nominal_action, state, reference, k * PERIOD_NS, STALE)
        assert (step.modes, step.causes) == (Mode.BLIND, Cause.STALE_STATE)
    assert step.excess_after_limits > max(step.decision.excess, 0.0) + 1e-3


def test_a_pause_gives_the_effort_no_longer_reach_than_a_period():
    loop, state = begun([0.3, 0.4]), at_rest([0.3, 0.4])
    before = loop.actuate(loop.nominal_action, state, hold([0.3, 0.4]), 0).effort_nm
    later = loop.actuate(loop.nominal_action, state, hold([0.6, 0.8]), 100 * PERIOD_NS)
    change = np.abs(later.effort_nm - before)
    assert (change <= REACH_NM + 1e-9).all()
    assert (change >= 0.5 * REACH_NM).any()
    assert (np.abs(later.wanted_nm - before) > 2.0 * REACH_NM).any()


def test_a_stop_that_creeps_away_from_what_it_holds_is_a_fault():
    """Slower than what STOP must come down to, and for ever."""
    far_rad = SETTINGS.controller.guard.tracking_error_rad
    guard = replace(unguarded(CONTROLLER).guard, tracking_error_rad=far_rad)
    loop, speed = begun([0.0, 0.0], replace(CONTROLLER, guard=guard)), np.array([0.0, 0.9])
    found = []
    for k in range(100):
        q = speed * k * PERIOD_NS / 1e9
        state = ArmState(k * PERIOD_NS, q, speed)
        step = loop.actuate(loop.nominal_action, state, hold(q), k * PERIOD_NS, NO_GOAL)
        found.append((Mode(int(step.modes)), Cause(int(step.causes))))
    last = round(far_rad / 0.9 * 100)
    assert {mode for mode, _ in found[:last]} == {Mode.STOP}
    assert set(found[last + 1 :]) == {(Mode.FAULT, Cause.STOP_FAILED)}


@pytest.mark.parametrize(
    ('health', 'before', 'after'),
    [(HEALTHY, Mode.NOMINAL, Mode.WARMUP), (ERROR, Mode.FAULT, Mode.FAULT)],
)
def test_a_loop_that_forgets_its_context_warms_up_anew_and_keeps_a_graver_mode(
    health, before, after
):
    modes = replace(CONTROLLER.modes, warmup_ticks=2)
    loop, found = begun([0.3, 0.4], replace(CONTROLLER, modes=modes)), []
    for k in range(8):
        if k == 4:
            loop.forget_context()
        state, told = at_rest([0.3, 0.4], k * PERIOD_NS), health if k == 3 else HEALTHY
        loop.observe(state, hold([0.3, 0.4]), 0.5)
        step = loop.actuate(loop.nominal_action, state, hold([0.3, 0.4]), k * PERIOD_NS, told)
        found.append(int(step.modes))
    assert found[3:6] == [before, after, after]
    assert found[-1] == before
    assert loop.doubts == Cause.NONE
