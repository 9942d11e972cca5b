# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""The intruder as a process: each of its intrusions is seen on the topics, and ends."""

import os
import signal
import subprocess
import sys
import threading
import time
import warnings

import numpy as np
import pytest

from metactl_ros.errors import ConfigError
from metactl_ros.hil.scenario import INTRUSIONS
from metactl_ros.processes import loopback_environment
from metactl_ros.runtime.joint_states import nanoseconds, set_stamp

pytest.importorskip('rclpy', reason="needs ROS: pip install 'metactl_ros[ros]'")
from rcl_interfaces.srv import DescribeParameters, GetParameters
from sensor_msgs.msg import JointState
from std_msgs.msg import Float64MultiArray
from std_srvs.srv import Trigger
from support import DOMAIN
from support.ros_peer import Peer, ROOT, wait_until
from trajectory_msgs.msg import JointTrajectory

from metactl_ros.hil.intruder import main, parse_intrusion

pytestmark = pytest.mark.ros

JOINTS = ['joint1', 'joint2']


class RecordingPeer(Peer):
    """Publishes where an arm is, and receives and answers what an intruder sends."""

    def __init__(self):
        super().__init__(DOMAIN)
        self.states, self.commands, self.forwarded, self.trajectories = [], [], [], []
        self.asked = {'get': [], 'describe': [], 'clear': 0}
        listen, serve = self.node.create_subscription, self.node.create_service
        listen(JointState, 'joint_states', self.states.append, 100)
        listen(JointState, 'joint_commands', self.commands.append, 100)
        listen(Float64MultiArray, 'forward_effort_controller/commands', self.forwarded.append, 100)
        listen(JointTrajectory, 'controller/joint_trajectory', self.trajectories.append, 10)
        serve(GetParameters, 'controller/get_parameters', self.on_get)
        serve(DescribeParameters, 'controller/describe_parameters', self.on_describe)
        serve(Trigger, 'controller/clear_context', self.on_clear)
        self.truths = self.node.create_publisher(JointState, 'plant/truth', 5)
        self.where = [0.2, -0.1]
        self._publisher = threading.Thread(target=self._publish, daemon=True)
        self._publisher.start()

    def _spin(self):
        # A client that has gone gets no answer; raised, the warning of rclpy is a SystemError.
        with warnings.catch_warnings():
            warnings.simplefilter('ignore')
            super()._spin()

    def _publish(self):
        while not self._must_end:
            message = JointState(name=JOINTS, position=self.where, velocity=[0.0, 0.0])
            set_stamp(message.header.stamp, time.time_ns())
            self.truths.publish(message)
            time.sleep(0.01)

    def on_get(self, request, response):
        self.asked['get'].append(len(request.names))
        return response

    def on_describe(self, request, response):
        self.asked['describe'].append(len(request.names))
        return response

    def on_clear(self, _, response):
        self.asked['clear'] += 1
        return response

    def publishers(self, topic):
        return self.node.count_publishers(topic)

    def close(self):
        self._must_end = True
        self._publisher.join()
        super().close()


@pytest.fixture
def peer():
    peer = RecordingPeer()
    yield peer
    peer.close()


