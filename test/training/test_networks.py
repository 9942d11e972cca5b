# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""The networks against plain ones: attention by nn.MultiheadAttention, convolution by dilation."""

import json

import gymnasium
from gymnasium import spaces
import numpy as np
import pytest
from stable_baselines3 import SAC
import torch
from torch.nn import functional

from metactl_ros.errors import ConfigError
from training.bench import PlainDeepAttention, PlainShallowAttention
from training.learn.networks import (
    build_policy,
    count_parameters,
    DeepAttention,
    EXTRACTORS,
    main,
    make_policy_kwargs,
    NetworkConfig,
    ShallowAttention,
)

torch.set_num_threads(1)
MODELS = sorted(EXTRACTORS)
ATTENTION = [m for m in MODELS if EXTRACTORS[m] in (ShallowAttention, DeepAttention)]
SIZES = [(4, 20), (7, 50), (8, 20), (1, 20), (2, 50)]
TOKENS = ['raw', 'error_scaled']


def space_of(config):
    return spaces.Box(-np.inf, np.inf, (config.window * config.num_features,), np.float32)


def build(config, seed=0):
    torch.manual_seed(seed)
    return EXTRACTORS[config.model](space_of(config), config)


def plain_twin(extractor):
    kinds = {ShallowAttention: PlainShallowAttention, DeepAttention: PlainDeepAttention}
    twin = kinds[type(extractor)](space_of(extractor.config), extractor.config)
    twin.load_state_dict(extractor.state_dict())
    return twin.to(next(extractor.parameters()).dtype)


def windows(config, num_windows, seed=0):
    """Flattened windows of the task's own magnitudes: sines 10 ms apart, errors of 0.05 rad."""
    rng, joints = np.random.default_rng(seed), (num_windows, 1, config.num_joints)
    t = 5.0 * rng.random((num_windows, 1, 1)) + 0.01 * np.arange(config.window)[:, np.newaxis]
    angle = np.sqrt(np.arange(1, joints[-1] + 1)) * t + 2 * np.pi * rng.random(joints)
    wobble = 3.0 * t + 2 * np.pi * rng.random(joints)
    desired, desired_rate = np.sin(angle), 2.0 * np.cos(angle)
    measured, rate = desired - 0.05 * np.sin(wobble), desired_rate - 0.3 * np.cos(wobble)
    scalars = np.zeros((num_windows, config.window, 3))
    scalars[..., 0] = 1.5 * rng.random((num_windows, 1))
    scalars[..., 1] = 0.2
    scalars[..., 2] = (t[..., 0] / 5.0) % 1.0
    extra = rng.normal(size=(num_windows, config.window, config.num_extra))
    rows = np.concatenate([measured, rate, desired, desired_rate, scalars, extra], axis=-1)
    return torch.tensor(rows.reshape(num_windows, -1), dtype=torch.float32)


def rows_of(config, observations):
    return observations.reshape(-1, config.window, config.num_features).clone()


def loss_of(extractor, observations):
    """Ask 64 features for 64 functions of the oldest row, so that gradients stay alive."""
    target = torch.sin(observations[:, :1] * torch.linspace(1.0, 8.0, 64).to(observations))
    return (extractor(observations) - target).square().sum(1).mean()


def train(extractor, num_steps, observations):
    optimiser = torch.optim.Adam(extractor.parameters(), lr=1e-3)
    for _ in range(num_steps):
        optimiser.zero_grad()
        loss_of(extractor, observations).backward()
        optimiser.step()


def gradients(extractor, observations):
    extractor.zero_grad()
    loss_of(extractor, observations).backward()
    return {name: p.grad.clone() for name, p in extractor.named_parameters()}


def assert_equals_plain(extractor, observations, output_tolerance=1e-5, gradient_tolerance=1e-4):
    twin = plain_twin(extractor)
    with torch.no_grad():
        found, expected = extractor(observations), twin(observations)
    torch.testing.assert_close(found, expected, rtol=0, atol=output_tolerance)
    plain = gradients(twin, observations)
    for name, gradient in gradients(extractor, observations).items():
        torch.testing.assert_close(gradient, plain[name], rtol=0, atol=gradient_tolerance)


