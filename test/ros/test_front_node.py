# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""The two processes of the controller: what becomes of one when the other dies, or is flooded."""

import signal
import time

import numpy as np
import psutil
import pytest

from metactl_ros.control.modes import Mode
from metactl_ros.runtime.reference_source import MAX_POINTS

pytest.importorskip('rclpy', reason="needs ROS: pip install 'metactl_ros[ros]'")
from builtin_interfaces.msg import Duration
from rcl_interfaces.msg import Log
from rcl_interfaces.srv import GetParameters
from std_msgs.msg import Float64
from std_srvs.srv import SetBool, Trigger
from support import DOMAIN
from support.resting_robot import PATIENT, Robot, STILL
from support.ros_peer import running, wait_until
from trajectory_msgs.msg import JointTrajectory, JointTrajectoryPoint

pytestmark = pytest.mark.ros


@pytest.fixture
def robot():
    robot = Robot(DOMAIN)
    yield robot
    robot.close()


def front_of(process):
    (front,) = psutil.Process(process.pid).children()
    return front


@pytest.mark.parametrize('number', [signal.SIGKILL, signal.SIGTERM])
def test_without_its_front_it_ends_with_a_fading_torque_and_zero_and_says_why(robot, number):
    with running('controller_node', DOMAIN, PATIENT, STILL) as process:
        robot.speaks = True
        robot.until(Mode.NOMINAL)
        front_of(process).send_signal(number)
        assert process.wait(20.0) == 1
        assert 'the front, which answers the network, ended' in process.communicate()[1]
        wait_until(lambda: not np.any(robot.commands[-1][2]))


def test_a_front_whose_controller_was_killed_ends_and_leaves_the_graph(robot):
    with running('controller_node', DOMAIN, PATIENT, STILL) as process:
        robot.speaks = True
        robot.until(Mode.NOMINAL)
        front = front_of(process)
        process.kill()
        wait_until(lambda: not front.is_running())
        wait_until(lambda: 'controller' not in robot.node.get_node_names())


def test_nobody_can_ask_the_process_that_controls(robot):
    with running('controller_node', DOMAIN, PATIENT, STILL):
        robot.speaks = True
        robot.until(Mode.NOMINAL)
        of_loop = robot.node.get_service_names_and_types_by_node('controller_loop', '/')
        heard = robot.node.get_subscriber_names_and_types_by_node('controller_loop', '/')
        assert of_loop == []
        assert [topic for topic, _ in heard] == ['/joint_states']


def test_names_and_topics_may_be_changed_at_start(robot):
    changes = ('-r', '__node:=left', '-r', '__ns:=/arms', '-r', 'joint_states:=/joint_states')
    with running('controller_node', DOMAIN, PATIENT, STILL, ros=changes):
        robot.speaks = True
        wait_until(lambda: robot.node.count_publishers('/arms/left/shield'))
        wait_until(lambda: robot.node.count_publishers('/arms/joint_commands'))
        expected = {('left', '/arms'), ('left_loop', '/arms')}  # names are heard of after topics
        wait_until(lambda: expected <= set(robot.node.get_node_names_and_namespaces()))
        answer = robot.call(SetBool, '/arms/left/enable', SetBool.Request(data=False))
        assert answer.success


def flood_of_names(robot):
    client = robot.node.create_client(GetParameters, 'controller/get_parameters')
    wait_until(client.service_is_ready)
    request = GetParameters.Request(names=['x'] * 300_000)
    return lambda: client.call_async(request)


def flood_of_points(robot):
    publisher = robot.node.create_publisher(JointTrajectory, 'controller/joint_trajectory', 1)
    wait_until(publisher.get_subscription_count)
    point = JointTrajectoryPoint(positions=[0.0, 0.0], velocities=[0.0, 0.0])
    message = JointTrajectory(joint_names=['joint1', 'joint2'], points=[point] * 50_000)
    return lambda: publisher.publish(message)


def flood_of_requests(robot):
    clients = [
        (robot.node.create_client(SetBool, 'controller/enable'), SetBool.Request(data=True)),
        *(
            (robot.node.create_client(Trigger, f'controller/{name}'), Trigger.Request())
            for name in ('reset_fault', 'clear_context')
        ),
    ]
    wait_until(lambda: all(client.service_is_ready() for client, _ in clients))
    return lambda: [client.call_async(request) for client, request in clients]


def flood_of_long_trajectories(robot):
    publisher = robot.node.create_publisher(JointTrajectory, 'controller/joint_trajectory', 1)
    wait_until(publisher.get_subscription_count)
    message = JointTrajectory(joint_names=['joint1', 'joint2'])
    message.points = [
        JointTrajectoryPoint(positions=[0.0, 0.0], time_from_start=Duration(sec=1 + k))
        for k in range(MAX_POINTS)
    ]
    return lambda: publisher.publish(message)


def flood_of_payloads(robot):
    publisher = robot.node.create_publisher(Float64, 'controller/payload', 1)
    wait_until(publisher.get_subscription_count)
    return lambda: [publisher.publish(Float64(data=0.5)) for _ in range(5)]


@pytest.mark.parametrize(
    ('flood', 'says'),
    [
        (flood_of_long_trajectories, 'trajectory: at most 10000 points a second are taken'),
        (flood_of_payloads, 'payload: at most 100 a second are taken'),
    ],
)
def test_no_more_of_a_flood_is_passed_on_than_is_said(robot, flood, says):
    said = []
    robot.node.create_subscription(Log, '/rosout', lambda log: said.append(log.msg), 100)
    with running('controller_node', DOMAIN, PATIENT, STILL, 'reference:=trajectory'):
        robot.speaks = True
        robot.until(Mode.NOMINAL)
        ask = flood(robot)
        wait_until(lambda: (ask() and False) or any(text.startswith(says) for text in said))


@pytest.mark.parametrize(
    ('flood', 'num_asked'),
    [(flood_of_names, 5), (flood_of_points, 10), (flood_of_requests, 300)],
)
def test_ticks_go_on_while_the_front_is_flooded(robot, flood, num_asked):
    reference = 'reference:=trajectory' if flood is flood_of_points else 'reference:=sinusoid'
    with running('controller_node', DOMAIN, PATIENT, STILL, reference) as process:
        robot.speaks = True
        wait_until(lambda: len(robot.shield) > 50)
        ask, begin = flood(robot), len(robot.shield)
        for _ in range(num_asked):
            ask()
            time.sleep(0.01)  # the pace of the flood
        count = len(robot.shield)
        wait_until(lambda: len(robot.shield) > count + 50)
        late_ms = [row['late_ms'] for row in robot.shield[begin:]]
        # A quarter of a second was common in one process; a busy machine is late as well.
        assert np.quantile(late_ms, 0.9) < 10.0, sorted(late_ms)[-20:]
        assert process.poll() is None
