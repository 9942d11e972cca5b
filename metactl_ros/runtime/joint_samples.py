# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""Joint messages to numbers and back, matched by name; a message that cannot be used says why.

Messages are sensor_msgs/JointState. What arrives may be anything: rclpy passes NaN, wrong lengths
and empty fields on as they are.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from metactl_ros.control.inputs import ABSURD
from metactl_ros.errors import MetactlError
from metactl_ros.signals import Array, NANOSECONDS_PER_SECOND

LAST_STAMP_NS = 2**31 * NANOSECONDS_PER_SECOND - 1
"""The last time that builtin_interfaces/Time can hold, in January 2038: its seconds are int32."""
EFFORT_MARGIN = 1.2
"""How much larger than its limit a measured effort may be: sensors have noise."""


class MessageError(MetactlError, ValueError):
    """A message cannot be used; the text names the joint."""


class JointSample(NamedTuple):
    """What a JointState holds of the arm's joints, in the arm's order."""

    stamp_ns: int
    q_rad: Array
    """Shape (n,), finite."""
    qd_radps: Array
    """Shape (n,), finite."""
    effort_nm: Array | None
    """Shape (n,); None if the message has no efforts, or one that is not finite."""


def read_joint_state(message: Any, joint_names: Sequence[str]) -> JointSample:
    """Return the joints of the arm from a JointState; others may be there as well.

    Raises:
        MessageError: If a joint is missing or there twice, a position or velocity is missing, not
            finite or absurd, or the stamp is zero or negative.
    """
    stamp_ns = nanoseconds(message.header.stamp)
    if stamp_ns <= 0:
        raise MessageError('joint state: has no stamp; set header.stamp to the time of measuring.')
    places = find_joints(message.name, joint_names)
    q = _pick(message.position, 'position', message.name, places)
    qd = _pick(message.velocity, 'velocity', message.name, places)
    effort: Array | None = None
    if len(message.effort) == len(message.name):
        effort = np.array([message.effort[place] for place in places])
        effort = effort if np.isfinite(effort).all() else None
    return JointSample(stamp_ns, q, qd, effort)


def effort_doubt(
    sample: JointSample, largest_nm: Sequence[float], joint_names: Sequence[str]
) -> str:
    """Return why the efforts of a sample cannot be right, nothing if they may be.

    One joint beyond its limit is enough to reject all: a driver that reports currents does so for
    every joint.
    """
    if sample.effort_nm is None:
        return ''
    for joint, effort, largest in zip(joint_names, sample.effort_nm, largest_nm, strict=True):
        if abs(effort) > EFFORT_MARGIN * largest:
            return (
                f'joint {joint!r}: measured effort rejected, with those of the others: '
                f'expected at most {EFFORT_MARGIN:g} times its limit of {largest:g} N m, found '
                f'{effort:g}; publish N m. Control begins from the gravity torque of the model.'
            )
    return ''


def read_effort(message: Any, joint_names: Sequence[str]) -> tuple[int, Array]:
    """Return stamp (ns) and efforts (N m), shape (n,), of a stamped command.

    Raises:
        MessageError: If a joint is missing or there twice, or an effort is missing, not finite or
            absurd.
    """
    places = find_joints(message.name, joint_names)
    return nanoseconds(message.header.stamp), _pick(message.effort, 'effort', message.name, places)


def find_joints(names: Sequence[str], joint_names: Sequence[str]) -> list[int]:
    """Return where each joint of the arm is among the names of a message."""
    places = {name: place for place, name in enumerate(names)}
    for joint in joint_names:
        if joint not in places:
            raise MessageError(
                f'joint {joint!r}: not in the message, which names {list(names)}; publish it, or '
                'set the joint names of the arm.'
            )
    if len(places) != len(names):
        twice = next(name for place, name in enumerate(names) if places[name] != place)
        raise MessageError(f'joint {twice!r}: named twice in one message; publish it once.')
    return [places[joint] for joint in joint_names]


def _pick(values: Sequence[float], field: str, names: Sequence[str], places: list[int]) -> Array:
    if len(values) != len(names):
        missing = names[min(len(values), len(names) - 1)]
        raise MessageError(
            f'joint {missing!r}: expected one {field} per name, found {len(values)} for '
            f'{len(names)} names; publish positions and velocities of every joint named.'
        )
    picked = [float(values[place]) for place in places]
    for place, value in zip(places, picked, strict=True):
        if not abs(value) <= ABSURD:  # NaN is not
            raise MessageError(
                f'joint {names[place]!r}: expected a finite {field} of at most {ABSURD:g}, '
                f'found {value}.'
            )
    return np.array(picked)


def nanoseconds(stamp: Any) -> int:
    """Return a builtin_interfaces/Time or Duration in ns."""
    return int(stamp.sec) * NANOSECONDS_PER_SECOND + int(stamp.nanosec)


def set_stamp(stamp: Any, stamp_ns: int) -> None:
    """Write a time in ns into a builtin_interfaces/Time; what it cannot hold, as its nearest."""
    held_ns = min(max(stamp_ns, -LAST_STAMP_NS - 1), LAST_STAMP_NS)
    stamp.sec, stamp.nanosec = divmod(held_ns, NANOSECONDS_PER_SECOND)
