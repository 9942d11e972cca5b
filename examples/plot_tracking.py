# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""A picture of the tracking error and the effort, under fixed and under learned gains.

    python examples/plot_tracking.py [tracking.png]

One sees the reference and both arms, how far each is off, and that the learned efforts chatter:
nothing in the reward asked for smoothness. Both begin alike: for the first half second the window
of the policy fills, and the nominal gains hold the arm.
"""

from pathlib import Path
import sys

from metactl_ros.baselines import ConstantPolicy, load_learned
from metactl_ros.bench.plots import draw_tracking, Track
from metactl_ros.control.loop import ControlLoop
from metactl_ros.settings import load_settings, make_plant, shipped_policy
from metactl_ros.sim.rollout import run_episode
from metactl_ros.sim.task import draw_evaluation

settings = load_settings()
plant = make_plant('rk4', settings)
episode = draw_evaluation(
    settings.plant.task, seed=42, payload_kg=0.75, num_rollouts=1, tau_z_s=2.0
).of_arm(0)

bundle = load_learned(shipped_policy(), settings.arm, settings.controller)
fixed = ControlLoop(settings.arm, settings.controller)
learned = ControlLoop(settings.arm, bundle.controller)
logs = {
    'fixed gains': run_episode(plant, episode, ConstantPolicy(fixed.nominal_action), fixed, 1000),
    'learned gains': run_episode(plant, episode, bundle.policy, learned, 1000),
}
path = Path(sys.argv[1] if len(sys.argv) > 1 else 'tracking.png')
path.parent.mkdir(parents=True, exist_ok=True)
tracks = {
    label: Track(
        settings.arm.joint_names,
        log.time_s[:-1],  # the last instant has no effort
        log.q_rad[:-1],
        log.q_desired_rad[:-1],
        log.effort_nm,
        log.modes,
    )
    for label, log in logs.items()
}
draw_tracking('payload 0.75 kg, tau_z 2 s', tracks).savefig(path)
print(f'wrote {path}')
