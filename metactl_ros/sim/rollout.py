# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""Closed-loop episodes in process: plant, reference, policy and control loop, step by step."""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from metactl_ros.control.guard import switched_off
from metactl_ros.control.loop import ControlLoop, ControlStep
from metactl_ros.control.settings import ControllerSettings
from metactl_ros.motion.reference import ReferenceMotion
from metactl_ros.signals import ArmState, Array, Policy, Reference, seconds
from metactl_ros.sim.plant import Plant
from metactl_ros.sim.task import Episode


@dataclass(frozen=True, slots=True)
class EpisodeLog:
    """What happened, time first: row k is the instant k control periods after reset."""

    time_s: Array
    """Shape (T + 1,)."""
    q_rad: Array
    """Measured positions, shape (T + 1, ..., n)."""
    true_q_rad: Array
    """Where the arm was, whatever its sensors said, shape (T + 1, ..., n)."""
    q_desired_rad: Array
    """Shape (T + 1, ..., n)."""
    effort_nm: Array
    """Efforts after limits, shape (T, ..., n)."""
    is_limited: NDArray[np.bool_]
    """Whether a limit changed the effort, shape (T, ..., n)."""
    gains: Array
    """theta in force, shape (T, ..., m)."""
    was_moved: NDArray[np.bool_]
    """Whether the shield moved or replaced the proposal, shape (T, ...)."""
    excess: Array
    """V_dot + alpha (V - v_0) on the nominal arm after limits, shape (T, ...)."""
    modes: NDArray[np.int64]
    """Shape (T, ...)."""
    causes: NDArray[np.int64]
    """Of the modes, shape (T, ...)."""


def with_window(settings: ControllerSettings, num_rows: int) -> ControllerSettings:
    """Return settings for a policy that sees another number of rows."""
    return replace(settings, context=replace(settings.context, num_rows=num_rows))


def without_warmup(settings: ControllerSettings) -> ControllerSettings:
    """Return settings for a simulation, where the policy acts from the first step."""
    return replace(settings, modes=replace(settings.modes, warmup_ticks=0))


def unguarded(settings: ControllerSettings) -> ControllerSettings:
    """Return settings whose guard never objects."""
    return replace(settings, guard=switched_off(settings.guard))


def for_learning(settings: ControllerSettings) -> ControllerSettings:
    """Return settings for training and for the paper's protocol, which knows no guard.

    The softest gains of the box let the arm sag by 0.7 rad, and may ask for more effort than there
    is. That is to be learned from, and counted as the error that it is, not hidden behind a FAULT.
    """
    modes = replace(settings.modes, stop_after_violations=10**9, fault_after_violations=10**9)
    return unguarded(without_warmup(replace(settings, modes=modes)))


def run_episode(
    plant: Plant,
    episode: Episode,
    policy: Policy,
    loop: ControlLoop,
    num_steps: int,
    motion: ReferenceMotion | None = None,
) -> EpisodeLog:
    """Run one episode, or a batch of them, from reset to the end and return its log.

    `motion` stands in for the reference of the episode.
    """
    state = plant.reset(episode.start)
    motion = episode.reference if motion is None else motion
    reference = motion.at(0.0)
    loop.reset(state)
    instants: list[tuple[ArmState, Reference]] = [(state, reference)]
    places = [plant.true_q_rad]
    steps: list[ControlStep] = []
    for _ in range(num_steps):
        window = loop.observe(state, reference, episode.payload_estimate_kg)
        step = loop.actuate(policy(window), state, reference, state.stamp_ns)
        state = plant.step(step.effort_nm)
        reference = motion.at(seconds(state.stamp_ns))
        instants.append((state, reference))
        places.append(plant.true_q_rad)
        steps.append(step)
    return EpisodeLog(
        time_s=np.array([seconds(state.stamp_ns) for state, _ in instants]),
        q_rad=np.stack([state.q_rad for state, _ in instants]),
        true_q_rad=np.stack(places),
        q_desired_rad=np.stack([reference.q_rad for _, reference in instants]),
        effort_nm=np.stack([step.effort_nm for step in steps]),
        is_limited=np.stack([step.effort_nm != step.wanted_nm for step in steps]),
        gains=np.stack([step.decision.gains.theta for step in steps]),
        was_moved=np.stack([step.decision.was_moved for step in steps]),
        excess=np.stack([step.excess_after_limits for step in steps]),
        modes=np.stack([step.modes for step in steps]),
        causes=np.stack([step.causes for step in steps]),
    )
