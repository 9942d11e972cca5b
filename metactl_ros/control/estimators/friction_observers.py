# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""Estimators that are given friction constants: a LuGre observer, and an oracle that knows all."""

from dataclasses import dataclass
import math

from metactl_ros.config import require_not_negative, require_positive
from metactl_ros.control.estimators.estimator import Sight
from metactl_ros.dynamics.friction import Friction, stribeck_torque
from metactl_ros.dynamics.two_link import apply_mass, bias_torque, Inertia, mass_at
from metactl_ros.signals import Component, functions_for, Vector


@dataclass(frozen=True, kw_only=True, slots=True)
class LugreSettings:
    """Identified friction, the same for every joint, and how the observer corrects itself."""

    stiffness_nmprad: float
    """sigma_0 of the bristles, N m / rad."""
    damping_nmsprad: float
    """sigma_1, N m s / rad."""
    coulomb_nm: float
    static_nm: float
    stribeck_velocity_radps: float
    viscous_nmsprad: float
    correction: float
    """k, rad of deflection per (rad / s) s of the sliding variable."""

    def __post_init__(self) -> None:
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
        self._settings = settings
        self._deflection: list[Component] = []

    def reset(self) -> None:
        """Forget the deflection."""
        self._deflection = []

    def update(self, sight: Sight) -> Vector:
        """Return the estimate after the last period."""
        if not self._deflection:
            self._deflection = [0.0 * q for q in sight.q_rad]
        rows = [
            self._moved(x, qd, s, sight)
            for x, qd, s in zip(self._deflection, sight.qd_radps, sight.error.s_radps, strict=True)
        ]
        self._deflection = [x for x, _ in rows]
        c = self._settings
        return [
            c.stiffness_nmprad * x + c.damping_nmsprad * rate + c.viscous_nmsprad * qd
            for (x, rate), qd in zip(rows, sight.qd_radps, strict=True)
        ]

    def _moved(
        self, x: Component, qd: Component, s: Component, sight: Sight
    ) -> tuple[Component, Component]:
        """Return deflection and its rate at the end of the period."""
        c = self._settings
        functions = functions_for(qd)
        ratio = qd / c.stribeck_velocity_radps
        level = c.coulomb_nm + (c.static_nm - c.coulomb_nm) * functions.exp(-ratio * ratio)
        decay = c.stiffness_nmprad * abs(qd) / level + TINY
        drive = qd + c.correction * s * sight.may_learn
        grown = -functions.expm1(-decay * sight.passed_s) / decay
        x = x + grown * (drive - decay * x)
        return x, drive - decay * x


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

    def __init__(self, settings: OracleSettings, per_kg: Inertia) -> None:
        self._truth = settings
        self._per_kg = per_kg
        self._memory: list[Component] = []

    def reset(self) -> None:
        """Forget the memory: the arm begins without."""
        self._memory = []

    def update(self, sight: Sight) -> Vector:
        """Return d."""
        if not self._memory:
            self._memory = [0.0 * q for q in sight.q_rad]
            self._qd_before = sight.qd_radps
        truth = self._truth
        tau_z_s = self._tau_z_s(sight.time_s - sight.passed_s)  # the plant's, all period long
        fade = math.exp(-sight.passed_s / tau_z_s)
        charge = truth.friction.memory_gain_nmprad * tau_z_s * (1.0 - fade)
        rows = zip(self._memory, self._qd_before, sight.qd_radps, strict=True)
        self._memory = [fade * z + charge * 0.5 * (qd_0 + qd) for z, qd_0, qd in rows]
        self._qd_before = sight.qd_radps
        q, wanted = sight.q_rad, sight.qd_desired_radps
        push = apply_mass(mass_at(self._per_kg, q), sight.qdd_desired_radps2)
        load = [a + b for a, b in zip(push, bias_torque(self._per_kg, q, wanted), strict=True)]
        payload_kg = self._payload_kg(sight.time_s)
        return [
            payload_kg * torque + stribeck_torque(truth.friction, qd, z)
            for torque, qd, z in zip(load, wanted, self._memory, strict=True)
        ]

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
