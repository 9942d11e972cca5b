# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""A policy of your own, and the shield that keeps it admissible.

    python examples/own_policy.py

A policy is a function from a window, shape (..., W, F), to an action in [-1, 1], shape (..., m).
The first is written by hand: as stiff as the box allows, with a bias that follows the mean error
over the window. The second is a bad idea: soft, and pushing the wrong way. One sees how many of
the proposals are not admissible, and that the Lyapunov condition holds all the same at every step,
unless the shield only counts. A shield makes a bad policy admissible, not good.
"""

import numpy as np

from metactl_ros.control.loop import ControlLoop
from metactl_ros.control.shield import Enforcement
from metactl_ros.metrics import tracking_rmse
from metactl_ros.settings import load_settings, make_plant
from metactl_ros.signals import Array
from metactl_ros.sim.rollout import for_learning, run_episode
from metactl_ros.sim.task import draw_evaluation


def stiff_with_bias(window: Array) -> Array:
    """Return K_d, Lambda, bias and Coulomb weight of both joints, each in [-1, 1]."""
    q, q_desired = window[..., 0:2], window[..., 4:6]  # rad; see feature_names()
    bias = np.clip(20.0 * np.mean(q_desired - q, axis=-2), -1.0, 1.0)
    ones = np.ones_like(bias)
    return np.concatenate([ones, -ones, bias, 0.3 * ones], axis=-1)


def soft_and_wrong(window: Array) -> Array:
    """Return the softest gains of the box, and the bias of the first with the wrong sign."""
    return -stiff_with_bias(window)


settings = load_settings()
plant = make_plant('rk4', settings)
controller = for_learning(settings.controller)  # no warm-up, and no guard that would end it
episodes = draw_evaluation(
    settings.plant.task, seed=42, payload_kg=0.0, num_rollouts=20, tau_z_s=2.0
)
shields: tuple[Enforcement, ...] = ('enforce', 'count')  # the latter only counts
for policy in (stiff_with_bias, soft_and_wrong):
    for shield in shields:
        loop = ControlLoop(settings.arm, controller, shield)
        log = run_episode(plant, episodes, policy, loop, num_steps=250)
        rmse = tracking_rmse(log.q_desired_rad, log.q_rad).mean()
        share = 100.0 * log.was_moved.mean()
        print(
            f'{policy.__name__:15} {shield:7}: {share:4.1f} % inadmissible, '
            f'V_dot + alpha (V - v_0) <= {log.excess.max():5.2f}, RMSE {1000.0 * rmse:5.1f} mrad'
        )
