# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""Evaluate a controller: five payloads, twenty rollouts each, on either plant.

    python -m training.evaluate --controller ct --plant rk4 --tau-z 1 2 5

Beside the error of the controller itself, every evaluation runs two twins on the same episodes, so
that one can see what memory costs: one on an arm without memory (z = 0), and one whose controller
is told z exactly and feeds it forward on top of the same gains.
"""

import argparse
from collections.abc import Sequence
from concurrent.futures import as_completed, ProcessPoolExecutor
from dataclasses import dataclass
import multiprocessing
import os
from pathlib import Path
from typing import Any, get_args, Literal, TypeAlias

import numpy as np
from rich.box import SIMPLE
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from metactl_ros.control.loop import ControlLoop
from metactl_ros.errors import MetactlError
from metactl_ros.evaluation.metrics import delta_percent, tracking_rmse
from metactl_ros.evaluation.result_file import provenance, write_json
from metactl_ros.evaluation.rollout import Policy, run_episode
from metactl_ros.evaluation.twins import (
    fixed_gain_twin,
    settings_of_twin,
    Twin,
    TWINS,
)
from metactl_ros.plant.factory import make_plant, PlantName
from metactl_ros.plant.protocol import Plant
from metactl_ros.settings import load_settings, Settings
from metactl_ros.signals import Array
from metactl_ros.task import draw_evaluation, Episode

ControllerName: TypeAlias = Literal['ct']

# The paper's baseline RMSE, printed beside ours.
PAPER_BASELINE_RAD = {1.0: 0.1317, 2.0: 0.1317, 5.0: 0.1311}


@dataclass(frozen=True, kw_only=True, slots=True)
class Trial:
    """One controller on one plant, at one payload: the unit of parallel work."""

    controller: ControllerName
    plant: PlantName
    twin: Twin
    tau_z_s: float
    seed: int
    payload_kg: float
    num_rollouts: int
    num_steps: int


@dataclass(frozen=True, slots=True)
class TrialResult:
    """What came of a trial, one entry per rollout."""

    rmse_rad: Array
    peak_effort_nm: Array
    limited_share: Array
    """Share of steps whose effort a limit changed."""
    shield_activation: Array
    """Share of steps whose proposal the shield moved or replaced."""


def run_trial(settings: Settings, trial: Trial) -> TrialResult:
    """Run the rollouts of a trial: as one batch on the RK4 plant, one by one in PyBullet."""
    settings = settings_of_twin(settings, trial.twin)
    episodes = draw_evaluation(
        settings.plant.task, trial.seed, trial.payload_kg, trial.num_rollouts, trial.tau_z_s
    )
    plant = make_plant(trial.plant, settings)
    loop, policy = fixed_gain_twin(settings, plant, trial.twin)
    try:
        return _concatenate(
            [
                _run(plant, episode, policy, loop, trial.num_steps)
                for episode in _batches(episodes, trial)
            ]
        )
    finally:
        plant.close()


def _batches(episodes: Episode, trial: Trial) -> list[Episode]:
    if trial.plant == 'rk4':
        return [episodes]
    return [episodes.of_arm(index) for index in range(trial.num_rollouts)]


def _run(
    plant: Plant, episode: Episode, policy: Policy, loop: ControlLoop, num_steps: int
) -> TrialResult:
    log = run_episode(plant, episode, policy, loop, num_steps)
    return TrialResult(
        rmse_rad=np.atleast_1d(tracking_rmse(log.q_desired_rad, log.q_rad)),
        peak_effort_nm=np.atleast_2d(np.abs(log.effort_nm).max(axis=0)),
        limited_share=np.atleast_1d(log.is_limited.any(axis=-1).mean(axis=0)),
        shield_activation=np.atleast_1d(log.was_moved.mean(axis=0)),
    )


def _concatenate(results: list[TrialResult]) -> TrialResult:
    return TrialResult(
        rmse_rad=np.concatenate([result.rmse_rad for result in results]),
        peak_effort_nm=np.concatenate([result.peak_effort_nm for result in results]),
        limited_share=np.concatenate([result.limited_share for result in results]),
        shield_activation=np.concatenate([result.shield_activation for result in results]),
    )


def run_trials(
    settings: Settings, trials: Sequence[Trial], num_jobs: int, console: Console
) -> list[TrialResult]:
    """Run trials in a pool of processes under a progress bar; results in the order of trials."""
    columns = (
        TextColumn('{task.description}'),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
    )
    # spawn, not fork: a physics client must not be inherited.
    context = multiprocessing.get_context('spawn')
    results: dict[int, TrialResult] = {}
    with (
        Progress(*columns, console=console) as progress,
        ProcessPoolExecutor(max_workers=num_jobs, mp_context=context) as pool,
    ):
        bar = progress.add_task('rollouts', total=len(trials))
        futures = {pool.submit(run_trial, settings, t): i for i, t in enumerate(trials)}
        for future in as_completed(futures):
            results[futures[future]] = future.result()
            progress.advance(bar)
    return [results[index] for index in range(len(trials))]


def summarise(
    settings: Settings, trials: Sequence[Trial], results: Sequence[TrialResult]
) -> dict[str, Any]:
    """Return the record of one (controller, plant, tau_z, seed) from its trials and twins.

    RMSE is averaged over the rollouts that did not diverge; how many did is in the record, and if
    all of a payload did, its RMSE is null.
    """
    first = trials[0]
    by_twin = {
        twin: [r.rmse_rad for t, r in zip(trials, results, strict=True) if t.twin == twin]
        for twin in TWINS
    }
    means = {
        twin: [_finite_mean(rmse) for rmse in by_payload] for twin, by_payload in by_twin.items()
    }
    rmse = {twin: _mean_or_none(by_payload) for twin, by_payload in means.items()}
    own = [r for t, r in zip(trials, results, strict=True) if t.twin == 'itself']
    return {
        'controller': first.controller,
        'plant': first.plant,
        'tau_z': first.tau_z_s,
        'seed': first.seed,
        'num_parameters': 0,
        'rmse': rmse['itself'],
        'payload_levels_kg': list(settings.plant.task.payload_levels_kg),
        'rmse_by_payload': means['itself'],
        'rmse_std_by_payload': [_finite_std(rmse) for rmse in by_twin['itself']],
        'baseline_rmse': rmse['itself'],
        'delta_percent': _delta(rmse['itself'], rmse['itself']),
        'rmse_without_memory': rmse['without_memory'],
        'rmse_knowing_memory': rmse['knowing_memory'],
        'memory_share_percent': _share(rmse['itself'], rmse['knowing_memory']),
        'num_rollouts_per_payload': first.num_rollouts,
        'num_steps': first.num_steps,
        'num_diverged': int(sum(np.sum(~np.isfinite(r.rmse_rad)) for r in own)),
        'peak_effort_nm': np.max([r.peak_effort_nm.max(axis=0) for r in own], axis=0).tolist(),
        'limited_share': float(np.mean([r.limited_share for r in own])),
        'shield_activation': float(np.mean([r.shield_activation for r in own])),
        **provenance(settings),
    }


def _finite_mean(values: Array) -> float | None:
    finite = values[np.isfinite(values)]
    return float(finite.mean()) if finite.size else None


def _finite_std(values: Array) -> float | None:
    finite = values[np.isfinite(values)]
    return float(finite.std(ddof=1)) if finite.size > 1 else None


def _mean_or_none(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return float(np.mean(known)) if known and len(known) == len(values) else None


def _delta(rmse: float | None, baseline: float | None) -> float | None:
    return None if rmse is None or baseline is None else delta_percent(rmse, baseline)


def _share(rmse: float | None, knowing: float | None) -> float | None:
    """Return how much of the error vanishes when the controller knows the memory, in percent."""
    delta = _delta(knowing, rmse)
    return None if delta is None else -delta


def print_table(records: Sequence[dict[str, Any]], console: Console) -> None:
    """Show one row per record.

    `z = 0` is the twin without memory, `z told` the one whose controller knows it;
    `memory` is the share of the error that vanishes when the controller knows z; `lost` counts
    diverged rollouts.
    """
    table = Table(
        title='Tracking RMSE in rad, mean over payloads and rollouts',
        box=SIMPLE,
        padding=0,
        pad_edge=False,
    )
    for heading in ('', 'plant', 'tau_z', 'seed', 'RMSE', 'paper', 'by payload'):
        table.add_column(heading, no_wrap=True)
    for heading in ('delta', 'z = 0', 'z told', 'memory', 'lost'):
        table.add_column(heading, justify='right', no_wrap=True)
    for r in records:
        by_payload = r['rmse_by_payload']
        table.add_row(
            r['controller'],
            r['plant'],
            f'{r["tau_z"]:g} s',
            str(r['seed']),
            _text(r['rmse'], 4),
            _text(PAPER_BASELINE_RAD.get(r['tau_z']), 4),
            f'{_text(by_payload[0], 3)}-{_text(by_payload[-1], 3)}',
            f'{_text(r["delta_percent"], 1)} %',
            _text(r['rmse_without_memory'], 4),
            _text(r['rmse_knowing_memory'], 4),
            f'{_text(r["memory_share_percent"], 0)} %',
            str(r['num_diverged']),
        )
    console.print(table)


def _text(value: float | None, digits: int) -> str:
    return '-' if value is None else f'{value:.{digits}f}'


def parse_args(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Return the command line as a namespace."""
    parser = argparse.ArgumentParser(
        prog='python -m training.evaluate',
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        '--controller',
        choices=get_args(ControllerName),
        default='ct',
        help='ct: computed torque with fixed gains, the baseline (default: %(default)s)',
    )
    parser.add_argument(
        '--plant',
        choices=get_args(PlantName),
        default='rk4',
        help='rk4: fast, vectorised; bullet: PyBullet with 1 kHz sub-steps (default: %(default)s)',
    )
    parser.add_argument(
        '--tau-z',
        type=_positive_number,
        nargs='+',
        default=[1.0, 2.0, 5.0],
        metavar='S',
        help='memory horizons in seconds (default: 1 2 5)',
    )
    parser.add_argument(
        '--seed', type=int, nargs='+', default=[42], help='evaluation seeds (default: 42)'
    )
    parser.add_argument(
        '--rollouts', type=_positive_count, default=20, help='per payload (default: %(default)s)'
    )
    parser.add_argument(
        '--out',
        type=Path,
        default=Path('runs/evaluate'),
        help='folder for one JSON file per (controller, tau_z, seed) (default: %(default)s)',
    )
    parser.add_argument('--json', type=Path, metavar='FILE', help='also write all records, a list')
    parser.add_argument(
        '--jobs',
        type=_positive_count,
        default=os.cpu_count(),
        help='processes to run side by side (default: all cores)',
    )
    parser.add_argument('--arm', type=Path, help='another arm.yaml')
    parser.add_argument('--world', type=Path, help='another plant.yaml')
    return parser.parse_args(arguments)


