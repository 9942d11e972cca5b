# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""Trajectories for tests, as they are read from their bytes, and those bytes."""

import struct

from metactl_ros.bag.topics import HEADER, Point, Trajectory

JOINTS = ('shoulder', 'elbow')
SECOND_NS = 1_000_000_000


def nanoseconds_of(t_s):
    return round(t_s * SECOND_NS)


def point(t_s, positions, velocities=(), accelerations=()):
    fields = (tuple(map(float, row)) for row in (positions, velocities, accelerations))
    return Point(*fields, nanoseconds_of(t_s))


def trajectory(*points, names=JOINTS, stamp_ns=0):
    return Trajectory(stamp_ns, tuple(names), points)


def cdr_of(message):
    """Return a trajectory as the bytes of a trajectory_msgs/msg/JointTrajectory."""
    data = bytearray(b'\0\1\0\0')

    def put(kind, *values):
        data.extend(b'\0' * (-(len(data) - HEADER) % struct.calcsize(kind)))
        data.extend(struct.pack(f'<{len(values)}{kind}', *values))

    put('i', message.stamp_ns // SECOND_NS)
    put('I', message.stamp_ns % SECOND_NS)
    put('I', 1)
    data.append(0)
    put('I', len(message.names))
    for name in message.names:
        text = name.encode() + b'\0'
        put('I', len(text))
        data.extend(text)
    put('I', len(message.points))
    for one in message.points:
        for row in (one.positions, one.velocities, one.accelerations, ()):
            put('I', len(row))
            if row:
                put('d', *row)
        put('i', one.time_ns // SECOND_NS)
        put('I', one.time_ns % SECOND_NS)
    return bytes(data)
