# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""Subscriptions whose messages are fetched, not brought by an executor; and a thread that does.

They report no events either unless asked to. An executor that waits for an event of a subscription
is woken by its messages, too, again and again until they are taken, and rclpy has it wait for
two events of every subscription.

Before each wait rclpy's executor gathers everything a node has, some twenty services among it, in
Python. Python runs one thread at a time, so what is left of that when a tick begins delays the
tick. The wait set of a `StateReceiver` has one subscription, is kept, and needs far less; and no
service, parameter or report can hold up a state. `rclpy.wait_for_message` waits in the same way.

rclpy has no public call to take a message, to wait for one subscription alone, nor to list the
parameters that were given to a node: all use of its inner names is here.
"""

from collections.abc import Callable
import threading
import time
import traceback
from typing import Any

from rclpy.callback_groups import CallbackGroup
from rclpy.event_handler import SubscriptionEventCallbacks
from rclpy.impl.implementation_singleton import rclpy_implementation
from rclpy.node import Node
from rclpy.qos import QoSProfile
from rclpy.subscription import Subscription

from metactl_ros.runtime.deadlines import become_realtime


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
    return node.create_subscription(
        kind,
        topic,
        _never,
        quality,
        callback_group=NotInExecutor(),
        event_callbacks=events,
        raw=raw,
    )


def take(subscription: Any) -> tuple[Any, dict[str, int]] | None:
    """Return the oldest message that waits and what is known of it, None if there is none."""
    taken: tuple[Any, dict[str, int]] | None = subscription.handle.take_message(
        subscription.msg_type, subscription.raw
    )
    return taken


def parameter_overrides(node: Node) -> set[str]:
    """Return the names of the parameters that a node was started with, declared or not."""
    return set(node._parameter_overrides)


def _never(_: Any) -> None:
    raise AssertionError('an executor took a message from a subscription that is not its own')


POLL_NS = 10_000_000
"""How soon a request to stop is noticed."""
PAUSE_S = 0.0005
"""After a wait without a message."""


class StateReceiver(threading.Thread):
    """Hands every message, and what is known of it, to a function until stopped."""

    def __init__(
        self,
        subscription: Any,
        context: Any,
        receive: Callable[[Any, dict[str, int]], None],
        priority: int,
    ) -> None:
        super().__init__(name='receiver', daemon=True)
        self._subscription = subscription
        self._wait_set = rclpy_implementation.WaitSet(1, 0, 0, 0, 0, 0, context.handle)
        self._receive, self._priority = receive, priority
        self._must_stop = threading.Event()
        self.error: str | None = None
        """Why the thread ended, if it was not asked to."""
        while take(subscription) is not None:
            pass  # it came before it was wanted, at an unknown time

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
                self._wait()
                taken = take(self._subscription)
                if taken is None:
                    # The time is over, or a message is announced and not yet delivered: then who
                    # delivers it may need this core.
                    time.sleep(PAUSE_S)
                while taken is not None and not self._must_stop.is_set():
                    self._receive(*taken)
                    taken = take(self._subscription)
        except Exception:
            self.error = traceback.format_exc()

    def _wait(self) -> None:
        """Wait for a message, but not for ever."""
        self._wait_set.clear_entities()
        self._wait_set.add_subscription(self._subscription.handle)
        self._wait_set.wait(POLL_NS)
