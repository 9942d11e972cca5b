# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""Which joint states of a recording a controller could believe: usable, and let in by a gate.

A recorder needs a moment to find a robot that was started again, and misses its first states. The
numbers of the messages show it; for such gaps, what the controller says it saw counts instead.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from metactl_ros.evaluation.invariants import States
from metactl_ros.nodes.joint_messages import (
    JointSample,
    MessageError,
    nanoseconds,
    read_joint_state,
)
from metactl_ros.nodes.parameters import defaults_of
from metactl_ros.nodes.shield_names import SHIELD_NAMES
from metactl_ros.nodes.state_gate import ADOPT_AFTER, StateGate
from metactl_ros.settings import load_settings, Settings
from metactl_ros.signals import Array, NANOSECONDS_PER_SECOND, period_ns_of

NUM_STATES = SHIELD_NAMES.index('num_states')


class Said(NamedTuple):
    """A message of the bag."""

    published_ns: int
    sequence: int
    """Its number among those of its publisher, from 1."""
    message: Any


class _Row(NamedTuple):
    published_ns: int
    q_rad: Array
    effort_nm: Array


def believable(said: Mapping[str, Sequence[Said]], restarts_ns: Sequence[int]) -> States:
    """Return the states of a recording, by the time they were published.

    Args:
        said: Messages of joint_states, controller/shield and controller/feedback, by topic.
        restarts_ns: When the first command of each further controller came.
    """
    settings = load_settings()
    entries = sorted(said['joint_states'], key=lambda entry: entry.published_ns)
    period_ns = period_ns_of(settings.controller.law.rate_hz)
    missed = _reported(said, gaps_ns(entries), period_ns)
    rows = [*_heard(entries, restarts_ns, settings), *missed]
    rows.sort(key=lambda row: row.published_ns)
    shape = (-1, len(settings.arm.joint_names))
    return States(
        np.array([row.published_ns for row in rows], dtype=np.int64),
        np.array([row.q_rad for row in rows], dtype=np.float64).reshape(shape),
        np.array([row.effort_nm for row in rows], dtype=np.float64).reshape(shape),
    )


def publishers(entries: Sequence[Said]) -> list[list[Said]]:
    """Return the messages of a topic by who published them, as their numbers tell.

    A message goes on in the row whose last number is nearest below its own, the latest of equals;
    without one, somebody else has begun to publish.
    """
    rows: list[list[Said]] = []
    for entry in entries:
        before = [row for row in rows if row[-1].sequence < entry.sequence]
        if before:
            max(before, key=lambda row: (row[-1].sequence, row[-1].published_ns)).append(entry)
        else:
            rows.append([entry])
    return rows


def gaps_ns(entries: Sequence[Said]) -> list[tuple[int, int]]:
    """Return the spans in which the recorder missed messages, as their numbers tell."""
    gaps = []
    for row in publishers(entries):
        before_ns = max((e.published_ns for e in entries[: entries.index(row[0])]), default=0)
        before = 0
        for entry in row:
            if entry.sequence != before + 1:
                gaps.append((before_ns, entry.published_ns))
            before_ns, before = entry.published_ns, entry.sequence
    return gaps if entries else [(0, 2**63 - 1)]


class _Gate(StateGate):
    """A gate that lets drifting stamps pass: when they are noticed depends on when it began."""

    def _out_of_step(self, sample: JointSample, received_ns: int) -> str | None:
        return None

    def _distrust(self, received_ns: int) -> None:
        pass  # whether and when the controller did depends on when it began


def _heard(entries: Sequence[Said], restarts_ns: Sequence[int], settings: Settings) -> list[_Row]:
    arm, left = settings.arm, list(restarts_ns)
    period_ns = period_ns_of(settings.controller.law.rate_hz)
    timeout_s = defaults_of('controller_node.yaml')['state_timeout_s']
    make_gate = partial(_Gate, arm, period_ns, round(timeout_s * NANOSECONDS_PER_SECOND))
    gate, rows = make_gate(), []
    waiting: list[_Row] = []  # refused, but a gate that began at another state may let them in
    for entry in entries:
        if left and entry.published_ns >= left[0]:  # a new controller has a new gate
            gate = make_gate()
            left.pop(0)
        try:
            sample = read_joint_state(entry.message, arm.joint_names)
        except MessageError:
            continue
        unknown = np.full(len(arm.joint_names), np.nan)
        effort = unknown if sample.effort_nm is None else sample.effort_nm
        waiting.append(_Row(entry.published_ns, sample.q_rad, effort))
        num_timelines = gate.counts['new timelines']
        if gate.admit(sample, entry.published_ns) is not None:
            is_new = gate.counts['new timelines'] > num_timelines
            rows += waiting[-ADOPT_AFTER:] if is_new else waiting[-1:]
            waiting = []
    return rows


def _reported(
    said: Mapping[str, Sequence[Said]], gaps: Sequence[tuple[int, int]], period_ns: int
) -> list[_Row]:
    told = said['controller/feedback']
    feedback = {nanoseconds(entry.message.header.stamp): entry.message for entry in told}
    rows = []
    for entry in said['controller/shield']:
        seen = feedback.get(nanoseconds(entry.message.header.stamp))
        # A tick is told after its command. Its state came before, its stamp may be any.
        came_ns = entry.published_ns - period_ns
        is_missed = any(begin <= came_ns <= end for begin, end in gaps)
        if is_missed and seen is not None and entry.message.position[NUM_STATES]:
            rows.append(_Row(came_ns, np.asarray(seen.position), np.asarray(seen.effort)))
    return rows
