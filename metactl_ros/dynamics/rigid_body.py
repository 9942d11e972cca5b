# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""What the controller asks of a rigid-body model, whoever computes it.

    M(q) qdd + C(q, qd) qd + g(q) = tau - friction

`RigidBody.at` is called once per tick; law, shield, guard and estimators share the `Posture` that
it returns. Arrays are batch first, see `signals.py`.
"""

from dataclasses import dataclass, field
from typing import Protocol, Self

import numpy as np

from metactl_ros.config import LATER, require_length, require_positive
from metactl_ros.errors import ConfigError
from metactl_ros.signals import Array


class Posture(Protocol):
    """A rigid body in one posture and motion, or in a batch of them."""

    @property
    def bias(self) -> Array:
        """C(q, qd) qd + g(q), N m, shape (..., n)."""

    @property
    def gravity(self) -> Array:
        """g(q), the torque that holds the arm still, N m, shape (..., n)."""

    @property
    def diagonal(self) -> Array:
        """The diagonal of M(q), kg m^2, shape (..., n)."""

    @property
    def momentum_flow(self) -> Array:
        """C(q, qd)^T qd, the rate of M qd that no torque causes, N m, shape (..., n)."""

    def apply(self, x: Array) -> Array:
        """Return M(q) x, shape (..., n)."""

    @property
    def effective_inertia(self) -> Array:
        """1 / (M^-1)_ii: what a joint feels while the others are free, kg m^2, shape (..., n)."""

    def solve(self, torque_nm: Array, armature_kgm2: Array | None = None) -> Array:
        """Return M(q)^-1 tau, rad / s^2, shape (..., n); armature adds to the diagonal of M."""

    def coriolis(self, v_radps: Array) -> Array:
        """Return C(q, qd) v with C in Christoffel form, N m, shape (..., n)."""


class RigidBody(Protocol):
    """A chain of rigid links with a payload."""

    @property
    def num_joints(self) -> int:
        """N."""

    def at(self, q_rad: Array, qd_radps: Array) -> Posture:
        """Return the posture and motion of shape (..., n)."""

    def inertia_matrix(self, q_rad: Array) -> Array:
        """Return M(q), symmetric positive definite, kg m^2, shape (..., n, n)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class JointLimits:
    """What the hardware bears, one entry per joint."""

    effort_nm: tuple[float, ...]
    """Largest joint torque, N m."""
    effort_rate_nmps: tuple[float, ...]
    """Fastest change of joint torque, N m / s."""
    position_rad: tuple[float, ...]
    """Upper end of the joint range, rad."""
    velocity_radps: tuple[float, ...]
    """Fastest joint motion, rad / s."""
    position_lower_rad: tuple[float, ...] | None = field(default=None, metadata=LATER)
    """Lower end of the joint range, rad; null: symmetric about zero."""

    def __post_init__(self) -> None:
        values = {
            'effort_nm': self.effort_nm,
            'effort_rate_nmps': self.effort_rate_nmps,
            'velocity_radps': self.velocity_radps,
        }
        ends = {'position_rad': self.position_rad}
        if self.position_lower_rad is None:
            values |= ends
        else:
            ends['position_lower_rad'] = self.position_lower_rad
        require_length('JointLimits', len(self.effort_nm), **(values | ends))
        require_positive('JointLimits', **values)
        if not (np.isfinite([self.lower_rad, self.upper_rad]).all() and self._is_ordered()):
            raise ConfigError(
                'JointLimits.position_lower_rad: expected finite ends below position_rad = '
                f'{list(self.position_rad)}, found {self.lower_rad.tolist()}.'
            )

    def _is_ordered(self) -> bool:
        return bool((self.lower_rad < self.upper_rad).all())

    @property
    def lower_rad(self) -> Array:
        """Lower end of the joint range, rad, shape (n,)."""
        if self.position_lower_rad is None:
            return -np.array(self.position_rad)
        return np.array(self.position_lower_rad)

    @property
    def upper_rad(self) -> Array:
        """Upper end of the joint range, rad, shape (n,)."""
        return np.array(self.position_rad)


class ArmModel(Protocol):
    """An arm as the controller knows it: names, limits, and its rigid body with any payload."""

    @property
    def joint_names(self) -> tuple[str, ...]:
        """Names in `joint_states`, in the order of every joint axis."""

    @property
    def limits(self) -> JointLimits:
        """What the hardware bears."""

    def body(self, payload_kg: float | Array = 0.0) -> RigidBody:
        """Return the rigid body with a point mass at the tip, of shape (...) for a batch."""

    def body_per_kg(self) -> RigidBody:
        """Return what one kilogram at the tip adds to M, C and g: all are linear in it."""

    def smallest_inertia_kgm2(self) -> float:
        """Return the least eigenvalue of M over all postures and payloads."""

    def sample_inertias(self, payload_max_kg: float = 0.0) -> Array:
        """Return M all over the workspace, with payloads from none to the heaviest, (S, n, n)."""

    def largest_mobility(self) -> Array:
        """Return the largest (M^-1)_ii over all postures, 1 / (kg m^2), shape (n,)."""

    def heaviest(self) -> tuple[Array, Array]:
        """Return the largest |M_ij|, (n, n), and |g_i|, (n,), over all postures, no payload."""

    def renamed(self, joint_names: tuple[str, ...]) -> Self:
        """Return the same arm with other names of its joints."""

    def statement(self) -> object:
        """Return what the arm was made from, as plain values for a file of results."""
