# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""How much faster a gradient step is than stock SAC with plain attention, and how much leaner."""

import importlib.util
from pathlib import Path
import statistics
import time
from types import ModuleType
from typing import Any

import numpy as np
from stable_baselines3 import SAC
from stable_baselines3.common.buffers import ReplayBuffer
import torch

from metactl_ros.settings import Settings
from training.learn.env import ArmEnv, EnvSettings
from training.learn.networks import (
    DeepAttention,
    make_policy_kwargs,
    NetworkConfig,
    ShallowAttention,
)
from training.learn.replay_buffer import WindowReplayBuffer
from training.learn.run import FUSED
from training.learn.shielded_sac import ShieldedSAC

NUM_TURNS = 7
BATCH_SIZE = 256
NUM_TRANSITIONS = 600
CASES = {
    'incrt_k4_w20': NetworkConfig(model='incrt', heads=4, window=20),
    'incrt_k7_w50': NetworkConfig(model='incrt', heads=7, window=50),
    'transformer_w20': NetworkConfig(model='transformer', heads=4, window=20),
}


def bench_training(settings: Settings) -> dict[str, Any]:
    """Return ratios of seconds per SAC gradient step, stock to ours, and of replay memory.

    Both learners have the same networks, batches of 256 and one thread; they take turns.
    """
    torch.set_num_threads(1)
    ratios, milliseconds = {}, {}
    for name, config in CASES.items():
        ours = _learner(settings, config, is_ours=True)
        stock = _learner(settings, config, is_ours=False)
        turns = [(_seconds(stock, 3), _seconds(ours, 20)) for _ in range(NUM_TURNS)]
        ratios[name] = statistics.median(slow / fast for slow, fast in turns)
        milliseconds[name] = 1e3 * statistics.median(fast for _, fast in turns)
    return {
        'train_step_ratio': ratios,
        'train_step_ms': milliseconds,
        'replay_memory_ratio_w50': _memory_ratio(settings),
    }


def _learner(settings: Settings, config: NetworkConfig, is_ours: bool) -> Any:
    env = _env(settings, config.window)
    kwargs = make_policy_kwargs(config)
    shared: dict[str, Any] = {
        'buffer_size': NUM_TRANSITIONS,
        'learning_starts': NUM_TRANSITIONS + 1,
        'seed': 0,
        'device': 'cpu',
    }
    if is_ours:
        model: SAC = ShieldedSAC(
            'MlpPolicy',
            env,
            policy_kwargs={**kwargs, **FUSED},
            replay_buffer_class=WindowReplayBuffer,
            replay_buffer_kwargs={'num_rows': config.window},
            lagrangian_rate=0.1,
            **shared,
        )
    else:
        plain = _plain_attention()
        kinds = {
            ShallowAttention: plain.PlainShallowAttention,
            DeepAttention: plain.PlainDeepAttention,
        }
        kwargs = {
            **kwargs,
            'features_extractor_class': kinds[kwargs['features_extractor_class']],
        }
        model = SAC('MlpPolicy', env, policy_kwargs=kwargs, **shared)
    model.learn(NUM_TRANSITIONS)
    model.train(gradient_steps=2, batch_size=BATCH_SIZE)
    return model


def _seconds(model: SAC, gradient_steps: int) -> float:
    """Return the median time of a gradient step; one before them warms the caches again."""
    taken = []
    for _ in range(gradient_steps + 1):
        begin = time.perf_counter()
        model.train(gradient_steps=1, batch_size=BATCH_SIZE)
        taken.append(time.perf_counter() - begin)
    return statistics.median(taken[1:])


def _memory_ratio(settings: Settings) -> float:
    """Return bytes of stock replay over bytes of ours, for 100,000 steps of a window of 50."""
    env, size = _env(settings, 50), 100_000
    ours = WindowReplayBuffer(size, env.observation_space, env.action_space, 'cpu', num_rows=50)
    stock = ReplayBuffer(size, env.observation_space, env.action_space, 'cpu')
    names = ('observations', 'next_observations', 'actions', 'rewards', 'dones', 'timeouts')
    theirs = sum(getattr(stock, name).nbytes for name in names)
    return float(theirs / sum(array.nbytes for array in ours.state().values()))


def _env(settings: Settings, window: int) -> ArmEnv:
    env = EnvSettings(
        plant='rk4', tau_z_s=2.0, num_rows=window, reward_scale=100.0, warm_start_share=0.0
    )
    return ArmEnv(settings, env)


def _plain_attention() -> ModuleType:
    """Return the plain networks, which are the oracle of the tests and live there."""
    path = Path(__file__).resolve().parents[2] / 'test' / 'support' / 'plain_attention.py'
    spec = importlib.util.spec_from_file_location('plain_attention', path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def flat(figures: dict[str, Any], prefix: str = '') -> dict[str, float]:
    """Return nested figures under dotted names."""
    rows: dict[str, float] = {}
    for name, value in figures.items():
        if isinstance(value, dict):
            rows |= flat(value, f'{prefix}{name}.')
        else:
            rows[prefix + name] = float(np.asarray(value))
    return rows
