# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""Every request to a node is answered, whatever it asks for.

rclpy's own services raise on a transition that is not possible, on a type that is none and on some
names; the executor then drops the request, and whoever asked waits for ever. Here the callbacks of
a node's services are put into others that answer a refusal with its reason: in the response, where
that has room for one, and in the log. Requests for very many parameters are refused unread.
"""

from collections.abc import Callable
import time
from typing import Any

from lifecycle_msgs.srv import ChangeState, GetState
from rcl_interfaces.msg import SetParametersResult
from rcl_interfaces.srv import SetParameters

from metactl_ros.config import shown
from metactl_ros.errors import legible

MOST_PARAMETERS = 200
"""Of a request; a node of this package has some twenty."""
MOST_LABEL = 100
"""Characters of the name of a transition."""
MOST_REASON = 500
"""Characters of a reason."""
MOST_TOLD = 10
"""Refusals put into the log within a second, so that asking nonsense does not keep a node busy."""
Callback = Callable[[Any, Any], Any]


def answer_always(node: Any) -> None:
    """Let each service that a node of rclpy has now answer what its callback raises on."""
    told = _Told(node.get_logger().warning)
    services = list(node.services)
    states = [service.callback for service in services if service.srv_type is GetState]
    for service in services:
        honest = _only_usual(service.callback, node.has_parameter)
        name = service.srv_name.rpartition('/')[2]
        if service.srv_type is SetParameters:
            service.callback = _each_alone(honest, name, told)
        elif service.srv_type is ChangeState:
            service.callback = _answered(honest, name, told, _from_state(*states))
        else:
            service.callback = _answered(honest, name, told)


class _Told:
    """Tells refusals, at most so many within a second."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._second, self._count = 0, 0

    def __call__(self, text: str) -> None:
        second = int(time.monotonic())
        self._count = self._count + 1 if second == self._second else 1
        self._second = second
        if self._count < MOST_TOLD:
            self._say(text)
        elif self._count == MOST_TOLD:
            self._say(f'{text} Others that come within this second are not told.')


def _answered(
    honest: Callback,
    name: str,
    told: _Told,
    explain: Callable[[Any, str], str] = lambda _, reason: reason,
) -> Callback:
    """Return a callback that answers with a refusal where another would raise."""

    def answer(request: Any, response: Any) -> Any:
        try:
            return honest(request, response)
        except Exception as error:
            reason = explain(request, _reason(error))
            told(f'{name}: refused: {reason}')
            return _refusal(type(response)(), reason)

    return answer


def _each_alone(honest: Callback, name: str, told: _Told) -> Callback:
    """Return a callback that sets each parameter, whether or not the others can be set."""

    def refused(parameter: Any, reason: str) -> Any:
        told(f'{name}: {shown(parameter.name)} refused: {reason}')
        return SetParametersResult(successful=False, reason=reason)

    def answer_one(parameter: Any) -> Any:
        request = SetParameters.Request(parameters=[parameter])
        try:
            (result,) = honest(request, SetParameters.Response()).results
        except Exception as error:
            return refused(parameter, _reason(error))
        return result if result.successful else refused(parameter, result.reason[:MOST_REASON])

    def answer(request: Any, response: Any) -> Any:
        count = len(request.parameters)
        if count > MOST_PARAMETERS:
            reason = f'expected at most {MOST_PARAMETERS} parameters, found {count}'
            told(f'{name}: refused: {reason}')
            response.results = [SetParametersResult(successful=False, reason=reason)]
        else:
            response.results = [answer_one(parameter) for parameter in request.parameters]
        return response

    return answer


def _from_state(state_of: Callback) -> Callable[[Any, str], str]:
    """Return a function that says which transition was refused, and from which state."""

    def explain(request: Any, reason: str) -> str:
        asked = request.transition.label or request.transition.id
        state = state_of(GetState.Request(), GetState.Response()).current_state.label
        return f'the transition {shown(asked)} is not possible from {state} ({reason})'

    return explain


def _only_usual(honest: Callback, has_parameter: Callable[[str], bool]) -> Callback:
    """Return a callback that raises on what is too much to be read, or names nothing.

    rclpy takes a parameter without a name for a declared one, names others wrongly, and writes
    the whole label of a transition that is not there to the log.
    """

    def answer(request: Any, response: Any) -> Any:
        if len(getattr(getattr(request, 'transition', None), 'label', '')) > MOST_LABEL:
            raise ValueError(f'expected a label of at most {MOST_LABEL} characters')
        for field in ('parameters', 'names', 'prefixes'):
            count = len(getattr(request, field, ()))
            if count > MOST_PARAMETERS:
                raise ValueError(f'expected at most {MOST_PARAMETERS} {field}, found {count}')
        names = [parameter.name for parameter in getattr(request, 'parameters', ())]
        if unknown := [name for name in names if not has_parameter(name)]:
            raise ValueError(f'{shown(unknown)} is no parameter of this node')
        return honest(request, response)

    return answer


def _reason(error: Exception) -> str:
    return legible(f'{type(error).__name__}: {error}')[:MOST_REASON]


def _refusal(response: Any, reason: str) -> Any:
    """Return a response that refuses, with the reason where it has room for one."""
    if hasattr(response, 'message'):
        response.success, response.message = False, reason
    elif hasattr(getattr(response, 'result', None), 'reason'):
        response.result.successful, response.result.reason = False, reason
    return response
