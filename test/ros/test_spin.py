# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
import os
import subprocess
import sys

import pytest

from metactl_ros.processes import loopback_environment

pytest.importorskip('rclpy', reason="needs ROS: pip install 'metactl_ros[ros]'")
from sensor_msgs.msg import JointState
from support import DOMAIN
from support.ros_peer import Peer, priorities, ROOT, running, wait_until

pytestmark = pytest.mark.ros

ENDS_ITSELF = """
import gc, os, signal, sys, weakref
from metactl_ros.ros.controller_node import LoopNode
from metactl_ros.ros.front_node import FrontProcess
from metactl_ros.ros.spin import run_node

arguments = ['--ros-args', '-p', 'autostart:=true']
made, front = [], FrontProcess(arguments)

def make():
    node = LoopNode(front)
    made.append(weakref.ref(node))
    gc.freeze()  # as the control thread does
    node.create_timer(0.1, lambda: os.kill(os.getpid(), signal.SIGTERM))
    return node

code = run_node(make, arguments)
sys.exit(code if made[0]() is None else 'the node outlives its run')
"""


WITH_A_TIMER = """
import os, signal, sys, time
import rclpy
from metactl_ros.ros.controller_node import LoopNode
from metactl_ros.ros.front_node import FrontProcess
from metactl_ros.ros.spin import run_node

arguments = ['--ros-args', '-p', 'autostart:=true']
front = FrontProcess(arguments)

class Told(LoopNode):
    def stop_control(self):
        super().stop_control()
        print('control was stopped', flush=True)

def callback():
    {callback}

def make():
    node = Told(front)
    node.create_timer(0.1, callback)
    return node

sys.exit(run_node(make, arguments))
"""


def run(program):
    return subprocess.run(
        [sys.executable, '-c', program],
        cwd=ROOT,
        env=os.environ | loopback_environment(DOMAIN),
        capture_output=True,
        text=True,
        timeout=30,
    )


def test_a_node_that_ended_leaves_nothing_for_the_end_of_the_process():
    done = run(ENDS_ITSELF)
    assert done.returncode == 0, done.stderr


def test_a_callback_that_fails_is_told_and_others_are_still_called():
    fail_then_end = """
    global calls
    calls = globals().get('calls', 0) + 1
    if calls > 3:
        os.kill(os.getpid(), signal.SIGTERM)
    raise ArithmeticError(f'of call {calls}')
"""
    done = run(WITH_A_TIMER.format(callback=fail_then_end))
    assert done.returncode == 0, done.stderr
    assert done.stdout == 'control was stopped\n'
    for call in (1, 2, 3):
        assert f'ArithmeticError: of call {call}' in done.stderr


def test_a_failed_callback_does_not_end_a_node_that_is_cleaned_up_afterwards():
    fail_then_clean_up = """
    global calls
    calls = globals().get('calls', 0) + 1
    if calls == 1:
        raise ArithmeticError('of the first call')
    if calls == 2:
        node.trigger_deactivate()
        node.trigger_cleanup()
    if calls == 20:
        os.kill(os.getpid(), signal.SIGTERM)
"""
    program = WITH_A_TIMER.format(callback=fail_then_clean_up)
    done = run(program.replace('    node = Told()', '    global node\n    node = Told()'))
    assert 'ArithmeticError: of the first call' in done.stderr
    assert done.returncode == 0, done.stderr


def test_a_lost_context_ends_the_run_with_control_stopped():
    done = run(WITH_A_TIMER.format(callback='rclpy.shutdown()'))
    assert done.returncode == 1
    assert done.stdout == 'control was stopped\n'
    assert 'context is not valid' in done.stderr


def test_a_signal_stops_control_even_while_a_callback_hangs():
    hang = 'os.kill(os.getpid(), signal.SIGTERM); time.sleep(60.0)'
    done = run(WITH_A_TIMER.format(callback=hang))
    assert done.returncode == 0, done.stderr
    assert done.stdout == 'control was stopped\n'


@pytest.mark.parametrize('is_lockstep', [False, True])
def test_a_simulated_robot_has_priority_in_real_time_and_none_in_lockstep(is_lockstep):
    peer, states = Peer(DOMAIN), []
    peer.node.create_subscription(JointState, 'joint_states', states.append, 5)
    try:
        with running('plant_node', DOMAIN, 'plant:=rk4', f'lockstep:={is_lockstep}') as process:
            wait_until(lambda: len(states) > 1)
            found = priorities(process)
    finally:
        peer.close()
    if not is_lockstep and not found[0]:
        pytest.skip('this system permits no real-time priority')
    assert any(found) is not is_lockstep
