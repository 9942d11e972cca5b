# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""How far, how fast and how suddenly a reference may move the joints of an arm."""

from dataclasses import dataclass

import numpy as np

from metactl_ros.dynamics.two_link import Arm, gravity_torque, inertia_matrix, lump, NUM_JOINTS
from metactl_ros.signals import Array


@dataclass(frozen=True, slots=True)
class MotionBounds:
    """Largest sizes along a motion, or those permitted; each of shape (..., n)."""

    position_rad: Array
    velocity_radps: Array
    acceleration_radps2: Array


def motion_limits(arm: Arm) -> MotionBounds:
    """Return what a reference for an arm must keep to.

    Positions and velocities are the arm's limits. Accelerations are such that every joint may have
    its largest at once, in every posture: what then accelerates and holds the arm without payload
    is within its effort limits. With a_i = k (effort_i - g_i) / M_ii the largest k for which
    sum_j |M_ij| a_j <= effort_i - g_i is taken at the stretched, horizontal arm, where each entry
    of M and of g is largest. Of the effort gravity is granted at most half, so that an arm that
    can hardly hold itself has limits, too.
    """
    model, horizontal = lump(arm, 0.0), np.zeros(NUM_JOINTS)
    effort = np.array(arm.limits.effort_nm)
    held = np.abs(gravity_torque(model, horizontal.tolist()))
    free = effort - np.minimum(held, effort / 2.0)
    mass = inertia_matrix(model, horizontal)
    alone = free / np.diag(mass)
    return MotionBounds(
        np.array(arm.limits.position_rad),
        np.array(arm.limits.velocity_radps),
        alone * np.min(free / (mass @ alone)),
    )
