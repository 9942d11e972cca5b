# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""Slotine and Li's adaptive controller, as an estimator of what the model lacks."""

from dataclasses import dataclass
import math

from metactl_ros.config import require_not_negative, require_positive
from metactl_ros.control.estimators.estimator import Sight
from metactl_ros.control.law import ControlLaw
from metactl_ros.dynamics.two_link import (
    apply_mass,
    coriolis_torque,
    gravity_torque,
    Inertia,
    mass_at,
)
from metactl_ros.signals import choose, clamp, Component, dot, functions_for, Vector


@dataclass(frozen=True, kw_only=True, slots=True)
class SlotineLiSettings:
    """How fast each parameter is learnt, and how far it may go; zero is the least of all."""

    payload_rate: float
    """Of the mass at the tip, kg/s per (N m/kg rad/s), as are the next ones in their units."""
    coulomb_rate: float
    """Of the Coulomb friction of each joint."""
    viscous_rate: float
    """Of its viscous friction."""
    memory_rate: float
    """Of the memory's strength in each filter."""
    memory_horizons_s: tuple[float, ...]
    """tau_i of the bank of filters z_i_dot = -z_i / tau_i + qd; none: no memory."""
    payload_most_kg: float
    coulomb_most_nm: float
    viscous_most_nmsprad: float
    memory_most_nmprad: float

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

    def __init__(
        self, settings: SlotineLiSettings, law: ControlLaw, model: Inertia, per_kg: Inertia
    ) -> None:
        self._settings, self._law = settings, law
        self._model, self._per_kg = model, per_kg
        num_filters = len(settings.memory_horizons_s)
        self._rates = [
            settings.payload_rate,
            settings.coulomb_rate,
            settings.viscous_rate,
            *[settings.memory_rate] * num_filters,
        ]
        self._most = [
            settings.payload_most_kg,
            settings.coulomb_most_nm,
            settings.viscous_most_nmsprad,
            *[settings.memory_most_nmprad] * num_filters,
        ]
        self._payload_kg: list[Component] = []
        self._weights: list[list[Component]] = []
        self._memory: list[list[Component]] = []

    def reset(self) -> None:
        """Forget what was learnt."""
        self._payload_kg = []

    def update(self, sight: Sight) -> Vector:
        """Return the estimate after the last period."""
        if not self._payload_kg:
            self._begin(sight)
        self._filter(sight)
        payload_column = self._payload_torque(sight)
        s, joint_columns = sight.error.s_radps, self._joint_columns(sight)
        slope = dot(payload_column, s)
        self._payload_kg = self._learnt(self._payload_kg, [slope], self._rates[:1], 0, sight)
        self._weights = [
            self._learnt(
                weights, [column * error for column in columns], self._rates[1:], 1, sight
            )
            for weights, columns, error in zip(self._weights, joint_columns, s, strict=True)
        ]
        coupling = coriolis_torque(self._model, sight.q_rad, sight.qd_radps, s)
        return [
            c + self._payload_kg[0] * load + dot(weights, columns)
            for c, load, weights, columns in zip(
                coupling, payload_column, self._weights, joint_columns, strict=True
            )
        ]

    def _begin(self, sight: Sight) -> None:
        zeros = [0.0 * q for q in sight.q_rad]
        guess = sight.payload_estimate_kg + zeros[0]
        self._payload_kg = clamp([guess], [0.0], [self._settings.payload_most_kg])
        self._weights = [[zero] * (len(self._rates) - 1) for zero in zeros]
        self._memory = [[zero] * len(self._settings.memory_horizons_s) for zero in zeros]
        self._qd_before = sight.qd_radps

    def _filter(self, sight: Sight) -> None:
        """Move the bank on by a period in which the velocity was the mean of its ends."""
        fades = [math.exp(-sight.passed_s / tau_s) for tau_s in self._settings.memory_horizons_s]
        rows = zip(self._memory, self._qd_before, sight.qd_radps, strict=True)
        self._memory = [
            [
                fade * z + (1.0 - fade) * tau_s * 0.5 * (qd_0 + qd)
                for fade, tau_s, z in zip(
                    fades, self._settings.memory_horizons_s, filters, strict=True
                )
            ]
            for filters, qd_0, qd in rows
        ]
        self._qd_before = sight.qd_radps

    def _payload_torque(self, sight: Sight) -> list[Component]:
        """Return what one kilogram at the tip adds to the law, N m / kg."""
        q, qd, error = sight.q_rad, sight.qd_radps, sight.error
        slope = self._law.slope_per_s
        qd_r = [v + s for v, s in zip(qd, error.s_radps, strict=True)]
        qdd_r = [
            a + slope * e_dot
            for a, e_dot in zip(sight.qdd_desired_radps2, error.e_dot_radps, strict=True)
        ]
        parts = (
            apply_mass(mass_at(self._per_kg, q), qdd_r),
            coriolis_torque(self._per_kg, q, qd, qd_r),
            gravity_torque(self._per_kg, q),
        )
        return [sum(joint) for joint in zip(*parts, strict=True)]

    def _joint_columns(self, sight: Sight) -> list[list[Component]]:
        """Return (Coulomb, viscous, filters) of each joint."""
        tanh = functions_for(sight.qd_desired_radps[0]).tanh
        eps = self._law.coulomb_smoothing_radps
        rows = zip(sight.qd_desired_radps, sight.qd_radps, self._memory, strict=True)
        return [[tanh(wanted / eps), qd, *filters] for wanted, qd, filters in rows]

    def _learnt(
        self, values: Vector, slopes: Vector, rates: Vector, begin: int, sight: Sight
    ) -> list[Component]:
        rows = zip(values, slopes, rates, strict=True)
        grown = [value + sight.passed_s * rate * slope for value, slope, rate in rows]
        most = self._most[begin : begin + len(grown)]
        kept = clamp(grown, [0.0 * value for value in most], most)
        return choose(sight.may_learn, kept, values)
