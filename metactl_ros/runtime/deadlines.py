# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""When ticks are due, how well that is kept, and whether one hangs.

A thread that sleeps for a period drifts; one that sleeps until a deadline does not. The deadlines
also creep, by at most 2 % of a period each, until they come shortly after the joint states do:
two free-running 100 Hz clocks would meet at any phase, and a state could be 10 ms old when used.

A tick that hangs and a machine that stands still look alike on a clock: the tick began long ago.
So a `TickWatch` counts only time in which the thread could have gone on, every few milliseconds:

    it sleeps or waits    the time since the last look, of which a look counts for no more than
                          its period: while the whole process stands still nothing looks
    it runs               at most that, and at most four times the processor time it got: a thread
                          that others keep from its core gets none, whatever time passes

A policy that computes without end, and one that waits for something, are both noticed; a thread
that is late because the machine stalls, or has other things to do, is not. A thread with a quarter
of a core is noticed as soon as one with all of it, and a quarter of the patience is what a tick
may compute, however long that takes.
"""

from collections.abc import Iterator
from contextlib import contextmanager, ExitStack, suppress
from dataclasses import dataclass
from itertools import count
import os
from pathlib import Path
import threading
import time

import numpy as np

from metactl_ros.metrics import percentiles
from metactl_ros.signals import NANOSECONDS_PER_SECOND

CREEP = 0.02
"""Largest shift of a deadline, as a share of the period."""
TICKS_KEPT = 8192
"""How many ticks latenesses and durations are kept of, for quantiles."""
BINS_MS = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
"""Upper ends of the histogram of lateness, ms; one more bin holds the rest."""

CORE_LATENCY = Path('/dev/cpu_dma_latency')
"""A process that holds it open decides, by what it wrote, how long a core may take to wake."""
HANG_AFTER_NS = 30_000_000
"""How long a tick may go on, counted by a `TickWatch`, before another thread sends in its place:
that has the arm at most 50 ms after the tick began."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Timing:
    """When to tick."""

    period_ns: int
    ticks_on_states: bool
    """Simulated time: one tick per state. Otherwise deadlines of the steady clock."""
    state_timeout_ns: int
    state_lead_ns: int
    """How long before a tick its state should come."""
    fade_ns: int
    """How long the last commands take to reach zero."""
    priority: int
    hang_after_ns: int = HANG_AFTER_NS


class Deadlines:
    """When the next tick is due, and how late each came."""

    def __init__(self, period_ns: int, first_ns: int) -> None:
        self.period_ns = period_ns
        self.next_ns = first_ns
        self.num_ticks = 0
        self.num_late = 0
        """Ticks that began more than half a period late."""
        self.num_missed = 0
        """Deadlines that passed without a tick."""
        self._first_ns = self._last_ns = first_ns
        self.histogram = np.zeros(len(BINS_MS) + 1, dtype=np.int64)
        self._late_ns = np.zeros(TICKS_KEPT, dtype=np.int64)

    def begin_tick(self, now_ns: int) -> int:
        """Note that the tick due now begins; return its lateness, ns.

        What was missed is not made up for: a burst of ticks would not help.
        """
        if not self.num_ticks:
            self._first_ns = now_ns
        self._last_ns = now_ns
        late_ns = max(now_ns - self.next_ns, 0)
        self._late_ns[self.num_ticks % TICKS_KEPT] = late_ns
        self.histogram[np.searchsorted(BINS_MS, late_ns / 1e6)] += 1
        self.num_ticks += 1
        self.num_late += late_ns > self.period_ns // 2
        missed = late_ns // self.period_ns
        self.num_missed += missed
        self.next_ns += (1 + missed) * self.period_ns
        return late_ns

    def align(self, wanted_ns: int) -> None:
        """Let the next deadlines creep towards the phase of a wanted moment."""
        half = self.period_ns // 2
        error_ns = (wanted_ns - self.next_ns + half) % self.period_ns - half
        most = int(CREEP * self.period_ns)
        self.next_ns += min(max(error_ns, -most), most)

    def mean_period_ms(self) -> float:
        """Return how far apart the ticks were on average, ms; zero before there are two."""
        return (self._last_ns - self._first_ns) / max(self.num_ticks - 1, 1) / 1e6

    def lateness_ms(self) -> dict[str, float]:
        """Return p50, p99 and the largest of the lateness kept, ms."""
        kept = self._late_ns[: self.num_ticks] / 1e6
        return percentiles(kept) or {'p50': 0.0, 'p99': 0.0, 'max': 0.0}


