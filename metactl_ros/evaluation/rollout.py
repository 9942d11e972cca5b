# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""Closed-loop episodes in process: plant, reference, controller and limits, step by step."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from metactl_ros.arm import gravity_torque, lump
from metactl_ros.control.computed_torque import computed_torque, limit_effort
from metactl_ros.plant.protocol import Plant
from metactl_ros.settings import Settings
from metactl_ros.signals import ArmState, Array, Reference, seconds
from metactl_ros.task import Episode

Controller = Callable[[ArmState, Reference], Array]
"""From what is measured and wanted now to the gains theta, shape (..., 4 n)."""


@dataclass(frozen=True, slots=True)
class EpisodeLog:
    """What happened, time first: row k is the instant k control periods after reset."""

    time_s: Array
    """Shape (T + 1,)."""
    q_rad: Array
    """Measured positions, shape (T + 1, ..., n)."""
    q_desired_rad: Array
    """Shape (T + 1, ..., n)."""
    effort_nm: Array
    """Efforts after limits, shape (T, ..., n)."""
    is_limited: np.ndarray
    """Whether a limit changed the effort, shape (T, ..., n)."""


def run_episode(
    plant: Plant, episode: Episode, controller: Controller, settings: Settings, num_steps: int
) -> EpisodeLog:
    """Run one episode, or a batch of them, from reset to the end and return its log.

    The effort before the first step is the gravity torque of the payload-free model.
    """
    law, limits = settings.controller.law, settings.arm.limits
    model = lump(settings.arm, 0.0)
    state = plant.reset(episode.start)
    reference = episode.reference.at(0.0)
    effort = gravity_torque(model, state.q_rad)
    states, references, efforts, limited = [state], [reference], [], []
    for _ in range(num_steps):
        wanted = computed_torque(law, model, state, reference, controller(state, reference))
        effort = limit_effort(limits, wanted, effort, 1.0 / law.rate_hz)
        state = plant.step(effort)
        reference = episode.reference.at(seconds(state.stamp_ns))
        states.append(state)
        references.append(reference)
        efforts.append(effort)
        limited.append(effort != wanted)
    return EpisodeLog(
        time_s=np.array([seconds(state.stamp_ns) for state in states]),
        q_rad=np.stack([state.q_rad for state in states]),
        q_desired_rad=np.stack([reference.q_rad for reference in references]),
        effort_nm=np.stack(efforts),
        is_limited=np.stack(limited),
    )
