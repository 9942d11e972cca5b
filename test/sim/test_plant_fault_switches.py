# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""Faults of the plant node as a process: switched by services, or read from a file."""

import math
import os

import numpy as np
import pytest

from metactl_ros.runtime.joint_states import nanoseconds, set_stamp

pytest.importorskip('rclpy', reason="needs ROS: pip install 'metactl_ros[ros]'")
from diagnostic_msgs.msg import DiagnosticArray, DiagnosticStatus
from rcl_interfaces.srv import SetParameters
from rclpy.parameter import Parameter
from rclpy.qos import DurabilityPolicy, QoSProfile
from sensor_msgs.msg import JointState
from std_msgs.msg import Bool
from std_srvs.srv import SetBool
from support.ros_peer import Peer, running, wait_until

from metactl_ros.ros.messages import LATCHED
from metactl_ros.sim.faults import KINDS

pytestmark = pytest.mark.ros

DOMAIN = os.getpid() % 50 * 2 + 1
PERIOD_NS = 10_000_000


class Listener(Peer):
    """Hears the robot; with `efforts`, answers each state by the next of them."""

    def __init__(self):
        super().__init__(DOMAIN)
        self.states, self.truths, self.faults, self.reports = [], {}, [], []
        self.brakings = []
        self.efforts = None
        kept = QoSProfile(depth=100, durability=DurabilityPolicy.TRANSIENT_LOCAL)
        listen = self.node.create_subscription
        self.commands = self.node.create_publisher(JointState, 'joint_commands', 1)
        listen(JointState, 'plant/truth', self.on_truth, 100)
        listen(JointState, 'plant/faults', self.faults.append, kept)
        listen(Bool, 'plant/braking', lambda m: self.brakings.append(m.data), kept)
        listen(DiagnosticArray, '/diagnostics', lambda m: self.reports.append(m.status[0]), 5)
        listen(JointState, 'joint_states', self.on_state, 100)

    def on_truth(self, message):
        self.truths[nanoseconds(message.header.stamp)] = message

    def on_state(self, message):
        self.states.append(message)
        if self.efforts is not None:
            stamp_ns = nanoseconds(message.header.stamp)
            command = JointState(name=['joint1', 'joint2'], effort=self.efforts)
            set_stamp(command.header.stamp, stamp_ns)
            self.commands.publish(command)

    def switch(self, kind, is_on):
        return self.call(SetBool, f'plant/fault/{kind}', SetBool.Request(data=is_on))

    def set(self, name, value):
        request = SetParameters.Request(
            parameters=[Parameter(name, value=value).to_parameter_msg()]
        )
        return self.call(SetParameters, 'plant/set_parameters', request).results[0]

    def said(self):
        """Return the faults that are on, as the node said last."""
        return dict(zip(self.faults[-1].name, self.faults[-1].position, strict=True))

    def next_state(self):
        count = len(self.states)
        wait_until(lambda: len(self.states) > count + 1)
        return self.states[-1]


@pytest.fixture
def listener():
    peer = Listener()
    yield peer
    peer.close()


def test_services_switch_faults_on_and_off_while_the_robot_runs(listener):
    with running('plant_node', DOMAIN, 'plant:=rk4'):
        wait_until(lambda: listener.states and listener.faults)
        assert listener.said() == {}
        assert listener.set('fault.bias', 0.25).successful
        assert not listener.set('fault.bias', 11.0).successful  # out of its range
        assert listener.switch('bias', True).success
        wait_until(lambda: listener.said() == {'bias': 0.25})
        begun_ns = nanoseconds(listener.faults[-1].header.stamp)
        told = listener.next_state()
        stamp_ns = nanoseconds(told.header.stamp)
        assert begun_ns <= stamp_ns
        wait_until(lambda: stamp_ns in listener.truths)
        moved = np.subtract(told.position, listener.truths[stamp_ns].position)
        assert moved == pytest.approx([0.25, 0.25])

        assert listener.set('fault.bias', 0.5).successful  # at once, while it is on
        wait_until(lambda: listener.said() == {'bias': 0.5})
        assert listener.switch('nan', True).success
        wait_until(lambda: listener.said() == {'bias': 0.5, 'nan': 1.0})
        assert all(math.isnan(q) for q in listener.next_state().position)
        wait_until(lambda: 'nan' in listener.reports[-1].message if listener.reports else False)
        assert listener.reports[-1].level == DiagnosticStatus.WARN
        assert np.isfinite([truth.position for truth in listener.truths.values()]).all()

        assert listener.switch('silence', True).success
        wait_until(lambda: 'silence' in listener.said())
        silent_ns = nanoseconds(listener.faults[-1].header.stamp)
        wait_until(lambda: silent_ns + 20 * PERIOD_NS in listener.truths)  # which goes on
        assert all(nanoseconds(state.header.stamp) < silent_ns for state in listener.states)
        for kind in ('silence', 'nan', 'bias'):
            assert listener.switch(kind, False).success
        wait_until(lambda: listener.said() == {})
        cured = listener.next_state()
        wait_until(lambda: nanoseconds(cured.header.stamp) in listener.truths)
        assert cured.position == listener.truths[nanoseconds(cured.header.stamp)].position
        names = {name for name, _ in listener.node.get_service_names_and_types()}
        assert names >= {f'/plant/fault/{kind}' for kind in KINDS}