def _positive_number(text: str) -> float:
    value = float(text)
    if not (np.isfinite(value) and value > 0.0):
        raise argparse.ArgumentTypeError(f'expected a finite number above 0, found {text}')
    return value


def _positive_count(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f'expected a whole number above 0, found {text}')
    return value


def evaluate(args: argparse.Namespace, console: Console) -> list[dict[str, Any]]:
    """Run what the command line asks for; write the files and return the records."""
    settings = load_settings(arm=args.arm, plant=args.world)
    task = settings.plant.task
    cells = [
        [
            Trial(
                controller=args.controller,
                plant=args.plant,
                twin=twin,
                tau_z_s=tau_z,
                seed=seed,
                payload_kg=payload,
                num_rollouts=args.rollouts,
                num_steps=settings.episode_steps,
            )
            for twin in TWINS
            for payload in task.payload_levels_kg
        ]
        for tau_z in args.tau_z
        for seed in args.seed
    ]
    results = run_trials(settings, [t for cell in cells for t in cell], args.jobs, console)
    records = []
    for index, cell in enumerate(cells):
        own = results[index * len(cell) : (index + 1) * len(cell)]
        record = summarise(settings, cell, own)
        name = f'{args.controller}_{args.plant}_tau{cell[0].tau_z_s:g}_seed{cell[0].seed}.json'
        write_json(args.out / name, record)
        records.append(record)
    if args.json:
        write_json(args.json, records)
    return records


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
    args = parse_args(arguments)
    console = Console(stderr=True)
    try:
        records = evaluate(args, console)
    except MetactlError as error:
        console.print(f'[red]error:[/red] {error}', highlight=False)
        return 2
    print_table(records, Console())
    console.print(f'{len(records)} result files in {args.out}', highlight=False)
    return 0


if __name__ == '__main__':
    raise SystemExit(main())
