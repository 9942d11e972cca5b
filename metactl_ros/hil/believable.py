# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""Which joint states of a recording a controller could believe: usable, and let in by a gate.

A recorder needs a moment to find a robot that was started again, and misses its first states. The
numbers of the messages show it; for such gaps, what the controller says it saw counts instead.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from metactl_ros.evaluation.invariants import States
from metactl_ros.nodes.joint_messages import MessageError, nanoseconds, read_joint_state
from metactl_ros.nodes.shield_names import SHIELD_NAMES
from metactl_ros.nodes.state_gate import CLOCK_TOLERANCE_NS, StateGate
from metactl_ros.settings import load_settings, Settings
from metactl_ros.signals import Array, period_ns_of

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
    rows = [*_heard(entries, restarts_ns, settings), *_reported(said, gaps_ns(entries))]
    rows.sort(key=lambda row: row.published_ns)
    shape = (-1, len(settings.arm.joint_names))
    return States(
        np.array([row.published_ns for row in rows], dtype=np.int64),
        np.array([row.q_rad for row in rows], dtype=np.float64).reshape(shape),
        np.array([row.effort_nm for row in rows], dtype=np.float64).reshape(shape),
    )


def gaps_ns(entries: Sequence[Said]) -> list[tuple[int, int]]:
    """Return the spans in which the recorder missed messages, as their numbers tell."""
    gaps, before_ns, before = [], 0, 0
    for entry in entries:
        is_anew = entry.sequence <= before
        if entry.sequence != (1 if is_anew else before + 1):
            gaps.append((before_ns, entry.published_ns))
        before_ns, before = entry.published_ns, entry.sequence
    return gaps if entries else [(0, 2**63 - 1)]


def _heard(entries: Sequence[Said], restarts_ns: Sequence[int], settings: Settings) -> list[_Row]:
    arm, left = settings.arm, list(restarts_ns)
    period_ns = period_ns_of(settings.controller.law.rate_hz)
    gate = StateGate(arm, period_ns, CLOCK_TOLERANCE_NS)
    rows = []
    for entry in entries:
        if left and entry.published_ns >= left[0]:  # a new controller has a new gate
            gate = StateGate(arm, period_ns, CLOCK_TOLERANCE_NS)
            left.pop(0)
        try:
            sample = read_joint_state(entry.message, arm.joint_names)
        except MessageError:
            continue
        if gate.admit(sample, entry.published_ns) is not None:
            unknown = np.full(len(arm.joint_names), np.nan)
            effort = unknown if sample.effort_nm is None else sample.effort_nm
            rows.append(_Row(entry.published_ns, sample.q_rad, effort))
    return rows


def _reported(said: Mapping[str, Sequence[Said]], gaps: Sequence[tuple[int, int]]) -> list[_Row]:
    told = said['controller/feedback']
    feedback = {nanoseconds(entry.message.header.stamp): entry.message for entry in told}
    rows = []
    for entry in said['controller/shield']:
        stamp_ns = nanoseconds(entry.message.header.stamp)  # just before the command went out
        seen = feedback.get(stamp_ns)
        is_missed = any(begin <= stamp_ns <= end for begin, end in gaps)
        if is_missed and seen is not None and entry.message.position[NUM_STATES]:
            rows.append(_Row(stamp_ns, np.asarray(seen.position), np.asarray(seen.effort)))
    return rows
