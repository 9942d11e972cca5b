# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
r"""Rigid-body model of a planar two-link arm in a vertical plane, in closed form.

            o payload p [kg], a point mass at the tip
           /
          /  link 2, q2 relative to link 1
    o----o
   /   link 1, q1 from the horizontal, counter-clockwise; gravity points down

    M = [ a1 + a2 + 2 a3 cos q2,  a2 + a3 cos q2 ]      g = [ b1 cos q1 + b2 cos(q1 + q2) ]
        [ a2 + a3 cos q2,         a2             ]          [ b2 cos(q1 + q2)             ]

Links are uniform rods. The payload is in the five constants; the controller's model carries none.
"""

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from metactl_ros.config import require_length, require_positive, stated
from metactl_ros.dynamics.rigid_body import JointLimits
from metactl_ros.errors import ConfigError
from metactl_ros.signals import Array

PAYLOAD_SAMPLES = 5


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
            2,
            joint_names=self.joint_names,
            link_masses_kg=self.link_masses_kg,
            link_lengths_m=self.link_lengths_m,
        )
        require_length('JointLimits', 2, effort_nm=self.limits.effort_nm)
        require_positive(
            'Arm', link_masses_kg=self.link_masses_kg, link_lengths_m=self.link_lengths_m
        )
        if self.joint_names[0] == self.joint_names[1]:
            raise ConfigError(f'Arm.joint_names: names must differ, found {self.joint_names}.')
        if not 0.0 <= self.gravity_mps2 < 100.0:
            raise ConfigError(
                f'Arm.gravity_mps2: expected 0 to 100 m/s^2, found {self.gravity_mps2}.'
            )

    def body(self, payload_kg: float | Array = 0.0) -> 'TwoLinkBody':
        """Return the rigid body with a payload of shape (...); compute once, use often."""
        (m1, m2), (l1, l2) = self.link_masses_kg, self.link_lengths_m
        p = payload_kg
        return TwoLinkBody(
            a1_kgm2=m1 * l1**2 / 3.0 + (m2 + p) * l1**2,
            a2_kgm2=m2 * l2**2 / 3.0 + p * l2**2,
            a3_kgm2=l1 * l2 * (m2 / 2.0 + p),
            b1_nm=self.gravity_mps2 * l1 * (m1 / 2.0 + m2 + p),
            b2_nm=self.gravity_mps2 * l2 * (m2 / 2.0 + p),
        )

    def body_per_kg(self) -> 'TwoLinkBody':
        """Return what one kilogram at the tip adds to M, C and g: all are linear in it."""
        one, none = self.body(1.0), self.body()
        return TwoLinkBody(*(getattr(one, f) - getattr(none, f) for f in TwoLinkBody.__slots__))

    def smallest_inertia_kgm2(self) -> float:
        """Return the least eigenvalue of M over all postures and payloads.

        The stretched arm (q2 = 0) has the least determinant, a1 a2 - (a3 cos q2)^2, and the
        largest trace at once, hence the least eigenvalue; a payload adds a positive matrix to M.
        """
        return float(np.linalg.eigvalsh(self.body().inertia_matrix(np.zeros(2))).min())

    def sample_inertias(self, payload_max_kg: float = 0.0) -> Array:
        """Return M at every degree of q2 from 0 to 180, shape (S, 2, 2).

        It is that without payload, and of some payloads up to the heaviest if there is one.
        It is even in q2, and q1 is not in it. With c = cos q2 every u^T M^-1 v is of the form
        (x + y c) / (a1 a2 - (a3 c)^2), whose size has no maximum within -1 < c < 1: what one N m
        moves most is the stretched arm or the folded one, and nothing is missed in between.
        """
        q2 = np.linspace(0.0, np.pi, 181)
        q = np.stack([np.zeros_like(q2), q2], axis=-1)
        payloads_kg = np.linspace(0.0, payload_max_kg, PAYLOAD_SAMPLES if payload_max_kg else 1)
        return np.concatenate([self.body(kg).inertia_matrix(q) for kg in payloads_kg.tolist()])

    def largest_mobility(self) -> Array:
        """Return the largest (M^-1)_ii over all postures, shape (2,): those of the stretched arm.

        It is 1 / (kg m^2), and without payload, which adds a positive matrix to M.
        """
        return np.asarray(np.diag(np.linalg.inv(self.body().inertia_matrix(np.zeros(2)))))

    def heaviest(self) -> tuple[Array, Array]:
        """Return M and |g| of the stretched, horizontal arm, where every entry is largest."""
        body, horizontal = self.body(), np.zeros(2)
        return body.inertia_matrix(horizontal), np.abs(body.gravity(horizontal))

    def renamed(self, joint_names: tuple[str, ...]) -> 'Arm':
        """Return the same arm with other names of its joints."""
        return replace(self, joint_names=joint_names)

    def statement(self) -> object:
        """Return the settings as plain values."""
        return stated(self)


