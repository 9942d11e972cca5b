# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""Reads back what a run of a scenario left behind: its bag, and `run.json`."""

from collections.abc import Mapping, Sequence
import json
from pathlib import Path
from typing import Any

import numpy as np

from metactl_ros.bag.reader import BagError, read_messages
from metactl_ros.hil.accepted_states import believable, Said
from metactl_ros.hil.command_topics import read_commands
from metactl_ros.hil.run_log import Life, RunLog, Span
from metactl_ros.hil.scenario import Scenario
from metactl_ros.hil.scripted_fault import ScriptedFault
from metactl_ros.runtime.joint_samples import nanoseconds
from metactl_ros.settings import load_arm
from metactl_ros.signals import Array, NANOSECONDS_PER_SECOND

TOPICS = (
    'joint_states',
    'joint_commands',
    'forward_effort_controller/commands',
    'controller/shield',
    'controller/reference',
    'controller/feedback',
    'plant/truth',
    'plant/braking',
    'plant/faults',
)
OLDEST_STATE_NS = 300_000_000
"""A truth that was told longer ago only happens to bear the stamp of a state."""


def read_run(folder: Path, scenario: Scenario) -> RunLog:
    """Return what `run_scenario` left in a folder.

    Raises:
        BagError: If the bag is damaged, or the robot was never driven.
    """
    said: dict[str, list[Said]] = {topic: [] for topic in TOPICS}
    for topic, entry in read_messages(folder / 'bag', *TOPICS):
        said[topic].append(Said(entry.publish_time_ns, entry.sequence, entry.decode()))
    shield, brakings = said['controller/shield'], said['plant/braking']
    driven = [entry.published_ns for entry in brakings if not entry.message.data]
    sent = read_commands(
        said['joint_commands'],
        said['forward_effort_controller/commands'],
        [nanoseconds(entry.message.header.stamp) for entry in shield],
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
        error_rad=true_error(said, column),
        excess=column['excess'],
        lives=_lives(said['controller/reference'], zero_ns),
        commands=sent.commands,
        states=believable(said, sent.restarts_ns),
        restarts_ns=sent.restarts_ns,
        command_problems=sent.problems,
        foreign_s=(sent.foreign_ns - zero_ns) / NANOSECONDS_PER_SECOND,
        braking_s=_times_s(brakings, zero_ns),
        is_braking=np.array([bool(entry.message.data) for entry in brakings]),
        step_s=_times_s(said['plant/truth'], zero_ns),
        true_q_rad=np.array([entry.message.position for entry in said['plant/truth']]),
        true_qd_radps=np.array([entry.message.velocity for entry in said['plant/truth']]),
        spans=(
            *_spans_of_processes(events, zero_ns),
            *_spans_of_plant(scenario, said['plant/faults'], zero_ns),
        ),
        gone=lost_processes(run),
        num_resets=len(run['events']) - len(events),
    )


def _times_s(entries: Sequence[Said], zero_ns: int) -> Array:
    times: Array = np.array([entry.published_ns - zero_ns for entry in entries], dtype=np.float64)
    return times / NANOSECONDS_PER_SECOND


def true_error(said: Mapping[str, Sequence[Said]], column: Mapping[str, Array]) -> Array:
    """Return how far the arm was from the reference of each tick, rad, shape (T,).

    Where it was when the state acted upon was measured; if that is not known, because no state
    came or its stamp is wrong, where it was when the tick was told. NaN without either, or if the
    robot has not been heard of for a while.
    """
    truths = said['plant/truth']
    by_stamp = {nanoseconds(entry.message.header.stamp): entry for entry in truths}
    goals = {
        nanoseconds(entry.message.header.stamp): entry.message.points[-1].positions
        for entry in said['controller/reference']
    }
    steps_ns = np.array([entry.published_ns for entry in truths], dtype=np.int64)
    parts = [column[f'state_stamp_{unit}'].astype(np.int64) for unit in ('sec', 'nanosec')]
    stamps_ns = (parts[0] * NANOSECONDS_PER_SECOND + parts[1]).tolist()
    errors = np.full(len(stamps_ns), np.nan)
    for row, entry in enumerate(said['controller/shield']):
        place = int(np.searchsorted(steps_ns, entry.published_ns, side='right')) - 1
        actual = truths[place] if place >= 0 else None
        if actual is not None and entry.published_ns - actual.published_ns > OLDEST_STATE_NS:
            actual = None  # of a robot that was started again, and that the recorder has not found
        meant = by_stamp.get(stamps_ns[row]) if column['num_states'][row] else None
        if meant is not None and 0 <= entry.published_ns - meant.published_ns <= OLDEST_STATE_NS:
            actual = meant
        goal = goals.get(nanoseconds(entry.message.header.stamp))
        if goal is not None and actual is not None:
            miss = np.asarray(goal) - np.asarray(actual.message.position)
            errors[row] = float(np.linalg.norm(miss))
    return errors


def _lives(references: Sequence[Said], zero_ns: int) -> tuple[Life, ...]:
    """Return the states each controller saw; one without a state repeats the last."""
    rows: list[list[tuple[float, int]]] = [[]]
    last = 0
    for entry in references:
        if entry.sequence <= last:
            rows.append([])
        last = entry.sequence
        seen_s = (entry.published_ns - zero_ns) / NANOSECONDS_PER_SECOND
        rows[-1] += [(seen_s, nanoseconds(p.time_from_start)) for p in entry.message.points]
    return tuple(
        Life(np.array([seen for seen, _ in life]), np.array([stamp for _, stamp in life]))
        for life in rows
    )


def _spans_of_processes(events: Sequence[dict[str, Any]], zero_ns: int) -> list[Span]:
    spans: dict[ScriptedFault, list[float]] = {}
    for event in events:
        parts = {k: v for k, v in event.items() if k not in ('time_ns', 'is_begin')}
        when_s = (event['time_ns'] - zero_ns) / NANOSECONDS_PER_SECOND
        spans.setdefault(ScriptedFault(**parts), []).append(when_s)
    return [Span(fault, times_s[0], times_s[-1]) for fault, times_s in spans.items()]


def _spans_of_plant(scenario: Scenario, said: Sequence[Said], zero_ns: int) -> list[Span]:
    """Return the spans of the robot's own faults, as it told them; else as they were planned."""
    found: list[Span] = []
    for kind in sorted({fault.kind for fault in scenario.faults if fault.is_of_plant}):
        planned = [fault for fault in scenario.faults if fault.kind == kind]
        is_on = np.array([False, *(kind in entry.message.name for entry in said), False])
        times_s = [*_times_s(said, zero_ns).tolist(), np.inf]
        edges = [times_s[row] for row in np.flatnonzero(np.diff(is_on))]
        pairs = list(zip(edges[::2], edges[1::2], strict=True))
        if len(pairs) != len(planned):  # some overlap, or one came while the robot was down
            pairs = [(fault.at_s, fault.end_s) for fault in planned]
        found += [Span(fault, *pair) for fault, pair in zip(planned, pairs, strict=True)]
    return found


def lost_processes(run: Mapping[str, Any]) -> tuple[str, ...]:
    """Return who ended by itself, or in another way than told, by the facts of run.json."""
    codes = run['exit_codes'].items()
    crashed = [f'{name} (code {code})' for name, code in codes if code and name not in run['gone']]
    return (*run['gone'], *crashed)
