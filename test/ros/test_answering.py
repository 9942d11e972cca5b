# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""Requests that rclpy's own services raise on are answered, with the reason."""

from types import SimpleNamespace

import pytest

pytest.importorskip('rclpy', reason="needs ROS: pip install 'metactl_ros[ros]'")
from lifecycle_msgs.srv import ChangeState, GetState
from rcl_interfaces.msg import Parameter, SetParametersResult
from rcl_interfaces.srv import (
    GetParameters,
    ListParameters,
    SetParameters,
    SetParametersAtomically,
)
from std_srvs.srv import SetBool, Trigger

from metactl_ros.ros import spin
from metactl_ros.ros.spin import answer_always, MAX_LOGGED, MAX_PARAMETERS, MAX_REASON

pytestmark = pytest.mark.ros


class Asked:
    """A node with one service, which may be asked."""

    def __init__(self, kind, callback):
        self.said = []
        self._kind = kind
        self._service = SimpleNamespace(srv_type=kind, srv_name='/a/ask', callback=callback)
        state = SimpleNamespace(srv_type=GetState, srv_name='/a/state', callback=self._state)
        logger = SimpleNamespace(warning=self.said.append)
        node = SimpleNamespace(
            services=iter([self._service, state]),
            get_logger=lambda: logger,
            has_parameter=lambda name: name in 'abcd' and name,
        )
        answer_always(node)

    @staticmethod
    def _state(_, response):
        response.current_state.label = 'inactive'
        return response

    def ask(self, request=None):
        return self._service.callback(request or self._kind.Request(), self._kind.Response())


def fail(_, response):
    response.__init__()
    raise ArithmeticError('of the callback')


def parameters(*names):
    return [Parameter(name=name) for name in names]


def test_what_a_callback_answers_is_left_as_it_is():
    def answer(request, response):
        response.success, response.message = request.data, 'done'
        return response

    asked = Asked(SetBool, answer)
    response = asked.ask(SetBool.Request(data=True))
    assert (response.success, response.message) == (True, 'done')
    assert not asked.said


@pytest.mark.parametrize('kind', [Trigger, SetBool])
def test_a_callback_that_raises_is_answered_with_its_reason(kind):
    asked = Asked(kind, fail)
    response = asked.ask()
    assert response.success is False
    assert response.message == 'ArithmeticError: of the callback'
    assert asked.said == ['ask: refused: ArithmeticError: of the callback']


def test_a_half_made_answer_is_not_sent():
    def half(_, response):
        response.success = True
        raise ArithmeticError

    assert Asked(ChangeState, half).ask().success is False


def test_a_transition_that_is_not_possible_names_itself_and_the_state():
    asked = Asked(ChangeState, fail)
    request = ChangeState.Request()
    request.transition.label = 'activate'
    assert asked.ask(request).success is False
    (said,) = asked.said
    assert "the transition 'activate' is not possible from inactive" in said
    request.transition.label, request.transition.id = '', 61
    asked.ask(request)
    assert 'the transition 61 is not possible from inactive' in asked.said[1]


def test_a_very_long_name_of_a_transition_is_refused_unread():
    asked = Asked(ChangeState, lambda *_: pytest.fail('read'))
    request = ChangeState.Request()
    request.transition.label = 'x' * 101
    assert asked.ask(request).success is False
    assert 'expected a label of at most 100 characters' in asked.said[0]


def test_parameters_set_together_are_refused_together():
    asked = Asked(SetParametersAtomically, fail)
    request = SetParametersAtomically.Request(parameters=parameters('a', 'b'))
    result = asked.ask(request).result
    assert (result.successful, result.reason) == (False, 'ArithmeticError: of the callback')


def test_one_parameter_that_cannot_be_set_does_not_hinder_another():
    def set_unless_b(request, response):
        (parameter,) = request.parameters
        if parameter.name == 'b':
            raise ArithmeticError('of b')
        is_c = parameter.name == 'c'
        response.results.append(SetParametersResult(successful=not is_c, reason='c' * is_c))
        return response

    asked = Asked(SetParameters, set_unless_b)
    request = SetParameters.Request(parameters=parameters('a', 'b', '', 'c', 'd'))
    assert [(one.successful, one.reason) for one in asked.ask(request).results] == [
        (True, ''),
        (False, 'ArithmeticError: of b'),
        (False, "ValueError: [''] is no parameter of this node"),
        (False, 'c'),
        (True, ''),
    ]
    refused = [text.split(':')[1] for text in asked.said]
    assert refused == [" 'b' refused", " '' refused", " 'c' refused"]


@pytest.mark.parametrize('name', ['', 'nobody', 'x' * 100_000])
def test_unknown_parameters_are_not_set_together(name):
    asked = Asked(SetParametersAtomically, lambda *_: pytest.fail('read'))
    request = SetParametersAtomically.Request(parameters=parameters('a', name))
    reason = asked.ask(request).result.reason
    assert reason.startswith(f"ValueError: ['{name[:20]}")
    assert reason.endswith('is no parameter of this node')


@pytest.mark.parametrize(
    ('kind', 'field'),
    [(GetParameters, 'names'), (ListParameters, 'prefixes'), (SetParametersAtomically, None)],
)
def test_a_request_for_very_many_parameters_is_refused_unread(kind, field):
    def count(_, response):
        counted.append(1)
        return response

    counted = []
    asked = Asked(kind, count)
    for extra in (0, 1):
        names = ['a'] * (MAX_PARAMETERS + extra)
        fields = {field: names} if field else {'parameters': parameters(*names)}
        asked.ask(kind.Request(**fields))
    assert counted == [1]
    assert f'expected at most {MAX_PARAMETERS} ' in asked.said[0]


def test_very_many_parameters_to_set_are_answered_once():
    asked = Asked(SetParameters, fail)
    names = ['a'] * (MAX_PARAMETERS + 1)
    (result,) = asked.ask(SetParameters.Request(parameters=parameters(*names))).results
    assert not result.successful
    assert result.reason == 'expected at most 200 parameters, found 201'


def test_a_reason_is_legible_and_not_too_long():
    def fail_at_length(_, response):
        raise ValueError('\x1b[31m' + 'x' * 100_000)

    message = Asked(Trigger, fail_at_length).ask().message
    assert len(message) == MAX_REASON
    assert message.isprintable()


def test_of_a_flood_of_refusals_some_are_told_in_every_second(monkeypatch):
    now_s = 100.0
    monkeypatch.setattr(spin.time, 'monotonic', lambda: now_s)
    asked = Asked(Trigger, fail)
    for _ in range(1000):
        assert not asked.ask().success
    assert len(asked.said) == MAX_LOGGED
    assert asked.said[-1].endswith('Others that come within this second are not logged.')
    now_s = 101.0
    asked.ask()
    assert len(asked.said) == MAX_LOGGED + 1
