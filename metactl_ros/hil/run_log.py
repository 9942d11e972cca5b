# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""What happened in a run of a scenario, read from its bag and from `run.json`.

Times are those of publishing, on the clock of the machine: in seconds since the first step the
robot was driven, unless they are in ns.

Others than the controllers of a run may publish on the topics of commands. A recording does not
say who did, but publishers number their messages: rows of numbers that go on belong together, and
a controller's own have the stamps of its ticks. What the recorder itself has missed is missing
from these numbers, and is no mistake: it needs a moment to find a robot that was started again.
For such gaps, the states that the controller reports to have used count instead.
"""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
import json
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from metactl_ros.bag.reader import BagError, read_messages
from metactl_ros.bag.topics import FORWARD, SHIELD_NAMES, STAMPED
from metactl_ros.check.invariants import Commands, States
from metactl_ros.dynamics.rigid_body import ArmModel
from metactl_ros.hil.scenario import HARMLESS, Scenario, ScriptedFault
from metactl_ros.options import defaults_of
from metactl_ros.runtime.joint_states import (
    ADOPT_AFTER,
    JointSample,
    MessageError,
    nanoseconds,
    read_joint_state,
    StateGate,
)
from metactl_ros.settings import Settings
from metactl_ros.signals import Array, NANOSECONDS_PER_SECOND, period_ns_of

TOPICS = (
    *('joint_states', STAMPED, FORWARD, 'plant/truth', 'plant/braking', 'plant/faults'),
    *('controller/shield', 'controller/reference', 'controller/feedback'),
)
MAX_STATE_AGE_NS = 300_000_000
"""A truth that was published longer ago only happens to have the stamp of a state."""
SAME_TIME_S = 1e-6
"""Times of a scenario that differ by less mean the same moment."""
MAX_LAG = 5
"""By how many messages one topic may end before the other: a kill comes between the two."""
NEAR_NS = NANOSECONDS_PER_SECOND // 100
"""Messages of the two topics that belong together are published within this time."""


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


_ByTopic: TypeAlias = Mapping[str, Sequence[DecodedMessage]]


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


class Span(NamedTuple):
    """When a fault really was."""

    fault: ScriptedFault
    begin_s: float
    end_s: float


class UsedStates(NamedTuple):
    """The states that entered the window of one controller, in the order they did."""

    seen_s: Array
    """When each did, shape (K,)."""
    stamp_ns: NDArray[np.int64]
    """Of each, on the controller's timeline, shape (K,)."""


@dataclass(frozen=True, slots=True)
class RunLog:
    """Ticks, commands, brakings and faults, each in order."""

    zero_ns: int
    """Time zero, on the clock of the machine."""
    end_s: float
    """When the processes were asked to end."""
    tick_s: Array
    """Shape (T,)."""
    mode: NDArray[np.int64]
    cause: NDArray[np.int64]
    """Of the mode, shape (T,)."""
    error_rad: Array
    """Norm of the true tracking error, shape (T,); NaN where it is not known."""
    excess: Array
    """Of the gains in force over the Lyapunov condition, shape (T,)."""
    used_states: tuple[UsedStates, ...]
    """One for each controller that ran."""
    commands: Commands
    states: States
    """Those that a controller could accept."""
    restarts_ns: tuple[int, ...]
    """When the first command of each further controller came."""
    command_problems: tuple[str, ...]
    """How the two topics of commands differ, or fail to have one for each tick."""
    foreign_s: Array
    """When another node sent commands, shape (F,)."""
    braking_s: Array
    """When the brake was set or released, shape (B,)."""
    is_braking: NDArray[np.bool_]
    step_s: Array
    """When the robot took its steps, shape (S,)."""
    true_q_rad: Array
    """Where its joints then were, shape (S, n)."""
    true_qd_radps: Array
    """And how fast, shape (S, n)."""
    spans: tuple[Span, ...]
    lost_processes: tuple[str, ...]
    """Those that ended by themselves, or crashed when asked to end."""
    num_resets: int
    """How often the end of a FAULT was requested."""

    @property
    def command_s(self) -> Array:
        """When each command was published, shape (N,)."""
        return _since(self.commands.received_ns, self.zero_ns)

    @property
    def is_driven(self) -> NDArray[np.bool_]:
        """Which steps of the robot are of the run: from the first driven one on, shape (S,)."""
        return np.asarray((self.step_s >= 0.0) & (self.step_s <= self.end_s))

    @property
    def first_fault_s(self) -> float:
        """When the first fault really came; the end of the run if there was none."""
        begins = (span.begin_s for span in self.spans if span.fault.kind not in HARMLESS)
        return min(begins, default=self.end_s)

    def when(self, nominal_s: float) -> float:
        """Return when a time of the scenario really was: exact for the ends of faults."""
        for fault, begin_s, end_s in self.spans:
            if abs(fault.at_s - nominal_s) < SAME_TIME_S:
                return begin_s
            if abs(fault.end_s - nominal_s) < SAME_TIME_S:
                return end_s
        return nominal_s


