# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""Measures how late the machine itself wakes threads, whatever runs on it."""

import os
import threading
import time

import numpy as np

from metactl_ros.runtime.deadlines import become_realtime, Deadlines, sleep_until
from metactl_ros.signals import Array

LATE_MS = 5.0
"""Half a period of the controller."""


class LatencyProbe:
    """Threads on every core that keep deadlines, with the node's priority, and do nothing else.

    What makes them late is the machine, not this package.
    """

    def __init__(self, priority: int, period_ns: int = 10_000_000) -> None:
        self._priority, self._period_ns = priority, period_ns
        self._late: list[tuple[int, int]] = []
        self._must_stop = False
        cores = sorted(os.sched_getaffinity(0))
        self._threads = [
            threading.Thread(target=self._run, args=(core,), daemon=True) for core in cores
        ]

    def __enter__(self) -> 'LatencyProbe':
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._must_stop = True
        for thread in self._threads:
            thread.join()
        rows = np.array(self._late)
        self.time_ns = rows[:, 0]
        """When a thread woke, on the clock of the machine, shape (K,)."""
        self.late_ms: Array = rows[:, 1] / 1e6
        """How late that was, shape (K,)."""

    def _run(self, core: int) -> None:
        os.sched_setaffinity(threading.get_native_id(), {core})
        become_realtime(self._priority)
        deadlines = Deadlines(self._period_ns, time.monotonic_ns())
        while not self._must_stop:
            late_ns = deadlines.begin_tick(sleep_until(deadlines.next_ns))
            self._late.append((time.time_ns(), late_ns))
