# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""What was commanded, as a bag holds it: both command topics, message by message, as arrays.

    stamped, forward = read_commands(bag, arm.joint_names)

Every message has its row, whoever sent it and whatever is in it. Its efforts are numbers only if
it has exactly one for each joint and names exactly these joints, in their order; else they are
NaN, so that whoever asks for finite efforts finds it.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path
import struct
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from metactl_ros.bag.cdr import CdrError, read_joint_state
from metactl_ros.bag.reader import BagMessage, read_bag
from metactl_ros.signals import Array

STAMPED = 'joint_commands'
"""sensor_msgs/JointState."""
FORWARD = 'forward_effort_controller/commands'
"""std_msgs/Float64MultiArray: what a robot of ros2_control applies. It has no stamp."""
TYPES = {STAMPED: 'sensor_msgs/msg/JointState', FORWARD: 'std_msgs/msg/Float64MultiArray'}
LITTLE_ENDIAN, HEADER = b'\0\1', 4
LARGEST = 2**63 - 1
"""ns; what a bag calls a time has 64 bits without a sign, and may be anything."""


class CommandLog(NamedTuple):
    """The messages of one command topic, in the order of the bag."""

    topic: str
    """Its full name."""
    stamp_ns: NDArray[np.int64]
    """Of the header, shape (N,); zero on the topic that has none."""
    publish_time_ns: NDArray[np.int64]
    """On the publisher's clock, shape (N,)."""
    log_time_ns: NDArray[np.int64]
    """On the recorder's, which does not step back, shape (N,)."""
    sequence: NDArray[np.int64]
    """Counted by the publisher from 1, shape (N,); zero where the bag does not say."""
    names: tuple[tuple[str, ...], ...]
    """The joints that each message names; none where a Float64MultiArray has no label."""
    is_for_arm: NDArray[np.bool_]
    """Whether it has one effort for each joint of the arm, in their order, shape (N,)."""
    effort_nm: Array
    """Shape (N, n); NaN where it has not."""
    num_unreadable: int
    """Messages of another type or broken ones; they have no row."""


class _Command(NamedTuple):
    stamp_ns: int
    names: tuple[str, ...]
    effort_nm: tuple[float, ...]


def read_commands(
    bag: Path, joint_names: Sequence[str], namespace: str = ''
) -> tuple[CommandLog, CommandLog]:
    """Return what a bag holds of `joint_commands` and `forward_effort_controller/commands`.

    Args:
        bag: A folder or a file, finished or not.
        joint_names: Of the arm, with any prefix.
        namespace: Of both topics, with a slash in front; none by default.

    Raises:
        BagError: If there is nothing that could be a bag.
    """
    topics = command_topics(namespace)
    messages = read_bag(bag, lambda topic: topic in topics).messages
    stamped, forward = (commands_of(messages, topic, joint_names) for topic in topics)
    return stamped, forward


def command_topics(namespace: str) -> tuple[str, str]:
    """Return the full names of both command topics."""
    return f'{namespace}/{STAMPED}', f'{namespace}/{FORWARD}'


def commands_of(
    messages: Iterable[BagMessage], topic: str, joint_names: Sequence[str]
) -> CommandLog:
    """Return the messages of one command topic."""
    kind = next(kind for kind in TYPES if topic.endswith(f'/{kind}'))
    read = _read_stamped if kind == STAMPED else _read_forward
    rows: list[tuple[BagMessage, _Command]] = []
    num_unreadable = 0
    for message in messages:
        if message.topic != topic:
            continue
        try:
            if message.type_name != TYPES[kind]:
                raise CdrError(f'expected {TYPES[kind]}, found {message.type_name}')
            rows.append((message, read(message.data)))
        except CdrError:
            num_unreadable += 1
    joints = tuple(joint_names)
    nothing = (np.nan,) * len(joints)
    is_for_arm = [_is_for(command, joints, kind) for _, command in rows]
    efforts = [
        command.effort_nm if is_good else nothing
        for (_, command), is_good in zip(rows, is_for_arm, strict=True)
    ]
    return CommandLog(
        topic=topic,
        stamp_ns=_integers(command.stamp_ns for _, command in rows),
        publish_time_ns=_integers(message.publish_time_ns for message, _ in rows),
        log_time_ns=_integers(message.log_time_ns for message, _ in rows),
        sequence=_integers(message.sequence for message, _ in rows),
        names=tuple(command.names for _, command in rows),
        is_for_arm=np.array(is_for_arm, dtype=bool),
        effort_nm=np.array(efforts, dtype=np.float64).reshape(len(rows), len(joints)),
        num_unreadable=num_unreadable,
    )


def _is_for(command: _Command, joints: tuple[str, ...], kind: str) -> bool:
    is_named = command.names == joints or (kind == FORWARD and not command.names)
    return is_named and len(command.effort_nm) == len(joints)


def _integers(values: Iterable[int]) -> NDArray[np.int64]:
    return np.array([min(value, LARGEST) for value in values], dtype=np.int64)


def _read_stamped(data: bytes) -> _Command:
    message = read_joint_state(data)
    return _Command(message.stamp_ns, message.names, message.effort)


def _read_forward(data: bytes) -> _Command:
    """Return a Float64MultiArray; the label of its only dimension names the joints."""
    if data[:2] != LITTLE_ENDIAN:
        raise CdrError(f'expected little-endian CDR, found {data[:2]!r}')
    labels = []
    try:
        (count,) = struct.unpack_from('<I', data, HEADER)
        place = HEADER + 4
        for _ in range(count):  # ends with the data, however many are promised
            (size,) = struct.unpack_from('<I', data, place)
            (label,) = struct.unpack_from(f'<{size}s', data, place + 4)
            labels.append(str(label[:-1], 'utf-8'))
            place = _aligned(place + 4 + size, 4) + 8  # size and stride follow
        _, count = struct.unpack_from('<II', data, place)
        effort = struct.unpack_from(f'<{count}d', data, _aligned(place + 8, 8)) if count else ()
    except (struct.error, ValueError, OverflowError, MemoryError) as error:
        raise CdrError(f'not a Float64MultiArray: {error}') from None
    return _Command(0, tuple(','.join(labels).split(',')) if any(labels) else (), effort)


def _aligned(place: int, size: int) -> int:
    return HEADER + -(-(place - HEADER) // size) * size
