# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
from gymnasium import spaces
import numpy as np
import pytest
from stable_baselines3.common.buffers import ReplayBuffer
import torch

from metactl_ros.errors import ConfigError
from training.learn.replay_buffer import WindowReplayBuffer

ROWS, FEATURES, ACTIONS = 5, 3, 2
OBSERVATION = spaces.Box(-np.inf, np.inf, (ROWS * FEATURES,), np.float32)
ACTION = spaces.Box(-1.0, 1.0, (ACTIONS,), np.float32)


def stream(lengths, seed=0):
    """Yield transitions of episodes with identifiable rows; each ends in another way."""
    rng = np.random.default_rng(seed)
    for number, length in enumerate(lengths):
        rows = rng.normal(size=(length + 1, FEATURES)).astype(np.float32)
        history = np.concatenate([np.repeat(rows[:1], ROWS - 1, axis=0), rows])
        for step in range(length):
            is_last = step == length - 1
            is_timeout = is_last and number % 2 == 0
            yield {
                'obs': history[step : step + ROWS].reshape(1, -1),
                'next_obs': history[step + 1 : step + 1 + ROWS].reshape(1, -1),
                'action': rng.uniform(-1, 1, (1, ACTIONS)).astype(np.float32),
                'reward': rng.normal(size=1).astype(np.float32),
                'done': np.array([is_last]),
                'infos': [
                    {
                        'TimeLimit.truncated': is_timeout,
                        'half_space': rng.normal(size=ACTIONS + 1).astype(np.float32),
                    }
                ],
            }


def filled(size, lengths, seed=0):
    ours = WindowReplayBuffer(size, OBSERVATION, ACTION, 'cpu', num_rows=ROWS)
    stock = ReplayBuffer(size, OBSERVATION, ACTION, 'cpu')
    half_spaces = np.zeros((size, ACTIONS + 1), dtype=np.float32)
    for transition in stream(lengths, seed):
        half_spaces[stock.pos] = transition['infos'][0]['half_space']
        ours.add(**transition)
        stock.add(**transition)
    return ours, stock, half_spaces


@pytest.mark.parametrize(
    ('size', 'lengths'),
    [
        (100, [7, 3, 12]),  # starts, a time limit, a divergence
        (100, [1, 1, 1, 2]),  # episodes shorter than a window
        (20, [7, 30, 4, 9, 1, 1, 16]),  # wrapped around several times
        (20, [1] * 65),  # two rows per transition, the most there can be
        (16, [500]),  # one episode longer than the buffer
    ],
)
def test_every_sample_equals_the_stock_buffers(size, lengths):
    ours, stock, half_spaces = filled(size, lengths)
    assert (ours.pos, ours.full) == (stock.pos, stock.full)
    indices = np.arange(size if stock.full else stock.pos)
    mine, theirs = ours._get_samples(indices), stock._get_samples(indices)
    for name in ('observations', 'actions', 'next_observations', 'dones', 'rewards'):
        assert torch.equal(getattr(mine, name), getattr(theirs, name)), name
    assert torch.equal(mine.normal, torch.tensor(half_spaces[indices, :-1]))
    assert torch.equal(mine.offset, torch.tensor(half_spaces[indices, -1]))


def test_sampling_stays_within_what_is_stored():
    ours, _, _ = filled(100, [7, 3])
    batch = ours.sample(64)
    stored = ours._get_samples(np.arange(10)).observations
    assert all(any(torch.equal(row, other) for other in stored) for row in batch.observations)


def test_memory_is_a_twentieth_of_the_stock_buffers_at_a_window_of_50():
    observation = spaces.Box(-np.inf, np.inf, (50 * 11,), np.float32)
    action = spaces.Box(-1.0, 1.0, (8,), np.float32)
    ours = WindowReplayBuffer(10_000, observation, action, 'cpu', num_rows=50)
    stock = ReplayBuffer(10_000, observation, action, 'cpu')
    names = ('observations', 'next_observations', 'actions', 'rewards', 'dones', 'timeouts')
    theirs = sum(getattr(stock, name).nbytes for name in names)
    assert 20 * sum(array.nbytes for array in ours.state().values()) < theirs


def test_a_restored_buffer_goes_on_as_if_nothing_had_happened():
    transitions = list(stream([7, 30, 4, 9]))
    whole = WindowReplayBuffer(20, OBSERVATION, ACTION, 'cpu', num_rows=ROWS)
    first = WindowReplayBuffer(20, OBSERVATION, ACTION, 'cpu', num_rows=ROWS)
    for transition in transitions[:29]:
        whole.add(**transition)
        first.add(**transition)
    second = WindowReplayBuffer(20, OBSERVATION, ACTION, 'cpu', num_rows=ROWS)
    second.restore({name: array.copy() for name, array in first.state().items()})
    for transition in transitions[29:]:
        whole.add(**transition)
        second.add(**transition)
    mine, theirs = (buffer._get_samples(np.arange(20)) for buffer in (second, whole))
    assert all(torch.equal(a, b) for a, b in zip(mine, theirs, strict=True))


def test_a_buffer_of_another_size_is_not_restored():
    ours, _, _ = filled(20, [7])
    other = WindowReplayBuffer(30, OBSERVATION, ACTION, 'cpu', num_rows=ROWS)
    with pytest.raises(ConfigError, match='resume with the window and buffer size'):
        other.restore(ours.state())


def test_an_episode_that_begins_in_the_middle_is_refused():
    buffer = WindowReplayBuffer(20, OBSERVATION, ACTION, 'cpu', num_rows=ROWS)
    *_, last = stream([7])
    with pytest.raises(ConfigError, match='first row repeated'):
        buffer.add(**last)


def test_a_window_that_does_not_fit_the_observation_is_refused():
    with pytest.raises(ConfigError, match='15 numbers is not a window of 4 rows'):
        WindowReplayBuffer(20, OBSERVATION, ACTION, 'cpu', num_rows=4)


def test_several_environments_are_refused():
    with pytest.raises(ConfigError, match='n_envs=1'):
        WindowReplayBuffer(20, OBSERVATION, ACTION, 'cpu', n_envs=2, num_rows=ROWS)
