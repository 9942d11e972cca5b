# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""The head monitor against plain attention, finite differences and heads silenced by hand."""

import math

from gymnasium import spaces
import numpy as np
import pytest
from stable_baselines3.common.logger import Logger
import torch
from torch.nn import functional

from training.learn.judgements import (
    AT_ONCE,
    gradient_norms,
    inspect_actor,
    inspect_heads,
    layers_of,
    payload_derivative,
    payload_derivative_by_term,
    payload_sensitivity,
    recent_observations,
    record_actor,
)
from training.learn.networks import build_policy, DEPTHS, EXTRACTORS, HEAD_WIDTH, NetworkConfig
from training.learn.shielded_sac import WindowReplayBuffer

torch.set_num_threads(1)
HEADS, WINDOW, FEATURES, PAYLOAD = 4, 6, 11, 8
WIDTH = HEADS * HEAD_WIDTH
STEP_KG = 1e-6
# Rounding over the step: 1e-16 / 1e-6, and some for the depth of the network.
TOLERANCE = 1e-8
WITHOUT_HEADS = sorted(set(EXTRACTORS) - {'incrt', 'attention', *DEPTHS})
every_depth = pytest.mark.parametrize('model', ['incrt', *sorted(DEPTHS)])
every_token = pytest.mark.parametrize('tokens', ['raw', 'error_scaled'])


def actor_of(model='incrt', heads=HEADS, window=WINDOW, tokens='error_scaled'):
    """Return an actor in double precision whose weights and biases are all at work."""
    torch.manual_seed(0)
    actor = build_policy(NetworkConfig(model, heads, window, tokens=tokens)).actor.double()
    with torch.no_grad():
        for parameter in actor.parameters():
            parameter += 0.05 * torch.randn_like(parameter)
    return actor


def windows(num_windows=16, window=WINDOW):
    """Random windows with one p_hat each, in double precision."""
    generator = torch.Generator().manual_seed(1)
    rows = torch.randn(num_windows, window, FEATURES, generator=generator, dtype=torch.float64)
    rows[..., PAYLOAD] = torch.rand(num_windows, 1, generator=generator, dtype=torch.float64)
    return rows.flatten(1)


def with_payload(observations, change_kg):
    rows = observations.reshape(len(observations), -1, FEATURES).clone()
    rows[..., PAYLOAD] += change_kg
    return rows.flatten(1)


def slope(function, observations):
    """Return the central difference by p_hat."""
    more, less = (function(with_payload(observations, h)) for h in (STEP_KG, -STEP_KG))
    return (more - less) / (2.0 * STEP_KG)


def of_head(head):
    return slice(head * HEAD_WIDTH, (head + 1) * HEAD_WIDTH)


def blocks_of(actor):
    extractor = actor.features_extractor
    return list(extractor.blocks) if hasattr(extractor, 'blocks') else [extractor.block]


def silence(block, head):
    with torch.no_grad():
        block.attention.out_proj.weight[:, of_head(head)] = 0.0


def learn(actor, observations):
    actor.zero_grad()
    mean = actor.mu(actor.latent_pi(actor.features_extractor(observations)))
    (mean - observations[:, :1].sin()).square().mean().backward()


def plain_block(block, h):
    """Return what nn.MultiheadAttention adds to h, causally, and its weights by head."""
    y, future = block.norm(h), torch.ones(WINDOW, WINDOW, dtype=torch.bool).triu(1)
    return block.attention(y, y, y, attn_mask=future, average_attn_weights=False)


def plain_layer(actor, observations, index):
    """Return c_1 ... c_K and r of all tokens, shape (K + 1, B, W, d), and the last weights."""
    extractor, blocks = actor.features_extractor, blocks_of(actor)
    h = extractor.embedding(extractor.to_tokens(observations))
    for block in blocks[:index]:
        h = block.feed_forward(h + plain_block(block, h)[0])
    block = blocks[index]
    projection = block.attention.out_proj
    whole, terms = projection.weight.detach().clone(), []
    for head in range(HEADS):
        projection.weight[:] = 0.0
        projection.weight[:, of_head(head)] = whole[:, of_head(head)]
        terms.append(plain_block(block, h)[0] - projection.bias)
    projection.weight[:] = whole
    return torch.stack([*terms, h + projection.bias]), plain_block(block, h)[1][:, :, -1]


def plain_action(actor, index, s):
    """Return the action of what is behind the attention of a layer, s, shape (B, W, d)."""
    extractor, blocks = actor.features_extractor, blocks_of(actor)
    h = blocks[index].feed_forward(s)
    for block in blocks[index + 1 :]:
        h = block.feed_forward(h + plain_block(block, h)[0])
    features = functional.relu(extractor.project(extractor.final_norm(h[:, -1])))
    return actor.mu(actor.latent_pi(features)).tanh()


