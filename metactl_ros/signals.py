# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""The values that travel between plant, controller and reference.

Arrays are batch first: leading axes `...` are independent arms, the last axis is the joint. One
arm has shape `(n,)`, a batch of N arms `(N, n)`, and the same code serves both.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Array: TypeAlias = NDArray[np.float64]
Flags: TypeAlias = NDArray[np.bool_]

Policy: TypeAlias = Callable[[Array], Array]
"""From a window, shape (..., W, F), to an action, shape (..., m)."""

NANOSECONDS_PER_SECOND = 1_000_000_000
GAP_PERIODS = 5
"""A state that comes more periods than this after the one before begins a new series."""
ROUNDING_NM = 1e-9
"""By which rounding may miss a limit of effort, or of its change in a period, N m."""


def seconds(stamp_ns: int) -> float:
    """Return a time stamp in seconds."""
    return stamp_ns / NANOSECONDS_PER_SECOND


def to_nanoseconds(time_s: float) -> int:
    """Return a time in whole nanoseconds."""
    return round(time_s * NANOSECONDS_PER_SECOND)


def period_ns_of(rate_hz: float) -> int:
    """Return the period of a rate in whole nanoseconds."""
    return round(NANOSECONDS_PER_SECOND / rate_hz)


def each_arm(flags: Flags) -> Flags:
    """Return whether all joints, or all gains, of an arm are so: (..., n) to (...)."""
    so: Flags = np.logical_and.reduce(flags, axis=-1)  # less overhead than flags.all(axis=-1)
    return so


def is_all(flags: Flags) -> bool:
    """Return `flags.all()`, which costs five times as much on the few entries of one arm."""
    return bool(np.count_nonzero(flags) == flags.size)


def dot(a: Array, b: Array) -> Array:
    """Return the sum of a_i b_i over the last axis: (..., m) and (..., m) or (m,) to (...)."""
    # `dot` has the least overhead of all, but takes only one vector as its second factor.
    product: Array = a.dot(b) if b.ndim == 1 else np.add.reduce(a * b, axis=-1)
    return product


def where_arms(condition: Flags, yes: Array, no: Array) -> Array:
    """Return (..., n): for each arm the row of one of two arrays, by a flag of shape (...)."""
    return np.where(np.asarray(condition)[..., np.newaxis], yes, no)


@dataclass(frozen=True, slots=True)
class ArmState:
    """What the encoders report at one instant; the friction memory is not in it."""

    stamp_ns: int
    """Time since reset, integer nanoseconds."""
    q_rad: Array
    """Joint positions, shape (..., n)."""
    qd_radps: Array
    """Joint velocities, shape (..., n)."""


@dataclass(frozen=True, slots=True)
class Reference:
    """Where the arm should be at one instant, with two derivatives."""

    q_rad: Array
    """Desired positions, shape (..., n)."""
    qd_radps: Array
    """Desired velocities, shape (..., n)."""
    qdd_radps2: Array
    """Desired accelerations, shape (..., n)."""
