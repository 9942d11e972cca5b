# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""A trained network as the policy of an in-process rollout."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from metactl_ros.control.loop import ControlLoop
from metactl_ros.metrics import tracking_rmse
from metactl_ros.settings import Settings
from metactl_ros.signals import Array, Policy
from metactl_ros.sim.rk4_arm import Rk4Arm
from metactl_ros.sim.rollout import for_learning, run_episode
from metactl_ros.sim.task import draw_evaluation
from training.learn.checkpoint import load_network
from training.learn.run import read_run

JUDGE_SEED = 7
JUDGE_ROLLOUTS = 4


def network_policy(network: Any) -> Policy:
    """Return the deterministic actor of a stable-baselines3 policy, batch first."""

    def policy(window: Array) -> Array:
        lead = window.shape[:-2]
        flat = torch.as_tensor(
            window.reshape(-1, window.shape[-2] * window.shape[-1]), dtype=torch.float32
        ).to(network.device)
        with torch.no_grad():
            action = network.actor(flat, deterministic=True)
        actions: Array = action.cpu().numpy().astype(np.float64)
        return actions.reshape(*lead, -1)

    return policy


def load_policy(run: Path) -> tuple[int, Policy]:
    """Return the window length and the deterministic policy of a finished run."""
    torch.set_num_threads(1)
    return read_run(run).window, network_policy(load_network(run))


def count_parameters(run: Path) -> int:
    """Return how many parameters the networks of a run have: actor, critic and target."""
    return sum(parameter.numel() for parameter in load_network(run).parameters())


def mean_rmse(settings: Settings, run: Any, policy: Policy | None) -> float:
    """Return the RMSE of a policy, or of the fixed gains, on a few rollouts of the RK4 plant, rad.

    Cheap enough to be asked during training; a full evaluation is training.evaluate.
    """
    context = replace(settings.controller.context, num_rows=run.window)
    controller = replace(for_learning(settings.controller), context=context)
    loop = ControlLoop(settings.arm, controller)
    world = settings.plant
    plant = Rk4Arm(
        settings.arm, world.friction, controller.law.rate_hz, world.payload_scale_per_kg
    )

    def fixed(window: Array) -> Array:
        return np.broadcast_to(loop.nominal_action, (*window.shape[:-2], loop.gain_map.size))

    found = []
    for payload in settings.plant.task.payload_levels_kg:
        episodes = draw_evaluation(
            settings.plant.task, JUDGE_SEED, payload, JUDGE_ROLLOUTS, run.tau_z
        )
        log = run_episode(plant, episodes, policy or fixed, loop, settings.episode_steps)
        found.append(tracking_rmse(log.q_desired_rad, log.q_rad))
    return float(np.mean(found))
