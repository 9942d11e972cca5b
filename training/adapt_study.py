# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""What of the adaptive law's network matters: heads, window, and what pools the past.

    python -m training.adapt_study --jobs 2
    python -m training.adapt_study --seeds runs/adapt/seed1 runs/adapt/seed2

Trains one law for each variant, all with the same seed, worlds and number of updates, and judges
each on the worlds that none learns from. A run that was stopped goes on; one that is done is kept.
The table goes to results/adaptive_ablation.json with the first and after every further run.

With --seeds nothing is trained: results/adaptive_seeds.json gets what came of finished and
calibrated runs, on worlds that none learns from and in every regime of the benchmark.
"""

from collections.abc import Mapping, Sequence
import json
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from metactl_ros.errors import ConfigError
from metactl_ros.files import write_json
from metactl_ros.settings import load_settings, provenance
from training import adapt
from training.adaptive.finished import CONFIG
from training.adaptive.learner import AdaptConfig
from training.adaptive.network import Shape
from training.calibrate import CALIBRATION
from training.commands import command_parser, positive_count, refusing, run_jobs

VARIANTS = {
    'attention, K = 4, W = 50': Shape(),
    'no network': Shape(kind='none'),
    'newest token alone (MLP)': Shape(kind='mlp'),
    'GRU': Shape(kind='gru'),
    'convolution': Shape(kind='conv'),
    'K = 1': Shape(heads=1),
    'K = 2': Shape(heads=2),
    'K = 8': Shape(heads=8),
    'W = 20': Shape(window=20),
    'W = 100': Shape(window=100),
}
"""The shipped one first; each other differs from it in one thing."""


def run_variant(name: str, folder: Path, updates: int) -> dict[str, Any]:
    """Train a variant, or go on with it, and return its row."""
    config = AdaptConfig(shape=VARIANTS[name], updates=updates)
    if not (folder / CONFIG).exists():
        adapt.begin(folder, config)
    if not (folder / adapt.RESULT).exists():
        adapt.train(folder, config, is_compiled=True, console=Console(stderr=True, quiet=True))
    result = json.loads((folder / adapt.RESULT).read_text(encoding='utf-8'))
    kept = ('run', 'num_parameters', 'best', 'cpu_minutes', 'skipped_updates')
    return {'name': name, **{key: result[key] for key in kept}}


def print_table(rows: Sequence[Mapping[str, Any]], console: Console) -> None:
    """Print what came of the variants."""
    table = Table('network', 'parameters', 'lost', 'median [mrad]', 'after 1.5 s', 'log RMSE')
    for row in rows:
        best = row['best']
        lost = f'{best["num_lost"]} of {best["num_arms"]}'
        figures = (f'{best[key]:.2f}' for key in ('median_rmse_mrad', 'settled_rmse_mrad'))
        table.add_row(
            row['name'], str(row['num_parameters']), lost, *figures, f'{best["log_rmse"]:.3f}'
        )
    console.print(table)


def seed_row(folder: Path) -> dict[str, Any]:
    """Return what came of a finished and calibrated run.

    Raises:
        ConfigError: If it is not.
    """
    try:
        result, found = (
            json.loads((folder / name).read_text(encoding='utf-8'))
            for name in (adapt.RESULT, CALIBRATION)
        )
    except (OSError, ValueError) as error:
        raise ConfigError(
            f'{folder}: cannot be read ({error}); let it end, then: python -m training.calibrate '
            f'--run {folder}'
        ) from None
    kept = ('regime', 'rmse_mrad', 'num_lost', 'num_arms', 'shield_activation', 'coverage')
    return {
        'seed': result['run']['seed'],
        'run': result['run'],
        'best': result['best'],
        'cpu_minutes': result['cpu_minutes'],
        'rho_nm': found['rho_nm'],
        'error_radius_mrad': 1e3 * found['fitted']['error_radius_rad'],
        'regimes': [{key: row[key] for key in kept} for row in found['regimes']],
    }


def print_seeds(rows: Sequence[Mapping[str, Any]], console: Console) -> None:
    """Print RMSE in mrad of every seed in every regime, and lost arms where there are any."""
    table = Table('regime', *(f'seed {row["seed"]}' for row in rows))
    for cells in zip(*(row['regimes'] for row in rows), strict=True):
        lost = [f' ({cell["num_lost"]} lost)' if cell['num_lost'] else '' for cell in cells]
        texts = [f'{cell["rmse_mrad"]:.2f}{also}' for cell, also in zip(cells, lost, strict=True)]
        table.add_row(cells[0]['regime'], *texts)
    console.print(table)


@refusing
def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code: 0 done, 2 wrong use."""
    parser = command_parser('adapt_study', __doc__)
    add = parser.add_argument
    add('--updates', type=positive_count, default=400, help='of each run (%(default)s)')
    add('--jobs', type=positive_count, default=1, help='runs side by side (%(default)s)')
    add('--runs', type=Path, default=Path('runs/adapt_study'), help='(%(default)s)')
    add('--seeds', type=Path, nargs='+', metavar='RUN', help='only report these')
    add('--out', type=Path, help='(results/adaptive_ablation.json or adaptive_seeds.json)')
    args = parser.parse_args(arguments)
    console, rows = Console(), list[dict[str, Any]]()
    if args.seeds:
        rows = sorted(map(seed_row, args.seeds), key=lambda row: row['seed'])
        out = args.out or Path('results/adaptive_seeds.json')
        write_json(out, {'rows': rows, **provenance(load_settings())})
        print_seeds(rows, console)
        return 0
    out = args.out or Path('results/adaptive_ablation.json')
    names = list(VARIANTS)

    def note(_index: int, row: dict[str, Any]) -> None:
        rows.append(row)
        rows.sort(key=lambda one: names.index(one['name']))
        write_json(out, {'rows': rows, **provenance(load_settings())})

    folders = [args.runs / f'variant{index}' for index in range(len(names))]
    jobs = [(name, folder, args.updates) for name, folder in zip(names, folders, strict=True)]
    run_jobs(run_variant, jobs, args.jobs, console, title='variants', on_result=note)
    print_table(rows, console)
    return 0


if __name__ == '__main__':
    raise SystemExit(main())
