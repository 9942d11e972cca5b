# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""Reference motions, functions of time with exact derivatives, and what they must keep to.

Time is an argument, a number or of shape (...); parameters are batch first, shape (..., n).
"""

from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from metactl_ros.dynamics.rigid_body import ArmModel
from metactl_ros.errors import ConfigError
from metactl_ros.signals import Array, Reference


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


def motion_limits(arm: ArmModel) -> MotionBounds:
    """Return what a reference for an arm must keep to.

    Positions and velocities are the arm's limits. Accelerations are such that every joint may have
    its largest at once, in every posture: what then accelerates and holds the arm without payload
    is within its effort limits. With a_i = k (effort_i - g_i) / M_ii the largest k for which
    sum_j |M_ij| a_j <= effort_i - g_i is taken, each entry of M and of g as large as it is in any
    posture. Of the effort gravity is granted at most half, so that an arm that
    can hardly hold itself has limits, too.
    """
    effort = np.array(arm.limits.effort_nm)
    mass, held = arm.heaviest()
    free = effort - np.minimum(held, effort / 2.0)
    alone = free / np.diag(mass)
    return MotionBounds(
        arm.limits.lower_rad,
        arm.limits.upper_rad,
        np.array(arm.limits.velocity_radps),
        alone * np.min(free / (mass @ alone)),
    )


class ReferenceMotion(Protocol):
    """Anything that knows where the arm should be at a given time."""

    def at(self, t_s: float | Array) -> Reference:
        """Return position, velocity and acceleration at a time since reset, in s."""


class BoundedMotion(ReferenceMotion, Protocol):
    """A motion of which it is known how far and how fast it ever goes."""

    def extent(self) -> MotionBounds:
        """Return the ends of its positions, and the largest velocity and acceleration."""


@dataclass(frozen=True, slots=True)
class Sinusoid:
    """q_d = centre + A sin(w t + phase), for ever."""

    amplitude_rad: Array
    omega_radps: Array
    phase_rad: Array
    centre_rad: Array | float = 0.0

    def at(self, t_s: float | Array) -> Reference:
        """Return the reference at time `t_s`."""
        w = self.omega_radps
        angle = w * _column(t_s) + self.phase_rad
        sine, cosine = self.amplitude_rad * np.sin(angle), self.amplitude_rad * np.cos(angle)
        return Reference(self.centre_rad + sine, w * cosine, -w * w * sine)

    def extent(self) -> MotionBounds:
        """Return the largest sizes at any time."""
        most, w = np.abs(self.amplitude_rad), np.abs(self.omega_radps)
        centre = self.centre_rad
        return MotionBounds(centre - most, centre + most, most * w, most * w * w)

    def of_arm(self, index: int | slice) -> 'Sinusoid':
        """Return the motion of one arm, or of some, of a batch with phases of shape (N, n)."""
        return replace(self, phase_rad=self.phase_rad[index])


@dataclass(frozen=True, slots=True)
class PointToPoint:
    """Rest to rest along a quintic: velocity and acceleration vanish at both ends.

    Before t = 0 the arm waits at the start, after `duration_s` at the goal.
    """

    start_rad: Array
    goal_rad: Array
    duration_s: float

    def __post_init__(self) -> None:
        if not (np.isfinite(self.duration_s) and self.duration_s > 0.0):
            raise ConfigError(
                'PointToPoint.duration_s: expected a finite time above 0, '
                f'found {self.duration_s}.'
            )

    def at(self, t_s: float | Array) -> Reference:
        """Return the reference at time `t_s`."""
        x = np.clip(_column(t_s) / self.duration_s, 0.0, 1.0)
        path = self.goal_rad - self.start_rad
        blend = x**3 * (10.0 - 15.0 * x + 6.0 * x**2)
        slope = 30.0 * x**2 * (1.0 - x) ** 2 / self.duration_s
        bend = 60.0 * x * (1.0 - x) * (1.0 - 2.0 * x) / self.duration_s**2
        return Reference(self.start_rad + path * blend, path * slope, path * bend)

    def of_arm(self, index: int | slice) -> 'PointToPoint':
        """Return the motion of one arm, or of some, of a batch, shape (N, n)."""
        return replace(self, start_rad=self.start_rad[index], goal_rad=self.goal_rad[index])


@dataclass(frozen=True, slots=True)
class Hold:
    """Stay where you are."""

    q_rad: Array

    def at(self, t_s: float | Array) -> Reference:
        """Return the held position with zero derivatives, at every time."""
        q = self.q_rad + 0.0 * _column(t_s)
        return Reference(q, np.zeros_like(q), np.zeros_like(q))

    def extent(self) -> MotionBounds:
        """Return the largest sizes at any time."""
        zero = np.zeros_like(self.q_rad)
        return MotionBounds(self.q_rad, self.q_rad, zero, zero)


def _column(t_s: float | Array) -> Array:
    """Return time with a joint axis, so that it broadcasts against (..., n)."""
    return np.asarray(t_s, dtype=np.float64)[..., np.newaxis]
