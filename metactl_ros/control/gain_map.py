# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""The gain box, and the only place that scales between a policy's action and physical gains.

    action in [-1, 1]^m   <-->   theta = (K_d, Lambda, K_p, eta) in the box

The map is affine and reaches both ends of the box; beyond [-1, 1] it stays at them. theta is
ordered by kind, then by joint: K_d of every joint, Lambda of every joint, K_p of every joint where
the box states it, then each feed-forward column of every joint.
"""

from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np

from metactl_ros.config import LATER, require_length
from metactl_ros.control.law import FeedForward, GainLayout
from metactl_ros.errors import ConfigError
from metactl_ros.signals import Array, Flags

Ends: TypeAlias = tuple[float, ...] | tuple[tuple[float, ...], ...]
"""[least, largest] for every joint, or a list of such pairs, one per joint."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ColumnRange:
    """One feed-forward column and the range of its weight."""

    column: FeedForward
    ends: Ends
    """Least and largest weight; N m for `bias` and `coulomb`, plain numbers for `estimate`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class GainBox:
    """Range of every gain, for all joints or for each, as `config/controller.yaml` states it.

    K_d starts at 10 / s, not lower: with an unmodelled payload of 1.5 kg the upright arm is
    statically unstable below about 8.3 / s (test_stability.py).
    """

    kd_per_s: Ends
    """Least and largest K_d, 1 / s."""
    lambda_per_s: Ends
    """Least and largest Lambda, 1 / s."""
    feed_forward: tuple[ColumnRange, ...]
    """Columns of Phi, in the order of eta."""
    kp_per_s2: Ends | None = field(default=None, metadata=LATER)
    """Least and largest K_p, 1 / s^2, around its nominal 0; null: the law has no K_p."""

    def __post_init__(self) -> None:
        for name, ends in self.named_ends():
            for pair in pairs_of(ends):
                if len(pair) != 2 or not -np.inf < pair[0] < pair[1] < np.inf:
                    raise ConfigError(
                        f'GainBox.{name}: expected [least, largest], finite and in this order, '
                        f'found {list(pair)}.'
                    )
        for least, largest in [] if self.kp_per_s2 is None else pairs_of(self.kp_per_s2):
            if not least <= 0.0 <= largest:
                raise ConfigError(
                    'GainBox.kp_per_s2: expected a range that holds 0, the nominal K_p, found '
                    f'{[least, largest]}; widen it to 0.'
                )
        names = [entry.column for entry in self.feed_forward]
        if len(set(names)) < len(names):
            raise ConfigError(f'GainBox.feed_forward: each column once, found {names}.')

    @property
    def columns(self) -> tuple[FeedForward, ...]:
        """Names of the feed-forward columns."""
        return tuple(entry.column for entry in self.feed_forward)

    @property
    def layout(self) -> GainLayout:
        """Which gains theta consists of."""
        return GainLayout(self.kp_per_s2 is not None, self.columns)

    def named_ends(self) -> list[tuple[str, Ends]]:
        """Return (name, range as stated) of every kind of gain, in the order of theta."""
        gains = [('kd_per_s', self.kd_per_s), ('lambda_per_s', self.lambda_per_s)]
        if self.kp_per_s2 is not None:
            gains.append(('kp_per_s2', self.kp_per_s2))
        return gains + [
            (f'feed_forward.{entry.column}', entry.ends) for entry in self.feed_forward
        ]

    def ends(self, num_joints: int) -> Array:
        """Return (least, largest) of every gain, in the order of theta, shape (m, 2).

        Raises:
            ConfigError: If a range is stated for another number of joints.
        """
        rows = []
        for name, ends in self.named_ends():
            pairs = pairs_of(ends)
            if pairs != [ends]:
                require_length('GainBox', num_joints, **{name: ends})
            rows.append(np.broadcast_to(np.array(pairs, dtype=np.float64), (num_joints, 2)))
        return np.concatenate(rows)


def pairs_of(ends: Ends) -> list[tuple[float, ...]]:
    """Return the pair for every joint, or those of each."""
    for_all = tuple(entry for entry in ends if not isinstance(entry, tuple))
    of_joints = [entry for entry in ends if isinstance(entry, tuple)]
    return [*of_joints, for_all] if for_all or not of_joints else of_joints


class GainMap:
    """The affine bijection between [-1, 1]^m and the box; all of shape (m,) or (..., m)."""

    def __init__(self, box: GainBox, num_joints: int) -> None:
        ends = box.ends(num_joints)
        self.lower: Array = ends[:, 0].copy()
        self.upper: Array = ends[:, 1].copy()
        self._half_lower, self._half_upper = 0.5 * self.lower, 0.5 * self.upper
        self.middle: Array = 0.5 * (self.upper + self.lower)
        self.half_width: Array = 0.5 * (self.upper - self.lower)
        for fixed in (self.lower, self.upper, self.middle, self.half_width):
            fixed.setflags(write=False)

    @property
    def size(self) -> int:
        """m, the number of gains."""
        return len(self.lower)

    def gains(self, action: Array) -> Array:
        """Return theta of an action; both ends are met exactly, and no rounding leaves the box."""
        theta = (1.0 - action) * self._half_lower + (1.0 + action) * self._half_upper
        return np.minimum(np.maximum(theta, self.lower), self.upper)

    def active_faces(self, theta: Array) -> Flags:
        """Return which gains lie at an end of their range, shape (..., m)."""
        return (theta <= self.lower) | (theta >= self.upper)

    def action(self, theta: Array) -> Array:
        """Return the action of gains; outside [-1, 1] if they leave the box."""
        return (theta - self.middle) / self.half_width
