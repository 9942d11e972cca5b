# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""Evaluate a controller: five payloads, twenty rollouts each, on either plant.

    python -m training.evaluate --controller ct --plant rk4 --tau-z 1 2 5
    python -m training.evaluate --controller momentum_observer oracle --tau-z 2
    python -m training.evaluate --run runs/train/RUN --plant bullet --tau-z 2
    python -m training.evaluate --run NAME.metactl --plant bullet --tau-z 2

Beside the error of the controller itself, every evaluation runs two twins on the same episodes, so
that one can see what memory costs: one on an arm without memory (z = 0), and one with fixed gains
that is given z exactly and feeds it forward on top of them.
"""

import argparse
from collections.abc import Sequence
from dataclasses import asdict, replace
import os
from pathlib import Path
from typing import Any, get_args

import numpy as np
from rich.console import Console

from metactl_ros.baselines import CLASSICAL, ControllerSpec, load_baselines, load_spec
from metactl_ros.errors import ConfigError
from metactl_ros.files import write_json
from metactl_ros.metrics import delta_percent
from metactl_ros.policy.bundle import read_bundle
from metactl_ros.settings import load_settings, PlantName, provenance, Settings
from metactl_ros.signals import Array
from training import commands
from training.commands import (
    command_parser,
    positive_count,
    positive_number,
    refusing,
    terminal_table,
    text_of,
)
from training.judge import rollouts
from training.judge.analysis import mean_of
from training.judge.rollouts import BUNDLE_SUFFIX, Conditions, Rollouts, Trial, Twin, TWINS
from training.records import PAPER_BASELINE_RAD

FIXED_GAINS = ControllerSpec('ct')
"""The baseline that delta_percent refers to."""


def summarise(
    settings: Settings, trials: Sequence[Trial], results: Sequence[Rollouts]
) -> dict[str, Any]:
    """Return the record of one (controller, plant, tau_z, seed) from its trials and twins.

    A rollout whose RMSE is not finite has none, and then neither its payload nor the record has
    one: averaging the survivors would flatter. How many were lost (`metrics.is_lost`), whether
    they have an RMSE or not, is in the record. `commit` is the code that made the policy, `code`
    that which evaluated it.
    """
    first = trials[0]

    def results_of(spec: ControllerSpec, twin: Twin) -> list[Rollouts]:
        rows = zip(trials, results, strict=True)
        return [r for t, r in rows if (t.spec, t.conditions.twin) == (spec, twin)]

    def rmse_of(spec: ControllerSpec, twin: Twin) -> float | None:
        return mean_of([mean_of(r.rmse_rad) for r in results_of(spec, twin)])

    own = results_of(first.spec, 'itself')
    rmse, baseline = rmse_of(first.spec, 'itself'), rmse_of(FIXED_GAINS, 'itself')
    knowing = rmse_of(FIXED_GAINS, 'knowing_memory')
    change = _delta(knowing, baseline)  # how much of the error vanishes with what they know
    facts, origin = describe(first.spec), provenance(settings)
    return {
        'commit': origin['code'],
        **facts,
        'plant': first.conditions.plant,
        'tau_z': first.tau_z_s,
        'evaluation_seed': first.seed,
        'target_error_rad': settings.controller.lyapunov.target_error_rad,
        'rmse': rmse,
        'payload_levels_kg': list(settings.plant.task.payload_levels_kg),
        'rmse_by_payload': [mean_of(r.rmse_rad) for r in own],
        'rmse_std_by_payload': [_spread(r.rmse_rad) for r in own],
        'baseline_rmse': baseline,
        'delta_percent': _delta(rmse, baseline),
        'rmse_without_memory': rmse_of(first.spec, 'without_memory'),
        'rmse_knowing_memory': knowing,
        'memory_share_percent': None if change is None else -change,
        'num_rollouts_per_payload': first.num_rollouts,
        'num_steps': first.num_steps,
        'num_lost': int(sum(np.sum(r.is_lost) for r in own)),
        'peak_effort_nm': np.max([r.peak_effort_nm.max(axis=0) for r in own], axis=0).tolist(),
        'limited_share': float(np.mean([r.limited_share for r in own])),
        'shield_activation': float(np.mean([r.shield_activation for r in own])),
        **origin,
    } | ({} if 'seed' in facts else {'seed': first.seed})


def describe(spec: ControllerSpec) -> dict[str, Any]:
    """Return what a record says of its controller; the seed of a trained one is its training's."""
    run = spec.learned
    if run is None:
        tuned = {'rival': asdict(spec.baseline)} if spec.baseline else {}
        return {'controller': spec.name, 'num_parameters': 0, **tuned}
    if run.suffix == BUNDLE_SUFFIX:
        content = read_bundle(run)
        window = content.contract.context.num_rows
        return {'controller': run.stem, 'bundle_sha256': content.sha256, 'window': window}
    # Imported here: the fixed gains or a bundle need no torch.
    from training.learn.checkpoint import load_network
    from training.learn.judgements import head_report_of, read_judgements
    from training.learn.networks import count_parameters
    from training.learn.run import read_origin, read_run

    config, origin, judgements = read_run(run), read_origin(run), read_judgements(run)
    codes = [origin.get('code'), *origin.get('resumed_with', [])]
    return {
        'commit': ', '.join(codes) if all(codes) else None,
        'controller': config.model,
        **{n: getattr(config, n) for n in ('model', 'heads', 'window', 'preset', 'steps')},
        'lagrangian_rate': config.hyper.lagrangian_rate,
        'learned_on': config.controller,
        'difference': config.difference,
        'seed': config.seed,
        'num_parameters': count_parameters(load_network(run)),
        'training': origin,
        'head_report': head_report_of(judgements),
        'judgements': judgements,
    }


