# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""What a controller saw and did, read back from a bag, tick by tick."""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
import json
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from metactl_ros.bag.command_log import align, CommandLog
from metactl_ros.bag.reader import read_bag
from metactl_ros.bag.tick_messages import (
    collect,
    follows,
    LATE_MS,
    NodeMessages,
    NOW,
    RESTART,
    RESUMED,
    STATES,
    telemetry_topics,
    TickMessages,
)
from metactl_ros.signals import Array, NANOSECONDS_PER_SECOND

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

    stamp_ns: NDArray[np.int64]
    """Of the command, shape (T,)."""
    now_ns: NDArray[np.int64]
    """On the clock of the loop, shape (T,)."""
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
    command_row: NDArray[np.int64]
    """Of `stamped`: the command of that stamp; -1 where none was recorded, shape (T,)."""
    sent_nm: Array
    """Its efforts; NaN where there is none, or it is not one for these joints."""
    gains: Array
    """theta in force, shape (T, m)."""
    action: Array
    """What the policy proposed, shape (T, m)."""
    is_restart: NDArray[np.bool_]
    """Whether the loop was reset before the tick, shape (T,)."""
    is_resumed: NDArray[np.bool_]
    """Whether the loop went on after a pause from another effort than its last, shape (T,)."""
    num_states: NDArray[np.int64]
    """How many states entered the window, shape (T,)."""
    is_break: NDArray[np.bool_]
    """Whether what led to the tick is missing in the log, shape (T,)."""
    publish_time_ns: NDArray[np.int64]
    """When what is known of the tick was published, shape (T,)."""
    log_time_ns: NDArray[np.int64]
    """When the recorder received that, shape (T,)."""
    seen: Seen
    stamped: CommandLog
    """All of joint_commands, whatever node sent it."""
    forward: CommandLog
    """All of forward_effort_controller/commands."""
    shield: dict[str, Array]
    """Every value of ~/shield by its name, shape (T,)."""
    facts: dict[str, str]
    """The content of ~/bundle: the controller and its policy; empty if it was not recorded."""
    num_incomplete: int
    """Ticks of which a message is missing; they are left out."""
    num_impossible: int
    """Ticks with values that no controller has; they are left out, too."""
    left_out_ns: frozenset[int]
    """The stamps of both."""
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

    @property
    def begins_run(self) -> NDArray[np.bool_]:
        """Whether control began with the tick, not only its loop anew; shape (T,)."""
        first_seen_ns = self.seen.stamp_ns[self.seen.begin[:-1]]
        return np.asarray(self.is_restart & (first_seen_ns == 0))

    @property
    def is_shadow(self) -> bool:
        """Whether the controller was configured to send no commands."""
        try:
            return json.loads(self.facts.get('parameters', '{}'))['shadow'] is True
        except (ValueError, LookupError, TypeError):
            return False

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
    has passed, ticks are missing; after a pause, where more has passed than it was late.
    """
    now_s = np.array([tick.shield[NOW] for tick in ticks])
    is_restart = np.array([bool(tick.shield[RESTART]) for tick in ticks])
    steps_s = np.diff(now_s)
    period_s = float(np.median(steps_s[steps_s > 0.0])) if (steps_s > 0.0).any() else 0.0
    is_break = ~is_restart
    for k in range(1, len(ticks)):
        before, tick = ticks[k - 1], ticks[k]
        late_s = tick.shield[LATE_MS] / 1e3 if tick.shield[RESUMED] else 0.0
        is_late = steps_s[k - 1] > GAP * period_s + late_s
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
    stamped, forward = found.commands
    row, nothing = _commands_of(ticks, stamped), np.full(stamped.effort_nm.shape[1], np.nan)
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
        command_row=row,
        sent_nm=np.vstack([stamped.effort_nm, nothing])[row],
        gains=np.array([tick.gains.position for tick in ticks]),
        action=np.array([tick.gains.velocity for tick in ticks]),
        is_restart=shield[:, RESTART] != 0.0,
        is_resumed=shield[:, RESUMED] != 0.0,
        num_states=shield[:, STATES].astype(np.int64),
        is_break=is_break,
        publish_time_ns=np.array([tick.publish_time_ns for tick in ticks], dtype=np.int64),
        log_time_ns=np.array([tick.log_time_ns for tick in ticks], dtype=np.int64),
        seen=seen,
        stamped=stamped,
        forward=forward,
        shield=dict(zip(found.shield_names, shield.T, strict=True)),
        facts=found.facts,
        num_incomplete=found.num_incomplete,
        num_impossible=found.num_impossible,
        left_out_ns=found.left_out_ns,
        problems=problems,
    )


def _commands_of(ticks: Sequence[TickMessages], stamped: CommandLog) -> NDArray[np.int64]:
    """Return the row of each tick's command, shape (T,); -1 where none has its stamp.

    Of several that share a stamp, order and content decide. The zeros that end a run have the
    stamp of its last state in simulated time, and belong to no tick.
    """
    rows: dict[int, list[int]] = {}
    for row, stamp_ns in enumerate(stamped.stamp_ns.tolist()):
        rows.setdefault(stamp_ns, []).append(row)
    groups: dict[int, list[int]] = {}
    for k, tick in enumerate(ticks):
        groups.setdefault(tick.stamp_ns, []).append(k)
    found = np.full(len(ticks), -1, dtype=np.int64)
    for stamp_ns, members in groups.items():
        own = np.array(rows.get(stamp_ns, []), dtype=np.int64)
        decided = np.array([ticks[k].output.effort for k in members])
        answers = align(
            [effort.tobytes() for effort in decided],
            np.array([ticks[k - 1].publish_time_ns if k else 0 for k in members]),
            [effort.tobytes() for effort in stamped.effort_nm[own]],
            stamped.publish_time_ns[own],
        )
        is_answer = answers >= 0
        if len(members) > 1:
            is_other = (stamped.effort_nm[own] != decided[answers]).any(axis=1)
            is_answer &= stamped.effort_nm[own].any(axis=1) | ~is_other
        found[np.array(members)[answers[is_answer]]] = own[is_answer]
    return found
