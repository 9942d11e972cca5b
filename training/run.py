# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""A training run on disk: what it was asked for, and checkpoints from which it goes on exactly.

    RUN/config.json            written before the first step
    RUN/checkpoints/STEPS/     complete or absent: written under another name, then renamed
        model.zip              networks, optimisers, entropy, beta, counters (stable-baselines3)
        replay.npz             the replay buffer
        rest.pkl               the environment in mid-episode, and every random generator

Checkpoints contain pickles and are for the machine that trains; a robot loads a policy bundle.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
import json
import os
from pathlib import Path
import pickle
import random
import shutil
from typing import Any, Literal
import zipfile

import numpy as np
import torch

from metactl_ros.config import build, require_not_negative, require_positive
from metactl_ros.control.context_window import feature_names, Tokens
from metactl_ros.errors import ConfigError, MetactlError
from metactl_ros.evaluation.result_file import provenance, write_json
from metactl_ros.plant.factory import PlantName
from metactl_ros.rivals import observer_gains, on_observer
from metactl_ros.settings import load_file, Settings
from training.env import ArmEnv, EnvSettings
from training.networks import make_policy_kwargs, Model, NetworkConfig
from training.replay_buffer import WindowReplayBuffer
from training.shielded_sac import ShieldedSAC

# What reading a damaged checkpoint raises: the file system, zip, NumPy, pickle, and the asserts of
# stable-baselines3.
DAMAGED = (
    OSError,
    ValueError,
    KeyError,
    EOFError,
    AssertionError,
    zipfile.BadZipFile,
    pickle.UnpicklingError,
)


# Of an actor that begins at a given action: the largest entry, how much its answer depends on
# what it sees, and the logarithm of its exploration's standard deviation.
MOST_INITIAL, SHRINK, INITIAL_LOG_STD = 0.99, 0.01, -3.0

# Adam in one pass over the weights: the same update, a tenth of the calls.
FUSED = {'optimizer_kwargs': {'fused': True}}


