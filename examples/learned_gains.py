# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""The shipped policy against fixed gains, and against computed torque with integral action.

    python examples/learned_gains.py

One sees that the learned gains, with a bank of observers, track far better than the fixed ones and
better than the integrator, and how often the shield had to move what each proposed.
"""

from metactl_ros.baselines import ConstantPolicy, load_classical, load_learned
from metactl_ros.control.loop import ControlLoop
from metactl_ros.metrics import tracking_rmse
from metactl_ros.settings import load_settings, make_plant, shipped_policy
from metactl_ros.sim.rollout import run_episode, without_warmup
from metactl_ros.sim.task import draw_evaluation

PAYLOAD_KG = 0.75

settings = load_settings()
plant = make_plant('rk4', settings)
episodes = draw_evaluation(
    settings.plant.task, seed=42, payload_kg=PAYLOAD_KG, num_rollouts=10, tau_z_s=2.0
)
# Refused unless it is sealed, was made for this arm and law, and reproduces its golden vectors.
bundle = load_learned(shipped_policy(), settings.arm, settings.controller)
integral = load_classical('ct_integral', settings.controller, None, PAYLOAD_KG)
controllers = {
    'fixed gains': (settings.controller, None),
    'learned gains': (bundle.controller, bundle.policy),
    'with integral action': (integral.controller, integral.policy),
}

for name, (controller, policy) in controllers.items():
    loop = ControlLoop(settings.arm, without_warmup(controller))
    chosen = policy or ConstantPolicy(loop.nominal_action)
    log = run_episode(plant, episodes, chosen, loop, settings.episode_steps)
    rmse = tracking_rmse(log.q_desired_rad, log.q_rad).mean()
    moved = 100.0 * log.was_moved.mean()
    print(f'{name:20}: RMSE {1000.0 * rmse:5.1f} mrad, shield moved {moved:4.1f} % of proposals')