def _spread(values: Array) -> float | None:
    """Return the standard deviation between rollouts, or None where there is none."""
    is_known = len(values) > 1 and np.isfinite(values).all()
    return float(np.std(values, ddof=1)) if is_known else None


def _delta(rmse: float | None, baseline: float | None) -> float | None:
    return None if rmse is None or baseline is None else delta_percent(rmse, baseline)


def print_table(records: Sequence[dict[str, Any]], console: Console) -> None:
    """Show one row per record.

    `moved` is the share of steps in which the shield moved the proposal, `z = 0` the RMSE of the
    twin without memory, `memory` the share of the baseline's error that vanishes when it knows
    z, and `lost` the number of rollouts that lost their reference.
    """
    rows = [
        {
            '': r['controller'],
            'tau_z': f'{r["tau_z"]:g} s',
            'seed': str(r['seed']),
            'RMSE': text_of(r['rmse'], '.4f'),
            'paper': text_of(
                PAPER_BASELINE_RAD.get(r['tau_z']) if r['controller'] == 'ct' else None, '.4f'
            ),
            'by payload': '-'.join(text_of(r['rmse_by_payload'][end], '.3f') for end in (0, -1)),
            'delta': f'{text_of(r["delta_percent"], ".1f")} %',
            'moved': f'{100.0 * r["shield_activation"]:.1f} %',
            'z = 0': text_of(r['rmse_without_memory'], '.4f'),
            'memory': f'{text_of(r["memory_share_percent"], ".0f")} %',
            'lost': str(r['num_lost']),
        }
        for r in records
    ]
    title = f'Tracking RMSE in rad on the {records[0]["plant"]} plant'
    console.print(terminal_table(title, rows))


