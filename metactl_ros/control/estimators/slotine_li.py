# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""Slotine and Li's adaptive controller, as an estimator of what the model lacks."""

from dataclasses import dataclass

import numpy as np

from metactl_ros.config import (
    for_joints,
    joint_array,
    PerJoint,
    require_not_negative,
    require_positive,
)
from metactl_ros.control.estimators.estimator import EstimatorInput
from metactl_ros.control.law import LawSettings
from metactl_ros.dynamics.rigid_body import RigidBody
from metactl_ros.signals import Array


@dataclass(frozen=True, kw_only=True, slots=True)
class SlotineLiSettings:
    """How fast each parameter is learnt, and how far it may go; zero is the least of all."""

    payload_rate: float
    """Of the mass at the tip, kg/s per (N m/kg rad/s), as are the next ones in their units."""
    coulomb_rate: PerJoint
    """Of the Coulomb friction of each joint."""
    viscous_rate: PerJoint
    """Of its viscous friction."""
    memory_rate: PerJoint
    """Of the memory's strength in each filter."""
    memory_horizons_s: tuple[float, ...]
    """tau_i of the bank of filters z_i_dot = -z_i / tau_i + qd; none: no memory."""
    payload_most_kg: float
    coulomb_most_nm: PerJoint
    viscous_most_nmsprad: PerJoint
    memory_most_nmprad: PerJoint

    def __post_init__(self) -> None:
        owner = 'SlotineLiSettings'
        require_not_negative(
            owner,
            payload_rate=self.payload_rate,
            coulomb_rate=self.coulomb_rate,
            viscous_rate=self.viscous_rate,
            memory_rate=self.memory_rate,
        )
        require_positive(
            owner,
            memory_horizons_s=self.memory_horizons_s,
            payload_most_kg=self.payload_most_kg,
            coulomb_most_nm=self.coulomb_most_nm,
            viscous_most_nmsprad=self.viscous_most_nmsprad,
            memory_most_nmprad=self.memory_most_nmprad,
        )


class SlotineLi:
    r"""d^ = C^ s + Y a^,  a^_dot = Gamma Y^T s, kept within bounds.

    With qd_r = qd_d + Lambda_0 e, gains Lambda = Lambda_0 and one K_d for all joints, the law is

        tau = M^ qdd_r + C^ qd_r + g^ + Y(q, qd, qd_r, qdd_r) a^ + K_d M^ s,

    Slotine and Li's. If d = Y a with a constant a within the bounds, then

        V = 1/2 s^T M s + 1/2 (a - a^)^T Gamma^-1 (a - a^),   V_dot <= -K_d s^T M^ s,

    so s goes to zero. Y has the payload (M, C and g are linear in it), and for each joint a
    Coulomb term, a viscous term, and the filters of a bank: memory of horizon tau_i is lambda z_i,
    linear in the unknown lambda, so the proof holds for it too. The Coulomb term follows the
    *reference* velocity, on which it is right only while the arm follows: at 100 Hz the measured
    one would feed back positively. The payload begins at its estimate, all else at zero.
    """

    def __init__(self, settings: SlotineLiSettings, law: LawSettings, per_kg: RigidBody) -> None:
        self._settings, self._law, self._per_kg = settings, law, per_kg
        num_filters = len(settings.memory_horizons_s)
        self._horizons_s = np.array(settings.memory_horizons_s)[:, np.newaxis]
        n = per_kg.num_joints
        rates = [settings.coulomb_rate, settings.viscous_rate]
        rates += [settings.memory_rate] * num_filters
        self._rates = np.stack([for_joints(rate, n) for rate in rates])
        largest = [settings.coulomb_most_nm, settings.viscous_most_nmsprad]
        largest += [settings.memory_most_nmprad] * num_filters
        self._largest = np.stack([for_joints(most, n) for most in largest])
        self._has_begun = False
        self._payload_kg: Array = np.zeros(())
        self._weights: Array = np.zeros((len(largest), 0))
        self._memory: Array = np.zeros((num_filters, 0))

    def reset(self) -> None:
        """Forget what was learnt."""
        self._has_begun = False

    def update(self, given: EstimatorInput) -> Array:
        """Return the estimate after the last period."""
        if not self._has_begun:
            self._begin(given)
        self._filter(given)
        load, columns = self._payload_torque(given), self._joint_columns(given)
        s, may_learn, dt_s = given.error.s_radps, given.may_learn, given.passed_s
        settings = self._settings
        payload = self._payload_kg + dt_s * settings.payload_rate * np.sum(load * s, axis=-1)
        payload = np.clip(payload, 0.0, settings.payload_most_kg)
        self._payload_kg = np.where(may_learn, payload, self._payload_kg)
        weights = self._weights + dt_s * self._rates * columns * s[..., np.newaxis, :]
        weights = np.minimum(np.maximum(weights, 0.0), self._largest)
        self._weights = np.where(may_learn[..., np.newaxis, np.newaxis], weights, self._weights)
        known = given.posture.coriolis(s) + self._payload_kg[..., np.newaxis] * load
        return np.asarray(known + np.sum(self._weights * columns, axis=-2))

    def _begin(self, given: EstimatorInput) -> None:
        lead, n = given.at.q.shape[:-1], given.at.q.shape[-1]
        guess = np.broadcast_to(given.payload_estimate_kg, lead)
        self._payload_kg = np.clip(guess, 0.0, self._settings.payload_most_kg)
        self._weights = np.zeros((*lead, len(self._rates), n))
        self._memory = np.zeros((*lead, len(self._horizons_s), n))
        self._qd_before = given.at.qd
        self._has_begun = True

    def _filter(self, given: EstimatorInput) -> None:
        """Move the bank on by a period in which the velocity was the mean of its ends."""
        fade = np.exp(-given.passed_s / self._horizons_s)
        mean = 0.5 * (self._qd_before + given.at.qd)[..., np.newaxis, :]
        self._memory = fade * self._memory + (1.0 - fade) * self._horizons_s * mean
        self._qd_before = given.at.qd

    def _payload_torque(self, given: EstimatorInput) -> Array:
        """Return what one kilogram at the tip adds to the law, N m / kg, shape (..., n)."""
        at, error = given.at, given.error
        qd_r = at.qd + error.s_radps
        qdd_r = at.qdd_desired + self._law.slope_per_s * error.e_dot_radps
        per_kg = self._per_kg.at(at.q, at.qd)
        return per_kg.apply(qdd_r) + per_kg.coriolis(qd_r) + per_kg.gravity

    def _joint_columns(self, given: EstimatorInput) -> Array:
        """Return (Coulomb, viscous, filters) of each joint, shape (..., columns, n)."""
        sign = np.tanh(given.at.qd_desired / joint_array(self._law.coulomb_smoothing_radps))
        two = np.stack([sign, given.at.qd], axis=-2)
        return np.concatenate([two, self._memory], axis=-2)
