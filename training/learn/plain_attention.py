# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""The attention networks written plainly, with nn.MultiheadAttention: slow and obvious.

They share the weights of the real ones; the tests hold the two together, the benchmark compares.
"""

from collections.abc import Iterable

import torch
from torch import nn

from training.learn.attention import AttentionBlock, TokenEmbedding
from training.learn.networks import DeepAttention, ShallowAttention


def plain_summary(
    tokens: torch.Tensor, embedding: TokenEmbedding, blocks: Iterable[nn.Module]
) -> torch.Tensor:
    """Return the last of all tokens of the last layer, (B, d): what the extractors must equal."""
    h = embedding.linear(tokens) + embedding.positions
    future = torch.ones(h.shape[1], h.shape[1], dtype=torch.bool, device=h.device).triu(1)
    for block in blocks:
        assert isinstance(block, AttentionBlock)
        y = block.norm(h)
        h = h + block.attention(y, y, y, attn_mask=future, need_weights=False)[0]
        if block.ffn is not None:
            h = h + block.ffn(h)
    last: torch.Tensor = h[:, -1]
    return last


class PlainShallowAttention(ShallowAttention):
    """`ShallowAttention`, plainly."""

    def summarise(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return h of the last token."""
        return plain_summary(tokens, self.embedding, [self.block])


class PlainDeepAttention(DeepAttention):
    """`DeepAttention`, plainly."""

    def summarise(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return h of the last token."""
        return plain_summary(tokens, self.embedding, self.blocks)
