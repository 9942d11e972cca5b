# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""What a controller saw and did, read back from a bag, tick by tick."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from metactl_ros.errors import MetactlError, MissingDependency
from metactl_ros.nodes.joint_messages import nanoseconds
from metactl_ros.signals import Array

try:
    from rosbags.highlevel import AnyReader, AnyReaderError
    from rosbags.typesys import get_typestore, Stores
except ImportError as error:
    raise MissingDependency(
        "reading bags needs rosbags; run: pip install 'metactl_ros[sim]'"
    ) from error

TOPICS = ('reference', 'feedback', 'output', 'gains', 'shield')
"""Of the controller node; one message of each per tick, under one stamp."""


class BagError(MetactlError, RuntimeError):
    """A bag cannot be used."""


@dataclass(frozen=True, slots=True)
class TickLog:
    """One row per tick, in the order of its commands."""

    stamp_ns: Any
    """Of the command, shape (T,), int64."""
    joint_names: tuple[str, ...]
    q_rad: Array
    """Shape (T, n), as are the next ones."""
    qd_radps: Array
    q_desired_rad: Array
    qd_desired_radps: Array
    qdd_desired_radps2: Array
    effort_nm: Array
    gains: Array
    """theta in force, shape (T, m)."""
    action: Array
    """What the policy proposed, shape (T, m)."""
    shield: dict[str, Array]
    """Every value of ~/shield by its name, shape (T,)."""
    num_incomplete: int
    """Ticks of which a message is missing; they are left out."""

    @property
    def time_s(self) -> Array:
        """Time since the first tick, shape (T,)."""
        times: Array = (self.stamp_ns - self.stamp_ns[0]) / 1e9
        return times


def read_ticks(folder: Path, node: str = 'controller') -> TickLog:
    """Return the ticks of a controller node in a bag.

    Raises:
        BagError: If it is no bag, or holds no complete tick of such a node.
    """
    rows: dict[int, dict[str, Any]] = {}
    wanted = {f'{node}/{topic}': topic for topic in TOPICS}
    try:
        with AnyReader([folder], default_typestore=get_typestore(Stores.ROS2_JAZZY)) as reader:
            for connection, _, raw in reader.messages():
                topic = next(
                    (t for end, t in wanted.items() if connection.topic.endswith(end)), ''
                )
                if topic:
                    message: Any = reader.deserialize(raw, connection.msgtype)
                    rows.setdefault(nanoseconds(message.header.stamp), {})[topic] = message
    except (AnyReaderError, OSError) as error:
        raise BagError(f'{folder}: not a bag that can be read ({error}).') from error
    ticks = {stamp: row for stamp, row in rows.items() if len(row) == len(TOPICS)}
    if not ticks:
        raise BagError(f'{folder}: holds no complete tick of a node {node!r}; record one.')
    first = next(iter(ticks.values()))
    points = [row['reference'].points[-1] for row in ticks.values()]
    shield = np.array([row['shield'].position for row in ticks.values()])

    def column(topic: str, field: str) -> Array:
        return np.array([getattr(row[topic], field) for row in ticks.values()])

    return TickLog(
        stamp_ns=np.array(list(ticks), dtype=np.int64),
        joint_names=tuple(first['feedback'].name),
        q_rad=column('feedback', 'position'),
        qd_radps=column('feedback', 'velocity'),
        q_desired_rad=np.array([point.positions for point in points]),
        qd_desired_radps=np.array([point.velocities for point in points]),
        qdd_desired_radps2=np.array([point.accelerations for point in points]),
        effort_nm=column('output', 'effort'),
        gains=column('gains', 'position'),
        action=column('gains', 'velocity'),
        shield=dict(zip(first['shield'].name, shield.T, strict=True)),
        num_incomplete=len(rows) - len(ticks),
    )
