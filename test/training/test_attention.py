# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""What a robot runs is what was trained, in half of the operators."""

import numpy as np
import onnx
import pytest
import torch

from training.export import ExportedActor, to_onnx
from training.learn.attention import FoldedAttention
from training.learn.networks import build_policy, NetworkConfig, ShallowAttention

NUM = 200


def network(heads, window, features=11, tokens='error_scaled'):
    """Return a shallow attention in float64 with lively weights, positions among them."""
    torch.manual_seed(5)
    config = NetworkConfig('incrt', heads, window, num_extra=features - 11, tokens=tokens)
    extractor = build_policy(config).actor.features_extractor.double()
    assert isinstance(extractor, ShallowAttention)
    with torch.no_grad():
        for parameter in extractor.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return extractor


def windows(window, features, scale=1.0):
    rng = np.random.default_rng(6)
    return torch.tensor(scale * rng.standard_normal((NUM, window, features)))


@pytest.mark.parametrize('tokens', ['raw', 'error_scaled'])
@pytest.mark.parametrize(
    ('heads', 'window', 'features'), [(1, 1, 11), (1, 5, 13), (4, 20, 11), (7, 50, 11)]
)
def test_folding_changes_nothing(heads, window, features, tokens):
    extractor = network(heads, window, features, tokens)
    rows = windows(window, features)
    with torch.no_grad():
        expected = extractor(rows)
        found = FoldedAttention(extractor)(rows)
    assert expected.std() > 0.1
    torch.testing.assert_close(found, expected, rtol=0.0, atol=1e-11)


@pytest.mark.parametrize('scale', [0.0, 1e-12, 1e6])
def test_folding_changes_nothing_for_windows_of_zeros_and_of_huge_numbers(scale):
    extractor = network(2, 20)
    rows = windows(20, 11, scale)
    with torch.no_grad():
        expected, found = extractor(rows), FoldedAttention(extractor)(rows)
    torch.testing.assert_close(found, expected, rtol=0.0, atol=1e-9)


def test_an_embedding_that_does_not_see_a_feature_can_be_folded():
    extractor = network(2, 20)
    with torch.no_grad():
        extractor.embedding.linear.weight[:, 3] = extractor.embedding.linear.weight[:, 4]
        extractor.embedding.linear.weight[:, 7] = 0.0
        rows = windows(20, 11)
        expected, found = extractor(rows), FoldedAttention(extractor)(rows)
    torch.testing.assert_close(found, expected, rtol=0.0, atol=1e-11)


def test_what_is_exported_has_half_of_the_operators_and_of_the_numbers():
    config = NetworkConfig('incrt', 7, 50)
    actor = build_policy(config).actor
    folded = ExportedActor(actor)
    assert isinstance(folded.extractor, FoldedAttention)
    whole = ExportedActor(actor)
    whole.extractor = actor.features_extractor.double()
    sizes = []
    for one in (folded, whole):
        data = to_onnx(one, 50, 11)
        sizes.append((len(onnx.load_from_string(data).graph.node), len(data)))
    assert sizes[0][0] <= 0.55 * sizes[1][0]
    assert sizes[0][1] <= 0.55 * sizes[1][1]
