# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""Follows a running controller from outside: its mode, and one line of status on a terminal."""

from collections.abc import Callable
import math
import sys
import time

from rclpy.context import Context
from rclpy.executors import SingleThreadedExecutor
from rclpy.node import Node
from sensor_msgs.msg import JointState
from std_srvs.srv import Trigger

from metactl_ros.bag.topics import SHIELD_NAMES
from metactl_ros.control.modes import Mode
from metactl_ros.processes import deferred_signals
from metactl_ros.ros.messages import SENSOR

MODE, NOW, WAS_MOVED = map(SHIELD_NAMES.index, ('mode', 'now_s', 'was_moved'))
SHOW_EVERY_S = 0.5


class ModeMonitor:
    """Follows the mode of a controller, and may reset it; messages are taken by `spin_once`."""

    def __init__(self, controller: str = 'controller', name: str = 'mode_monitor') -> None:
        self._context = Context()
        # Ctrl-C stays with Python: its caller has processes to end.
        self._context.init(domain_id=None)
        self._node = Node(name, context=self._context, start_parameter_services=False)
        self._executor = SingleThreadedExecutor(context=self._context)
        self._executor.add_node(self._node)
        self._node.create_subscription(JointState, f'{controller}/shield', self._on_tick, SENSOR)
        self._reset = self._node.create_client(Trigger, f'{controller}/reset_fault')
        self.began_s: float | None = None
        """When the controller began to tick, on the steady clock; it may be found later."""
        self.mode: Mode | None = None
        self.mode_since_s = 0.0

    def spin_once(self, timeout_s: float) -> None:
        """Wait for a message, and take it."""
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

    def _on_tick(self, message: JointState) -> None:
        now_s, mode = time.monotonic(), Mode(int(message.position[MODE]))
        if self.began_s is None:
            self.began_s = now_s - message.position[NOW]
        if mode != self.mode:
            self.mode, self.mode_since_s = mode, now_s


class StatusLine(ModeMonitor):
    """Follows ~/shield, ~/error and ~/output of a controller."""

    def __init__(self, label: str, controller: str = 'controller') -> None:
        super().__init__(controller, 'status_line')
        self._label = label
        self._error = self._effort = ''
        self._num_ticks = self._num_moved = 0
        self._shown_at = 0.0
        self.time_s = 0.0
        """How long the controller has been running, s; zero before it does."""
        for topic, callback in (('error', self._on_error), ('output', self._on_output)):
            self._node.create_subscription(JointState, f'{controller}/{topic}', callback, SENSOR)

    def _on_tick(self, message: JointState) -> None:
        super()._on_tick(message)
        self.time_s = message.position[NOW]
        self._num_ticks += 1
        self._num_moved += bool(message.position[WAS_MOVED])

    def _on_error(self, message: JointState) -> None:
        self._error = f'{1e3 * math.hypot(*message.position):6.1f} mrad'

    def _on_output(self, message: JointState) -> None:
        self._effort = ' '.join(f'{value:6.1f}' for value in message.effort)

    def show(self) -> None:
        """Write the line over the last one: on a terminal often, elsewhere every five seconds."""
        is_terminal = sys.stderr.isatty()
        now = time.monotonic()
        if now - self._shown_at < (SHOW_EVERY_S if is_terminal else 10.0 * SHOW_EVERY_S):
            return
        self._shown_at = now
        text = f'{self._label}: waiting'
        if self.mode is not None:
            moved = 100.0 * self._num_moved / self._num_ticks
            text = (
                f'{self._label}: {self.time_s:5.1f} s  {self.mode.name:8}  '
                f'error {self._error}  effort {self._effort} N m  shield moved {moved:4.1f} %'
            )
        sys.stderr.write(f'\r{text}\x1b[K' if is_terminal else f'{text}\n')
        sys.stderr.flush()


def watch(label: str, is_over: Callable[[StatusLine], bool]) -> StatusLine:
    """Show the line until it is over; return it."""
    with deferred_signals():
        line = StatusLine(label)
    try:
        while not is_over(line):
            line.spin_once(0.1)
            line.show()
    finally:
        line.close()
        if sys.stderr.isatty():
            sys.stderr.write('\n')
    return line
