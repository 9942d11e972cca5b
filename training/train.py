# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""Train a policy with shielded SAC.

    python -m training.train --preset paper --model incrt --heads 7 --window 50 --tau-z 2 --seed 42

The run directory holds the resolved configuration before the first step, checkpoints, judgements
of the policy on its way, TensorBoard logs and the trained model. SIGTERM or Ctrl-C writes a
checkpoint and ends; `--resume` goes on from the last one exactly as if nothing had happened.
"""

import argparse
from collections.abc import Sequence
from dataclasses import fields, replace
from pathlib import Path
import sys
import time
from types import FrameType
from typing import Any, get_args

import numpy as np
from rich.console import Console
from rich.progress import Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from stable_baselines3.common.callbacks import BaseCallback
import torch

from metactl_ros.baselines import ControllerSpec
from metactl_ros.metrics import delta_percent
from metactl_ros.settings import load_settings, PlantName, Settings
from metactl_ros.signals import Policy
from metactl_ros.sim.rollout import with_window
from metactl_ros.sim.task import draw_evaluation
from training.commands import asked_to_stop, command_parser, progress_bar, refusing
from training.judge.rollouts import Conditions, evaluate_controller
from training.learn.checkpoint import load_checkpoint, network_policy, save_checkpoint, save_result
from training.learn.judgements import inspect_actor, judgement_of, Judgements, record_actor
from training.learn.run import (
    begin_run,
    choose_device,
    load_presets,
    make_env,
    make_model,
    note_code,
    Presets,
    read_run,
    RunConfig,
    RunError,
    settings_of,
    with_difference,
)

CHECKPOINT_EVERY_S = 30.0
JUDGE_EVERY_STEPS = 2500
JUDGE_SEED, JUDGE_ROLLOUTS = 7, 4
OPTIONS = (
    *('preset', 'model', 'heads', 'window', 'tau_z', 'seed', 'steps', 'plant'),
    *('controller', 'difference'),
)
"""Of the command line: what a run is, as `RunConfig` names it."""


class TrainingCallback(BaseCallback):
    """Shows progress, judges the policy now and then, and writes checkpoints.

    Checkpoints are written at the start of a rollout, when the last transition is stored and the
    networks are updated: the one moment at which nothing is under way. A judgement that is due
    comes before, so that a run that goes on from there need not repeat it without its gradient.
    """

    def __init__(
        self,
        folder: Path,
        settings: Settings,
        run: RunConfig,
        progress: Progress,
        judgements: Judgements,
    ) -> None:
        super().__init__()
        self._folder, self._settings, self._run = folder, settings, run
        self._progress, self._judgements = progress, judgements
        self._bar = progress.add_task('training', total=run.steps, delta='   -  ')
        self._began_at = self._saved_at = time.monotonic()
        self._baseline: float | None = None
        self.must_stop = self._may_stop = False

    def stop(self, _signal: int, _frame: FrameType | None) -> None:
        """Ask for an end after this step."""
        self.must_stop = True

    def _on_rollout_start(self) -> None:
        if self.num_timesteps % JUDGE_EVERY_STEPS == 0 and self.num_timesteps:
            self.judge()
        is_due = time.monotonic() - self._saved_at > CHECKPOINT_EVERY_S
        if self.must_stop or is_due:
            self.save()
            self._may_stop = self.must_stop

    def _on_step(self) -> bool:
        self._progress.update(self._bar, completed=self.num_timesteps)
        info = self.locals['infos'][0]
        self.logger.record_mean('shield/activation', float(info['was_moved']))
        model: Any = self.model
        model.shield_moved.append(bool(info['was_moved']))
        for name, value in info['reward_terms'].items():
            self.logger.record_mean(f'reward/{name}', value)
        return not self._may_stop  # only after a checkpoint: the step under way is not stored yet

    def save(self) -> None:
        """Write a checkpoint."""
        model: Any = self.model
        save_checkpoint(self._folder, model)
        self._saved_at = time.monotonic()

    def judge(self) -> None:
        """Judge the policy as it is, unless that is done; no random generator is used."""
        if self._judgements.has(self.num_timesteps):
            return
        if self._baseline is None:
            self._baseline = mean_rmse(self._settings, self._run, None)
        model: Any = self.model
        policy = network_policy(model.policy)
        delta = delta_percent(mean_rmse(self._settings, self._run, policy), self._baseline)
        share = 100.0 * sum(model.shield_moved) / max(len(model.shield_moved), 1)
        model.shield_moved.clear()
        found = inspect_actor(model.actor, model.replay_buffer)
        self._judgements.add(
            judgement_of(
                found,
                self.num_timesteps,
                delta_percent=delta,
                shield_moved_percent=share,
                beta=model.beta,
                entropy_weight=float(model.log_ent_coef.detach().exp()),
            )
        )
        self.logger.record('judge/delta_percent', delta)
        record_actor(self.logger, found)
        self.logger.dump(self.num_timesteps)  # now: the next dump is hundreds of steps away
        self._progress.update(self._bar, delta=f'{delta:+.1f} %')
        self._progress.console.print(
            f'{self.num_timesteps:6d} steps {time.monotonic() - self._began_at:6.0f} s  '
            f'delta {delta:+6.1f} %  shield moved {share:5.1f} %  beta {model.beta:.3g}',
            highlight=False,
        )


def mean_rmse(settings: Settings, run: RunConfig, policy: Policy | None) -> float:
    """Return the RMSE of a policy, or of the fixed gains, on a few rollouts of the RK4 plant, rad.

    Cheap enough for every few thousand steps; a full evaluation is training.evaluate.
    """
    settings = replace(settings, controller=with_window(settings.controller, run.window))
    task, spec = settings.plant.task, ControllerSpec(run.model, policy=policy)
    found = []
    for payload in task.payload_levels_kg:
        episodes = draw_evaluation(task, JUDGE_SEED, payload, JUDGE_ROLLOUTS, run.tau_z)
        unguarded = Conditions(is_guarded=False)
        rollouts = evaluate_controller(spec, settings, episodes, settings.episode_steps, unguarded)
        found.append(rollouts.rmse_rad)
    return float(np.mean(found))


def train(
    folder: Path, settings: Settings, run: RunConfig, *, resume: bool, console: Console
) -> bool:
    """Train until the steps are done, or until asked to stop; return whether they are done."""
    torch.set_num_threads(1)
    if resume:
        model = load_checkpoint(folder, run)
        note_code(folder)
    else:
        begin_run(folder, settings, run)
        model = make_model(settings, run, make_env(settings, run), folder / 'tensorboard')
    columns = (
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        TextColumn('delta {task.fields[delta]}'),
    )
    with progress_bar(console, *columns) as progress:
        judgements = Judgements(folder, model.num_timesteps)
        watch = TrainingCallback(folder, settings, run, progress, judgements)
        with asked_to_stop(watch.stop):
            left = run.steps - model.num_timesteps
            model.learn(left, watch, 4, tb_log_name='sac', reset_num_timesteps=False)
            if not watch.must_stop:
                watch.judge()
                watch.save()
                save_result(folder, model)
    return not watch.must_stop


def parse_args(arguments: Sequence[str] | None, presets: Presets) -> argparse.Namespace:
    """Return the command line as a namespace."""
    parser = command_parser('train', __doc__)
    names = [field.name for field in fields(presets)]
    add = parser.add_argument
    add('--preset', choices=names, default='robust', help='(%(default)s)')
    add('--model', default='incrt', help='a name of training.learn.networks (%(default)s)')
    add('--heads', type=int, default=7, help='attention heads K (%(default)s)')
    add('--window', type=int, default=50, help='window W (%(default)s)')
    add('--tau-z', type=float, default=2.0, metavar='S', help='(%(default)s)')
    add('--seed', type=int, default=42, help='(%(default)s)')
    add('--steps', type=int, default=50_000, help='(%(default)s)')
    text = 'policy: gains of the law; bank: of a bank of observers, too, as training.adapt does, '
    text += 'for the preset `bank` (%(default)s)'
    add('--controller', choices=('policy', 'bank'), default='policy', help=text)
    add('--plant', choices=get_args(PlantName), default='bullet')
    off = 'keep beta at 0, to see what it buys'
    add('--without-lagrangian', action='store_true', help=off)
    add('--difference', metavar='NAME', help='change one setting: a name of differences.yaml')
    add('--device', choices=('auto', 'cpu', 'cuda'), default='auto')
    add('--out', type=Path, help='run directory (default: runs/train/...)')
    add('--resume', type=Path, metavar='RUN', help='go on with a run')
    return parser.parse_args(arguments)


def require_no_contradiction(
    args: argparse.Namespace, words: Sequence[str], run: RunConfig
) -> None:
    """Refuse options that a resumed run was begun without: they could not take effect."""
    given = {word.split('=')[0] for word in words}
    for name in OPTIONS:
        option = f'--{name.replace("_", "-")}'
        if option in given and getattr(args, name) != getattr(run, name):
            raise RunError(
                f'{option} {getattr(args, name)}: {args.resume} was begun with '
                f'{getattr(run, name)}; leave it out to resume, or begin another run with --out.'
            )


def run_from(args: argparse.Namespace, presets: Presets) -> RunConfig:
    """Return the run that a command line asks for."""
    hyper = with_difference(getattr(presets, args.preset), args.difference)
    if args.without_lagrangian:
        hyper = replace(hyper, lagrangian_rate=0.0)
    asked = {name: getattr(args, name) for name in OPTIONS}
    return RunConfig(**asked, device=choose_device(args.device), hyper=hyper)


@refusing
def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code: 0 done, 2 wrong use, 3 stopped and resumable."""
    console = Console(stderr=True)
    presets = load_presets()
    args = parse_args(arguments, presets)
    if args.resume:
        folder, run = args.resume, read_run(args.resume)
        require_no_contradiction(args, sys.argv[1:] if arguments is None else arguments, run)
    else:
        run = run_from(args, presets)
        folder = args.out or Path('runs/train') / run.name
    settings = settings_of(load_settings(), run)
    is_done = train(folder, settings, run, resume=bool(args.resume), console=console)
    if not is_done:
        console.print(f'stopped; go on with: python -m training.train --resume {folder}')
        return 3
    console.print(f'done: {folder}; evaluate with: python -m training.evaluate --run {folder}')
    return 0


if __name__ == '__main__':
    raise SystemExit(main())
