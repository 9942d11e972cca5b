# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""Judge every controller on the shipped arms from URDFs, under sensors of all kinds.

    python -m training.arms_benchmark --jobs 2    # results/ and docs/benchmark_arms.{json,md,png}
    python -m training.arms_benchmark --arms fr3 --seeds 1 --out runs/a.json --page runs/a.md

The adaptive law is the shipped bundle, zero-shot: trained on two-link arms, told neither arm nor
sensors nor payload. Its rivals ct_integral and momentum_observer are tuned for every arm and kind
of sensors, 24 settings each, on another seed and by the very figure that is judged. adaptive_bank
and the oracle have the gains of config/classical/, those for the kind of sensors. Nobody is told
the payload but the oracle. Cells that are done are kept in --cells, and not run again.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
import functools
import hashlib
import itertools
import json
from pathlib import Path
import time
from typing import Any, Literal, NamedTuple

import numpy as np
from rich.console import Console

import metactl_ros
from metactl_ros.adapt import adapted_law
from metactl_ros.baselines import (
    ConstantPolicy,
    load_classical,
    ORACLE,
    same_for_joints,
    with_estimator,
)
from metactl_ros.control.estimators.choice import EstimatorSettings
from metactl_ros.control.estimators.disturbance import IntegralSettings, MomentumObserverSettings
from metactl_ros.control.gain_map import GainMap
from metactl_ros.control.loop import ControlLoop
from metactl_ros.control.modes import Mode
from metactl_ros.control.settings import ControllerSettings
from metactl_ros.dynamics.urdf_arm import FromUrdf
from metactl_ros.files import write_json
from metactl_ros.metrics import is_lost, tracking_rmse
from metactl_ros.policy.bundle import sha256_of
from metactl_ros.settings import (
    load_settings,
    make_plant,
    provenance,
    Settings,
    share_directory,
    shipped_policy,
)
from metactl_ros.signals import Array, Flags, Policy
from metactl_ros.sim.rollout import run_episode, without_warmup
from metactl_ros.sim.task import draw_evaluation, Episode
from training.commands import command_parser, positive_count, refusing, run_jobs
from training.judge.arms_page import write_page

