# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""The thread that ticks: on deadlines of the steady clock, or with each state in simulated time.

It knows no ROS: states come from an `Inbox`; what it decides goes to `send`, and how it came about
to `tell`. Before `send` stands one more check, which trusts nobody: an effort that is not finite,
too large or too far from the last one is replaced by a step towards zero, and the controller
faults. However the thread ends, it ends with the fading torque of a blind arm and a last zero. If
it hangs, as within a policy that never answers, another thread takes the torque down in its place.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
import gc
from itertools import count
import threading
import time
import traceback
from typing import NamedTuple

import numpy as np

from metactl_ros.arm import JointLimits
from metactl_ros.nodes.deadlines import awake_cores, become_realtime, Deadlines, sleep_until
from metactl_ros.nodes.driver import Driver, Tick
from metactl_ros.signals import ArmState, Array, seconds

INBOX_SIZE = 64
"""States kept between two ticks; of a faster burst the oldest are lost."""
REHEARSAL_NS = 800_000
"""How long before a tick its policy is asked for nothing: 10 ms later its caches are cold."""
GRACE_S = 0.003
"""How long a late tick waits for a state if there is none: who overslept cannot say that others
were silent. A machine that stood still brings state and tick at the same moment."""
LOOK_S, HANGS_AFTER = 0.05, 20
"""How often somebody looks whether ticks go on, and after how many looks in vain they do not: a
second in which this process runs, whatever time passes while it is stopped."""
SLACK = 1e-9
"""N m by which a limit may be missed through rounding."""


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


class Command(NamedTuple):
    """What goes out after a tick."""

    effort_nm: Array
    """Checked, shape (n,)."""
    tick: Tick | None
    """None on the way out after an error."""
    state_stamp_ns: int
    """Of the state it answers, on the clock of the robot."""
    late_ns: int


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


