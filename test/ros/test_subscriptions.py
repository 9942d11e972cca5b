# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""Messages come through a receiver, in order, past the executor that spins the same node."""

import os
import queue
import subprocess
import sys

import pytest

pytest.importorskip('rclpy', reason="needs ROS: pip install 'metactl_ros[ros]'")
import rclpy
from rclpy.executors import SingleThreadedExecutor
from std_msgs.msg import Float64
from support import DOMAIN
from support.resting_robot import PATIENT, Robot
from support.ros_peer import Peer, ROOT, wait_until

from metactl_ros.processes import loopback_environment
from metactl_ros.ros.messages import RELIABLE
from metactl_ros.ros.spin import Spinner, StateReceiver, subscribe

pytestmark = pytest.mark.ros
NUMBERS = [float(number) for number in range(20)]


class Talk:
    """A topic with one speaker and one listener, both on a peer whose executor spins."""

    def __init__(self, peer):
        self.peer, self.heard = peer, queue.SimpleQueue()
        self.publisher = peer.node.create_publisher(Float64, 'numbers', RELIABLE)
        self.subscription = subscribe(peer.node, Float64, 'numbers', RELIABLE)
        wait_until(lambda: self.publisher.get_subscription_count() == 1)

    def say(self, *numbers):
        for number in numbers:
            self.publisher.publish(Float64(data=number))
        self.publisher.wait_for_all_acked()

    def receiver(self, receive=None):
        receive = receive or (lambda message, _: self.heard.put(message.data))
        return StateReceiver(self.subscription, self.peer.context, receive, priority=0)

    def hear(self, number):
        return [self.heard.get(timeout=20.0) for _ in range(number)]


@pytest.fixture(scope='module')
def peer():
    one = Peer(DOMAIN)
    yield one
    one.close()


@pytest.fixture
def talk(peer):
    one = Talk(peer)
    yield one
    peer.node.destroy_subscription(one.subscription)
    peer.node.destroy_publisher(one.publisher)


def test_what_is_said_while_it_runs_comes_in_order_and_nothing_after_its_end(talk):
    receiver = talk.receiver()
    receiver.start()
    for number in NUMBERS:
        talk.say(number)
        assert talk.hear(1) == [number]
    receiver.stop()
    assert not receiver.is_alive()
    assert receiver.error is None
    talk.say(99.0)
    assert talk.heard.empty()


def test_what_was_said_before_is_not_taken_for_new(talk):
    talk.say(1.0)
    receiver = talk.receiver()
    receiver.start()
    talk.say(2.0)
    assert talk.hear(1) == [2.0]
    receiver.stop()
    assert talk.heard.empty()


def test_an_error_of_who_receives_is_told_and_ends_it(talk):
    def fail(message, _):
        raise ArithmeticError(f'cannot stand {message.data}')

    receiver = talk.receiver(fail)
    receiver.start()
    talk.say(3.0)
    receiver.join(timeout=20.0)
    assert 'ArithmeticError: cannot stand 3.0' in receiver.error
    receiver.stop()


def test_one_that_never_started_can_be_stopped(talk):
    talk.receiver().stop()


class CountingExecutor(SingleThreadedExecutor):
    """Counts how often it gathers what there is to wait for."""

    num_rounds = 0

    def get_nodes(self):
        self.num_rounds += 1
        return super().get_nodes()


def test_an_executor_sleeps_while_messages_come_that_are_not_its_own(peer):
    executor = CountingExecutor(context=peer.context)
    node = rclpy.create_node('listener', context=peer.context)
    executor.add_node(node)
    subscription = subscribe(node, Float64, 'numbers', RELIABLE)
    publisher = peer.node.create_publisher(Float64, 'numbers', RELIABLE)
    wait_until(lambda: publisher.get_subscription_count() == 1)
    spinner = Spinner(executor, pytest.fail)
    spinner.start()
    wait_until(executor.create_task(lambda: None).done)
    rounds_before, heard = executor.num_rounds, queue.SimpleQueue()
    receiver = StateReceiver(subscription, peer.context, lambda m, _: heard.put(m), priority=0)
    receiver.start()
    for number in NUMBERS:
        publisher.publish(Float64(data=number))
        assert heard.get(timeout=20.0).data == number
    assert executor.num_rounds - rounds_before <= 1  # it may still have been on its way to sleep
    receiver.stop()
    spinner.stop(timeout_s=20.0)
    executor.shutdown()
    peer.node.destroy_publisher(publisher)
    node.destroy_node()


AUTOSTART = 'autostart:=true'
FAILS_LATER = """
import itertools, sys
from metactl_ros.ros import controller_node
from metactl_ros.runtime import state_intake

honest, calls = state_intake.read_joint_state, itertools.count()

def read(*given):
    assert next(calls) < 100, 'enough states'
    return honest(*given)

state_intake.read_joint_state = read
sys.exit(controller_node.main(sys.argv))
"""


def test_a_controller_whose_receiver_fails_ends_with_zero_and_says_why():
    robot = Robot(DOMAIN + 1)
    robot.speaks = True
    try:
        done = subprocess.run(
            [sys.executable, '-c', FAILS_LATER, '--ros-args', '-p', PATIENT, '-p', AUTOSTART],
            cwd=ROOT,
            env=os.environ | loopback_environment(DOMAIN + 1),
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.returncode == 1
        assert 'receiver ended by an error' in done.stderr
        assert 'AssertionError: enough states' in done.stderr
        wait_until(lambda: robot.commands and not any(robot.commands[-1][2]))
        assert any(any(effort) for _, _, effort in robot.commands)
    finally:
        robot.close()
