# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""Judge learned and classical controllers in every regime, with the same plant and statistics.

    python -m training.benchmark                  # everything: results/, docs/benchmark.md
    python -m training.benchmark --regime tau_2 delay_20ms --out runs/some.json

Every controller runs on the same episodes, once under the shield, as in the node, and once with
the shield only counting. Classical gains come from config/classical/ (python -m training.tune) as
tuned for the sensors of the regime, on other seeds, payloads and references; learned policies are
as they were trained, with ideal sensors. Cells that are done are kept in --cells, and not run
again.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
import functools
import hashlib
import json
import os
from pathlib import Path
import time
from typing import Any

import numpy as np
from rich.console import Console

import metactl_ros
from metactl_ros.baselines import CLASSICAL, ControllerSpec, load_spec
from metactl_ros.control.shield import Enforcement
from metactl_ros.files import write_json
from metactl_ros.settings import load_settings, provenance, share_directory, shipped_policies
from training.arguments import command_parser, refusing
from training.judge import rollouts
from training.judge.benchmark_page import write_page
from training.judge.regimes import (
    Benchmark,
    Cases,
    draw_cases,
    load_benchmark,
    Regime,
    settings_in,
)
from training.judge.rollouts import Conditions, evaluate_controller, Rollouts
from training.pool import run_jobs

ENFORCEMENTS: tuple[Enforcement, ...] = ('enforce', 'count')
SPOT_REGIMES = ('tau_2', 'delay_20ms')
"""Judged in PyBullet, too, on fewer episodes."""
SPOT_ROLLOUTS = 2


@dataclass(frozen=True, kw_only=True, slots=True)
class Cell:
    """One controller in one regime."""

    spec: ControllerSpec
    regime: Regime
    conditions: Conditions
    cases: Cases
    peak_nm: tuple[float, ...]
    """Of ct with ideal motors."""


def file_of(cell: Cell) -> str:
    """Return the name of a cell's file: it changes with everything that decides the figures."""
    spec, conditions = cell.spec, cell.conditions
    sums = (spec.learned / 'SHA256SUMS').read_text(encoding='ascii') if spec.learned else ''
    inputs = (spec.baseline, cell.regime, cell.cases, cell.peak_nm, sums)
    known = repr((*inputs, load_settings(), hash_of_code()))
    parts = (spec.name, cell.regime.name, conditions.enforcement, conditions.plant)
    return f'{"_".join(parts)}_{hashlib.sha256(known.encode()).hexdigest()[:12]}.json'


@functools.cache
def hash_of_code() -> str:
    """Return the hash of all code that decides a cell; read once, however many cells."""
    folder = Path(metactl_ros.__file__).parent
    files = [*sorted(folder.rglob('*.py')), Path(rollouts.__file__), Path(__file__)]
    return hashlib.sha256(b''.join(file.read_bytes() for file in files)).hexdigest()


def run_cell(cell: Cell) -> dict[str, Any]:
    """Return the record of a cell."""
    regime, cases = cell.regime, cell.cases
    settings = settings_in(load_settings(), regime, cell.peak_nm)
    episodes = draw_cases(settings, regime, cases)
    num_steps = round(regime.duration_s * settings.controller.law.rate_hz)
    began_s = time.perf_counter()
    found = evaluate_controller(cell.spec, settings, episodes, num_steps, cell.conditions)
    return {
        'controller': cell.spec.name,
        'regime': regime.name,
        'enforcement': cell.conditions.enforcement,
        'plant': cell.conditions.plant,
        **summarise(found, cases),
        'took_s': time.perf_counter() - began_s,
    }


