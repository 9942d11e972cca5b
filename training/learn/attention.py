# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""Pre-LN attention of which only the last token is read, and only that is computed.

    h_i = E x_i + p_i            token x_i in R^F, learned position p_i (with E's bias), in R^d
    h <- h + MHA(LN(h))          causal, K heads of width d_k; optionally h <- h + FFN(LN(h))

Three blocks hold the same parameters, those of nn.MultiheadAttention, and differ in what they
compute: `CausalBlock` every token, `LastQueryBlock` the last one from all h, `CollapsedBlock` the
last one from the tokens, without ever forming an h. All are exact: nothing is approximated.

Why the last one is cheap. A head's score is q . (W_k LN(h_i) + b_k) / sqrt(d_k), with one q. The
key bias adds the same number to every score, so softmax cancels it. LN(h_i) is linear in h_i but
for its deviation, so keys and values need not exist: fold W_k into q and attend over LN(h) itself,
then apply W_v once. In the first layer LN(h) is no more than x and a position:

    LN(h_i) = r_i gain (.) (E_c x_i + c_i) + bias     E_c, c_i: E and p_i less their mean over d
    1 / r_i^2 = x_i^T G x_i + 2 g_i . x_i + |c_i|^2 / d + eps
    G = E_c^T E_c / d,  g_i = E_c^T c_i / d

so that arrays with a row per token have F or K columns, and none has d.

Training differentiates with respect to every parameter; on a robot they are fixed, and
`FoldedAttention` keeps only what depends on the window. With T the token map, E_c T^T = Q R (Q
with orthonormal columns) and c_i' the part of c_i orthogonal to these, a token's deviation is the
length of a short row:

    y_i = (R x_i + Q^T c_i, sqrt(|c_i'|^2 + d eps)) / sqrt(d)         F + 1 numbers
    u_i = y_i / |y_i|
    LN(h_i) = gain (.) (sqrt(d) Q u_i[:F] + u_i[F] c_i' / y_i[F]) + bias

y_i[F] depends on the position alone, so LN(h_i) is linear in u_i. The query, linear in the last u,
meets the keys beforehand: from u_n to what every head looks for it is one matrix. Half of the
operators and of the numbers remain.
"""

from typing import NamedTuple, TYPE_CHECKING

import torch
from torch import nn
from torch.nn import functional

if TYPE_CHECKING:
    from training.learn.networks import ShallowAttention

POSITION_SCALE = 0.02
"""Standard deviation of fresh positions: small beside an embedded token, as in GPT-2."""


class TokenEmbedding(nn.Module):
    """h_i = E x_i + p_i."""

    def __init__(self, num_features: int, window: int, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(num_features, width)
        self.positions = nn.Parameter(torch.empty(window, width))
        nn.init.normal_(self.positions, std=POSITION_SCALE)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return h, shape (B, W, d), of tokens, shape (B, W, F)."""
        return functional.linear(tokens, self.linear.weight) + self.offsets()

    def offsets(self) -> torch.Tensor:
        """Return the positions with the bias of E added, shape (W, d)."""
        return self.positions + self.linear.bias

    def last(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return h of the last token alone, shape (B, d)."""
        offset = self.positions[-1] + self.linear.bias
        return functional.linear(tokens[:, -1], self.linear.weight, offset)


class Projections(NamedTuple):
    """The parts of an in-projection that matter, the last two taken by head."""

    query: torch.Tensor
    """W_q, shape (d, d)."""
    query_bias: torch.Tensor
    """b_q, shape (d,)."""
    keys: torch.Tensor
    """W_k times the norm's gain and a basis of its C columns, shape (K, d_k, C)."""
    values: torch.Tensor
    """W_v likewise, shape (K, d_k, C)."""
    common: torch.Tensor
    """W_v bias + b_v, which all values have in common, shape (d,)."""


class Heads(NamedTuple):
    """What the heads did for the last token."""

    weights: torch.Tensor
    """Attention over the window, shape (B, K, W); sums to 1."""
    outputs: torch.Tensor
    """Attended values, before the output projection, shape (B, K, d_k)."""


class AttentionBlock(nn.Module):
    """The parameters of h + MHA(LN(h)), and of h + FFN(LN(h)) behind it where asked for.

    The FFN is Linear(d, 2 d), GELU, Linear(2 d, d).
    """

    def __init__(self, width: int, num_heads: int, *, has_ffn: bool = False) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        # Holds and initialises the weights; its forward is what the subclasses do better.
        self.attention = nn.MultiheadAttention(width, num_heads, batch_first=True)
        self.ffn: nn.Module | None = None
        if has_ffn:
            self.ffn = nn.Sequential(
                nn.LayerNorm(width),
                nn.Linear(width, 2 * width),
                nn.GELU(),
                nn.Linear(2 * width, width),
            )

    def by_head(self, joined: torch.Tensor) -> torch.Tensor:
        """Return (..., d) as (..., K, d_k)."""
        shape = (*joined.shape[:-1], self.attention.num_heads, self.attention.head_dim)
        return joined.reshape(shape)  # (..., K, d_k)

    def feed_forward(self, h: torch.Tensor) -> torch.Tensor:
        """Return what the block makes of h behind its attention: h + FFN(LN(h)), or h itself."""
        return h if self.ffn is None else h + self.ffn(h)

    def projections(self, basis: torch.Tensor | None = None) -> Projections:
        """Return the maps, keys and values over a basis, shape (C, d), or over h itself."""
        width = self.attention.embed_dim
        # Split once: the gradient is then one cat, where every slice would need a full matrix.
        query, rest = self.attention.in_proj_weight.split_with_sizes([width, 2 * width])
        query_bias, _, value_bias = self.attention.in_proj_bias.chunk(3)
        common = functional.linear(self.norm.bias, rest[width:], value_bias)
        over = rest * self.norm.weight if basis is None else rest @ (basis * self.norm.weight).T
        keys, values = over.reshape(2, self.attention.num_heads, -1, over.shape[1]).unbind()
        return Projections(query, query_bias, keys, values, common)

    def _query(self, last: torch.Tensor, maps: Projections) -> torch.Tensor:
        """Return q / sqrt(d_k), shape (K, B, d_k), from h of the last token, shape (B, d)."""
        query = functional.linear(self.norm(last), maps.query, maps.query_bias)
        scaled = query * self.attention.head_dim**-0.5
        return self.by_head(scaled).transpose(0, 1)  # (K, B, d_k)

    def attend_last(self, h: torch.Tensor) -> Heads:
        """Return what the heads do for the last token, from h of all tokens, (B, W, d)."""
        maps = self.projections()
        # Gain and bias of the norm are folded into the maps.
        unscaled = functional.layer_norm(h, h.shape[-1:], eps=self.norm.eps)
        probe = torch.bmm(self._query(h[:, -1], maps), maps.keys).transpose(0, 1)  # (B, K, d)
        weights = torch.bmm(probe, unscaled.mT).softmax(-1)  # (B, K, W)
        pooled = torch.bmm(weights, unscaled)  # (B, K, d)
        return Heads(weights, self._outputs(pooled, maps))

    def _outputs(self, pooled: torch.Tensor, maps: Projections) -> torch.Tensor:
        """Return the heads' outputs, shape (B, K, d_k), of what each attended to, (B, K, C)."""
        by_head = torch.bmm(pooled.transpose(0, 1), maps.values.mT)  # (K, B, d_k)
        return self.by_head(by_head.transpose(0, 1).flatten(1) + maps.common)  # (B, K, d_k)

    def _finish(self, last: torch.Tensor, heads: Heads) -> torch.Tensor:
        """Return the block's output from h of the last token and what the heads found, (B, d)."""
        return self.feed_forward(last + self.attention.out_proj(heads.outputs.flatten(1)))


class CausalBlock(AttentionBlock):
    """Every token from itself and those before it."""

    def forward(self, h: torch.Tensor) -> torch.Tensor:
        """Return h of the next layer, shape (B, W, d)."""
        return self.feed_forward(h + self.attention.out_proj(self.outputs(h).flatten(2)))

    def outputs(self, h: torch.Tensor) -> torch.Tensor:
        """Return what the heads find for every token, shape (B, W, K, d_k)."""
        query, key, value = self.split(h)
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        return mixed.transpose(1, 2)  # (B, W, K, d_k)

    def split(self, h: torch.Tensor) -> torch.Tensor:
        """Return query, key and value of every token by head, shape (3, B, K, W, d_k)."""
        weight, bias = self.attention.in_proj_weight, self.attention.in_proj_bias
        merged = functional.linear(self.norm(h), weight, bias)  # (B, W, 3 d)
        split = self.by_head(merged.reshape(*h.shape[:2], 3, -1))  # (B, W, 3, K, d_k)
        return split.permute(2, 0, 3, 1, 4)


class LastQueryBlock(AttentionBlock):
    """The last token alone, from h of all tokens: keys and values are never formed."""

    def forward(self, h: torch.Tensor) -> torch.Tensor:
        """Return h of the last token, shape (B, d), of all tokens' h, shape (B, W, d)."""
        return self._finish(h[:, -1], self.attend_last(h))


class CollapsedBlock(AttentionBlock):
    """The last token alone, from the tokens: the first and only layer, see the module's text."""

    def forward(self, tokens: torch.Tensor, embedding: TokenEmbedding) -> torch.Tensor:
        """Return h of the last token, shape (B, d), of tokens, shape (B, W, F)."""
        last = embedding.last(tokens)
        return self._finish(last, self.attend(tokens, embedding, last))

    def attend(self, tokens: torch.Tensor, embedding: TokenEmbedding, last: torch.Tensor) -> Heads:
        """Return weights and outputs of the heads."""
        basis = centred_basis(embedding)  # (F + W, d)
        maps = self.projections(basis)
        scale = inverse_deviation(tokens, basis, self.norm.eps).unsqueeze(1)  # (B, 1, W)
        probe = torch.bmm(self._query(last, maps), maps.keys).transpose(0, 1)  # (B, K, F + W)
        content, position = probe.split_with_sizes([tokens.shape[2], tokens.shape[1]], dim=2)
        weights = (torch.baddbmm(position, content, tokens.mT) * scale).softmax(-1)  # (B, K, W)
        scaled = weights * scale
        pooled = torch.cat([torch.bmm(scaled, tokens), scaled], dim=2)  # (B, K, F + W)
        return Heads(weights, self._outputs(pooled, maps))


def centred_basis(embedding: TokenEmbedding) -> torch.Tensor:
    """Return the rows of E_c^T and the c_i below them, shape (F + W, d)."""
    rows = torch.cat([embedding.linear.weight.T, embedding.offsets()])  # (F + W, d)
    return rows - rows.mean(dim=1, keepdim=True)


def inverse_deviation(tokens: torch.Tensor, basis: torch.Tensor, eps: float) -> torch.Tensor:
    """Return r_i, LayerNorm's 1 / sqrt(variance of h_i + eps), without h_i; shape (B, W).

    As exact as LayerNorm itself while the variance is of the order of its terms, as it is for
    tokens of the task. Where a position cancels its token it is a small difference of large
    terms: its relative error grows by their ratio, and the clamp keeps it from going negative.
    """
    num_rows, num_features = tokens.shape[1:]
    features, offsets = basis.split_with_sizes([num_features, num_rows])
    gram = basis @ (features.T / basis.shape[1])  # (F + W, F)
    quadratic, linear = gram.split_with_sizes([num_features, num_rows])  # (F, F), (W, F)
    constant = offsets.square().mean(1) + eps  # (W,)
    slope = torch.add(tokens @ quadratic, linear, alpha=2.0)  # (B, W, F)
    variance: torch.Tensor = torch.linalg.vecdot(slope, tokens) + constant  # (B, W)
    return variance.clamp_min(eps).rsqrt()


class FoldedAttention(nn.Module):
    """What a `ShallowAttention` computes: observations (B, W, F) to features (B, 64)."""

    shorten: torch.Tensor
    """R^T / sqrt(d) and a column of zeros, shape (F, F + 1)."""
    offsets: torch.Tensor
    """The rest of y, shape (W, F + 1)."""
    values: torch.Tensor
    """From what a head attended to, to its output, shape (K, F + 1 + W, d_k)."""

    def __init__(self, network: 'ShallowAttention') -> None:
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
