# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""The thread that receives joint states, beside rclpy's executor and out of the control's way.

Before each wait rclpy's executor gathers everything a node has, some twenty services among it, in
Python. Python runs one thread at a time, so what is left of that when a tick begins delays the
tick. A wait set of one subscription, kept, needs a fifth of the time; and no service, parameter or
report can hold up a state. `rclpy.wait_for_message` waits in the same way.
"""

from collections.abc import Callable
import threading
import traceback
from typing import Any

from rclpy.callback_groups import CallbackGroup
from rclpy.impl.implementation_singleton import rclpy_implementation
from rclpy.node import Node
from rclpy.qos import QoSProfile
from rclpy.subscription import Subscription

from metactl_ros.nodes.deadlines import become_realtime

POLL_NS = 10_000_000
"""How soon a request to stop is noticed."""


class NotInExecutor(CallbackGroup):
    """Keeps executors from a subscription, but not from its events, such as an unfit QoS."""

    def can_execute(self, entity: Any) -> bool:
        """Return whether an executor may care for an entity."""
        return not isinstance(entity, Subscription)

    def beginning_execution(self, entity: Any) -> bool:
        """Permit what may be executed at all."""
        return self.can_execute(entity)

    def ending_execution(self, entity: Any) -> None:
        """Nothing is kept of what runs."""


def subscribe(node: Node, kind: Any, topic: str, quality: QoSProfile) -> Any:
    """Return a subscription for a StateReceiver, which no executor takes messages from."""
    group = NotInExecutor()
    return node.create_subscription(kind, topic, _left_to_receiver, quality, callback_group=group)


def _left_to_receiver(_: Any) -> None:
    raise AssertionError('an executor took a message from a subscription that is not its own')


class StateReceiver(threading.Thread):
    """Hands every message of a subscription to a function until stopped."""

    def __init__(
        self, subscription: Any, context: Any, receive: Callable[[Any], None], priority: int
    ) -> None:
        super().__init__(name='receiver', daemon=True)
        self._handle, self._kind = subscription.handle, subscription.msg_type
        self._wait_set = rclpy_implementation.WaitSet(1, 0, 0, 0, 0, 0, context.handle)
        self._receive, self._priority = receive, priority
        self._must_stop = threading.Event()
        self.error: str | None = None
        """Why the thread ended, if it was not asked to."""
        while self._take() is not None:
            pass  # it came before anybody wanted it, who knows when

    def stop(self) -> None:
        """Ask for the end and wait for it."""
        self._must_stop.set()
        if self.is_alive():
            self.join()

    def run(self) -> None:
        """Receive until stopped."""
        become_realtime(self._priority)
        try:
            while not self._must_stop.is_set():
                message = self._take()
                if message is None:
                    self._wait()
                else:
                    self._receive(message)
        except Exception:
            self.error = traceback.format_exc()

    def _take(self) -> Any:
        """Return the oldest message that waits, None if there is none."""
        taken = self._handle.take_message(self._kind, False)
        return None if taken is None else taken[0]

    def _wait(self) -> None:
        """Wait for a message, but not for ever."""
        self._wait_set.clear_entities()
        self._wait_set.add_subscription(self._handle)
        self._wait_set.wait(POLL_NS)
