# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""Tells a tick that hangs from a machine that stands still.

Both look alike on a clock: the tick began long ago. So only time counts in which the thread could
have gone on. Somebody looks every few milliseconds:

    it sleeps or waits    the time since the last look, of which a look counts for no more than
                          its period: while the whole process stands still nobody looks
    it runs               at most that, and at most four times the processor time it got: a thread
                          that others keep from its core gets none, whatever time passes

A policy that computes without end, and one that waits for something, are both noticed; a thread
that is late because the machine stalls, or has other things to do, is not. Who has a quarter of a
core is noticed as soon as who has all of it, and a quarter of the patience is what a tick may
compute, however long that takes.
"""

from pathlib import Path
import threading
import time

from metactl_ros.signals import NANOSECONDS_PER_SECOND

RUNS = 'R'
"""State of a thread that has a core, or waits for one."""
WEIGHT = 4
"""What processor time counts for, against time that passes."""


class TickWatch:
    """Adds up how long the tick under way could have gone on; look at it regularly."""

    def __init__(self, thread: threading.Thread, period_s: float) -> None:
        assert thread.ident is not None
        self._clock = time.pthread_getcpuclockid(thread.ident)
        self._about = Path(f'/proc/self/task/{thread.native_id}/stat')
        self._period_ns = round(period_s * NANOSECONDS_PER_SECOND)
        self._round = 0
        self._looked_ns = self._used_ns = self._spent_ns = 0

    def look(self, present_round: int) -> int:
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