def sleep_until(moment_ns: int) -> int:
    """Sleep until a moment of the steady clock; return the time, ns."""
    # CPython sleeps on the absolute steady clock itself, so this is not re-started by signals.
    left_ns = moment_ns - time.monotonic_ns()
    if left_ns > 0:
        time.sleep(left_ns / NANOSECONDS_PER_SECOND)
    return time.monotonic_ns()


def become_realtime(priority: int) -> bool:
    """Put the calling thread under SCHED_FIFO; return whether that was wanted and permitted."""
    if not priority:
        return False
    try:
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(priority))
    except OSError:
        return False
    return True


@contextmanager
def awake_cores(*, is_wanted: bool) -> Iterator[None]:
    """Let no core sleep within the block, if that is wanted and permitted.

    A core that sleeps between two ticks takes time to wake, on a virtual machine many
    milliseconds at times; the price is the power of cores that never rest.
    """
    with ExitStack() as held:
        if is_wanted:
            with suppress(OSError):
                device = held.enter_context(CORE_LATENCY.open('r+b', buffering=0))
                device.write(bytes(4))  # zero microseconds
        yield


RUNS = 'R'
"""State of a thread that has a core, or waits for one."""
WEIGHT = 4
"""What processor time counts for, against time that passes."""


class Rounds:
    """Which round of ticks is under way: the control thread writes it, its watch reads it."""

    def __init__(self) -> None:
        self._numbers = count(1)
        self.number = 0
        """Zero while none is due."""
        self.is_at_work = False
        """Whether it is the thread's turn, and not that of the clock or of the robot."""

    def begin(self, *, is_at_work: bool = False) -> None:
        """Begin the next round."""
        self.number, self.is_at_work = next(self._numbers), is_at_work

    def end(self) -> None:
        """End the round: none is due until the next begins."""
        self.number, self.is_at_work = 0, False


class TickWatch:
    """Adds up how long the tick under way could have gone on; look at it regularly."""

    def __init__(self, thread: threading.Thread, period_s: float) -> None:
        assert thread.ident is not None
        self._clock = time.pthread_getcpuclockid(thread.ident)
        self._about = Path(f'/proc/self/task/{thread.native_id}/stat')
        self._period_ns = round(period_s * NANOSECONDS_PER_SECOND)
        self._round = 0
        self._looked_ns = self._used_ns = self._spent_ns = 0

    def poll(self, present_round: int) -> int:
        """Return for how long the tick of a round could have gone on since it was first seen, ns.

        Zero of another round than at the last look, and of round zero, in which there is none.
        """
        if not present_round:
            self._round = 0
            return 0
        try:
            now_ns, used_ns = time.monotonic_ns(), time.clock_gettime_ns(self._clock)
            is_same = present_round == self._round
            runs = is_same and self._about.read_text().rpartition(')')[2].split()[0] == RUNS
        except OSError:  # it has ended meanwhile
            return 0
        if is_same:
            passed_ns = min(now_ns - self._looked_ns, self._period_ns)
            if runs:
                passed_ns = min(WEIGHT * (used_ns - self._used_ns), passed_ns)
            self._spent_ns += passed_ns
        else:
            self._round, self._spent_ns = present_round, 0
        self._looked_ns, self._used_ns = now_ns, used_ns
        return self._spent_ns
