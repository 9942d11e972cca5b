# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
from gymnasium import spaces
import numpy as np
import pytest
from stable_baselines3 import SAC
from stable_baselines3.common.buffers import ReplayBuffer
from support.situations import problems
import torch

from metactl_ros.control.shield import project_all
from metactl_ros.errors import ConfigError
from training.learn.env import ArmEnv
from training.learn.shielded_sac import (
    distance_to_admissible,
    project,
    ShieldedSAC,
    WindowReplayBuffer,
)

WINDOW = 4


@pytest.fixture
def env(settings):
    env = ArmEnv(
        settings,
        plant='rk4',
        tau_z_s=2.0,
        num_rows=WINDOW,
        reward_scale=100.0,
        warm_start_share=0.0,
    )
    yield env
    env.close()


def learner(env, algorithm=ShieldedSAC, **options):
    """Return a small learner with 120 transitions of random actions in its replay."""
    options |= {'policy_kwargs': {'net_arch': [16]}, 'buffer_size': 200, 'learning_starts': 1000}
    if algorithm is ShieldedSAC:
        options |= {
            'replay_buffer_class': WindowReplayBuffer,
            'replay_buffer_kwargs': {'num_rows': WINDOW},
        }
    model = algorithm('MlpPolicy', env, seed=3, device='cpu', **options)
    model.learn(120)
    return model


def on_given_samples(model, batches):
    """Make a learner draw the given batches instead of random ones."""
    upcoming = iter(batches)
    buffer = model.replay_buffer
    buffer.sample = lambda *_, **__: buffer._get_samples(next(upcoming))


def parameters(model):
    return torch.cat([p.detach().flatten() for p in model.policy.parameters()])


def test_without_a_multiplier_a_gradient_step_equals_that_of_stock_sac(env):
    ours, stock = learner(env), learner(env, SAC)
    assert isinstance(stock.replay_buffer, ReplayBuffer)
    assert torch.equal(parameters(ours), parameters(stock))
    before = parameters(ours)
    batches = np.random.default_rng(0).integers(0, 120, (20, 32))
    for model in (ours, stock):
        on_given_samples(model, batches)
        torch.manual_seed(5)
        model.train(gradient_steps=20, batch_size=32)
    assert not torch.equal(parameters(ours), before)
    torch.testing.assert_close(parameters(ours), parameters(stock), rtol=0, atol=1e-6)
    torch.testing.assert_close(ours.log_ent_coef, stock.log_ent_coef, rtol=0, atol=1e-6)


def test_the_multiplier_rises_with_the_distance_and_brings_it_down(env):
    model = learner(env, lagrangian_rate=1.0, distance_target=0.0, learning_rate=3e-3)
    distances = []
    for _ in range(30):
        model.train(gradient_steps=10, batch_size=64)
        distances.append(model.logger.name_to_value['train/distance'])
    assert model.beta > 1.0
    assert distances[-1] < 0.5 * distances[0]


def test_the_multiplier_never_falls_below_zero(env):
    model = learner(env, lagrangian_rate=1.0, distance_target=100.0)
    model.train(gradient_steps=5, batch_size=32)
    assert model.beta == 0.0


def test_the_multiplier_moves_by_its_rate_times_the_surplus(env):
    model = learner(env, lagrangian_rate=0.5, distance_target=0.01)
    model.train(gradient_steps=1, batch_size=32)
    expected = 0.5 * (model.logger.name_to_value['train/distance'] - 0.01)
    assert model.beta == pytest.approx(expected)
    assert model.logger.name_to_value['train/beta'] == pytest.approx(model.beta)


def test_a_fixed_entropy_weight_is_kept(env):
    model = learner(env, ent_coef=0.05)
    model.train(gradient_steps=3, batch_size=32)
    assert model.logger.name_to_value['train/ent_coef'] == pytest.approx(0.05)


def test_no_gradient_steps_log_nothing_and_change_nothing(env):
    model = learner(env)
    before = parameters(model)
    model.train(gradient_steps=0)
    assert torch.equal(parameters(model), before)


def test_the_stored_action_is_the_raw_proposal_even_where_the_shield_moved_it(env, monkeypatch):
    proposals, moved, real = [], [], env.step

    def watched(action):
        proposals.append(np.array(action))
        result = real(action)
        moved.append(result[-1]['was_moved'])
        return result

    monkeypatch.setattr(env, 'step', watched)
    model = learner(env)
    assert 0 < sum(moved) < 120
    np.testing.assert_array_equal(model.replay_buffer.actions[:120], proposals)


def test_a_saved_learner_loads_with_its_multiplier_and_weights(env, tmp_path):
    model = learner(env, lagrangian_rate=1.0)
    model.train(gradient_steps=5, batch_size=32)
    model.save(tmp_path / 'model.zip')
    again = ShieldedSAC.load(tmp_path / 'model.zip', env=env, device='cpu')
    assert again.beta == model.beta
    assert torch.equal(parameters(again), parameters(model))


@pytest.fixture
def tensors():
    return [torch.tensor(array) for array in problems(2000, seed=20)]


def test_the_torch_projection_is_the_shields(tensors):
    arrays = [tensor.numpy() for tensor in tensors]
    expected, _, distance = project_all(*arrays)
    np.testing.assert_allclose(project(*tensors), expected, rtol=0, atol=1e-10)
    np.testing.assert_allclose(distance_to_admissible(*tensors), distance, rtol=0, atol=1e-10)


def test_a_scaled_normal_describes_the_same_set(tensors):
    proposal, normal, offset = tensors
    scaled = distance_to_admissible(proposal, 1e-6 * normal, 1e-6 * offset)
    np.testing.assert_allclose(scaled, distance_to_admissible(*tensors), rtol=0, atol=1e-9)


def test_the_gradient_is_that_of_the_shields_distance(tensors):
    proposal, normal, offset = (tensor[:200].clone() for tensor in tensors)
    proposal.requires_grad_()
    distance_to_admissible(proposal, normal, offset).sum().backward()
    point, h = proposal.detach().numpy(), 1e-6
    for entry in range(8):
        step = h * np.eye(8)[entry]
        above, below = (
            project_all(point + side * step, normal.numpy(), offset.numpy())[2] for side in (1, -1)
        )
        slope = (above - below) / (2 * h)
        np.testing.assert_allclose(proposal.grad[:, entry], slope, rtol=0, atol=1e-5)


def test_inside_the_set_distance_and_gradient_are_zero():
    inside = torch.zeros(1, 8, requires_grad=True)
    distance = distance_to_admissible(inside, torch.ones(1, 8), torch.ones(1))
    distance.sum().backward()
    assert distance.item() == 0.0
    assert torch.all(inside.grad == 0.0)


def test_an_empty_set_is_measured_to_the_corner_that_violates_it_least():
    action = torch.zeros(1, 8)
    distance = distance_to_admissible(action, torch.ones(1, 8), torch.full((1,), -9.0))
    assert distance.item() == pytest.approx(8.0**0.5)


def test_single_precision_does_not_leave_the_set(tensors):
    proposal, normal, offset = (tensor.float() for tensor in tensors)
    action = project(proposal, normal, offset)
    assert action.abs().max() <= 1.0
    assert ((normal * action).sum(-1) - offset).max() < 1e-5


# The replay buffer

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