def summarise(found: Rollouts, cases: Cases) -> dict[str, Any]:
    """Return the figures of a cell; none where an arm was lost, because survivors would flatter.

    `rmse_by_rollout` has the mean over the payloads, one entry per phase: the unit of resampling.
    """
    is_lost = found.is_lost | ~np.isfinite(found.rmse_rad)
    table = found.rmse_rad.reshape(len(cases.payloads_kg), cases.rollouts)
    is_known = not is_lost.any()
    return {
        'num_rollouts': len(found.rmse_rad),
        'num_failures': int(is_lost.sum()),
        'rmse': float(table.mean()) if is_known else None,
        'rmse_by_rollout': table.mean(axis=0).tolist() if is_known else None,
        'rmse_by_payload': table.mean(axis=1).tolist() if is_known else None,
        'peak_effort_nm': found.peak_effort_nm.max(axis=0).tolist(),
        'variation_nmps': float(found.variation_nmps.mean()),
        'shield_activation': float(found.shield_activation.mean()),
    }


def controllers(sensors: str) -> list[ControllerSpec]:
    """Return every controller that is compared, the classical ones tuned for a kind of sensors.

    The one that knows its plant comes last.
    """
    file = share_directory() / 'config' / 'classical' / f'{sensors}.yaml'
    classical = [load_spec(name, file) for name in CLASSICAL]
    learned = [ControllerSpec(path.stem, learned=path) for path in shipped_policies()]
    return sorted([*classical, *learned], key=lambda spec: spec.knows_plant)


def cells_of(
    benchmark: Benchmark, regimes: Sequence[Regime], peak_nm: tuple[float, ...]
) -> list[Cell]:
    """Return all cells: RK4 with both ways of the shield, and spot checks in PyBullet."""
    cases = benchmark.judging
    full = [(Conditions(enforcement=how), cases) for how in ENFORCEMENTS]
    few = replace(cases, rollouts=SPOT_ROLLOUTS)
    spot = [(Conditions(), few), (Conditions(plant='bullet'), few)]
    return [
        Cell(spec=spec, regime=regime, conditions=conditions, cases=own, peak_nm=peak_nm)
        for regime in regimes
        for spec in controllers(regime.tuned_for)
        for conditions, own in (*full, *(spot if regime.name in SPOT_REGIMES else ()))
    ]


def baseline_peak(benchmark: Benchmark) -> tuple[float, ...]:
    """Return the peak effort of ct with ideal motors, one per joint, N m."""
    settings = load_settings()
    regime = benchmark.regime(benchmark.sensors.nominal)
    episodes = draw_cases(settings, regime, benchmark.tuning)
    spec = ControllerSpec('ct')
    found = evaluate_controller(spec, settings, episodes, settings.episode_steps)
    return tuple(round(float(peak), 1) for peak in found.peak_effort_nm.max(axis=0))


def run_cells(
    cells: Sequence[Cell], folder: Path, num_processes: int, console: Console
) -> list[dict[str, Any]]:
    """Run the cells that are not done, the longest first; return the records of all."""
    files = [folder / file_of(cell) for cell in cells]
    left = [(cell, file) for cell, file in zip(cells, files, strict=True) if not file.is_file()]
    left.sort(key=lambda row: -row[0].regime.duration_s)
    run_jobs(
        run_cell,
        [(cell,) for cell, _ in left],
        num_processes,
        console,
        title='cells',
        num_done=len(cells) - len(left),
        on_result=lambda index, record: write_json(left[index][1], record),
    )
    return [json.loads(file.read_text(encoding='utf-8')) for file in files]


@refusing
def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
    console = Console(stderr=True)
    benchmark = load_benchmark()
    names = [regime.name for regime in benchmark.regimes]
    parser = command_parser('benchmark', __doc__)
    add = parser.add_argument
    add('--regime', nargs='+', choices=names, default=names, help='(all)')
    add('--out', type=Path, default=Path('results/benchmark.json'), help='(%(default)s)')
    add('--page', type=Path, default=Path('docs/benchmark.md'), help='(%(default)s)')
    add('--cells', type=Path, default=Path('runs/benchmark'), help='(%(default)s)')
    add('--jobs', type=int, default=os.cpu_count(), help='processes side by side (all cores)')
    args = parser.parse_args(arguments)
    regimes = [regime for regime in benchmark.regimes if regime.name in args.regime]
    began_s = time.perf_counter()
    peak_nm = baseline_peak(benchmark)
    records = run_cells(cells_of(benchmark, regimes, peak_nm), args.cells, args.jobs, console)
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
