# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""Runs a node until SIGTERM or SIGINT, and lets it say its last word while ROS still works.

rclpy's own signal handlers shut the context down at once, after which nothing can be published; so
they are not installed. The executor has a thread of its own and wakes only if there is something
to do: before every wait it gathers all that a node has, in Python, and Python runs one thread at a
time, so waking to look for a signal would get in the way of the control thread.
"""

from collections.abc import Callable, Sequence
import gc
import signal
import sys
import threading
from traceback import format_exception
from types import FrameType
from typing import Any

import rclpy
from rclpy.executors import SingleThreadedExecutor
from rclpy.signals import SignalHandlerOptions

from metactl_ros.errors import MetactlError
from metactl_ros.ros.answering import answer_always
from metactl_ros.ros.loopback import require_secure_or_local

POLL_S = 0.05
"""How soon a signal is noticed."""
LAST_CALLBACK_S = 0.1, 1.0
"""How long a callback that runs when the end comes is waited for: by the arm, by the process."""


class Spinner(threading.Thread):
    """Spins an executor until stopped, or until it cannot wait any more.

    What a callback raises is told and does not end it: nobody may stop an arm by sending nonsense.
    """

    def __init__(self, executor: Any, say_error: Callable[[str], None]) -> None:
        super().__init__(name='executor', daemon=True)
        self._executor, self._say_error = executor, say_error
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
                    self._say_error(f'a callback failed: {"".join(format_exception(error))}')
        except Exception as error:
            self.error = error

    def stop(self, timeout_s: float) -> None:
        """Ask for the end and wait for it, but not for ever."""
        if self.is_alive():
            self._executor.create_task(self._end)  # wakes it
            self.join(timeout_s)

    def _end(self) -> None:
        self._must_stop = True


def run_node(make: Callable[[], Any], arguments: Sequence[str] | None) -> int:
    """Make a node, start it, spin until asked to end, and return its exit code.

    A node has `start() -> bool`, `stop_control()`, `exit_code`, which ends the run if it is not
    zero, and `say_error(text)`, which hears what its callbacks raise.
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
            spinner = Spinner(executor, node.say_error)
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
