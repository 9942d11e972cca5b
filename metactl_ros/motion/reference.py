# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""Reference motions, functions of time with exact derivatives, and what they must keep to.

Time is an argument, a number or of shape (...); parameters are batch first, shape (..., n).

A `PolynomialPath` goes through knots, piece by piece a polynomial of time: a quintic if both knots
of a piece have accelerations, else a cubic. A knot without a velocity gets one that keeps each
joint monotone between its knots (Fritsch and Carlson), so that no piece is straight and no
velocity jumps. The extremes of a polynomial are at its ends and at roots of its derivative.
Between two neighbouring roots of *its* derivative that is monotone, so that bisection finds every
root. From the third derivative of a quintic, which is quadratic, down to the first, one after the
other gives all candidates for acceleration, velocity and position.
"""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
from numpy.polynomial.polynomial import polyder, polyval

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


HALVINGS = 26
"""A root is found to 1e-8 of its piece, the extreme there, where the slope is zero, to 1e-16."""

POWERS = np.arange(6.0)


@dataclass(frozen=True, slots=True)
class Knots:
    """Where a path is to be at some times, s, which rise; of P knots and n joints."""

    t_s: Array
    """Shape (P,)."""
    q_rad: Array
    """Shape (P, n)."""
    qd_radps: Array
    """Shape (P, n); NaN in rows that are not given."""
    qdd_radps2: Array
    """Shape (P, n); NaN in rows that are not given."""


class PolynomialPath:
    """A path through at least two knots, from the first to rest at the last.

    The first knot has a velocity; one of the last is not heeded. Outside these it rests.
    """

    def __init__(self, knots: Knots) -> None:
        self._times_s: Sequence[float] = knots.t_s.tolist()
        self._ends = Hold(knots.q_rad[0]).at(0.0), Hold(knots.q_rad[-1]).at(0.0)
        self._h_s = np.diff(knots.t_s)[:, np.newaxis]
        self._coefficients = _coefficients(knots, self._h_s)
        derivatives = [polyder(self._coefficients, order) for order in range(3)]
        padded = [np.pad(c, [(0, k), (0, 0), (0, 0)]) for k, c in enumerate(derivatives)]
        # By piece, power, order and joint, so that all that is wanted at a time is one product.
        by_piece = np.stack(padded).transpose(2, 1, 0, 3)
        self._by_piece = by_piece.reshape(*by_piece.shape[:2], -1)

    def at(self, t_s: float) -> Reference:
        """Return the reference at a time."""
        later = bisect_right(self._times_s, t_s)
        if later in (0, len(self._times_s)):
            return self._ends[0 if later == 0 else 1]
        h = self._times_s[later] - self._times_s[later - 1]
        x, c = (t_s - self._times_s[later - 1]) / h, self._by_piece[later - 1]
        q, qd, qdd = (x**POWERS @ c).reshape(3, -1)
        return Reference(q, qd / h, qdd / h**2)

    def extremes(self) -> MotionBounds:
        """Return the bounds of each of the P - 1 pieces, each of shape (P - 1, n)."""
        c = self._coefficients
        ends = np.stack([np.zeros_like(c[0]), np.ones_like(c[0])])
        places, most = ends, []
        for order in (3, 2, 1, 0):
            places = _roots(c, order + 1, places)
            values = polyval(places, polyder(c, order), tensor=False)
            most.append(np.abs(values).max(axis=0) / self._h_s**order)
        _, acceleration, velocity, _ = most
        return MotionBounds(values.min(axis=0), values.max(axis=0), velocity, acceleration)


def fitted_velocities(knots: Knots) -> Array:
    """Return velocities, shape (P, n): as given, or such that joints are monotone between knots.

    A joint that turns at a knot rests there; else its velocity is the weighted harmonic mean of
    the slopes on both sides.
    """
    h = np.diff(knots.t_s)[:, np.newaxis]
    slope = np.diff(knots.q_rad, axis=0) / h
    near, far = 2.0 * h[1:] + h[:-1], h[1:] + 2.0 * h[:-1]
    goes_on = slope[:-1] * slope[1:] > 0.0
    weighted = near * slope[1:] + far * slope[:-1]
    mean = np.zeros_like(slope[1:])
    np.divide((near + far) * slope[:-1] * slope[1:], weighted, out=mean, where=goes_on)
    fitted = knots.qd_radps.copy()
    fitted[1:-1] = np.where(np.isnan(fitted[1:-1]), mean, fitted[1:-1])
    fitted[-1] = 0.0
    return fitted


def _coefficients(knots: Knots, h_s: Array) -> Array:
    """Return those of 1, x, ... x^5 on each piece, x from 0 to 1, shape (6, P - 1, n)."""
    qd, qdd = fitted_velocities(knots), knots.qdd_radps2
    q, way = knots.q_rad[:-1], np.diff(knots.q_rad, axis=0)
    v0, v1 = qd[:-1] * h_s, qd[1:] * h_s
    a0, a1 = qdd[:-1] * h_s**2, qdd[1:] * h_s**2
    zero = np.zeros_like(q)
    cubic = [q, v0, 3.0 * way - 2.0 * v0 - v1, v0 + v1 - 2.0 * way, zero, zero]
    quintic = [
        q,
        v0,
        0.5 * a0,
        10.0 * way - 6.0 * v0 - 4.0 * v1 - 1.5 * a0 + 0.5 * a1,
        -15.0 * way + 8.0 * v0 + 7.0 * v1 + 1.5 * a0 - a1,
        6.0 * way - 3.0 * (v0 + v1) - 0.5 * (a0 - a1),
    ]
    return np.where(np.isnan(a0 + a1), np.stack(cubic), np.stack(quintic))


def _roots(coefficients: Array, order: int, places: Array) -> Array:
    """Return 0, one place from each two neighbouring ones, and 1, ascending.

    Between two of `places`, which begin with 0 and end with 1, the derivatives of this order are
    monotone. A root there is what is found; where there is none, some other place.
    """
    low, high, derivative = places[:-1], places[1:], polyder(coefficients, order)
    is_positive = polyval(low, derivative, tensor=False) > 0.0
    for _ in range(HALVINGS):
        middle = 0.5 * (low + high)
        is_before = (polyval(middle, derivative, tensor=False) > 0.0) == is_positive
        low, high = np.where(is_before, middle, low), np.where(is_before, high, middle)
    return np.concatenate([places[:1], low, places[-1:]])
