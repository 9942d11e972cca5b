# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""Nodes that are asked for all they cannot do, over real ROS: each request is answered."""

from contextlib import contextmanager
from itertools import product
import math
import threading

import pytest

from metactl_ros.control.modes import Mode

pytest.importorskip('rclpy', reason="needs ROS: pip install 'metactl_ros[ros]'")
from lifecycle_msgs.srv import ChangeState, GetState
from rcl_interfaces.msg import Parameter, ParameterType, ParameterValue
from rcl_interfaces.srv import (
    DescribeParameters,
    GetParameters,
    GetParameterTypes,
    ListParameters,
    SetParameters,
    SetParametersAtomically,
)
from support import DOMAIN
from support.resting_robot import PATIENT, Robot, STILL
from support.ros_peer import Peer, running, wait_until

from metactl_ros.options import CONTROLLER_PARAMETERS

pytestmark = pytest.mark.ros

ANSWER_S = 10.0
"""How long an answer may take on a machine that stalls; on one that does not, milliseconds."""

POSSIBLE = {
    'unconfigured': {'configure': 'inactive', 'shutdown': 'finalized'},
    'inactive': {'activate': 'active', 'cleanup': 'unconfigured', 'shutdown': 'finalized'},
    'active': {'deactivate': 'inactive', 'shutdown': 'finalized'},
    'finalized': {},
}
IDS = {
    'unconfigured': {1, 5},
    'inactive': {2, 3, 6},
    'active': {4, 7},
    'finalized': set(),
}
"""Of the transitions that are possible; create and destroy, 0 and 8, are nobody's to ask for."""
LABELS = (
    *('configure', 'cleanup', 'activate', 'deactivate', 'shutdown', 'create', 'destroy'),
    *('transition_success', 'transition_failure', 'transition_error', 'nonsense', 'x' * 100_000),
    *('', ' configure', 'CONFIGURE', '\u00e4', 'unconfigured_shutdown', 'on_configure_success'),
)


@contextmanager
def answering(module, *parameters):
    """Run a node and read what it writes, of which a pipe holds only so much."""
    with running(module, DOMAIN, *parameters) as process:
        reader = threading.Thread(target=process.stderr.read, daemon=True)
        reader.start()
        yield process
        assert process.poll() is None


class Asker:
    """Asks the services of a node, each by one client."""

    def __init__(self, peer, node):
        self._peer, self._name, self._clients = peer, node, {}

    def ask(self, kind, service, request):
        if service not in self._clients:
            client = self._peer.node.create_client(kind, f'{self._name}/{service}')
            wait_until(client.service_is_ready)
            self._clients[service] = client
        answer = self._clients[service].call_async(request)
        wait_until(answer.done, ANSWER_S, says=lambda: f'for {service} {str(request)[:200]}')
        return answer.result()

    def state(self):
        return self.ask(GetState, 'get_state', GetState.Request()).current_state.label

    def change(self, label='', number=0):
        request = ChangeState.Request()
        request.transition.label, request.transition.id = label, number
        return self.ask(ChangeState, 'change_state', request).success


@pytest.fixture
def robot():
    robot = Robot(DOMAIN)
    yield robot
    robot.close()


def test_every_transition_is_answered_in_every_state(robot):
    asker = Asker(robot, 'controller')
    with answering('controller_node', PATIENT, STILL, 'autostart:=false'):
        robot.speaks = True
        for state, way in (
            ('unconfigured', 'configure'),
            ('inactive', 'activate'),
            ('active', 'deactivate'),
            ('inactive', 'cleanup'),
            ('unconfigured', 'shutdown'),
            ('finalized', None),
        ):
            assert asker.state() == state
            for label in set(LABELS) - set(POSSIBLE[state]):
                assert not asker.change(label), label
            for number in {*range(100), 255} - IDS[state]:
                assert not asker.change(number=number), number
            assert asker.state() == state
            if state == 'active':
                robot.until(Mode.NOMINAL)
            if way is not None:
                assert asker.change(way)


