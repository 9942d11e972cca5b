# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
r"""Rigid-body model of a planar two-link arm in a vertical plane, in closed form.

            o payload p [kg], a point mass at the tip
           /
          /  link 2, q2 relative to link 1
    o----o
   /   link 1, q1 from the horizontal, counter-clockwise; gravity points down

    M(q) qdd + C(q, qd) qd + g(q) = tau - friction

Links are uniform rods. Vectors are lists of components (see `signals`), matrices are arrays over
leading batch axes. The payload is held in `Inertia`; the controller's model carries none.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from metactl_ros.config import require_length, require_positive
from metactl_ros.errors import ConfigError
from metactl_ros.signals import Array, Component, dot, functions_for, split, Vector

NUM_JOINTS = 2


@dataclass(frozen=True, kw_only=True, slots=True)
class JointLimits:
    """What the hardware bears, one entry per joint, symmetric about zero."""

    effort_nm: tuple[float, ...]
    """Largest joint torque, N m."""
    effort_rate_nmps: tuple[float, ...]
    """Fastest change of joint torque, N m / s."""
    position_rad: tuple[float, ...]
    """Farthest joint position from zero, rad."""
    velocity_radps: tuple[float, ...]
    """Fastest joint motion, rad / s."""

    def __post_init__(self) -> None:
        values = {name: getattr(self, name) for name in self.__slots__}
        require_length('JointLimits', NUM_JOINTS, **values)
        require_positive('JointLimits', **values)


@dataclass(frozen=True, kw_only=True, slots=True)
class Arm:
    """The physical arm, as `config/arm.yaml` states it."""

    joint_names: tuple[str, ...]
    """Names in `joint_states`, in the order of every joint axis in this package."""
    link_masses_kg: tuple[float, ...]
    """Mass of each uniform rod, kg."""
    link_lengths_m: tuple[float, ...]
    """Length of each rod, m."""
    gravity_mps2: float
    """Gravitational acceleration, m / s^2; zero for an arm in a horizontal plane."""
    limits: JointLimits

    def __post_init__(self) -> None:
        require_length(
            'Arm',
            NUM_JOINTS,
            joint_names=self.joint_names,
            link_masses_kg=self.link_masses_kg,
            link_lengths_m=self.link_lengths_m,
        )
        require_positive(
            'Arm', link_masses_kg=self.link_masses_kg, link_lengths_m=self.link_lengths_m
        )
        if len(set(self.joint_names)) < NUM_JOINTS:
            raise ConfigError(f'Arm.joint_names: names must differ, found {self.joint_names}.')
        if not 0.0 <= self.gravity_mps2 < 100.0:
            raise ConfigError(
                f'Arm.gravity_mps2: expected 0 to 100 m/s^2, found {self.gravity_mps2}.'
            )


class Inertia(NamedTuple):
    """The five lumped constants that M, C and g depend on, each of the payload's shape (...)."""

    a1_kgm2: Component
    """Rotation of link 1 about joint 1, with everything beyond it as a point at joint 2."""
    a2_kgm2: Component
    """Rotation of link 2 and payload about joint 2."""
    a3_kgm2: Component
    """Coupling of the two rotations."""
    b1_nm: Component
    """Gravity moment of link 1 and everything beyond it, arm horizontal."""
    b2_nm: Component
    """Gravity moment of link 2 and payload about joint 2, link horizontal."""


class Mass(NamedTuple):
    """The three entries of the symmetric M(q)."""

    m11: Component
    m12: Component
    m22: Component


def lump(arm: Arm, payload_kg: Component) -> Inertia:
    """Return the lumped constants for a payload of shape (...); compute once, use often."""
    (m1, m2), (l1, l2) = arm.link_masses_kg, arm.link_lengths_m
    p = payload_kg
    return Inertia(
        a1_kgm2=m1 * l1**2 / 3.0 + (m2 + p) * l1**2,
        a2_kgm2=m2 * l2**2 / 3.0 + p * l2**2,
        a3_kgm2=l1 * l2 * (m2 / 2.0 + p),
        b1_nm=arm.gravity_mps2 * l1 * (m1 / 2.0 + m2 + p),
        b2_nm=arm.gravity_mps2 * l2 * (m2 / 2.0 + p),
    )


def inertia_matrix(inertia: Inertia, q_rad: Array) -> Array:
    """Return M(q), symmetric positive definite, in kg m^2, of shape (..., 2) to (..., 2, 2)."""
    m11, m12, m22 = np.broadcast_arrays(*mass_at(inertia, split(q_rad)))
    return np.stack([np.stack([m11, m12], axis=-1), np.stack([m12, m22], axis=-1)], axis=-2)


