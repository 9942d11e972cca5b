# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""The seam between a controller and the world: what every simulated arm can do."""

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from metactl_ros.dynamics.friction import Friction
from metactl_ros.errors import PlantError
from metactl_ros.signals import ArmState, Array


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
