# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""The memory-attributable error: the same episode without memory, and with memory known.

Sweeping tau_z alone proves nothing, because a long memory turns into a spring that can be read
from the position. What memory costs a controller is what it loses against these two twins.
"""

from dataclasses import replace
from typing import get_args, Literal, TypeAlias

from metactl_ros.baselines import ConstantPolicy
from metactl_ros.control.gain_map import ColumnRange
from metactl_ros.control.loop import ControlLoop
from metactl_ros.settings import Settings
from metactl_ros.signals import Array, Policy
from metactl_ros.sim.plant import Plant
from metactl_ros.sim.rollout import for_learning

Twin: TypeAlias = Literal['itself', 'without_memory', 'knowing_memory']
TWINS: tuple[Twin, ...] = get_args(Twin)

# Wide enough for any memory torque; the bias column follows K_d and Lambda in theta.
KNOWN_MEMORY = ColumnRange(column='bias', ends=(-100.0, 100.0))


def settings_of_twin(settings: Settings, twin: Twin) -> Settings:
    """Return the settings of a twin: no memory, or a bias column that can carry it."""
    if twin == 'without_memory':
        friction = replace(settings.plant.friction, memory_gain_nmprad=0.0)
        return replace(settings, plant=replace(settings.plant, friction=friction))
    if twin == 'knowing_memory':
        box = replace(settings.controller.gain_box, feed_forward=(KNOWN_MEMORY,))
        return replace(settings, controller=replace(settings.controller, gain_box=box))
    return settings


def fixed_gain_twin(settings: Settings, plant: Plant, twin: Twin) -> tuple[ControlLoop, Policy]:
    """Return the loop and the policy of the fixed-gain baseline, or of one of its twins.

    The twin that knows z carries it in the bias column of eta. To the shield, whose model has no
    friction, that is a disturbance, so there it only counts.
    """
    knows_memory = twin == 'knowing_memory'
    loop = ControlLoop(
        settings.arm,
        for_learning(settings.controller),
        enforcement='count' if knows_memory else 'enforce',
    )

    fixed = ConstantPolicy(loop.nominal_action)

    def knowing_memory(window: Array) -> Array:
        theta = loop.gain_map.gains(fixed(window))
        memory = plant.memory_nm
        n = memory.shape[-1]
        theta[..., 2 * n : 3 * n] = memory  # the bias column, behind K_d and Lambda
        return loop.gain_map.action(theta)

    return loop, knowing_memory if knows_memory else fixed