def read_run(folder: Path, scenario: Scenario, settings: Settings) -> RunLog:
    """Return what `run_scenario` left; BagError of a damaged bag, or a robot never driven.

    The settings are those of the arm that was driven.
    """
    by_topic: dict[str, list[DecodedMessage]] = {topic: [] for topic in TOPICS}
    for topic, entry in read_messages(folder / 'bag', *TOPICS):
        facts = (entry.publish_time_ns, entry.sequence, entry.decode())
        by_topic[topic].append(DecodedMessage(*facts))
    names = ('controller/shield', 'plant/braking', 'plant/truth')
    shield, brakings, truths = (by_topic[name] for name in names)
    driven = [entry.published_ns for entry in brakings if not entry.message.data]
    ticks_ns, joints = [entry.stamp_ns for entry in shield], settings.arm.joint_names
    sent = sent_commands(by_topic[STAMPED], by_topic[FORWARD], ticks_ns, joints)
    if not driven or sent is None:
        raise BagError(f'{folder}: the robot was never driven; see the logs there.')
    zero_ns = driven[0]
    run = json.loads((folder / 'run.json').read_text(encoding='utf-8'))
    values = np.array([entry.message.position for entry in shield])
    column = dict(zip(shield[0].message.name, values.T, strict=True))
    events = [event for event in run['events'] if event['kind'] != 'reset_fault']
    of_processes = _spans_of_processes(events, zero_ns)
    return RunLog(
        zero_ns=zero_ns,
        end_s=(run['end_ns'] - zero_ns) / NANOSECONDS_PER_SECOND,
        tick_s=_times_s(shield, zero_ns),
        mode=column['mode'].astype(np.int64),
        cause=column['cause'].astype(np.int64),
        error_rad=true_error(by_topic, column),
        excess=column['excess'],
        used_states=_used_states(by_topic['controller/reference'], zero_ns),
        commands=sent.commands,
        states=accepted_states(by_topic, sent.restarts_ns, settings),
        restarts_ns=sent.restarts_ns,
        command_problems=sent.problems,
        foreign_s=_since(sent.foreign_ns, zero_ns),
        braking_s=_times_s(brakings, zero_ns),
        is_braking=np.array([bool(entry.message.data) for entry in brakings]),
        step_s=_times_s(truths, zero_ns),
        true_q_rad=np.array([entry.message.position for entry in truths]),
        true_qd_radps=np.array([entry.message.velocity for entry in truths]),
        spans=(*of_processes, *_spans_of_plant(scenario, by_topic['plant/faults'], zero_ns)),
        lost_processes=lost_processes(run),
        num_resets=len(run['events']) - len(events),
    )


def _since(times_ns: NDArray[np.int64], zero_ns: int) -> Array:
    return np.asarray((times_ns - zero_ns) / NANOSECONDS_PER_SECOND)


def _times_s(entries: Sequence[DecodedMessage], zero_ns: int) -> Array:
    return _since(np.array([entry.published_ns for entry in entries], dtype=np.int64), zero_ns)


