# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""Runs a node until it is to end, has it answer every request, and fetches its messages.

rclpy's own signal handlers shut the context down at once, after which nothing can be published; so
they are not installed, and a node can send a last command. The executor has a thread of its own
and wakes only if there is something to do: before every wait it gathers all that a node has, in
Python, and Python runs one thread at a time, so waking to look for a signal would get in the way
of the control thread.

rclpy's own services raise on a transition that is not possible, on a type that is none and on some
names; the executor then drops the request, and its client waits for ever. `answer_always` puts the
callbacks of a node's services into others that answer a refusal with its reason: in the response,
where that has room for one, and in the log. Requests for very many parameters are refused unread.

Joint states, and what is recorded, are fetched from their subscriptions, not brought by an
executor. Before each wait rclpy's executor gathers everything a node has, some twenty services
among it, in Python; what is left of that when a tick begins delays the tick. The wait set of a
`StateReceiver` has one subscription, is kept, and needs far less; and no service, parameter or
report can hold up a state. `rclpy.wait_for_message` waits in the same way. Such subscriptions
report no events either unless asked to: an executor that waits for an event of a subscription is
woken by its messages, too, again and again until they are taken.

rclpy has no public call to take a message, to wait for one subscription alone, nor to list the
parameters that were given to a node: all use of its inner names is here.
"""

from collections.abc import Callable, Mapping, Sequence
import difflib
import gc
import os
import signal
import sys
import threading
import time
import traceback
from types import FrameType
from typing import Any

from lifecycle_msgs.srv import ChangeState, GetState
from rcl_interfaces.msg import (
    FloatingPointRange,
    IntegerRange,
    ParameterDescriptor,
    SetParametersResult,
)
from rcl_interfaces.srv import SetParameters
import rclpy
from rclpy.callback_groups import CallbackGroup
from rclpy.clock import Clock, ClockType
from rclpy.event_handler import SubscriptionEventCallbacks
from rclpy.exceptions import ParameterException
from rclpy.executors import SingleThreadedExecutor
from rclpy.impl.implementation_singleton import rclpy_implementation
from rclpy.node import Node
from rclpy.qos import QoSProfile
from rclpy.signals import SignalHandlerOptions
from rclpy.subscription import Subscription

from metactl_ros.config import shown
from metactl_ros.errors import ConfigError, legible, MetactlError
from metactl_ros.options import defaults_of, Parameter
from metactl_ros.runtime.deadlines import become_realtime

STEADY = Clock(clock_type=ClockType.STEADY_TIME)
"""For timers and throttled logs: on any other clock they stop when the wall clock is set back
(rclpy#1490)."""
ONCE_PER_SECOND = {'throttle_duration_sec': 1.0, 'throttle_time_source_type': STEADY}
POLL_S = 0.05
"""How soon a signal is noticed."""
LAST_CALLBACK_S = 0.1, 1.0
"""How long a callback that runs when the end comes is waited for: by the arm, by the process."""


class Spinner(threading.Thread):
    """Spins an executor until stopped, or until it cannot wait any more.

    What a callback raises is logged and does not end it: no message may stop an arm.
    """

    def __init__(self, executor: Any, log_error: Callable[[str], None]) -> None:
        super().__init__(name='executor', daemon=True)
        self._executor, self._log_error = executor, log_error
        self._must_stop = False
        self.error: Exception | None = None
        """Why it ended, if it was not asked to."""

    def run(self) -> None:
        """Spin."""
        try:
            while not self._must_stop:
                callback, _, _ = self._executor.wait_for_ready_callbacks()
                callback()
                error = callback.exception()
                if error is not None:
                    self._log_error(
                        f'a callback failed: {"".join(traceback.format_exception(error))}'
                    )
        except Exception as error:
            self.error = error

    def stop(self, timeout_s: float) -> None:
        """Ask for the end and wait for it, but not for ever."""
        if self.is_alive():
            self._executor.create_task(self._end)  # wakes it
            self.join(timeout_s)

    def _end(self) -> None:
        self._must_stop = True


def require_secure_or_local(environment: Mapping[str, str] = os.environ) -> None:
    """Refuse to start unsecured where security was asked for.

    With any strategy but Enforce, a node that cannot be secured comes up in the open all the same,
    and ROS takes every value of ROS_SECURITY_ENABLE but `true` for no.

    Raises:
        ConfigError: Unless security is off, or on and enforced.
    """
    wanted = environment.get('ROS_SECURITY_ENABLE', '')
    if wanted.lower() in ('', '0', 'false'):
        return
    strategy = environment.get('ROS_SECURITY_STRATEGY', '')
    if (wanted, strategy) != ('true', 'Enforce'):
        raise ConfigError(
            'security: expected ROS_SECURITY_ENABLE=true with ROS_SECURITY_STRATEGY=Enforce, '
            f'found {wanted!r} with {strategy!r}, which may run without any; set both, or unset '
            'them and keep to this machine with loopback_environment.'
        )


def run_node(make: Callable[[], Any], arguments: Sequence[str] | None) -> int:
    """Make a node, start it, spin until asked to end, and return its exit code.

    A node has `start() -> bool`, `stop_control()`, `exit_code`, which ends the run if it is not
    zero, and `log_error(text)`, which is given what its callbacks raise.
    """
    must_end = False

    def end(_signal: int, _frame: FrameType | None) -> None:
        nonlocal must_end
        must_end = True

    for name in (signal.SIGTERM, signal.SIGINT):
        signal.signal(name, end)
    sys.setswitchinterval(0.0001)  # threads give way within 0.1 ms instead of 5
    try:
        require_secure_or_local()
        rclpy.init(args=arguments, signal_handler_options=SignalHandlerOptions.NO)
    except Exception as error:  # of the security check, or of rclpy: arguments it cannot read
        sys.stderr.write(f'error: {error}\n')
        return 2
    node, executor = None, SingleThreadedExecutor()
    spinner: Spinner | None = None
    try:
        node = make()
        answer_always(node)
        executor.add_node(node)
        if node.start():
            spinner = Spinner(executor, node.log_error)
            spinner.start()
            while not must_end and not node.exit_code and spinner.is_alive():
                spinner.join(POLL_S)
    except MetactlError as error:
        sys.stderr.write(f'error: {error}\n')
        return 2
    finally:
        soon_s, late_s = LAST_CALLBACK_S
        if spinner is not None:
            spinner.stop(soon_s)
        if node is not None:
            node.stop_control()
            if spinner is not None:
                spinner.stop(late_s)
            code = node.exit_code
            node.destroy_node()
        executor.shutdown()
        failure = None if spinner is None else spinner.error
        node = executor = spinner = None
        # Nodes are cycles of references, and frozen. Left to the end of the process they take the
        # middleware down in an order that at times corrupts its memory.
        gc.unfreeze()
        gc.collect()
        rclpy.try_shutdown()
    if failure is not None:
        raise failure
    return int(code)


MAX_PARAMETERS = 200
"""Of a request; a node of this package has some twenty."""
MAX_LABEL = 100
"""Characters of the name of a transition."""
MAX_REASON = 500
"""Characters of a reason."""
MAX_LOGGED = 10
"""Refusals put into the log within a second, so that asking nonsense does not keep a node busy."""
Callback = Callable[[Any, Any], Any]


def answer_always(node: Any) -> None:
    """Let each service that a node of rclpy has now answer what its callback raises on."""
    log = _RefusalLog(node.get_logger().warning)
    services = list(node.services)
    states = [service.callback for service in services if service.srv_type is GetState]
    for service in services:
        service.callback = _RefusingCallback(service, node.has_parameter, states, log)


class _RefusalLog:
    """Logs refusals, at most so many within a second."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._second, self._count = 0, 0

    def __call__(self, text: str) -> None:
        second = int(time.monotonic())
        self._count = self._count + 1 if second == self._second else 1
        self._second = second
        if self._count < MAX_LOGGED:
            self._say(text)
        elif self._count == MAX_LOGGED:
            self._say(f'{text} Others that come within this second are not logged.')


class _RefusingCallback:
    """The callback of a service, which answers with a refusal where that would raise."""

    def __init__(
        self,
        service: Any,
        has_parameter: Callable[[str], bool],
        states: Sequence[Callback],
        log: _RefusalLog,
    ) -> None:
        self._callback, self._kind = service.callback, service.srv_type
        self._name = service.srv_name.rpartition('/')[2]
        self._has_parameter, self._states, self._log = has_parameter, states, log

    def __call__(self, request: Any, response: Any) -> Any:
        if self._kind is SetParameters:
            response.results = self._set_each(request.parameters)
            return response
        try:
            return self._usual(request, response)
        except Exception as error:
            reason = _reason(error)
            if self._kind is ChangeState:
                asked = request.transition.label or request.transition.id
                (state_of,) = self._states
                state = state_of(GetState.Request(), GetState.Response()).current_state.label
                reason = f'the transition {shown(asked)} is not possible from {state} ({reason})'
            self._log(f'{self._name}: refused: {reason}')
            return _refusal(type(response)(), reason)

    def _set_each(self, parameters: Sequence[Any]) -> list[Any]:
        """Set each parameter, whether or not the others can be set; return the results."""
        if len(parameters) <= MAX_PARAMETERS:
            return [self._set(parameter) for parameter in parameters]
        reason = f'expected at most {MAX_PARAMETERS} parameters, found {len(parameters)}'
        self._log(f'{self._name}: refused: {reason}')
        return [SetParametersResult(successful=False, reason=reason)]

    def _set(self, parameter: Any) -> Any:
        request = SetParameters.Request(parameters=[parameter])
        try:
            (result,) = self._usual(request, SetParameters.Response()).results
            if result.successful:
                return result
            reason = result.reason[:MAX_REASON]
        except Exception as error:
            reason = _reason(error)
        self._log(f'{self._name}: {shown(parameter.name)} refused: {reason}')
        return SetParametersResult(successful=False, reason=reason)

    def _usual(self, request: Any, response: Any) -> Any:
        """Pass a request on; raise if it is too much to be read, or names nothing.

        rclpy takes a parameter without a name for a declared one, names others wrongly, and
        writes the whole label of a transition that is not there to the log.
        """
        if len(getattr(getattr(request, 'transition', None), 'label', '')) > MAX_LABEL:
            raise ValueError(f'expected a label of at most {MAX_LABEL} characters')
        for field in ('parameters', 'names', 'prefixes'):
            count = len(getattr(request, field, ()))
            if count > MAX_PARAMETERS:
                raise ValueError(f'expected at most {MAX_PARAMETERS} {field}, found {count}')
        names = [parameter.name for parameter in getattr(request, 'parameters', ())]
        if unknown := [name for name in names if not self._has_parameter(name)]:
            raise ValueError(f'{shown(unknown)} is no parameter of this node')
        return self._callback(request, response)


def _reason(error: Exception) -> str:
    return legible(f'{type(error).__name__}: {error}')[:MAX_REASON]


def _refusal(response: Any, reason: str) -> Any:
    """Return a response that refuses, with the reason where it has room for one."""
    if hasattr(response, 'message'):
        response.success, response.message = False, reason
    elif hasattr(getattr(response, 'result', None), 'reason'):
        response.result.successful, response.result.reason = False, reason
    return response


class NotInExecutor(CallbackGroup):
    """Keeps executors from a subscription, but not from its events."""

    def can_execute(self, entity: Any) -> bool:
        """Return whether an executor may care for an entity."""
        return not isinstance(entity, Subscription)

    def beginning_execution(self, entity: Any) -> bool:
        """Permit what may be executed at all."""
        return self.can_execute(entity)

    def ending_execution(self, entity: Any) -> None:
        """Nothing is kept of what runs."""


NO_EVENTS = SubscriptionEventCallbacks(use_default_callbacks=False)


def subscribe(
    node: Node,
    kind: Any,
    topic: str,
    quality: QoSProfile,
    events: SubscriptionEventCallbacks = NO_EVENTS,
    *,
    raw: bool = False,
) -> Any:
    """Return a subscription from which messages are to be taken, raw as bytes."""
    own = {'callback_group': NotInExecutor(), 'event_callbacks': events, 'raw': raw}
    return node.create_subscription(kind, topic, _never, quality, **own)


def take(subscription: Any) -> tuple[Any, dict[str, int]] | None:
    """Return the oldest message that waits and what is known of it, None if there is none."""
    taken: tuple[Any, dict[str, int]] | None = subscription.handle.take_message(
        subscription.msg_type, subscription.raw
    )
    return taken


def declare_parameters(node: Any, specs: Mapping[str, Parameter], file: str) -> None:
    """Declare every parameter of a node, with description, range and the default of its file.

    Raises:
        ConfigError: If a value does not fit, or a name is nearly that of a parameter.
    """
    defaults = defaults_of(file)
    for name, (description, bounds, is_fixed, default) in specs.items():
        about = ParameterDescriptor(description=description, read_only=is_fixed)
        if bounds is not None and isinstance(bounds[0], float):
            limits = FloatingPointRange(from_value=bounds[0], to_value=bounds[1])
            about.floating_point_range = [limits]
        elif bounds is not None:
            about.integer_range = [IntegerRange(from_value=bounds[0], to_value=bounds[1])]
        try:
            node.declare_parameter(name, defaults[name] if default is None else default, about)
        except ParameterException as error:
            raise ConfigError(f'parameter {name}: {error}') from None
    for name in set(node._parameter_overrides) - set(specs):
        near = difflib.get_close_matches(name, specs, n=1, cutoff=0.8)
        if near:
            raise ConfigError(f'parameter {name}: unknown; did you mean {near[0]!r}?')


def _never(_: Any) -> None:
    raise AssertionError('an executor took a message from a subscription that is not its own')


POLL_NS = 10_000_000
"""How soon a request to stop is noticed."""
PAUSE_S = 0.0005
"""After a wait without a message."""


class Worker(threading.Thread):
    """A thread that works until stopped; what it raises ends it, and is kept."""

    def __init__(self, name: str) -> None:
        super().__init__(name=name, daemon=True)
        self._must_stop = threading.Event()
        self.error: str | None = None
        """Why the thread ended, if it was not asked to."""

    def stop(self) -> None:
        """Ask for the end and wait for it."""
        self._must_stop.set()
        if self.is_alive():
            self.join()

    def run(self) -> None:
        """Work until stopped."""
        try:
            self._work()
        except Exception:
            self.error = traceback.format_exc()

    def _work(self) -> None:
        raise NotImplementedError


class StateReceiver(Worker):
    """Hands every message, and what is known of it, to a function until stopped."""

    def __init__(
        self,
        subscription: Any,
        context: Any,
        receive: Callable[[Any, dict[str, int]], None],
        priority: int,
    ) -> None:
        super().__init__('receiver')
        self._subscription = subscription
        self._wait_set = rclpy_implementation.WaitSet(1, 0, 0, 0, 0, 0, context.handle)
        self._receive, self._priority = receive, priority
        while take(subscription) is not None:
            pass  # it came before it was wanted, at an unknown time

    def _work(self) -> None:
        become_realtime(self._priority)
        while not self._must_stop.is_set():
            self._wait()
            taken = take(self._subscription)
            if taken is None:
                # The time is over, or a message is announced and not yet delivered: then who
                # delivers it may need this core.
                time.sleep(PAUSE_S)
            while taken is not None and not self._must_stop.is_set():
                self._receive(*taken)
                taken = take(self._subscription)

    def _wait(self) -> None:
        """Wait for a message, but not for ever."""
        self._wait_set.clear_entities()
        self._wait_set.add_subscription(self._subscription.handle)
        self._wait_set.wait(POLL_NS)
