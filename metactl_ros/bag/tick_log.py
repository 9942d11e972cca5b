# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""What a controller saw and did, read back from a bag, tick by tick."""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metactl_ros.bag.bag_reader import BagError, read_bag
from metactl_ros.bag.tick_messages import (
    collect,
    follows,
    NodeMessages,
    NOW,
    RESTART,
    STATES,
    telemetry_topics,
    TickMessages,
)
from metactl_ros.signals import Array, NANOSECONDS_PER_SECOND

__all__ = ['BagError', 'Seen', 'TickLog', 'read_ticks']

GAP = 1.5
"""Periods between two ticks from which on one may be missing."""


@dataclass(frozen=True, slots=True)
class Seen:
    """Every state that a tick saw, with what was wanted there; shape (S, ...), oldest first.

    A tick to which no state came has one row, too: the state it acted upon, which is an old one.
    """

    begin: NDArray[np.int64]
    """Rows begin[k] to begin[k + 1] belong to tick k; shape (T + 1,)."""
    stamp_ns: NDArray[np.int64]
    """On the controller's timeline, shape (S,)."""
    q_rad: Array
    """Shape (S, n), as are the next ones."""
    qd_radps: Array
    q_desired_rad: Array
    qd_desired_radps: Array
    qdd_desired_radps2: Array


@dataclass(frozen=True, slots=True)
class TickLog:
    """One row per tick, in the order of its commands."""

    stamp_ns: Any
    """Of the command, shape (T,), int64."""
    now_ns: NDArray[np.int64]
    """What the loop was told, on the controller's timeline, shape (T,)."""
    joint_names: tuple[str, ...]
    gain_names: tuple[str, ...]
    q_rad: Array
    """Of the state acted upon, shape (T, n), as are the next ones."""
    qd_radps: Array
    q_desired_rad: Array
    qd_desired_radps: Array
    qdd_desired_radps2: Array
    effort_nm: Array
    wanted_nm: Array
    """Before limits."""
    effort_before_nm: Array
    """From which the rate was limited."""
    sent_nm: Array
    """The command of that stamp; NaN where none was recorded."""
    gains: Array
    """theta in force, shape (T, m)."""
    action: Array
    """What the policy proposed, shape (T, m)."""
    is_restart: NDArray[np.bool_]
    """Whether the loop was reset before the tick, shape (T,)."""
    num_states: NDArray[np.int64]
    """How many states entered the window, shape (T,)."""
    is_break: NDArray[np.bool_]
    """Whether what led to the tick is missing in the log, shape (T,)."""
    seen: Seen
    shield: dict[str, Array]
    """Every value of ~/shield by its name, shape (T,)."""
    facts: dict[str, str]
    """What ~/bundle says: the controller and its policy; empty if it was not recorded."""
    num_incomplete: int
    """Ticks of which a message is missing; they are left out."""
    problems: tuple[str, ...]
    """Why this is not all that happened; empty if it is."""

    @property
    def time_s(self) -> Array:
        """Time since the first tick, shape (T,)."""
        times: Array = (self.stamp_ns - self.stamp_ns[0]) / 1e9
        return times

    @property
    def estimate_nm(self) -> Array | None:
        """What the model was estimated to lack, shape (T, n); None without an estimator."""
        names = [f'estimate.{joint}' for joint in self.joint_names]
        if not all(name in self.shield for name in names):
            return None
        return np.stack([self.shield[name] for name in names], axis=1)

    def first(self, num_ticks: int) -> 'TickLog':
        """Return the first ticks."""
        rows = slice(num_ticks)
        arrays = {
            field.name: getattr(self, field.name)[rows]
            for field in fields(self)
            if isinstance(getattr(self, field.name), np.ndarray)
        }
        begin = self.seen.begin[: num_ticks + 1]
        seen = {f.name: getattr(self.seen, f.name)[: begin[-1]] for f in fields(self.seen)}
        shield = {name: values[rows] for name, values in self.shield.items()}
        return replace(self, **arrays, seen=Seen(**seen | {'begin': begin}), shield=shield)


def read_ticks(folder: Path, node: str = 'controller') -> TickLog:
    """Return the ticks of a controller node in a bag.

    Args:
        folder: A bag, finished or not, or a file of one.
        node: Its name; with its namespace if the bag has several, as in /left/controller.

    Raises:
        BagError: If it is no bag, or holds no complete tick of such a node.
    """
    wanted = telemetry_topics(node)
    content = read_bag(folder, lambda topic: topic.endswith(wanted))
    found = collect(folder, content, node)
    is_break = find_breaks(found.ticks)
    problems = [*content.problems, *found.problems]
    if not found.facts:
        problems.append('bundle: was not recorded, so the policy is not known')
    if is_break[0]:
        problems.append('begins in the middle of a run: what led to its first tick is missing')
    if is_break[1:].any():
        problems.append(f'{is_break[1:].sum()} gaps, the first before tick {_second(is_break)}')
    return _log_of(found, is_break, tuple(problems))


