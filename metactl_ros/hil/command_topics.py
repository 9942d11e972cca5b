# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""The commands of a run, from both topics that carry them, and whether these say the same.

Others may publish there as well. A recording does not say who did, but publishers number their
messages: rows of numbers that go on belong together, and a controller's own bear the stamps of its
ticks. What the recorder itself has missed is missing from these numbers, and is no mistake.
"""

from collections import Counter
from collections.abc import Collection, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from metactl_ros.check.invariants import Commands
from metactl_ros.hil.accepted_states import publishers, Said
from metactl_ros.runtime.joint_samples import nanoseconds
from metactl_ros.signals import NANOSECONDS_PER_SECOND

LATER_AT_MOST = 5
"""By how many messages one topic may end before the other: a kill comes between the two."""


class CommandLog(NamedTuple):
    """What a controller commanded, and every one that was started in its place."""

    commands: Commands
    restarts_ns: tuple[int, ...]
    """When the first command of each further controller came."""
    problems: tuple[str, ...]
    """What was not as it must be: one named, equal command per tick on both topics."""
    foreign_ns: NDArray[np.int64]
    """When somebody else sent commands, on either topic, shape (F,)."""


def read_commands(
    stamped: Sequence[Said],
    forwarded: Sequence[Said],
    ticks_ns: Collection[int],
    joint_names: Sequence[str],
) -> CommandLog | None:
    """Return the commands of the controllers whose ticks bear the given stamps; None without any.

    Args:
        stamped: The messages of joint_commands.
        forwarded: Those of forward_effort_controller/commands.
        ticks_ns: The stamps of all ticks.
        joint_names: Of the arm, in its order.
    """
    ticks = set(ticks_ns)
    everyone, lives = publishers(stamped), []
    for row in everyone:
        if any(_stamp(entry) in ticks for entry in row):
            lives.append(row)
    if not lives:
        return None
    rows = [entry for life in lives for entry in life]
    commands = Commands(
        np.array([_stamp(entry) for entry in rows], dtype=np.int64),
        np.array([entry.published_ns for entry in rows], dtype=np.int64),
        np.array([_efforts(entry.message.effort, len(joint_names)) for entry in rows]),
    )
    restarts = tuple(life[0].published_ns for life in lives[1:])
    problems = [*_misnamed(rows, joint_names), *_per_tick(lives, ticks)]
    others = publishers(forwarded)
    partners = [_partner(life, others) for life in lives]
    for life, partner in zip(lives, partners, strict=True):
        problems += _differences(life, partner, joint_names)
    foreign_ns = sorted(
        entry.published_ns
        for rows, own in ((everyone, lives), (others, partners))
        for row in rows
        for entry in row
        if not any(row is mine for mine in own)
    )
    return CommandLog(commands, restarts, tuple(problems), np.array(foreign_ns, dtype=np.int64))


def _stamp(entry: Said) -> int:
    return nanoseconds(entry.message.header.stamp)


def _efforts(values: Any, length: int) -> list[float]:
    """Return a row of efforts; one of another length is none at all."""
    return list(values) if len(values) == length else [np.nan] * length


def _misnamed(rows: Sequence[Said], joint_names: Sequence[str]) -> list[str]:
    wrong = [row for row in rows if list(row.message.name) != list(joint_names)]
    if not wrong:
        return []
    found = list(wrong[0].message.name)
    return [f'{len(wrong)} of joint_commands name {found} instead of {list(joint_names)}']


def _per_tick(lives: Sequence[Sequence[Said]], ticks: set[int]) -> list[str]:
    """Return which ticks have no command, or several."""
    problems = []
    times = Counter(_stamp(entry) for life in lives for entry in life)
    several = [stamp for stamp, number in times.items() if number > 1 and stamp in ticks]
    if several:
        problems.append(f'{len(several)} ticks have more than one command')
    for life in lives:
        own = [_stamp(entry) for entry in life if _stamp(entry) in ticks]
        missing = sum(own[0] < tick < own[-1] for tick in ticks) - max(len(set(own)) - 2, 0)
        lost = sum(after.sequence - before.sequence - 1 for before, after in pairwise(life))
        if missing > lost:
            problems.append(f'{missing - lost} ticks have no command')
    return problems


def _partner(life: Sequence[Said], others: Sequence[Sequence[Said]]) -> Sequence[Said]:
    """Return the row of the other topic that was published along with this one."""
    when = {entry.sequence: entry.published_ns for entry in life}

    def nearness(row: Sequence[Said]) -> int:
        near_ns = NANOSECONDS_PER_SECOND // 100
        return sum(
            abs(when.get(entry.sequence, -near_ns) - entry.published_ns) < near_ns for entry in row
        )

    best = max(others, key=nearness, default=())
    return best if nearness(best) else ()


def _differences(
    life: Sequence[Said], partner: Sequence[Said], joint_names: Sequence[str]
) -> list[str]:
    """Return how the messages of two topics differ that have the same numbers."""
    if not partner:
        return ['forward_effort_controller/commands is silent']
    forwarded = {entry.sequence: entry.message for entry in partner}
    label = ','.join(joint_names)
    unequal = unnamed = 0
    for entry in life:
        other = forwarded.get(entry.sequence)
        if other is None:
            continue
        unequal += not np.array_equal(entry.message.effort, other.data, equal_nan=True)
        unnamed += [dim.label for dim in other.layout.dim] != [label]
    problems = []
    if unequal:
        problems.append(f'{unequal} commands differ between the two topics')
    if unnamed:
        problems.append(f'{unnamed} of forward_effort_controller/commands do not name the joints')
    ends = life[-1].sequence, partner[-1].sequence
    if abs(ends[0] - ends[1]) > LATER_AT_MOST:
        problems.append(f'joint_commands ends with number {ends[0]}, the other with {ends[1]}')
    return problems
