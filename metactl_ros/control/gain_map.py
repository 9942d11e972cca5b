# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""The gain box, and the only place that scales between a policy's action and physical gains.

    action in [-1, 1]^m   <-->   theta = (K_d, Lambda, eta) in the box

The map is affine and reaches both ends of the box; beyond [-1, 1] it stays at them. theta is
ordered by kind, then by joint: K_d of every joint, Lambda of every joint, then each feed-forward
column of every joint.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from metactl_ros.control.law import FeedForward
from metactl_ros.errors import ConfigError
from metactl_ros.signals import clamp, Component, Vector


@dataclass(frozen=True, kw_only=True, slots=True)
class ColumnRange:
    """One feed-forward column and the range of its weight."""

    column: FeedForward
    ends: tuple[float, ...]
    """Least and largest weight; N m for `bias` and `coulomb`, plain numbers for `estimate`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class GainBox:
    """Range of every gain, the same for each joint, as `config/controller.yaml` states it.

    K_d starts at 10 / s, not lower: with an unmodelled payload of 1.5 kg the upright arm is
    statically unstable below about 8.3 / s (test_stability.py).
    """

    kd_per_s: tuple[float, ...]
    """Least and largest K_d, 1 / s."""
    lambda_per_s: tuple[float, ...]
    """Least and largest Lambda, 1 / s."""
    feed_forward: tuple[ColumnRange, ...]
    """Columns of Phi, in the order of eta."""

    def __post_init__(self) -> None:
        for name, ends in self.named_ends():
            if len(ends) != 2 or not -np.inf < ends[0] < ends[1] < np.inf:
                raise ConfigError(
                    f'GainBox.{name}: expected [least, largest], finite and in this order, '
                    f'found {list(ends)}.'
                )
        names = [entry.column for entry in self.feed_forward]
        if len(set(names)) < len(names):
            raise ConfigError(f'GainBox.feed_forward: each column once, found {names}.')

    @property
    def columns(self) -> tuple[FeedForward, ...]:
        """Names of the feed-forward columns."""
        return tuple(entry.column for entry in self.feed_forward)

    def named_ends(self) -> list[tuple[str, tuple[float, ...]]]:
        """Return (name, (least, largest)) of every kind of gain, in the order of theta."""
        gains = [('kd_per_s', self.kd_per_s), ('lambda_per_s', self.lambda_per_s)]
        return gains + [
            (f'feed_forward.{entry.column}', entry.ends) for entry in self.feed_forward
        ]


class GainMap:
    """The affine bijection between [-1, 1]^m and the box."""

    def __init__(self, box: GainBox, num_joints: int) -> None:
        ends = np.array([ends for _, ends in box.named_ends()], dtype=np.float64)
        lower, upper = (np.repeat(ends[:, side], num_joints) for side in (0, 1))
        self.lower: tuple[float, ...] = tuple(lower.tolist())
        self.upper: tuple[float, ...] = tuple(upper.tolist())
        self.middle: tuple[float, ...] = tuple((0.5 * (upper + lower)).tolist())
        self.half_width: tuple[float, ...] = tuple((0.5 * (upper - lower)).tolist())

    @property
    def size(self) -> int:
        """m, the number of gains."""
        return len(self.lower)

    def gains(self, action: Vector) -> list[Component]:
        """Return theta of an action; both ends are met exactly, and no rounding leaves the box."""
        theta = [
            0.5 * ((1.0 - a) * low + (1.0 + a) * high)
            for a, low, high in zip(action, self.lower, self.upper, strict=True)
        ]
        return clamp(theta, self.lower, self.upper)

    def active_faces(self, theta: Vector) -> NDArray[np.bool_]:
        """Return which gains lie at an end of their range, shape (..., m)."""
        rows = zip(theta, self.lower, self.upper, strict=True)
        flags = [(gain <= low) | (gain >= high) for gain, low, high in rows]
        return np.stack(np.broadcast_arrays(*flags), axis=-1)

    def action(self, theta: Vector) -> list[Component]:
        """Return the action of gains; outside [-1, 1] if they leave the box."""
        return [
            (gain - middle) / half
            for gain, middle, half in zip(theta, self.middle, self.half_width, strict=True)
        ]
