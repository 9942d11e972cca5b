# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""The gain box, and the only place that scales between a policy's action and physical gains.

    action in [-1, 1]^m   <-->   theta = (K_d, Lambda, bias, Coulomb) in the box

The map is affine and reaches both ends of the box.
"""

from dataclasses import dataclass

import numpy as np

from metactl_ros.config import require_not_negative
from metactl_ros.errors import ConfigError
from metactl_ros.signals import Array


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
    bias_nm: float
    """Largest bias feed-forward in either direction, N m."""
    coulomb_nm: float
    """Largest Coulomb feed-forward in either direction, N m."""

    def __post_init__(self) -> None:
        for name in ('kd_per_s', 'lambda_per_s'):
            ends = getattr(self, name)
            if len(ends) != 2 or not 0.0 <= ends[0] <= ends[1] < np.inf:
                raise ConfigError(
                    f'GainBox.{name}: expected [least, largest] with 0 <= least <= largest, '
                    f'found {list(ends)}.'
                )
        require_not_negative('GainBox', bias_nm=self.bias_nm, coulomb_nm=self.coulomb_nm)


def box_bounds(box: GainBox, num_joints: int) -> tuple[Array, Array]:
    """Return the lower and the upper corner of the box as theta, shape (4 n,) each."""
    ones = np.ones(num_joints)
    lower = (box.kd_per_s[0], box.lambda_per_s[0], -box.bias_nm, -box.coulomb_nm)
    upper = (box.kd_per_s[1], box.lambda_per_s[1], box.bias_nm, box.coulomb_nm)
    return np.outer(lower, ones).ravel(), np.outer(upper, ones).ravel()
