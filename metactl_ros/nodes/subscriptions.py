# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""Subscriptions whose messages are fetched, not brought by an executor."""

from typing import Any

from rclpy.callback_groups import CallbackGroup
from rclpy.node import Node
from rclpy.qos import QoSProfile
from rclpy.subscription import Subscription


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


def subscribe(node: Node, kind: Any, topic: str, quality: QoSProfile, **options: Any) -> Any:
    """Return a subscription from which messages are to be taken."""
    group = NotInExecutor()
    return node.create_subscription(kind, topic, _never, quality, callback_group=group, **options)


def take(subscription: Any) -> tuple[Any, dict[str, int]] | None:
    """Return the oldest message that waits and what is known of it, None if there is none."""
    taken: tuple[Any, dict[str, int]] | None = subscription.handle.take_message(
        subscription.msg_type, subscription.raw
    )
    return taken


def _never(_: Any) -> None:
    raise AssertionError('an executor took a message from a subscription that is not its own')
