# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""Trajectories from bytes to paths within the limits of the arm, or a reason why not.

To make Python objects of a trajectory of 100,000 points stops every thread for a second, control
as well. So sizes are looked at first, and what is too large is refused unread; the rest is read by
Python code, which gives way to other threads.

Positions of points are checked, and the extremes of position, velocity and acceleration on every
piece of the way, that from the present reference to the first point as well.
"""

from collections.abc import Sequence

import numpy as np

from metactl_ros.bag.cdr import CdrError, count_trajectory, read_trajectory, Trajectory
from metactl_ros.control.inputs import ABSURD
from metactl_ros.motion.polynomial_path import Knots, PolynomialPath
from metactl_ros.motion.reference import MotionBounds
from metactl_ros.runtime.joint_samples import find_joints, MessageError
from metactl_ros.signals import Array, NANOSECONDS_PER_SECOND, Reference

MAX_BYTES = 2**20
"""2,000 points of fourteen joints."""
MAX_NAMES = 64
MAX_POINTS = 2000


def unpack(data: bytes) -> Trajectory:
    """Return a trajectory_msgs/JointTrajectory from its bytes.

    Raises:
        MessageError: If it is too large, or none.
    """
    try:
        num_names, num_points = count_trajectory(data, MAX_NAMES)
        for found, most, what in (
            (num_names, MAX_NAMES, 'names'),
            (num_points, MAX_POINTS, 'points'),
            (len(data), MAX_BYTES, 'bytes'),
        ):
            if found > most:
                raise MessageError(
                    f'trajectory: expected at most {most} {what}, found {found}; send less of it '
                    'at a time.'
                )
        return read_trajectory(data)
    except CdrError as error:
        raise MessageError(f'trajectory: {error}') from None


def knots_of(trajectory: Trajectory, joint_names: Sequence[str]) -> Knots:
    """Return the points of a trajectory, at least one, in the order of the arm.

    Accelerations without velocities are not heeded.

    Raises:
        MessageError: If a joint is missing, a field has the wrong length, a number is not finite
            or absurd, or times do not rise; it names the point and the joint.
    """
    names, points = trajectory.names, trajectory.points
    places = find_joints(names, joint_names)
    times_ns = np.array([point.time_ns for point in points], dtype=np.int64)
    is_bad = np.diff(times_ns, prepend=-1) <= 0
    if is_bad.any():
        number = int(np.argmax(is_bad))
        raise MessageError(
            f'trajectory point {number}: time_from_start must rise from 0, found '
            f'{times_ns[number] / NANOSECONDS_PER_SECOND} s.'
        )
    q = _field('positions', [point.positions for point in points], names, places)
    qd = _field('velocities', [point.velocities for point in points], names, places)
    qdd = _field('accelerations', [point.accelerations for point in points], names, places)
    if np.isnan(q).any():
        number = int(np.argmax(np.isnan(q[:, 0])))
        raise MessageError(f'trajectory point {number}: has no positions.')
    return Knots(times_ns / NANOSECONDS_PER_SECOND, q, qd, np.where(np.isnan(qd), np.nan, qdd))


def _field(
    field: str,
    rows: Sequence[Sequence[float]],
    names: Sequence[str],
    places: Sequence[int],
) -> Array:
    """Return the rows, shape (P, n), with NaN in place of empty ones."""
    sizes = np.array([len(row) for row in rows])
    is_given = sizes > 0
    is_bad = is_given & (sizes != len(names))
    if is_bad.any():
        number = int(np.argmax(is_bad))
        raise MessageError(
            f'trajectory point {number}: expected {len(names)} {field}, one per name, found '
            f'{sizes[number]}.'
        )
    values = np.full((len(rows), len(places)), np.nan)
    if is_given.any():
        found = np.array([row for row in rows if row])[:, places]
        values[is_given] = found
        is_bad = is_given[:, np.newaxis] & ~(np.abs(values) <= ABSURD)  # NaN is not
        if is_bad.any():
            number, joint = np.argwhere(is_bad)[0]
            raise MessageError(
                f'trajectory point {number}: joint {names[places[joint]]!r}: expected finite '
                f'{field} of at most {ABSURD:g}, found {values[number, joint]}.'
            )
    return values


AT_REST_RADPS = 1e-3
"""A last point slower than this is meant to be at rest."""
ROUNDING = 1e-9
UNITS = ('rad', 'rad', 'rad/s', 'rad/s^2')
REMEDIES = (
    'it overshoots: give more points, or other velocities',
    'it overshoots: give more points, or other velocities',
    'give it more time, or a shorter way',
    'give it more time, or more points so that it begins and ends gently',
)


def require_points_within(knots: Knots, limits: MotionBounds, joint_names: Sequence[str]) -> None:
    """Raise MessageError unless all points lie within the joint limits and the last is at rest."""
    slack = ROUNDING * (limits.upper_rad - limits.lower_rad)
    is_out = (knots.q_rad > limits.upper_rad + slack) | (knots.q_rad < limits.lower_rad - slack)
    if is_out.any():
        number, joint = np.argwhere(is_out)[0]
        raise MessageError(
            f'trajectory point {number}: joint {joint_names[joint]!r}: expected a position of '
            f'{limits.lower_rad[joint]:g} to {limits.upper_rad[joint]:g} rad, found '
            f'{knots.q_rad[number, joint]:g} rad; choose one within the joint limits.'
        )
    is_moving = np.abs(knots.qd_radps[-1]) > AT_REST_RADPS  # NaN is not
    if is_moving.any():
        joint = int(np.argmax(is_moving))
        raise MessageError(
            f'trajectory point {len(knots.t_s) - 1}: joint {joint_names[joint]!r}: expected rest '
            f'at the last point, found {knots.qd_radps[-1, joint]:g} rad/s; end with 0 rad/s.'
        )


def path_within(
    knots: Knots,
    present: Reference,
    present_s: float,
    limits: MotionBounds,
    joint_names: Sequence[str],
) -> PolynomialPath:
    """Return the path from the present reference through the points that are yet to come.

    Raises:
        MessageError: If none is to come, or a joint would leave its limits; it names the point on
            the way to which that is.
    """
    num_past = int(np.searchsorted(knots.t_s, present_s, side='right'))
    if num_past == len(knots.t_s):
        raise MessageError(
            f'trajectory: must end in the future, ends {present_s - knots.t_s[-1]:g} s before it '
            'could begin; check time_from_start and the clocks.'
        )
    path = PolynomialPath(
        Knots(
            np.append(present_s, knots.t_s[num_past:]),
            np.vstack([present.q_rad, knots.q_rad[num_past:]]),
            np.vstack([present.qd_radps, knots.qd_radps[num_past:]]),
            np.vstack([present.qdd_radps2, knots.qdd_radps2[num_past:]]),
        )
    )
    most = path.extremes()
    # A lower end is an upper one with the sign changed.
    found = np.stack(
        [-most.lower_rad, most.upper_rad, most.velocity_radps, most.acceleration_radps2], axis=1
    )
    permitted = np.stack(
        [-limits.lower_rad, limits.upper_rad, limits.velocity_radps, limits.acceleration_radps2]
    )
    is_out = ~(found <= permitted + ROUNDING * np.abs(permitted))  # NaN is out
    if is_out.any():
        piece, order, joint = np.argwhere(is_out)[0]
        signs = (-1.0, 1.0, 1.0, 1.0)
        raise MessageError(
            f'trajectory, on the way to point {num_past + piece}: joint {joint_names[joint]!r} '
            f'would reach {signs[order] * found[piece, order, joint]:.4g} {UNITS[order]}, '
            f'expected {"at least" if order == 0 else "at most"} '
            f'{signs[order] * permitted[order, joint]:.4g} {UNITS[order]}; {REMEDIES[order]}.'
        )
    return path
