# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""The thread that ticks: on deadlines of the steady clock, or with each state in simulated time.

It knows no ROS: states come from an `Inbox`, what other threads ask of it from an `Exchange`, and
what it decides goes to a `CommandOutput`, whose last check knows nothing of the controller: an
effort that is not finite, too large or too far from the last one is replaced by a step towards
zero, and the controller faults. However the thread ends, it ends with the fading torque of a blind
arm and a last zero. If it hangs, as within a policy that never answers, another thread takes the
torque down in its place (`TickWatch`): if it comes back soon it goes on as a blind arm does, else
control is over.
"""

from collections import deque
from collections.abc import Callable
from functools import partial
import gc
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
    Rounds,
    sleep_until,
    TICKS_KEPT,
    TickWatch,
    Timing,
)
from metactl_ros.runtime.joint_states import Arrival, Inbox
from metactl_ros.signals import Array, ROUNDING_NM, seconds


class Exchange:
    """What the control thread and others leave for each other; nobody waits for it."""

    def __init__(self) -> None:
        self.must_stop = threading.Event()
        self.is_given_up = threading.Event()
        """Whether the thread hangs for good, and its end is not to be waited for."""
        self.outer_error = Cause.NONE
        """What others find wrong, for as long as it is."""
        self._reports: deque[Cause] = deque()
        self.error: str | None = None
        """Why control ended, if it was not asked to."""

    def report(self, cause: Cause, *, is_next: bool = False) -> None:
        """Make something that was found an error of one tick: the first that has no other one.

        An error that is next goes before those that were reported earlier.
        """
        (self._reports.appendleft if is_next else self._reports.append)(cause)

    def take_error(self) -> Cause:
        """Return the error of this tick."""
        return self._reports.popleft() if self._reports else self.outer_error

    def note_exception(self) -> None:
        """Keep the exception being handled as the reason of the end, unless there is one."""
        self.error = self.error or traceback.format_exc()


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


class CommandOutput:
    """Checks and sends what a control thread decides, or another thread in its place.

    A lock keeps the two apart; it is held while a command is checked and sent.
    """

    def __init__(
        self,
        owner: threading.Thread,
        exchange: Exchange,
        limits: JointLimits,
        period_ns: int,
        send: Callable[[Command], int],
        publish: Callable[[Command], None],
    ) -> None:
        """Make the output of a control thread, see `ControlThread`; any other stands in for it."""
        self._owner, self._exchange, self._period_ns = owner, exchange, period_ns
        self._limit_nm = np.array(limits.effort_nm) + ROUNDING_NM
        self._step_nm = np.array(limits.effort_rate_nmps) * seconds(period_ns)
        self.send, self.publish = send, publish
        self._sending = threading.Lock()
        self._was_replaced = False
        """Whether another thread sent for a tick, and the loop does not know."""
        self._is_given_up = False
        """Whether another thread has taken the place of the owner for good."""
        self._must_brake = False
        self._stamp_ns = 0
        self.effort_nm = np.zeros(0)
        """The last one that was sent, shape (n,); empty before control begins."""
        self.sent_ns = 0
        """When the last command was sent, on the steady clock."""
        self.num_stand_ins = 0
        """Commands that another thread sent because a tick hung."""
        self.num_checks_failed = 0
        """Efforts that were replaced before they could be sent."""

    def _passes(self, effort_nm: Array) -> bool:
        """Return whether an effort is within its limit, and near enough to the last one."""
        return effort_nm.shape == self._limit_nm.shape and bool(
            (np.abs(effort_nm) <= self._limit_nm).all()
            and (np.abs(effort_nm - self.effort_nm) <= self._step_nm + ROUNDING_NM).all()
        )  # false for NaN

    def towards_zero(self) -> Array:
        """Return the last effort a step closer to zero, shape (n,)."""
        return self.effort_nm - np.clip(self.effort_nm, -self._step_nm, self._step_nm)

    def issue(
        self,
        effort_nm: Array,
        tick: Tick | None,
        state_stamp_ns: int,
        late_ns: int = 0,
        *,
        is_withheld: bool = False,
    ) -> None:
        """Check an effort, shape (n,), and send it unless it is withheld; see `Command`."""
        is_owner = threading.current_thread() is self._owner
        with self._sending:
            if is_owner and self._is_given_up:
                return  # it hung, and came back when another had taken its place
            is_withheld = is_withheld or (is_owner and self._was_replaced)
            if not is_withheld and not self._passes(effort_nm):
                self.num_checks_failed += 1
                self._exchange.report(Cause.INTERNAL_ERROR, is_next=True)
                effort_nm = self.towards_zero()
            must_brake = self._brakes(effort_nm, tick)
            command = Command(effort_nm, tick, state_stamp_ns, late_ns, must_brake, is_withheld)
            if not is_withheld:
                self.effort_nm = effort_nm
                self._stamp_ns = self.send(command)
                self.sent_ns = time.monotonic_ns()
        self.publish(command._replace(stamp_ns=self._stamp_ns))  # the arm has its command

    def try_to_issue(self, effort_nm: Array, tick: Tick | None, state_stamp_ns: int) -> None:
        """Check and send an effort; an exception is kept as the reason of the end."""
        try:
            self.issue(effort_nm, tick, state_stamp_ns)
        except Exception:  # from here on without a tick: less to send, less to fail
            self._exchange.note_exception()

    def _brakes(self, effort_nm: Array, tick: Tick | None) -> bool:
        """Return whether the robot is to brake."""
        if tick is not None:
            # A blind arm whose torque has faded would fall, unless control is asked to end.
            is_let_go = tick.mode == Mode.BLIND and not effort_nm.any()
            is_let_go = is_let_go and not self._exchange.must_stop.is_set()
            self._must_brake = is_let_go or tick.mode == Mode.FAULT
        return self._must_brake or self._exchange.error is not None

    def resume_towards(self, effort_nm: Array, now_ns: int) -> Array:
        """Go on after a pause from an effort, as far as the rate leads there; return from which.

        No two commands are further apart than the rate allows in the whole periods between them;
        the next command needs one of these itself.
        """
        reach = self._step_nm * max((now_ns - self.sent_ns) // self._period_ns - 1, 0)
        towards = np.clip(effort_nm, -self._limit_nm, self._limit_nm) - self.effort_nm
        self.effort_nm = self.effort_nm + np.clip(towards, -reach, reach)
        return self.effort_nm

    def stand_in(self, stamp_to_answer: Callable[[], int | None]) -> None:
        """Take the torque a step down, once a period, in the place of a tick that hangs.

        `stamp_to_answer` returns that of the state to answer; None if no tick hangs any more.
        """
        if not self._sending.acquire(blocking=False):
            return  # sending itself hangs: nothing can be sent
        try:
            now_ns = time.monotonic_ns()
            is_due = now_ns - self.sent_ns >= self._period_ns
            if is_due and (stamp_ns := stamp_to_answer()) is not None:
                self._was_replaced = True
                self.effort_nm = self.towards_zero()
                command = Command(self.effort_nm, None, stamp_ns, 0, must_brake=True)
                self._stamp_ns = self.send(command)
                self.sent_ns = now_ns
                self.num_stand_ins += 1
        except Exception:
            self._exchange.note_exception()
        finally:
            self._sending.release()

    def rejoin(self, resume: Callable[[Array], None]) -> bool:
        """Let a loop resume from what another thread sent meanwhile; return whether one did."""
        with self._sending:
            was_replaced, self._was_replaced = self._was_replaced, False
            if was_replaced:
                resume(self.effort_nm)
        return was_replaced

    def give_up_owner(self, timeout_s: float) -> bool:
        """Send nothing of the owner any more; return False if it hangs in sending itself."""
        if not self._sending.acquire(timeout=timeout_s):
            return False
        self._is_given_up = True
        self._sending.release()
        return True


WARM_CACHE_NS = 800_000
"""How long before a tick a dry call of its policy begins: 10 ms later its caches are cold."""
GRACE_S = 0.003
"""How long a late tick waits for a state if there is none: a thread that overslept does not know
whether the robot was silent; a machine that stood still brings state and tick at once."""
WATCH_S, HANGS_AFTER = 0.01, 100
"""How often the watch checks that ticks go on, and after how many checks in vain they never will:
a second in which this process runs, whatever time passes while it is stopped."""
HIGHEST_PRIORITY = 99


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
        self.exchange = Exchange()
        """With other threads: faults that they find, and how control ended."""
        ways = (self.exchange, limits, timing.period_ns, send, publish)
        self.output = CommandOutput(self, *ways)
        self._newest: Arrival | None = None
        self._rounds = Rounds()
        self.deadlines = Deadlines(timing.period_ns, time.monotonic_ns())
        self.tick_ns = np.zeros(TICKS_KEPT, dtype=np.int64)
        """From the arrival of a state, or the tick's begin if that is later, to its command."""
        self.is_realtime = False

    @property
    def error(self) -> str | None:
        """Why the thread ended, if it was not asked to."""
        return self.exchange.error

    def stop(self) -> None:
        """Ask for the end and wait for it."""
        self.exchange.must_stop.set()
        self._inbox.wake()
        while self.is_alive() and not self.exchange.is_given_up.is_set():
            self.join(WATCH_S)

    def run(self) -> None:
        """Wait for a first state, tick until stopped, and end safely."""
        gc.collect()
        gc.freeze()  # what lives now lives long: later collections need not look at it
        threading.Thread(target=self._watch, name='watch', daemon=True).start()
        self.is_realtime = become_realtime(self._timing.priority)
        with awake_cores(is_wanted=self.is_realtime):
            try:
                arrivals = self._begin()
                if arrivals and self._timing.ticks_on_states:
                    self._follow_states(arrivals)
                elif arrivals:
                    self._keep_time(arrivals)
            except Exception:
                self.exchange.error = traceback.format_exc()
            finally:
                self._rounds.end()
                self.output.rejoin(self._controller.resume)
                self._end()

    def _watch(self) -> None:
        """Wait for the end of the thread, or take the arm from it if it hangs."""
        if not self.is_alive():
            return
        if self._timing.priority:  # above the one that may never give way again
            become_realtime(min(self._timing.priority + 1, HIGHEST_PRIORITY))
        watch, before, num_checks = TickWatch(self, WATCH_S), 0, 0
        while self.is_alive() and num_checks < HANGS_AFTER:
            self.join(WATCH_S)
            present = self._rounds.number
            num_checks = num_checks + 1 if present and present == before else 0
            before = present
            spent_ns = watch.poll(present if self._rounds.is_at_work else 0)
            if spent_ns >= self._timing.hang_after_ns:
                self.output.stand_in(partial(self._stamp_in, present))
        if self.is_alive():
            self.exchange.error = (
                f'control hangs: a tick did not end within {WATCH_S * HANGS_AFTER:g} s'
            )
            self.exchange.must_stop.set()
            if self.output.give_up_owner(WATCH_S):  # else sending hangs: nothing can be sent
                self._end()
            self.exchange.is_given_up.set()

    def _stamp_in(self, number: int) -> int | None:
        """Return the stamp of the state to answer in a round; None if it is over."""
        newest = self._newest
        return newest.stamp_ns if number == self._rounds.number and newest is not None else None

    def _begin(self) -> list[Arrival]:
        """Return the first states that came, none if stopped before."""
        while not self.exchange.must_stop.is_set():
            arrivals = self._inbox.take(timeout_s=0.05)
            if arrivals:
                first = self._newest = arrivals[0]
                self.output.effort_nm = self._controller.begin(first.state, first.effort_nm)
                return arrivals
        return []

    def _keep_time(self, arrivals: list[Arrival]) -> None:
        lead_ns, rounds = self._timing.state_lead_ns, self._rounds
        self.deadlines = Deadlines(self._timing.period_ns, arrivals[-1].received_ns + lead_ns)
        while not self.exchange.must_stop.is_set():
            rounds.begin()
            due_ns = self.deadlines.next_ns
            if sleep_until(due_ns - WARM_CACHE_NS) < due_ns - WARM_CACHE_NS // 2:  # else too late
                rounds.is_at_work = True
                self._controller.warm_cache(WARM_CACHE_NS // 2)
                rounds.is_at_work = False
            now_ns = sleep_until(due_ns)
            rounds.is_at_work = True
            late_ns = self.deadlines.begin_tick(now_ns)
            arrivals += self._gather(now_ns, late_ns)
            self._tick(arrivals, now_ns, late_ns)
            if arrivals:  # of many, as from a 1 kHz robot, one always came in time
                off_ns = min((a.received_ns + lead_ns - due_ns for a in arrivals), key=abs)
                self.deadlines.align(due_ns + off_ns)
            arrivals = []
            rounds.is_at_work = False

    def _gather(self, now_ns: int, late_ns: int) -> list[Arrival]:
        """Return the states that came; a late tick waits a little for one that it had not yet."""
        is_late = late_ns > self._timing.period_ns // 2
        arrivals = self._inbox.take(GRACE_S if is_late else 0.0)
        if self._was_paused(late_ns) and arrivals and not self._is_fresh(arrivals[-1], now_ns):
            arrivals += self._inbox.take(GRACE_S)  # what waited had come before the pause
        return arrivals

    def _was_paused(self, late_ns: int) -> bool:
        """Return whether a tick is so late that the arm was alone meanwhile."""
        return late_ns > self._timing.state_timeout_ns

    def _is_fresh(self, arrival: Arrival, now_ns: int) -> bool:
        return now_ns - arrival.received_ns <= self._timing.state_timeout_ns

    def _follow_states(self, arrivals: list[Arrival]) -> None:
        must_stop = self.exchange.must_stop
        while not must_stop.is_set():
            for arrival in arrivals:  # each stamp has its own tick, and its own answer
                self._rounds.begin(is_at_work=True)
                self.deadlines.num_ticks += 1
                self._tick([arrival], arrival.received_ns, 0)
            self._rounds.end()
            arrivals = self._inbox.take(seconds(self._timing.state_timeout_ns))
            if not arrivals and not must_stop.is_set():
                self._tick([], time.monotonic_ns(), 0)

    def _tick(self, arrivals: list[Arrival], now_ns: int, late_ns: int) -> None:
        if arrivals:
            self._newest = arrivals[-1]
        newest = self._newest
        assert newest is not None
        was_replaced = self.output.rejoin(self._controller.resume)
        # A thread that was late itself cannot tell that nothing happened meanwhile.
        was_paused = was_replaced or self._was_paused(late_ns)
        if was_paused:
            arrivals = arrivals[-1:]
            if not was_replaced:  # else commands went on, and there was no pause
                self._resume(newest, arrivals, now_ns)
        age_ns = max(now_ns - newest.received_ns, 0)
        tick = self._controller.drive(
            [arrival.state for arrival in arrivals],
            newest.state.stamp_ns + age_ns,
            is_fresh=self._is_fresh(newest, now_ns) and not was_paused,
            error=self.exchange.take_error(),
            steady_ns=self._steady_ns(now_ns),
        )
        is_withheld = self._is_outdated(tick)
        effort_nm = tick.step.effort_nm
        self.output.issue(effort_nm, tick, newest.stamp_ns, late_ns, is_withheld=is_withheld)
        if arrivals:
            begin_ns = max(newest.received_ns, now_ns)
            place = (self.deadlines.num_ticks - 1) % len(self.tick_ns)
            self.tick_ns[place] = self.output.sent_ns - begin_ns

    def _is_outdated(self, tick: Tick) -> bool:
        """Return whether the thread stood still while it decided, so that the next tick is blind.

        A robot that has braked meanwhile should not get what was right before; a torque that
        fades, or zero, is right at any time.
        """
        if self._timing.ticks_on_states or tick.mode >= Mode.BLIND:
            return False
        return self._was_paused(time.monotonic_ns() - self.deadlines.next_ns)

    def _resume(self, newest: Arrival, arrivals: list[Arrival], now_ns: int) -> None:
        """Go on after a pause from what the motors give now, as far as their rate leads there."""
        measured = None
        if arrivals and self._is_fresh(arrivals[-1], now_ns):
            measured = arrivals[-1].effort_nm
        acting = self._controller.acting_effort(newest.state, measured)
        if acting is not None and np.isfinite(acting).all():
            self._controller.resume(self.output.resume_towards(acting, now_ns))

    def _steady_ns(self, now_ns: int) -> int | None:
        """Return the time that modes and limits run on; in simulated time that of the states."""
        return None if self._timing.ticks_on_states else now_ns

    def _end(self) -> None:
        """Let the torque fade, then send zero; whatever fails here, zero is sent."""
        output, newest = self.output, self._newest
        if not output.effort_nm.size or newest is None:
            return  # nothing was ever sent
        now_ns = time.monotonic_ns()
        last_ns = now_ns + self._timing.fade_ns
        while now_ns < last_ns or output.effort_nm.any():
            effort_nm, tick = output.towards_zero(), None
            if self.error is None and now_ns < last_ns:
                try:
                    stamp_ns = newest.state.stamp_ns + now_ns - newest.received_ns
                    tick = self._controller.fade(stamp_ns, self._steady_ns(now_ns))
                    effort_nm = tick.step.effort_nm
                except Exception:
                    self.exchange.note_exception()
            output.try_to_issue(effort_nm, tick, newest.stamp_ns)
            now_ns = sleep_until(now_ns + self._timing.period_ns)
        output.try_to_issue(np.zeros_like(output.effort_nm), None, newest.stamp_ns)
