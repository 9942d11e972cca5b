# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""Why the mode changed, and what to do about it.

    log.note(tick, ...)    after every tick, by the control thread: two comparisons if all stays
    for text in log.take(): ...    by the thread that logs, later

Each change is written once, in the words of `TEXTS`. The control thread never waits: if changes
come faster than they are taken, the oldest are lost and counted.
"""

from collections import deque
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from metactl_ros.control.modes import Cause, Mode
from metactl_ros.runtime.controller import Tick
from metactl_ros.signals import seconds

MOST_NEWS = 64
"""Changes kept until they are taken."""
MOST_RECENT = 8
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
        'check payload, effort limits and model of the arm',
    ),
    Cause.NO_MOTION: Text(
        'a joint had its full effort and did not move',
        'check brakes, drives and obstacles',
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
        'an exception was raised, or an effort failed the last check',
        'see the log, and report it',
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
        self._news: deque[Change] = deque(maxlen=MOST_NEWS)
        self.recent: deque[Change] = deque(maxlen=MOST_RECENT)
        """The last changes, newest last."""
        self.is_ending = False
        """Set by the thread that ends control: what changes from then on has no other cause."""

    def note(self, tick: Tick, now_ns: int, *, is_enabled: bool) -> None:
        """Note the mode of a tick.

        Args:
            tick: The last one.
            now_ns: On the steady clock.
            is_enabled: Whether the operator lets the arm move.
        """
        mode = tick.mode
        if mode == self._mode:
            return
        cause = tick.cause
        text = text_of(cause, is_enabled=is_enabled, is_ending=self.is_ending)
        self.num_changes += 1
        joint = joint_of(tick, self._joint_names)
        change = Change(self.num_changes, now_ns, self._mode, mode, cause, text, joint)
        self._mode = mode
        self._news.append(change)
        self.recent.append(change)

    def take(self) -> tuple[list[Change], int]:
        """Return the changes since the last call, oldest first, and how many were lost."""
        taken: list[Change] = []
        while self._news:
            taken.append(self._news.popleft())
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
