# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""The messages of a controller node, put together to ticks.

All messages of a tick have the stamp of its command. Where ticks share a stamp, as those of a
robot that stands still in simulated time, their order distinguishes them. Whatever is missing, out
of order or impossible is named, and none of it is passed over.
"""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
import json
import math
from pathlib import Path
from typing import NamedTuple

from metactl_ros.bag.cdr import (
    CdrError,
    JointValues,
    Point,
    read_joint_state,
    read_string,
    read_trajectory,
)
from metactl_ros.bag.command_log import (
    command_topics,
    CommandLog,
    commands_of,
    FORWARD,
    LARGEST,
    STAMPED,
)
from metactl_ros.bag.reader import BagContent, BagError
from metactl_ros.bag.topics import SHIELD_NAMES
from metactl_ros.config import MAX_TEXT, shown
from metactl_ros.control.modes import Cause, Mode

TYPES = {
    'shield': 'sensor_msgs/msg/JointState',
    'reference': 'trajectory_msgs/msg/JointTrajectory',
    'feedback': 'sensor_msgs/msg/JointState',
    'output': 'sensor_msgs/msg/JointState',
    'gains': 'sensor_msgs/msg/JointState',
    'bundle': 'std_msgs/msg/String',
}
"""Of the controller node; a tick has one of each but bundle, and a feedback for each state."""
LONGEST_S = 1e8
"""No controller runs for longer: years. Beyond it a time is as good as NaN."""
MODE, ERROR, RESTART, STATES, NOW = (
    SHIELD_NAMES.index(name) for name in ('mode', 'error', 'was_restarted', 'num_states', 'now_s')
)
LATE_MS, RESUMED = (SHIELD_NAMES.index(name) for name in ('late_ms', 'was_resumed'))


class TickMessages(NamedTuple):
    """All messages of one tick."""

    stamp_ns: int
    shield: tuple[float, ...]
    """In the order of `NodeMessages.shield_names`; those of SHIELD_NAMES come first."""
    points: tuple[Point, ...]
    states: tuple[JointValues, ...]
    """As many as points."""
    output: JointValues
    gains: JointValues
    publish_time_ns: int
    """Of its shield; the command was published just before."""
    log_time_ns: int
    """When the recorder received that."""


class _Shield(NamedTuple):
    values: JointValues
    publish_time_ns: int
    log_time_ns: int


@dataclass(slots=True)
class _Stamped:
    """The messages that share a stamp, in the order of the bag."""

    shield: list[_Shield] = field(default_factory=list)
    reference: list[tuple[Point, ...]] = field(default_factory=list)
    feedback: list[JointValues] = field(default_factory=list)
    output: list[JointValues] = field(default_factory=list)
    gains: list[JointValues] = field(default_factory=list)


class NodeMessages(NamedTuple):
    """What a bag holds of a controller node."""

    ticks: list[TickMessages]
    shield_names: tuple[str, ...]
    commands: tuple[CommandLog, CommandLog]
    """What was sent, whatever node sent it: stamped, and for ros2_control."""
    facts: dict[str, str]
    """The content of ~/bundle; empty if it was not recorded."""
    num_incomplete: int
    """Ticks of which a message is missing; they are left out."""
    num_impossible: int
    """Ticks with values that no controller has; they are left out, too."""
    left_out_ns: frozenset[int]
    """The stamps of both."""
    problems: tuple[str, ...]


def telemetry_topics(node: str) -> tuple[str, ...]:
    """Return how the topics end that a log of a node is made of."""
    telemetry = (f'/{node.strip("/")}/{topic}' for topic in TYPES)
    return (*telemetry, f'/{STAMPED}', f'/{FORWARD}')


def collect(where: Path, content: BagContent, node: str) -> NodeMessages:
    """Return the ticks of a node, in their order.

    Raises:
        BagError: If there is no such node or several, if the telemetry is of another version, or
            of two controllers.
    """
    prefix = _find_node(where, content, node)
    stamped, facts, broken = _by_stamp(content, prefix)
    layouts = (shield.values.names for group in stamped.values() for shield in group.shield)
    names = next((layout for layout in layouts if layout), ())
    _require_layout(where, prefix, names)
    ticks, num_incomplete, left_out_ns = _assemble(stamped, names)
    sound = [tick for tick in ticks if is_sound(tick, ticks[0], len(names))]
    left_out_ns |= {tick.stamp_ns for tick in ticks} - {tick.stamp_ns for tick in sound}
    joints = sound[0].states[0].names if sound else ()
    both = command_topics(prefix[:-1].rpartition('/')[0])
    commands = [commands_of(content.messages, topic, joints) for topic in both]
    broken.update({log.topic: log.num_unreadable for log in commands if log.num_unreadable})
    problems = [f'{topic}: {n} messages cannot be read' for topic, n in broken.items()]
    if num_incomplete:
        problems.append(f'{num_incomplete} ticks lack a message and are left out')
    if len(sound) < len(ticks):
        problems.append(f'{len(ticks) - len(sound)} ticks hold impossible values, left out')
    if not sound:
        why = '; '.join((*content.problems, *problems))
        raise BagError(f'{where}: holds no complete tick of {prefix[:-1]} ({why}); record one.')
    if any(not follows(a, b) for a, b in pairwise(sound)):
        problems.append('ticks are not in the order in which they happened')
        sound.sort(key=lambda tick: tick.stamp_ns)
    if any(entry != facts[0] for entry in facts):
        raise BagError(
            f'{where}: holds ticks of two controllers, {shown(facts[0])} and another; replay the '
            'file of one of them.'
        )
    return NodeMessages(
        ticks=sound,
        shield_names=names,
        commands=(commands[0], commands[1]),
        facts=facts[0] if facts else {},
        num_incomplete=num_incomplete,
        num_impossible=len(ticks) - len(sound),
        left_out_ns=left_out_ns,
        problems=tuple(problems),
    )


def _by_stamp(
    content: BagContent, prefix: str
) -> tuple[dict[int, _Stamped], list[dict[str, str]], Counter[str]]:
    """Return the telemetry by stamp, the content of ~/bundle, and how many are broken."""
    stamped: dict[int, _Stamped] = defaultdict(_Stamped)
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
                stamped[trajectory.stamp_ns].reference.append(trajectory.points)
            elif kind == 'shield':
                values = read_joint_state(data)
                times = (min(time_ns, LARGEST) for time_ns in (publish_time_ns, log_time_ns))
                stamped[values.stamp_ns].shield.append(_Shield(values, *times))
            else:
                values = read_joint_state(data)
                rows: list[JointValues] = getattr(stamped[values.stamp_ns], kind)
                rows.append(values)
        except (CdrError, ValueError, AttributeError, RecursionError):  # the latter two of JSON
            broken[topic] += 1
    return stamped, facts, broken


def _read_facts(data: bytes) -> dict[str, str]:
    """Return the table of ~/bundle; values that are no texts stay JSON.

    Raises:
        ValueError, AttributeError, RecursionError: If it is no table in JSON.
    """
    table = json.loads(read_string(data)).items()
    facts = {k: v if isinstance(v, str) else json.dumps(v) for k, v in table}
    # Half a character can be written in JSON, and nowhere else.
    ''.join((*facts, *facts.values())).encode()
    return facts


def follows(before: TickMessages, tick: TickMessages) -> bool:
    """Return whether a tick can have come after another: time and states only go on."""
    if tick.shield[RESTART]:
        return True
    last_ns = before.points[-1].time_ns
    goes_on = tick.points[0].time_ns > last_ns if tick.shield[STATES] else True
    return tick.shield[NOW] >= before.shield[NOW] and goes_on


def is_sound(tick: TickMessages, first: TickMessages, num_values: int) -> bool:
    """Return whether all arrays of a tick have their sizes, and what must be finite is."""
    n, m = len(first.output.effort), len(first.gains.position)
    sizes = [
        *(len(x) for p in tick.points for x in p[:3]),
        *(len(x) for s in tick.states for x in s[2:]),
        *(len(x) for x in (tick.output.effort, tick.output.velocity)),
    ]
    if set(sizes) != {n} or {len(tick.gains.position), len(tick.gains.velocity)} != {m}:
        return False
    if len(tick.shield) != num_values or tick.states[0].names != first.states[0].names:
        return False
    states = [x for s in tick.states for x in (*s.position, *s.velocity)]
    times = [tick.shield[NOW], *(p.time_ns / 1e9 for p in tick.points)]
    if not n or (len(first.states[0].names), len(first.gains.names)) != (n, m):
        return False
    return (
        all(map(math.isfinite, states))
        and all(abs(t) <= LONGEST_S for t in times)
        and tick.shield[MODE] in list(Mode)
        and tick.shield[ERROR] in list(Cause)
        and tick.gains.names == first.gains.names
    )


def _find_node(where: Path, content: BagContent, node: str) -> str:
    """Return what the topics of the node begin with."""
    end = f'/{node.strip("/")}/'
    found = sorted(
        {topic[: -len('shield')] for topic in content.counts if topic.endswith(f'{end}shield')}
    )
    if len(found) > 1:
        raise BagError(
            f'{where}: has several nodes {node!r}, {", ".join(name[:-1] for name in found)}; name '
            'one of them with --node.'
        )
    if not found:
        topics = ', '.join(sorted(content.counts))[:MAX_TEXT] or 'no topics'
        why = f' ({"; ".join(content.problems)})' if content.problems else ''
        raise BagError(
            f'{where}: lacks the telemetry of a node {node!r}, such as {end}shield; states and '
            f'commands alone do not say what a controller knew. Found {topics}{why}; record with '
            'metactl record.'
        )
    return found[0]


def _require_layout(where: Path, prefix: str, names: Sequence[str]) -> None:
    missing = [name for name in SHIELD_NAMES if name not in names]
    if names and (missing or tuple(names[: len(SHIELD_NAMES)]) != SHIELD_NAMES):
        raise BagError(
            f'{where}: {prefix}shield is of another version and lacks {", ".join(missing)}; '
            'record again, or replay with the version that recorded it.'
        )


def _assemble(
    stamped: Mapping[int, _Stamped], names: tuple[str, ...]
) -> tuple[list[TickMessages], int, frozenset[int]]:
    """Return all complete ticks in the order of the bag, how many are not, and their stamps."""
    ticks: list[TickMessages] = []
    num_incomplete, left_out_ns = 0, set()
    for stamp_ns, group in stamped.items():
        states, num_complete = group.feedback, 0
        rows = group.shield, group.reference, group.output, group.gains
        for (shield, *times), points, output, gains in zip(*rows, strict=False):
            is_whole = bool(points) and len(points) <= len(states) and shield.names == names
            is_whole = is_whole and len(shield.position) == len(names) > 0
            if not is_whole or max(shield.position[STATES], 1.0) != len(points):
                break
            seen, states = states[: len(points)], states[len(points) :]
            ticks.append(
                TickMessages(stamp_ns, shield.position, points, tuple(seen), output, gains, *times)
            )
            num_complete += 1
        num_missing = max(max(len(row) for row in rows) - num_complete, bool(states))
        if num_missing:
            num_incomplete += num_missing
            left_out_ns.add(stamp_ns)
    return ticks, num_incomplete, frozenset(left_out_ns)