def quiet_logger():
    return Logger(folder=None, output_formats=[])


def filled_buffer(num_steps, size):
    """Return a buffer of one long episode whose rows are filled with the number of their step."""
    box = spaces.Box(-np.inf, np.inf, (WINDOW * FEATURES,), np.float32)
    action = spaces.Box(-1.0, 1.0, (8,), np.float32)
    buffer = WindowReplayBuffer(size, box, action, 'cpu', num_rows=WINDOW)
    infos = [{'half_space': np.ones(9, dtype=np.float32)}]
    for step in range(num_steps):
        last = np.maximum(np.arange(step - WINDOW + 1, step + 2), 0)[:, np.newaxis]
        rows = np.repeat(last.astype(np.float32), FEATURES, axis=1)  # (W + 1, F)
        zero, is_done = np.zeros(1), np.zeros(1, dtype=bool)
        buffer.add(rows[:-1].ravel(), rows[1:].ravel(), np.zeros(8), zero, is_done, infos)
    return buffer


@pytest.mark.parametrize(
    ('weight', 'bias', 'window', 'entropy'), [(0, 0, 6, 1.0), (1e6, 1, 6, 0.0), (1, 1, 1, 0.0)]
)
def test_entropy_is_1_if_attention_is_uniform_and_0_if_it_is_on_one_row(
    weight, bias, window, entropy
):
    actor = actor_of(window=window)
    attention = actor.features_extractor.block.attention
    with torch.no_grad():
        attention.in_proj_weight[:WIDTH] *= weight
        attention.in_proj_bias[:WIDTH] *= bias
    (report,) = inspect_heads(actor, windows(window=window))
    np.testing.assert_allclose(report.entropy, entropy, rtol=0, atol=1e-12)


@every_token
@every_depth
def test_entropy_and_share_are_those_of_plain_attention_at_the_last_token(model, tokens):
    actor, observations = actor_of(model, tokens=tokens), windows()
    for index, report in enumerate(inspect_heads(actor, observations)):
        with torch.no_grad():
            terms, weights = plain_layer(actor, observations, index)
        entropy = -(weights * weights.log()).sum(-1).mean(0) / math.log(WINDOW)
        np.testing.assert_allclose(report.entropy, entropy, rtol=0, atol=1e-12)
        norms = terms[:-1, :, -1].norm(dim=-1)
        share = (norms / norms.sum(0)).mean(1)
        np.testing.assert_allclose(report.output_share, share, rtol=0, atol=1e-12)
        assert np.ptp(report.entropy) > 1e-3


@pytest.mark.parametrize(
    ('model', 'heads'), [*(('incrt', heads) for heads in (1, 2, 7)), *((m, 4) for m in DEPTHS)]
)
def test_every_layer_is_reported_and_its_shares_sum_to_1(model, heads):
    reports = inspect_heads(actor_of(model, heads), windows())
    assert len(reports) == DEPTHS.get(model, 1)
    for report in reports:
        assert report.entropy.shape == report.gradient_norm.shape == (heads,)
        assert report.output_share.sum() == pytest.approx(1.0, abs=1e-12)


def test_where_no_head_adds_anything_all_shares_are_0_and_all_heads_idle():
    actor = actor_of()
    for head in range(HEADS):
        silence(actor.features_extractor.block, head)
    (report,) = inspect_heads(actor, windows())
    np.testing.assert_array_equal(report.output_share, 0.0)
    assert report.num_idle == HEADS


@pytest.mark.parametrize(('part', 'is_idle'), [(0.099, True), (0.101, False)])
def test_a_head_is_idle_below_a_tenth_of_an_equal_share(part, is_idle):
    (report,) = inspect_heads(actor_of(), windows())
    share = np.array([part / HEADS, *[(1.0 - part / HEADS) / (HEADS - 1)] * (HEADS - 1)])
    assert report._replace(output_share=share).num_idle == is_idle


@pytest.mark.parametrize(
    ('model', 'index'), [('incrt', 0), ('transformer', 0), ('transformer', 1)]
)
def test_a_silenced_head_is_idle_blind_and_learns_nothing_in_its_layer_alone(model, index):
    actor, observations = actor_of(model), windows()
    block = blocks_of(actor)[index]
    assert not any(report.num_idle for report in inspect_heads(actor, observations))
    silence(block, 2)
    with torch.no_grad():
        for values in (block.attention.in_proj_weight, block.attention.in_proj_bias):
            values[2 * WIDTH :][of_head(2)] = 0.0
    learn(actor, observations)
    for layer, report in enumerate(inspect_heads(actor, observations)):
        assert report.num_idle == (layer == index)
        for name in ('gradient_norm', 'output_share', 'payload_sensitivity'):
            assert np.count_nonzero(getattr(report, name)) == HEADS - (layer == index)
            assert (getattr(report, name)[2] == 0.0) == (layer == index)


