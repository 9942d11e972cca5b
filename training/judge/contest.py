# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""One controller on a batch of episodes: the unit of tuning and of the benchmark."""

from dataclasses import dataclass, fields
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from metactl_ros.baselines import constant_policy, load_learned, make_classical, Rival, truth_of
from metactl_ros.control.loop import ControlLoop
from metactl_ros.control.settings import ControllerSettings
from metactl_ros.control.shield import Enforcement
from metactl_ros.metrics import is_lost, tracking_rmse
from metactl_ros.plants import make_plant, PlantName
from metactl_ros.settings import Settings
from metactl_ros.signals import Array, Policy
from metactl_ros.sim.rollout import EpisodeLog, run_episode, without_warmup
from metactl_ros.sim.task import Episode


class Player(NamedTuple):
    """A controller that takes part: ct if it is neither a rival nor a bundle."""

    name: str
    rival: Rival | None = None
    bundle: Path | None = None


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of it, one entry per rollout."""

    rmse_rad: Array
    """Infinite where the arm diverged."""
    is_lost: NDArray[np.bool_]
    """As `metrics.is_lost` says."""
    peak_effort_nm: Array
    """Shape (N, n)."""
    variation_nmps: Array
    """Total variation of the efforts, summed over the joints, N m per second."""
    shield_activation: Array


def play(
    settings: Settings,
    episodes: Episode,
    player: Player,
    num_steps: int,
    enforcement: Enforcement = 'enforce',
    plant: PlantName = 'rk4',
) -> Outcome:
    """Run a batch of episodes, shape (N,): at once on RK4, one by one in PyBullet.

    The oracle is told the payload and the memory horizon, and so goes payload by payload.
    """
    payload_kg = episodes.start.payload_kg
    groups = [episodes]
    if plant == 'bullet':
        groups = [episodes.of_arm(i) for i in range(len(payload_kg))]
    elif player.name == 'oracle':
        begins = [0, *np.flatnonzero(np.diff(payload_kg)) + 1, len(payload_kg)]
        groups = [episodes.of_arm(slice(*ends)) for ends in pairwise(begins)]
    simulator = make_plant(plant, settings)
    found = []
    try:
        for group in groups:
            controller, policy = prepare(settings, player, group)
            loop = ControlLoop(settings.arm, without_warmup(controller), enforcement)
            chosen = policy or constant_policy(loop.nominal_action)
            found.append(_outcome(run_episode(simulator, group, chosen, loop, num_steps)))
    finally:
        simulator.close()
    columns = (
        np.concatenate([getattr(part, field.name) for part in found]) for field in fields(Outcome)
    )
    return Outcome(*columns)


def prepare(
    settings: Settings, player: Player, episode: Episode
) -> tuple[ControllerSettings, Policy | None]:
    """Return the settings and the policy of a controller for an episode; None: fixed gains."""
    if player.bundle is not None:
        bundle = load_learned(player.bundle, settings.arm, settings.controller)
        return bundle.controller, bundle.policy
    truth = None
    if player.name == 'oracle':
        payload_kg, tau_z_s = (
            float(np.ravel(values)[0])
            for values in (episode.start.payload_kg, episode.start.tau_z_s)
        )
        truth = truth_of(settings.plant, payload_kg, tau_z_s)
    return make_classical(settings.controller, player.rival, truth)


def _outcome(log: EpisodeLog) -> Outcome:
    change = np.abs(np.diff(log.effort_nm, axis=0)).sum(axis=(0, -1))
    return Outcome(
        rmse_rad=np.atleast_1d(tracking_rmse(log.q_desired_rad, log.true_q_rad)),
        is_lost=np.atleast_1d(is_lost(log.q_desired_rad, log.true_q_rad)),
        peak_effort_nm=np.atleast_2d(np.abs(log.effort_nm).max(axis=0)),
        variation_nmps=np.atleast_1d(change / (log.time_s[-1] - log.time_s[1])),
        shield_activation=np.atleast_1d(log.was_moved.mean(axis=0)),
    )
