# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""The mode and its causes in words, and the requests of an operator, answered with the outcome.

    log.note(tick, ...)    after every tick, by the control thread: two comparisons if all stays
    for text in log.take(): ...    by the thread that logs, later

Each change of the mode is written once, in the words of `TEXTS`. The control thread never waits:
if changes come faster than they are taken, the oldest are lost and counted.

A request is taken by the next tick. `RequestHandler` waits for that tick, though not for long, and
looks at its mode: an answer states what the arm does, not what was requested. It only reads what
ticks leave behind, so that it cannot hold one up, however often it is asked.
"""

from collections import deque
from collections.abc import Callable, Iterable, Sequence
import time
from typing import NamedTuple

import numpy as np

from metactl_ros.control.modes import Cause, Mode
from metactl_ros.dynamics.rigid_body import ArmModel, JointLimits
from metactl_ros.runtime.controller import LiveController, Tick
from metactl_ros.signals import NANOSECONDS_PER_SECOND, seconds

MAX_PENDING = 64
"""Changes kept until they are taken."""
MAX_RECENT = 8
"""Changes kept for diagnostics."""


class Text(NamedTuple):
    """Words for a cause."""

    happened: str
    remedy: str

    def to_do(self, mode: Mode) -> str:
        """Return the remedy, and how the mode is left."""
        leaving = None if self is ENDS else LEAVING.get(mode)
        return f'{self.remedy}; {leaving}' if leaving else self.remedy


TEXTS = {
    Cause.NONE: Text('all is well', 'nothing to do'),
    Cause.WINDOW_NOT_FULL: Text('the window is being filled with new states', 'wait'),
    Cause.POLICY_FAILED: Text(
        'the policy was late, raised an error, or proposed nothing that the shield could use',
        'see "policy errors" and "inference" in the diagnostics; nominal gains hold meanwhile',
    ),
    Cause.RECOVERING: Text('all is well again, but not yet for long enough', 'wait'),
    Cause.NO_REFERENCE: Text(
        'there is no reference, or not a valid one', 'send a trajectory to ~/joint_trajectory'
    ),
    Cause.OUTSIDE_LIMITS: Text(
        'a joint is outside its position or velocity limits',
        'move the arm back within the limits of arm.yaml, or correct them',
    ),
    Cause.CONDITION_VIOLATED: Text(
        'the Lyapunov condition did not hold, tick after tick',
        'check payload, effort limits and rates, and model of the arm',
    ),
    Cause.NO_MOTION: Text(
        'a joint had its full effort and did not move', 'check brakes, drives and obstacles'
    ),
    Cause.STALE_STATE: Text(
        'no joint state came in time, or the controller itself was late',
        'check the robot, its network, and "late ticks" in the diagnostics',
    ),
    Cause.BLIND_TOO_LONG: Text(
        'no joint state came for too long', 'check the robot and its network'
    ),
    Cause.FLAPPING: Text(
        'the mode became worse too often within a second',
        'see the changes before this one; often a loose plug',
    ),
    Cause.STOP_FAILED: Text(
        'the arm did not come to rest in STOP', 'check brakes, drives and the signs of velocities'
    ),
    Cause.TRACKING_ERROR: Text(
        'a joint was too far from its reference',
        'check payload, drives and obstacles, and whether the reference can be followed',
    ),
    Cause.OVERSPEED: Text(
        'a joint was faster than its limit', 'check the unit of velocities, payload and drives'
    ),
    Cause.BEYOND_LIMITS: Text(
        'a joint was beyond its position limit', 'move the arm back within the limits of arm.yaml'
    ),
    Cause.FROZEN_STATE: Text(
        "a joint's readings stayed the same while it should have moved",
        'check encoder and bus of the joint',
    ),
    Cause.POSITION_VELOCITY_MISMATCH: Text(
        "a joint's positions and velocities contradict each other",
        'check sign, unit and delay of its velocity',
    ),
    Cause.EFFORT_MOTION_MISMATCH: Text(
        'a joint does not move as its effort and the model say',
        'check sign and unit of efforts, the drives, and the model in arm.yaml',
    ),
    Cause.INTERNAL_ERROR: Text(
        'an exception was raised, or an effort failed the last check', 'see the log, and report it'
    ),
    Cause.SECOND_SOURCE: Text(
        'more than one publisher speaks for the arm, or to it', 'end all but one'
    ),
    Cause.CLOCK_MISMATCH: Text(
        'the stamps of the robot do not keep pace with time', 'check the clock of the robot'
    ),
    Cause.POSITION_LEAP: Text(
        'positions leapt further than the arm could have moved, and stayed there',
        'check where the arm really is, its encoders, and whether another arm publishes',
    ),
}
HELD = Text('the operator holds the arm', 'call ~/enable with true')
ENDS = Text('control ends: the torque fades to zero', 'nothing to do')
LEAVING = {
    Mode.STOP: 'it goes on by itself once the arm rests and all is well',
    Mode.BLIND: 'it goes on by itself once states come again',
    Mode.FAULT: 'then call ~/reset_fault',
}
"""What else a remedy needs: how a mode is left."""


class Change(NamedTuple):
    """A mode that became another."""

    number: int
    """From 1, without a gap."""
    at_ns: int
    """On the steady clock."""
    before: Mode | None
    """None: control began."""
    mode: Mode
    cause: Cause
    text: Text
    joint: str
    """Which joint the cause is about; empty if none in particular."""

    def __str__(self) -> str:
        begin = 'control begins' if self.before is None else self.before.name
        return f'{begin} -> {explain(self.mode, self.cause, self.text, self.joint)}'


def explain(mode: Mode, cause: Cause, text: Text, joint: str) -> str:
    """Return mode, cause and remedy in one line."""
    where = f', {joint}' if joint else ''
    return f'{mode.name} ({cause.name}{where}): {text.happened}. To do: {text.to_do(mode)}.'


def joint_of(tick: Tick, joint_names: Sequence[str]) -> str:
    """Return the name of the joint that the cause of a tick is about, empty if there is none."""
    return joint_names[tick.joint] if 0 <= tick.joint < len(joint_names) else ''


def text_of(cause: Cause, *, is_enabled: bool, is_ending: bool = False) -> Text:
    """Return the words for a cause; the loop does not know who holds an arm, and who ends it."""
    if is_ending:
        return ENDS
    if cause == Cause.NO_REFERENCE and not is_enabled:
        return HELD
    return TEXTS[cause]


class ModeLog:
    """The changes of the mode: one thread notes them, another takes them."""

    def __init__(self, joint_names: Sequence[str] = ()) -> None:
        self._joint_names = joint_names
        self._mode: Mode | None = None
        self._num_taken = 0
        self.num_changes = 0
        self._pending: deque[Change] = deque(maxlen=MAX_PENDING)
        self.recent: deque[Change] = deque(maxlen=MAX_RECENT)
        """The last changes, newest last."""
        self.is_ending = False
        """Set by the thread that ends control: what changes from then on has no other cause."""

    def note(self, tick: Tick, now_ns: int, *, is_enabled: bool) -> None:
        """Note the mode of the last tick, at a time of the steady clock."""
        mode = tick.mode
        if mode == self._mode:
            return
        cause = tick.cause
        text = text_of(cause, is_enabled=is_enabled, is_ending=self.is_ending)
        self.num_changes += 1
        joint = joint_of(tick, self._joint_names)
        change = Change(self.num_changes, now_ns, self._mode, mode, cause, text, joint)
        self._mode = mode
        self._pending.append(change)
        self.recent.append(change)

    def take(self) -> tuple[list[Change], int]:
        """Return the changes since the last call, oldest first, and how many were lost."""
        taken: list[Change] = []
        while self._pending:
            taken.append(self._pending.popleft())
        if not taken:
            return [], 0
        num_new = taken[-1].number - self._num_taken
        self._num_taken = taken[-1].number
        return taken, num_new - len(taken)


def recent_lines(changes: Iterable[Change], now_ns: int) -> dict[str, object]:
    """Return changes for diagnostics, newest first, by when they came."""
    return {
        f'change {place}': f'{seconds(now_ns - change.at_ns):.1f} s ago: {change}'
        for place, change in enumerate(reversed([*changes]), start=1)
    }


ANSWER_WITHIN_S = 0.5
"""How long an answer may take."""
POLL_ANSWER_S = 0.002
"""How often it is checked whether a tick has taken a request."""
CLEAR_EVERY_NS = NANOSECONDS_PER_SECOND
"""How often the context may be cleared: cleared all the time, it would stay empty."""


class Answer(NamedTuple):
    """What became of a request."""

    success: bool
    message: str


NOT_TAKEN = Answer(False, f'no tick came within {ANSWER_WITHIN_S} s: is there a joint state?')


class RequestHandler:
    """Passes requests on to a controller, and waits for the ticks that take them."""

    def __init__(
        self, controller: LiveController, arm: ArmModel, is_driving: Callable[[], bool]
    ) -> None:
        self._controller, self._requests, self._arm = controller, controller.requests, arm
        self._is_driving = is_driving
        self._clear_after_ns = 0

    def enable(self, *, is_wanted: bool) -> Answer:
        """Let the arm move, or hold it where it is."""
        self._requests.is_enabled = is_wanted
        asked = 'enabled' if is_wanted else 'holding'
        if not self._is_driving():
            return Answer(True, f'{asked}, once the controller drives: it does not yet.')
        tick = self._tick_that_took(lambda: True)
        if tick is None:
            return NOT_TAKEN
        if is_wanted:
            # An arm that rolls out of STOP, or has no reference yet, is enabled all the same.
            is_done = tick.mode < Mode.STOP or (tick.mode, tick.cause) == (
                Mode.STOP,
                Cause.NO_REFERENCE,
            )
        else:
            is_done = tick.mode == Mode.STOP
        return Answer(is_done, f'{asked if is_done else "no effect yet"}: {self._explain(tick)}')

    def reset_fault(self) -> Answer:
        """Leave FAULT if all is well."""
        if not self._is_driving():
            return Answer(False, 'the controller does not drive: there is nothing to reset.')
        last = self._controller.last
        if last is not None and last.mode != Mode.FAULT:
            return Answer(True, f'no fault: {self._explain(last)}')
        self._requests.reset_fault = True
        tick = self._tick_that_took(lambda: not self._requests.reset_fault)
        if tick is None:
            self._requests.reset_fault = False
            return NOT_TAKEN
        if tick.mode != Mode.FAULT:
            return Answer(True, f'left FAULT: {self._explain(tick)}')
        doubt = Cause(int(self._controller.loop.doubts))
        still = '; '.join(
            f'{TEXTS[cause].happened} ({cause.name})'
            for cause in obstacles(tick, self._arm.limits, doubt)
        )
        return Answer(False, f'still bad: {still}. {self._explain(tick)}')

    def clear_context(self) -> Answer:
        """Empty the window and warm up again."""
        last, now_ns = self._controller.last, time.monotonic_ns()
        if last is None or not self._is_driving():
            return Answer(False, 'there is no context yet: no joint state has come')
        if last.mode >= Mode.STOP:
            return Answer(False, f'not in {last.mode.name}: ask again once the arm is driven')
        if now_ns < self._clear_after_ns:
            wait_s = seconds(self._clear_after_ns - now_ns)
            return Answer(False, f'cleared just now; ask again in {wait_s:.2f} s')
        self._clear_after_ns = now_ns + CLEAR_EVERY_NS
        self._requests.clear_context = True
        tick = self._tick_that_took(lambda: not self._requests.clear_context)
        if tick is None:
            self._requests.clear_context = False  # or it would be done much later, unasked
            return NOT_TAKEN
        return Answer(True, f'cleared: {self._explain(tick)}')

    def _tick_that_took(self, is_taken: Callable[[], bool]) -> Tick | None:
        """Return a tick that began after the request was made and taken; None if none came."""
        end_s = time.monotonic() + ANSWER_WITHIN_S
        last, num_after = self._controller.last, 0
        while time.monotonic() < end_s:
            time.sleep(POLL_ANSWER_S)
            tick = self._controller.last
            if tick is last or not is_taken():
                last = tick
                continue
            last, num_after = tick, num_after + 1
            if num_after == 2 and tick is not None:  # the first may have begun before
                return tick
        return None

    def _explain(self, tick: Tick) -> str:
        text = text_of(tick.cause, is_enabled=self._requests.is_enabled)
        return explain(tick.mode, tick.cause, text, joint_of(tick, self._arm.joint_names))


def obstacles(tick: Tick, limits: JointLimits, doubt: Cause) -> list[Cause]:
    """Return what keeps a controller in FAULT; if nothing else, what brought it there.

    `doubt` is what the guard finds wrong with the last state.
    """
    state, health = tick.state, tick.health
    is_outside = ((state.q_rad > limits.upper_rad) | (state.q_rad < limits.lower_rad)).any()
    is_fast = (np.abs(state.qd_radps) > limits.velocity_radps).any()
    found = [
        cause
        for cause, is_so in (
            (health.error, health.error != Cause.NONE),
            (doubt, doubt not in (Cause.NONE, health.error)),
            (Cause.STALE_STATE, not health.state_is_fresh),
            (Cause.NO_REFERENCE, not health.reference_is_valid),
            (Cause.OUTSIDE_LIMITS, is_outside or is_fast),
        )
        if is_so
    ]
    return found or [tick.cause]