def true_error(by_topic: _ByTopic, column: Mapping[str, Array]) -> Array:
    """Return how far the arm was from the reference of each tick, rad, shape (T,).

    Where it was when the state acted upon was measured; if that is not known, because no state
    came or its stamp is wrong, where it was when the tick was published. NaN without either, or if
    the robot has not published for a while. The columns are those of controller/shield, (T,).
    """
    truths = by_topic['plant/truth']
    by_stamp = {entry.stamp_ns: entry for entry in truths}
    goals = {
        entry.stamp_ns: entry.message.points[-1].positions
        for entry in by_topic['controller/reference']
    }
    steps_ns = np.array([entry.published_ns for entry in truths], dtype=np.int64)
    parts = [column[f'state_stamp_{unit}'].astype(np.int64) for unit in ('sec', 'nanosec')]
    stamps_ns = (parts[0] * NANOSECONDS_PER_SECOND + parts[1]).tolist()
    errors = np.full(len(stamps_ns), np.nan)
    for row, entry in enumerate(by_topic['controller/shield']):
        place = int(np.searchsorted(steps_ns, entry.published_ns, side='right')) - 1
        actual = truths[place] if place >= 0 else None
        if actual is not None and entry.published_ns - actual.published_ns > MAX_STATE_AGE_NS:
            actual = None  # of a robot that was started again, and that the recorder has not found
        meant = by_stamp.get(stamps_ns[row]) if column['num_states'][row] else None
        if meant is not None and 0 <= entry.published_ns - meant.published_ns <= MAX_STATE_AGE_NS:
            actual = meant
        goal = goals.get(entry.stamp_ns)
        if goal is not None and actual is not None:
            errors[row] = np.linalg.norm(np.subtract(goal, actual.message.position))
    return errors


def _used_states(references: Sequence[DecodedMessage], zero_ns: int) -> tuple[UsedStates, ...]:
    """Return the states each controller used; one without a state repeats the last."""
    used, last = [(list[float](), list[int]())], 0
    for entry in references:
        if entry.sequence <= last:
            used.append(([], []))
        last, points = entry.sequence, entry.message.points
        used[-1][0].extend([(entry.published_ns - zero_ns) / NANOSECONDS_PER_SECOND] * len(points))
        used[-1][1].extend(nanoseconds(point.time_from_start) for point in points)
    return tuple(UsedStates(*map(np.array, columns)) for columns in used)


def _spans_of_processes(events: Sequence[dict[str, Any]], zero_ns: int) -> list[Span]:
    spans: dict[ScriptedFault, list[float]] = {}
    for event in events:
        fault = {k: v for k, v in event.items() if k not in ('time_ns', 'is_begin')}
        when_s = (event['time_ns'] - zero_ns) / NANOSECONDS_PER_SECOND
        spans.setdefault(ScriptedFault(**fault), []).append(when_s)
    return [Span(fault, times_s[0], times_s[-1]) for fault, times_s in spans.items()]


def _spans_of_plant(
    scenario: Scenario, messages: Sequence[DecodedMessage], zero_ns: int
) -> list[Span]:
    """Return the spans of the robot's own faults, as it reports them; else as they were planned.

    A message of plant/faults has the kinds that are on, and comes whenever these change.
    """
    found: list[Span] = []
    for kind in sorted({fault.kind for fault in scenario.faults if fault.is_of_plant}):
        planned = [fault for fault in scenario.faults if fault.kind == kind]
        is_on = np.array([False, *(kind in entry.message.name for entry in messages), False])
        times_s = [*_times_s(messages, zero_ns).tolist(), np.inf]
        edges = [times_s[row] for row in np.flatnonzero(np.diff(is_on))]
        pairs = list(zip(edges[::2], edges[1::2], strict=True))
        if len(pairs) != len(planned):  # some overlap, or one came while the robot was down
            pairs = [(fault.at_s, fault.end_s) for fault in planned]
        found += [Span(fault, *pair) for fault, pair in zip(planned, pairs, strict=True)]
    return found


