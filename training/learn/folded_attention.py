# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""One attention block as a robot runs it: folded, but for what depends on the window.

Training differentiates with respect to every parameter; on a robot they are fixed. With T the
token map, E_c T^T = Q R (Q with orthonormal columns) and c_i' the part of c_i orthogonal to these
(E_c and c_i as in `collapsed_attention.py`), a token's deviation is the length of a short row:

    y_i = (R x_i + Q^T c_i, sqrt(|c_i'|^2 + d eps)) / sqrt(d)         F + 1 numbers
    u_i = y_i / |y_i|
    LN(h_i) = gain (.) (sqrt(d) Q u_i[:F] + u_i[F] c_i' / y_i[F]) + bias

y_i[F] depends on the position alone, so LN(h_i) is linear in u_i. The query, linear in the last u,
meets the keys beforehand: from u_n to what every head looks for it is one matrix. Half of the
operators and of the numbers remain. Nothing is approximated.
"""

import torch
from torch import nn
from torch.nn import functional

from training.learn.collapsed_attention import centred_basis
from training.learn.networks import ShallowAttention


class FoldedAttention(nn.Module):
    """What a `ShallowAttention` computes: observations (B, W, F) to features (B, 64)."""

    shorten: torch.Tensor
    """R^T / sqrt(d) and a column of zeros, shape (F, F + 1)."""
    offsets: torch.Tensor
    """The rest of y, shape (W, F + 1)."""
    values: torch.Tensor
    """From what a head attended to, to its output, shape (K, F + 1 + W, d_k)."""

    def __init__(self, network: ShallowAttention) -> None:
        super().__init__()
        block, embedding, config = network.block, network.embedding, network.config
        attention, width = block.attention, config.width
        with torch.no_grad():
            sizes = [config.num_features, config.window]
            features, centred = centred_basis(embedding).split_with_sizes(sizes)
            axes, shape = torch.linalg.qr((network.token_map @ features).T)  # Q, R
            along = centred @ axes  # (W, F)
            across = centred - along @ axes.T  # (W, d)
            least = (across.square().mean(1) + block.norm.eps).sqrt()  # (W,)
            self.num_axes = axes.shape[1]
            self.register_buffer('shorten', functional.pad(shape.T / width**0.5, (0, 1)))
            rest = torch.cat([along / width**0.5, least[:, None]], dim=1)  # (W, F + 1)
            self.register_buffer('offsets', rest)
            rows = [axes.T * width**0.5, torch.zeros(1, width).to(axes), across / least[:, None]]
            maps = block.projections(torch.cat(rows))  # C = F + 1 + W
            self.register_buffer('values', maps.values.mT.contiguous())
            last = torch.cat([rows[0], rows[2][-1:]]) * block.norm.weight  # (F + 1, d)
            queries = functional.linear(
                torch.cat([last, block.norm.bias[None]]), maps.query
            )  # (F + 2, d)
            queries[-1] += maps.query_bias
            by_head = block.by_head(queries * attention.head_dim**-0.5)  # (F + 2, K, d_k)
            probes = torch.einsum('fkd,kdc->kcf', by_head, maps.keys).flatten(0, 1)
            self.probe = linear(probes[:, :-1], probes[:, -1])
            out = attention.out_proj
            constant = out(maps.common) + embedding.offsets()[-1]
            self.mix = linear(out.weight, constant)
            self.embed = linear(embedding.linear.weight @ network.token_map.T)
        self.end = nn.Sequential(network.final_norm, network.project, nn.ReLU())

    def forward(self, observations: torch.Tensor) -> torch.Tensor:
        """Return the features."""
        units = normalise(observations @ self.shorten + self.offsets)  # (B, W, F + 1)
        tokens = units.mT  # (B, F + 1, W)
        scale = tokens[:, self.num_axes :]  # (B, 1, W)
        sizes = list(self.offsets.shape[::-1])  # F + 1, W
        probe = self.probe(units[:, -1]).unflatten(1, (len(self.values), sum(sizes)))
        content, position = probe.split_with_sizes(sizes, dim=2)  # (B, K, F + 1), (B, K, W)
        weights = (content @ tokens + position * scale).softmax(-1)  # (B, K, W)
        pooled = torch.cat([weights @ units, weights * scale], dim=2)  # (B, K, F + 1 + W)
        outputs = torch.bmm(pooled.transpose(0, 1), self.values)  # (K, B, d_k)
        mixed = self.mix(outputs.transpose(0, 1).flatten(1))  # (B, d)
        result: torch.Tensor = self.end(mixed + self.embed(observations[:, -1]))
        return result


def linear(weight: torch.Tensor, bias: torch.Tensor | None = None) -> nn.Linear:
    """Return a layer with a weight, shape (out, in), and a bias, shape (out,), or none."""
    size_out, size_in = weight.shape
    layer = nn.Linear(size_in, size_out, bias=bias is not None).to(weight)
    layer.weight.data = weight.detach()
    if bias is not None:
        layer.bias.data = bias.detach()
    return layer


def normalise(rows: torch.Tensor) -> torch.Tensor:
    """Return rows of length one; ONNX has an operator for it, of which torch knows nothing."""
    if not torch.onnx.is_in_onnx_export():
        return functional.normalize(rows, dim=-1, eps=0.0)
    units: torch.Tensor = torch.onnx.ops.symbolic(
        'LpNormalization', [rows], {'axis': -1, 'p': 2}, dtype=rows.dtype, shape=rows.shape
    )
    return units