@dataclass(frozen=True, slots=True)
class TwoLinkBody:
    """The five lumped constants that M, C and g depend on, each of the payload's shape (...)."""

    a1_kgm2: float | Array
    """Rotation of link 1 about joint 1, with everything beyond it as a point at joint 2."""
    a2_kgm2: float | Array
    """Rotation of link 2 and payload about joint 2."""
    a3_kgm2: float | Array
    """Coupling of the two rotations."""
    b1_nm: float | Array
    """Gravity moment of link 1 and everything beyond it, arm horizontal."""
    b2_nm: float | Array
    """Gravity moment of link 2 and payload about joint 2, link horizontal."""

    @property
    def num_joints(self) -> int:
        """N."""
        return 2

    def at(self, q_rad: Array, qd_radps: Array) -> 'TwoLinkPosture':
        """Return the posture and motion of shape (..., 2)."""
        return TwoLinkPosture(self, q_rad, qd_radps)

    def gravity(self, q_rad: Array) -> Array:
        """Return g(q), the torque that holds the arm still, N m, shape (..., 2)."""
        q1, q2 = _parts(q_rad)
        elbow = self.b2_nm * np.cos(q1 + q2)
        return _pair(self.b1_nm * np.cos(q1) + elbow, elbow)

    def inertia_matrix(self, q_rad: Array) -> Array:
        """Return M(q), symmetric positive definite, kg m^2, shape (..., 2, 2)."""
        M11, M12, M22 = self.inertia(q_rad[..., 1])
        return np.stack([_pair(M11, M12), _pair(M12, M22)], axis=-2)

    def inertia(self, q2_rad: Array) -> tuple[Array, Array, float | Array]:
        """Return the entries M11, M12 and M22 of M(q)."""
        coupling = self.a3_kgm2 * np.cos(q2_rad)
        M12 = self.a2_kgm2 + coupling
        return self.a1_kgm2 + M12 + coupling, M12, self.a2_kgm2

    def coriolis_matrix(self, q_rad: Array, qd_radps: Array) -> Array:
        """Return C(q, qd) in Christoffel form, kg m^2 / s, shape (..., 2, 2).

        M_dot - 2 C is skew-symmetric; C qd is the Coriolis and centripetal torque.
        """
        h = self.a3_kgm2 * np.sin(q_rad[..., 1])
        qd1, qd2 = qd_radps[..., 0], qd_radps[..., 1]
        return np.stack([_pair(-h * qd2, -h * (qd1 + qd2)), _pair(h * qd1, 0.0 * h)], axis=-2)

    def forward_dynamics(self, q_rad: Array, qd_radps: Array, torque_nm: Array) -> Array:
        """Return qdd = M^-1 (tau - C qd - g), rad / s^2, shape (..., 2).

        `torque_nm` is the net joint torque: motor effort minus friction.
        """
        posture = self.at(q_rad, qd_radps)
        return posture.solve(torque_nm - posture.bias)

    def mechanical_energy(self, q_rad: Array, qd_radps: Array) -> Array:
        """Return kinetic plus potential energy, J, shape (...); zero at rest in the horizontal."""
        q1, q2 = q_rad[..., 0], q_rad[..., 1]
        kinetic = 0.5 * np.sum(self.at(q_rad, qd_radps).apply(qd_radps) * qd_radps, axis=-1)
        return np.asarray(kinetic + self.b1_nm * np.sin(q1) + self.b2_nm * np.sin(q1 + q2))


