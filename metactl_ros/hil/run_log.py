# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""What happened in a run of a scenario, read from its bag and from `run.json`.

Times are those of publishing, on the clock of the machine: in seconds since the first step the
robot was driven, unless they are in ns.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
import json
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from metactl_ros.bag.reader import BagError, read_messages
from metactl_ros.bag.topics import FORWARD, STAMPED
from metactl_ros.check.invariants import Commands, States
from metactl_ros.hil.controller_io import accepted_states, DecodedMessage, sent_commands
from metactl_ros.hil.scenario import HARMLESS, Scenario, ScriptedFault
from metactl_ros.runtime.joint_samples import nanoseconds
from metactl_ros.settings import load_arm
from metactl_ros.signals import Array, NANOSECONDS_PER_SECOND

TOPICS = (
    'joint_states',
    STAMPED,
    FORWARD,
    'controller/shield',
    'controller/reference',
    'controller/feedback',
    'plant/truth',
    'plant/braking',
    'plant/faults',
)
MAX_STATE_AGE_NS = 300_000_000
"""A truth that was published longer ago only happens to have the stamp of a state."""
SAME_TIME_S = 1e-6
"""Times of a scenario that differ by less mean the same moment."""


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


def read_run(folder: Path, scenario: Scenario) -> RunLog:
    """Return what `run_scenario` left in a folder.

    Raises:
        BagError: If the bag is damaged, or the robot was never driven.
    """
    by_topic: dict[str, list[DecodedMessage]] = {topic: [] for topic in TOPICS}
    for topic, entry in read_messages(folder / 'bag', *TOPICS):
        message = DecodedMessage(entry.publish_time_ns, entry.sequence, entry.decode())
        by_topic[topic].append(message)
    shield, brakings = by_topic['controller/shield'], by_topic['plant/braking']
    truths = by_topic['plant/truth']
    driven = [entry.published_ns for entry in brakings if not entry.message.data]
    sent = sent_commands(
        by_topic[STAMPED],
        by_topic[FORWARD],
        [entry.stamp_ns for entry in shield],
        load_arm().joint_names,
    )
    if not driven or sent is None:
        raise BagError(f'{folder}: the robot was never driven; see the logs there.')
    zero_ns = driven[0]
    run = json.loads((folder / 'run.json').read_text(encoding='utf-8'))
    values = np.array([entry.message.position for entry in shield])
    column = dict(zip(shield[0].message.name, values.T, strict=True))
    events = [event for event in run['events'] if event['kind'] != 'reset_fault']
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
        states=accepted_states(by_topic, sent.restarts_ns),
        restarts_ns=sent.restarts_ns,
        command_problems=sent.problems,
        foreign_s=_since(sent.foreign_ns, zero_ns),
        braking_s=_times_s(brakings, zero_ns),
        is_braking=np.array([bool(entry.message.data) for entry in brakings]),
        step_s=_times_s(truths, zero_ns),
        true_q_rad=np.array([entry.message.position for entry in truths]),
        true_qd_radps=np.array([entry.message.velocity for entry in truths]),
        spans=(
            *_spans_of_processes(events, zero_ns),
            *_spans_of_plant(scenario, by_topic['plant/faults'], zero_ns),
        ),
        lost_processes=lost_processes(run),
        num_resets=len(run['events']) - len(events),
    )


def _since(times_ns: NDArray[np.int64], zero_ns: int) -> Array:
    times_s: Array = (times_ns - zero_ns) / NANOSECONDS_PER_SECOND
    return times_s


def _times_s(entries: Sequence[DecodedMessage], zero_ns: int) -> Array:
    return _since(np.array([entry.published_ns for entry in entries], dtype=np.int64), zero_ns)


def true_error(
    by_topic: Mapping[str, Sequence[DecodedMessage]], column: Mapping[str, Array]
) -> Array:
    """Return how far the arm was from the reference of each tick, rad, shape (T,).

    Where it was when the state acted upon was measured; if that is not known, because no state
    came or its stamp is wrong, where it was when the tick was published. NaN without either, or if
    the robot has not published for a while.

    Args:
        by_topic: The messages of plant/truth, controller/reference and controller/shield.
        column: The values of controller/shield by their names, each of shape (T,).
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
            miss = np.asarray(goal) - np.asarray(actual.message.position)
            errors[row] = float(np.linalg.norm(miss))
    return errors


def _used_states(references: Sequence[DecodedMessage], zero_ns: int) -> tuple[UsedStates, ...]:
    """Return the states each controller used; one without a state repeats the last."""
    rows: list[list[tuple[float, int]]] = [[]]
    last = 0
    for entry in references:
        if entry.sequence <= last:
            rows.append([])
        last = entry.sequence
        seen_s = (entry.published_ns - zero_ns) / NANOSECONDS_PER_SECOND
        rows[-1] += [(seen_s, nanoseconds(p.time_from_start)) for p in entry.message.points]
    return tuple(
        UsedStates(np.array([seen for seen, _ in row]), np.array([stamp for _, stamp in row]))
        for row in rows
    )


def _spans_of_processes(events: Sequence[dict[str, Any]], zero_ns: int) -> list[Span]:
    spans: dict[ScriptedFault, list[float]] = {}
    for event in events:
        parts = {k: v for k, v in event.items() if k not in ('time_ns', 'is_begin')}
        when_s = (event['time_ns'] - zero_ns) / NANOSECONDS_PER_SECOND
        spans.setdefault(ScriptedFault(**parts), []).append(when_s)
    return [Span(fault, times_s[0], times_s[-1]) for fault, times_s in spans.items()]


def _spans_of_plant(
    scenario: Scenario, messages: Sequence[DecodedMessage], zero_ns: int
) -> list[Span]:
    """Return the spans of the robot's own faults, as it reports them; else as they were planned.

    Args:
        scenario: With the faults as they were planned.
        messages: Of plant/faults: the kinds that are on, whenever that changes.
        zero_ns: Time zero, on the clock of the machine.
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
    codes = run['exit_codes'].items()
    crashed = [f'{name} (code {code})' for name, code in codes if code and name not in run['gone']]
    return (*run['gone'], *crashed)
