# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""Imperfect sensors, actuators and conditions around any plant, all off by default.

`SensedPlant` wraps a plant and is one: the wrapped simulator decides the physics, the wrapper what
the controller gets to see and do. Both simulators therefore suffer exactly the same imperfections.
"""

from collections import deque
from dataclasses import dataclass
import math

import numpy as np

from metactl_ros.config import require_not_negative, require_positive
from metactl_ros.dynamics.friction import Friction
from metactl_ros.errors import ConfigError
from metactl_ros.signals import ArmState, Array, period_ns_of, seconds
from metactl_ros.sim.plant import Plant, PlantAround, PlantStart

# Noise is drawn ahead in blocks, a generator per arm, so that a batch equals its arms one by one.
NOISE_BLOCK = 256


@dataclass(frozen=True, kw_only=True, slots=True)
class Sensing:
    """Imperfections of the measured, driven and changing arm; zero or null means ideal."""

    velocity_noise_radps: float
    """Standard deviation of white noise on every velocity sample, rad / s."""
    encoder_bits: int
    """Resolution of one revolution; velocity is then the difference of two positions."""
    transport_delay_s: float
    """Age of a state when the controller sees it, a whole number of control periods, s."""
    actuator_limit_nm: tuple[float, ...] | None
    """What the motors deliver at most, one entry per joint, N m."""
    payload_step_at_s: float
    """When the payload changes, s."""
    payload_step_kg: float
    """By how much, kg; a payload never falls below zero."""
    tau_z_drift_to_s: float | None
    """Memory horizon at the end of the drift, s."""
    tau_z_drift_over_s: float
    """Length of the linear drift that starts at reset, s."""

    def __post_init__(self) -> None:
        require_not_negative(
            'Sensing',
            velocity_noise_radps=self.velocity_noise_radps,
            encoder_bits=self.encoder_bits,
            transport_delay_s=self.transport_delay_s,
            payload_step_at_s=self.payload_step_at_s,
        )
        require_positive('Sensing', tau_z_drift_over_s=self.tau_z_drift_over_s)
        if not math.isfinite(self.payload_step_kg):
            raise ConfigError(
                'Sensing.payload_step_kg: expected a finite change of mass, '
                f'found {self.payload_step_kg}.'
            )
        if self.encoder_bits > 32:
            raise ConfigError(f'Sensing.encoder_bits: at most 32, found {self.encoder_bits}.')
        if self.actuator_limit_nm is not None:
            require_positive('Sensing', actuator_limit_nm=self.actuator_limit_nm)
        if self.tau_z_drift_to_s is not None:
            require_positive('Sensing', tau_z_drift_to_s=self.tau_z_drift_to_s)


class SensedPlant(PlantAround):
    """A plant seen through imperfect sensors and driven by imperfect motors."""

    def __init__(self, plant: Plant, sensing: Sensing, rate_hz: float) -> None:
        super().__init__(plant)
        self._sensing = sensing
        self._period_s = seconds(period_ns_of(rate_hz))
        self._delay_steps = whole_periods(sensing.transport_delay_s, self._period_s)

    def reset(self, start: PlantStart) -> ArmState:
        """Begin a new run; until the delay has passed, the first state is all there is to see."""
        self._start = start
        self._generators = [np.random.default_rng(seed) for seed in np.ravel(start.noise_seed)]
        self._noise = np.zeros((0, *np.shape(start.q_rad)))
        self._noise_used = 0
        self._last_q_rad = self._quantise(start.q_rad - self._period_s * start.qd_radps)
        first = self._measure(self._plant.reset(start))
        self._in_transit = deque([first] * (self._delay_steps + 1), maxlen=self._delay_steps + 1)
        return first

    def step(self, effort_nm: Array) -> ArmState:
        """Advance the plant with the effort the motors can deliver; return a delayed state.

        The stamp is the time of the step, as a driver stamps what it has just received.
        """
        self._update_conditions(seconds(self._in_transit[-1].stamp_ns))
        limit = self._sensing.actuator_limit_nm
        delivered = effort_nm if limit is None else np.clip(effort_nm, -np.array(limit), limit)
        newest = self._measure(self._plant.step(delivered))
        self._in_transit.append(newest)
        oldest = self._in_transit[0]
        return ArmState(newest.stamp_ns, oldest.q_rad, oldest.qd_radps)

    def set_conditions(self, payload_kg: Array, tau_z_s: Array) -> None:
        """Change payload and memory horizon; a scheduled step or drift may overrule it later."""
        self._plant.set_conditions(payload_kg, tau_z_s)

    def set_friction(self, friction: Friction) -> None:
        """Change the friction constants from the next step on."""
        self._plant.set_friction(friction)

    def _measure(self, state: ArmState) -> ArmState:
        q, qd = state.q_rad, state.qd_radps
        if self._sensing.encoder_bits:
            q = self._quantise(q)
            qd = (q - self._last_q_rad) / self._period_s
        self._last_q_rad = q
        if self._sensing.velocity_noise_radps:
            qd = qd + self._sensing.velocity_noise_radps * self._next_noise()
        return ArmState(state.stamp_ns, q, qd)

    def _quantise(self, q_rad: Array) -> Array:
        count_rad = 2.0 * np.pi / 2.0**self._sensing.encoder_bits
        return np.asarray(np.round(q_rad / count_rad) * count_rad)

    def _next_noise(self) -> Array:
        """Return unit noise of shape (..., n) for one sample."""
        if self._noise_used == len(self._noise):
            shape = np.shape(self._start.q_rad)
            block = [g.standard_normal((NOISE_BLOCK, shape[-1])) for g in self._generators]
            self._noise = np.stack(block, axis=1).reshape(NOISE_BLOCK, *shape)
            self._noise_used = 0
        self._noise_used += 1
        sample: Array = self._noise[self._noise_used - 1]
        return sample

    def _update_conditions(self, t_s: float) -> None:
        sensing, start = self._sensing, self._start
        has_drift = sensing.tau_z_drift_to_s is not None
        if not has_drift and not sensing.payload_step_kg:
            return
        payload, tau_z = start.payload_kg, start.tau_z_s
        if t_s >= sensing.payload_step_at_s:
            payload = np.maximum(payload + sensing.payload_step_kg, 0.0)
        if sensing.tau_z_drift_to_s is not None:
            share = min(t_s / sensing.tau_z_drift_over_s, 1.0)
            tau_z = start.tau_z_s + share * (sensing.tau_z_drift_to_s - start.tau_z_s)
        self._plant.set_conditions(payload, tau_z)


def whole_periods(delay_s: float, period_s: float) -> int:
    """Return a delay in control periods; refuse one that is not a whole number of them."""
    periods = delay_s / period_s
    if abs(periods - round(periods)) > 1e-6:
        raise ConfigError(
            f'Sensing.transport_delay_s: expected a multiple of {period_s} s, found {delay_s}.'
        )
    return round(periods)
