# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""Phase 2: which number of heads, of those that Phase 1 leaves, tracks best?

    python -m training.grid --phase1 results/phase1.json --tau-z 2 --windows 20 50 --paper

For every memory horizon in the report of training.phase1, INCRT is trained with each K from
ceil(K*/2) to K* and each window W, as a study of training.sweep (its folders, its resumption, its
exit codes). `--paper` adds the sizes that the paper retained, at every horizon. Written to OUT:
what training.sweep writes, and grid.json, the ranking and the choice of each horizon.

delta is the change of tracking RMSE against fixed gains in percent, the mean over seeds: more
negative is better. A seed without an RMSE, or one that failed, puts its size last.
"""

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
import math
from pathlib import Path
from statistics import mean, stdev
from typing import Any, get_args

from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

from metactl_ros.config import build
from metactl_ros.errors import ConfigError
from metactl_ros.files import write_json
from metactl_ros.settings import load_settings, PlantName, provenance
from training.commands import (
    command_parser,
    positive_count,
    positive_number,
    read_json,
    refusing,
)
from training.learn.run import Presets
from training.records import INCRT, require_one_protocol, Run
from training.sweep import add_engine_arguments, expand, Product, run_study, Size, Study

PAPER = {
    f'paper {tau_z_s:g} s': Size(heads=place.heads or 0, window=place.window or 0)
    for tau_z_s, place in INCRT.items()
}
"""What the paper retained after its own Phase 2, by the horizon it was retained for."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Horizon:
    """What Phase 1 found for one memory horizon; the other keys of its record are not read."""

    tau_z: float
    """s."""
    k_star: int
    phase2_heads: tuple[int, ...]
    """The least and the greatest K to try."""

    def __post_init__(self) -> None:
        heads = self.phase2_heads
        if not (len(heads) == 2 and 1 <= heads[0] <= heads[1]):
            raise ConfigError(
                'phase2_heads: expected the least and the greatest K, both at least 1, '
                f'found {list(heads)}.'
            )


def read_phase1(path: Path, tau_z_s: Sequence[float] | None) -> list[Horizon]:
    """Return the horizons of a report of training.phase1, only those of `tau_z_s` if given."""
    remedy = f'make one with: python -m training.phase1 --json {path}'
    content = read_json(path, remedy)
    records = content.get('records') if isinstance(content, dict) else None
    if not (isinstance(records, list) and records and all(isinstance(r, dict) for r in records)):
        raise ConfigError(f'{path}: holds no records, so it is no report of Phase 1; {remedy}')
    names = [field.name for field in fields(Horizon)]
    read = [{name: record[name] for name in names if name in record} for record in records]
    try:
        found = {h.tau_z: h for h in (build(Horizon, r, f'{path}: records') for r in read)}
    except ConfigError as error:
        raise ConfigError(f'{error}\n{remedy}') from None
    missing = [f'{tau_z:g}' for tau_z in tau_z_s or [] if tau_z not in found]
    if missing:
        known = ', '.join(f'{tau_z:g}' for tau_z in found)
        raise ConfigError(
            f'{path}: has tau_z = {known} s, not {", ".join(missing)}; leave them out, or '
            f'{remedy} --tau-z {" ".join(missing)}'
        )
    return [found[tau_z] for tau_z in tau_z_s or found]


def sizes_of(horizon: Horizon, windows: Sequence[int], *, with_paper: bool) -> list[Size]:
    """Return the sizes to try at a horizon, each once."""
    low, high = horizon.phase2_heads
    searched = [Size(heads=k, window=w) for k in range(low, high + 1) for w in windows]
    return list(dict.fromkeys([*searched, *(PAPER.values() if with_paper else ())]))


def study_of(args: argparse.Namespace, horizons: Sequence[Horizon]) -> Study:
    """Return the study that tries every size at every horizon."""
    return Study(
        plant=args.plant,
        steps=args.steps,
        rollouts=args.rollouts,
        products=tuple(
            Product(
                presets=(args.preset,),
                models=('incrt',),
                sizes=tuple(sizes_of(horizon, args.windows, with_paper=args.paper)),
                tau_z=(horizon.tau_z,),
                seeds=tuple(args.seeds),
            )
            for horizon in horizons
        ),
    )