@every_depth
def test_gradient_norms_are_unknown_at_first_and_add_up_to_that_of_all_that_heads_own(model):
    actor, observations = actor_of(model), windows()
    for report in inspect_heads(actor, observations):
        assert np.isnan(report.gradient_norm).all()
        others = (report.entropy, report.output_share, report.payload_sensitivity)
        assert np.isfinite(others).all()
    learn(actor, observations)
    reports = inspect_heads(actor, observations)
    for block, report in zip(blocks_of(actor), reports, strict=True):
        a = block.attention
        owned = (a.in_proj_weight, a.in_proj_bias, a.out_proj.weight)
        expected = sum(float(parameter.grad.square().sum()) for parameter in owned)
        assert report.gradient_norm @ report.gradient_norm == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize('third', [0, 1, 2])  # q, k, v
@pytest.mark.parametrize('head', [0, 3])
def test_a_gradient_counts_for_the_head_whose_rows_and_columns_it_moves(head, third):
    block, width = actor_of().features_extractor.block, HEADS * HEAD_WIDTH
    attention = block.attention
    for parameter in attention.parameters():
        parameter.grad = torch.zeros_like(parameter)
    row = third * width + (head + 1) * HEAD_WIDTH - 1
    attention.in_proj_weight.grad[row, 0] = 2.0
    attention.in_proj_bias.grad[row] = 3.0
    attention.out_proj.weight.grad[5, head * HEAD_WIDTH] = 6.0
    attention.out_proj.bias.grad[:] = 100.0  # no head's
    expected = np.zeros(HEADS)
    expected[head] = 7.0
    np.testing.assert_allclose(gradient_norms(block), expected)


@every_token
@pytest.mark.parametrize('model', sorted(EXTRACTORS))
def test_sensitivity_is_the_slope_of_the_actors_own_action(model, tokens, monkeypatch):
    actor, observations = actor_of(model, tokens=tokens), windows()
    # Past stable-baselines3's cast to single precision.
    monkeypatch.setattr(actor, 'extract_features', lambda x, extractor: extractor(x))
    with torch.no_grad():
        expected = slope(lambda x: actor(x, deterministic=True), observations)
    found = payload_derivative(actor, observations)
    torch.testing.assert_close(found, expected, rtol=0, atol=TOLERANCE)
    by_action = payload_sensitivity(actor, observations)
    np.testing.assert_allclose(by_action, expected.abs().mean(0), rtol=0, atol=TOLERANCE)
    assert by_action.min() > 100 * TOLERANCE


@pytest.mark.parametrize(
    ('model', 'heads'), [('incrt', 1), ('incrt', 4), *((m, 4) for m in DEPTHS)]
)
def test_the_parts_of_all_heads_of_a_layer_and_of_the_way_past_them_sum_up_to_the_whole(
    model, heads
):
    actor, observations = actor_of(model, heads), windows()
    extractor, whole = actor.features_extractor, payload_derivative(actor, observations)
    for layer in layers_of(extractor):
        parts = payload_derivative_by_term(actor, extractor, layer, observations)
        assert parts.shape == (len(observations), heads + 1, 8)
        torch.testing.assert_close(parts.sum(1), whole, rtol=0, atol=1e-12)


