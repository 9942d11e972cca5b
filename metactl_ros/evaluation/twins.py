# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""The memory-attributable error: the same episode without memory, and with memory known.

Sweeping tau_z alone proves nothing, because a long memory turns into a spring that can be read
from the position. What memory costs a controller is what it loses against these two twins.
"""

from dataclasses import replace
from typing import get_args, Literal, TypeAlias

import numpy as np

from metactl_ros.arm import NUM_JOINTS
from metactl_ros.control.computed_torque import nominal_gains
from metactl_ros.evaluation.rollout import Controller
from metactl_ros.plant.protocol import Plant
from metactl_ros.settings import Settings
from metactl_ros.signals import ArmState, Array, Reference

Twin: TypeAlias = Literal['itself', 'without_memory', 'knowing_memory']
TWINS: tuple[Twin, ...] = get_args(Twin)

BIAS_COLUMNS = slice(2 * NUM_JOINTS, 3 * NUM_JOINTS)


def settings_of_twin(settings: Settings, twin: Twin) -> Settings:
    """Return the settings of a twin: `without_memory` has lambda_z = 0, others are unchanged."""
    if twin != 'without_memory':
        return settings
    friction = replace(settings.plant.friction, memory_gain_nmprad=0.0)
    return replace(settings, plant=replace(settings.plant, friction=friction))


def fixed_gain_controller(settings: Settings, plant: Plant, twin: Twin) -> Controller:
    """Return the baseline; `knowing_memory` carries the true z in the bias columns of eta."""
    gains = nominal_gains(settings.controller.law, NUM_JOINTS)

    def fixed(_state: ArmState, _reference: Reference) -> Array:
        return gains

    def knowing_memory(_state: ArmState, _reference: Reference) -> Array:
        memory = plant.memory_nm
        theta = np.broadcast_to(gains, (*memory.shape[:-1], gains.size)).copy()
        theta[..., BIAS_COLUMNS] = memory
        return theta

    return knowing_memory if twin == 'knowing_memory' else fixed
