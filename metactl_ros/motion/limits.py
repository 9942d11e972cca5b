# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""How far, how fast and how suddenly a reference may move the joints of an arm."""

from dataclasses import dataclass

import numpy as np

from metactl_ros.dynamics.two_link import Arm
from metactl_ros.signals import Array


@dataclass(frozen=True, slots=True)
class MotionBounds:
    """How far, how fast and how suddenly a motion goes, or may go; each of shape (..., n)."""

    lower_rad: Array
    """Least position."""
    upper_rad: Array
    """Largest position."""
    velocity_radps: Array
    """Largest size."""
    acceleration_radps2: Array
    """Largest size."""


def motion_limits(arm: Arm) -> MotionBounds:
    """Return what a reference for an arm must keep to.

    Positions and velocities are the arm's limits. Accelerations are such that every joint may have
    its largest at once, in every posture: what then accelerates and holds the arm without payload
    is within its effort limits. With a_i = k (effort_i - g_i) / M_ii the largest k for which
    sum_j |M_ij| a_j <= effort_i - g_i is taken at the stretched, horizontal arm, where each entry
    of M and of g is largest. Of the effort gravity is granted at most half, so that an arm that
    can hardly hold itself has limits, too.
    """
    body, horizontal = arm.body(), np.zeros(len(arm.joint_names))
    effort = np.array(arm.limits.effort_nm)
    held = np.abs(body.gravity(horizontal))
    free = effort - np.minimum(held, effort / 2.0)
    mass = body.inertia_matrix(horizontal)
    alone = free / np.diag(mass)
    return MotionBounds(
        arm.limits.lower_rad,
        arm.limits.upper_rad,
        np.array(arm.limits.velocity_radps),
        alone * np.min(free / (mass @ alone)),
    )
