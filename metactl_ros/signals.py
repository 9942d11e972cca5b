# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""The values that travel between plant, controller and reference.

Arrays are batch first: leading axes `...` are independent arms, the last axis is the joint. One
arm has shape `(n,)`, a batch of N arms `(N, n)`, and the same code serves both.

Inside the control law a vector is a list of its components. A component is a plain float for one
arm and an array of shape (...) for a batch; the equations read the same for both, and on short
vectors plain floats are ten times faster than NumPy's cost per call.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
import math
from operator import mul
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

Array: TypeAlias = NDArray[np.float64]

Component: TypeAlias = Any
"""A float, or an array of shape (...)."""
Vector: TypeAlias = Sequence[Component]
"""One component per joint, or per gain."""

Policy: TypeAlias = Callable[[Array], Array]
"""From a window, shape (..., W, F), to an action, shape (..., m)."""

NANOSECONDS_PER_SECOND = 1_000_000_000


def split(array: Array) -> list[Component]:
    """Return the components of (..., n), as copies."""
    components: list[Component] = (
        array.tolist() if array.ndim == 1 else [*np.moveaxis(array.copy(), -1, 0)]
    )
    return components


def stack(components: Vector) -> Array:
    """Return components as one array of shape (..., n)."""
    if isinstance(components[0], float):
        return np.array(components)
    return np.stack(np.broadcast_arrays(*components), axis=-1)


def dot(a: Iterable[Component], b: Iterable[Component]) -> Component:
    """Return the inner product."""
    return sum(map(mul, a, b))


def clamp(values: Vector, lows: Vector, highs: Vector) -> list[Component]:
    """Return each component moved into its [low, high]; NaN stays NaN."""
    rows = zip(values, lows, highs, strict=True)
    if isinstance(values[0], float):
        return [low if x < low else high if x > high else x for x, low, high in rows]
    return [np.minimum(np.maximum(x, low), high) for x, low, high in rows]


def is_finite(x: Component) -> Component:
    """Return whether x is neither NaN nor infinite: a bool, or an array of them."""
    return math.isfinite(x) if isinstance(x, float) else np.isfinite(x)


def are_within(values: Vector, limits: Sequence[float]) -> Component:
    """Return whether every component is at most its limit in size; NaN is not."""
    inside = True
    for value, limit in zip(values, limits, strict=True):
        inside = inside & (abs(value) <= limit)
    return inside


def are_between(values: Vector, lows: Vector, highs: Vector) -> Component:
    """Return whether every component is within its [low, high]; NaN is not."""
    inside: Component = True
    for value, low, high in zip(values, lows, highs, strict=True):
        inside = inside & (low <= value) & (value <= high)
    return inside


def choose(condition: Component, yes: Vector, no: Vector) -> list[Component]:
    """Return, for each arm, one of two vectors."""
    if np.ndim(condition) == 0:
        return list(yes if condition else no)
    return [np.where(condition, a, b) for a, b in zip(yes, no, strict=True)]


def every(flag: Component) -> bool:
    """Return whether a flag is set for every arm."""
    return flag if isinstance(flag, bool) else bool(flag.all())


def functions_for(x: Component) -> Any:
    """Return the module whose sin, cos, tanh and exp fit x: `math` for a float, else `numpy`."""
    return math if isinstance(x, float) else np


def seconds(stamp_ns: int) -> float:
    """Return a time stamp in seconds."""
    return stamp_ns / NANOSECONDS_PER_SECOND


def period_ns_of(rate_hz: float) -> int:
    """Return the period of a rate in whole nanoseconds."""
    return round(NANOSECONDS_PER_SECOND / rate_hz)


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
