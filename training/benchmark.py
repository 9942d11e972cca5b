# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""Judge learned and classical controllers in every regime, with the same plant and statistics.

    python -m training.benchmark                  # everything: results/, docs/benchmark.md
    python -m training.benchmark --regime tau_2 delay_20ms --out runs/some.json

Every controller runs on the same episodes, once under the shield, as in the node, and once with
the shield only counting. Rivals come from config/classical/ (python -m training.tune) as tuned for
the sensors of the regime, on other seeds, payloads and references; learned policies are as they
were trained, with ideal sensors. Cells that are done are kept in --cells and not run again.
"""

import argparse
from collections.abc import Sequence
from concurrent.futures import as_completed, ProcessPoolExecutor
from dataclasses import asdict
import functools
import hashlib
import json
import multiprocessing
import os
from pathlib import Path
import time
from typing import Any, NamedTuple

import numpy as np
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

import metactl_ros
from metactl_ros.baselines import load_rivals, Rival, RIVALS
from metactl_ros.control.shield import Enforcement
from metactl_ros.errors import MetactlError
from metactl_ros.plants import PlantName
from metactl_ros.result_file import provenance, write_json
from metactl_ros.settings import load_settings, share_directory, shipped_policies
from training.arguments import complain
from training.judge import contest
from training.judge.benchmark_page import write_page
from training.judge.contest import Outcome, play, Player
from training.judge.regimes import (
    Benchmark,
    Cases,
    draw_cases,
    load_benchmark,
    Regime,
    settings_in,
)

ENFORCEMENTS: tuple[Enforcement, ...] = ('enforce', 'count')
SPOT_REGIMES = ('tau_2', 'delay_20ms')
"""Judged in PyBullet, too, on fewer episodes."""
SPOT_ROLLOUTS = 2


class Cell(NamedTuple):
    """One controller in one regime."""

    player: Player
    regime: Regime
    enforcement: Enforcement
    plant: PlantName
    cases: Cases
    peak_nm: tuple[float, ...]
    """Of ct with ideal motors."""

    @property
    def name(self) -> str:
        """What tells it from other cells, and from itself with other inputs."""
        parts = (self.player.name, self.regime.name, self.enforcement, self.plant)
        bundle = self.player.bundle
        sums = '' if bundle is None else (bundle / 'SHA256SUMS').read_text(encoding='ascii')
        inputs = (
            self.player.rival,
            self.regime,
            self.cases,
            self.peak_nm,
            sums,
            load_settings(),
            hash_of_code(),
        )
        return '_'.join((*parts, hashlib.sha256(repr(inputs).encode()).hexdigest()[:12]))


@functools.cache
def hash_of_code() -> str:
    """Return the hash of all code that decides a cell."""
    folder = Path(metactl_ros.__file__).parent
    files = [*sorted(folder.rglob('*.py')), Path(contest.__file__), Path(__file__)]
    return hashlib.sha256(b''.join(file.read_bytes() for file in files)).hexdigest()


def run_cell(cell: Cell) -> dict[str, Any]:
    """Return the record of a cell."""
    regime, cases = cell.regime, cell.cases
    settings = settings_in(load_settings(), regime, cell.peak_nm)
    episodes = draw_cases(settings, regime, cases)
    num_steps = round(regime.duration_s * settings.controller.law.rate_hz)
    began_s = time.perf_counter()
    outcome = play(settings, episodes, cell.player, num_steps, cell.enforcement, cell.plant)
    return {
        'controller': cell.player.name,
        'regime': regime.name,
        'enforcement': cell.enforcement,
        'plant': cell.plant,
        **summarise(outcome, cases),
        'took_s': time.perf_counter() - began_s,
    }


def summarise(outcome: Outcome, cases: Cases) -> dict[str, Any]:
    """Return the figures of a cell; none where an arm was lost, because survivors would flatter.

    `rmse_by_rollout` has the mean over the payloads, one entry per phase: the unit of resampling.
    """
    is_lost = outcome.is_lost | ~np.isfinite(outcome.rmse_rad)
    table = outcome.rmse_rad.reshape(len(cases.payloads_kg), cases.rollouts)
    is_known = not is_lost.any()
    return {
        'num_rollouts': len(outcome.rmse_rad),
        'num_failures': int(is_lost.sum()),
        'rmse': float(table.mean()) if is_known else None,
        'rmse_by_rollout': table.mean(axis=0).tolist() if is_known else None,
        'rmse_by_payload': table.mean(axis=1).tolist() if is_known else None,
        'peak_effort_nm': outcome.peak_effort_nm.max(axis=0).tolist(),
        'variation_nmps': float(outcome.variation_nmps.mean()),
        'shield_activation': float(outcome.shield_activation.mean()),
    }


def players(sensors: str) -> list[Player]:
    """Return everyone who takes part, the rivals as tuned for a kind of sensors."""
    file = share_directory() / 'config' / 'classical' / f'{sensors}.yaml'
    rivals = load_rivals(file)
    tuned: list[tuple[str, Rival]] = [(name, getattr(rivals, name)) for name in RIVALS]
    classical = [Player('ct'), *(Player(name, rival) for name, rival in tuned)]
    learned = [Player(path.stem, bundle=path) for path in shipped_policies()]
    return [*classical[:-1], *learned, classical[-1]]  # the oracle comes last


def cells_of(
    benchmark: Benchmark, regimes: Sequence[Regime], peak_nm: tuple[float, ...]
) -> list[Cell]:
    """Return all cells: RK4 with both ways of the shield, and spot checks in PyBullet."""
    cases = benchmark.judging
    few = cases.__class__(**{**asdict(cases), 'rollouts': SPOT_ROLLOUTS})
    cells = []
    for regime in regimes:
        for player in players(regime.tuned_for):
            for enforcement in ENFORCEMENTS:
                cells.append(Cell(player, regime, enforcement, 'rk4', cases, peak_nm))
            if regime.name in SPOT_REGIMES:
                cells += [
                    Cell(player, regime, 'enforce', plant, few, peak_nm)
                    for plant in ('rk4', 'bullet')
                ]
    return cells


def baseline_peak(benchmark: Benchmark) -> tuple[float, ...]:
    """Return the peak effort of ct with ideal motors, one per joint, N m."""
    settings = load_settings()
    regime = benchmark.regime(benchmark.sensors.nominal)
    episodes = draw_cases(settings, regime, benchmark.tuning)
    outcome = play(settings, episodes, Player('ct'), settings.episode_steps)
    return tuple(round(float(peak), 1) for peak in outcome.peak_effort_nm.max(axis=0))


def run_cells(
    cells: Sequence[Cell], folder: Path, num_processes: int, console: Console
) -> list[dict[str, Any]]:
    """Run the cells that are not done in a pool of processes, under a progress bar."""
    files = [folder / f'{cell.name}.json' for cell in cells]
    left = [i for i, file in enumerate(files) if not file.is_file()]
    columns = (
        TextColumn('{task.description}'),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
    )
    with (
        Progress(*columns, console=console) as progress,
        ProcessPoolExecutor(num_processes, multiprocessing.get_context('spawn')) as pool,
    ):
        bar = progress.add_task('cells', total=len(cells), completed=len(cells) - len(left))
        longest_first = sorted(left, key=lambda i: -cells[i].regime.duration_s)
        futures = {pool.submit(run_cell, cells[i]): i for i in longest_first}
        for future in as_completed(futures):
            write_json(files[futures[future]], future.result())
            progress.advance(bar)
    return [json.loads(file.read_text(encoding='utf-8')) for file in files]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
    console = Console(stderr=True)
    benchmark = load_benchmark()
    names = [regime.name for regime in benchmark.regimes]
    parser = argparse.ArgumentParser(
        prog='python -m training.benchmark',
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add('--regime', nargs='+', choices=names, default=names, help='(all)')
    add('--out', type=Path, default=Path('results/benchmark.json'), help='(%(default)s)')
    add('--page', type=Path, default=Path('docs/benchmark.md'), help='(%(default)s)')
    add('--cells', type=Path, default=Path('runs/benchmark'), help='(%(default)s)')
    add('--jobs', type=int, default=os.cpu_count(), help='processes side by side (all cores)')
    args = parser.parse_args(arguments)
    regimes = [regime for regime in benchmark.regimes if regime.name in args.regime]
    began_s = time.perf_counter()
    try:
        peak_nm = baseline_peak(benchmark)
        records = run_cells(cells_of(benchmark, regimes, peak_nm), args.cells, args.jobs, console)
    except MetactlError as error:
        complain(console, error)
        return 2
    result = {
        'regimes': [asdict(regime) for regime in regimes],
        'judging': asdict(benchmark.judging),
        'ct_peak_effort_nm': list(peak_nm),
        'learned': [path.stem for path in shipped_policies()],
        'cells': records,
        'cell_seconds': sum(record['took_s'] for record in records),
        **provenance(load_settings()),
    }
    write_json(args.out, result)
    write_page(args.page, result)
    console.print(
        f'{args.out} and {args.page} written after {time.perf_counter() - began_s:.0f} s',
        highlight=False,
    )
    return 0


if __name__ == '__main__':
    raise SystemExit(main())
