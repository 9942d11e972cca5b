# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""What a controller saw and did, read back from a bag, tick by tick.

All messages of a tick have the stamp of its command. Where ticks share a stamp, as those of a
robot that stands still in simulated time, their order distinguishes them. Whatever is missing, out
of order or impossible is named, and none of it is passed over.
"""

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from itertools import pairwise
import json
import math
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from metactl_ros.bag.command_log import (
    answering_rows,
    command_topics,
    CommandLog,
    commands_of,
    LARGEST,
)
from metactl_ros.bag.reader import BagContent, BagError, find_node, read_bag
from metactl_ros.bag.topics import (
    CdrError,
    ESTIMATED_PAYLOAD,
    FORWARD,
    JointValues,
    Point,
    read_joint_state,
    read_string,
    read_trajectory,
    SHIELD_NAMES,
    STAMPED,
    STATE_NAMES,
    TOPICS,
)
from metactl_ros.config import shown
from metactl_ros.control.modes import Cause, Mode
from metactl_ros.signals import Array, NANOSECONDS_PER_SECOND

TYPES = {
    kind: TOPICS[f'controller/{kind}']
    for kind in ('shield', 'reference', 'feedback', 'output', 'gains', 'bundle')
}
"""Of the controller node; a tick has one of each but bundle, and a feedback for each state."""
_ByStamp: TypeAlias = dict[int, dict[str, list[Any]]]
"""The messages that share a stamp, by kind, each in the order of the bag."""
LONGEST_S = 1e8
"""No controller runs for longer: years. Beyond it a time is as good as NaN."""
MODES, CAUSES = frozenset(Mode), frozenset(Cause)
GAP = 1.5
"""Periods between two ticks from which on one may be missing."""
MODE, ERROR, RESTART, STATES = map(
    SHIELD_NAMES.index, ('mode', 'error', 'was_restarted', 'num_states')
)
NOW, LATE_MS, RESUMED = map(SHIELD_NAMES.index, ('now_s', 'late_ms', 'was_resumed'))


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
        return np.asarray((self.stamp_ns - self.stamp_ns[0]) / 1e9)

    @property
    def estimate_nm(self) -> Array | None:
        """What the model was estimated to lack, shape (T, n); None without an estimator."""
        return self._of_joints('estimate')

    @property
    def estimated_state(self) -> tuple[Array, Array, Array] | None:
        """Q and qd, shape (T, n), and payload, (T,), that the law acted on; None: as measured."""
        q, qd = (self._of_joints(signal) for signal in STATE_NAMES)
        payload_kg = self.shield.get(ESTIMATED_PAYLOAD)
        if q is None or qd is None or payload_kg is None:
            return None
        return q, qd, payload_kg

    def _of_joints(self, signal: str) -> Array | None:
        """Return what ~/shield has of every joint, shape (T, n)."""
        names = [f'{signal}.{joint}' for joint in self.joint_names]
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
        return self.parameter('shadow') is True

    def parameter(self, name: str) -> Any:
        """Return what a parameter of the controller was, None if the bag does not say."""
        try:
            return json.loads(self.facts.get('parameters', '{}'))[name]
        except (ValueError, LookupError, TypeError):
            return None

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


class TickMessages(NamedTuple):
    """All messages of one tick."""

    stamp_ns: int
    shield: tuple[float, ...]
    """Those of SHIELD_NAMES first."""
    points: tuple[Point, ...]
    states: tuple[JointValues, ...]
    """As many as points."""
    output: JointValues
    gains: JointValues
    publish_time_ns: int
    """Of its shield; the command was published just before."""
    log_time_ns: int
    """When the recorder received that."""


def telemetry_topics(node: str) -> tuple[str, ...]:
    """Return how the topics end that a log of a node is made of."""
    return (*(f'/{node.strip("/")}/{topic}' for topic in TYPES), f'/{STAMPED}', f'/{FORWARD}')


def read_ticks(folder: Path, node: str = 'controller') -> TickLog:
    """Return the ticks of a controller node in a bag, finished or not, or in a file of one.

    If the bag has several, the name is that with its namespace, as in /left/controller.

    Raises:
        BagError: If it is no bag, holds no complete tick of such a node, or those of several, of
            two controllers or of another version.
    """
    endings = telemetry_topics(node)
    content = read_bag(folder, lambda topic: topic.endswith(endings))
    prefix = find_node(folder, content, node)
    by_stamp, facts, broken = _by_stamp(content, prefix)
    names = _shield_names(f'{folder}: {prefix}shield', by_stamp)
    ticks, left_out = _assemble(by_stamp, names)
    joints = ticks[0].states[0].names if ticks else ()
    both = command_topics(prefix[:-1].rpartition('/')[0])
    stamped, forward = (commands_of(content.messages, topic, joints) for topic in both)
    broken += Counter({log.topic: log.num_unreadable for log in (stamped, forward)})
    problems = [*content.problems]
    problems += [f'{topic}: {number} messages cannot be read' for topic, number in broken.items()]
    if num_incomplete := left_out['num_incomplete']:
        problems.append(f'{num_incomplete} ticks lack a message and are left out')
    if num_impossible := left_out['num_impossible']:
        problems.append(f'{num_impossible} ticks hold impossible values, left out')
    if not ticks:
        why = '; '.join(problems)
        raise BagError(f'{folder}: holds no complete tick of {prefix[:-1]} ({why}); record one.')
    if any(not follows(a, b) for a, b in pairwise(ticks)):
        problems.append('ticks are not in the order in which they happened')
        ticks.sort(key=lambda tick: tick.stamp_ns)
    if any(entry != facts[0] for entry in facts):
        raise BagError(
            f'{folder}: holds ticks of two controllers, {shown(facts[0])} and another; replay the '
            'file of one of them.'
        )
    if not facts or not facts[0]:
        problems.append('bundle: was not recorded, so the policy is not known')
    is_break = find_breaks(ticks)
    problems += _gaps(is_break)
    return TickLog(
        **_arrays(ticks, names, stamped),
        **left_out,
        joint_names=joints,
        gain_names=ticks[0].gains.names,
        is_break=is_break,
        stamped=stamped,
        forward=forward,
        facts=facts[0] if facts else {},
        problems=tuple(problems),
    )


def _shield_names(where: str, by_stamp: _ByStamp) -> tuple[str, ...]:
    """Return the names in ~/shield, and refuse those of another version."""
    layouts = (shield.names for group in by_stamp.values() for shield in group['shield'])
    names: tuple[str, ...] = next((layout for layout in layouts if layout), SHIELD_NAMES)
    if names[: len(SHIELD_NAMES)] != SHIELD_NAMES:
        missing = ', '.join(name for name in SHIELD_NAMES if name not in names)
        raise BagError(
            f'{where} is of another version and lacks {missing}; record again, or replay with the '
            'version that recorded it.'
        )
    return names


def _gaps(is_break: NDArray[np.bool_]) -> list[str]:
    """Return where ticks are missing, in words."""
    problems = []
    if is_break[0]:
        problems.append('begins in the middle of a run: what led to its first tick is missing')
    if is_break[1:].any():
        first = int(np.argmax(is_break[1:])) + 1
        problems.append(f'{is_break[1:].sum()} gaps, the first before tick {first}')
    return problems


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


def follows(before: TickMessages, tick: TickMessages) -> bool:
    """Return whether a tick can have come after another: time and states only go on."""
    if tick.shield[RESTART]:
        return True
    last_ns = before.points[-1].time_ns
    goes_on = tick.points[0].time_ns > last_ns if tick.shield[STATES] else True
    return tick.shield[NOW] >= before.shield[NOW] and goes_on


def _arrays(
    ticks: Sequence[TickMessages], shield_names: Sequence[str], stamped: CommandLog
) -> dict[str, Any]:
    """Return the fields of a log that have one row per tick, and what was seen."""
    shield = np.array([tick.shield for tick in ticks])
    begin = np.concatenate([[0], np.cumsum([len(tick.points) for tick in ticks])])
    states = [state for tick in ticks for state in tick.states]
    points = [point for tick in ticks for point in tick.points]
    motion = {
        'q_rad': np.array([state.position for state in states]),
        'qd_radps': np.array([state.velocity for state in states]),
        'q_desired_rad': np.array([point.positions for point in points]),
        'qd_desired_radps': np.array([point.velocities for point in points]),
        'qdd_desired_radps2': np.array([point.accelerations for point in points]),
    }
    seen_ns = np.array([point.time_ns for point in points], dtype=np.int64)
    times_ns = [(tick.stamp_ns, tick.publish_time_ns, tick.log_time_ns) for tick in ticks]
    stamp_ns, publish_time_ns, log_time_ns = np.array(times_ns, dtype=np.int64).T.copy()
    effort_nm = np.array([tick.output.effort for tick in ticks])
    row = answering_rows(stamp_ns, effort_nm, publish_time_ns, stamped)
    nothing = np.full(stamped.effort_nm.shape[1], np.nan)
    return {
        **{name: values[begin[1:] - 1] for name, values in motion.items()},
        'stamp_ns': stamp_ns,
        'publish_time_ns': publish_time_ns,
        'log_time_ns': log_time_ns,
        'now_ns': np.rint(shield[:, NOW] * NANOSECONDS_PER_SECOND).astype(np.int64),
        'effort_nm': effort_nm,
        'wanted_nm': np.array([tick.output.velocity for tick in ticks]),
        'effort_before_nm': np.array([tick.states[-1].effort for tick in ticks]),
        'command_row': row,
        'sent_nm': np.vstack([stamped.effort_nm, nothing])[row],
        'gains': np.array([tick.gains.position for tick in ticks]),
        'action': np.array([tick.gains.velocity for tick in ticks]),
        'is_restart': shield[:, RESTART] != 0.0,
        'is_resumed': shield[:, RESUMED] != 0.0,
        'num_states': shield[:, STATES].astype(np.int64),
        'seen': Seen(begin=begin, stamp_ns=seen_ns, **motion),
        'shield': dict(zip(shield_names, shield.T, strict=True)),
    }


def _by_stamp(
    content: BagContent, prefix: str
) -> tuple[_ByStamp, list[dict[str, str]], Counter[str]]:
    """Return the telemetry by stamp, the content of ~/bundle, and how many are broken."""
    by_stamp: _ByStamp = defaultdict(lambda: defaultdict(list))
    facts: list[dict[str, str]] = []
    broken: Counter[str] = Counter()
    for topic, type_name, log_time_ns, data, publish_time_ns, _ in content.messages:
        kind = topic.removeprefix(prefix) if topic.startswith(prefix) else topic
        if kind not in TYPES:
            continue
        try:
            if type_name != TYPES[kind]:
                raise CdrError(f'expected {TYPES[kind]}, found {type_name}')
            if kind == 'bundle':
                facts.append(_read_facts(data))
            elif kind == 'reference':
                trajectory = read_trajectory(data)
                by_stamp[trajectory.stamp_ns][kind].append(trajectory.points)
            else:
                values = read_joint_state(data)
                by_stamp[values.stamp_ns][kind].append(values)
                if kind == 'shield':
                    times_ns = min(publish_time_ns, LARGEST), min(log_time_ns, LARGEST)
                    by_stamp[values.stamp_ns]['times_ns'].append(times_ns)
        except (CdrError, ValueError, AttributeError, RecursionError):  # the latter two of JSON
            broken[topic] += 1
    return by_stamp, facts, broken


def _read_facts(data: bytes) -> dict[str, str]:
    """Return the table of ~/bundle; values that are no texts stay JSON."""
    table = json.loads(read_string(data)).items()
    facts = {k: v if isinstance(v, str) else json.dumps(v) for k, v in table}
    # Half a character can be written in JSON, and nowhere else.
    ''.join((*facts, *facts.values())).encode()
    return facts


def _is_sound(tick: TickMessages, first: TickMessages, num_values: int) -> bool:
    """Return whether all arrays of a tick have their sizes, and what must be finite is."""
    n, m, joints = len(first.output.effort), len(first.gains.position), first.states[0].names
    arrays = [x for p in tick.points for x in p[:3]] + [x for s in tick.states for x in s[2:]]
    sizes = {len(x) for x in (*arrays, tick.output.effort, tick.output.velocity)}
    states = (x for s in tick.states for x in (*s.position, *s.velocity))
    times_s = (tick.shield[NOW], *(p.time_ns / 1e9 for p in tick.points))
    return (
        sizes == {n}
        and n == len(joints) > 0
        and {len(tick.gains.position), len(tick.gains.velocity), len(first.gains.names)} == {m}
        and len(tick.shield) == num_values
        and tick.states[0].names == joints
        and tick.gains.names == first.gains.names
        and all(map(math.isfinite, states))
        and all(abs(t) <= LONGEST_S for t in times_s)
        and tick.shield[MODE] in MODES
        and tick.shield[ERROR] in CAUSES
    )


def _assemble(
    by_stamp: _ByStamp, names: tuple[str, ...]
) -> tuple[list[TickMessages], dict[str, Any]]:
    """Return all ticks in the order of the bag, and what a log says of those left out."""
    ticks: list[TickMessages] = []
    num_incomplete, left_out_ns = 0, set()
    for stamp_ns, group in by_stamp.items():
        states, num_complete = group['feedback'], 0
        rows = [group[kind] for kind in ('shield', 'reference', 'output', 'gains', 'times_ns')]
        for shield, points, output, gains, times_ns in zip(*rows, strict=False):
            is_whole = bool(points) and len(points) <= len(states) and shield.names == names
            is_whole = is_whole and len(shield.position) == len(names) > 0
            if not is_whole or max(shield.position[STATES], 1.0) != len(points):
                break
            seen, states = tuple(states[: len(points)]), states[len(points) :]
            ticks.append(
                TickMessages(stamp_ns, shield.position, points, seen, output, gains, *times_ns)
            )
            num_complete += 1
        num_missing = max(max(map(len, rows)) - num_complete, bool(states))
        if num_missing:
            num_incomplete += num_missing
            left_out_ns.add(stamp_ns)
    sound = [tick for tick in ticks if _is_sound(tick, ticks[0], len(names))]
    left_out_ns |= {tick.stamp_ns for tick in ticks} - {tick.stamp_ns for tick in sound}
    return sound, {
        'num_incomplete': num_incomplete,
        'num_impossible': len(ticks) - len(sound),
        'left_out_ns': frozenset(left_out_ns),
    }
