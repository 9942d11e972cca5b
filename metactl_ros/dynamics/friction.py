# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
r"""Stribeck friction with a memory that no encoder sees.

    F(qd, z) = (F_c + (F_s - F_c) exp(-(qd / v_s)^2)) tanh(qd / eps) + sigma qd + z
    z_dot    = -z / tau_z + lambda_z qd

The memory z is a torque. It stores energy z^2 / (2 lambda_z) and gives back at most that: the
model is passive, so friction can never pump the arm. For long tau_z it turns into a spring,
z -> lambda_z (q - q(0)), which is why sweeping tau_z alone proves little (see docs).

tanh stands for sign so that a fixed step of 10 ms stays stable at rest; `smallest_smoothing` is
the bound that eps must respect.
"""

from dataclasses import dataclass
import math
from typing import NamedTuple

import numpy as np

from metactl_ros.config import (
    for_joints,
    joint_array,
    PerJoint,
    require_joints,
    require_not_negative,
    require_positive,
)
from metactl_ros.errors import ConfigError
from metactl_ros.signals import Array


@dataclass(frozen=True, kw_only=True, slots=True)
class Friction:
    """Friction constants, each the same for every joint or with one entry per joint."""

    coulomb_nm: PerJoint
    """F_c, the level at speed, N m."""
    static_nm: PerJoint
    """F_s, the level at rest, N m; at least F_c."""
    stribeck_velocity_radps: PerJoint
    """v_s, where the static surplus has fallen to 1/e, rad / s."""
    smoothing_velocity_radps: PerJoint
    """eps, the width of the smooth sign, rad / s."""
    viscous_nmsprad: PerJoint
    """sigma, N m s / rad."""
    memory_gain_nmprad: PerJoint
    """lambda_z, how strongly motion charges the memory, N m / rad; zero switches memory off."""

    def __post_init__(self) -> None:
        require_joints(self)
        require_positive(
            'Friction',
            stribeck_velocity_radps=self.stribeck_velocity_radps,
            smoothing_velocity_radps=self.smoothing_velocity_radps,
        )
        require_not_negative(
            'Friction',
            coulomb_nm=self.coulomb_nm,
            static_nm=self.static_nm,
            viscous_nmsprad=self.viscous_nmsprad,
            memory_gain_nmprad=self.memory_gain_nmprad,
        )
        if np.any(joint_array(self.static_nm) < joint_array(self.coulomb_nm)):
            raise ConfigError(
                f'Friction.static_nm: expected at least coulomb_nm = {self.coulomb_nm} N m, '
                f'found {self.static_nm}.'
            )


class JointFriction(NamedTuple):
    """The constants of a single joint, and the same equations on plain floats.

    A simulator with 1 kHz sub-steps asks 1,000 times per joint and simulated second, and NumPy's
    cost per call would be most of its time.
    """

    coulomb_nm: float
    static_nm: float
    stribeck_velocity_radps: float
    smoothing_velocity_radps: float
    viscous_nmsprad: float
    memory_gain_nmprad: float

    def torque(self, qd_radps: float, memory_nm: float) -> float:
        """Return F(qd, z), in N m."""
        ratio = qd_radps / self.stribeck_velocity_radps
        surplus = (self.static_nm - self.coulomb_nm) * math.exp(-ratio * ratio)
        direction = math.tanh(qd_radps / self.smoothing_velocity_radps)
        smooth = (self.coulomb_nm + surplus) * direction
        return smooth + self.viscous_nmsprad * qd_radps + memory_nm

    def memory_after(
        self, qd_radps: float, memory_nm: float, tau_z_s: float, dt_s: float
    ) -> float:
        """Return z after `dt_s` of constant velocity, exactly, in N m."""
        settled = self.memory_gain_nmprad * tau_z_s * qd_radps
        return settled + (memory_nm - settled) * math.exp(-dt_s / tau_z_s)


def friction_of_joints(friction: Friction, num_joints: int) -> list[JointFriction]:
    """Return the constants of each joint.

    Raises:
        ConfigError: If one of them does not have as many entries.
    """
    require_joints(friction, num_joints)
    rows = [
        for_joints(getattr(friction, name), num_joints).tolist() for name in JointFriction._fields
    ]
    return [JointFriction(*constants) for constants in zip(*rows, strict=True)]


def friction_torque(friction: Friction, qd_radps: Array, memory_nm: Array) -> Array:
    """Return F(qd, z), the torque that opposes motion, in N m, shape (..., n)."""
    coulomb, static = joint_array(friction.coulomb_nm), joint_array(friction.static_nm)
    ratio = qd_radps / joint_array(friction.stribeck_velocity_radps)
    surplus = (static - coulomb) * np.exp(-ratio * ratio)
    direction = np.tanh(qd_radps / joint_array(friction.smoothing_velocity_radps))
    smooth = (coulomb + surplus) * direction
    return np.asarray(smooth + joint_array(friction.viscous_nmsprad) * qd_radps + memory_nm)


def friction_slope(friction: Friction, qd_radps: Array) -> Array:
    """Return dF/dqd, N m s / rad, shape (..., n); below 0 where the static surplus fades."""
    coulomb, static = joint_array(friction.coulomb_nm), joint_array(friction.static_nm)
    smoothing = joint_array(friction.smoothing_velocity_radps)
    ratio = qd_radps / joint_array(friction.stribeck_velocity_radps)
    surplus = (static - coulomb) * np.exp(-ratio * ratio)
    direction = np.tanh(qd_radps / smoothing)
    rising = (coulomb + surplus) * (1.0 - direction * direction) / smoothing
    fading = 2.0 * surplus * ratio * direction / joint_array(friction.stribeck_velocity_radps)
    return np.asarray(rising - fading + joint_array(friction.viscous_nmsprad))


def memory_rate(
    friction: Friction, qd_radps: Array, memory_nm: Array, tau_z_s: Array | float
) -> Array:
    """Return z_dot, in N m / s, shape (..., n); tau_z broadcasts against (..., n)."""
    return joint_array(friction.memory_gain_nmprad) * qd_radps - memory_nm / tau_z_s


def smallest_smoothing(
    friction: Friction, num_joints: int, smallest_inertia_kgm2: float, dt_s: float
) -> Array:
    """Return the least eps for which an explicit step of `dt_s` does not chatter at rest, rad / s.

    At rest friction is a damper of F_s / eps + sigma; a step must not turn the velocity around
    more than once over: (F_s / eps + sigma) dt / lambda_min(M) <= 2 for every joint, which is
    enough for all of them together. Shape (n,).
    """
    require_joints(friction, num_joints)
    viscous = for_joints(friction.viscous_nmsprad, num_joints)
    allowed_damping = 2.0 * smallest_inertia_kgm2 / dt_s - viscous
    if allowed_damping.min() <= 0.0:
        raise ConfigError(
            f'Friction.viscous_nmsprad: {viscous.max()} N m s/rad alone makes a step of {dt_s} s '
            f'unstable for an inertia of {smallest_inertia_kgm2:.3g} kg m^2; shorten the step or '
            'lower it.'
        )
    return for_joints(friction.static_nm, num_joints) / allowed_damping
