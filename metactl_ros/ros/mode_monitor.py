# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""Follows the modes of a controller from outside, whoever is killed, and may reset it."""

import time
from typing import Any

from rclpy.context import Context
from rclpy.executors import SingleThreadedExecutor
from rclpy.node import Node
from sensor_msgs.msg import JointState
from std_srvs.srv import Trigger

from metactl_ros.bag.topics import SHIELD_NAMES
from metactl_ros.control.modes import Mode
from metactl_ros.ros.quality_of_service import SENSOR
from metactl_ros.runtime.deferred_signals import deferred_signals

NOW = SHIELD_NAMES.index('now_s')


class Onlooker:
    """A node of its own context; it hears nothing unless `look` is called."""

    def __init__(self, controller: str = 'controller') -> None:
        self._context = Context()
        # Ctrl-C stays with Python: whoever runs this has processes to end.
        self._context.init(domain_id=None)
        self._node = Node('onlooker', context=self._context, start_parameter_services=False)
        self._executor = SingleThreadedExecutor(context=self._context)
        self._executor.add_node(self._node)
        self._node.create_subscription(JointState, f'{controller}/shield', self._on_tick, SENSOR)
        self._reset = self._node.create_client(Trigger, f'{controller}/reset_fault')
        self.began_s: float | None = None
        """When the controller began to tick, on the steady clock; it may be found later."""
        self.mode: Mode | None = None
        self.mode_since_s = 0.0

    def look(self, timeout_s: float) -> None:
        """Take what comes within a while."""
        with deferred_signals():
            self._executor.spin_once(timeout_sec=timeout_s)

    def reset_fault(self) -> None:
        """Ask the controller to leave FAULT; whether it does is seen in its mode."""
        self._reset.call_async(Trigger.Request())

    def close(self) -> None:
        """Leave the graph."""
        self._executor.shutdown()
        self._node.destroy_node()
        self._context.try_shutdown()

    def _on_tick(self, message: Any) -> None:
        now_s, mode = time.monotonic(), Mode(int(message.position[0]))
        if self.began_s is None:
            self.began_s = now_s - message.position[NOW]
        if mode != self.mode:
            self.mode, self.mode_since_s = mode, now_s
