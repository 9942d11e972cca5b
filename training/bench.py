# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""Measure speed on one core and write the figures to results/bench.json.

    python -m training.bench            # or: make bench

Timings are noisy, so things that are compared are measured in turns within one run, and the median
over the turns is kept.
"""

import argparse
from collections.abc import Callable, Sequence
import json
from pathlib import Path
import statistics
import time

import numpy as np
from rich.console import Console
from rich.table import Table

from metactl_ros.evaluation.result_file import write_json
from metactl_ros.plant.bullet_arm import BulletArm
from metactl_ros.plant.protocol import Plant
from metactl_ros.plant.rk4_arm import Rk4Arm
from metactl_ros.settings import load_settings, Settings
from metactl_ros.task import draw_evaluation

NUM_TURNS = 7
BATCH = 1024


def bench_plants(settings: Settings) -> dict[str, float]:
    """Return control steps per second of the PyBullet plant, and how much faster RK4 batches are.

    The efforts hold the arm up, so that neither plant leaves its usual speeds.
    """
    friction, rate_hz = settings.plant.friction, settings.controller.law.rate_hz
    episodes = draw_evaluation(settings.plant.task, 42, 0.75, BATCH, 2.0)
    bullet = BulletArm(settings.arm, friction, rate_hz, settings.plant.substep_hz)
    rk4 = Rk4Arm(settings.arm, friction, rate_hz)
    effort_nm = np.array([60.0, 15.0])
    bullet_rates, rk4_rates = [], []
    for _ in range(NUM_TURNS):
        bullet.reset(episodes.of_arm(0).start)
        rk4.reset(episodes.start)
        bullet_rates.append(1.0 / _seconds_per_step(bullet, effort_nm, 500))
        rk4_rates.append(BATCH / _seconds_per_step(rk4, np.tile(effort_nm, (BATCH, 1)), 100))
    bullet.close()
    ratios = [fast / slow for fast, slow in zip(rk4_rates, bullet_rates, strict=True)]
    return {
        'plant_bullet_steps_per_s': statistics.median(bullet_rates),
        'plant_rk4_steps_per_s_n1024': statistics.median(rk4_rates),
        'plant_rk4_ratio_n1024': statistics.median(ratios),
    }


def _seconds_per_step(plant: Plant, effort_nm: np.ndarray, num_steps: int) -> float:
    begin = time.perf_counter()
    for _ in range(num_steps):
        plant.step(effort_nm)
    return (time.perf_counter() - begin) / num_steps


BENCHMARKS: tuple[Callable[[Settings], dict[str, float]], ...] = (bench_plants,)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run every benchmark and write the figures."""
    parser = argparse.ArgumentParser(
        prog='python -m training.bench',
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument('--out', type=Path, default=Path('results/bench.json'))
    args = parser.parse_args(arguments)
    settings, console = load_settings(), Console()
    figures = json.loads(args.out.read_text()) if args.out.is_file() else {}
    for benchmark in BENCHMARKS:
        with console.status(f'{benchmark.__name__} ...'):
            figures |= benchmark(settings)
    write_json(args.out, figures)
    table = Table(title=str(args.out))
    table.add_column('figure')
    table.add_column('value', justify='right')
    for name, value in figures.items():
        table.add_row(name, f'{value:,.1f}')
    console.print(table)
    return 0


if __name__ == '__main__':
    raise SystemExit(main())
