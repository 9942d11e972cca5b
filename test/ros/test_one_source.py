# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""The controller beside others that speak for its arm, or to it, and what it says of that."""

from collections import Counter
from contextlib import contextmanager
import signal
import threading
import time

import numpy as np
import pytest

from metactl_ros.control.modes import Cause, Mode
from metactl_ros.runtime.joint_states import set_stamp

pytest.importorskip('rclpy', reason="needs ROS: pip install 'metactl_ros[ros]'")
import rclpy
from sensor_msgs.msg import JointState
from std_msgs.msg import Float64MultiArray
from std_srvs.srv import SetBool, Trigger
from support import DOMAIN
from support.resting_robot import JOINTS, PATIENT, PERIOD_S, STILL
from support.ros_peer import running, wait_until

pytestmark = pytest.mark.ros


@contextmanager
def intruder(robot, kind, topic, message=None):
    """Another node that publishes on a topic, 100 times a second if it has something to say."""
    node = rclpy.create_node('intruder', context=robot.context)
    publisher, must_end = node.create_publisher(kind, topic, 5), threading.Event()

    def speak():
        while message is not None and not must_end.wait(PERIOD_S):
            publisher.publish(message())

    speaker = threading.Thread(target=speak, daemon=True)
    speaker.start()
    try:
        yield
    finally:
        must_end.set()
        speaker.join()
        node.destroy_node()


def elsewhere():
    message = JointState(name=list(JOINTS), position=[0.05, 0.05], velocity=[0.0, 0.0])
    set_stamp(message.header.stamp, time.time_ns())
    return message


def said_by(process):
    """End a process and return what it said."""
    process.send_signal(signal.SIGTERM)
    return process.communicate(timeout=10.0)[1]


def checks_of(robot):
    robot.reports.clear()
    wait_until(lambda: robot.reports)
    return {
        status.name.removeprefix('controller: '): (
            status.message,
            {entry.key: entry.value for entry in status.values},
        )
        for status in robot.reports[-1].status
    }


def until_fault(robot):
    robot.until(Mode.FAULT)
    assert robot.shield[-1]['cause'] == Cause.SECOND_SOURCE


def reset(robot):
    return robot.call(Trigger, 'controller/reset_fault', Trigger.Request())


def test_a_second_robot_that_speaks_ends_in_fault_which_names_it(controller, robot):
    with intruder(robot, JointState, 'joint_states', elsewhere):
        until_fault(robot)
        followed = [row for row in robot.shield if row['mode'] < Mode.STOP]
        message, values = checks_of(robot)['sources']
        assert '/intruder, /peer' in message
        assert int(values['states of others used']) <= 3  # a robot and another at 100 Hz
        answer = reset(robot)
        assert not answer.success
        assert 'still bad: more than one publisher' in answer.message
        enabled = robot.call(SetBool, 'controller/enable', SetBool.Request(data=True))
        assert not enabled.success
        assert 'FAULT (SECOND_SOURCE)' in enabled.message
    assert followed[-1]['mode'] == Mode.NOMINAL
    message, values = checks_of(robot)['mode']
    assert message.startswith('FAULT: more than one publisher speaks for the arm')
    assert values['last error'] == values['cause'] != ''
    assert 'call ~/reset_fault' in values['to do']
    assert float(values['since s']) > 0.0
    assert 'NOMINAL -> FAULT (SECOND_SOURCE)' in values['change 1']
    wait_until(lambda: reset(robot).success)
    robot.until(Mode.NOMINAL)
    said = said_by(controller)
    assert said.count('/joint_states: expected one publisher, found /intruder, /peer') == 1
    told = Counter(part.split('(')[0].strip() for part in said.split('\n') if ' -> ' in part)
    changes = [line.split(']: ')[1] for line in told.elements()]
    assert changes == [
        'control begins -> WARMUP',
        'WARMUP -> NOMINAL',
        'NOMINAL -> FAULT',
        'FAULT -> WARMUP',
        'WARMUP -> NOMINAL',
        'NOMINAL -> BLIND',  # the end
    ]


def test_a_second_robot_that_is_silent_is_noticed_as_well(controller, robot):
    with intruder(robot, JointState, 'joint_states'):
        until_fault(robot)
    assert '/intruder, /peer alive' in said_by(controller)


def test_one_publisher_that_mixes_two_arms_is_noticed(controller, robot):
    turns = iter(range(10**9))

    def mixed(message):
        message.position = [0.0, 0.0] if next(turns) % 2 else [2.0, 2.0]
        return message

    robot.alter = mixed
    until_fault(robot)
    assert 'some that contradict the others, from /peer' in said_by(controller)


@pytest.mark.parametrize(
    ('kind', 'topic'),
    [(JointState, 'joint_commands'), (Float64MultiArray, 'forward_effort_controller/commands')],
)
def test_who_commands_the_arm_as_well_is_noticed_before_it_says_a_word(
    controller, robot, kind, topic
):
    with intruder(robot, kind, topic):
        until_fault(robot)
        wait_until(lambda: not np.any(robot.commands[-1][2]))
        assert not reset(robot).success
    wait_until(lambda: reset(robot).success)
    said = said_by(controller)
    assert f'/{topic}: expected no other publisher, found /intruder; end it.' in said


ACTIVATES_ONCE_THE_FIRST_IS_LISTED = """
import sys, time
from metactl_ros.ros.controller_node import LoopNode, main

def take_over(self):
    while not self.count_publishers(self._topics['joint_commands']):
        time.sleep(0.01)  # a machine that stalls finds others later than a controller waits
    honest(self)

honest, LoopNode._take_over = LoopNode._take_over, take_over
sys.exit(main())
"""


def test_a_second_controller_refuses_to_drive_and_the_first_goes_on(controller, robot):
    given, code = (PATIENT, STILL, 'joint_prefix:=other_'), ACTIVATES_ONCE_THE_FIRST_IS_LISTED
    with running('controller_node', DOMAIN, *given, code=code) as second:
        wait_until(lambda: second.poll() is not None)
        assert second.returncode == 2
        said = second.communicate()[1]
        assert '/joint_commands: expected no other publisher, found /controller_loop' in said
        assert 'then activate again' in said
    assert all(row['mode'] < Mode.STOP for row in robot.shield)
    assert controller.poll() is None


def test_a_shadow_may_watch_a_controller_that_drives(controller, robot):
    name = ('-r', '__node:=shadow')
    with running('controller_node', DOMAIN, PATIENT, STILL, 'shadow:=true', ros=name) as second:
        wait_until(lambda: robot.node.count_publishers('shadow/shield'))
        count = len(robot.shield)
        wait_until(lambda: len(robot.shield) > count + 50)
        assert (controller.poll(), second.poll()) == (None, None)
        assert robot.mode == Mode.NOMINAL


def test_beside_two_robots_it_is_not_activated_and_may_be_asked_again(robot):
    go = robot.change_state
    with running('controller_node', DOMAIN, PATIENT, STILL, 'autostart:=false') as process:
        robot.speaks = True
        assert go('configure')
        with intruder(robot, JointState, 'joint_states', elsewhere):
            wait_until(lambda: robot.node.count_publishers('joint_states') == 2)
            # The controller may discover the second robot later than this process does.
            wait_until(lambda: not (go('activate') and go('deactivate')))
            assert not go('activate')
            assert not robot.node.count_publishers('joint_commands')
        wait_until(lambda: go('activate'))
        robot.until(Mode.NOMINAL)
        assert '/joint_states: expected one publisher' in said_by(process)
