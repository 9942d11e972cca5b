# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""Judge learned and classical controllers in every regime, with the same plant and statistics.

    python -m training.benchmark                  # everything: results/, docs/benchmark.md
    python -m training.benchmark --regime tau_2 delay_20ms --out runs/some.json

Every controller runs on the same episodes under the shield, as in the node; learned ones also with
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
from typing import Any, Literal

import numpy as np
from rich.console import Console

import metactl_ros
from metactl_ros.baselines import BASELINES, CLASSICAL, ControllerSpec, load_spec, ORACLE
from metactl_ros.config import require_positive, scaled
from metactl_ros.control.shield import Enforcement
from metactl_ros.files import write_json
from metactl_ros.motion.reference import PointToPoint, Sinusoid
from metactl_ros.settings import (
    load_file,
    load_settings,
    provenance,
    Settings,
    share_directory,
    shipped_policies,
)
from metactl_ros.signals import Array
from metactl_ros.sim.task import compose_episode, Episode, lattice_phases
from training.commands import command_parser, refusing, run_jobs
from training.judge import rollouts
from training.judge.benchmark_page import ONCE, write_page
from training.judge.rollouts import Conditions, evaluate_controller, Rollouts

ENFORCEMENTS: tuple[Enforcement, ...] = ('enforce', 'count')
SPOT_REGIMES = ('tau_2', 'delay_20ms')
"""Judged in PyBullet, too, on fewer episodes."""
SPOT_ROLLOUTS = 2
MOVE_S = 2.0
"""Of a motion from point to point; then the arm rests."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Cases:
    """Which episodes a regime consists of."""

    seed: int
    rollouts: int
    payloads_kg: tuple[float, ...]
    amplitude_rad: tuple[float, ...]
    omega_radps: tuple[float, ...]

    def __post_init__(self) -> None:
        require_positive('Cases', rollouts=self.rollouts)


@dataclass(frozen=True, kw_only=True, slots=True)
class Regime:
    """One column of the benchmark; what is not said is as in `config/plant.yaml`."""

    name: str
    meaning: str
    tuned_for: Literal['nominal', 'noisy', 'delayed'] = 'nominal'
    """Which file of `config/classical/` is used: the kind of sensors is known when tuning."""
    tau_z_s: float = 2.0
    memory_factor: float = 1.0
    """Of lambda_z."""
    speed_factor: float = 1.0
    """Of the reference."""
    motion: Literal['sinusoid', 'point_to_point'] = 'sinusoid'
    duration_s: float = 5.0
    velocity_noise_radps: float = 0.0
    encoder_bits: int = 0
    transport_delay_s: float = 0.0
    effort_limit_factor: float | None = None
    """What the motors give at most, of the peak of ct on the tuning episodes."""
    friction_factor: float = 1.0
    """Of all of friction but its memory."""
    link_mass_factor: float = 1.0
    """Of the masses of the true links; the model keeps those of `config/arm.yaml`."""
    tells_payload: bool = True
    """Whether controllers are given an estimate of the payload."""
    payload_step_kg: float = 0.0
    payload_step_at_s: float = 0.0
    tau_z_drift_to_s: float | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Sensors:
    """The regimes in which baselines are tuned for each kind of sensors."""

    nominal: tuple[str, ...]
    noisy: tuple[str, ...]
    delayed: tuple[str, ...]
    any: tuple[str, ...]
    """Without knowing which they will be."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Benchmark:
    """All of `config/benchmark.yaml`."""

    tuning: Cases
    judging: Cases
    sensors: Sensors
    regimes: tuple[Regime, ...]

    def regime(self, name: str) -> Regime:
        """Return the regime of a name."""
        return next(regime for regime in self.regimes if regime.name == name)


def load_benchmark(path: Path | None = None) -> Benchmark:
    """Return a benchmark, by default the shipped one."""
    return load_file(Benchmark, path, 'benchmark.yaml')


