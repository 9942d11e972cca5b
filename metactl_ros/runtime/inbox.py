# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""Where joint states wait for the control thread."""

from collections import deque
import threading
from typing import NamedTuple

from metactl_ros.signals import ArmState, Array

INBOX_SIZE = 64
"""States kept between two ticks; of a faster burst the oldest are lost."""


class Arrival(NamedTuple):
    """A state that came."""

    state: ArmState
    stamp_ns: int
    """As it was sent, on the clock of the robot."""
    effort_nm: Array | None
    received_ns: int
    """On the steady clock."""


class Inbox:
    """What came since the last tick; callbacks put, the control thread takes."""

    def __init__(self) -> None:
        self._arrivals: deque[Arrival] = deque(maxlen=INBOX_SIZE)
        self._came = threading.Condition()
        self._is_woken = False

    def put(self, arrival: Arrival) -> None:
        """Leave a state for the control thread."""
        with self._came:
            self._arrivals.append(arrival)
            self._came.notify()

    def wake(self) -> None:
        """End a wait without a state: the present one, or else the next."""
        with self._came:
            self._is_woken = True
            self._came.notify()

    def take(self, timeout_s: float = 0.0) -> list[Arrival]:
        """Return all states, oldest first, waiting for one if there is none."""
        with self._came:
            if not self._arrivals and not self._is_woken and timeout_s > 0.0:
                self._came.wait(timeout_s)
            self._is_woken = False
            taken = list(self._arrivals)
            self._arrivals.clear()
        return taken
