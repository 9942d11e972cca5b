# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""Trajectories as paths that keep to the limits of the arm everywhere, or a reason why not.

Positions of points are checked, and the extremes of position, velocity and acceleration on every
piece of the way, that from the present reference to the first point as well.
"""

from collections.abc import Sequence

import numpy as np

from metactl_ros.motion.limits import MotionBounds
from metactl_ros.motion.polynomial_path import Knots, PolynomialPath
from metactl_ros.runtime.joint_messages import MessageError
from metactl_ros.signals import Reference

AT_REST_RADPS = 1e-3
"""A last point slower than this is meant to be at rest."""
ROUNDING = 1.0 + 1e-9
UNITS = ('rad', 'rad/s', 'rad/s^2')
REMEDIES = (
    'it overshoots: give more points, or other velocities',
    'give it more time, or a shorter way',
    'give it more time, or more points so that it begins and ends gently',
)


def require_points_within(knots: Knots, limits: MotionBounds, joint_names: Sequence[str]) -> None:
    """Raise MessageError unless all points lie within the joint limits and the last is at rest."""
    is_out = np.abs(knots.q_rad) > ROUNDING * limits.position_rad
    if is_out.any():
        number, joint = np.argwhere(is_out)[0]
        raise MessageError(
            f'trajectory point {number}: joint {joint_names[joint]!r}: expected a position of at '
            f'most {limits.position_rad[joint]:g} rad in size, found '
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
    found = np.stack([most.position_rad, most.velocity_radps, most.acceleration_radps2], axis=1)
    permitted = np.stack([limits.position_rad, limits.velocity_radps, limits.acceleration_radps2])
    is_out = ~(found <= ROUNDING * permitted)  # NaN is out
    if is_out.any():
        piece, order, joint = np.argwhere(is_out)[0]
        raise MessageError(
            f'trajectory, on the way to point {num_past + piece}: joint {joint_names[joint]!r} '
            f'would reach {found[piece, order, joint]:.4g} {UNITS[order]}, expected at most '
            f'{permitted[order, joint]:.4g} {UNITS[order]}; {REMEDIES[order]}.'
        )
    return path