def settings_in(settings: Settings, regime: Regime, peak_nm: tuple[float, ...]) -> Settings:
    """Return the settings of a regime; `peak_nm` is that of ct, one per joint."""
    plant = settings.plant
    gain = scaled(regime.memory_factor, plant.friction.memory_gain_nmprad)
    factor = regime.effort_limit_factor
    sensing = replace(
        plant.sensing,
        velocity_noise_radps=regime.velocity_noise_radps,
        encoder_bits=regime.encoder_bits,
        transport_delay_s=regime.transport_delay_s,
        actuator_limit_nm=None if factor is None else tuple(factor * peak for peak in peak_nm),
        payload_step_kg=regime.payload_step_kg,
        payload_step_at_s=regime.payload_step_at_s,
        tau_z_drift_to_s=regime.tau_z_drift_to_s,
        tau_z_drift_over_s=regime.duration_s,
    )
    levels = {
        name: scaled(regime.friction_factor, getattr(plant.friction, name))
        for name in ('coulomb_nm', 'static_nm', 'viscous_nmsprad')
    }
    if regime.friction_factor > 1.0:  # as steep at rest as it is: steeper, the plant chatters
        wider = scaled(regime.friction_factor, plant.friction.smoothing_velocity_radps)
        levels['smoothing_velocity_radps'] = wider
    friction = replace(plant.friction, memory_gain_nmprad=gain, **levels)
    world = replace(
        plant, friction=friction, sensing=sensing, link_mass_factor=regime.link_mass_factor
    )
    return replace(settings, plant=world)


def draw_cases(settings: Settings, regime: Regime, cases: Cases) -> Episode:
    """Draw the episodes of a regime as one batch, payload by payload, shape (P R,).

    All payloads share their phases, so that a rollout can be compared across them.
    """
    rng = np.random.default_rng(cases.seed)
    payload = np.repeat(np.array(cases.payloads_kg), cases.rollouts)
    phase = np.tile(
        lattice_phases(rng, cases.rollouts, len(cases.amplitude_rad)), (len(cases.payloads_kg), 1)
    )
    amplitude = np.array(cases.amplitude_rad)
    motion: Sinusoid | PointToPoint
    if regime.motion == 'sinusoid':
        motion = Sinusoid(amplitude, regime.speed_factor * np.array(cases.omega_radps), phase)
    else:
        motion = _moves(amplitude, phase)
    episodes = compose_episode(settings.plant.task, rng, payload, motion, regime.tau_z_s)
    if regime.tells_payload:
        return episodes
    return replace(episodes, payload_estimate_kg=np.zeros_like(episodes.payload_estimate_kg))


def _moves(amplitude_rad: Array, phase_rad: Array) -> PointToPoint:
    """Return motions through the same range, from where a sinusoid is to where it turns around."""
    start = amplitude_rad * np.sin(phase_rad)
    goal = amplitude_rad * np.where(start > 0.0, -1.0, 1.0)
    return PointToPoint(start, goal, MOVE_S)


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

    Those that were tuned once, without knowing the sensors, follow under a name of their own, and
    the one that knows its plant comes last.
    """
    folder = share_directory() / 'config' / 'classical'
    classical = [load_spec(name, folder / f'{sensors}.yaml') for name in CLASSICAL]
    blind = [load_spec(name, folder / 'any.yaml') for name in BASELINES if name != ORACLE]
    once = [replace(spec, name=f'{spec.name}{ONCE}') for spec in blind]
    learned = [ControllerSpec(path.stem, learned=path) for path in shipped_policies()]
    return sorted([*classical, *once, *learned], key=lambda spec: spec.knows_plant)


def cells_of(
    benchmark: Benchmark, regimes: Sequence[Regime], peak_nm: tuple[float, ...]
) -> list[Cell]:
    """Return all cells: RK4 under the shield, and spot checks in PyBullet.

    Learned controllers run with a shield that only counts, too.
    """
    cases = benchmark.judging
    few = replace(cases, rollouts=SPOT_ROLLOUTS)
    spot = [(Conditions(), few), (Conditions(plant='bullet'), few)]
    cells = []
    for regime in regimes:
        for spec in controllers(regime.tuned_for):
            hows = ENFORCEMENTS if spec.learned else ENFORCEMENTS[:1]
            chosen = [(Conditions(enforcement=how), cases) for how in hows]
            if regime.name in SPOT_REGIMES and not spec.name.endswith(ONCE):
                chosen += spot
            cells += [
                Cell(spec=spec, regime=regime, conditions=conditions, cases=own, peak_nm=peak_nm)
                for conditions, own in chosen
            ]
    return cells


def baseline_peak(benchmark: Benchmark) -> tuple[float, ...]:
    """Return the peak effort of ct with ideal motors, one per joint, N m."""
    settings = load_settings()
    regime = benchmark.regime(benchmark.sensors.nominal[0])
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
