# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""A controller beside a robot that is real to it: it waits, holds, and follows what it is sent."""

import threading
import time

import numpy as np
import pytest

from metactl_ros.control.modes import Mode
from metactl_ros.settings import load_arm

pytest.importorskip('rclpy', reason="needs ROS: pip install 'metactl_ros[ros]'")
from std_srvs.srv import SetBool
from support import DOMAIN
from support.resting_robot import JOINTS, PATIENT, PERIOD_S, Robot
from support.ros_peer import running, wait_until
from trajectory_msgs.msg import JointTrajectory, JointTrajectoryPoint

pytestmark = pytest.mark.ros

POSTURE = (0.3, -0.2)
GRAVITY_NM = load_arm().body().gravity(np.array(POSTURE))
TRAJECTORIES = (PATIENT, 'reference:=trajectory', 'autostart:=true')


@pytest.fixture(scope='module')
def lasting_robot():
    robot = Robot(DOMAIN)
    robot.wanted = []
    robot.listen(
        JointTrajectory,
        'controller/reference',
        lambda message: robot.wanted.append(message.points[-1]),
    )
    yield robot
    robot.close()


@pytest.fixture
def robot(lasting_robot):
    lasting_robot.forget()
    lasting_robot.wanted.clear()
    lasting_robot.alter = at_posture
    yield lasting_robot
    lasting_robot.speaks = False


def at_posture(message):
    message.position = list(POSTURE)
    return message


def test_as_shipped_it_moves_nothing_until_activated_and_then_holds(robot):
    with running('controller_node', DOMAIN, PATIENT, drives=False):
        robot.speaks = True
        wait_until(lambda: len(robot.reports) > 1)
        assert not robot.commands
        assert robot.change_state('configure')
        assert robot.change_state('activate')
        robot.until(Mode.NOMINAL)
        wait_until(lambda: len(robot.commands) > 100)
        sent = np.array([effort for _, _, effort in robot.commands])
        np.testing.assert_allclose(sent, np.broadcast_to(GRAVITY_NM, sent.shape), atol=8.0)
        assert all(list(point.positions) == list(POSTURE) for point in robot.wanted)
        assert not any(any(point.velocities) for point in robot.wanted)


def test_a_missing_file_ends_even_a_controller_that_would_wait():
    with running('controller_node', DOMAIN, 'arm_file:=/no/arm.yaml', drives=False) as process:
        assert process.wait(15.0) == 2
        said = process.communicate()[1]
    assert "arm_file: expected the path of a file, found '/no/arm.yaml'" in said


def words_of(process):
    """Return a list to which every line is added that a process says."""
    said = []
    threading.Thread(target=lambda: said.extend(process.stderr), daemon=True).start()
    return said


def trajectory(*points, names=JOINTS):
    message = JointTrajectory(joint_names=list(names))
    for t_s, positions in points:
        point = JointTrajectoryPoint(positions=[float(x) for x in positions])
        point.time_from_start.sec = int(t_s)
        point.time_from_start.nanosec = round(t_s % 1.0 * 1e9)
        message.points.append(point)
    return message


def test_a_trajectory_is_followed_if_it_can_be_and_refused_by_name_if_not(robot):
    fine = trajectory((0.5, (-0.21, 0.32)), names=('joint2', 'joint1'))
    wrong = {
        "on the way to point 1: joint 'joint1' would reach": trajectory(
            (5.0, (-2.8, 0)), (5.000000001, (2.8, 0))
        ),
        "point 0: joint 'joint1': expected a position of -2.9 to 2.9 rad": trajectory((9, (9, 0))),
        "on the way to point 0: joint 'joint2' would reach": trajectory((0.05, (0.3, 1.8))),
        'expected at most 2000 points, found 100000': JointTrajectory(
            joint_names=list(JOINTS), points=[JointTrajectoryPoint()] * 100_000
        ),
    }
    with running('controller_node', DOMAIN, *TRAJECTORIES) as process:
        said = words_of(process)
        robot.speaks = True
        robot.until(Mode.NOMINAL)
        goals = robot.node.create_publisher(JointTrajectory, 'controller/joint_trajectory', 5)
        wait_until(goals.get_subscription_count)
        for text, message in wrong.items():
            goals.publish(message)
            wait_until(lambda text=text: any(text in line for line in said))
            time.sleep(0.1)  # the log tells of no more than ten a second
        assert {tuple(point.positions) for point in robot.wanted} == {POSTURE}
        goals.publish(fine)
        wait_until(
            lambda: np.allclose(robot.wanted[-1].positions, [0.32, -0.21], atol=1e-12),
            says=lambda: f'{robot.wanted[-1:]}',
        )
        ways = np.array([point.positions for point in robot.wanted])
        assert (np.abs(np.diff(ways, axis=0)) < 0.01).all()
        assert robot.mode == Mode.NOMINAL


def test_a_trajectory_for_an_arm_that_does_not_follow_is_refused(robot):
    with running('controller_node', DOMAIN, *TRAJECTORIES) as process:
        said = words_of(process)
        robot.speaks = True
        robot.until(Mode.NOMINAL)
        robot.call(SetBool, 'controller/enable', SetBool.Request(data=False))
        robot.until(Mode.STOP)
        goals = robot.node.create_publisher(JointTrajectory, 'controller/joint_trajectory', 5)
        wait_until(goals.get_subscription_count)
        goals.publish(trajectory((0.5, (0.32, -0.21))))
        expected = 'trajectory: expected an arm that follows, found it in STOP (NO_REFERENCE)'
        wait_until(lambda: any(expected in line for line in said))
        robot.call(SetBool, 'controller/enable', SetBool.Request(data=True))
        robot.until(Mode.NOMINAL)
        count = len(robot.wanted)
        wait_until(lambda: len(robot.wanted) > count + 100)
        assert {tuple(point.positions) for point in robot.wanted} == {POSTURE}


def test_an_effort_in_other_units_is_told_once_and_control_begins_from_gravity(robot):
    def in_milliamperes(message):
        message.effort = [5000.0, 12.0]
        return at_posture(message)

    robot.alter = in_milliamperes
    with running('controller_node', DOMAIN, *TRAJECTORIES) as process:
        robot.speaks = True
        robot.until(Mode.NOMINAL)
        number, _, first = robot.commands[0]
        steps = np.array(load_arm().limits.effort_rate_nmps) * PERIOD_S * number
        assert (np.abs(np.subtract(first, GRAVITY_NM)) <= np.minimum(steps, 8.0)).all()
        process.terminate()
        said = process.communicate(timeout=10.0)[1]
    assert said.count("joint 'joint1': measured effort rejected") == 1
