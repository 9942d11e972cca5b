# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""One control step after another: a simulated two-link arm under fixed gains.

    python examples/fixed_gains.py

One sees the tracking error for three payloads. The model that the law computes its torques from
knows neither payload nor friction, and fixed gains cannot make up for that.
"""

import numpy as np

from metactl_ros.control.loop import ControlLoop
from metactl_ros.metrics import tracking_rmse
from metactl_ros.settings import load_settings, make_plant
from metactl_ros.signals import Array, seconds
from metactl_ros.sim.task import draw_evaluation

settings = load_settings()  # config/arm.yaml, plant.yaml, controller.yaml
plant = make_plant('rk4', settings)
loop = ControlLoop(settings.arm, settings.controller)


def policy(window: Array) -> Array:
    """Return the nominal gains as an action in [-1, 1], whatever the last half second was."""
    return loop.nominal_action


for payload_kg in (0.0, 0.75, 1.5):
    episode = draw_evaluation(
        settings.plant.task, seed=42, payload_kg=payload_kg, num_rollouts=1, tau_z_s=2.0
    ).of_arm(0)
    state = plant.reset(episode.start)
    reference = episode.reference.at(0.0)
    loop.reset(state)
    wanted, found = [reference.q_rad], [state.q_rad]
    for _ in range(1000):  # 10 s at 100 Hz
        window = loop.observe(state, reference, float(episode.payload_estimate_kg))
        step = loop.actuate(policy(window), state, reference, state.stamp_ns)
        state = plant.step(step.effort_nm)
        reference = episode.reference.at(seconds(state.stamp_ns))
        wanted.append(reference.q_rad)
        found.append(state.q_rad)
    rmse = float(tracking_rmse(np.array(wanted), np.array(found)))
    print(f'payload {payload_kg:4.2f} kg: RMSE {1000.0 * rmse:5.1f} mrad')
