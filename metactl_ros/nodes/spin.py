# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""Runs a node until SIGTERM or SIGINT, and lets it say its last word while ROS still works.

rclpy's own signal handlers shut the context down at once, after which nothing can be published; so
they are not installed.
"""

from collections.abc import Callable, Sequence
import gc
import signal
import sys
from types import FrameType
from typing import Any

import rclpy
from rclpy.executors import SingleThreadedExecutor
from rclpy.signals import SignalHandlerOptions

from metactl_ros.errors import MetactlError
from metactl_ros.nodes.deadlines import become_realtime
from metactl_ros.nodes.middleware import require_secure_or_local

POLL_S = 0.05
"""How soon a signal is noticed."""


def run_node(make: Callable[[], Any], arguments: Sequence[str] | None) -> int:
    """Make a node, start it, spin until asked to end, and return its exit code.

    A node has `start() -> bool`, `stop_control()` and `exit_code`.
    """
    must_end = False

    def end(_signal: int, _frame: FrameType | None) -> None:
        nonlocal must_end
        must_end = True

    for name in (signal.SIGTERM, signal.SIGINT):
        signal.signal(name, end)
    sys.setswitchinterval(0.0005)  # threads give way within 0.5 ms instead of 5
    try:
        require_secure_or_local()
        rclpy.init(args=arguments, signal_handler_options=SignalHandlerOptions.NO)
    except Exception as error:  # of the security check, or of rclpy: arguments it cannot read
        sys.stderr.write(f'error: {error}\n')
        return 2
    node, executor = None, SingleThreadedExecutor()
    try:
        node = make()
        executor.add_node(node)
        if node.start():
            # Below the control thread: messages must arrive in time, but never in its way.
            become_realtime(max(node.get_parameter('realtime_priority').value - 1, 0))
            while not must_end and not node.exit_code:
                executor.spin_once(timeout_sec=POLL_S)
    except MetactlError as error:
        sys.stderr.write(f'error: {error}\n')
        return 2
    finally:
        if node is not None:
            node.stop_control()
            code = node.exit_code
            node.destroy_node()
        executor.shutdown()
        node = executor = None
        # Nodes are cycles of references, and frozen. Left to the end of the process they take the
        # middleware down in an order that corrupts its memory, about once in fifty times.
        gc.unfreeze()
        gc.collect()
        rclpy.try_shutdown()
    return int(code)
