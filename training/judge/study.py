# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""A study: the runs of training.sweep, as a file of config/studies/ lists them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from itertools import product
import math
from pathlib import Path
from typing import TypeVar

from rich.console import Console

from metactl_ros.config import require_positive, shown
from metactl_ros.errors import ConfigError
from metactl_ros.settings import load_file, PlantName
from training.commands import command_parser
from training.learn.networks import Model, NetworkConfig
from training.learn.run import choose_device, load_presets, Presets, RunConfig, with_difference
from training.records import load_runs, Place, Run

Group = TypeVar('Group')
MOST_RUNS = 10_000
"""Of a study: a year on a machine of some tens of cores."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Size:
    """Heads K and window W of a network."""

    heads: int
    window: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Product:
    """Every combination of one entry from each list; tau_z in s."""

    presets: tuple[str, ...]
    models: tuple[Model, ...]
    sizes: tuple[Size, ...]
    tau_z: tuple[float, ...]
    seeds: tuple[int, ...]
    differences: tuple[str, ...] = ()
    """Names of config/differences.yaml, one for each run; without any, nothing is changed."""

    def __post_init__(self) -> None:
        needed = [field.name for field in fields(self) if field.name != 'differences']
        empty = [name for name in needed if not getattr(self, name)]
        if empty:
            raise ConfigError(f'{", ".join(empty)}: empty; list at least one entry.')


@dataclass(frozen=True, kw_only=True, slots=True)
class Study:
    """A file of config/studies/: the plant is that of training and of evaluation."""

    plant: PlantName
    steps: int
    rollouts: int
    """Of the evaluation, per payload."""
    products: tuple[Product, ...]

    def __post_init__(self) -> None:
        require_positive('Study', steps=self.steps, rollouts=self.rollouts)
        if not self.products:
            raise ConfigError('products: empty; list at least one.')


def expand(study: Study) -> list[RunConfig]:
    """Return the runs of a study in its order, or refuse it as a whole."""
    presets, device = load_presets(), choose_device('auto')
    known = [field.name for field in fields(Presets)]
    runs: dict[str, RunConfig] = {}
    blocks = [
        (b.presets, b.models, b.sizes, b.tau_z, b.differences or (None,), b.seeds)
        for b in study.products
    ]
    count = sum(math.prod(map(len, lists)) for lists in blocks)
    if count > MOST_RUNS:
        raise ConfigError(f'products: expected at most {MOST_RUNS} runs, found {count}.')
    for lists in blocks:
        for preset, model, size, tau_z, difference, seed in product(*lists):
            if preset not in known:
                raise ConfigError(f'presets: expected one of {known}, found {shown(preset)}.')
            NetworkConfig(model=model, heads=size.heads, window=size.window)
            run = RunConfig(
                preset=preset,
                model=model,
                heads=size.heads,
                window=size.window,
                tau_z=tau_z,
                seed=seed,
                steps=study.steps,
                plant=study.plant,
                device=device,
                hyper=with_difference(getattr(presets, preset), difference),
                difference=difference,
            )
            if runs.setdefault(run.name, run) is not run:
                raise ConfigError(f'{run.name}: the study asks for it twice; remove one.')
    return list(runs.values())


def place_of(run: RunConfig) -> Place:
    """Return the row that a run of the study belongs to."""
    return Place(run.tau_z, run.model, run.heads, run.window)


def _key_of(run: RunConfig) -> tuple[Place, int, str | None]:
    return place_of(run), run.seed, run.difference


def _key_of_record(run: Run) -> tuple[Place, int, str | None]:
    return run.place, run.record['seed'], run.record.get('difference')


def require_of_study(study: Study, wanted: Sequence[RunConfig], run: Run) -> None:
    """Raise ConfigError unless a record is of a run of the study, with its budget and protocol."""
    record, key = run.record, _key_of_record(run)
    asked = next((other for other in wanted if _key_of(other) == key), None)
    if asked is None:
        changed = f', difference {key[-1]}' if key[-1] else ''
        raise ConfigError(
            f'{run.source}: expected a run that the study lists, found {run.place}, seed '
            f'{record["seed"]}{changed}; add it to the study, or move the file elsewhere'
        )
    expected: dict[str, object] = {
        'preset': asked.preset,
        'steps': study.steps,
        'plant': study.plant,
        'num_rollouts_per_payload': study.rollouts,
        'lagrangian_rate': asked.hyper.lagrangian_rate,
        'learned_on': asked.controller,
    }
    wrong = [
        f'{name}: expected {value!r}, found {record.get(name)!r}'
        for name, value in expected.items()
        if record.get(name) != value
    ]
    if not record.get('commit'):
        wrong.append(f'commit: expected that of its training, found {record.get("commit")!r}')
    if wrong:
        raise ConfigError(
            f'{run.source}: {"; ".join(wrong)}; run it as the study says, in a git checkout, or '
            'move the file elsewhere'
        )


def missing_seeds(
    wanted: Sequence[RunConfig], runs: Sequence[Run], group_of: Callable[[RunConfig], Group]
) -> dict[Group, list[int]]:
    """Return the seeds that were not run, by the group of a run, in the order of the study."""
    done = set(map(_key_of_record, runs))
    found: dict[Group, list[int]] = {}
    for run in wanted:
        if _key_of(run) not in done:
            found.setdefault(group_of(run), []).append(run.seed)
    return found


def page_command(
    name: str,
    description: str | None,
    arguments: Sequence[str] | None,
    write: Callable[[Study, list[Run], Path], tuple[int, int]],
    *,
    study: str,
    results: str,
    page: str,
) -> int:
    """Run the command that writes the page of a study; return its exit code.

    Args:
        name: Of the command.
        description: Of the command.
        arguments: Of the command line.
        write: Writes the page; returns how many runs are done, of how many.
        study: The file that is read by default.
        results: The folder of records by default.
        page: The file that is written by default.
    """
    parser = command_parser(name, description)
    add = parser.add_argument
    add('--study', type=Path, default=Path(study), help='(%(default)s)')
    add('--results', type=Path, default=Path(results), help='folder (%(default)s)')
    add('--out', type=Path, default=Path(page), help='page (%(default)s)')
    args = parser.parse_args(arguments)
    runs = load_runs(sorted(args.results.glob('*.json')))
    done, count = write(load_file(Study, args.study, ''), runs, args.out)
    Console(stderr=True).print(f'{done} of {count} runs: {args.out}', highlight=False)
    return 0
