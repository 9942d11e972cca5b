# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""Trials: one controller on one plant at one payload, and a pool of processes that runs many."""

from collections.abc import Sequence
from concurrent.futures import as_completed, ProcessPoolExecutor
from dataclasses import dataclass, fields, replace
import multiprocessing
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from metactl_ros.baselines import (
    ClassicalName,
    load_learned,
    load_rivals,
    make_classical,
    Rival,
    truth_of,
)
from metactl_ros.bench.twins import fixed_gain_twin, settings_of_twin, Twin
from metactl_ros.control.loop import ControlLoop
from metactl_ros.metrics import is_lost, tracking_rmse
from metactl_ros.plants import make_plant, PlantName
from metactl_ros.settings import Settings
from metactl_ros.signals import Array, Policy
from metactl_ros.sim.plant import Plant
from metactl_ros.sim.rollout import for_learning, run_episode
from metactl_ros.sim.task import draw_evaluation, Episode

BUNDLE_SUFFIX = '.metactl'


@dataclass(frozen=True, kw_only=True, slots=True)
class Trial:
    """One controller on one plant, at one payload: the unit of parallel work."""

    run: Path | None
    """A training run or a bundle whose policy is tried; None is a classical controller."""
    controller: ClassicalName = 'ct'
    """Which one; `ct` is the fixed-gain baseline."""
    classical_file: Path | None = None
    """Its gains, as in config/classical; None for nominal.yaml there."""
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
    is_lost: NDArray[np.bool_]
    """As `metrics.is_lost` says."""


def run_trial(settings: Settings, trial: Trial) -> TrialResult:
    """Run the rollouts of a trial: as one batch on the RK4 plant, one by one in PyBullet."""
    settings = settings_of_twin(settings, trial.twin)
    episodes = draw_evaluation(
        settings.plant.task, trial.seed, trial.payload_kg, trial.num_rollouts, trial.tau_z_s
    )
    plant = make_plant(trial.plant, settings)
    if trial.run is not None:
        loop, policy = trained_policy(settings, trial.run)
    elif trial.controller == 'ct':
        loop, policy = fixed_gain_twin(settings, plant, trial.twin)
    else:
        loop, policy = rival_policy(settings, trial)
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
        rmse_rad=np.atleast_1d(tracking_rmse(log.q_desired_rad, log.true_q_rad)),
        peak_effort_nm=np.atleast_2d(np.abs(log.effort_nm).max(axis=0)),
        limited_share=np.atleast_1d(log.is_limited.any(axis=-1).mean(axis=0)),
        shield_activation=np.atleast_1d(log.was_moved.mean(axis=0)),
        is_lost=np.atleast_1d(is_lost(log.q_desired_rad, log.true_q_rad)),
    )


def _concatenate(results: list[TrialResult]) -> TrialResult:
    names = [field.name for field in fields(TrialResult)]
    return TrialResult(*(np.concatenate([getattr(r, name) for r in results]) for name in names))


def run_trials(
    settings: Settings, trials: Sequence[Trial], num_jobs: int, console: Console
) -> list[TrialResult]:
    """Run trials under a progress bar; results in the order of trials.

    More than one job means a pool of processes. One job means none: whoever ends this process
    ends the work, and nothing is left behind that holds its files.
    """
    columns = (
        TextColumn('{task.description}'),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
    )
    # spawn, not fork: a physics client must not be inherited.
    context = multiprocessing.get_context('spawn')
    results: dict[int, TrialResult] = {}
    with Progress(*columns, console=console) as progress:
        bar = progress.add_task('rollouts', total=len(trials))
        if num_jobs == 1:
            return [run_trial(settings, trial) for trial in progress.track(trials, task_id=bar)]
        with ProcessPoolExecutor(max_workers=num_jobs, mp_context=context) as pool:
            futures = {pool.submit(run_trial, settings, t): i for i, t in enumerate(trials)}
            for future in as_completed(futures):
                results[futures[future]] = future.result()
                progress.advance(bar)
    return [results[index] for index in range(len(trials))]


def rival_policy(settings: Settings, trial: Trial) -> tuple[ControlLoop, Policy]:
    """Return the loop and the policy of a rival; the oracle knows what the trial is made of."""
    rival: Rival = getattr(load_rivals(trial.classical_file), trial.controller)
    is_told = trial.controller == 'oracle'
    truth = truth_of(settings.plant, trial.payload_kg, trial.tau_z_s) if is_told else None
    controller, policy = make_classical(for_learning(settings.controller), rival, truth)
    assert policy is not None
    return ControlLoop(settings.arm, controller), policy


def trained_policy(settings: Settings, run: Path) -> tuple[ControlLoop, Policy]:
    """Return the loop and the policy of a training run, or of a bundle."""
    policy: Policy
    if run.suffix == BUNDLE_SUFFIX:
        bundle = load_learned(run, settings.arm, settings.controller)
        policy, controller = bundle.policy, bundle.controller
    else:
        # Imported here: who evaluates the baseline or a bundle needs no torch.
        from training.learn.policy import load_policy
        from training.learn.run import read_run, settings_of

        controller = settings_of(settings, read_run(run)).controller
        window, policy = load_policy(run)
        controller = replace(controller, context=replace(controller.context, num_rows=window))
    return ControlLoop(settings.arm, for_learning(controller)), policy
