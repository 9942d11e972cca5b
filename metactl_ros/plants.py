# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""Makes the plant a command asked for by name."""

from typing import Literal, TypeAlias

from metactl_ros.errors import ConfigError
from metactl_ros.settings import Settings
from metactl_ros.sim.plant import Plant
from metactl_ros.sim.rk4_arm import Rk4Arm
from metactl_ros.sim.sensing import SensedPlant

PlantName: TypeAlias = Literal['rk4', 'bullet']


def make_plant(name: PlantName, settings: Settings) -> Plant:
    """Return a plant with the sensing effects of the settings; close it after use."""
    friction, rate_hz = settings.plant.friction, settings.controller.law.rate_hz
    plant: Plant
    if name == 'rk4':
        plant = Rk4Arm(settings.arm, friction, rate_hz, settings.plant.payload_scale_per_kg)
    elif settings.plant.payload_scale_per_kg is not None:
        raise ConfigError(
            'payload_scale_per_kg: the PyBullet plant carries payloads at the tip only; take the '
            'rk4 plant, or leave it out.'
        )
    else:
        # Imported here: only a process that simulates with PyBullet needs it installed.
        from metactl_ros.sim.bullet_arm import BulletArm

        plant = BulletArm(settings.arm, friction, rate_hz, settings.plant.substep_hz)
    return SensedPlant(plant, settings.plant.sensing, rate_hz)