class Noise(gymnasium.Env):
    """Random observations: enough for SAC to update on."""

    def __init__(self, config):
        self.observation_space = spaces.Box(-1.0, 1.0, space_of(config).shape, np.float32)
        self.action_space = spaces.Box(-1.0, 1.0, (8,), np.float32)

    def reset(self, *, seed=None, options=None):
        self.observation_space.seed(seed)
        return self.observation_space.sample(), {}

    def step(self, action):
        return self.observation_space.sample(), -float(action @ action), False, False, {}


@pytest.fixture(params=MODELS)
def config(request):
    return NetworkConfig(request.param, heads=4, window=20)


@pytest.mark.parametrize(
    ('model', 'heads', 'window', 'expected'),
    [
        ('incrt', 4, 20, 114_260),
        ('incrt', 7, 50, 240_692),
        ('incrt', 8, 20, 281_684),
        ('transformer', 4, 20, 264_788),
        ('transformer', 4, 50, 270_548),
    ],
)
def test_counts_are_those_of_the_design_to_the_unit(model, heads, window, expected):
    assert count_parameters(build_policy(NetworkConfig(model, heads, window))) == expected


def test_the_grus_are_as_large_as_what_they_are_compared_with():
    small, large = (
        count_parameters(build_policy(NetworkConfig(f'gru_{n}', 4, 20)))
        for n in ('small', 'large')
    )
    assert small == pytest.approx(114_260, rel=0.005)
    assert large == pytest.approx(264_788, rel=0.005)


@pytest.mark.parametrize('tokens', TOKENS)
@pytest.mark.parametrize(
    ('model', 'heads', 'window'),
    [
        *(('incrt', *size) for size in SIZES),
        *((model, 4, 20) for model in ATTENTION if model != 'incrt'),
    ],
)
def test_fast_attention_is_plain_attention(model, heads, window, tokens):
    config = NetworkConfig(model, heads, window, tokens=tokens)
    extractor, observations = build(config), windows(config, 64)
    assert_equals_plain(extractor, observations)
    train(extractor, 100, observations)
    assert_equals_plain(extractor, observations)


@pytest.mark.parametrize('model', ATTENTION)
def test_in_double_precision_nothing_is_left_of_the_difference(model):
    config = NetworkConfig(model, heads=4, window=20, tokens='error_scaled')
    extractor, observations = build(config).double(), windows(config, 16).double()
    assert_equals_plain(extractor, observations, 1e-12, 1e-11)


@pytest.mark.parametrize('tokens', TOKENS)
def test_single_precision_costs_no_more_than_in_plain_attention(tokens):
    config = NetworkConfig('incrt', heads=7, window=50, tokens=tokens)
    extractor, observations = build(config), windows(config, 256)
    with torch.no_grad():
        exact = plain_twin(extractor).double()(observations.double())
        found, plain = extractor(observations), plain_twin(extractor)(observations)
    assert (found - exact).abs().max() < 4.0 * (plain - exact).abs().max() < 1e-5


@pytest.mark.parametrize('scale', [0.0, 1.0, 1e3])
def test_positions_that_cancel_their_tokens_leave_the_output_finite(scale):
    config = NetworkConfig('incrt', heads=4, window=20)
    extractor, observations = build(config), windows(config, 1)
    embedding = extractor.embedding
    with torch.no_grad():
        embedding.linear.weight *= scale
        embedding.linear.bias.zero_()
        embedding.positions.copy_(-embedding.linear(rows_of(config, observations)[0]))
    assert extractor(observations).isfinite().all()
    assert all(g.isfinite().all() for g in gradients(extractor, observations).values())


def test_heads_report_weights_that_sum_to_one_and_outputs_that_make_the_summary():
    config = NetworkConfig('incrt', heads=7, window=50)
    extractor, observations = build(config), windows(config, 8)
    tokens = extractor.to_tokens(observations)
    heads = extractor.attend(observations)
    assert heads.weights.shape == (8, 7, 50)
    torch.testing.assert_close(heads.weights.sum(-1), torch.ones(8, 7))
    summary = extractor.embedding.last(tokens)
    summary = summary + extractor.block.attention.out_proj(heads.outputs.flatten(1))
    torch.testing.assert_close(summary, extractor.summarise(tokens))


def test_features_have_their_shape_and_are_finite(config):
    features = build(config)(windows(config, 5))
    assert features.shape == (5, 64)
    assert features.dtype == torch.float32
    assert features.isfinite().all()
    assert (features >= 0.0).all()
    assert features.std() > 0.0


