# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""Ways from wherever an arm is, and however fast, onto a motion, within its limits.

    near    the distance from the motion, and the difference in speed, fade along a quintic
    far     the arm brakes to rest, then goes over from there to the motion

Position and velocity are continuous from the start on, which is the state, and in a finite time
the motion is met exactly. How long that takes follows from the distance in closed form: the sizes
of the polynomials are known. A near way is one that keeps to the limits however the motion goes
on; a far way keeps to them because it lies between two places that do. An arm that could not brake
before its limit even with its largest acceleration is given the speed with which it could.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from metactl_ros.errors import ConfigError
from metactl_ros.motion.reference import BoundedMotion, MotionBounds, ReferenceMotion
from metactl_ros.signals import Array, Reference

SHARE = 0.5
"""Of what the motion leaves of a velocity or acceleration limit, so much is for the way to it."""
LARGEST_SHARE = 0.9
"""Of a velocity or acceleration limit a motion may take so much: the rest is for joining it."""
AT_LEAST_S = 0.5
"""Duration of the shortest way: noise of the sensors must not become a hurry."""
INWARD = 1.0 - 1e-9
"""Limits are kept with room for rounding."""

# Sizes on [0, 1] of s(x) = x^3 (10 - 15 x + 6 x^2), from 0 to 1 and flat at both ends, and of
# d(x) = x (1 - x)^3 (1 + 3 x), which begins with slope 1 and is flat at its end.
S_SLOPE, S_BEND = 15.0 / 8.0, 10.0 / 3.0**0.5
D_SIZE, D_SLOPE = 16.0 / 81.0, 1.0
_BENT = (8.0 - 19.0**0.5) / 15.0
D_BEND = 12.0 * _BENT * (1.0 - _BENT) * (3.0 - 5.0 * _BENT)


@dataclass(frozen=True, slots=True)
class Braking:
    """From a position and a velocity, shape (n,), to rest, each joint with its deceleration."""

    q_rad: Array
    qd_radps: Array
    deceleration_radps2: Array
    """Above zero."""

    @property
    def duration_s(self) -> Array:
        """When each joint rests, shape (n,)."""
        return np.abs(self.qd_radps) / self.deceleration_radps2

    def at(self, t_s: float | Array) -> Reference:
        """Return the reference at a time since the start; before it, the start."""
        t = np.clip(np.asarray(t_s)[..., np.newaxis], 0.0, self.duration_s)
        slowing = -np.sign(self.qd_radps) * self.deceleration_radps2
        return Reference(
            self.q_rad + (self.qd_radps + 0.5 * slowing * t) * t,
            np.where(t < self.duration_s, self.qd_radps + slowing * t, 0.0),
            np.where(t < self.duration_s, slowing, 0.0),
        )


@dataclass(frozen=True, slots=True)
class Near:
    """A motion, and what is left of the distance from it at its joining."""

    motion: ReferenceMotion
    joined_s: float
    duration_s: float
    offset_rad: Array
    """At the joining, shape (n,)."""
    drift_radps: Array
    """Its rate of change then, shape (n,)."""

    def at(self, t_s: float | Array) -> Reference:
        """Return the reference at a time of the motion."""
        wanted, x = self.motion.at(t_s), _share(t_s, self.joined_s, self.duration_s)
        if isinstance(x, float) and x == 1.0:
            return wanted  # to the last bit
        (s, slope, bend), span_s = _smooth_step(x), self.duration_s
        back, offset, drift = 1.0 - x, self.offset_rad, self.drift_radps
        d = x * back**3 * (1.0 + 3.0 * x)
        d_slope = back**2 * (1.0 + 5.0 * x) * (1.0 - 3.0 * x)
        d_bend = -12.0 * x * back * (3.0 - 5.0 * x)
        return Reference(
            wanted.q_rad + (1.0 - s) * offset + span_s * d * drift,
            wanted.qd_radps - slope / span_s * offset + d_slope * drift,
            wanted.qdd_radps2 - bend / span_s**2 * offset + d_bend / span_s * drift,
        )


@dataclass(frozen=True, slots=True)
class Far:
    """A motion to which an arm goes over from rest, after braking."""

    motion: ReferenceMotion
    joined_s: float
    braking: Braking
    duration_s: float
    """Of going over."""

    def at(self, t_s: float | Array) -> Reference:
        """Return the reference at a time of the motion."""
        rested_s = self.joined_s + float(self.braking.duration_s.max())
        wanted, x = self.motion.at(t_s), _share(t_s, rested_s, self.duration_s)
        if isinstance(x, float) and x == 1.0:
            return wanted  # to the last bit
        (s, slope, bend), span_s = _smooth_step(x), self.duration_s
        base = self.braking.at(t_s - self.joined_s)
        way = wanted.q_rad - base.q_rad  # while it counts, the base is at rest
        return Reference(
            base.q_rad + s * way,
            base.qd_radps + s * wanted.qd_radps + slope / span_s * way,
            base.qdd_radps2
            + s * wanted.qdd_radps2
            + 2.0 * slope / span_s * wanted.qd_radps
            + bend / span_s**2 * way,
        )


