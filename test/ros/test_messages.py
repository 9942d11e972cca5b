# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""Commands go out whatever the clock says, and the robot is asked to brake when it should."""

import numpy as np
import pytest
from support.rides import BLIND, FAULT, NOMINAL, PERIOD_NS
from support.worlds import breaks, each, MS, on_time, SECOND_NS, World

from metactl_ros.control.modes import Cause
from metactl_ros.runtime.control_thread import Command
from metactl_ros.runtime.joint_states import LAST_STAMP_NS, nanoseconds

pytest.importorskip('rclpy', reason="needs ROS: pip install 'metactl_ros[ros]'")
from metactl_ros.ros.messages import CommandSender

pytestmark = pytest.mark.ros

JOINTS = ('joint1', 'joint2')
YEAR_NS = 365 * 24 * 3600 * SECOND_NS


class Kept(list):
    """A publisher that keeps what it is given."""

    publish = list.append


def command(effort_nm=(80.0, -3.0), *, must_brake=False):
    return Command(np.array(effort_nm), None, 42 * SECOND_NS + 7, 0, must_brake)


def sender(now_ns, **publishers):
    made = CommandSender(JOINTS, now_ns, Kept().append)
    made.complaints = Kept()
    made._log_error = made.complaints.append
    for name in ('stamped', 'forward', 'stop_request'):
        setattr(made, name, publishers.get(name, Kept()))
    return made


@pytest.mark.parametrize(
    'now_ns',
    [
        LAST_STAMP_NS + 1,
        LAST_STAMP_NS + 300 * YEAR_NS,
        -LAST_STAMP_NS - 10 * YEAR_NS,
    ],
)
def test_a_command_goes_out_whatever_the_year(now_ns):
    one = sender(lambda: now_ns)
    for effort in ((80.0, -3.0), (0.0, 0.0)):
        one.send(command(effort))
        assert list(one.stamped[-1].effort) == list(one.forward[-1].data) == list(effort)
    ends = {True: LAST_STAMP_NS, False: -LAST_STAMP_NS - 1}
    assert nanoseconds(one.stamped[-1].header.stamp) == ends[now_ns > 0]
    assert len(one.complaints) == (now_ns > 0)
    assert all('beyond January 2038' in text for text in one.complaints)


def test_the_last_moment_before_2038_is_a_good_one():
    one = sender(lambda: LAST_STAMP_NS)
    stamp_ns = one.send(command())
    assert nanoseconds(one.stamped[0].header.stamp) == LAST_STAMP_NS == stamp_ns
    assert not one.complaints


def test_a_command_goes_out_without_a_stamp_if_the_clock_fails():
    one = sender(breaks('no clock'))
    one.send(command())
    one.send(command((0.0, 0.0)))
    assert [list(message.effort) for message in one.stamped] == [[80.0, -3.0], [0.0, 0.0]]
    assert nanoseconds(one.stamped[0].header.stamp) == 0
    assert [('no clock' in text, 'bear no stamp' in text) for text in one.complaints] == [
        (True, True)
    ]


def test_in_simulated_time_a_command_bears_the_stamp_of_its_state():
    one = sender(None)
    one.send(command())
    assert nanoseconds(one.stamped[0].header.stamp) == 42 * SECOND_NS + 7


def test_the_robot_is_asked_to_brake_when_that_changes_and_only_then():
    one = sender(lambda: 1)
    for must_brake in (False, False, True, True, False):
        one.send(command(must_brake=must_brake))
    assert [message.data for message in one.stop_request] == [False, True, False]


def test_the_robot_is_asked_to_brake_even_if_commands_fail_and_again_if_that_failed():
    class Broken(Kept):
        publish = breaks('gone')

    one = sender(lambda: 1, stamped=Broken())
    with pytest.raises(RuntimeError, match='gone'):
        one.send(command(must_brake=True))
    assert [message.data for message in one.stop_request] == [True]
    one = sender(lambda: 1, stop_request=Broken())
    with pytest.raises(RuntimeError, match='gone'):
        one.send(command(must_brake=True))
    one.stop_request = Kept()
    one.send(command(must_brake=True))
    assert len(one.stop_request) == 1