@pytest.mark.parametrize('window', [1, 2, 3, 7])
@pytest.mark.parametrize('model', MODELS)
def test_short_windows_and_extra_features_work(model, window):
    config = NetworkConfig(model, heads=4, window=window, num_extra=2, tokens='error_scaled')
    extractor, observations = build(config), windows(config, 5)
    assert extractor(observations).shape == (5, 64)
    if model in ATTENTION:
        assert_equals_plain(extractor, observations)


@pytest.mark.parametrize('model', MODELS)
def test_an_arm_of_three_joints_has_its_own_features_errors_and_actions(model):
    config = NetworkConfig(model, 4, 7, num_joints=3, num_extra=3, tokens='error_scaled')
    assert config.num_features == 4 * 3 + 3 + 3
    extractor, observations = build(config), windows(config, 5)
    rows, tokens = rows_of(config, observations), extractor.to_tokens(observations)
    errors = (rows[..., 6:9] - rows[..., 0:3]) / 0.05
    torch.testing.assert_close(tokens[..., 6:9], errors, rtol=0, atol=1e-4)
    assert extractor(observations).shape == (5, 64)
    if model in ATTENTION:
        assert_equals_plain(extractor, observations)
    assert build_policy(config)(observations).shape == (5, 12)


def test_a_batch_is_its_rows_one_by_one(config):
    extractor, observations = build(config), windows(config, 6)
    alone = torch.cat([extractor(row.unsqueeze(0)) for row in observations])
    torch.testing.assert_close(extractor(observations), alone, rtol=0, atol=2e-6)


def test_every_parameter_learns(config):
    extractor, observations = build(config), windows(config, 32)
    before = {name: p.detach().clone() for name, p in extractor.named_parameters()}
    matrix = extractor.token_map.clone()
    train(extractor, 1, observations)
    for name, parameter in extractor.named_parameters():
        assert not torch.equal(parameter, before[name]), name
    assert torch.equal(extractor.token_map, matrix)
    assert 'token_map' not in before


@pytest.mark.parametrize('rows', [slice(0, 1), slice(0, -1)])
def test_past_rows_matter_to_all_but_the_memoryless(config, rows):
    extractor, observations = build(config), windows(config, 4)
    changed = rows_of(config, observations)
    changed[:, rows] += 1.0
    is_same = torch.equal(extractor(observations), extractor(changed.flatten(1)))
    assert is_same == (config.model == 'mlp')


@pytest.mark.parametrize('model', ['attention_l2', 'attention_l3', 'transformer'])
def test_no_layer_looks_ahead(model):
    config = NetworkConfig(model, heads=4, window=20)
    extractor = build(config)
    h = extractor.embedding(extractor.to_tokens(windows(config, 4)))
    later = h.clone()
    later[:, 12:] = torch.randn_like(later[:, 12:])
    for block in extractor.blocks[:-1]:
        h, later = block(h), block(later)
        torch.testing.assert_close(h[:, :12], later[:, :12], rtol=0, atol=1e-6)
        assert not torch.allclose(h[:, 12:], later[:, 12:])


@pytest.mark.parametrize('window', [1, 2, 20, 50])
def test_the_convolution_is_the_last_output_of_a_dilated_causal_one(window):
    config = NetworkConfig('conv', heads=4, window=window)
    extractor = build(config)
    tokens = extractor.to_tokens(windows(config, 4))
    signal = tokens.mT  # (B, channels, W)
    for level, layer in enumerate(extractor.layers):
        kernel = layer.weight.reshape(len(layer.weight), 2, -1).mT  # (out, in, 2)
        padded = functional.pad(signal, (2**level, 0))
        signal = functional.conv1d(padded, kernel, layer.bias, dilation=2**level).relu()
    assert 2 ** len(extractor.layers) >= window
    torch.testing.assert_close(extractor.summarise(tokens), signal[..., -1], rtol=0, atol=1e-6)


def test_a_seed_fixes_the_weights(config):
    first, again, other = (build(config, seed).state_dict() for seed in (3, 3, 4))
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert any(not torch.equal(first[name], other[name]) for name in first)


def test_fresh_attention_weights_are_those_of_torch():
    extractor = build(NetworkConfig('incrt', heads=4, window=20))
    attention, bound = extractor.block.attention, (6.0 / (192 + 64)) ** 0.5
    assert not attention.in_proj_bias.any()
    assert not attention.out_proj.bias.any()
    assert 0.95 * bound < attention.in_proj_weight.abs().max() <= bound
    assert set(attention.state_dict()) == set(torch.nn.MultiheadAttention(64, 4).state_dict())


