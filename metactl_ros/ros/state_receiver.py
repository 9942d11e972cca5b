# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""The thread that receives joint states, beside rclpy's executor and out of the control's way.

Before each wait rclpy's executor gathers everything a node has, some twenty services among it, in
Python. Python runs one thread at a time, so what is left of that when a tick begins delays the
tick. A wait set of one subscription, kept, needs far less; and no service, parameter or report can
hold up a state. `rclpy.wait_for_message` waits in the same way.
"""

from collections.abc import Callable
import threading
import time
import traceback
from typing import Any

from rclpy.impl.implementation_singleton import rclpy_implementation

from metactl_ros.ros.subscriptions import take
from metactl_ros.runtime.deadlines import become_realtime

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
