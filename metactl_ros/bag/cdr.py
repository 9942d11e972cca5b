# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""The messages of a tick from CDR, several times as fast as by a general deserialiser.

A tick is five messages of the same joints and names, of which only the numbers change: names that
came before are known by their bytes and not read again.
"""

from functools import lru_cache
import struct
from typing import NamedTuple

from metactl_ros.signals import NANOSECONDS_PER_SECOND

HEADER = 4
"""Bytes before the content, from which alignment counts."""
LITTLE_ENDIAN = b'\0\1'
FRAME = HEADER + 8
"""Where the frame begins, after the stamp."""
MAX_KNOWN = 64
_KNOWN: dict[int, tuple[bytes, int]] = {}
"""Frame and names by the length of a message, and where they end."""


class CdrError(ValueError):
    """The bytes are no such message."""


class JointValues(NamedTuple):
    """A JointState."""

    stamp_ns: int
    names: tuple[str, ...]
    position: tuple[float, ...]
    velocity: tuple[float, ...]
    effort: tuple[float, ...]


class Point(NamedTuple):
    """A JointTrajectoryPoint."""

    positions: tuple[float, ...]
    velocities: tuple[float, ...]
    accelerations: tuple[float, ...]
    time_ns: int


class Trajectory(NamedTuple):
    """A JointTrajectory."""

    stamp_ns: int
    names: tuple[str, ...]
    points: tuple[Point, ...]


def read_joint_state(data: bytes) -> JointValues:
    """Return a sensor_msgs/msg/JointState.

    Raises:
        CdrError: If it is none, or not little-endian.
    """
    try:
        stamp_ns, names, place = _read_head(data)
        position, place = _read_doubles(data, place)
        velocity, place = _read_doubles(data, place)
        effort, _ = _read_doubles(data, place)
    except (struct.error, ValueError, OverflowError, MemoryError) as error:
        raise CdrError(f'not a JointState: {error}') from None
    return JointValues(stamp_ns, names, position, velocity, effort)


def read_trajectory(data: bytes) -> Trajectory:
    """Return a trajectory_msgs/msg/JointTrajectory.

    Raises:
        CdrError: If it is none, or not little-endian.
    """
    points = []
    try:
        stamp_ns, names, place = _read_head(data)
        place = _aligned(place, 4)
        (count,) = struct.unpack_from('<I', data, place)
        place += 4
        for _ in range(count):
            positions, place = _read_doubles(data, place)
            velocities, place = _read_doubles(data, place)
            accelerations, place = _read_doubles(data, place)
            _, place = _read_doubles(data, place)
            place = _aligned(place, 4)
            seconds, rest = struct.unpack_from('<iI', data, place)
            place += 8
            time_ns = seconds * NANOSECONDS_PER_SECOND + rest
            points.append(Point(positions, velocities, accelerations, time_ns))
    except (struct.error, ValueError, OverflowError, MemoryError) as error:
        raise CdrError(f'not a JointTrajectory: {error}') from None
    return Trajectory(stamp_ns, names, tuple(points))


def count_trajectory(data: bytes, most_names: int) -> tuple[int, int]:
    """Return how many names and points a JointTrajectory has, without reading the points.

    They come after the names: behind more names than expected none are looked for.

    Raises:
        CdrError: If it is none, or not little-endian.
    """
    try:
        _require_little_endian(data)
        (frame,) = struct.unpack_from('<I', data, FRAME)
        place = _aligned(FRAME + 4 + frame, 4)
        (num_names,) = struct.unpack_from('<I', data, place)
        if num_names > most_names:
            return num_names, 0
        (num_points,) = struct.unpack_from('<I', data, _aligned(_after_names(data, place), 4))
    except (struct.error, ValueError, OverflowError, MemoryError) as error:
        raise CdrError(f'not a JointTrajectory: {error}') from None
    return num_names, num_points


def read_string(data: bytes) -> str:
    """Return the text of a std_msgs/msg/String.

    Raises:
        CdrError: If it is none, or not little-endian.
    """
    try:
        _require_little_endian(data)
        return _read_text(data, HEADER)[0]
    except (struct.error, ValueError, OverflowError, MemoryError) as error:
        raise CdrError(f'not a String: {error}') from None


def read_multi_array(data: bytes) -> tuple[tuple[str, ...], tuple[float, ...]]:
    """Return the labels of the dimensions and the data of a std_msgs/msg/Float64MultiArray.

    Raises:
        CdrError: If it is none, or not little-endian.
    """
    labels = []
    try:
        _require_little_endian(data)
        (count,) = struct.unpack_from('<I', data, HEADER)
        place = HEADER + 4
        for _ in range(count):  # ends with the data, however many are promised
            label, place = _read_text(data, place)
            labels.append(label)
            place += 8  # size and stride
        values, _ = _read_doubles(data, place + 4)  # after the offset
    except (struct.error, ValueError, OverflowError, MemoryError) as error:
        raise CdrError(f'not a Float64MultiArray: {error}') from None
    return tuple(labels), values


def _require_little_endian(data: bytes) -> None:
    if data[:2] != LITTLE_ENDIAN:
        raise ValueError(f'expected little-endian CDR, found {data[:2]!r}')


def _read_head(data: bytes) -> tuple[int, tuple[str, ...], int]:
    """Return stamp, names, and where the rest begins."""
    _require_little_endian(data)
    seconds, rest, frame = struct.unpack_from('<iII', data, HEADER)
    stamp_ns = seconds * NANOSECONDS_PER_SECOND + rest
    block, place = _KNOWN.get(len(data), (b'', 0))
    if not place or data[FRAME:place] != block:
        begin = _aligned(FRAME + 4 + frame, 4)
        place = _after_names(data, begin)
        block = bytes(data[FRAME:place])
        if len(_KNOWN) < MAX_KNOWN:
            _KNOWN[len(data)] = block, place
    return stamp_ns, _names(block), place


def _after_names(data: bytes, place: int) -> int:
    (count,) = struct.unpack_from('<I', data, place)
    place += 4
    for _ in range(count):
        (size,) = struct.unpack_from('<I', data, place)
        place = _aligned(place + 4 + size, 4)
    return place


@lru_cache(maxsize=MAX_KNOWN)
def _names(block: bytes) -> tuple[str, ...]:
    """Return the names of a block that begins with the frame."""
    (frame,) = struct.unpack_from('<I', block)
    place = _aligned(4 + frame, 4)
    (count,) = struct.unpack_from('<I', block, place)
    names, place = [], place + 4
    for _ in range(count):
        name, place = _read_text(block, place)
        names.append(name)
    return tuple(names)


def _read_text(data: bytes, place: int) -> tuple[str, int]:
    """Return a text, and where what follows it begins."""
    (size,) = struct.unpack_from('<I', data, place)
    (text,) = struct.unpack_from(f'<{size}s', data, place + 4)
    return str(text[:-1], 'utf-8'), _aligned(place + 4 + size, 4)


def _read_doubles(data: bytes, place: int) -> tuple[tuple[float, ...], int]:
    place = _aligned(place, 4)
    (count,) = struct.unpack_from('<I', data, place)
    place += 4
    if not count:
        return (), place
    place = _aligned(place, 8)
    return struct.unpack_from(f'<{count}d', data, place), place + 8 * count


def _aligned(place: int, size: int) -> int:
    return HEADER + -(-(place - HEADER) // size) * size
