# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""Estimators that are given friction constants: a LuGre observer, and an oracle that knows all."""

from dataclasses import dataclass
import math

import numpy as np

from metactl_ros.config import (
    joint_array,
    PerJoint,
    require_joints,
    require_not_negative,
    require_positive,
)
from metactl_ros.control.estimators.estimator import EstimatorInput
from metactl_ros.dynamics.friction import Friction, friction_torque
from metactl_ros.dynamics.rigid_body import RigidBody
from metactl_ros.signals import Array


@dataclass(frozen=True, kw_only=True, slots=True)
class LugreSettings:
    """Identified friction, and how the observer corrects itself; of every joint, or per joint."""

    stiffness_nmprad: PerJoint
    """sigma_0 of the bristles, N m / rad."""
    damping_nmsprad: PerJoint
    """sigma_1, N m s / rad."""
    coulomb_nm: PerJoint
    static_nm: PerJoint
    stribeck_velocity_radps: PerJoint
    viscous_nmsprad: PerJoint
    correction: PerJoint
    """k, rad of deflection per (rad / s) s of the sliding variable."""

    def __post_init__(self) -> None:
        require_joints(self)
        require_positive(
            'LugreSettings',
            stiffness_nmprad=self.stiffness_nmprad,
            coulomb_nm=self.coulomb_nm,
            static_nm=self.static_nm,
            stribeck_velocity_radps=self.stribeck_velocity_radps,
        )
        require_not_negative(
            'LugreSettings',
            damping_nmsprad=self.damping_nmsprad,
            viscous_nmsprad=self.viscous_nmsprad,
            correction=self.correction,
        )


class LugreObserver:
    r"""d^ = sigma_0 x + sigma_1 x_dot + sigma_2 qd, from a bristle deflection x.

        x_dot = qd - sigma_0 |qd| / g(qd) x + k s,    g(v) = F_c + (F_s - F_c) exp(-(v / v_s)^2)

    If friction is LuGre's with these constants and the rest of the model is exact, the error of
    the deflection falls as sigma_0 |qd| / g while the joint moves. For sigma_1 = 0 and
    Lambda = Lambda_0

        V = 1/2 s^T M s + sigma_0 / (2 k) |x~|^2 has V_dot <= -K_d s^T M s + 1/2 s^T M_dot s,

    so it falls on a single joint, and on an arm that moves slowly enough for its K_d (Canudas de
    Wit and others, 1995). The correction k s is what acts on all that is not LuGre's:
    payload and memory, too. A period is integrated exactly for the velocity measured at its end.
    """

    def __init__(self, settings: LugreSettings) -> None:
        self._stiffness = joint_array(settings.stiffness_nmprad)
        self._damping = joint_array(settings.damping_nmsprad)
        self._viscous = joint_array(settings.viscous_nmsprad)
        self._coulomb = joint_array(settings.coulomb_nm)
        self._surplus = joint_array(settings.static_nm) - self._coulomb
        self._stribeck_radps = joint_array(settings.stribeck_velocity_radps)
        self._correction = joint_array(settings.correction)
        self._deflection: Array | None = None

    def reset(self) -> None:
        """Forget the deflection."""
        self._deflection = None

    def update(self, given: EstimatorInput) -> Array:
        """Return the estimate after the last period."""
        qd = given.at.qd
        x = np.zeros(qd.shape) if self._deflection is None else self._deflection
        ratio = qd / self._stribeck_radps
        level = self._coulomb + self._surplus * np.exp(-ratio * ratio)
        decay = self._stiffness * np.abs(qd) / level + TINY
        drive = qd + self._correction * given.error.s_radps * given.may_learn[..., np.newaxis]
        grown = -np.expm1(-decay * given.passed_s) / decay
        self._deflection = x = x + grown * (drive - decay * x)
        rate = drive - decay * x
        return self._stiffness * x + self._damping * rate + self._viscous * qd


TINY = 1e-9
"""Added to a rate of decay, 1 / s: at rest the equation is integrated as if it were this."""


@dataclass(frozen=True, kw_only=True, slots=True)
class OracleSettings:
    """The truth about the simulated arm, and how it changes."""

    friction: Friction
    payload_kg: float
    tau_z_s: float
    payload_step_at_s: float = 0.0
    payload_step_kg: float = 0.0
    tau_z_drift_to_s: float | None = None
    tau_z_drift_over_s: float = 1.0

    def __post_init__(self) -> None:
        drift_to_s = () if self.tau_z_drift_to_s is None else (self.tau_z_drift_to_s,)
        require_positive(
            'OracleSettings',
            tau_z_s=self.tau_z_s,
            tau_z_drift_to_s=drift_to_s,
            tau_z_drift_over_s=self.tau_z_drift_over_s,
        )
        require_not_negative(
            'OracleSettings', payload_kg=self.payload_kg, payload_step_at_s=self.payload_step_at_s
        )


class Oracle:
    """d^ = payload, friction and memory, computed from the plant's own constants.

    The memory is filtered from the measured velocity with the true horizon, and friction and
    payload follow the reference, as the arm nearly does: at 100 Hz a friction that follows the
    measured velocity feeds back positively. No sensor tells these constants, so this is the limit
    of what can be reached, not a rival.
    """

    def __init__(self, settings: OracleSettings, per_kg: RigidBody) -> None:
        self._truth = settings
        self._per_kg = per_kg
        self._memory: Array | None = None

    def reset(self) -> None:
        """Forget the memory: the arm begins without."""
        self._memory = None

    def update(self, given: EstimatorInput) -> Array:
        """Return d."""
        truth, at = self._truth, given.at
        if self._memory is None:
            self._memory, self._qd_before = np.zeros(at.q.shape), at.qd
        tau_z_s = self._tau_z_s(given.time_s - given.passed_s)  # the plant's, all period long
        fade = math.exp(-given.passed_s / tau_z_s)
        charge = joint_array(truth.friction.memory_gain_nmprad) * tau_z_s * (1.0 - fade)
        self._memory = fade * self._memory + charge * 0.5 * (self._qd_before + at.qd)
        self._qd_before = at.qd
        per_kg = self._per_kg.at(at.q, at.qd_desired)
        load = per_kg.apply(at.qdd_desired) + per_kg.bias
        friction = friction_torque(truth.friction, at.qd_desired, self._memory)
        return self._payload_kg(given.time_s) * load + friction

    def _payload_kg(self, time_s: float) -> float:
        truth = self._truth
        is_later = time_s >= truth.payload_step_at_s
        return max(truth.payload_kg + is_later * truth.payload_step_kg, 0.0)

    def _tau_z_s(self, time_s: float) -> float:
        truth = self._truth
        if truth.tau_z_drift_to_s is None:
            return truth.tau_z_s
        share = min(time_s / truth.tau_z_drift_over_s, 1.0)
        return truth.tau_z_s + share * (truth.tau_z_drift_to_s - truth.tau_z_s)
