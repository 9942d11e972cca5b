# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""What goes into the control thread and what comes out: states, faults and requests; commands.

    Inbox            states that were accepted, until the next tick takes them
    Exchange         what other threads ask of the control thread, and what they learn of it
    CommandOutput    the way of every effort to the arm, past a `LastCheck`

The last check knows nothing of the controller: an effort that is not finite, too large or too far
from the last one is replaced by a step towards zero, and the controller faults.
"""

from collections import deque
from collections.abc import Callable
import threading
import time
import traceback
from typing import NamedTuple

import numpy as np

from metactl_ros.control.modes import Cause, Mode
from metactl_ros.dynamics.rigid_body import JointLimits
from metactl_ros.runtime.controller import Tick
from metactl_ros.signals import ArmState, Array, ROUNDING_NM, seconds

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


class LastCheck:
    """What no effort may be, whatever decided it: beyond its limit, or too far from the last."""

    def __init__(self, limits: JointLimits, period_ns: int) -> None:
        self._most_nm = np.array(limits.effort_nm) + ROUNDING_NM
        self._step_nm = np.array(limits.effort_rate_nmps) * seconds(period_ns)
        self.effort_nm: Array | None = None
        """The last one that was sent, shape (n,); None before control begins."""

    def passes(self, effort_nm: Array) -> bool:
        """Return whether an effort may follow the last one."""
        assert self.effort_nm is not None
        return effort_nm.shape == self._most_nm.shape and bool(
            (np.abs(effort_nm) <= self._most_nm).all()
            and (np.abs(effort_nm - self.effort_nm) <= self._step_nm + ROUNDING_NM).all()
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


class CommandOutput:
    """Sends what a control thread decides, or what another sends in its place while it hangs.

    A lock keeps the two apart; it is held while a command is checked and sent.
    """

    def __init__(
        self,
        owner: threading.Thread,
        exchange: Exchange,
        check: LastCheck,
        send: Callable[[Command], int],
        publish: Callable[[Command], None],
    ) -> None:
        """Make an output; it begins with the effort that the first command starts from.

        Args:
            owner: The control thread; any other stands in for it.
            exchange: Of the control thread.
            check: What every effort has to pass.
            send: Publishes a command; returns the stamp of the message, ns.
            publish: Is given each command after it went out, with its stamp.
        """
        self._owner, self._exchange, self.check = owner, exchange, check
        self.send, self.publish = send, publish
        self._sending = threading.Lock()
        self._was_replaced = False
        """Whether another thread sent for a tick, and the loop does not know."""
        self._is_given_up = False
        """Whether another thread has taken the place of the owner for good."""
        self._must_brake = False
        self._stamp_ns = 0
        self.sent_ns = 0
        """When the last command was sent, on the steady clock."""
        self.num_stand_ins = 0
        """Commands that another thread sent because a tick hung."""
        self.num_checks_failed = 0
        """Efforts that were replaced before they could be sent."""

    def issue(
        self,
        effort_nm: Array,
        tick: Tick | None,
        state_stamp_ns: int,
        late_ns: int = 0,
        *,
        is_withheld: bool = False,
    ) -> None:
        """Check an effort against what no effort may be, and send it unless it is withheld.

        Args:
            effort_nm: Shape (n,).
            tick: That decided it; None on the way out after an error.
            state_stamp_ns: Of the state it answers.
            late_ns: How late the tick began.
            is_withheld: Whether it is only to be reported.
        """
        is_owner = threading.current_thread() is self._owner
        with self._sending:
            if is_owner and self._is_given_up:
                return  # it hung, and came back when another had taken its place
            is_withheld = is_withheld or (is_owner and self._was_replaced)
            if not is_withheld and not self.check.passes(effort_nm):
                self.num_checks_failed += 1
                self._exchange.report(Cause.INTERNAL_ERROR, is_next=True)
                effort_nm = self.check.towards_zero()
            must_brake = self._brakes(effort_nm, tick)
            command = Command(effort_nm, tick, state_stamp_ns, late_ns, must_brake, is_withheld)
            if not is_withheld:
                self.check.effort_nm = effort_nm
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

    def resume_towards(self, effort_nm: Array, now_ns: int, period_ns: int) -> Array:
        """Go on after a pause from an effort, as far as the rate leads there; return from which.

        No two commands are further apart than the rate allows in the whole periods between them;
        the next command needs one of these itself.
        """
        passed = (now_ns - self.sent_ns) // period_ns
        self.check.effort_nm = self.check.reach(effort_nm, max(passed - 1, 0))
        return self.check.effort_nm

    def stand_in(self, period_ns: int, stamp_to_answer: Callable[[], int | None]) -> None:
        """Take the torque a step down, once a period, in the place of a tick that hangs.

        Args:
            period_ns: Of the ticks.
            stamp_to_answer: Returns that of the state to answer; None if no tick hangs any more.
        """
        if not self._sending.acquire(blocking=False):
            return  # sending itself hangs: nothing can be sent
        try:
            now_ns = time.monotonic_ns()
            if now_ns - self.sent_ns >= period_ns and (stamp_ns := stamp_to_answer()) is not None:
                self._was_replaced = True
                effort_nm = self.check.effort_nm = self.check.towards_zero()
                self._stamp_ns = self.send(Command(effort_nm, None, stamp_ns, 0, must_brake=True))
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
                assert self.check.effort_nm is not None
                resume(self.check.effort_nm)
        return was_replaced

    def give_up_owner(self, timeout_s: float) -> bool:
        """Send nothing of the owner any more; return False if it hangs in sending itself."""
        if not self._sending.acquire(timeout=timeout_s):
            return False
        self._is_given_up = True
        self._sending.release()
        return True
