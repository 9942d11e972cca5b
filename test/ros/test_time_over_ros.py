# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""Time is the controller's own, over real ROS: stopped, lied to, and beyond January 2038."""

import signal
import time

import numpy as np
import pytest

from metactl_ros.control.modes import Cause, Mode
from metactl_ros.runtime.joint_states import LAST_STAMP_NS, nanoseconds, set_stamp

pytest.importorskip('rclpy', reason="needs ROS: pip install 'metactl_ros[ros]'")
from rclpy.qos import DurabilityPolicy, QoSProfile
from std_msgs.msg import Bool
from std_srvs.srv import Trigger
from support import DOMAIN
from support.resting_robot import PERIOD_S, Robot, STILL
from support.ros_peer import running, wait_until

pytestmark = pytest.mark.ros

HASTY = 'state_timeout_s:=0.1'  # a busy machine is late by less, mostly
BEYOND_2038 = """
import sys
from metactl_ros.ros import controller_node
now = controller_node.LoopNode._wall_ns
controller_node.LoopNode._wall_ns = lambda self: now(self) + 2**31 * 10**9
sys.exit(controller_node.main())
"""


class Witness(Robot):
    """Hears in addition what is asked of it, and keeps the stamps of the commands."""

    def __init__(self, domain_id):
        self.stop_requests, self.stamps = [], []
        super().__init__(domain_id)
        kept = QoSProfile(depth=1, durability=DurabilityPolicy.TRANSIENT_LOCAL)
        self.node.create_subscription(
            Bool, 'stop_request', lambda message: self.stop_requests.append(message.data), kept
        )

    def on_command(self, message):
        self.stamps.append(nanoseconds(message.header.stamp))
        super().on_command(message)


@pytest.fixture
def robot():
    robot = Witness(DOMAIN)
    yield robot
    robot.close()


def test_a_stopped_controller_comes_back_blind_and_never_lunges(robot, settings):
    with running('controller_node', DOMAIN, HASTY, STILL) as process:
        robot.speaks = True
        robot.until(Mode.NOMINAL)
        process.send_signal(signal.SIGSTOP)
        time.sleep(0.5)  # the fault itself
        before, num_commands = len(robot.shield), len(robot.commands)
        process.send_signal(signal.SIGCONT)
        wait_until(lambda: len(robot.shield) > before + 40)
    after = robot.shield[before:]
    (paused, *_) = (k for k, tick in enumerate(after) if tick['late_ms'] > 100.0)
    assert paused <= 1  # one that was decided before may go out after
    first = after[paused]
    assert (first['mode'], first['cause']) == (Mode.BLIND, Cause.STALE_STATE)
    assert first['num_states'] <= 1
    assert first['was_resumed']
    assert Mode.NOMINAL not in [tick['mode'] for tick in after[paused : paused + 40]]
    numbers, _, efforts = zip(*robot.commands[num_commands + paused :], strict=True)
    most = np.array(settings.arm.limits.effort_rate_nmps) * PERIOD_S
    steps = np.diff(numbers)[:, np.newaxis]
    assert (np.abs(np.diff(efforts, axis=0)) <= steps * most + 1e-9).all()


def test_a_robot_whose_clock_runs_thrice_ends_in_a_fault_that_is_told(robot):
    with running('controller_node', DOMAIN, HASTY, STILL):
        robot.speaks = True
        robot.until(Mode.NOMINAL)
        begin_ns = time.time_ns()

        def hurried(message):
            set_stamp(message.header.stamp, begin_ns + 3 * (time.time_ns() - begin_ns))
            return message

        assert robot.stop_requests[-1:] == [False]
        robot.alter = hurried
        robot.until(Mode.FAULT)
        assert robot.shield[-1]['cause'] == Cause.CLOCK_MISMATCH
        wait_until(lambda: robot.stop_requests[-1])
        wait_until(lambda: not np.any(robot.commands[-1][2]))
        robot.alter = lambda message: message
        wait_until(lambda: robot.shield[-1]['state_is_fresh'])
        robot.call(Trigger, '/controller/reset_fault', Trigger.Request())
        robot.until(Mode.WARMUP)
        wait_until(lambda: not robot.stop_requests[-1])


def test_beyond_2038_it_drives_and_its_last_command_is_zero(robot):
    with running('controller_node', DOMAIN, HASTY, STILL, code=BEYOND_2038) as process:
        robot.speaks = True
        robot.until(Mode.NOMINAL)
        assert np.any(robot.commands[-1][2])
        process.terminate()
        _, said = process.communicate(timeout=20.0)
    wait_until(lambda: not np.any(robot.commands[-1][2]))
    assert set(robot.stamps) == {LAST_STAMP_NS}
    assert said.count('beyond January 2038') == 1
    assert process.returncode == 0


def test_in_shadow_nobody_is_asked_to_stop(robot):
    with running('controller_node', DOMAIN, HASTY, STILL, 'shadow:=true'):
        robot.speaks = True
        robot.until(Mode.NOMINAL)
        assert not robot.node.count_publishers('stop_request')
