# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""The attention networks written plainly, with nn.MultiheadAttention: slow and obvious.

They share the weights of the real ones; the tests hold the two together, the benchmark compares.
"""

import torch

from training.learn.networks import DeepAttention, ShallowAttention


def plain_summary(tokens, embedding, blocks):
    """Every token of every layer, and the last one read: what the extractors must equal."""
    h = embedding.linear(tokens) + embedding.positions
    future = torch.ones(h.shape[1], h.shape[1], dtype=torch.bool, device=h.device).triu(1)
    for block in blocks:
        y = block.norm(h)
        h = h + block.attention(y, y, y, attn_mask=future, need_weights=False)[0]
        if block.ffn is not None:
            h = h + block.ffn(h)
    return h[:, -1]


class PlainShallowAttention(ShallowAttention):
    def summarise(self, tokens):
        return plain_summary(tokens, self.embedding, [self.block])


class PlainDeepAttention(DeepAttention):
    def summarise(self, tokens):
        return plain_summary(tokens, self.embedding, self.blocks)