def test_sac_takes_the_policy_kwargs_and_learns(config, tmp_path):
    sizes = {'learning_starts': 16, 'batch_size': 16, 'buffer_size': 64}
    networks = make_policy_kwargs(config)
    model = SAC('MlpPolicy', Noise(config), policy_kwargs=networks, device='cpu', seed=0, **sizes)
    before = model.policy.actor.mu.weight.detach().clone()
    model.learn(20)
    after = model.policy.state_dict()
    assert all(value.isfinite().all() for value in after.values())
    assert not torch.equal(after['actor.mu.weight'], before)
    model.save(tmp_path / 'model')
    loaded = SAC.load(tmp_path / 'model', device='cpu')
    assert loaded.policy.actor.features_extractor.config == config
    assert all(torch.equal(loaded.policy.state_dict()[name], after[name]) for name in after)


def test_the_token_map_comes_first(config):
    raw = build(config)
    scaled = build(NetworkConfig(config.model, 4, 20, tokens='error_scaled'))
    scaled.load_state_dict(raw.state_dict() | {'token_map': scaled.token_map})
    observations = windows(config, 4)
    mapped = (rows_of(config, observations) @ scaled.token_map).flatten(1)
    torch.testing.assert_close(scaled(observations), raw(mapped))
    assert not torch.allclose(scaled(observations), raw(observations), atol=1e-3)
    assert torch.equal(raw.token_map, torch.eye(11))


@pytest.mark.skipif(not torch.cuda.is_available(), reason='needs a CUDA device; none is visible')
def test_on_a_gpu_the_features_are_the_same(config):
    extractor, observations = build(config), windows(config, 16)
    expected = extractor(observations)
    found = extractor.cuda()(observations.cuda()).cpu()
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-4)


@pytest.mark.parametrize(
    ('changes', 'message'),
    [
        ({'model': 'incrtt'}, r"unknown model 'incrtt'; did you mean 'incrt'\?"),
        ({'model': 'lstm-9'}, r"unknown model 'lstm-9'; valid models are \['attention'"),
        ({'heads': 0}, 'NetworkConfig.heads: expected a whole number of at least 1, found 0'),
        ({'window': -1}, 'NetworkConfig.window: expected a whole number of at least 1, found -1'),
        ({'heads': 2.5}, r'found 2\.5'),
        ({'num_joints': 0}, 'num_joints: expected a whole number of at least 1, found 0'),
        ({'num_extra': -1}, 'num_extra: expected a whole number of at least 0, found -1'),
        ({'tokens': 'scaled'}, "expected 'raw' or 'error_scaled' or 'error_fine', found 'scaled'"),
        ({'model': 'transformer', 'heads': 7}, 'transformer has 4 heads, found 7; attention_l2_'),
    ],
)
def test_a_wrong_setting_is_named_and_the_way_out_too(changes, message):
    with pytest.raises(ConfigError, match=message):
        NetworkConfig(**{'model': 'incrt', 'heads': 4, 'window': 20} | changes)


def test_an_observation_of_another_window_is_refused():
    config, other = (NetworkConfig('incrt', 4, window) for window in (20, 50))
    with pytest.raises(ConfigError, match=r'shape \(220,\), found \(550,\); give env and network'):
        ShallowAttention(space_of(other), config)


def test_the_command_prints_and_writes_the_counts(tmp_path, capsys):
    assert main(['--counts', '--json', str(tmp_path / 'counts.json')]) == 0
    assert '281,684' in capsys.readouterr().out
    rows = json.loads((tmp_path / 'counts.json').read_text())
    assert {row['model'] for row in rows} == set(MODELS)
    pairs = [(row['parameters'], row['thousand_parameters_of_paper']) for row in rows]
    in_paper = [(ours, thousands) for ours, thousands in pairs if thousands is not None]
    assert sorted(thousands for _, thousands in in_paper) == [114, 241, 265, 271, 282]
    assert all(round(ours / 1000) == thousands for ours, thousands in in_paper)


def test_the_command_says_what_it_can_do(capsys):
    with pytest.raises(SystemExit, match='2'):
        main([])
    assert 'pass --counts' in capsys.readouterr().err
    with pytest.raises(SystemExit, match='0'):
        main(['--help'])
    assert 'attention_l2_ffn' in capsys.readouterr().out