def parse_args(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Return the command line as a namespace."""
    parser = command_parser('evaluate', __doc__)
    which, add = parser.add_mutually_exclusive_group(), parser.add_argument
    several: dict[str, Any] = {'nargs': '+'}
    names: dict[str, Any] = {'choices': CLASSICAL, 'default': ['ct'], 'metavar': 'NAME'}
    text = f'classical ones: {", ".join(CLASSICAL)} (default: ct, fixed gains, the baseline)'
    which.add_argument('--controller', help=text, **names, **several)
    text = f'trained runs (training.train), or bundles NAME{BUNDLE_SUFFIX} (training.export)'
    which.add_argument('--run', type=Path, metavar='DIR', help=text, **several)
    text = 'rk4: fast, vectorised; bullet: PyBullet with 1 kHz sub-steps (%(default)s)'
    add('--plant', choices=get_args(PlantName), default='rk4', help=text)
    horizons: dict[str, Any] = {'type': positive_number, 'default': [1.0, 2.0, 5.0], **several}
    add('--tau-z', metavar='S', help='memory horizons in seconds (1 2 5)', **horizons)
    add('--seed', type=int, default=[42], help='evaluation seeds (42)', **several)
    add('--rollouts', type=positive_count, default=20, help='per payload (%(default)s)')
    text = 'folder for one JSON file per (controller, tau_z, seed) (%(default)s)'
    add('--out', type=Path, default=Path('runs/evaluate'), help=text)
    add('--json', type=Path, metavar='FILE', help='also write all records, a list')
    add('--jobs', type=positive_count, default=os.cpu_count(), help='side by side (all cores)')
    text = "another lyapunov.target_error_rad: the shield's v_0; 0 makes it strict"
    add('--target-error', type=float, metavar='RAD', help=text)
    text = 'gains of the classical ones (config/classical/nominal.yaml)'
    add('--classical-file', type=Path, metavar='FILE', help=text)
    add('--arm', type=Path, help='another arm.yaml')
    add('--world', type=Path, help='another plant.yaml')
    return parser.parse_args(arguments)


def twins_of(spec: ControllerSpec) -> list[tuple[ControllerSpec, Twin]]:
    """Return what must be tried for one record: the controller, its twins and the fixed gains."""
    if spec == FIXED_GAINS:
        return [(spec, twin) for twin in TWINS]
    own: list[tuple[ControllerSpec, Twin]] = [(spec, 'itself'), (spec, 'without_memory')]
    return [*own, (FIXED_GAINS, 'itself'), (FIXED_GAINS, 'knowing_memory')]


def with_difference_of(runs: Sequence[Path] | None, settings: Settings) -> Settings:
    """Return the settings with the difference that runs were trained with, if there is one.

    It then holds for the baseline, too: delta_percent is against fixed gains in the same world.
    """
    trained = [run for run in runs or () if run.suffix != BUNDLE_SUFFIX]
    if not trained:
        return settings
    # Imported here: the fixed gains or a bundle need no torch.
    from training.learn.run import read_run, with_difference

    names = dict.fromkeys(read_run(run).difference for run in trained)
    if len(names) > 1 or (any(names) and len(trained) < len(runs or ())):
        raise ConfigError(
            f'--run: trained with different differences ({", ".join(map(str, names))}); evaluate '
            'those with one difference at a time.'
        )
    return with_difference(settings, *names)


def trials_of(args: argparse.Namespace, settings: Settings) -> list[list[Trial]]:
    """Return the trials that the command line asks for, record by record."""
    load_baselines(args.classical_file)  # a mistake in it shows before anything runs
    specs = [load_spec(name, args.classical_file) for name in args.controller]
    if args.run:
        specs = [ControllerSpec(run.name, learned=run) for run in args.run]
    return [
        [
            Trial(
                spec=spec,
                conditions=Conditions(plant=args.plant, twin=twin, is_guarded=False),
                tau_z_s=tau_z,
                seed=seed,
                payload_kg=payload,
                num_rollouts=args.rollouts,
                num_steps=settings.episode_steps,
            )
            for spec, twin in twins_of(asked)
            for payload in settings.plant.task.payload_levels_kg
        ]
        for asked in specs
        for tau_z in args.tau_z
        for seed in args.seed
    ]


def evaluate(args: argparse.Namespace, console: Console) -> list[dict[str, Any]]:
    """Run what the command line asks for; write the files and return the records."""
    settings = with_difference_of(args.run, load_settings(arm=args.arm, plant=args.world))
    if args.target_error is not None:
        lyapunov = replace(settings.controller.lyapunov, target_error_rad=args.target_error)
        controller = replace(settings.controller, lyapunov=lyapunov)
        settings = replace(settings, controller=controller)
    cells = trials_of(args, settings)
    jobs = [(settings, trial) for cell in cells for trial in cell]
    results = iter(
        commands.run_jobs(rollouts.run_trial, jobs, args.jobs, console, title='rollouts')
    )
    records = []
    for cell in cells:
        first = cell[0]
        record = summarise(settings, cell, [next(results) for _ in cell])
        name = first.spec.name.removesuffix(BUNDLE_SUFFIX)
        name += '' if args.target_error is None else f'_target{args.target_error:g}'
        name = f'{name}_{args.plant}_tau{first.tau_z_s:g}_seed{first.seed}.json'
        write_json(args.out / name, record)
        records.append(record)
    if args.json:
        write_json(args.json, records)
    return records


@refusing
def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
    args = parse_args(arguments)
    console = Console(stderr=True)
    records = evaluate(args, console)
    print_table(records, Console())
    console.print(f'{len(records)} result files in {args.out}', highlight=False)
    return 0


if __name__ == '__main__':
    raise SystemExit(main())