def find_breaks(ticks: Sequence[TickMessages]) -> NDArray[np.bool_]:
    """Return which ticks do not continue the one before, shape (T,).

    A tick limits its rate from the effort of the one before. Where that is another effort and time
    has passed, ticks are missing.
    """
    now_s = np.array([tick.shield[NOW] for tick in ticks])
    is_restart = np.array([bool(tick.shield[RESTART]) for tick in ticks])
    steps_s = np.diff(now_s)
    period_s = float(np.median(steps_s[steps_s > 0.0])) if (steps_s > 0.0).any() else 0.0
    is_break = ~is_restart
    for k in range(1, len(ticks)):
        before, tick = ticks[k - 1], ticks[k]
        is_late = steps_s[k - 1] > GAP * period_s
        is_gap = is_late and before.output.effort != tick.states[0].effort
        is_break[k] &= is_gap or not follows(before, tick)
    return is_break


def _second(is_break: NDArray[np.bool_]) -> int:
    return int(np.argmax(is_break[1:])) + 1


def _log_of(
    found: NodeMessages, is_break: NDArray[np.bool_], problems: tuple[str, ...]
) -> TickLog:
    ticks = found.ticks
    shield = np.array([tick.shield for tick in ticks])
    counts = [len(tick.points) for tick in ticks]
    begin = np.concatenate([[0], np.cumsum(counts)])
    states = [state for tick in ticks for state in tick.states]
    points = [point for tick in ticks for point in tick.points]
    seen = Seen(
        begin=begin,
        stamp_ns=np.array([point.time_ns for point in points], dtype=np.int64),
        q_rad=np.array([state.position for state in states]),
        qd_radps=np.array([state.velocity for state in states]),
        q_desired_rad=np.array([point.positions for point in points]),
        qd_desired_radps=np.array([point.velocities for point in points]),
        qdd_desired_radps2=np.array([point.accelerations for point in points]),
    )
    last = begin[1:] - 1
    return TickLog(
        stamp_ns=np.array([tick.stamp_ns for tick in ticks], dtype=np.int64),
        now_ns=np.rint(shield[:, NOW] * NANOSECONDS_PER_SECOND).astype(np.int64),
        joint_names=ticks[0].states[0].names,
        gain_names=ticks[0].gains.names,
        q_rad=seen.q_rad[last],
        qd_radps=seen.qd_radps[last],
        q_desired_rad=seen.q_desired_rad[last],
        qd_desired_radps=seen.qd_desired_radps[last],
        qdd_desired_radps2=seen.qdd_desired_radps2[last],
        effort_nm=np.array([tick.output.effort for tick in ticks]),
        wanted_nm=np.array([tick.output.velocity for tick in ticks]),
        effort_before_nm=np.array([tick.states[-1].effort for tick in ticks]),
        sent_nm=_sent(found),
        gains=np.array([tick.gains.position for tick in ticks]),
        action=np.array([tick.gains.velocity for tick in ticks]),
        is_restart=shield[:, RESTART] != 0.0,
        num_states=shield[:, STATES].astype(np.int64),
        is_break=is_break,
        seen=seen,
        shield=dict(zip(found.shield_names, shield.T, strict=True)),
        facts=found.facts,
        num_incomplete=found.num_incomplete,
        problems=problems,
    )


def _sent(found: NodeMessages) -> Array:
    """Return the command of each tick, shape (T, n); NaN where none was recorded.

    Of ticks that share a stamp, each has the command that equals its effort. Where there is none,
    one that is left over is its own, unless it is the zero that ends a run.
    """
    size = len(found.ticks[0].output.effort)
    sent = np.full((len(found.ticks), size), np.nan)
    groups: dict[int, list[int]] = {}
    for k, tick in enumerate(found.ticks):
        groups.setdefault(tick.stamp_ns, []).append(k)
    for stamp_ns, members in groups.items():
        left = [row for row in found.commands.get(stamp_ns, ()) if len(row) == size]
        others = []
        for k in members:
            effort = found.ticks[k].output.effort
            if effort in left:
                left.remove(effort)
                sent[k] = effort
            else:
                others.append(k)
        if len(members) > 1:
            left = [row for row in left if any(row)]
        for k, row in zip(others, left, strict=False):
            sent[k] = row
    return sent
