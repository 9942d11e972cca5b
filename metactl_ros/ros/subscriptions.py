# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""Subscriptions whose messages are fetched, not brought by an executor.

They report no events either unless told to. An executor that waits for an event of a subscription
is woken by its messages, too, again and again until somebody takes them, and rclpy has it wait for
two events of every subscription.
"""

from typing import Any

from rclpy.callback_groups import CallbackGroup
from rclpy.event_handler import SubscriptionEventCallbacks
from rclpy.node import Node
from rclpy.qos import QoSProfile
from rclpy.subscription import Subscription


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


def _never(_: Any) -> None:
    raise AssertionError('an executor took a message from a subscription that is not its own')
