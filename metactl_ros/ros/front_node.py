# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""The front of the controller: a lifecycle node with its parameters, services and trajectories.

It passes each request over a link to the process that controls, and answers with what became of
it. rclpy makes Python objects of a request while no other Python thread of the process can run:
one of a million names takes a second, whatever the priority of the control thread. So this node
lives in a process that controls nothing, and ends when the link is closed.

It is forked before ROS is initialised and before any thread of Python: all that was imported is
there already, so that the controller starts as fast as if it were one process.
"""

from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
import functools
import multiprocessing
import os
import signal
import socket
import sys
import time
from typing import Any

from rclpy.lifecycle import LifecycleNode, LifecycleState, TransitionCallbackReturn
from std_msgs.msg import Float64
from std_srvs.srv import SetBool, Trigger
from trajectory_msgs.msg import JointTrajectory

from metactl_ros.bag.topics import FORWARD, STAMPED
from metactl_ros.errors import MetactlError
from metactl_ros.options import CONTROLLER_PARAMETERS, LARGEST_PAYLOAD_KG
from metactl_ros.ros.messages import RELIABLE
from metactl_ros.ros.spin import declare_parameters, ONCE_PER_SECOND, run_node
from metactl_ros.runtime.joint_states import MessageError
from metactl_ros.runtime.process_link import (
    Fields,
    Link,
    LinkClient,
    LinkError,
    Packet,
    RateLimiter,
)
from metactl_ros.runtime.reference_source import unpack
from metactl_ros.settings import require_files

TOPICS = (
    *('joint_states', STAMPED, FORWARD, 'stop_request', '~/bundle', '/diagnostics'),
    *('~/reference', '~/feedback', '~/error', '~/output', '~/gains', '~/shield'),
)
"""What the process that controls receives and publishes; the front knows the remappings."""
LOAD_WITHIN_S, CHANGE_WITHIN_S, ANSWER_WITHIN_S = 120.0, 10.0, 2.0
"""How long the process that controls may take: to configure, to change its state, to answer."""
MAX_TEXT = 8192
"""Characters of an error that are passed on; of a longer one the last."""
POINTS_PER_S, POINTS_AT_ONCE, POINTS_FOR_EACH = 10_000, 4_000, 20
"""Of trajectories that are passed on: a short one 100 times a second, the longest 5 times."""
PAYLOADS_PER_S = 100
Transition = Callable[['ControllerNode', LifecycleState], None]


def reported(transition: Transition) -> Callable[..., TransitionCallbackReturn]:
    """Say why a transition failed: rclpy swallows exceptions silently."""

    @functools.wraps(transition)
    def wrapped(node: 'ControllerNode', state: LifecycleState) -> TransitionCallbackReturn:
        try:
            transition(node, state)
        except MetactlError as error:
            node.log_error(str(error))
            return TransitionCallbackReturn.FAILURE
        except Exception as error:
            node.log_error(f'{transition.__name__}: {error!r}')
            return TransitionCallbackReturn.FAILURE
        return TransitionCallbackReturn.SUCCESS

    return wrapped


class ControllerNode(LifecycleNode):
    """The lifecycle node; see the module's text."""

    def __init__(self, link: Link, **options: Any) -> None:
        super().__init__('controller', **options)
        declare_parameters(self, CONTROLLER_PARAMETERS, 'controller_node.yaml')
        require_files(self._values())
        self._owned = ExitStack()
        self.exit_code = 0
        self._points = RateLimiter(POINTS_AT_ONCE, POINTS_PER_S)
        self._payloads = RateLimiter(PAYLOADS_PER_S, PAYLOADS_PER_S)
        topics = {topic: self.resolve_topic_name(topic) for topic in TOPICS}
        hello = {'name': self.get_name(), 'namespace': self.get_namespace(), 'topics': topics}
        link.send(Packet(hello))
        self._asker = LinkClient(link, on_disconnect=lambda: os.kill(os.getpid(), signal.SIGTERM))
        self._asker.start()

    def log_error(self, text: str) -> None:
        """Put an error into the log and into the diagnostics."""
        self.get_logger().error(text)
        with suppress(LinkError):  # the process that would publish it is gone
            self._ask('note_error', text=text[-MAX_TEXT:])

    def start(self) -> bool:
        """Configure and activate if `autostart` is set; return whether that went well."""
        if not self.get_parameter('autostart').value:
            return True
        good = TransitionCallbackReturn.SUCCESS
        if self.trigger_configure() == good and self.trigger_activate() == good:
            return True
        self.exit_code = 2
        return False

    def stop_control(self) -> None:
        """Nothing: what controls is another process, and ends by itself."""

    @reported
    def on_configure(self, _: LifecycleState) -> None:
        """Have arm, controller and policy loaded, and create all services."""
        self._owned.close()  # what is left of one that failed half-way
        values = self._values()
        uses_sim_time = self.get_parameter('use_sim_time').value
        self._ask('configure', LOAD_WITHIN_S, values=values, uses_sim_time=uses_sim_time)
        self._subscribe(Float64, '~/payload', self._on_payload)
        if values['reference'] == 'trajectory':  # as bytes: it is read only after its size
            self._subscribe(JointTrajectory, '~/joint_trajectory', self._on_trajectory, raw=True)
        for kind, name, fields_of in (
            (SetBool, 'enable', lambda request: {'is_wanted': request.data}),
            (Trigger, 'reset_fault', lambda _: {}),
            (Trigger, 'clear_context', lambda _: {}),
        ):
            answer = functools.partial(self._on_request, name, fields_of)
            made = self.create_service(kind, f'~/{name}', answer)
            self._owned.callback(self.destroy_service, made)
        self.add_on_set_parameters_callback(self._on_set)
        self._owned.callback(self.remove_on_set_parameters_callback, self._on_set)

    @reported
    def on_activate(self, state: LifecycleState) -> None:
        """Have the control thread started."""
        self._ask('activate', CHANGE_WITHIN_S)
        super().on_activate(state)

    @reported
    def on_deactivate(self, state: LifecycleState) -> None:
        """Have the control thread stopped: the torque fades, the last command is zero."""
        self._ask('deactivate', CHANGE_WITHIN_S, lifecycle='inactive')
        super().on_deactivate(state)

    @reported
    def on_cleanup(self, _: LifecycleState) -> None:
        """Take back what configure created, so that it may be done again, and differently."""
        self._owned.close()
        self._ask('cleanup', CHANGE_WITHIN_S)

    def _subscribe(
        self, kind: Any, topic: str, callback: Callable[..., None], *, raw: bool = False
    ) -> None:
        made = self.create_subscription(kind, topic, callback, RELIABLE, raw=raw)
        self._owned.callback(self.destroy_subscription, made)

    def _values(self) -> dict[str, Any]:
        return {name: self.get_parameter(name).value for name in CONTROLLER_PARAMETERS}

    @reported
    def on_shutdown(self, _: LifecycleState) -> None:
        """Have the control thread stopped."""
        self._ask('deactivate', CHANGE_WITHIN_S, lifecycle='finalized')

    @reported
    def on_error(self, _: LifecycleState) -> None:
        """Have the control thread stopped."""
        self._ask('deactivate', CHANGE_WITHIN_S, lifecycle='unconfigured')

    def _ask(
        self, what: str, timeout_s: float = ANSWER_WITHIN_S, data: bytes = b'', **fields: Any
    ) -> Fields:
        return self._asker.ask(what, timeout_s, data, **fields)

    def _on_payload(self, message: Float64) -> None:
        if not 0.0 <= message.data <= LARGEST_PAYLOAD_KG:
            self._log_throttled(
                f'payload: expected 0 to {LARGEST_PAYLOAD_KG:g} kg, found {message.data}'
            )
        elif not self._payloads.take(1, time.monotonic_ns()):
            text = f'payload: at most {PAYLOADS_PER_S} a second are taken; send fewer.'
            self._log_throttled(text)
        else:
            self._ask('set_payload', payload_kg=message.data)

    def _log_throttled(self, text: str) -> None:
        """Say what is wrong with a message, at most once a second."""
        self.get_logger().error(text, **ONCE_PER_SECOND)

    def _on_trajectory(self, data: bytes) -> None:
        now_ns = self.get_clock().now().nanoseconds
        try:
            # What is refused here costs the process that controls nothing.
            num_points = len(unpack(data).points)
            if not self._points.take(num_points + POINTS_FOR_EACH, time.monotonic_ns()):
                raise MessageError(
                    f'trajectory: at most {POINTS_PER_S} points a second are taken, and each '
                    f'trajectory counts as {POINTS_FOR_EACH} more; send fewer or shorter ones.'
                )
            self._ask('follow', CHANGE_WITHIN_S, data, ros_now_ns=now_ns)
        except (MessageError, LinkError) as error:
            self.get_logger().error(str(error), throttle_duration_sec=0.1)

    def _on_request(
        self, what: str, fields_of: Callable[[Any], Fields], request: Any, response: Any
    ) -> Any:
        try:
            answer = self._ask(what, **fields_of(request))
            response.success, response.message = answer['success'], answer['message']
        except LinkError as error:
            response.success, response.message = False, str(error)
        return response

    def _on_set(self, changed: Sequence[Any]) -> Any:
        from rcl_interfaces.msg import SetParametersResult

        if any(parameter.name == 'use_sim_time' for parameter in changed):
            reason = 'use_sim_time: is read when the node is configured; clean it up first.'
            return SetParametersResult(successful=False, reason=reason)
        try:
            for parameter in changed:  # ranges and read-only ones are rclpy's to refuse
                if parameter.name == 'payload_kg':
                    self._ask('set_payload', payload_kg=float(parameter.value))
        except LinkError as error:
            return SetParametersResult(successful=False, reason=str(error))
        return SetParametersResult(successful=True)


END_WITHIN_S = 1.0
"""How long it may take to end."""


class FrontError(MetactlError, RuntimeError):
    """The front did not come up."""


class FrontProcess:
    """The front, and the link to it."""

    def __init__(self, arguments: Sequence[str] | None) -> None:
        """Start it with the arguments of a node; None: those of this process."""
        here, there = socket.socketpair()

        def run() -> None:
            here.close()  # or it would keep the link of its parent open
            sys.exit(run_node(lambda: ControllerNode(Link(there)), arguments))

        self._process = multiprocessing.get_context('fork').Process(target=run, name='front')
        self._process.start()
        there.close()
        self.link = Link(here)

    def hello(self) -> Fields:
        """Wait for its first words: name and namespace, and what its topics are called.

        Raises:
            FrontError: If it ended instead; it has logged why.
        """
        packet = self.link.receive()
        if packet is None:
            raise FrontError(f'controller: its front ended with code {self.wait()}.')
        return packet.fields

    def wait(self) -> int | None:
        """Return the exit code of a front whose link is closed."""
        self._process.join(END_WITHIN_S)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()
        return self._process.exitcode

    def end(self) -> None:
        """Close the link, and wait until the front has ended."""
        self.link.close()
        self.wait()
