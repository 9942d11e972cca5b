# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""The seam between a controller and the world: what every simulated arm can do, and suffers.

`SensedPlant` wraps a plant and is one, with imperfect sensors, actuators and conditions, all off
by default: the wrapped simulator decides the physics, the wrapper what the controller gets to see
and do. All simulators therefore suffer exactly the same imperfections.
"""

from collections import deque
from dataclasses import dataclass
import math
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from metactl_ros.config import require_not_negative, require_positive
from metactl_ros.dynamics.friction import Friction
from metactl_ros.errors import ConfigError, PlantError
from metactl_ros.signals import ArmState, Array, period_ns_of, seconds


@dataclass(frozen=True, slots=True)
class PlantStart:
    """Everything that fixes one run of a plant; leading axes (...) are independent arms."""

    q_rad: Array
    """Initial positions, shape (..., n)."""
    qd_radps: Array
    """Initial velocities, shape (..., n)."""
    memory_nm: Array
    """Initial friction memory z, shape (..., n)."""
    payload_kg: Array
    """Point mass at the tip, shape (...)."""
    tau_z_s: Array
    """Memory horizon, shape (...)."""
    noise_seed: NDArray[np.int64]
    """Seed of the sensor noise of each arm, shape (...)."""

    def __post_init__(self) -> None:
        shape = np.shape(self.q_rad)
        for name in ('qd_radps', 'memory_nm'):
            found = np.shape(getattr(self, name))
            if found != shape:
                raise PlantError(f'PlantStart.{name}: expected shape {shape}, found {found}.')
        for name in ('payload_kg', 'tau_z_s', 'noise_seed'):
            found = np.shape(getattr(self, name))
            if found != shape[:-1]:
                raise PlantError(
                    f'PlantStart.{name}: expected one value per arm, shape {shape[:-1]}, '
                    f'found {found}.'
                )
        check_conditions(self.payload_kg, self.tau_z_s)
        for name in ('q_rad', 'qd_radps', 'memory_nm'):
            if not np.all(np.isfinite(getattr(self, name))):
                raise PlantError(f'PlantStart.{name}: expected finite values; check the task.')


class Plant(Protocol):
    """A simulated arm, or a batch of them, advanced by one control period at a time."""

    def reset(self, start: PlantStart) -> ArmState:
        """Begin a new run at time zero and return its first state."""

    def step(self, effort_nm: Array) -> ArmState:
        """Hold the efforts, shape (..., n), for one control period and return the next state."""

    def set_conditions(self, payload_kg: Array, tau_z_s: Array) -> None:
        """Change payload and memory horizon, shape (...), from the next step on."""

    def set_friction(self, friction: Friction) -> None:
        """Change the friction constants from the next step on; a reset keeps them."""

    def close(self) -> None:
        """Release what the plant holds; it cannot be used afterwards."""

    @property
    def true_q_rad(self) -> Array:
        """Where the arm is now, shape (..., n), whatever its sensors say."""

    @property
    def memory_nm(self) -> Array:
        """The true friction memory z, shape (..., n); no sensor reports it, twins may read it."""


class PlantAround:
    """What is around a plant and lets through all that it does not change."""

    def __init__(self, plant: Plant) -> None:
        self._plant = plant

    def set_conditions(self, payload_kg: Array, tau_z_s: Array) -> None:
        """Change payload and memory horizon, shape (...), from the next step on."""
        self._plant.set_conditions(payload_kg, tau_z_s)

    def set_friction(self, friction: Friction) -> None:
        """Change the friction constants from the next step on."""
        self._plant.set_friction(friction)

    def close(self) -> None:
        """Close the plant within."""
        self._plant.close()

    @property
    def true_q_rad(self) -> Array:
        """Where the arm is now, shape (..., n), whatever its sensors say."""
        return self._plant.true_q_rad

    @property
    def memory_nm(self) -> Array:
        """The true friction memory z, shape (..., n)."""
        return self._plant.memory_nm


def check_conditions(payload_kg: Array, tau_z_s: Array) -> None:
    """Refuse a payload or a memory horizon that has no physical meaning."""
    if not np.all(np.isfinite(payload_kg) & (np.asarray(payload_kg) >= 0.0)):
        raise PlantError(f'payload_kg: expected finite masses of at least 0, found {payload_kg}.')
    if not np.all(np.isfinite(tau_z_s) & (np.asarray(tau_z_s) > 0.0)):
        raise PlantError(f'tau_z_s: expected finite times above 0, found {tau_z_s}.')


def substeps_per_period(rate_hz: float, substep_hz: float) -> int:
    """Return how many physics steps fill one control period exactly.

    Raises:
        PlantError: If they do not: PyBullet's customary 240 Hz does not fit 100 Hz.
    """
    ratio = substep_hz / rate_hz
    if not (np.isfinite(ratio) and ratio >= 1.0 and abs(ratio - round(ratio)) < 1e-9):
        raise PlantError(
            f'substep_hz: {substep_hz} Hz is not a whole multiple of the control rate '
            f'{rate_hz} Hz; use for example {10.0 * rate_hz} Hz.'
        )
    return round(ratio)


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
    """A plant seen through imperfect sensors and driven by imperfect motors.

    A scheduled step or drift overrules conditions that were set before.
    """

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