def test_a_file_in_lockstep_acts_at_its_simulated_times(listener, tmp_path):
    path = tmp_path / 'faults.yaml'
    path.write_text(
        'faults:\n- {at_s: 0.1, for_s: 0.05, kind: bias, amount: 1.0, joint: 1}\n'
        '- {at_s: 0.2, kind: torque_loss, amount: 0.5}\n- {at_s: 0, kind: kill_plant}\n'
    )
    given = ('plant:=rk4', 'lockstep:=true', f'faults:={path}', 'faults_start_s:=0.02')
    with running('plant_node', DOMAIN, *given):
        wait_until(lambda: listener.states)
        refused = listener.switch('drop', True)
        assert (refused.success, 'lockstep' in refused.message) == (False, True)
        listener.efforts = [4.0, 2.0]
        wait_until(lambda: 10**9 + 30 * PERIOD_NS in listener.truths)
    steps = {(nanoseconds(m.header.stamp) - 10**9) // PERIOD_NS: m for m in listener.states}
    truths = {(ns - 10**9) // PERIOD_NS: m for ns, m in listener.truths.items()}
    shifted = [k for k in range(29) if steps[k].position[1] != truths[k].position[1]]
    assert shifted == [8, 9, 10, 11, 12]
    assert list(steps[18].effort) == [4.0, 2.0]
    assert list(steps[19].effort) == [2.0, 1.0]  # of the period that follows the 18th
    said = [
        ((nanoseconds(m.header.stamp) - 10**9) // PERIOD_NS, list(m.name), list(m.position))
        for m in listener.faults
    ]
    assert said == [(0, [], []), (8, ['bias'], [1.0]), (13, [], []), (18, ['torque_loss'], [0.5])]


@pytest.mark.parametrize('lockstep', ['false', 'true'])
def test_a_stop_request_brakes_the_robot_even_one_that_comes_later(listener, lockstep):
    requests = listener.node.create_publisher(Bool, 'stop_request', LATCHED)
    requests.publish(Bool(data=True))  # latched: the robot is not there yet
    listener.efforts = [4.0, 2.0]
    given = ('plant:=rk4', f'lockstep:={lockstep}', 'command_timeout_s:=5.0')
    with running('plant_node', DOMAIN, *given):
        # It is driven for a moment if the request finds it later than the first command does.
        wait_until(lambda: len(listener.truths) > 50 and listener.brakings[-1])
        requests.publish(Bool(data=False))
        wait_until(lambda: listener.brakings[-1] is False)
        requests.publish(Bool(data=True))
        wait_until(lambda: listener.brakings[-1] is True)
        braked_ns = max(listener.truths)
        wait_until(lambda: max(listener.truths) > braked_ns + 100 * PERIOD_NS)
        assert listener.brakings[-1] is True
    last = listener.truths[max(listener.truths)]
    assert max(abs(speed) for speed in last.velocity) < 0.2


@pytest.mark.parametrize(
    ('text', 'lockstep', 'says'),
    [
        ('faults: [{at_s: 0, kind: silense}]', 'false', "did you mean 'silence'?"),
        ('faults: [{at_s: 0, kind: silence}]', 'true', 'in lockstep the robot would wait'),
        (None, 'false', 'faults: expected the path of a YAML file or one of'),
    ],
)
def test_a_wrong_file_ends_the_node_with_2_and_a_reason(tmp_path, text, lockstep, says):
    path = tmp_path / 'faults.yaml'
    if text is not None:
        path.write_text(text)
    given = ('plant:=rk4', f'lockstep:={lockstep}', f'faults:={path}')
    with running('plant_node', DOMAIN, *given) as process:
        assert process.wait(20.0) == 2
        assert says in process.stderr.read()
