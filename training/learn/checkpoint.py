# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""Checkpoints from which a run goes on exactly, and its trained weights; nothing is unpickled.

    RUN/checkpoints/STEPS/     complete or absent: written under another name, then renamed
        learner.npz            networks, moments of the optimisers, entropy
        replay.npz             the replay buffer
        episode.npz            the actions of the episode under way, and what was seen last
        rest.json              counters, beta, what the shield moved, every random generator
    RUN/model.zip              the result, as stable-baselines3 writes it for its own users

All of it is numbers: JSON, and arrays that are loaded with allow_pickle=False. What is code (the
learner, its networks, the environment) is made from RUN/config.json. The environment is not stored
at all: it is reset with the generator of its last reset, and takes the actions since once more.
Of model.zip only `policy.pth` is read, with torch's loader for plain tensors.
"""

from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
import io
import json
from operator import attrgetter
import os
from pathlib import Path
import random
import shutil
from typing import Any
import zipfile

import numpy as np
from stable_baselines3.sac.policies import SACPolicy
import torch

from metactl_ros.files import sync
from metactl_ros.signals import Array, Policy
from training.learn.networks import build_policy, NetworkConfig
from training.learn.run import (
    make_env,
    make_model,
    read_num_joints,
    read_run,
    read_settings,
    RunConfig,
    RunError,
)
from training.learn.shielded_sac import ShieldedSAC, WindowReplayBuffer

FORMAT = 1
KEPT = (
    *('num_timesteps', '_total_timesteps', '_num_timesteps_at_start', '_episode_num'),
    *('_n_updates', '_current_progress_remaining', 'beta', 'shield_moved'),
)
"""Of the learner: plain numbers, and a list of them."""
OPTIMISERS = ('actor.optimizer', 'critic.optimizer', 'ent_coef_optimizer')
MOST_BYTES = 2**28
"""Of the weights of a result; the largest network has a hundredth."""

Arrays = dict[str, Any]


def save_checkpoint(folder: Path, model: ShieldedSAC) -> Path:
    """Write a checkpoint of everything and remove older ones; a crash leaves the one before."""
    target = folder / 'checkpoints' / f'{model.num_timesteps:08d}'
    if target.exists():
        return target
    partial = target.with_name(f'.{target.name}.{os.getpid()}.partial')
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    assert isinstance(model.replay_buffer, WindowReplayBuffer)
    replay: Arrays = {**model.replay_buffer.state()}
    parts = {'learner': _learner_arrays(model), 'replay': replay, 'episode': _episode(model)}
    for name, arrays in parts.items():
        np.savez(partial / f'{name}.npz', **arrays)
    rest = json.dumps(_rest(model), allow_nan=False)
    (partial / 'rest.json').write_text(rest, encoding='utf-8')
    for path in partial.iterdir():
        sync(path)
    partial.rename(target)
    sync(target.parent)
    for other in target.parent.iterdir():
        if other != target:
            shutil.rmtree(other, ignore_errors=True)
    return target


def load_checkpoint(folder: Path, run: RunConfig) -> ShieldedSAC:
    """Return the learner in its environment, and set every random generator back."""
    found = sorted(path for path in (folder / 'checkpoints').glob('[0-9]*') if path.is_dir())
    if not found:
        raise RunError(f'{folder}: has no checkpoint yet; start it again without --resume.')
    newest = found[-1]
    if (newest / 'rest.pkl').exists():
        raise RunError(
            f'{newest}: is of an older version, in a format that can execute code, and is not '
            f'read; finish the run with the version that began it (`code` in {folder}/config.json'
            '), or start again.'
        )
    settings = read_settings(folder)
    model = make_model(settings, run, make_env(settings, run), folder / 'tensorboard')
    with _refusing(newest):
        rest = json.loads((newest / 'rest.json').read_text(encoding='utf-8'))
        if rest['format'] != FORMAT:
            raise ValueError(f'expected format {FORMAT}, found {rest["format"]!r}')
        _restore_learner(model, _arrays(newest / 'learner.npz'))
        assert isinstance(model.replay_buffer, WindowReplayBuffer)
        model.replay_buffer.restore(_arrays(newest / 'replay.npz'))
        for name in KEPT:
            setattr(model, name, type(getattr(model, name))(rest[name]))
        if rest['episodes'] is not None:
            model.ep_info_buffer = deque(rest['episodes'], maxlen=model._stats_window_size)
            model.ep_success_buffer = deque(maxlen=model._stats_window_size)
        episode = _arrays(newest / 'episode.npz')
    _restore_episode(newest, model, rest['environment'], episode)
    with _refusing(newest):
        model.action_space.np_random.bit_generator.state = rest['actions']
        _restore_random_states(rest['random'])
    return model


def save_result(folder: Path, model: ShieldedSAC) -> None:
    """Write the trained model, complete or not at all."""
    partial = folder / f'.model.{os.getpid()}.zip'
    model.save(partial)
    sync(partial)
    partial.rename(folder / 'model.zip')
    sync(folder)


def load_network(folder: Path) -> SACPolicy:
    """Return the trained networks of a finished run, of this version or an older one.

    Sizes that the configuration does not state are those of the weights.
    """
    run, num_joints, path = read_run(folder), read_num_joints(folder), folder / 'model.zip'
    if not path.is_file():
        raise RunError(f'{path}: not there; finish the run with training.train --resume {folder}')
    with _refusing(path):
        with zipfile.ZipFile(path) as archive:
            if archive.getinfo('policy.pth').file_size > MOST_BYTES:
                raise ValueError(f'expected at most {MOST_BYTES} bytes of weights')
            data = io.BytesIO(archive.read('policy.pth'))
        weights = torch.load(data, map_location='cpu', weights_only=True)
        config = NetworkConfig(run.model, run.heads, run.window, num_joints, 0, run.hyper.tokens)
        num_features = len(weights['actor.features_extractor.token_map'])
        config = replace(config, num_extra=num_features - config.num_features)
        policy = build_policy(config, len(weights['actor.mu.bias']))
        policy.load_state_dict(weights)
    policy.set_training_mode(False)
    return policy


def load_policy(folder: Path) -> Policy:
    """Return the deterministic policy of a finished run."""
    torch.set_num_threads(1)
    return network_policy(load_network(folder))


def network_policy(network: Any) -> Policy:
    """Return the deterministic actor of a stable-baselines3 policy, batch first."""

    def policy(window: Array) -> Array:
        rows = window.reshape(-1, window.shape[-2] * window.shape[-1])
        flat = torch.as_tensor(rows, dtype=torch.float32).to(network.device)
        with torch.no_grad():
            action = network.actor(flat, deterministic=True)
        actions: Array = action.cpu().numpy().astype(np.float64)
        return actions.reshape(*window.shape[:-2], -1)

    return policy


def _learner_arrays(model: ShieldedSAC) -> Arrays:
    """Return all tensors that learning changes, by name."""
    tensors = {f'policy/{name}': value for name, value in model.policy.state_dict().items()}
    for name, optimiser in _optimisers(model).items():
        for index, moments in optimiser.state_dict()['state'].items():
            tensors |= {f'{name}/{index}/{key}': value for key, value in moments.items()}
    if model.log_ent_coef is not None:
        tensors['log_ent_coef'] = model.log_ent_coef.detach()
    return {name: tensor.cpu().numpy() for name, tensor in tensors.items()}


def _restore_learner(model: ShieldedSAC, arrays: Arrays) -> None:
    tensors = {name: torch.as_tensor(array) for name, array in arrays.items()}

    def below(name: str) -> Arrays:
        prefix = f'{name}/'
        return {n.removeprefix(prefix): t for n, t in tensors.items() if n.startswith(prefix)}

    model.policy.load_state_dict(below('policy'))
    for name, optimiser in _optimisers(model).items():
        state: dict[int, Arrays] = {}
        for key, tensor in below(name).items():
            index, moment = key.split('/')
            state.setdefault(int(index), {})[moment] = tensor
        optimiser.load_state_dict({**optimiser.state_dict(), 'state': state})
    if model.log_ent_coef is not None:
        with torch.no_grad():  # in place: its optimiser holds it
            model.log_ent_coef.copy_(tensors['log_ent_coef'])


def _optimisers(model: ShieldedSAC) -> dict[str, torch.optim.Optimizer]:
    found = {name: attrgetter(name)(model) for name in OPTIMISERS}
    return {name: optimiser for name, optimiser in found.items() if optimiser is not None}


def _episode(model: ShieldedSAC) -> Arrays:
    """Return what the environment was given, and what was seen last; nothing before a reset."""
    vector: Any = model.get_env()
    if model._last_obs is None:
        return {}
    return {
        'actions': np.array(vector.envs[0].unwrapped.actions, dtype=np.float32),
        'last_observation': model._last_obs,
        'last_starts': model._last_episode_starts,
    }


def _restore_episode(
    where: Path, model: ShieldedSAC, drawn_from: dict[str, Any], arrays: Arrays
) -> None:
    """Let the environment take all actions of the episode under way once more."""
    vector: Any = model.get_env()
    env = vector.envs[0]
    with _refusing(where):
        env.unwrapped.np_random.bit_generator.state = drawn_from
        if not arrays:
            return  # nothing had begun
        vector._reset_seeds()  # of the first reset, which was long ago
        seen, _ = env.reset()
        for action in arrays['actions']:
            seen, *_ = env.step(action)
        model._last_obs = arrays['last_observation']
        model._last_episode_starts = arrays['last_starts']
    if not np.array_equal(seen, arrays['last_observation'][0]):
        raise RunError(
            f'{where}: the environment does not come where it was when its last actions are '
            'repeated: the simulator or the settings are others; finish the run with the version '
            'that began it, or start again.'
        )


def _rest(model: ShieldedSAC) -> dict[str, Any]:
    vector: Any = model.get_env()
    env = vector.envs[0].unwrapped
    has_begun = model._last_obs is not None
    kind, keys, *rest = np.random.get_state(legacy=True)  # noqa: NPY002 - stable-baselines3's
    on_gpu = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []
    return {
        'format': FORMAT,
        **{name: getattr(model, name) for name in KEPT},
        'episodes': None if model.ep_info_buffer is None else list(model.ep_info_buffer),
        'environment': env.drawn_from if has_begun else env.np_random.bit_generator.state,
        'actions': model.action_space.np_random.bit_generator.state,
        'random': {
            'python': random.getstate(),
            'numpy': [kind, np.asarray(keys).tolist(), *rest],
            'torch': torch.get_rng_state().tolist(),
            'cuda': [state.tolist() for state in on_gpu],
        },
    }


def _restore_random_states(states: dict[str, Any]) -> None:
    version, words, gauss = states['python']
    random.setstate((version, tuple(words), gauss))
    np.random.set_state(tuple(states['numpy']))  # noqa: NPY002 - stable-baselines3 draws from it
    torch.set_rng_state(torch.tensor(states['torch'], dtype=torch.uint8))
    if states['cuda']:
        on_gpu = [torch.tensor(state, dtype=torch.uint8) for state in states['cuda']]
        torch.cuda.set_rng_state_all(on_gpu)


def _arrays(path: Path) -> Arrays:
    with path.open('rb') as file, np.load(file, allow_pickle=False) as arrays:
        return dict(arrays)


@contextmanager
def _refusing(path: Path) -> Iterator[None]:
    """Whatever reading a damaged file raises, say which it is and what to do."""
    try:
        yield
    except Exception as error:
        raise RunError(
            f'{path}: damaged ({type(error).__name__}: {error}); remove it and resume from '
            'another, or train it again.'
        ) from error
