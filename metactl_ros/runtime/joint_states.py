# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""Joint states: read by name, accepted if newer, in step with time and possible, kept for a tick.

Messages are sensor_msgs/JointState. What arrives may be anything: rclpy passes NaN, wrong lengths
and empty fields on as they are, and `read_joint_state` says why one cannot be used. Of the others
a `StateGate` accepts what the arm may have done:

    stamp not ahead of the last                   refused: sent again, out of order
    stamp and steady clock disagree by over 1 s   refused: a clock jumped, or another arm speaks
    stamp behind or ahead of its pace             refused: late, or a clock drifts (`StampClock`)
    moved further than its fastest joint could    refused: a glitch, or another arm speaks

A robot that restarts is all of this at once, and so is a clock that is set once. So ten refused
states in a row that agree with each other begin a new timeline. The stamps that leave the gate
never go back: they begin at zero with the first state, and across a break they advance by the
steady clock. If it was the motion that was impossible, the arm did not do it: an encoder slipped,
or it is another arm. Its states are accepted again, as a new timeline or because by then the arm
could be there, but the leap is counted, and ends in a FAULT.

Stamps that drift agree with nothing: if for a second none is accepted because of its stamp, or
three new timelines were begun within ten seconds because of them, the clock drifts. From then on
ten states do not do: only a second of stamps that keep pace begins a new timeline. Else a clock at
half its pace would be accepted for some states of every second, and a FAULT be reset with them.
States that come late and stay late end in the same way: no gains hold an arm by old feedback.

A `StampClock` compares stamps with the steady clock:

    delay = received - stamp = offset of the two clocks + time on the way

The offset is unknown; the time on the way is never negative, and mostly short. So the least delay
of a while shows the offset, as in the clock filter of NTP, and least delays that move show clocks
that drift. A state is out of step if its delay is

    behind   above a least delay of the last two seconds: its stamp runs slow, or it came late
    ahead    below the least one of the first of these seconds: its stamp runs fast, or it would
             have come before it was sent