@pytest.fixture
def intruder():
    """Return a process that waits for orders, and end it."""
    with subprocess.Popen(
        [sys.executable, '-m', 'metactl_ros.hil.intruder'],
        cwd=ROOT,
        env=os.environ | loopback_environment(DOMAIN),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        yield process
        process.kill()


def order(process, text):
    process.stdin.write(f'{text}\n')
    process.stdin.flush()


def test_a_second_arm_rests_where_the_first_was_seen_until_it_is_ended(peer, intruder):
    wait_until(lambda: 'intruder' in peer.node.get_node_names())
    assert peer.publishers('joint_states') == 0  # nothing shows it yet
    order(intruder, 'second_states=0.5')
    wait_until(lambda: len(peer.states) > 5)
    peer.where = [1.0, 1.0]
    count = len(peer.states)
    wait_until(lambda: len(peer.states) > count + 20)
    for state in peer.states:
        assert list(state.name) == JOINTS
        assert list(state.position) == pytest.approx([0.7, 0.4])
        assert list(state.velocity) == [0.0, 0.0]
        assert abs(nanoseconds(state.header.stamp) - time.time_ns()) < 60 * 10**9
    stamps = [nanoseconds(state.header.stamp) for state in peer.states]
    assert stamps == sorted(set(stamps))
    order(intruder, 'end second_states')
    wait_until(lambda: peer.publishers('joint_states') == 0)


def test_an_echo_follows_the_arm_at_its_distance(peer, intruder):
    order(intruder, 'echoed_states=0.05')
    wait_until(lambda: peer.states)
    peer.where = [1.0, 1.0]
    wait_until(lambda: peer.states[-1].position[0] > 0.9)
    assert list(peer.states[-1].position) == pytest.approx([1.05, 1.05])


def test_second_commands_come_on_both_topics(peer, intruder):
    order(intruder, 'second_commands=-0.5')
    wait_until(lambda: peer.commands and peer.forwarded)
    assert list(peer.commands[0].effort) == [-75.0, -30.0]
    assert list(peer.commands[0].name) == JOINTS
    assert list(peer.forwarded[0].data) == [-75.0, -30.0]
    order(intruder, 'end second_commands')
    for topic in ('joint_commands', 'forward_effort_controller/commands'):
        wait_until(lambda topic=topic: peer.publishers(topic) == 0)


def test_what_takes_long_is_prepared_before_it_is_wanted(peer, intruder):
    order(intruder, 'prepare flood_trajectories=50')
    order(intruder, 'prepare second_states')
    assert [intruder.stdout.readline() for _ in range(2)] == ['ready\n'] * 2
    assert peer.publishers('controller/joint_trajectory') == 0
    peer.where = [0.4, -0.3]
    order(intruder, 'flood_trajectories=50')
    wait_until(lambda: peer.trajectories)
    points = peer.trajectories[0].points
    times_s = [nanoseconds(point.time_from_start) / 1e9 for point in points]
    assert times_s == pytest.approx(np.linspace(1.0, 60.0, 50).tolist())
    assert all(sum(point.positions) == pytest.approx(0.1) for point in points)


def test_floods_ask_again_and_again_as_much_as_they_are_asked_to(peer, intruder):
    order(intruder, 'flood_parameters=1000')
    order(intruder, 'flood_clear_context=200')
    order(intruder, 'flood_trajectories=50')
    wait_until(lambda: len(peer.asked['get']) > 2 and len(peer.asked['describe']) > 2)
    wait_until(lambda: peer.asked['clear'] > 50)
    wait_until(lambda: len(peer.trajectories) > 1)
    assert {*peer.asked['get'], *peer.asked['describe']} == {1000}
    assert len(peer.trajectories[0].points) == 50
    for kind in ('parameters', 'clear_context', 'trajectories'):
        order(intruder, f'end flood_{kind}')
    wait_until(lambda: peer.publishers('controller/joint_trajectory') == 0)


@pytest.mark.parametrize(
    ('kind', 'times_s', 'positions'),
    [
        ('trajectory_smooth=0.5', [1.5], [0.7]),
        ('trajectory_leap=5.6', [3.0 / 0.9, 3.0 / 0.9 + 1e-9], [-2.8, 2.8]),
        ('trajectory_far=9', [8.8 / 0.9], [9.0]),
        ('trajectory_fast=2', [0.05], [2.2]),
    ],
)
def test_a_trajectory_moves_the_first_joint_and_comes_once(
    peer, intruder, kind, times_s, positions
):
    order(intruder, kind)
    wait_until(lambda: peer.trajectories)
    (found,) = peer.trajectories
    assert list(found.joint_names) == JOINTS
    for point, t_s, position in zip(found.points, times_s, positions, strict=True):
        assert nanoseconds(point.time_from_start) == pytest.approx(1e9 * t_s, abs=2.0)
        assert list(point.positions) == pytest.approx([position, -0.1])


@pytest.mark.parametrize('how', [signal.SIGTERM, signal.SIGINT, 'input'])
def test_it_ends_cleanly_whatever_it_does(peer, intruder, how):
    for kind in INTRUSIONS:
        amount = '=1000' if kind.startswith('flood') else ''
        order(intruder, f'{kind}{amount}')
    wait_until(lambda: peer.states and peer.commands and peer.asked['clear'])
    intruder.stdin.close() if how == 'input' else intruder.send_signal(how)
    assert intruder.wait(20.0) == 0, intruder.stderr.read()
    wait_until(lambda: peer.publishers('joint_states') == 0)


@pytest.mark.parametrize(
    ('text', 'says'),
    [('third_states', 'expected one of second_states'), ('second_states=x', 'expected a number')],
)
def test_wrong_use_is_refused_with_the_reason(text, says, capsys):
    with pytest.raises(ConfigError, match=says):
        parse_intrusion(text)
    assert main(['intruder', text]) == 2
    assert says in capsys.readouterr().err


def test_an_amount_that_is_not_given_is_the_usual_one():
    assert parse_intrusion('echoed_states') == ('echoed_states', 0.02)
    assert parse_intrusion('echoed_states=-1') == ('echoed_states', -1.0)