def rank(study: Study, tau_z_s: float, results: Mapping[str, Run]) -> list[dict[str, Any]]:
    """Return the sizes of a horizon, best first; of equals, the smaller network."""
    deltas: dict[Size, list[float]] = {}
    parameters: dict[Size, int] = {}
    for run in expand(study):
        if run.tau_z == tau_z_s:
            size = Size(heads=run.heads, window=run.window)
            record = results[run.name].record if run.name in results else {}
            delta = record.get('delta_percent')
            deltas.setdefault(size, []).append(math.inf if delta is None else delta)
            parameters[size] = record.get('num_parameters', parameters.get(size, 0))
    order = sorted(deltas, key=lambda size: (mean(deltas[size]), parameters[size]))
    return [
        {
            **asdict(size),
            'name': ', '.join(name for name, other in PAPER.items() if other == size) or None,
            'num_parameters': parameters[size] or None,
            'delta_mean': mean(found) if all(map(math.isfinite, found)) else None,
            'delta_std': stdev(found) if len(found) > 1 and math.inf not in found else None,
            'delta_by_seed': [delta if math.isfinite(delta) else None for delta in found],
        }
        for size, found in ((size, deltas[size]) for size in order)
    ]


def choose(ranking: Sequence[dict[str, Any]]) -> dict[str, Any] | None:
    """Return heads and window of the best size, None if not even that one has a mean."""
    best = ranking[0]
    return None if best['delta_mean'] is None else {n: best[n] for n in ('heads', 'window')}


def table_of(horizon: Mapping[str, Any]) -> Table:
    """Return the ranking of one horizon."""
    low, high = horizon['phase2_heads']
    title = f'tau_z = {horizon["tau_z"]:g} s: Phase 1 leaves K = {low} to {high}'
    table = Table('', 'K', 'W', 'parameters', 'delta %', 'seeds', 'also', title=title, box=SIMPLE)
    for place, row in enumerate(horizon['ranking'], start=1):
        spread = '' if row['delta_std'] is None else f' ± {row["delta_std"]:.1f}'
        delta = '-' if row['delta_mean'] is None else f'{row["delta_mean"]:+.1f}{spread}'
        lost = row['delta_by_seed'].count(None)
        seeds = f'{len(row["delta_by_seed"])}{f", {lost} lost" if lost else ""}'
        numbers = (place, row['heads'], row['window'], row['num_parameters'] or '-')
        table.add_row(*map(str, numbers), delta, seeds, row['name'] or '')
    return table


def parse_args(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Return the command line as a namespace."""
    parser = command_parser('grid', __doc__)
    several: dict[str, Any] = {'nargs': '+'}
    add = parser.add_argument
    add('--phase1', type=Path, default=Path('results/phase1.json'), help='(%(default)s)')
    add('--tau-z', type=positive_number, metavar='S', help='(default: all of it)', **several)
    add('--windows', type=positive_count, default=[20, 50], help='W (default: 20 50)', **several)
    add('--paper', action='store_true', help='also try (4, 20), (7, 50) and (8, 20)')
    add('--seeds', type=int, default=[42], help='(default: 42)', **several)
    add('--steps', type=positive_count, default=50_000, help='(%(default)s)')
    add('--plant', choices=get_args(PlantName), default='bullet', help='(%(default)s)')
    presets = [field.name for field in fields(Presets)]
    add('--preset', choices=presets, default='robust', help='(%(default)s)')
    add('--rollouts', type=positive_count, default=20, help='per payload (%(default)s)')
    add_engine_arguments(parser)
    add('--out', type=Path, default=Path('runs/grid'), help='(%(default)s)')
    return parser.parse_args(arguments)


@refusing
def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code, that of training.sweep."""
    args = parse_args(arguments)
    console = Console(stderr=True, highlight=False)
    horizons = read_phase1(args.phase1, args.tau_z)
    study = study_of(args, horizons)
    code, results = run_study(study, args, args.out, console)
    if results:
        require_one_protocol(list(results.values()))
    if code == 3:
        console.out('stopped, and nothing is chosen yet; the same command goes on')
        return code
    found = []
    for horizon in horizons:
        ranking = rank(study, horizon.tau_z, results)
        found.append({**asdict(horizon), 'choice': choose(ranking), 'ranking': ranking})
        Console().print(table_of(found[-1]))
    asked = {'phase1': str(args.phase1), 'seeds': args.seeds, 'preset': args.preset}
    facts = {**asked, 'steps': args.steps, 'plant': args.plant, 'rollouts': args.rollouts}
    write_json(args.out / 'grid.json', {**facts, 'horizons': found, **provenance(load_settings())})
    console.out(f'ranking and choice in {args.out / "grid.json"}')
    return code


if __name__ == '__main__':
    raise SystemExit(main())
