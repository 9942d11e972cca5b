# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""A stand-in for the model of an arm with three joints, and a controller stated per joint."""

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from metactl_ros.control.gain_map import ColumnRange, GainBox
from metactl_ros.control.lyapunov import solve_lyapunov
from metactl_ros.dynamics.friction import Friction
from metactl_ros.dynamics.rigid_body import JointLimits
from metactl_ros.settings import load_settings
from metactl_ros.sim.rollout import without_warmup

LIMITS = JointLimits(
    effort_nm=(60.0, 40.0, 20.0),
    effort_rate_nmps=(1500.0, 1000.0, 500.0),
    position_rad=(2.5, 2.5, 2.5),
    velocity_radps=(6.0, 6.0, 6.0),
)
M = np.array([[1.4, 0.5, 0.1], [0.5, 0.8, 0.2], [0.1, 0.2, 0.3]])  # kg m^2, in every posture
GRAVITY_NM = np.array([15.0, 8.0, 3.0])
FRICTION = Friction(
    coulomb_nm=(2.0, 1.0, 0.3),
    static_nm=(3.0, 1.2, 0.5),
    stribeck_velocity_radps=(0.1, 0.2, 0.3),
    smoothing_velocity_radps=(0.12, 0.15, 0.2),
    viscous_nmsprad=(0.5, 0.3, 0.1),
    memory_gain_nmprad=(4.6, 2.0, 0.5),
)
LAW = replace(
    load_settings().controller.law,
    nominal_kd_per_s=(30.0, 25.0, 20.0),
    nominal_lambda_per_s=(5.0, 4.0, 6.0),
    coulomb_smoothing_radps=(0.12, 0.2, 0.3),
)
GAIN_BOX = GainBox(
    kd_per_s=((10.0, 60.0), (12.0, 50.0), (15.0, 40.0)),
    lambda_per_s=(1.0, 10.0),
    feed_forward=(
        ColumnRange(column='bias', ends=((-6.0, 6.0), (-4.0, 4.0), (-1.0, 2.0))),
        ColumnRange(column='coulomb', ends=((-3.0, 3.0), (-2.0, 2.0), (-0.5, 0.5))),
        ColumnRange(column='estimate', ends=(0.0, 1.2)),
    ),
)


class Posture:
    """A body whose inertia is the same in every posture, so that there is no Coriolis torque."""

    def __init__(self, body, q_rad):
        self._M, self._q, self._gravity_nm = body.M, q_rad, body.gravity_nm

    @cached_property
    def gravity(self):
        return self._gravity_nm * np.cos(self._q)

    @property
    def bias(self):
        return self.gravity

    @property
    def diagonal(self):
        return np.broadcast_to(np.diag(self._M), self._q.shape)

    @property
    def momentum_flow(self):
        return np.zeros(self._q.shape)

    def apply(self, x):
        return x @ self._M

    @property
    def effective_inertia(self):
        return np.broadcast_to(1.0 / np.diag(np.linalg.inv(self._M)), self._q.shape)

    def solve(self, torque_nm, armature_kgm2=None):
        inertia = self._M if armature_kgm2 is None else self._M + _diagonal(armature_kgm2)
        return np.linalg.solve(inertia, torque_nm[..., np.newaxis])[..., 0]

    def coriolis(self, v_radps):
        return np.zeros(v_radps.shape)


def _diagonal(values):
    return values[..., np.newaxis] * np.eye(values.shape[-1])


@dataclass(frozen=True)
class Body:
    M: np.ndarray
    gravity_nm: np.ndarray
    num_joints: int = 3

    def at(self, q_rad, _qd_radps):
        return Posture(self, q_rad)

    def inertia_matrix(self, q_rad):
        return np.broadcast_to(self.M, (*q_rad.shape[:-1], 3, 3))


@dataclass(frozen=True)
class ThreeJoints:
    """An `ArmModel`; a payload changes nothing."""

    joint_names: tuple[str, ...] = ('base', 'shoulder', 'elbow')
    limits: JointLimits = LIMITS
    order: tuple[int, ...] = (0, 1, 2)

    def body(self, _payload_kg=0.0):
        order = list(self.order)
        return Body(M[np.ix_(order, order)], GRAVITY_NM[order])

    def body_per_kg(self):
        return Body(0.0 * M, 0.0 * GRAVITY_NM)

    def sample_inertias(self, _payload_max_kg=0.0):
        order = list(self.order)
        return M[np.newaxis][:, order][..., order]

    def smallest_inertia_kgm2(self):
        return float(np.linalg.eigvalsh(M).min())


def controller_for_three(law, gain_box, estimator):
    """Return the shipped controller for three joints, with P of Q = I and the estimate in view."""
    shipped = without_warmup(load_settings().controller)
    P = solve_lyapunov(np.eye(6), law, shipped.lyapunov.alpha_per_s)
    return replace(
        shipped,
        law=law,
        gain_box=gain_box,
        lyapunov=replace(shipped.lyapunov, p_matrix=tuple(map(tuple, P.tolist()))),
        context=replace(shipped.context, num_extra=3),
        estimator=estimator,
    )


def in_order(settings, order):
    """Return a dataclass with other joints in its tuples: in another order, or only some."""
    if isinstance(settings, tuple):
        return tuple(settings[joint] for joint in order)
    of_joints = {
        name: in_order(value, order)
        for name in settings.__slots__
        if isinstance(value := getattr(settings, name), tuple) and len(value) == 3
    }
    return replace(settings, **of_joints)


def box_in_order(box, order):
    """Return a gain box for joints in another order."""
    columns = tuple(in_order(column, order) for column in box.feed_forward)
    first = replace(box, feed_forward=())
    return replace(in_order(first, order), feed_forward=columns)