class RunError(MetactlError, RuntimeError):
    """A run directory or a checkpoint cannot be used."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Preset:
    """Hyper-parameters, as `config/training.yaml` states them."""

    gamma: float
    learning_rate: float
    batch_size: int
    buffer_size: int
    tau: float
    learning_starts: int
    reward_scale: float
    tokens: Tokens
    lagrangian_rate: float
    distance_target: float
    warm_start_share: float
    entropy_per_action: float = -1.0
    """Of SAC's target; -1 is its usual one, less explores less."""

    def __post_init__(self) -> None:
        require_positive(
            'Preset',
            learning_rate=self.learning_rate,
            batch_size=self.batch_size,
            buffer_size=self.buffer_size,
            tau=self.tau,
            reward_scale=self.reward_scale,
        )
        require_not_negative(
            'Preset',
            gamma=self.gamma,
            learning_starts=self.learning_starts,
            lagrangian_rate=self.lagrangian_rate,
            distance_target=self.distance_target,
            warm_start_share=self.warm_start_share,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Presets:
    """All of `config/training.yaml`."""

    paper: Preset
    robust: Preset
    observer: Preset


@dataclass(frozen=True, kw_only=True, slots=True)
class RunConfig:
    """Everything that decides the outcome of a run, beside the settings files."""

    preset: str
    model: Model
    heads: int
    window: int
    tau_z: float
    seed: int
    steps: int
    plant: PlantName
    device: str
    hyper: Preset
    controller: Literal['policy', 'meta_observer'] = 'policy'
    """What it learns to schedule: the law alone, or the law on top of a momentum observer."""

    def __post_init__(self) -> None:
        require_positive(
            'RunConfig',
            heads=self.heads,
            window=self.window,
            tau_z=self.tau_z,
            steps=self.steps,
        )

    @property
    def name(self) -> str:
        """Return what tells a run from others: the folder it goes to unless told otherwise."""
        size = f'k{self.heads}_w{self.window}'
        beta = '' if self.hyper.lagrangian_rate else '_beta0'
        base = '' if self.controller == 'policy' else f'{self.controller}_'
        return f'{base}{self.preset}_{self.model}_{size}_tau{self.tau_z:g}{beta}_seed{self.seed}'


def settings_of(settings: Settings, run: RunConfig) -> Settings:
    """Return the settings that a run is made for: on an observer there is another gain box."""
    if run.controller == 'policy':
        return settings
    return replace(settings, controller=on_observer(settings.controller))


def load_presets() -> Presets:
    """Return the shipped presets."""
    return load_file(Presets, None, 'training.yaml')


def choose_device(name: str) -> str:
    """Return 'cuda' or 'cpu' for 'auto', 'cuda' or 'cpu'."""
    has_gpu = torch.cuda.is_available()
    if name == 'cuda' and not has_gpu:
        raise ConfigError(
            '--device cuda: this machine has no GPU that torch can use; leave --device out.'
        )
    return ('cuda' if has_gpu else 'cpu') if name == 'auto' else name


def make_env(settings: Settings, run: RunConfig) -> ArmEnv:
    """Return the environment of a run."""
    env = EnvSettings(
        plant=run.plant,
        tau_z_s=run.tau_z,
        num_rows=run.window,
        reward_scale=run.hyper.reward_scale,
        warm_start_share=run.hyper.warm_start_share,
    )
    return ArmEnv(settings, env)


def make_model(settings: Settings, run: RunConfig, env: ArmEnv, log_dir: Path) -> ShieldedSAC:
    """Return a fresh learner; its seed also seeds the environment and every generator."""
    hyper = run.hyper
    network = NetworkConfig(
        model=run.model,
        heads=run.heads,
        window=run.window,
        num_features=len(
            feature_names(settings.arm.joint_names, settings.controller.context.num_extra)
        ),
        tokens=hyper.tokens,
    )
    model = ShieldedSAC(
        'MlpPolicy',
        env,
        learning_rate=hyper.learning_rate,
        buffer_size=hyper.buffer_size,
        learning_starts=hyper.learning_starts,
        batch_size=hyper.batch_size,
        tau=hyper.tau,
        gamma=hyper.gamma,
        replay_buffer_class=WindowReplayBuffer,
        replay_buffer_kwargs={'num_rows': run.window},
        policy_kwargs={**make_policy_kwargs(network), **FUSED},
        target_entropy=hyper.entropy_per_action * env.loop.gain_map.size,
        tensorboard_log=str(log_dir),
        seed=run.seed,
        device=run.device,
        lagrangian_rate=hyper.lagrangian_rate * hyper.reward_scale,
        distance_target=hyper.distance_target,
    )
    if run.controller == 'meta_observer':
        begin_at(model, env.loop.gain_map.action(observer_gains(settings.controller)))
    return model


def begin_at(model: ShieldedSAC, action: Sequence[float]) -> None:
    """Let a fresh actor propose nearly one action, and explore little around it.

    Learning on top of a controller that is good already would first have to learn that one again:
    an exploring weight of the estimate is worth more torque than all that is left to gain.
    """
    actor: Any = model.actor
    with torch.no_grad():
        for layer, bias in (
            (actor.mu, np.arctanh(np.clip(action, -MOST_INITIAL, MOST_INITIAL))),
            (actor.log_std, np.full(len(action), INITIAL_LOG_STD)),
        ):
            layer.weight.mul_(SHRINK)
            layer.bias.copy_(torch.as_tensor(bias))


def begin_run(folder: Path, settings: Settings, run: RunConfig) -> None:
    """Create the run directory and write its configuration; refuse to overwrite another run."""
    if (folder / 'config.json').exists():
        raise RunError(f'{folder}: holds a run already; go on with --resume, or choose --out.')
    write_json(folder / 'config.json', {'run': asdict(run), **provenance(settings)})


def read_run(folder: Path) -> RunConfig:
    """Return the configuration of a run directory."""
    path = folder / 'config.json'
    try:
        content = json.loads(path.read_text(encoding='utf-8'))
    except OSError as error:
        raise RunError(f'{folder}: not a run directory ({error}); train one first.') from None
    except json.JSONDecodeError as error:
        raise RunError(f'{path}: not valid JSON ({error}); the run cannot be used.') from None
    return build(RunConfig, content.get('run'), str(path))


def save_checkpoint(folder: Path, model: ShieldedSAC) -> Path:
    """Write a checkpoint of everything and remove older ones; a crash leaves the one before."""
    target = folder / 'checkpoints' / f'{model.num_timesteps:08d}'
    if target.exists():
        return target
    partial = target.with_name(f'.{target.name}.{os.getpid()}.partial')
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    model.save(partial / 'model.zip')
    assert isinstance(model.replay_buffer, WindowReplayBuffer)
    arrays: dict[str, Any] = {**model.replay_buffer.state()}
    np.savez(partial / 'replay.npz', **arrays)
    vector: Any = model.get_env()
    rest = {'env': vector.envs[0], 'actions': model.action_space, 'random': _random_states()}
    (partial / 'rest.pkl').write_bytes(pickle.dumps(rest))
    for path in partial.iterdir():
        _sync(path)
    partial.rename(target)
    _sync(target.parent)
    for other in target.parent.iterdir():
        if other != target:
            shutil.rmtree(other, ignore_errors=True)
    return target


def save_result(folder: Path, model: ShieldedSAC) -> None:
    """Write the trained model, complete or not at all."""
    partial = folder / f'.model.{os.getpid()}.zip'
    model.save(partial)
    _sync(partial)
    partial.rename(folder / 'model.zip')
    _sync(folder)


def load_checkpoint(folder: Path, run: RunConfig) -> ShieldedSAC:
    """Return the learner in its environment, and set every random generator back."""
    found = sorted(path for path in (folder / 'checkpoints').glob('[0-9]*') if path.is_dir())
    if not found:
        raise RunError(f'{folder}: has no checkpoint yet; start it again without --resume.')
    newest = found[-1]
    try:
        rest = pickle.loads((newest / 'rest.pkl').read_bytes())
        model = ShieldedSAC.load(
            newest / 'model.zip', env=rest['env'], device=run.device, force_reset=False
        )
        with (newest / 'replay.npz').open('rb') as file, np.load(file) as arrays:
            assert isinstance(model.replay_buffer, WindowReplayBuffer)
            model.replay_buffer.restore(dict(arrays))
    except DAMAGED as error:
        raise RunError(
            f'{newest}: the checkpoint is damaged ({error}); remove it and resume from another, '
            'or start again.'
        ) from error
    model.action_space = rest['actions']  # with the generator of the random first steps
    _restore_random_states(rest['random'])
    return model


def _random_states() -> dict[str, Any]:
    return {
        'python': random.getstate(),
        'numpy': np.random.get_state(),  # noqa: NPY002 - stable-baselines3 draws from it
        'torch': torch.get_rng_state(),
        'cuda': torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
    }


def _restore_random_states(states: dict[str, Any]) -> None:
    random.setstate(states['python'])
    np.random.set_state(states['numpy'])  # noqa: NPY002 - stable-baselines3 draws from it
    torch.set_rng_state(states['torch'])
    if states['cuda']:
        torch.cuda.set_rng_state_all(states['cuda'])


def _sync(path: Path) -> None:
    """Force a file or a folder to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
