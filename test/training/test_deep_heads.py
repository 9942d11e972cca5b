# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""The head monitor of the deep networks, layer by layer, against nn.MultiheadAttention."""

import math

import numpy as np
import pytest
import torch
from torch.nn import functional

from training.learn.judgements import (
    AT_ONCE,
    inspect_heads,
    layers_of,
    payload_derivative,
    payload_derivative_by_term,
)
from training.learn.networks import build_policy, DEPTHS, HEAD_WIDTH, NetworkConfig

torch.set_num_threads(1)
HEADS, WINDOW, FEATURES, PAYLOAD = 4, 6, 11, 8
WIDTH = HEADS * HEAD_WIDTH
STEP_KG = 1e-6
# Rounding over the step: 1e-16 / 1e-6, and some for the depth of the network.
TOLERANCE = 1e-8
every_depth = pytest.mark.parametrize('model', sorted(DEPTHS))


def actor_of(model):
    """Return an actor in double precision whose weights and biases are all at work."""
    torch.manual_seed(0)
    actor = build_policy(NetworkConfig(model, HEADS, WINDOW)).actor.double()
    with torch.no_grad():
        for parameter in actor.parameters():
            parameter += 0.05 * torch.randn_like(parameter)
    return actor


def windows(num_windows=16):
    generator = torch.Generator().manual_seed(1)
    rows = torch.randn(num_windows, WINDOW, FEATURES, generator=generator, dtype=torch.float64)
    rows[..., PAYLOAD] = torch.rand(num_windows, 1, generator=generator, dtype=torch.float64)
    return rows.flatten(1)


def learn(actor, observations):
    actor.zero_grad()
    mean = actor.mu(actor.latent_pi(actor.features_extractor(observations)))
    (mean - observations[:, :1].sin()).square().mean().backward()


def of_head(head):
    return slice(head * HEAD_WIDTH, (head + 1) * HEAD_WIDTH)


def plain_block(block, h):
    """Return what nn.MultiheadAttention adds to h, causally, and its weights by head."""
    y, future = block.norm(h), torch.ones(WINDOW, WINDOW, dtype=torch.bool).triu(1)
    return block.attention(y, y, y, attn_mask=future, average_attn_weights=False)


def plain_layer(extractor, observations, index):
    """Return c_1 ... c_K and r of all tokens, shape (K + 1, B, W, d), and the last weights."""
    h = extractor.embedding(extractor.to_tokens(observations))
    for block in extractor.blocks[:index]:
        h = block.feed_forward(h + plain_block(block, h)[0])
    block = extractor.blocks[index]
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
    extractor = actor.features_extractor
    h = extractor.blocks[index].feed_forward(s)
    for block in extractor.blocks[index + 1 :]:
        h = block.feed_forward(h + plain_block(block, h)[0])
    features = functional.relu(extractor.project(extractor.final_norm(h[:, -1])))
    return actor.mu(actor.latent_pi(features)).tanh()


@every_depth
def test_every_layer_is_reported_and_its_shares_sum_to_1(model):
    reports = inspect_heads(actor_of(model), windows())
    assert len(reports) == DEPTHS[model]
    for report in reports:
        assert report.entropy.shape == report.gradient_norm.shape == (HEADS,)
        assert report.output_share.sum() == pytest.approx(1.0, abs=1e-12)


@every_depth
def test_entropy_and_share_are_those_of_plain_attention_at_the_last_token(model):
    actor, observations = actor_of(model), windows()
    for index, report in enumerate(inspect_heads(actor, observations)):
        with torch.no_grad():
            terms, weights = plain_layer(actor.features_extractor, observations, index)
        entropy = -(weights * weights.log()).sum(-1).mean(0) / math.log(WINDOW)
        np.testing.assert_allclose(report.entropy, entropy, rtol=0, atol=1e-12)
        norms = terms[:-1, :, -1].norm(dim=-1)
        share = (norms / norms.sum(0)).mean(1)
        np.testing.assert_allclose(report.output_share, share, rtol=0, atol=1e-12)
        assert np.ptp(report.entropy) > 1e-3