TYPES = {
    'nothing': ParameterValue(),
    'yes': ParameterValue(type=ParameterType.PARAMETER_BOOL, bool_value=True),
    'whole': ParameterValue(type=ParameterType.PARAMETER_INTEGER, integer_value=2**63 - 1),
    'nan': ParameterValue(type=ParameterType.PARAMETER_DOUBLE, double_value=math.nan),
    'infinite': ParameterValue(type=ParameterType.PARAMETER_DOUBLE, double_value=math.inf),
    'negative': ParameterValue(type=ParameterType.PARAMETER_DOUBLE, double_value=-1.0),
    'empty': ParameterValue(type=ParameterType.PARAMETER_STRING),
    'long': ParameterValue(type=ParameterType.PARAMETER_STRING, string_value='x' * 100_000),
    'bytes': ParameterValue(
        type=ParameterType.PARAMETER_BYTE_ARRAY, byte_array_value=[b'\0', b'\xff']
    ),
    'truths': ParameterValue(
        type=ParameterType.PARAMETER_BOOL_ARRAY, bool_array_value=[True, False]
    ),
    'wholes': ParameterValue(type=ParameterType.PARAMETER_INTEGER_ARRAY, integer_array_value=[1]),
    'numbers': ParameterValue(
        type=ParameterType.PARAMETER_DOUBLE_ARRAY, double_array_value=[math.nan] * 1000
    ),
    'texts': ParameterValue(
        type=ParameterType.PARAMETER_STRING_ARRAY, string_array_value=['', 'x' * 1000]
    ),
    'no type': ParameterValue(type=99),
    'last type': ParameterValue(type=255),
}
NAMES = (
    *CONTROLLER_PARAMETERS,
    *('use_sim_time', '', 'unknown', 'sinusoid', 'sinusoid.', '.', 'a.b.c', ' ', '\u00e4', '/**'),
    *('x' * 100_000, 'payload_kg.', 'Payload_kg', 'qos_overrides./a.publisher.depth'),
)
ODD = [Parameter(name=name, value=value) for name, value in product(NAMES, TYPES.values())]


def drives_on(robot):
    """Wait until a controller in NOMINAL has sent more commands."""
    count = len(robot.commands)
    wait_until(lambda: len(robot.commands) > count + 5)
    assert robot.mode == Mode.NOMINAL


def test_odd_parameters_are_refused_one_by_one_and_together_while_it_drives(robot):
    asker = Asker(robot, 'controller')
    assert len(ODD) > 400
    with answering('controller_node', PATIENT, STILL):
        robot.speaks = True
        robot.until(Mode.NOMINAL)
        for parameter in ODD:
            request = SetParameters.Request(parameters=[parameter])
            (result,) = asker.ask(SetParameters, 'set_parameters', request).results
            assert not result.successful, str(parameter)[:200]
            assert result.reason
        drives_on(robot)
        for begin in range(0, len(ODD), 7):
            some = [p for p in ODD[begin : begin + 7] if len(p.name) < 1000]
            request = SetParameters.Request(parameters=some)
            answer = asker.ask(SetParameters, 'set_parameters', request)
            assert [result.successful for result in answer.results] == [False] * len(some)
            request = SetParametersAtomically.Request(parameters=some)
            answer = asker.ask(SetParametersAtomically, 'set_parameters_atomically', request)
            assert not answer.result.successful or not some
        drives_on(robot)
        values = asker.ask(
            GetParameters, 'get_parameters', GetParameters.Request(names=['payload_kg'])
        )
        assert 0.0 <= values.values[0].double_value <= 100.0


def test_odd_questions_are_answered(robot):
    asker = Asker(robot, 'controller')
    many = ['x' * (k % 50) for k in range(5000)]
    with answering('controller_node', PATIENT, STILL, 'autostart:=false'):
        for names in ([], [''], ['unknown', 'payload_kg'], ['x' * 100_000], many):
            for kind, service in (
                (GetParameters, 'get_parameters'),
                (GetParameterTypes, 'get_parameter_types'),
                (DescribeParameters, 'describe_parameters'),
            ):
                asker.ask(kind, service, kind.Request(names=names))
            for depth in (0, 1, 2**63):
                request = ListParameters.Request(prefixes=names, depth=depth)
                asker.ask(ListParameters, 'list_parameters', request)
        request = SetParameters.Request(parameters=[Parameter(name=name) for name in many])
        (result,) = asker.ask(SetParameters, 'set_parameters', request).results
        assert result.reason == 'expected at most 200 parameters, found 5000'
        assert asker.state() == 'unconfigured'


def test_the_simulated_robot_answers_odd_parameters_and_goes_on():
    peer = Peer(DOMAIN)
    try:
        with answering('plant_node', 'plant:=rk4'):
            asker = Asker(peer, 'plant')
            for value in TYPES.values():
                for name in ('payload_kg', 'seed', '', 'unknown'):
                    request = SetParameters.Request(parameters=[Parameter(name=name, value=value)])
                    (result,) = asker.ask(SetParameters, 'set_parameters', request).results
                    assert not result.successful
    finally:
        peer.close()


def test_a_recording_goes_on_whatever_is_asked_of_it(tmp_path):
    peer = Peer(DOMAIN)
    try:
        with answering('recorder', f'out:={tmp_path / "bag"}'):
            asker = Asker(peer, 'recorder')
            for name in ('out', '', 'unknown'):
                parameter = Parameter(name=name, value=TYPES['no type'])
                request = SetParameters.Request(parameters=[parameter])
                (result,) = asker.ask(SetParameters, 'set_parameters', request).results
                assert not result.successful
    finally:
        peer.close()
    assert not (tmp_path / 'bag').exists()  # nothing was heard: no bag is left