@every_depth
def test_a_heads_part_is_the_slope_when_p_hat_moves_for_that_head_of_that_layer_alone(model):
    actor, observations = actor_of(model), windows(4)
    extractor, reports = actor.features_extractor, inspect_heads(actor, observations)
    for index, layer in enumerate(layers_of(extractor)):
        with torch.no_grad():
            still = plain_layer(actor, observations, index)[0]

            def action_if_one_moves(moved, term, index=index, still=still):
                change = plain_layer(actor, moved, index)[0][term] - still[term]
                return plain_action(actor, index, still.sum(0) + change)

            slopes = torch.stack(
                [
                    slope(lambda x, k=k: action_if_one_moves(x, k), observations)
                    for k in range(HEADS + 1)
                ],
                dim=1,
            )
        found = payload_derivative_by_term(actor, extractor, layer, observations)
        torch.testing.assert_close(found, slopes, rtol=0, atol=TOLERANCE)
        reported = [*reports[index].payload_sensitivity, reports[index].residual_sensitivity]
        np.testing.assert_allclose(reported, slopes.abs().mean((0, 2)), rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize('model', ['incrt', 'transformer'])
def test_a_network_that_does_not_read_p_hat_is_not_sensitive_to_it(model):
    actor, observations = actor_of(model), windows()
    with torch.no_grad():
        actor.features_extractor.embedding.linear.weight[:, PAYLOAD] = 0.0
    np.testing.assert_array_equal(payload_sensitivity(actor, observations), 0.0)
    for report in inspect_heads(actor, observations):
        np.testing.assert_array_equal(report.payload_sensitivity, 0.0)
        assert report.residual_sensitivity == 0.0


def test_many_windows_are_looked_at_in_parts_and_none_is_left_out():
    actor, observations = actor_of('transformer'), windows(AT_ONCE + 3)
    whole = payload_derivative(actor, observations)
    alone = payload_derivative(actor, observations[-3:])
    torch.testing.assert_close(whole[-3:], alone, rtol=0, atol=1e-12)


def test_the_payload_estimate_of_an_arm_of_three_joints_stands_behind_its_twelve_signals():
    torch.manual_seed(0)
    actor = build_policy(NetworkConfig('incrt', HEADS, WINDOW, num_joints=3)).actor.double()
    observations = torch.randn(8, WINDOW * 15, dtype=torch.float64)
    assert payload_sensitivity(actor, observations).shape == (12,)
    assert payload_sensitivity(actor, observations).min() > 0.0
    with torch.no_grad():
        actor.features_extractor.embedding.linear.weight[:, 12] = 0.0
    np.testing.assert_array_equal(payload_sensitivity(actor, observations), 0.0)


def test_single_precision_reports_the_same():
    actor, observations = actor_of(), windows()
    (exact,) = inspect_heads(actor, observations)
    (found,) = inspect_heads(actor.float(), observations.float())
    for one, other in zip(found[1:], exact[1:], strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4)


@pytest.mark.parametrize(('num_steps', 'expected'), [(25, [24, 14, 4]), (65, [64, 54, 44, 34])])
def test_every_tenth_of_the_newest_observations_is_looked_at(num_steps, expected):
    found = recent_observations(filled_buffer(num_steps, size=40))
    assert found.shape == (len(expected), WINDOW * FEATURES)
    assert found[:, -1].tolist() == expected


def test_no_more_than_the_newest_2560_are_looked_at():
    found = recent_observations(filled_buffer(3000, size=4000))
    assert found[:, -1].tolist() == list(range(2999, 439, -10))


def test_heads_and_sensitivities_are_logged_by_name():
    actor, logger = actor_of(heads=2).float(), quiet_logger()
    record_actor(logger, inspect_actor(actor, filled_buffer(25, size=40)))
    kinds = ('gradient_norm', 'entropy', 'output_share', 'payload_sensitivity')
    assert set(logger.name_to_value) == {
        *(f'heads/0/{head}/{kind}' for head in (0, 1) for kind in kinds),
        *(f'payload_sensitivity/{which}' for which in ('mean', *range(8))),
        'heads/0/num_idle',
        'heads/0/residual_sensitivity',
    }


@pytest.mark.parametrize('model', WITHOUT_HEADS)
def test_of_models_without_heads_only_the_sensitivity_is_logged(model):
    actor, logger = actor_of(model).float(), quiet_logger()
    found = inspect_actor(actor, filled_buffer(25, size=40))
    assert found.layers == []
    record_actor(logger, found)
    assert {name.split('/')[0] for name in logger.name_to_value} == {'payload_sensitivity'}


@pytest.mark.parametrize('is_training', [False, True])
@pytest.mark.parametrize('model', ['incrt', 'transformer', 'gru_small'])
def test_looking_leaves_weights_gradients_mode_and_generators_as_they_were(model, is_training):
    actor, buffer = actor_of(model).float(), filled_buffer(25, size=40)
    learn(actor, windows().float())
    actor.train(is_training)

    def state():
        tensors = [t for p in actor.parameters() for t in (p.detach(), p.grad) if t is not None]
        _, key, place, *_ = np.random.get_state()  # noqa: NPY002 - stable-baselines3 draws from it
        generators = (torch.get_rng_state(), torch.tensor(key), torch.tensor(place))
        return [tensor.clone() for tensor in (*tensors, *generators)]

    before = state()
    record_actor(quiet_logger(), inspect_actor(actor, buffer))
    assert all(torch.equal(a, b) for a, b in zip(before, state(), strict=True))
    assert all(module.training == is_training for module in actor.modules())
    assert all(parameter.requires_grad for parameter in actor.parameters())