by more than a tolerance for the way and 5 % of the time between the two states. What is behind may
be `LATE_NS` late in any case: the loop tolerates feedback that old. A line that stalls delivers
late what was sent meanwhile, and that is too old; what comes after it is not. Before two seconds
are known, the first states may all have come late, by `STALL_NS`.
"""

from collections import Counter, deque
from collections.abc import Sequence
import threading
from typing import Any, NamedTuple

import numpy as np

from metactl_ros.control.inputs import ABSURD
from metactl_ros.dynamics.rigid_body import ArmModel
from metactl_ros.errors import MetactlError
from metactl_ros.signals import ArmState, Array, NANOSECONDS_PER_SECOND, seconds

LAST_STAMP_NS = 2**31 * NANOSECONDS_PER_SECOND - 1
"""The last time that builtin_interfaces/Time can hold, in January 2038: its seconds are int32."""
EFFORT_MARGIN = 1.2
"""How much larger than its limit a measured effort may be: sensors have noise."""


class MessageError(MetactlError, ValueError):
    """A message cannot be used; the text names the joint."""


class JointSample(NamedTuple):
    """What a JointState holds of the arm's joints, in the arm's order."""

    stamp_ns: int
    q_rad: Array
    """Shape (n,), finite."""
    qd_radps: Array
    """Shape (n,), finite."""
    effort_nm: Array | None
    """Shape (n,); None if the message has no efforts, or one that is not finite."""


def read_joint_state(message: Any, joint_names: Sequence[str]) -> JointSample:
    """Return the joints of the arm from a JointState; others may be there as well.

    Raises:
        MessageError: If a joint is missing or there twice, a position or velocity is missing, not
            finite or absurd, or the stamp is zero or negative.
    """
    stamp_ns = nanoseconds(message.header.stamp)
    if stamp_ns <= 0:
        raise MessageError('joint state: has no stamp; set header.stamp to the time of measuring.')
    places = find_joints(message.name, joint_names)
    q = _pick(message.position, 'position', message.name, places)
    qd = _pick(message.velocity, 'velocity', message.name, places)
    effort: Array | None = None
    if len(message.effort) == len(message.name):
        effort = np.array([message.effort[place] for place in places])
        effort = effort if np.isfinite(effort).all() else None
    return JointSample(stamp_ns, q, qd, effort)


def effort_doubt(
    sample: JointSample, largest_nm: Sequence[float], joint_names: Sequence[str]
) -> str:
    """Return why the efforts of a sample cannot be right, nothing if they may be.

    One joint beyond its limit is enough to reject all: a driver that reports currents does so for
    every joint.
    """
    if sample.effort_nm is None:
        return ''
    for joint, effort, largest in zip(joint_names, sample.effort_nm, largest_nm, strict=True):
        if abs(effort) > EFFORT_MARGIN * largest:
            return (
                f'joint {joint!r}: measured effort rejected, with those of the others: '
                f'expected at most {EFFORT_MARGIN:g} times its limit of {largest:g} N m, found '
                f'{effort:g}; publish N m. Control begins from the gravity torque of the model.'
            )
    return ''


def read_effort(message: Any, joint_names: Sequence[str]) -> tuple[int, Array]:
    """Return stamp (ns) and efforts (N m), shape (n,), of a stamped command.

    Raises:
        MessageError: If a joint is missing or there twice, or an effort is missing, not finite or
            absurd.
    """
    places = find_joints(message.name, joint_names)
    return nanoseconds(message.header.stamp), _pick(message.effort, 'effort', message.name, places)


def find_joints(names: Sequence[str], joint_names: Sequence[str]) -> list[int]:
    """Return where each joint of the arm is among the names of a message."""
    places = {name: place for place, name in enumerate(names)}
    for joint in joint_names:
        if joint not in places:
            raise MessageError(
                f'joint {joint!r}: not in the message, which names {list(names)}; publish it, or '
                'set the joint names of the arm.'
            )
    if len(places) != len(names):
        twice = next(name for place, name in enumerate(names) if places[name] != place)
        raise MessageError(f'joint {twice!r}: named twice in one message; publish it once.')
    return [places[joint] for joint in joint_names]


def _pick(values: Sequence[float], field: str, names: Sequence[str], places: list[int]) -> Array:
    if len(values) != len(names):
        missing = names[min(len(values), len(names) - 1)]
        raise MessageError(
            f'joint {missing!r}: expected one {field} per name, found {len(values)} for '
            f'{len(names)} names; publish positions and velocities of every joint named.'
        )
    picked = [float(values[place]) for place in places]
    for place, value in zip(places, picked, strict=True):
        if not abs(value) <= ABSURD:  # NaN is not
            raise MessageError(
                f'joint {names[place]!r}: expected a finite {field} of at most {ABSURD:g}, '
                f'found {value}.'
            )
    return np.array(picked)


def nanoseconds(stamp: Any) -> int:
    """Return a builtin_interfaces/Time or Duration in ns."""
    return int(stamp.sec) * NANOSECONDS_PER_SECOND + int(stamp.nanosec)


def set_stamp(stamp: Any, stamp_ns: int) -> None:
    """Write a time in ns into a builtin_interfaces/Time; what it cannot hold, as its nearest."""
    held_ns = min(max(stamp_ns, -LAST_STAMP_NS - 1), LAST_STAMP_NS)
    stamp.sec, stamp.nanosec = divmod(held_ns, NANOSECONDS_PER_SECOND)


CLOCK_TOLERANCE_NS = NANOSECONDS_PER_SECOND
"""How far stamps may drift from the steady clock between two states of a real robot."""
SPEED_TOLERANCE = 2.0
"""How much faster than its limit a joint may seem to move between two states."""
ADOPT_AFTER = 10
"""Refused states in a row, each in step with the one before, that begin a new timeline."""
DRIFTS_AFTER_NS = NANOSECONDS_PER_SECOND
"""For so long no stamp is accepted before the clock is called drifting."""
DRIFTS_WITH, DRIFTS_WITHIN_NS = 3, 10 * NANOSECONDS_PER_SECOND
"""So many new timelines because of stamps, within so long, are a drift as well."""
LATE, DISTRUSTED = 'late states', 'distrusted stamps'
OF_CLOCKS = ('old stamps', 'clock jumps', LATE, DISTRUSTED)
"""Objections to the stamp, not to what it belongs to."""
IMPOSSIBLE = 'impossible motions'
COUNTED = ('accepted', 'dropped', *OF_CLOCKS, IMPOSSIBLE, 'new timelines', 'leaps', 'clock drifts')


class StateGate:
    """Turns samples into states on one timeline, or refuses them.

    Simulated time knows no steady clock: there `state_timeout_ns` is None.
    """

    def __init__(self, arm: ArmModel, period_ns: int, state_timeout_ns: int | None) -> None:
        self._clock: StampClock | None = None
        if state_timeout_ns is not None:  # a state may be so old, and hence so late
            self._clock = StampClock(min(state_timeout_ns, STALL_NS))
        self._fastest_radps = SPEED_TOLERANCE * np.array(arm.limits.velocity_radps)
        self._period_ns = period_ns
        self._offset_ns = 0
        self._last: tuple[JointSample, int] | None = None
        self._refused: tuple[JointSample, int] | None = None
        self._refused_for = ''
        self._first_refused: tuple[int, int] = (0, 0)
        self._streak = 0
        self._lost_ns: int | None = None
        self._adopted_ns: deque[int] = deque(maxlen=DRIFTS_WITH)
        self._is_distrusted = False
        """Whether the clock drifted and has not kept pace for a second since."""
        self.counts = Counter(dict.fromkeys(COUNTED, 0))
        """How many were accepted, dropped on the way, and refused, by reason."""

    def admit(self, sample: JointSample, received_ns: int) -> ArmState | None:
        """Return the state on the gate's timeline, or None if it is refused.

        Args:
            sample: A finite sample (`read_joint_state`).
            received_ns: When it came, on the steady clock.
        """
        if self._last is None:
            self._offset_ns = sample.stamp_ns
            return self._accept(sample, received_ns)
        objection = self._objection(self._last, sample, received_ns) or self._out_of_step(
            sample, received_ns
        )
        if objection is None:
            self.counts['leaps'] += self._goes_on_from_leap(sample, received_ns)
            gap_ns = sample.stamp_ns - self._last[0].stamp_ns
            self.counts['dropped'] += max(round(gap_ns / self._period_ns) - 1, 0)
            return self._accept(sample, received_ns)
        self.counts[objection] += 1
        self._streak = self._streak + 1 if self._agrees(sample, received_ns) else 1
        self._refused, self._refused_for = (sample, received_ns), objection
        if self._streak == 1:
            self._first_refused = (received_ns - sample.stamp_ns, received_ns)
        if self._clock is not None and objection in OF_CLOCKS:
            self._note_lost(received_ns)
        if self._streak < ADOPT_AFTER or not self._may_adopt(received_ns, objection):
            return None
        return self._adopt(sample, received_ns, objection)

    def _adopt(self, sample: JointSample, received_ns: int, objection: str) -> ArmState:
        """Begin a new timeline where the old one is by now."""
        assert self._last is not None
        last, last_received_ns = self._last
        passed_ns = max(received_ns - last_received_ns, self._period_ns)
        self._offset_ns = sample.stamp_ns - (last.stamp_ns - self._offset_ns) - passed_ns
        self.counts['new timelines'] += 1
        self.counts['leaps'] += objection == IMPOSSIBLE
        if self._clock is not None:
            self._clock.restart()
        return self._accept(sample, received_ns)

    def _may_adopt(self, received_ns: int, objection: str) -> bool:
        """Return whether refused states that agree with each other begin a new timeline.

        States that come late and go on coming late are no other clock: the arm is far away.
        """
        if self._is_distrusted:
            if received_ns - self._first_refused[1] < DRIFTS_AFTER_NS:
                return False
            self._is_distrusted = False  # it has kept pace since: all is forgiven
            self._adopted_ns.clear()
            return True
        if self._clock is None or objection not in OF_CLOCKS:
            return True
        if objection == LATE:
            return False
        self._adopted_ns.append(received_ns)
        is_full = len(self._adopted_ns) == DRIFTS_WITH
        if is_full and received_ns - self._adopted_ns[0] <= DRIFTS_WITHIN_NS:
            self._distrust(received_ns)
        return not self._is_distrusted

    def _note_lost(self, received_ns: int) -> None:
        """Notice how long no stamp could be accepted; one that is put to the test may yet be."""
        if self._lost_ns is None:
            self._lost_ns = received_ns
        is_tested = self._is_distrusted and self._streak > 1
        if received_ns - self._lost_ns >= DRIFTS_AFTER_NS and not is_tested:
            self._distrust(received_ns)
            self._first_refused = (self._first_refused[0], received_ns)

    def _distrust(self, received_ns: int) -> None:
        self.counts['clock drifts'] += 1
        self._is_distrusted, self._lost_ns = True, received_ns

    def _goes_on_from_leap(self, sample: JointSample, received_ns: int) -> bool:
        """Return whether a state that is possible by now is where an impossible one led."""
        if self._refused is None or self._refused_for != IMPOSSIBLE:
            return False
        return self._objection(self._refused, sample, received_ns) is None

    def _agrees(self, sample: JointSample, received_ns: int) -> bool:
        """Return whether a refused state goes on from those refused before it."""
        if self._refused is None or self._objection(self._refused, sample, received_ns):
            return False
        delay_ns = received_ns - sample.stamp_ns
        return self._clock is None or self._clock.agree(delay_ns, received_ns, self._first_refused)

    def _out_of_step(self, sample: JointSample, received_ns: int) -> str | None:
        delay_ns = received_ns - sample.stamp_ns
        if self._clock is None:
            return None
        if self._clock.is_behind(delay_ns, received_ns):
            return LATE
        if self._clock.is_ahead(delay_ns, received_ns):
            return 'clock jumps'
        return DISTRUSTED if self._is_distrusted else None

    def _objection(
        self, last: tuple[JointSample, int], sample: JointSample, received_ns: int
    ) -> str | None:
        before, before_ns = last
        passed_ns = sample.stamp_ns - before.stamp_ns
        if passed_ns <= 0:
            return 'old stamps'
        drift_ns = abs(passed_ns - (received_ns - before_ns))
        if self._clock is not None and drift_ns > CLOCK_TOLERANCE_NS:
            return 'clock jumps'
        reach = self._fastest_radps * max(seconds(passed_ns), seconds(self._period_ns))
        if (np.abs(sample.q_rad - before.q_rad) > reach).any():
            return IMPOSSIBLE
        return None

    def _accept(self, sample: JointSample, received_ns: int) -> ArmState:
        self._last, self._refused, self._streak = (sample, received_ns), None, 0
        self._lost_ns = None
        if self._clock is not None:
            self._clock.note(received_ns - sample.stamp_ns, received_ns)
        self.counts['accepted'] += 1
        return ArmState(sample.stamp_ns - self._offset_ns, sample.q_rad, sample.qd_radps)


DRIFT = 0.05
"""By this share of the time between two states the time between their stamps may differ."""
STALL_NS = 200_000_000
"""How long a line or a machine may stall while it begins."""
SPAN_NS = 2 * NANOSECONDS_PER_SECOND
"""What came longer ago is forgotten."""
BLOCK_NS = SPAN_NS // 20
"""The least delay is kept for each so long while."""
LATE_NS = 50_000_000
"""How much later than others a state may come, at least."""


class StampClock:
    """Compares stamps with the steady clock over the last two seconds."""

    def __init__(self, tolerance_ns: int) -> None:
        self._tolerance_ns = tolerance_ns
        self._blocks: deque[tuple[int, int, int]] = deque()
        """When each begins, its least delay, and when the state with it came, ns."""

    def _forget(self, received_ns: int) -> None:
        while self._blocks and self._blocks[0][0] < received_ns - SPAN_NS:
            self._blocks.popleft()

    def is_behind(self, delay_ns: int, received_ns: int) -> bool:
        """Return whether a state comes too late, or its stamp is too old."""
        self._forget(received_ns)
        allowed_ns = max(self._tolerance_ns, LATE_NS)
        return any(
            delay_ns - least_ns > allowed_ns + DRIFT * (received_ns - at_ns)
            for _, least_ns, at_ns in self._blocks
        )

    def is_ahead(self, delay_ns: int, received_ns: int) -> bool:
        """Return whether the stamp of a state is too new."""
        self._forget(received_ns)
        if not self._blocks:
            return False
        early = [block[1:] for block in self._blocks if block[0] <= received_ns - SPAN_NS // 2]
        is_known = self._blocks[0][0] <= received_ns - SPAN_NS + BLOCK_NS
        least_ns, at_ns = min(early) if is_known else self._blocks[0][1:]
        allowed_ns = self._tolerance_ns + (0 if is_known else STALL_NS)
        return least_ns - delay_ns > allowed_ns + DRIFT * (received_ns - at_ns)

    def agree(self, delay_ns: int, received_ns: int, other: tuple[int, int]) -> bool:
        """Return whether a state is in step with another, of (delay, received)."""
        allowed_ns = self._tolerance_ns + DRIFT * (received_ns - other[1])
        return abs(delay_ns - other[0]) <= allowed_ns

    def note(self, delay_ns: int, received_ns: int) -> None:
        """Learn from a state that is accepted."""
        begin_ns, least_ns, _ = self._blocks[-1] if self._blocks else (-BLOCK_NS, 0, 0)
        if not self._blocks or received_ns - begin_ns >= BLOCK_NS:
            self._blocks.append((received_ns, delay_ns, received_ns))
        elif delay_ns < least_ns:
            self._blocks[-1] = (begin_ns, delay_ns, received_ns)

    def restart(self) -> None:
        """Forget all delays: they were those of another clock."""
        self._blocks.clear()


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
