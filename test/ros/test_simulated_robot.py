# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
from dataclasses import replace
from types import SimpleNamespace

from hypothesis import given
from hypothesis import strategies as st
import numpy as np
import pytest
from support.episodes import start

from metactl_ros.ros.simulated_robot import (
    brake_damping,
    brake_effort,
    FreeRunningRobot,
    LockstepRobot,
    MAX_REASON_LENGTH,
)
from metactl_ros.settings import load_settings, make_plant
from metactl_ros.signals import ArmState

MS = 1_000_000
PERIOD_NS = 10 * MS
ORIGIN_NS = 1_000 * MS
SETTINGS = load_settings()
ARM = SETTINGS.arm
DAMPING = brake_damping(ARM, 0.01)

# What the brake achieves on the shipped arm, from 2 rad/s in any posture; see test_the_brake_*.
SLOW_AFTER_S = 0.6
SLOW_RADPS = 0.1
DRIFT_RAD = 0.12  # the friction memory unwinds against a brake that only damps

angles = st.floats(-3.0, 3.0)
speeds = st.floats(-8.0, 8.0)
payloads = st.floats(0.0, 1.5)


def command(effort=(5.0, -3.0), names=ARM.joint_names, stamp_ns=0):
    stamp = SimpleNamespace(sec=stamp_ns // 10**9, nanosec=stamp_ns % 10**9)
    return SimpleNamespace(header=SimpleNamespace(stamp=stamp), name=names, effort=effort)


def free_robot(plant='rk4', settings=SETTINGS, begin=None, timeout_s=0.03):
    begin = start([0.4, -0.3]) if begin is None else begin
    return FreeRunningRobot(plant, settings, begin, ORIGIN_NS, timeout_s)


def abandoned_robot(*args, **kwargs):
    """A robot whose last command is long ago: it brakes from the first step on."""
    robot = free_robot(*args, **kwargs)
    robot.receive(command(), -1000 * MS)
    return robot


def with_sensing(**changes):
    sensing = replace(SETTINGS.plant.sensing, **changes)
    return replace(SETTINGS, plant=replace(SETTINGS.plant, sensing=sensing))


IMPERFECT = with_sensing(
    velocity_noise_radps=0.01,
    encoder_bits=14,
    transport_delay_s=0.02,
    actuator_limit_nm=(4.0, 4.0),
    payload_step_at_s=0.2,
    payload_step_kg=0.5,
    tau_z_drift_to_s=1.0,
)


def test_an_episode_waits_for_its_first_command():
    robot = free_robot(begin=start([0.4, -0.3], [1.0, -1.0]))
    first = robot.reading
    assert first.is_braking
    for k in (1, 2, 50):
        reading = robot.step(k * PERIOD_NS)
        assert reading.is_braking
        assert np.array_equal(reading.truth.q_rad, first.truth.q_rad)
        for state in (reading.measured, reading.truth):
            assert state.qd_radps.tolist() == [0.0, 0.0]  # it does not move, and says so
    assert reading.stamp_ns == ORIGIN_NS + 3 * PERIOD_NS
    assert robot.counts.steps == 0
    robot.receive(command((0.0, 0.0)), 60 * PERIOD_NS)
    reading = robot.step(60 * PERIOD_NS)
    moved = reading.truth.q_rad - first.truth.q_rad
    assert np.abs(moved) == pytest.approx([0.01, 0.01], abs=0.005)  # the episode's velocities
    assert not reading.is_braking


def test_a_command_releases_the_brake_and_is_applied_to_the_period_it_arrived_in():
    robot = free_robot()
    assert robot.receive(command((5.0, -3.0)), 4 * MS)
    reading = robot.step(PERIOD_NS)
    assert not reading.is_braking
    assert reading.effort_nm.tolist() == [5.0, -3.0]


def test_of_two_commands_in_one_period_the_later_is_applied():
    robot = free_robot()
    robot.receive(command((1.0, 1.0)), 2 * MS)
    robot.receive(command((2.0, 2.0)), 8 * MS)
    assert robot.step(PERIOD_NS).effort_nm.tolist() == [2.0, 2.0]


def test_a_late_command_is_replaced_by_the_one_before_for_as_long_as_the_timeout():
    robot = free_robot()
    robot.receive(command(), 10 * MS)
    braking = [robot.step(now).is_braking for now in (10 * MS, 20 * MS, 30 * MS, 40 * MS)]
    assert not any(braking)
    assert robot.counts.held == 3
    assert robot.step(40 * MS + 1).is_braking
    assert robot.counts.brakes == 1


@given(st.integers(0, PERIOD_NS - 1), st.integers(0, 5))
def test_the_brake_acts_within_40_ms_of_the_last_command(phase_ns, steps_before):
    robot = free_robot()
    received_ns = steps_before * PERIOD_NS + phase_ns
    for k in range(1, steps_before + 1):
        robot.step(k * PERIOD_NS)
    robot.receive(command(), received_ns)
    k = steps_before + 1
    while not robot.step(k * PERIOD_NS).is_braking:
        k += 1
    assert 30 * MS < k * PERIOD_NS - received_ns <= 40 * MS


def test_a_valid_command_releases_the_brake_again():
    robot = free_robot()
    robot.receive(command(), 0)
    assert robot.step(100 * MS).is_braking
    robot.receive(command(), 105 * MS)
    assert not robot.step(110 * MS).is_braking


@pytest.mark.parametrize(
    ('message', 'reason'),
    [
        (command((float('nan'), 0.0)), "'joint1': expected a finite effort"),
        (command((0.0, float('-inf'))), "'joint2': expected a finite effort"),
        (command((150.1, 0.0)), "'joint1': expected at most 150.0 N m, found 150.1"),
        (command((0.0, -60.1)), "'joint2': expected at most 60.0 N m, found -60.1"),
        (command((1.0,)), 'expected one effort per name, found 1 for 2'),
        (command((), ()), "'joint1': not in the message"),
        (command((1.0, 1.0), ('joint1', 'elbow')), "'joint2': not in the message"),
        (command((1.0, 1.0, 1.0), ('joint1', 'joint2', 'joint1')), 'named twice'),
    ],
)
def test_an_invalid_command_is_refused_and_does_not_feed_the_watchdog(message, reason):
    robot = free_robot()
    robot.receive(command(), 0)
    for now in range(5 * MS, 50 * MS, 10 * MS):
        assert not robot.receive(message, now)
        reading = robot.step(now + 5 * MS)
    assert reading.is_braking
    assert robot.counts.rejected == 5
    assert reason in robot.counts.last_reason


def test_commands_are_matched_by_name_and_may_name_other_joints():
    robot = free_robot()
    assert robot.receive(command((9.0, -3.0, 5.0), ('gripper', 'joint2', 'joint1')), 0)
    assert robot.step(PERIOD_NS).effort_nm.tolist() == [5.0, -3.0]


def test_a_reason_is_short_however_large_the_message():
    robot = free_robot()
    robot.receive(command((), ['x' * 1000] * 1000), 0)
    assert len(robot.counts.last_reason) == MAX_REASON_LENGTH


@given(
    st.lists(st.sampled_from(['joint1', 'joint2', 'joint3', '', 'ö\n']), max_size=4),
    st.lists(st.floats(allow_nan=True, allow_infinity=True), max_size=4),
    st.integers(-(2**31), 2**31),
)
def test_no_message_makes_an_effort_beyond_the_limits(names, efforts, stamp_ns):
    robot = abandoned_robot()
    robot.receive(command(efforts, names, stamp_ns), 0)
    assert (np.abs(robot.step(PERIOD_NS).effort_nm) <= ARM.limits.effort_nm).all()


@pytest.mark.parametrize('plant', ['rk4', 'bullet'])
@pytest.mark.parametrize('settings', [SETTINGS, IMPERFECT], ids=['ideal', 'imperfect'])
def test_both_robots_equal_the_plant_they_wrap_to_the_bit(plant, settings):
    begin = start([0.4, -0.3], [0.5, 0.2], payload_kg=0.75)
    bare = make_plant(plant, settings)
    free = free_robot(plant, settings, begin)
    lockstep = LockstepRobot(plant, settings, begin, ORIGIN_NS)
    expected = bare.reset(begin)
    for k in range(60):
        for robot in (free, lockstep):
            assert np.array_equal(robot.reading.measured.q_rad, expected.q_rad)
            if k or robot is lockstep:  # before its first command the other one stands
                assert np.array_equal(robot.reading.measured.qd_radps, expected.qd_radps)
            assert np.array_equal(robot.reading.memory_nm, bare.memory_nm)
        effort = (40.0 * np.sin(0.1 * k), 10.0 * np.cos(0.3 * k))
        free.receive(command(effort), k * PERIOD_NS)
        free.step((k + 1) * PERIOD_NS)
        assert lockstep.answer(command(effort, stamp_ns=ORIGIN_NS + k * PERIOD_NS))
        expected = bare.step(np.array(effort))
    for each in (bare, free, lockstep):
        each.close()


def test_effort_and_truth_are_those_of_the_arm_not_of_command_and_sensor():
    robot = free_robot(settings=IMPERFECT, begin=start([0.4, -0.3], [0.5, 0.2]))
    assert robot.reading.effort_nm.size == 0
    robot.receive(command((50.0, -3.0)), 0)
    reading = robot.step(PERIOD_NS)
    assert reading.effort_nm.tolist() == [4.0, -3.0]
    assert not np.array_equal(reading.truth.q_rad, reading.measured.q_rad)


def test_stamps_grow_by_one_period_even_across_a_restart():
    begin = start([0.4, -0.3])
    robot = free_robot(begin=begin)
    robot.receive(command(), 0)
    stamps = [robot.reading.stamp_ns]
    for k in range(1, 6):
        if k == 3:
            robot.restart(begin)
        reading = robot.step(k * PERIOD_NS)
        stamps.append(reading.stamp_ns)
        if k == 3:
            assert reading.is_braking
            assert np.array_equal(reading.truth.q_rad, begin.q_rad)
    assert stamps == [ORIGIN_NS + k * PERIOD_NS for k in range(6)]


def test_after_missed_periods_the_arm_is_where_it_was_and_the_stamp_says_now():
    one, other = free_robot(), free_robot()
    for robot, missed in ((one, 0), (other, 30)):
        robot.receive(command(), 0)
        robot.step(PERIOD_NS, missed)
    assert np.array_equal(one.reading.truth.q_rad, other.reading.truth.q_rad)
    assert other.reading.stamp_ns == ORIGIN_NS + 31 * PERIOD_NS
    assert other.step(32 * PERIOD_NS).stamp_ns == ORIGIN_NS + 32 * PERIOD_NS


def test_lockstep_takes_no_step_for_an_answer_to_another_state():
    robot = LockstepRobot('rk4', SETTINGS, start([0.4, -0.3]), ORIGIN_NS)
    for stamp_ns in (0, ORIGIN_NS - 1, ORIGIN_NS + PERIOD_NS):
        assert not robot.answer(command(stamp_ns=stamp_ns))
        assert f'found {stamp_ns} ns' in robot.counts.last_reason
    assert robot.answer(command(stamp_ns=ORIGIN_NS))
    assert not robot.answer(command(stamp_ns=ORIGIN_NS))
    assert (robot.counts.steps, robot.counts.rejected) == (1, 4)


def test_lockstep_restarts_at_once_and_goes_on_in_time():
    begin = start([0.4, -0.3])
    robot = LockstepRobot('rk4', SETTINGS, begin, ORIGIN_NS)
    robot.answer(command(stamp_ns=ORIGIN_NS))
    robot.restart(begin)
    assert robot.reading.stamp_ns == ORIGIN_NS + 2 * PERIOD_NS
    assert np.array_equal(robot.reading.truth.q_rad, begin.q_rad)


@given(st.tuples(st.floats(-150.0, 150.0), st.floats(-60.0, 60.0)), st.integers(1, 8))
def test_the_drive_moves_towards_a_command_at_its_rate_and_no_further(goal, steps):
    robots = free_robot(timeout_s=10.0), LockstepRobot('rk4', SETTINGS, start([0.4, -0.3]), 1)
    reach = 0.01 * np.array(ARM.limits.effort_rate_nmps)
    for robot in robots:
        expected = np.array([5.0, -3.0])
        for k in range(steps):
            effort = expected if k == 0 else np.array(goal)
            told = command(effort.tolist(), stamp_ns=robot.reading.stamp_ns)
            if isinstance(robot, LockstepRobot):
                assert robot.answer(told)
            else:
                assert robot.receive(told, 0)
                robot.step(PERIOD_NS)
            expected = expected + np.clip(effort - expected, -reach, reach)
            assert robot.reading.effort_nm == pytest.approx(expected, abs=1e-6)
        robot.close()


def test_a_first_command_is_where_the_drive_begins_and_a_restart_forgets_the_last():
    robot = free_robot()
    for _ in range(2):
        robot.receive(command((150.0, -60.0)), 0)
        assert robot.step(PERIOD_NS).effort_nm.tolist() == [150.0, -60.0]
        robot.receive(command((-150.0, 60.0)), 0)
        assert robot.step(PERIOD_NS).effort_nm == pytest.approx([110.0, -45.0])
        robot.restart(start([0.4, -0.3]))
        robot.step(PERIOD_NS)


def test_a_drive_takes_over_from_the_brake_without_a_step():
    robot = free_robot(begin=start([0.4, -0.3], [2.0, -1.0]))
    robot.receive(command(), 0)
    braked = robot.step(100 * MS).effort_nm
    robot.receive(command((-150.0, 60.0)), 105 * MS)
    taken = robot.step(110 * MS).effort_nm
    assert taken == pytest.approx(braked + np.array([-40.0, 15.0]))


def test_a_stop_request_brakes_until_it_is_taken_back_and_a_command_came_after():
    robot = free_robot(begin=start([0.4, -0.3], [2.0, -1.0]))

    def step(effort=None):
        if effort is not None:
            assert robot.receive(command(effort), 0)
        return robot.step(PERIOD_NS)

    assert not step((5.0, -3.0)).is_braking
    robot.request_stop(is_asked=True)
    for _ in range(3):
        held = robot.reading.truth
        reading = step((5.0, -3.0))
        assert reading.is_braking
        assert np.array_equal(reading.effort_nm, brake_effort(ARM, DAMPING, 0.0, held))
    assert robot.counts.brakes == 1
    robot.request_stop(is_asked=False)
    assert step().is_braking  # the command before is not believed any more
    assert not step((5.0, -3.0)).is_braking


def test_a_stop_request_brakes_in_lockstep_too_which_goes_on_stepping():
    robot = LockstepRobot('rk4', SETTINGS, start([0.4, -0.3], [2.0, -1.0]), ORIGIN_NS)
    robot.request_stop(is_asked=True)
    for k in range(100):
        assert robot.answer(command((5.0, -3.0), stamp_ns=ORIGIN_NS + k * PERIOD_NS))
        assert robot.reading.is_braking
    assert np.abs(robot.reading.truth.qd_radps).max() < SLOW_RADPS
    robot.request_stop(is_asked=False)
    assert robot.reading.is_braking
    assert robot.answer(command((5.0, -3.0), stamp_ns=robot.reading.stamp_ns))
    assert not robot.reading.is_braking


def test_a_stop_request_does_not_begin_an_episode():
    robot = free_robot()
    robot.request_stop(is_asked=True)
    assert robot.step(PERIOD_NS).driven_ns == 0
    robot.receive(command(), 0)
    reading = robot.step(2 * PERIOD_NS)
    assert (reading.is_braking, reading.driven_ns) == (True, PERIOD_NS)


@given(angles, payloads)
def test_a_braked_velocity_dies_out_without_changing_sign(q2, payload_kg):
    mass = ARM.body(payload_kg).inertia_matrix(np.array([0.0, q2]))
    modes = np.linalg.eigvals(0.01 * np.linalg.solve(mass, np.diag(DAMPING))).real
    assert modes.min() > 0.0
    assert modes.max() <= 1.0


@given(st.tuples(angles, angles), st.tuples(speeds, speeds), payloads)
def test_the_brake_never_drives_a_joint_and_keeps_to_the_limits(q, qd, payload_kg):
    truth = ArmState(0, np.array(q), np.array(qd))
    effort = brake_effort(ARM, DAMPING, payload_kg, truth)
    gravity = ARM.body(payload_kg).gravity(truth.q_rad)
    assert (np.abs(effort) <= ARM.limits.effort_nm).all()
    assert ((effort - gravity) * truth.qd_radps <= 0.0).all()


@pytest.mark.parametrize('plant', ['rk4', 'bullet'])
@pytest.mark.parametrize('payload_kg', [0.0, 1.5])
@pytest.mark.parametrize('qd', [(2.0, 2.0), (2.0, -2.0), (0.0, 2.0), (-2.0, 0.0)])
def test_the_brake_stops_an_arm_from_2_radps_and_holds_it(plant, payload_kg, qd):
    for q in ([0.0, 0.0], [-1.2, 1.4], [1.0, -1.5]):
        robot = abandoned_robot(plant, begin=start(q, qd, payload_kg=payload_kg))
        path = [robot.step(k * PERIOD_NS).truth for k in range(500)]
        after = path[round(100 * SLOW_AFTER_S) :]
        assert max(np.abs(x.qd_radps).max() for x in after) < SLOW_RADPS
        assert max(np.abs(x.q_rad - after[0].q_rad).max() for x in after) < DRIFT_RAD
        robot.close()


@pytest.mark.parametrize('by', ['parameter', 'schedule'])
def test_the_brake_carries_a_payload_that_was_added_later(by):
    step = {'payload_step_at_s': 0.2, 'payload_step_kg': 1.5} if by == 'schedule' else {}
    robot = abandoned_robot(settings=with_sensing(**step), begin=start([0.0, 0.0]))
    for k in range(100):
        if by == 'parameter' and k == 20:
            robot.set_conditions(1.5, 2.0)
        reading = robot.step(k * PERIOD_NS)
    held = ARM.body(1.5).gravity(reading.truth.q_rad)
    assert reading.effort_nm == pytest.approx(held, abs=0.5)
    assert np.abs(reading.truth.qd_radps).max() < 0.01