def mass_at(inertia: Inertia, q_rad: Vector) -> Mass:
    """Return the entries of M(q); compute once per posture, apply and solve as often as needed."""
    coupling = inertia.a3_kgm2 * functions_for(q_rad[1]).cos(q_rad[1])
    m12 = inertia.a2_kgm2 + coupling
    return Mass(inertia.a1_kgm2 + m12 + coupling, m12, inertia.a2_kgm2)


def apply_mass(mass: Mass, qdd_radps2: Vector) -> list[Component]:
    """Return M qdd, in N m."""
    x1, x2 = qdd_radps2
    return [mass.m11 * x1 + mass.m12 * x2, mass.m12 * x1 + mass.m22 * x2]


def solve_mass(mass: Mass, torque_nm: Vector) -> list[Component]:
    """Return M^-1 tau, in rad / s^2, by Cramer's rule."""
    t1, t2 = torque_nm
    m11, m12, m22 = mass
    scale = 1.0 / (m11 * m22 - m12 * m12)
    return [(m22 * t1 - m12 * t2) * scale, (m11 * t2 - m12 * t1) * scale]


def coriolis_matrix(inertia: Inertia, q_rad: Array, qd_radps: Array) -> Array:
    """Return C(q, qd) in Christoffel form, in kg m^2 / s, shape (..., 2, 2).

    M_dot - 2 C is skew-symmetric; C qd is the Coriolis and centripetal torque.
    """
    h = inertia.a3_kgm2 * np.sin(q_rad[..., 1])
    qd1, qd2 = split(qd_radps)
    C = np.zeros((*np.shape(h * qd1), 2, 2))
    C[..., 0, 0] = -h * qd2
    C[..., 0, 1] = -h * (qd1 + qd2)
    C[..., 1, 0] = h * qd1
    return C


def gravity_torque(inertia: Inertia, q_rad: Vector) -> list[Component]:
    """Return g(q), the torque that holds the arm still, in N m."""
    q1, q2 = q_rad
    cos = functions_for(q1).cos
    elbow = inertia.b2_nm * cos(q1 + q2)
    return [inertia.b1_nm * cos(q1) + elbow, elbow]


def bias_torque(inertia: Inertia, q_rad: Vector, qd_radps: Vector) -> list[Component]:
    """Return C(q, qd) qd + g(q), in N m."""
    qd1, qd2 = qd_radps
    shoulder, elbow = gravity_torque(inertia, q_rad)
    h = inertia.a3_kgm2 * functions_for(q_rad[1]).sin(q_rad[1])
    return [shoulder - h * qd2 * (2.0 * qd1 + qd2), elbow + h * qd1 * qd1]


def coriolis_torque(
    inertia: Inertia, q_rad: Vector, qd_radps: Vector, v_radps: Vector
) -> list[Component]:
    """Return C(q, qd) v with C in Christoffel form, in N m."""
    (qd1, qd2), (v1, v2) = qd_radps, v_radps
    h = inertia.a3_kgm2 * functions_for(q_rad[1]).sin(q_rad[1])
    return [-h * (qd2 * v1 + (qd1 + qd2) * v2), h * qd1 * v1]


def momentum_flow(inertia: Inertia, q_rad: Vector, qd_radps: Vector) -> list[Component]:
    """Return C(q, qd)^T qd, the rate of M qd that no torque causes, in N m."""
    qd1, qd2 = qd_radps
    h = inertia.a3_kgm2 * functions_for(q_rad[1]).sin(q_rad[1])
    return [0.0 * h, -h * qd1 * (qd1 + qd2)]


def forward_dynamics(
    inertia: Inertia, q_rad: Vector, qd_radps: Vector, torque_nm: Vector
) -> list[Component]:
    """Return qdd = M^-1 (tau - C qd - g), in rad / s^2.

    `torque_nm` is the net joint torque: motor effort minus friction.
    """
    bias = bias_torque(inertia, q_rad, qd_radps)
    net = [torque - taken for torque, taken in zip(torque_nm, bias, strict=True)]
    return solve_mass(mass_at(inertia, q_rad), net)


def mechanical_energy(inertia: Inertia, q_rad: Vector, qd_radps: Vector) -> Component:
    """Return kinetic plus potential energy, in J; zero at rest in the horizontal."""
    q1, q2 = q_rad
    sin = functions_for(q1).sin
    kinetic = 0.5 * dot(apply_mass(mass_at(inertia, q_rad), qd_radps), qd_radps)
    return kinetic + inertia.b1_nm * sin(q1) + inertia.b2_nm * sin(q1 + q2)


def smallest_inertia(arm: Arm) -> float:
    """Return the least eigenvalue of M over all postures and payloads, in kg m^2.

    The stretched arm (q2 = 0) has the least determinant, a1 a2 - (a3 cos q2)^2, and the largest
    trace at once, hence the least eigenvalue; a payload adds a positive matrix to M.
    """
    stretched = np.zeros(NUM_JOINTS)
    return float(np.linalg.eigvalsh(inertia_matrix(lump(arm, 0.0), stretched)).min())