def join(
    motion: BoundedMotion, limits: MotionBounds, t_s: float, q_rad: Array, qd_radps: Array
) -> Near | Far:
    """Return the way from a state, shape (n,), onto a motion.

    Args:
        motion: Within `LARGEST_SHARE` of the limits (`require_joinable`).
        limits: Of the arm; the way keeps to them.
        t_s: When the arm is at the state, in the time of the motion.
        q_rad: Where; what lies outside the limits is taken as the limit.
        qd_radps: How fast.
    """
    most, now = motion.extent(), motion.at(t_s)
    lower, upper = _inward(limits)
    q = np.clip(q_rad, lower, upper)
    beside = np.minimum(upper - most.upper_rad, most.lower_rad - lower)  # on the narrower side
    velocity = SHARE * (limits.velocity_radps - most.velocity_radps)
    acceleration = SHARE * (limits.acceleration_radps2 - most.acceleration_radps2)
    offset, drift = q - now.q_rad, qd_radps - now.qd_radps
    distance, speed = np.abs(offset), np.abs(drift)
    if (D_SLOPE * speed < velocity).all():
        rest = velocity - D_SLOPE * speed
        duration_s = _duration(distance, D_BEND * speed, rest, acceleration)
        if (distance + D_SIZE * speed * duration_s <= beside).all():
            return Near(motion, t_s, duration_s, offset, drift)
    braking = brake(limits, q, qd_radps)
    rested = braking.at(braking.duration_s.max()).q_rad
    reach = np.maximum(most.upper_rad - rested, rested - most.lower_rad)
    speed = 2.0 * S_SLOPE * most.velocity_radps
    duration_s = _duration(reach, speed, velocity, acceleration)
    return Far(motion, t_s, braking, duration_s)


def brake(limits: MotionBounds, q_rad: Array, qd_radps: Array) -> Braking:
    """Return the way from a state, shape (n,), to rest, within the limits.

    With half the largest acceleration where that is enough to stay within the positions; where not
    even all of it is, with the speed for which it is.
    """
    most = INWARD * limits.acceleration_radps2
    lower, upper = _inward(limits)
    q = np.clip(q_rad, lower, upper)
    room = np.where(qd_radps > 0.0, upper - q, q - lower)
    fastest = np.minimum(np.sqrt(2.0 * most * room), INWARD * limits.velocity_radps)
    qd = np.clip(qd_radps, -fastest, fastest)
    needed = np.divide(qd**2, 2.0 * room, out=np.zeros_like(room), where=room > 0.0)
    return Braking(q, qd, np.clip(needed, SHARE * most, most))


def require_joinable(
    name: str, motion: BoundedMotion, limits: MotionBounds, joint_names: Sequence[str]
) -> None:
    """Raise ConfigError if a motion leaves its limits, or no room for the way onto it."""
    most, (lower, upper) = motion.extent(), _inward(limits)
    rest = LARGEST_SHARE
    for found, limit, sign, unit in (
        (most.upper_rad, upper, 1.0, 'rad'),
        (-most.lower_rad, -lower, -1.0, 'rad'),
        (most.velocity_radps, rest * limits.velocity_radps, 1.0, 'rad/s'),
        (most.acceleration_radps2, rest * limits.acceleration_radps2, 1.0, 'rad/s^2'),
    ):
        for joint, reached, permitted in zip(joint_names, found, limit, strict=True):
            if not reached <= permitted:
                raise ConfigError(
                    f'{name}: joint {joint!r} would reach {sign * reached:.4g} {unit}, expected '
                    f'at {"most" if sign > 0.0 else "least"} {sign * permitted:.4g} {unit}; '
                    'choose a smaller or a slower motion.'
                )


def _inward(limits: MotionBounds) -> tuple[Array, Array]:
    """Return the ends of the positions, each with room for rounding."""
    middle, half = 0.5 * (limits.upper_rad + limits.lower_rad), limits.upper_rad - limits.lower_rad
    half = INWARD * 0.5 * half
    return middle - half, middle + half


def _duration(
    distance_rad: Array, speed_radps: Array, velocity_radps: Array, acceleration_radps2: Array
) -> float:
    """Return the time of a step over a distance that some speed accompanies.

    The least T for which S_SLOPE distance / T is within the velocity's room and
    S_BEND distance / T^2 + speed / T within that of the acceleration, for every joint.
    """
    a = acceleration_radps2
    slow = S_SLOPE * distance_rad / velocity_radps
    soft = (speed_radps + np.sqrt(speed_radps**2 + 4.0 * a * S_BEND * distance_rad)) / (2.0 * a)
    return max(float(slow.max()), float(soft.max()), AT_LEAST_S)


def _share(t_s: float | Array, begin_s: float, duration_s: float) -> Any:
    """Return how much of a time has passed, from 0 to 1: a float, or with an axis for joints."""
    if isinstance(t_s, float):
        return min(max((t_s - begin_s) / duration_s, 0.0), 1.0)
    return np.clip((t_s[..., np.newaxis] - begin_s) / duration_s, 0.0, 1.0)


def _smooth_step(x: Any) -> tuple[Any, Any, Any]:
    """Return s and its first two derivatives."""
    back = 1.0 - x
    return (
        x**3 * (10.0 - 15.0 * x + 6.0 * x**2),
        30.0 * x**2 * back**2,
        60.0 * x * back * (back - x),
    )
