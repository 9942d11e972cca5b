# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""Paths through knots, piece by piece polynomials of time, and the exact extremes of each piece.

A piece is a quintic if both its knots have accelerations, else a cubic. A knot without a velocity
gets one that keeps each joint monotone between its knots (Fritsch and Carlson), so that no piece
is straight and no velocity jumps.

The extremes of a polynomial are at its ends and at roots of its derivative. Between two
neighbouring roots of *its* derivative that is monotone, so that bisection finds every root. From
the third derivative of a quintic, which is quadratic, down to the first, one after the other gives
all candidates for acceleration, velocity and position.
"""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.polynomial.polynomial import polyder, polyval

from metactl_ros.motion.reference import Hold, MotionBounds
from metactl_ros.signals import Array, Reference

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
