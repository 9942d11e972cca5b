# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""The thread that ticks: on deadlines of the steady clock, or with each state in simulated time.

It knows no ROS: states come from an `Inbox`; what it decides goes to `send`, then to `publish`.
Before `send` stands a `LastCheck`, which knows nothing of the controller: an effort that is not
finite, too large or too far from the last one is replaced by a step towards zero, and the
controller faults. However the thread ends, it ends with the fading torque of a blind arm and a
last zero. If it hangs, as within a policy that never answers, another thread takes the torque down
in its place (`TickWatch`): if it comes back soon it goes on as a blind arm does, else control is
over.
"""

from collections import deque
from collections.abc import Callable
import gc
from itertools import count
import threading
import time
import traceback
from typing import NamedTuple

import numpy as np

from metactl_ros.control.modes import Cause, Mode
from metactl_ros.dynamics.rigid_body import JointLimits
from metactl_ros.runtime.controller import LiveController, Tick
from metactl_ros.runtime.deadlines import (
    awake_cores,
    become_realtime,
    Deadlines,
    sleep_until,
    TickWatch,
    Timing,
)
from metactl_ros.runtime.state_intake import Arrival, Inbox
from metactl_ros.signals import Array, seconds

WARM_CACHE_NS = 800_000
"""How long before a tick a dry call of its policy begins: 10 ms later its caches are cold."""
GRACE_S = 0.003
"""How long a late tick waits for a state if there is none: who overslept cannot say that others
were silent. A machine that stood still brings state and tick at the same moment."""
LOOK_S, HANGS_AFTER = 0.01, 100
"""How often the watch looks whether ticks go on, and after how many looks in vain they never will:
a second in which this process runs, whatever time passes while it is stopped."""
HIGHEST_PRIORITY = 99
SLACK = 1e-9
"""N m by which a limit may be missed through rounding."""


class Command(NamedTuple):
    """What goes out after a tick."""

    effort_nm: Array
    """Checked, shape (n,)."""
    tick: Tick | None
    """None on the way out after an error."""
    state_stamp_ns: int
    """Of the state it answers, on the clock of the robot."""
    late_ns: int
    must_brake: bool
    """Whether the robot is asked to brake: in FAULT, and after an error or a hang."""
    is_withheld: bool = False
    """Whether it is only reported, not sent: it was decided before a pause, or too late."""
    stamp_ns: int = 0
    """Of the message that it went out in; of the one before, if it is withheld."""


class LastCheck:
    """What no effort may be, whatever decided it: beyond its limit, or too far from the last."""

    def __init__(self, limits: JointLimits, period_ns: int) -> None:
        self._most_nm = np.array(limits.effort_nm) + SLACK
        self._step_nm = np.array(limits.effort_rate_nmps) * seconds(period_ns)
        self.effort_nm: Array | None = None
        """The last one that was sent, shape (n,); None before control begins."""
        self.num_failed = 0

    def passes(self, effort_nm: Array) -> bool:
        """Return whether an effort may follow the last one."""
        assert self.effort_nm is not None
        return effort_nm.shape == self._most_nm.shape and bool(
            (np.abs(effort_nm) <= self._most_nm).all()
            and (np.abs(effort_nm - self.effort_nm) <= self._step_nm + SLACK).all()
        )  # false for NaN

    def towards_zero(self) -> Array:
        """Return the last effort a step closer to zero, shape (n,)."""
        assert self.effort_nm is not None
        return self.effort_nm - np.clip(self.effort_nm, -self._step_nm, self._step_nm)

    def reach(self, effort_nm: Array, num_periods: int) -> Array:
        """Return how close to an effort the rate leads in some periods, shape (n,)."""
        assert self.effort_nm is not None
        reach = self._step_nm * num_periods
        towards = np.clip(effort_nm, -self._most_nm, self._most_nm) - self.effort_nm
        return self.effort_nm + np.clip(towards, -reach, reach)


class ControlThread(threading.Thread):
    """Runs a controller until stopped."""

    def __init__(
        self,
        controller: LiveController,
        inbox: Inbox,
        timing: Timing,
        limits: JointLimits,
        send: Callable[[Command], int],
        publish: Callable[[Command], None] = lambda _: None,
    ) -> None:
        """Make a thread that is not started yet.

        Args:
            controller: Decides each tick.
            inbox: Where states come from.
            timing: When to tick.
            limits: What the last check holds efforts against.
            send: Publishes a command; returns the stamp of the message, ns.
            publish: Is given each command after it went out, with its stamp.
        """
        super().__init__(name='control', daemon=True)
        self._controller, self._inbox, self._timing = controller, inbox, timing
        self._send, self._publish = send, publish
        self._check = LastCheck(limits, timing.period_ns)
        self._newest: Arrival | None = None
        self._must_stop = threading.Event()
        self._error = Cause.NONE
        self._reports: deque[Cause] = deque()
        self.outer_error = Cause.NONE
        """Set by others, from any thread: what they find wrong, for as long as it is."""
        self._sent_ns = self._stamp_ns = 0
        self._numbers, self._round = count(1), 0
        """The number of the present round; zero while none is due."""
        self._is_at_work = False
        """Whether it is this thread's turn, and not that of the clock or of the robot."""
        self._sending = threading.Lock()
        self._was_replaced = False
        """Whether another thread sent for a tick, and the loop does not know."""
        self.num_stand_ins = 0
        """Commands that another thread sent because a tick hung."""
        self._is_given_up, self._is_over = False, threading.Event()
        self._must_brake = False
        self.deadlines = Deadlines(timing.period_ns, time.monotonic_ns())
        self.tick_ns = np.zeros(8192, dtype=np.int64)
        """From the arrival of a state, or the tick's begin if that is later, to its command."""
        self.is_realtime = False
        self.error: str | None = None
        """Why the thread ended, if it was not asked to."""

    @property
    def num_checks_failed(self) -> int:
        """Efforts that were replaced before they could be sent."""
        return self._check.num_failed

    def stop(self) -> None:
        """Ask for the end and wait for it."""
        self._must_stop.set()
        self._inbox.wake()
        while self.is_alive() and not self._is_over.is_set():
            self.join(LOOK_S)

    def report(self, cause: Cause) -> None:
        """Make something that was found elsewhere, in any thread, an error of the next tick."""
        self._reports.append(cause)

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
                self._rejoin()
                self._end()

    def _watch(self) -> None:
        """Wait for the end of the thread, or take the arm from it if it hangs."""
        if not self.is_alive():
            return
        if self._timing.priority:  # above the one that may never give way again
            become_realtime(min(self._timing.priority + 1, HIGHEST_PRIORITY))
        watch, before, num_looks = TickWatch(self, LOOK_S), 0, 0
        while self.is_alive() and num_looks < HANGS_AFTER:
            self.join(LOOK_S)
            present = self._round
            num_looks = num_looks + 1 if present and present == before else 0
            before = present
            if watch.look(present if self._is_at_work else 0) >= self._timing.patience_ns:
                self._stand_in(present)
        if self.is_alive():
            self.error = f'control hangs: a tick did not end within {LOOK_S * HANGS_AFTER:g} s'
            self._must_stop.set()
            if self._sending.acquire(timeout=LOOK_S):  # else sending hangs: nothing can be said
                self._is_given_up = True
                self._sending.release()
                self._end()
            self._is_over.set()

    def _stand_in(self, present_round: int) -> None:
        """Take the torque a step down, once a period, in the place of a tick that hangs."""
        if not self._sending.acquire(blocking=False):
            return  # sending itself hangs: nothing can be said
        try:
            now_ns = time.monotonic_ns()
            is_due = now_ns - self._sent_ns >= self._timing.period_ns
            if is_due and present_round == self._round and self._newest is not None:
                self._was_replaced = True
                effort_nm = self._check.effort_nm = self._check.towards_zero()
                stamp_ns = self._newest.stamp_ns
                self._stamp_ns = self._send(Command(effort_nm, None, stamp_ns, 0, must_brake=True))
                self._sent_ns = now_ns
                self.num_stand_ins += 1
        except Exception:
            self.error = self.error or traceback.format_exc()
        finally:
            self._sending.release()

    def _rejoin(self) -> bool:
        """Go on from what another thread has sent meanwhile; return whether one has."""
        with self._sending:
            was_replaced, self._was_replaced = self._was_replaced, False
            if was_replaced:
                assert self._check.effort_nm is not None
                self._controller.resume(self._check.effort_nm)
        return was_replaced

    def _begin(self) -> list[Arrival]:
        """Return the first states that came, none if stopped before."""
        while not self._must_stop.is_set():
            arrivals = self._inbox.take(timeout_s=0.05)
            if arrivals:
                first = self._newest = arrivals[0]
                self._check.effort_nm = self._controller.begin(first.state, first.effort_nm)
                return arrivals
        return []

    def _keep_time(self, arrivals: list[Arrival]) -> None:
        lead_ns = self._timing.state_lead_ns
        self.deadlines = Deadlines(self._timing.period_ns, arrivals[-1].received_ns + lead_ns)
        while not self._must_stop.is_set():
            self._round = next(self._numbers)
            due_ns = self.deadlines.next_ns
            if sleep_until(due_ns - WARM_CACHE_NS) < due_ns - WARM_CACHE_NS // 2:  # else too late
                self._is_at_work = True
                self._controller.warm_cache(WARM_CACHE_NS // 2)
                self._is_at_work = False
            now_ns = sleep_until(due_ns)
            self._is_at_work = True
            late_ns = self.deadlines.begin_tick(now_ns)
            arrivals += self._gather(now_ns, late_ns)
            self._tick(arrivals, now_ns, late_ns)
            if arrivals:  # of many, as from a 1 kHz robot, one always came in time
                off_ns = min((a.received_ns + lead_ns - due_ns for a in arrivals), key=abs)
                self.deadlines.align(due_ns + off_ns)
            arrivals = []
            self._is_at_work = False

    def _gather(self, now_ns: int, late_ns: int) -> list[Arrival]:
        """Return the states that came; a late tick waits a little for one that it had not yet."""
        is_late = late_ns > self._timing.period_ns // 2
        arrivals = self._inbox.take(GRACE_S if is_late else 0.0)
        if self._was_away(late_ns) and arrivals and not self._is_fresh(arrivals[-1], now_ns):
            arrivals += self._inbox.take(GRACE_S)  # what waited had come before the pause
        return arrivals

    def _was_away(self, late_ns: int) -> bool:
        """Return whether a tick is so late that the arm was alone meanwhile."""
        return late_ns > self._timing.state_timeout_ns

    def _is_fresh(self, arrival: Arrival, now_ns: int) -> bool:
        return now_ns - arrival.received_ns <= self._timing.state_timeout_ns

    def _follow_states(self, arrivals: list[Arrival]) -> None:
        while not self._must_stop.is_set():
            for arrival in arrivals:  # each stamp has its own tick, and its own answer
                self._round, self._is_at_work = next(self._numbers), True
                self.deadlines.num_ticks += 1
                self._tick([arrival], arrival.received_ns, 0)
            self._round, self._is_at_work = 0, False
            arrivals = self._inbox.take(seconds(self._timing.state_timeout_ns))
            if not arrivals and not self._must_stop.is_set():
                self._tick([], time.monotonic_ns(), 0)

    def _tick(self, arrivals: list[Arrival], now_ns: int, late_ns: int) -> None:
        if arrivals:
            self._newest = arrivals[-1]
        assert self._newest is not None
        was_replaced = self._rejoin()
        # Who was late himself cannot say that nothing happened.
        was_away = was_replaced or self._was_away(late_ns)
        if was_away:
            arrivals = arrivals[-1:]
            if not was_replaced:  # else commands went on, and there was no pause
                self._resume(arrivals, now_ns)
        age_ns = max(now_ns - self._newest.received_ns, 0)
        if self._reports and not self._error:
            self._error = self._reports.popleft()
        tick = self._controller.drive(
            [arrival.state for arrival in arrivals],
            self._newest.state.stamp_ns + age_ns,
            is_fresh=self._is_fresh(self._newest, now_ns) and not was_away,
            error=self._error or self.outer_error,
            steady_ns=self._steady_ns(now_ns),
        )
        self._error = Cause.NONE
        self._issue(tick.step.effort_nm, tick, late_ns, is_withheld=self._is_outdated(tick))
        if arrivals:
            begin_ns = max(self._newest.received_ns, now_ns)
            place = (self.deadlines.num_ticks - 1) % len(self.tick_ns)
            self.tick_ns[place] = self._sent_ns - begin_ns

    def _is_outdated(self, tick: Tick) -> bool:
        """Return whether the thread stood still while it decided, so that the next tick is blind.

        A robot that has braked meanwhile should not get what was right before; a torque that
        fades, or zero, is right at any time.
        """
        if self._timing.ticks_on_states or tick.mode >= Mode.BLIND:
            return False
        return self._was_away(time.monotonic_ns() - self.deadlines.next_ns)

    def _resume(self, arrivals: list[Arrival], now_ns: int) -> None:
        """Go on after a pause from what the motors give now, as far as their rate leads there.

        Whatever the robot did with the last command, no two commands are further apart than the
        rate allows in the whole periods between them; this tick needs one of them itself.
        """
        assert self._newest is not None
        measured = None
        if arrivals and self._is_fresh(arrivals[-1], now_ns):
            measured = arrivals[-1].effort_nm
        acting = self._controller.acting_effort(self._newest.state, measured)
        if acting is None or not np.isfinite(acting).all():
            return
        passed = (now_ns - self._sent_ns) // self._timing.period_ns
        self._check.effort_nm = self._check.reach(acting, max(passed - 1, 0))
        self._controller.resume(self._check.effort_nm)

    def _steady_ns(self, now_ns: int) -> int | None:
        """Return the time that modes and limits run on; in simulated time that of the states."""
        return None if self._timing.ticks_on_states else now_ns

    def _issue(
        self, effort_nm: Array, tick: Tick | None, late_ns: int, *, is_withheld: bool = False
    ) -> None:
        """Check an effort against what no effort may be, and send it unless it is withheld."""
        is_mine = threading.current_thread() is self
        with self._sending:
            if is_mine and self._is_given_up:
                return  # it hung, and came back when another had taken its place
            is_withheld = is_withheld or (is_mine and self._was_replaced)
            command = self._checked(effort_nm, tick, late_ns, is_withheld=is_withheld)
            if not is_withheld:
                self._check.effort_nm = command.effort_nm
                self._stamp_ns = self._send(command)
                self._sent_ns = time.monotonic_ns()
        self._publish(command._replace(stamp_ns=self._stamp_ns))  # the arm has its command

    def _checked(
        self, effort_nm: Array, tick: Tick | None, late_ns: int, *, is_withheld: bool
    ) -> Command:
        """Return a command of an effort, or of a step towards zero if it may not be sent."""
        assert self._newest is not None
        if not is_withheld and not self._check.passes(effort_nm):
            self._check.num_failed += 1
            self._error = Cause.INTERNAL_ERROR
            effort_nm = self._check.towards_zero()
        if tick is not None:
            # A blind arm whose torque has faded would fall. Who ends control has seen to that.
            is_let_go = tick.mode == Mode.BLIND and not effort_nm.any()
            is_let_go = is_let_go and not self._must_stop.is_set()
            self._must_brake = is_let_go or tick.mode == Mode.FAULT
        must_brake = self._must_brake or self.error is not None
        stamp_ns = self._newest.stamp_ns
        return Command(effort_nm, tick, stamp_ns, late_ns, must_brake, is_withheld)

    def _end(self) -> None:
        """Let the torque fade, then send zero; whatever fails here, zero is sent."""
        if self._check.effort_nm is None or self._newest is None:
            return  # nothing was ever sent
        begin_ns = now_ns = time.monotonic_ns()
        last_ns = begin_ns + self._timing.fade_ns
        while now_ns < last_ns or self._check.effort_nm.any():
            effort_nm, tick = self._check.towards_zero(), None
            if self.error is None and now_ns < last_ns:
                try:
                    age_ns = now_ns - self._newest.received_ns
                    stamp_ns = self._newest.state.stamp_ns + age_ns
                    tick = self._controller.fade(stamp_ns, self._steady_ns(now_ns))
                    effort_nm = tick.step.effort_nm
                except Exception:
                    self.error = traceback.format_exc()
            self._try_to_issue(effort_nm, tick)
            now_ns = sleep_until(now_ns + self._timing.period_ns)
        self._try_to_issue(np.zeros_like(self._check.effort_nm), None)

    def _try_to_issue(self, effort_nm: Array, tick: Tick | None) -> None:
        try:
            self._issue(effort_nm, tick, 0)
        except Exception:  # from here on without a tick: less to send, less to fail
            self.error = self.error or traceback.format_exc()