def lost_processes(run: Mapping[str, Any]) -> tuple[str, ...]:
    """Return which processes ended by themselves or with an error, by the facts of run.json."""
    codes, gone = run['exit_codes'].items(), run['gone']
    return (*gone, *(f'{name} (code {code})' for name, code in codes if code and name not in gone))


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

    They are on joint_commands, and forwarded on forward_effort_controller/commands.
    """
    ticks = set(ticks_ns)
    publishers, forwarders = by_publisher(stamped), by_publisher(forwarded)
    own = [row for row in publishers if any(entry.stamp_ns in ticks for entry in row)]
    if not own:
        return None
    rows, n = [entry for row in own for entry in row], len(joint_names)
    commands = Commands(
        np.array([entry.stamp_ns for entry in rows], dtype=np.int64),
        np.array([entry.published_ns for entry in rows], dtype=np.int64),
        # Efforts of another number than that of the joints are none at all.
        np.array([x if len(x) == n else [np.nan] * n for x in (e.message.effort for e in rows)]),
    )
    restarts_ns = tuple(row[0].published_ns for row in own[1:])
    problems = []
    if wrong := [entry for entry in rows if list(entry.message.name) != list(joint_names)]:
        found = f'{len(wrong)} of {STAMPED} name {list(wrong[0].message.name)}'
        problems.append(f'{found} instead of {list(joint_names)}')
    problems += _per_tick(own, ticks)
    partners = [_partner(row, forwarders) for row in own]
    for row, partner in zip(own, partners, strict=True):
        problems += _differences(row, partner, joint_names)
    known = {id(row) for row in (*own, *partners)}
    others = [row for row in (*publishers, *forwarders) if id(row) not in known]
    foreign_ns = sorted(entry.published_ns for row in others for entry in row)
    return SentCommands(commands, restarts_ns, tuple(problems), np.array(foreign_ns, np.int64))


def _per_tick(own: Sequence[Sequence[DecodedMessage]], ticks: set[int]) -> list[str]:
    """Return which ticks have no command, or several."""
    problems = []
    times = Counter(entry.stamp_ns for row in own for entry in row)
    if several := sum(number > 1 and stamp in ticks for stamp, number in times.items()):
        problems.append(f'{several} ticks have more than one command')
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
        gaps_ns = (when.get(entry.sequence, -NEAR_NS) - entry.published_ns for entry in other)
        return sum(abs(gap_ns) < NEAR_NS for gap_ns in gaps_ns)

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
        if (other := forwarded.get(entry.sequence)) is not None:
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


def accepted_states(by_topic: _ByTopic, restarts_ns: Sequence[int], settings: Settings) -> States:
    """Return the usable states that a controller's gate lets in, by the time of publishing."""
    messages = sorted(by_topic['joint_states'], key=lambda entry: entry.published_ns)
    period_ns = period_ns_of(settings.controller.law.rate_hz)
    rows = _admitted(messages, restarts_ns, settings.arm, period_ns)
    rows += _reported(by_topic, recording_gaps_ns(messages), period_ns)
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
        before, before_ns = 0, max((entry.published_ns for entry in earlier), default=0)
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
    messages: Sequence[DecodedMessage], restarts_ns: Sequence[int], arm: ArmModel, period_ns: int
) -> list[_State]:
    """Return the states of a recording that the gates of the controllers admit."""
    timeout_s = defaults_of('controller_node.yaml')['state_timeout_s']
    make_gate = partial(_Gate, arm, period_ns, round(timeout_s * NANOSECONDS_PER_SECOND))
    gate, rows, left = make_gate(), list[_State](), list(restarts_ns)
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


def _reported(by_topic: _ByTopic, gaps: Sequence[tuple[int, int]], period_ns: int) -> list[_State]:
    """Return the states that the controller reports to have used while the recorder had a gap."""
    feedback = {entry.stamp_ns: entry.message for entry in by_topic['controller/feedback']}
    rows, num_states = [], SHIELD_NAMES.index('num_states')
    for entry in by_topic['controller/shield']:
        used = feedback.get(entry.stamp_ns)
        # A tick is published after its command. Its state came before, its stamp may be any.
        came_ns = entry.published_ns - period_ns
        is_missed = any(begin <= came_ns <= end for begin, end in gaps)
        if is_missed and used is not None and entry.message.position[num_states]:
            rows.append(_State(came_ns, np.asarray(used.position), np.asarray(used.effort)))
    return rows
