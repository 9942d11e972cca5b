# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""What the controllers of a run sent on both topics of commands, and which states they accepted.

Other nodes may publish there as well. A recording does not say who did, but publishers number
their messages: rows of numbers that go on belong together, and a controller's own have the stamps
of its ticks. What the recorder itself has missed is missing from these numbers, and is no mistake:
it needs a moment to find a robot that was started again. For such gaps, the states that the
controller reports to have used count instead.
"""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from metactl_ros.bag.topics import FORWARD, SHIELD_NAMES, STAMPED
from metactl_ros.check.invariants import Commands, States
from metactl_ros.ros.parameters import defaults_of
from metactl_ros.runtime.joint_samples import (
    JointSample,
    MessageError,
    nanoseconds,
    read_joint_state,
)
from metactl_ros.runtime.state_gate import ADOPT_AFTER, StateGate
from metactl_ros.settings import load_settings, Settings
from metactl_ros.signals import Array, NANOSECONDS_PER_SECOND, period_ns_of

MAX_LAG = 5
"""By how many messages one topic may end before the other: a kill comes between the two."""
NEAR_NS = NANOSECONDS_PER_SECOND // 100
"""Messages of the two topics that belong together are published within this time."""
NUM_STATES = SHIELD_NAMES.index('num_states')


class DecodedMessage(NamedTuple):
    """A message of the bag, with the fields of its type."""

    published_ns: int
    sequence: int
    """Its number among those of its publisher, from 1."""
    message: Any

    @property
    def stamp_ns(self) -> int:
        """The stamp of its header."""
        return nanoseconds(self.message.header.stamp)


class SentCommands(NamedTuple):
    """What a controller commanded, and every one that was started in its place."""

    commands: Commands
    restarts_ns: tuple[int, ...]
    """When the first command of each further controller came."""
    problems: tuple[str, ...]
    """What was not as it must be: one named, equal command per tick on both topics."""
    foreign_ns: NDArray[np.int64]
    """When another node sent commands, on either topic, shape (F,)."""


class _State(NamedTuple):
    published_ns: int
    q_rad: Array
    effort_nm: Array


def by_publisher(messages: Sequence[DecodedMessage]) -> list[list[DecodedMessage]]:
    """Return the messages of a topic, one list for each publisher.

    A message goes on in the list whose last number is nearest below its own, the latest of equals;
    without one, another publisher has begun.
    """
    rows: list[list[DecodedMessage]] = []
    for entry in messages:
        before = [row for row in rows if row[-1].sequence < entry.sequence]
        if before:
            max(before, key=lambda row: (row[-1].sequence, row[-1].published_ns)).append(entry)
        else:
            rows.append([entry])
    return rows


def sent_commands(
    stamped: Sequence[DecodedMessage],
    forwarded: Sequence[DecodedMessage],
    ticks_ns: Collection[int],
    joint_names: Sequence[str],
) -> SentCommands | None:
    """Return the commands of the controllers whose ticks have the given stamps; None without any.

    Args:
        stamped: The messages of joint_commands.
        forwarded: Those of forward_effort_controller/commands.
        ticks_ns: The stamps of all ticks.
        joint_names: Of the arm, in its order.
    """
    ticks = set(ticks_ns)
    publishers, forwarders = by_publisher(stamped), by_publisher(forwarded)
    own = [row for row in publishers if any(entry.stamp_ns in ticks for entry in row)]
    if not own:
        return None
    rows = [entry for row in own for entry in row]
    commands = Commands(
        np.array([entry.stamp_ns for entry in rows], dtype=np.int64),
        np.array([entry.published_ns for entry in rows], dtype=np.int64),
        np.array([_efforts(entry.message.effort, len(joint_names)) for entry in rows]),
    )
    restarts_ns = tuple(row[0].published_ns for row in own[1:])
    problems = [*_misnamed(rows, joint_names), *_per_tick(own, ticks)]
    partners = [_partner(row, forwarders) for row in own]
    for row, partner in zip(own, partners, strict=True):
        problems += _differences(row, partner, joint_names)
    foreign_ns = sorted(
        entry.published_ns
        for everyone, known in ((publishers, own), (forwarders, partners))
        for row in everyone
        for entry in row
        if not any(row is mine for mine in known)
    )
    return SentCommands(commands, restarts_ns, tuple(problems), np.array(foreign_ns, np.int64))


def _efforts(values: Any, length: int) -> list[float]:
    """Return a row of efforts; one of another length is none at all."""
    return list(values) if len(values) == length else [np.nan] * length


def _misnamed(rows: Sequence[DecodedMessage], joint_names: Sequence[str]) -> list[str]:
    wrong = [row for row in rows if list(row.message.name) != list(joint_names)]
    if not wrong:
        return []
    found = list(wrong[0].message.name)
    return [f'{len(wrong)} of {STAMPED} name {found} instead of {list(joint_names)}']


def _per_tick(own: Sequence[Sequence[DecodedMessage]], ticks: set[int]) -> list[str]:
    """Return which ticks have no command, or several."""
    problems = []
    times = Counter(entry.stamp_ns for row in own for entry in row)
    several = [stamp for stamp, number in times.items() if number > 1 and stamp in ticks]
    if several:
        problems.append(f'{len(several)} ticks have more than one command')
    for row in own:
        stamps = [entry.stamp_ns for entry in row if entry.stamp_ns in ticks]
        between = sum(stamps[0] < tick < stamps[-1] for tick in ticks)
        missing = between - max(len(set(stamps)) - 2, 0)
        lost = sum(after.sequence - before.sequence - 1 for before, after in pairwise(row))
        if missing > lost:
            problems.append(f'{missing - lost} ticks have no command')
    return problems


def _partner(
    row: Sequence[DecodedMessage], others: Sequence[Sequence[DecodedMessage]]
) -> Sequence[DecodedMessage]:
    """Return the messages of the other topic that were published along with these."""
    when = {entry.sequence: entry.published_ns for entry in row}

    def num_near(other: Sequence[DecodedMessage]) -> int:
        return sum(
            abs(when.get(entry.sequence, -NEAR_NS) - entry.published_ns) < NEAR_NS
            for entry in other
        )

    best = max(others, key=num_near, default=())
    return best if num_near(best) else ()


def _differences(
    row: Sequence[DecodedMessage], partner: Sequence[DecodedMessage], joint_names: Sequence[str]
) -> list[str]:
    """Return how the messages of two topics differ that have the same numbers."""
    if not partner:
        return [f'{FORWARD} is silent']
    forwarded = {entry.sequence: entry.message for entry in partner}
    label = ','.join(joint_names)
    unequal = unnamed = 0
    for entry in row:
        other = forwarded.get(entry.sequence)
        if other is None:
            continue
        unequal += not np.array_equal(entry.message.effort, other.data, equal_nan=True)
        unnamed += [dim.label for dim in other.layout.dim] != [label]
    problems = []
    if unequal:
        problems.append(f'{unequal} commands differ between the two topics')
    if unnamed:
        problems.append(f'{unnamed} of {FORWARD} do not name the joints')
    ends = row[-1].sequence, partner[-1].sequence
    if abs(ends[0] - ends[1]) > MAX_LAG:
        problems.append(f'{STAMPED} ends with number {ends[0]}, the other with {ends[1]}')
    return problems


def accepted_states(
    by_topic: Mapping[str, Sequence[DecodedMessage]], restarts_ns: Sequence[int]
) -> States:
    """Return the usable states that a controller's gate lets in, by the time of publishing.

    Args:
        by_topic: The messages of joint_states, controller/shield and controller/feedback.
        restarts_ns: When the first command of each further controller came.
    """
    settings = load_settings()
    messages = sorted(by_topic['joint_states'], key=lambda entry: entry.published_ns)
    period_ns = period_ns_of(settings.controller.law.rate_hz)
    missed = _reported(by_topic, recording_gaps_ns(messages), period_ns)
    rows = [*_admitted(messages, restarts_ns, settings), *missed]
    rows.sort(key=lambda row: row.published_ns)
    shape = (-1, len(settings.arm.joint_names))
    return States(
        np.array([row.published_ns for row in rows], dtype=np.int64),
        np.array([row.q_rad for row in rows], dtype=np.float64).reshape(shape),
        np.array([row.effort_nm for row in rows], dtype=np.float64).reshape(shape),
    )


def recording_gaps_ns(messages: Sequence[DecodedMessage]) -> list[tuple[int, int]]:
    """Return the spans in which the recorder missed messages, as their numbers show."""
    gaps = []
    for row in by_publisher(messages):
        earlier = messages[: messages.index(row[0])]
        before_ns = max((entry.published_ns for entry in earlier), default=0)
        before = 0
        for entry in row:
            if entry.sequence != before + 1:
                gaps.append((before_ns, entry.published_ns))
            before_ns, before = entry.published_ns, entry.sequence
    return gaps if messages else [(0, 2**63 - 1)]


class _Gate(StateGate):
    """A gate that lets drifting stamps pass: when they are noticed depends on when it began."""

    def _out_of_step(self, sample: JointSample, received_ns: int) -> str | None:
        return None

    def _distrust(self, received_ns: int) -> None:
        pass  # whether and when the controller did depends on when it began


def _admitted(
    messages: Sequence[DecodedMessage], restarts_ns: Sequence[int], settings: Settings
) -> list[_State]:
    """Return the states of a recording that the gates of the controllers admit."""
    arm, left = settings.arm, list(restarts_ns)
    period_ns = period_ns_of(settings.controller.law.rate_hz)
    timeout_s = defaults_of('controller_node.yaml')['state_timeout_s']
    make_gate = partial(_Gate, arm, period_ns, round(timeout_s * NANOSECONDS_PER_SECOND))
    gate, rows = make_gate(), []
    waiting: list[_State] = []  # refused, but a gate that began at another state may admit them
    for entry in messages:
        if left and entry.published_ns >= left[0]:  # a new controller has a new gate
            gate = make_gate()
            left.pop(0)
        try:
            sample = read_joint_state(entry.message, arm.joint_names)
        except MessageError:
            continue
        unknown = np.full(len(arm.joint_names), np.nan)
        effort = unknown if sample.effort_nm is None else sample.effort_nm
        waiting.append(_State(entry.published_ns, sample.q_rad, effort))
        num_timelines = gate.counts['new timelines']
        if gate.admit(sample, entry.published_ns) is not None:
            is_new = gate.counts['new timelines'] > num_timelines
            rows += waiting[-ADOPT_AFTER:] if is_new else waiting[-1:]
            waiting = []
    return rows


def _reported(
    by_topic: Mapping[str, Sequence[DecodedMessage]],
    gaps: Sequence[tuple[int, int]],
    period_ns: int,
) -> list[_State]:
    """Return the states that the controller reports to have used while the recorder had a gap."""
    feedback = {entry.stamp_ns: entry.message for entry in by_topic['controller/feedback']}
    rows = []
    for entry in by_topic['controller/shield']:
        used = feedback.get(entry.stamp_ns)
        # A tick is published after its command. Its state came before, its stamp may be any.
        came_ns = entry.published_ns - period_ns
        is_missed = any(begin <= came_ns <= end for begin, end in gaps)
        if is_missed and used is not None and entry.message.position[NUM_STATES]:
            rows.append(_State(came_ns, np.asarray(used.position), np.asarray(used.effort)))
    return rows
