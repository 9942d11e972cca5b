# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""Robot and controller as two processes, and one of them is killed."""

import os
import subprocess
import time

import numpy as np
import pytest

from metactl_ros.control.modes import Mode
from metactl_ros.processes import commands, loopback_environment, Setup

pytest.importorskip('rclpy', reason="needs ROS: pip install 'metactl_ros[ros]'")
from rclpy.qos import DurabilityPolicy, QoSProfile
from sensor_msgs.msg import JointState
from std_msgs.msg import Bool
from support.ros_peer import Peer, ROOT, wait_until

pytestmark = pytest.mark.ros

DOMAIN = os.getpid() % 50 * 2 + 2
PERIOD_S = 0.01


class Witness(Peer):
    """Hears the commands, the modes and the brake."""

    def __init__(self):
        super().__init__(DOMAIN)
        self.commands, self.modes, self.brakings = [], [], []
        kept = QoSProfile(depth=10, durability=DurabilityPolicy.TRANSIENT_LOCAL)
        listen = self.node.create_subscription
        listen(JointState, 'joint_commands', self.on_command, 100)
        listen(
            JointState, 'controller/shield', lambda m: self.modes.append(int(m.position[0])), 100
        )
        listen(Bool, 'plant/braking', self.on_braking, kept)

    def on_command(self, message):
        self.commands.append((time.monotonic(), list(message.effort)))

    def on_braking(self, message):
        self.brakings.append((time.monotonic(), message.data))

    def until_driving(self):
        self.modes.clear()
        wait_until(lambda: self.modes and self.modes[-1] == Mode.NOMINAL)


@pytest.fixture
def fleet():
    """Start a process by name; all end with the test."""
    setup, processes = Setup(plant='rk4', log_level='error'), {}
    # Patient: cores of a test machine are busy, and flapping would latch a fault.
    extra = {
        'controller_node': ['-p', 'state_timeout_s:=0.2'],
        'plant_node': ['-p', 'command_timeout_s:=0.2'],
    }

    def begin(name):
        processes[name] = subprocess.Popen(
            [*commands(setup)[name], *extra[name]],
            cwd=ROOT,
            env=os.environ | loopback_environment(DOMAIN),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        return processes[name]

    yield begin
    for process in processes.values():
        process.kill()
        process.wait()


@pytest.fixture
def witness():
    witness = Witness()
    yield witness
    witness.close()


def assert_within_rate(settings, efforts):
    most = np.array(settings.arm.limits.effort_rate_nmps) * PERIOD_S + 1e-9
    assert (np.abs(np.diff(efforts, axis=0)) <= most).all()


def test_a_killed_controller_makes_the_robot_brake_and_a_new_one_drives_again(
    fleet, witness, settings
):
    fleet('plant_node')
    controller = fleet('controller_node')
    witness.until_driving()
    wait_until(lambda: witness.brakings and not witness.brakings[-1][1])
    controller.kill()
    controller.wait()
    wait_until(lambda: witness.brakings[-1][1])
    assert_within_rate(settings, [effort for _, effort in witness.commands])
    witness.commands.clear()
    fleet('controller_node')
    witness.until_driving()
    assert not witness.brakings[-1][1]
    assert_within_rate(settings, [effort for _, effort in witness.commands])


def test_a_killed_robot_makes_the_controller_blind_and_a_new_one_is_driven_again(
    fleet, witness, settings
):
    plant = fleet('plant_node')
    fleet('controller_node')
    witness.until_driving()
    plant.kill()
    plant.wait()
    wait_until(lambda: witness.modes[-1] == Mode.BLIND)
    wait_until(lambda: not np.any(witness.commands[-1][1]))
    fleet('plant_node')
    witness.until_driving()
    assert_within_rate(settings, [effort for _, effort in witness.commands])