class TwoLinkPosture:
    """The arm at (q, qd): M now, everything else when it is asked for."""

    def __init__(self, body: TwoLinkBody, q_rad: Array, qd_radps: Array) -> None:
        self._body, self._q = body, q_rad
        self._qd1, self._qd2 = _parts(qd_radps)
        self._M11, self._M12, self._M22 = body.inertia(_parts(q_rad)[1])

    @cached_property
    def gravity(self) -> Array:
        """g(q), N m, shape (..., 2)."""
        return self._body.gravity(self._q)

    @cached_property
    def bias(self) -> Array:
        """C(q, qd) qd + g(q), N m, shape (..., 2)."""
        qd1, qd2, h = self._qd1, self._qd2, self._h
        return self.gravity + _pair(-h * qd2 * (2.0 * qd1 + qd2), h * qd1 * qd1)

    @cached_property
    def _h(self) -> Array:
        h: Array = self._body.a3_kgm2 * np.sin(_parts(self._q)[1])
        return h

    @property
    def diagonal(self) -> Array:
        """The diagonal of M(q), kg m^2, shape (..., 2)."""
        return _pair(self._M11, self._M22)

    @property
    def momentum_flow(self) -> Array:
        """C(q, qd)^T qd, N m, shape (..., 2)."""
        qd1, qd2, h = self._qd1, self._qd2, self._h
        return _pair(0.0 * h, -h * qd1 * (qd1 + qd2))

    def apply(self, x: Array) -> Array:
        """Return M(q) x, shape (..., 2)."""
        x1, x2 = _parts(x)
        return _pair(self._M11 * x1 + self._M12 * x2, self._M12 * x1 + self._M22 * x2)

    @property
    def effective_inertia(self) -> Array:
        """1 / (M^-1)_ii, kg m^2, shape (..., 2)."""
        determinant = self._M11 * self._M22 - self._M12 * self._M12
        return _pair(determinant / self._M22, determinant / self._M11)

    def solve(self, torque_nm: Array, armature_kgm2: Array | None = None) -> Array:
        """Return (M(q) + diag(armature))^-1 tau by Cramer's rule, rad / s^2, shape (..., 2)."""
        t1, t2 = _parts(torque_nm)
        M11, M12, M22 = self._M11, self._M12, self._M22
        if armature_kgm2 is not None:
            a1, a2 = _parts(armature_kgm2)
            M11, M22 = M11 + a1, M22 + a2
        scale = 1.0 / (M11 * M22 - M12 * M12)
        return _pair((M22 * t1 - M12 * t2) * scale, (M11 * t2 - M12 * t1) * scale)

    def coriolis(self, v_radps: Array) -> Array:
        """Return C(q, qd) v with C in Christoffel form, N m, shape (..., 2)."""
        qd1, qd2, h = self._qd1, self._qd2, self._h
        v1, v2 = _parts(v_radps)
        return _pair(-h * (qd2 * v1 + (qd1 + qd2) * v2), h * qd1 * v1)


def _parts(x: Array) -> tuple[Array, Array]:
    """Return the two components of (..., 2), each of shape (...).

    [()] makes those of one arm NumPy scalars: a tenth of the cost of arrays without axes.
    """
    return x[..., 0][()], x[..., 1][()]


def _pair(first: Array, second: float | Array) -> Array:
    """Return two components as one array of shape (..., 2); the first has the shape (...)."""
    pair = np.empty((*first.shape, 2))
    pair[..., 0], pair[..., 1] = first, second
    return pair
