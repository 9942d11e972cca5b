# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""The demonstration behind `make demo`: what memory in the friction does to fixed gains."""

from pathlib import Path

from rich.console import Console
from rich.table import Table

from metactl_ros.evaluation.metrics import tracking_rmse
from metactl_ros.evaluation.plots import plot_tracking
from metactl_ros.evaluation.result_file import provenance, write_json
from metactl_ros.evaluation.rollout import run_episode
from metactl_ros.evaluation.twins import fixed_gain_twin, settings_of_twin, TWINS
from metactl_ros.plant.factory import make_plant
from metactl_ros.settings import load_settings
from metactl_ros.task import draw_evaluation

LABELS = {
    'itself': 'fixed gains',
    'without_memory': 'fixed gains, friction without memory',
    'knowing_memory': 'fixed gains, memory known and fed forward',
}


def run_demo(folder: Path, seed: int, payload_kg: float) -> None:
    """Run the baseline and its two twins in PyBullet; write a picture and a summary."""
    settings = load_settings()
    task = settings.plant.task
    episode = draw_evaluation(task, seed, payload_kg, 1, task.tau_z_s).of_arm(0)
    logs = {}
    for twin in TWINS:
        world = settings_of_twin(settings, twin)
        plant = make_plant('bullet', world)
        loop, policy = fixed_gain_twin(world, plant, twin)
        logs[LABELS[twin]] = run_episode(plant, episode, policy, loop, settings.episode_steps)
        plant.close()
    rmse = {
        label: float(tracking_rmse(log.q_desired_rad, log.q_rad)) for label, log in logs.items()
    }
    picture = folder / 'demo.png'
    plot_tracking(
        picture, f'PyBullet arm, payload {payload_kg:g} kg, tau_z {task.tau_z_s:g} s', logs
    )
    summary = folder / 'summary.json'
    write_json(
        summary,
        {'rmse': rmse, 'seed': seed, 'payload_kg': payload_kg, **provenance(settings)},
    )
    table = Table(title=f'Tracking RMSE over {settings.controller.context.horizon_s:g} s')
    table.add_column('controller and arm')
    table.add_column('rad', justify='right')
    for label, value in rmse.items():
        table.add_row(label, f'{value:.4f}')
    console = Console()
    console.print(table)
    console.print(f'picture: {picture}\nsummary: {summary}', highlight=False)