class ControlThread(threading.Thread):
    """Runs a driver until stopped."""

    def __init__(
        self,
        driver: Driver,
        inbox: Inbox,
        timing: Timing,
        limits: JointLimits,
        send: Callable[[Command], None],
        tell: Callable[[Command], None] = lambda _: None,
    ) -> None:
        super().__init__(name='control', daemon=True)
        self._driver, self._inbox, self._timing = driver, inbox, timing
        self._send, self._tell = send, tell
        self._most_nm = np.array(limits.effort_nm) + SLACK
        self._step_nm = np.array(limits.effort_rate_nmps) * seconds(timing.period_ns)
        self._effort_nm: Array | None = None
        self._newest: Arrival | None = None
        self._must_stop = threading.Event()
        self._has_error = False
        self._sent_ns = 0
        self._numbers, self._round = count(1), 0
        """The number of the present round; zero while none is due."""
        self._sending = threading.Lock()
        self._is_given_up, self._is_over = False, threading.Event()
        self.deadlines = Deadlines(timing.period_ns, time.monotonic_ns())
        self.tick_ns = np.zeros(8192, dtype=np.int64)
        """From the arrival of a state, or the tick's begin if that is later, to its command."""
        self.num_checks_failed = 0
        self.is_realtime = False
        self.error: str | None = None
        """Why the thread ended, if it was not asked to."""

    def stop(self) -> None:
        """Ask for the end and wait for it."""
        self._must_stop.set()
        self._inbox.wake()
        while self.is_alive() and not self._is_over.is_set():
            self.join(LOOK_S)

    def run(self) -> None:
        """Wait for a first state, tick until stopped, and end safely."""
        gc.collect()
        gc.freeze()  # what lives now lives long: later collections need not look at it
        threading.Thread(target=self._watch, name='watch', daemon=True).start()
        self.is_realtime = become_realtime(self._timing.priority)
        with awake_cores(self.is_realtime):
            try:
                arrivals = self._begin()
                if arrivals and self._timing.ticks_on_states:
                    self._follow_states(arrivals)
                elif arrivals:
                    self._keep_time(arrivals)
            except Exception:
                self.error = traceback.format_exc()
            finally:
                self._round = 0
                self._end()

    def _watch(self) -> None:
        """Wait for the end of the thread, or take the arm from it if it hangs."""
        before, num_looks = 0, 0
        while self.is_alive() and num_looks < HANGS_AFTER:
            self.join(LOOK_S)
            num_looks = num_looks + 1 if self._round and self._round == before else 0
            before = self._round
        if self.is_alive():
            self.error = f'control hangs: a tick did not end within {LOOK_S * HANGS_AFTER:g} s'
            self._must_stop.set()
            if self._sending.acquire(timeout=LOOK_S):  # else sending hangs: nothing can be said
                self._is_given_up = True
                self._sending.release()
                self._end()
            self._is_over.set()

    def _begin(self) -> list[Arrival]:
        """Return the first states that came, none if stopped before."""
        while not self._must_stop.is_set():
            arrivals = self._inbox.take(timeout_s=0.05)
            if arrivals:
                first = self._newest = arrivals[0]
                self._effort_nm = self._driver.begin(first.state, first.effort_nm)
                return arrivals
        return []

    def _keep_time(self, arrivals: list[Arrival]) -> None:
        lead_ns = self._timing.state_lead_ns
        self.deadlines = Deadlines(self._timing.period_ns, arrivals[-1].received_ns + lead_ns)
        while not self._must_stop.is_set():
            self._round = next(self._numbers)
            due_ns = self.deadlines.next_ns
            if sleep_until(due_ns - REHEARSAL_NS) < due_ns - REHEARSAL_NS // 2:  # else too late
                self._driver.rehearse(REHEARSAL_NS // 2)
            now_ns = sleep_until(due_ns)
            late_ns = self.deadlines.begin_tick(now_ns)
            is_late = late_ns > self._timing.period_ns // 2
            arrivals += self._inbox.take(GRACE_S if is_late else 0.0)
            self._tick(arrivals, now_ns, late_ns)
            if arrivals:  # of many, as from a 1 kHz robot, one always came in time
                off_ns = min((a.received_ns + lead_ns - due_ns for a in arrivals), key=abs)
                self.deadlines.align(due_ns + off_ns)
            arrivals = []

    def _follow_states(self, arrivals: list[Arrival]) -> None:
        while not self._must_stop.is_set():
            for arrival in arrivals:  # each stamp has its own tick, and its own answer
                self._round = next(self._numbers)
                self.deadlines.num_ticks += 1
                self._tick([arrival], arrival.received_ns, 0)
            self._round = 0
            arrivals = self._inbox.take(seconds(self._timing.state_timeout_ns))
            if not arrivals and not self._must_stop.is_set():
                self._tick([], time.monotonic_ns(), 0)

    def _tick(self, arrivals: list[Arrival], now_ns: int, late_ns: int) -> None:
        if arrivals:
            self._newest = arrivals[-1]
        assert self._newest is not None
        age_ns = max(now_ns - self._newest.received_ns, 0)
        tick = self._driver.tick(
            [arrival.state for arrival in arrivals],
            self._newest.state.stamp_ns + age_ns,
            age_ns <= self._timing.state_timeout_ns,
            self._has_error,
        )
        self._has_error = False
        self._issue(tick.step.effort_nm, tick, late_ns)
        if arrivals:
            begin_ns = max(self._newest.received_ns, now_ns)
            place = (self.deadlines.num_ticks - 1) % len(self.tick_ns)
            self.tick_ns[place] = self._sent_ns - begin_ns

    def _issue(self, effort_nm: Array, tick: Tick | None, late_ns: int) -> None:
        """Check an effort against what no effort may be, and send it."""
        assert self._effort_nm is not None
        assert self._newest is not None
        is_good = effort_nm.shape == self._most_nm.shape and bool(
            (np.abs(effort_nm) <= self._most_nm).all()
            and (np.abs(effort_nm - self._effort_nm) <= self._step_nm + SLACK).all()
        )  # false for NaN
        if not is_good:
            self.num_checks_failed += 1
            self._has_error = True
            effort_nm = self._towards_zero()
        command = Command(effort_nm, tick, self._newest.stamp_ns, late_ns)
        with self._sending:
            if self._is_given_up and threading.current_thread() is self:
                return  # it hung, and came back when another had taken its place
            self._effort_nm = effort_nm
            self._send(command)
        self._sent_ns = time.monotonic_ns()
        self._tell(command)  # whoever listens can wait: the arm has its command

    def _towards_zero(self) -> Array:
        assert self._effort_nm is not None
        return self._effort_nm - np.clip(self._effort_nm, -self._step_nm, self._step_nm)

    def _end(self) -> None:
        """Let the torque fade, then send zero; whatever fails here, zero is sent."""
        if self._effort_nm is None or self._newest is None:
            return  # nothing was ever sent
        begin_ns = now_ns = time.monotonic_ns()
        last_ns = begin_ns + self._timing.fade_ns
        while now_ns < last_ns or self._effort_nm.any():
            effort_nm, tick = self._towards_zero(), None
            if self.error is None and now_ns < last_ns:
                try:
                    age_ns = now_ns - self._newest.received_ns
                    tick = self._driver.fade(self._newest.state.stamp_ns + age_ns)
                    effort_nm = tick.step.effort_nm
                except Exception:
                    self.error = traceback.format_exc()
            self._try_to_issue(effort_nm, tick)
            now_ns = sleep_until(now_ns + self._timing.period_ns)
        self._try_to_issue(np.zeros_like(self._effort_nm), None)

    def _try_to_issue(self, effort_nm: Array, tick: Tick | None) -> None:
        try:
            self._issue(effort_nm, tick, 0)
        except Exception:  # from here on without a tick: less to send, less to fail
            self.error = self.error or traceback.format_exc()