def test_in_shadow_nothing_is_sent():
    one = CommandSender(JOINTS, lambda: 9, Kept().append)
    assert one.send(command(must_brake=True)) == 9


def asked(world):
    return [(ns, c.tick.mode if c.tick else None, c.must_brake) for ns, c in world.sent]


def test_from_the_first_tick_in_fault_to_the_last_the_robot_should_brake():
    world = on_time()
    world.at(305 * MS, lambda: world.thread.exchange.report(Cause.CLOCK_MISMATCH))
    world.at(505 * MS, lambda: setattr(world.controller.requests, 'reset_fault', True))
    world.run(SECOND_NS)
    for ns, mode, must_brake in asked(world):
        assert must_brake == (mode == FAULT) == (310 * MS < ns < 510 * MS)


def test_a_blind_arm_is_braked_once_its_torque_has_faded_until_states_come_again():
    world = World()
    world.arrives(*each(PERIOD_NS, 300 * MS), *each(PERIOD_NS, 2 * SECOND_NS, 900 * MS))
    world.run(2 * SECOND_NS)
    by_mode = {}
    for ns, command in world.sent:
        if command.tick and ns < 1900 * MS:
            by_mode.setdefault(command.tick.mode, []).append(command)
    blind = by_mode.pop(BLIND)
    assert [one.must_brake for one in blind] == [not one.effort_nm.any() for one in blind]
    assert {one.must_brake for one in blind} == {False, True}
    assert not any(one.must_brake for commands in by_mode.values() for one in commands)


def test_a_report_is_an_error_of_one_tick_with_its_cause():
    world = on_time()
    world.at(305 * MS, lambda: world.thread.exchange.report(Cause.CLOCK_MISMATCH))
    world.run(SECOND_NS)
    errors = [c.tick.health.error for _, c in world.sent if c.tick]
    assert [error for error in errors if error] == [Cause.CLOCK_MISMATCH]
    causes = {c.tick.cause for ns, c in world.commands(SECOND_NS) if ns > 320 * MS}
    assert causes == {Cause.CLOCK_MISMATCH}


def test_a_report_waits_for_an_error_of_the_thread_itself():
    world = on_time()
    report = world.thread.exchange.report
    world.at(305 * MS, lambda: report(Cause.CLOCK_MISMATCH))
    world.at(305 * MS, lambda: report(Cause.INTERNAL_ERROR, is_next=True))
    world.run(SECOND_NS)
    errors = [c.tick.health.error for _, c in world.sent if c.tick]
    found = [error for error in errors if error]
    assert found == [Cause.INTERNAL_ERROR, Cause.CLOCK_MISMATCH]


def test_a_fault_that_lasts_until_the_end_is_the_last_word():
    world = on_time()
    world.at(305 * MS, lambda: world.thread.exchange.report(Cause.CLOCK_MISMATCH))
    world.run(SECOND_NS // 2)
    assert {must_brake for ns, _, must_brake in asked(world) if ns > 320 * MS} == {True}


def test_after_an_error_the_robot_should_brake_and_after_a_clean_end_it_should_not():
    world = on_time()
    world.at(305 * MS, lambda: setattr(world.controller, 'tick', breaks('out of order')))
    world.run(SECOND_NS)
    assert {b for ns, _, b in asked(world) if ns < 305 * MS} == {False}
    assert {b for ns, _, b in asked(world) if ns > 305 * MS + PERIOD_NS} == {True}
    world = on_time().run(SECOND_NS)
    assert {mode for _, mode, _ in asked(world)} >= {NOMINAL, BLIND, None}
    assert not any(must_brake for _, _, must_brake in asked(world))
