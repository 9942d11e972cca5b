# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""Settings that are one number for every joint, or have one entry for each of them.

    viscous_nmsprad: 0.5                  of every joint
    viscous_nmsprad: [0.5, 0.3, 0.1]      of an arm with three joints

What was stated is kept as it was, so that files and hashes stay what they are. How many joints
there are is known where an arm is: there the number of entries is checked.
"""

import dataclasses
from typing import Any, TypeAlias

import numpy as np

from metactl_ros.config import require_length
from metactl_ros.errors import ConfigError
from metactl_ros.signals import Array

PerJoint: TypeAlias = float | tuple[float, ...]
"""The same number for every joint, or one entry per joint."""


def require_joints(settings: Any, num_joints: int | None = None) -> None:
    """Refuse a dataclass with a list, among its keys, that does not have one entry per joint.

    Args:
        settings: Whose tuples all have one entry per joint.
        num_joints: Of the arm; None: as many as its first list has.

    Raises:
        ConfigError: With the key, the number of joints and what was found.
    """
    for field in dataclasses.fields(settings):
        value = getattr(settings, field.name)
        if isinstance(value, tuple):
            num_joints = len(value) if num_joints is None else num_joints
            require_length(type(settings).__name__, num_joints, **{field.name: value})


def joint_array(value: PerJoint) -> float | Array:
    """Return what broadcasts against (..., n): the number, or an array of shape (n,)."""
    return np.array(value) if isinstance(value, tuple) else value


def for_joints(value: PerJoint, num_joints: int) -> Array:
    """Return a setting of each joint, shape (n,)."""
    return np.array(np.broadcast_to(value, num_joints), dtype=np.float64)


def one_for_all(name: str, value: PerJoint) -> float:
    """Return a setting that is the same for every joint.

    Raises:
        ConfigError: If it is stated per joint.
    """
    if isinstance(value, tuple):
        raise ConfigError(
            f'{name}: expected one number for all joints, found {list(value)}; nothing here can '
            'use one per joint.'
        )
    return value


def scaled(factor: float, value: PerJoint) -> PerJoint:
    """Return a setting with each of its numbers multiplied."""
    if isinstance(value, tuple):
        return tuple(factor * entry for entry in value)
    return factor * value