@every_depth
def test_the_parts_of_every_layer_sum_up_to_the_whole(model):
    actor, observations = actor_of(model), windows()
    extractor, whole = actor.features_extractor, payload_derivative(actor, observations)
    for layer in layers_of(extractor):
        parts = payload_derivative_by_term(actor, extractor, layer, observations)
        assert parts.shape == (len(observations), HEADS + 1, 8)
        torch.testing.assert_close(parts.sum(1), whole, rtol=0, atol=1e-12)


@every_depth
def test_a_heads_part_is_the_slope_when_p_hat_moves_for_that_head_of_that_layer_alone(model):
    actor, observations = actor_of(model), windows(4)
    extractor, direction = actor.features_extractor, torch.zeros(WINDOW, FEATURES)
    direction[:, PAYLOAD] = 1.0
    reports = inspect_heads(actor, observations)
    for index, layer in enumerate(layers_of(extractor)):
        with torch.no_grad():
            still, more, less = (
                plain_layer(extractor, observations + change * direction.flatten(), index)[0]
                for change in (0.0, STEP_KG, -STEP_KG)
            )
            expected = [
                plain_action(actor, index, still.sum(0) + more[k] - still[k])
                - plain_action(actor, index, still.sum(0) + less[k] - still[k])
                for k in range(HEADS + 1)
            ]
        slopes = torch.stack(expected, 1) / (2.0 * STEP_KG)
        found = payload_derivative_by_term(actor, extractor, layer, observations)
        torch.testing.assert_close(found, slopes, rtol=0, atol=TOLERANCE)
        reported = [*reports[index].payload_sensitivity, reports[index].residual_sensitivity]
        np.testing.assert_allclose(reported, slopes.abs().mean((0, 2)), rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize('index', [0, 1])
def test_a_silenced_head_is_idle_blind_and_learns_nothing_in_its_layer_alone(index):
    actor, observations = actor_of('transformer'), windows()
    attention = actor.features_extractor.blocks[index].attention
    with torch.no_grad():
        attention.out_proj.weight[:, of_head(2)] = 0.0
        for values in (attention.in_proj_weight, attention.in_proj_bias):
            values[2 * WIDTH :][of_head(2)] = 0.0
    learn(actor, observations)
    reports = inspect_heads(actor, observations)
    assert [report.num_idle for report in reports] == [int(k == index) for k in (0, 1)]
    for name in ('gradient_norm', 'output_share', 'payload_sensitivity'):
        assert getattr(reports[index], name)[2] == 0.0
        assert np.count_nonzero(getattr(reports[index], name)) == HEADS - 1
        assert np.count_nonzero(getattr(reports[1 - index], name)) == HEADS


@every_depth
def test_gradient_norms_of_a_layer_add_up_to_that_of_all_that_its_heads_own(model):
    actor, observations = actor_of(model), windows()
    assert all(np.isnan(r.gradient_norm).all() for r in inspect_heads(actor, observations))
    learn(actor, observations)
    reports = inspect_heads(actor, observations)
    for block, report in zip(actor.features_extractor.blocks, reports, strict=True):
        a = block.attention
        owned = (a.in_proj_weight, a.in_proj_bias, a.out_proj.weight)
        expected = sum(float(parameter.grad.square().sum()) for parameter in owned)
        assert report.gradient_norm @ report.gradient_norm == pytest.approx(expected, rel=1e-12)


def test_a_transformer_that_does_not_read_p_hat_is_not_sensitive_to_it():
    actor = actor_of('transformer')
    with torch.no_grad():
        actor.features_extractor.embedding.linear.weight[:, PAYLOAD] = 0.0
    for report in inspect_heads(actor, windows()):
        np.testing.assert_array_equal(report.payload_sensitivity, 0.0)
        assert report.residual_sensitivity == 0.0


def test_many_windows_are_looked_at_in_parts_and_none_is_left_out():
    actor, observations = actor_of('transformer'), windows(AT_ONCE + 3)
    whole = payload_derivative(actor, observations)
    alone = payload_derivative(actor, observations[-3:])
    torch.testing.assert_close(whole[-3:], alone, rtol=0, atol=1e-12)