ARMS = ('fr3', 'ur5e')
CONTROLLERS = ('ct', 'ct_integral', 'momentum_observer', 'adaptive_bank', 'adaptive', 'oracle')
Tuned = Literal['ct_integral', 'momentum_observer']
TUNED: tuple[Tuned, ...] = ('ct_integral', 'momentum_observer')
PAYLOAD_SHARES, TUNING_SHARES = (0.0, 0.5, 1.0), (0.0, 1.0)
"""Of what the arm is rated for."""
SEED, TUNING_SEED = 42, 100
STEPS, TUNING_STEPS = 500, 300
SETTLED_S = 1.5
"""From then on error and variation count: before, all controllers return from the same start."""
TAU_Z_S = 2.0
KD_PER_S, KP_PER_S2 = (15.0, 30.0, 60.0), (0.0, 600.0)
"""Grids; a K_d that the gain box has not is moved to its end."""
RATES_PER_S2, BANDWIDTHS_RADPS = (100.0, 500.0, 2000.0, 8000.0), (4.0, 12.0, 30.0, 60.0)
DECIDING = ('control', 'dynamics', 'motion', 'sim')
"""Folders of code that decides the figures of a cell."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Condition:
    """What kind of sensors an arm has."""

    name: str
    meaning: str
    tuned_for: Literal['nominal', 'noisy', 'delayed']
    """Which file of `config/classical/` is used for what is not tuned here."""
    velocity_noise_radps: float = 0.0
    encoder_bits: int = 0
    transport_delay_s: float = 0.0


CONDITIONS = (
    Condition(name='ideal', meaning='ideal', tuned_for='nominal'),
    Condition(
        name='velocity_noise',
        meaning='white noise of 0.02 rad/s on every velocity',
        tuned_for='noisy',
        velocity_noise_radps=0.02,
    ),
    Condition(
        name='encoder_16bit',
        meaning='16 bits per turn, velocity by difference',
        tuned_for='noisy',
        encoder_bits=16,
    ),
    Condition(
        name='encoder_14bit',
        meaning='14 bits per turn, velocity by difference',
        tuned_for='noisy',
        encoder_bits=14,
    ),
    Condition(
        name='delay_10ms',
        meaning='states 10 ms late',
        tuned_for='delayed',
        transport_delay_s=0.01,
    ),
    Condition(
        name='delay_20ms',
        meaning='states 20 ms late',
        tuned_for='delayed',
        transport_delay_s=0.02,
    ),
    Condition(
        name='delay_30ms',
        meaning='states 30 ms late',
        tuned_for='delayed',
        transport_delay_s=0.03,
    ),
)


class Gains(NamedTuple):
    """Settings of a law that is tuned, the same for every joint."""

    kd_per_s: float
    kp_per_s2: float
    speed: float
    """Rate of the integral, 1 / s^2, or bandwidth of the observer, rad / s."""


class Cell(NamedTuple):
    """One controller on one arm with one kind of sensors, all payloads."""

    arm: str
    condition: Condition
    controller: str
    num_seeds: int
    gains: Gains | None
    """Of a law that was tuned."""


@dataclass(frozen=True, slots=True, eq=False)
class FixedActions:
    """Proposes one action for each arm of a batch, whatever it sees."""

    actions: Array
    """Shape (N, m)."""

    def __call__(self, window: Array) -> Array:
        """Return them."""
        del window
        return self.actions


class Runs(NamedTuple):
    """Figures of runs, shape (N,)."""

    lost: Flags
    rmse_mrad: Array
    variation_nmps: Array
    activation: Array
    """Share of ticks in which the shield moved the proposal."""


@functools.cache
def settings_of(arm: str) -> Settings:
    """Return the settings of an arm; read once in a process."""
    return load_settings(arm)


def settings_in(settings: Settings, condition: Condition) -> Settings:
    """Return settings with some kind of sensors."""
    sensing = replace(
        settings.plant.sensing,
        velocity_noise_radps=condition.velocity_noise_radps,
        encoder_bits=condition.encoder_bits,
        transport_delay_s=condition.transport_delay_s,
    )
    return replace(settings, plant=replace(settings.plant, sensing=sensing))


def with_speed(settings: Settings, law: str, speed: float) -> ControllerSettings:
    """Return the controller of a law that is tuned."""
    if law == 'ct_integral':
        estimator = EstimatorSettings(integral=IntegralSettings(rate_per_s2=speed))
    else:
        observer = MomentumObserverSettings(bandwidth_radps=speed)
        estimator = EstimatorSettings(momentum_observer=observer)
    return with_estimator(settings.controller, estimator)


def action_of(controller: ControllerSettings, gains: Gains) -> Array:
    """Return the action that gives every joint these gains, Lambda_0 and all of the estimate."""
    kinds = (gains.kd_per_s, controller.law.slope_per_s, gains.kp_per_s2, 1.0)
    gain_map = GainMap(controller.gain_box, controller.num_joints)
    theta = np.array(same_for_joints(kinds, controller.num_joints))
    return gain_map.action(np.clip(theta, gain_map.lower, gain_map.upper))


def payloads_of(settings: Settings, shares: Sequence[float], num_each: int) -> Array:
    """Return the payloads of a batch, each several times, kg."""
    return np.repeat(settings.plant.task.payload_max_kg * np.array(shares), num_each)


def episodes_of(settings: Settings, payloads_kg: Array, seed: int, num_seeds: int) -> Episode:
    """Return a batch of which nobody is told the payload.

    The same start and reference, drawn by each seed, with every payload.
    """
    drawn = draw_evaluation(settings.plant.task, seed, 0.0, num_seeds, TAU_Z_S)
    episodes = drawn.of_arm(np.arange(len(payloads_kg)) % num_seeds)  # type: ignore[arg-type]
    return replace(
        episodes,
        start=replace(episodes.start, payload_kg=payloads_kg),
        payload_estimate_kg=np.zeros(len(payloads_kg)),
    )


def run_batch(
    settings: Settings,
    controller: ControllerSettings,
    policy: Policy | None,
    episodes: Episode,
    num_steps: int,
) -> Runs:
    """Run a batch of episodes; lost is also what the controller stopped."""
    loop = ControlLoop(settings.arm, without_warmup(controller))
    plant = make_plant('pinocchio', settings)
    policy = policy or ConstantPolicy(loop.nominal_action)
    log = run_episode(plant, episodes, policy, loop, num_steps)
    lost = is_lost(log.q_desired_rad, log.true_q_rad) | (log.modes >= Mode.STOP).any(axis=0)
    begin = round(SETTLED_S * controller.law.rate_hz)
    rmse = 1e3 * tracking_rmse(log.q_desired_rad[begin:], log.true_q_rad[begin:])
    change = np.abs(np.diff(log.effort_nm[begin:], axis=0)).sum(axis=(0, -1))
    variation = change * controller.law.rate_hz / (num_steps - begin)
    return Runs(lost, rmse, variation, log.was_moved.mean(axis=0))


def run_cell(cell: Cell) -> list[dict[str, Any]]:
    """Return the figures of a cell by payload; those of runs that were not lost."""
    began_s = time.perf_counter()
    settings = settings_in(settings_of(cell.arm), cell.condition)
    path = share_directory() / 'config' / 'classical' / f'{cell.condition.tuned_for}.yaml'
    assert isinstance(settings.arm, FromUrdf)
    groups = (
        [(share,) for share in PAYLOAD_SHARES] if cell.controller == ORACLE else [PAYLOAD_SHARES]
    )
    records = []
    policy: Policy | None
    for shares in groups:
        payloads_kg = payloads_of(settings, shares, cell.num_seeds)
        if cell.controller == 'adaptive':
            law = adapted_law(shipped_policy(), settings.arm, settings.controller)
            controller, policy = law.controller, law.policy
        elif cell.gains is not None:
            controller = with_speed(settings, cell.controller, cell.gains.speed)
            policy = ConstantPolicy(action_of(controller, cell.gains))
        else:
            controller, policy = load_classical(
                cell.controller, settings.controller, path, float(payloads_kg[0]), settings.arm
            )
        episodes = episodes_of(settings, payloads_kg, SEED, cell.num_seeds)
        runs = run_batch(settings, controller, policy, episodes, STEPS)
        for number, share in enumerate(shares):
            part = slice(number * cell.num_seeds, (number + 1) * cell.num_seeds)
            each = Runs(
                runs.lost[part],
                runs.rmse_mrad[part],
                runs.variation_nmps[part],
                runs.activation[part],
            )
            records.append(_record(cell, share, each))
    took_s = time.perf_counter() - began_s
    return [record | {'took_s': took_s} for record in records]


def _record(cell: Cell, share: float, runs: Runs) -> dict[str, Any]:
    kept = ~runs.lost
    return {
        'arm': cell.arm,
        'condition': cell.condition.name,
        'controller': cell.controller,
        'payload_share': share,
        'num_runs': cell.num_seeds,
        'num_lost': int(runs.lost.sum()),
        'rmse_mrad': float(runs.rmse_mrad[kept].mean()) if kept.any() else None,
        'worst_mrad': float(runs.rmse_mrad[kept].max()) if kept.any() else None,
        'variation_nmps': float(runs.variation_nmps[kept].mean()) if kept.any() else None,
        'shield_activation': float(runs.activation.mean()),
        'gains': None if cell.gains is None else cell.gains._asdict(),
    }


def tune(arm: str, condition: Condition, law: Tuned) -> dict[str, Any]:
    """Return the settings of a grid that lose no arm and track best, without and with a payload.

    If all of them lose one, those that lose the fewest.
    """
    settings = settings_in(settings_of(arm), condition)
    speeds = RATES_PER_S2 if law == 'ct_integral' else BANDWIDTHS_RADPS
    gains = [Gains(*entry, 0.0) for entry in itertools.product(KD_PER_S, KP_PER_S2)]
    payloads_kg = np.tile(payloads_of(settings, TUNING_SHARES, 1), len(gains))
    episodes = episodes_of(settings, payloads_kg, TUNING_SEED, 1)
    rows = []
    for speed in speeds:
        controller = with_speed(settings, law, speed)
        action = np.repeat([action_of(controller, each) for each in gains], 2, axis=0)
        runs = run_batch(settings, controller, FixedActions(action), episodes, TUNING_STEPS)
        lost = runs.lost.reshape(-1, 2).sum(axis=-1).tolist()
        error = np.where(runs.lost, 0.0, runs.rmse_mrad).reshape(-1, 2).mean(axis=-1).tolist()
        tried = [each._replace(speed=speed) for each in gains]
        rows += list(zip(lost, error, tried, strict=True))
    num_lost, error_mrad, best = min(rows)
    return {
        'arm': arm,
        'condition': condition.name,
        'controller': law,
        'gains': best._asdict(),
        'num_lost': num_lost,
        'rmse_mrad': error_mrad,
        'num_settings': len(rows),
    }


@functools.cache
def hash_of_code() -> str:
    """Return the hash of all code that decides a cell."""
    folder = Path(metactl_ros.__file__).parent
    files = [*(file for name in DECIDING for file in sorted((folder / name).rglob('*.py')))]
    return hashlib.sha256(b''.join(file.read_bytes() for file in files)).hexdigest()


def file_of(*inputs: Any) -> str:
    """Return the name of a file: it changes with everything that decides the figures."""
    known = repr((inputs, sha256_of(shipped_policy()), STEPS, TUNING_STEPS, hash_of_code()))
    return f'{hashlib.sha256(known.encode()).hexdigest()[:24]}.json'


def kept(
    function: Any,
    jobs: Sequence[tuple[Any, ...]],
    folder: Path,
    num_processes: int,
    console: Console,
    title: str,
) -> list[Any]:
    """Do the jobs that are not done; return the records of all."""
    files = [folder / file_of(title, job) for job in jobs]
    left = [(job, file) for job, file in zip(jobs, files, strict=True) if not file.is_file()]
    run_jobs(
        function,
        [job for job, _ in left],
        num_processes,
        console,
        title=title,
        num_done=len(jobs) - len(left),
        on_result=lambda index, record: write_json(left[index][1], record),
    )
    return [json.loads(file.read_text(encoding='utf-8')) for file in files]


@refusing
def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code: 0 done, 2 wrong use."""
    console = Console(stderr=True)
    names = [condition.name for condition in CONDITIONS]
    parser = command_parser('arms_benchmark', __doc__)
    add = parser.add_argument
    add('--arms', nargs='+', choices=ARMS, default=ARMS, help='(all)')
    add('--conditions', nargs='+', choices=names, default=names, help='(all)')
    add('--seeds', type=positive_count, default=3, help='runs per payload (%(default)s)')
    add('--out', type=Path, default=Path('results/benchmark_arms.json'), help='(%(default)s)')
    add('--page', type=Path, default=Path('docs/benchmark_arms.md'), help='(%(default)s)')
    add('--cells', type=Path, default=Path('runs/benchmark_arms'), help='(%(default)s)')
    add('--jobs', type=positive_count, default=1, help='processes side by side (%(default)s)')
    args = parser.parse_args(arguments)
    conditions = [condition for condition in CONDITIONS if condition.name in args.conditions]
    jobs = [(arm, c, law) for arm in args.arms for c in conditions for law in TUNED]
    tuned = kept(tune, jobs, args.cells, args.jobs, console, 'tuning')
    gains = {
        (row['arm'], row['condition'], row['controller']): Gains(**row['gains']) for row in tuned
    }
    cells = [
        (Cell(arm, c, name, args.seeds, gains.get((arm, c.name, name))),)
        for arm in args.arms
        for c in conditions
        for name in CONTROLLERS
    ]
    done = kept(run_cell, cells, args.cells, args.jobs, console, 'cells')
    result = {
        'conditions': [{'name': c.name, 'meaning': c.meaning} for c in conditions],
        'controllers': list(CONTROLLERS),
        'payload_shares': list(PAYLOAD_SHARES),
        'seeds': args.seeds,
        'bundle_sha256': sha256_of(shipped_policy()),
        'tuned': tuned,
        'cells': [record for records in done for record in records],
        'arms': {arm: provenance(settings_of(arm))['settings'] for arm in args.arms},
        **{k: v for k, v in provenance(settings_of(args.arms[0])).items() if k != 'settings'},
    }
    write_json(args.out, result)
    write_page(args.page, result)
    console.print(f'{args.out} and {args.page} written', highlight=False)
    return 0


if __name__ == '__main__':
    raise SystemExit(main())
