# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
r"""What each head does while it is trained, and how the gains answer to the payload estimate.

Behind the attention of a layer the stream of a window is a sum of K + 1 terms,

    s = sum_k c_k + r     c_k = W_o[:, block k] output_k     r = h before the layer + bias of W_o

and all that follows, other layers included, reads s alone: the action is a(s). So the derivative
by p_hat, moved in all rows at once as it is constant over an episode, is a sum over the same
terms, and head k of the layer has its own part of it:

    da / dp_hat = sum_k (da/ds) dc_k/dp_hat + (da/ds) dr/dp_hat

That holds for the one layer of `incrt` and `attention` and for every layer of the deep networks,
whose s has all W tokens but in the last layer, where only the last token is computed. Parts sum up
to the whole within a layer, not over layers: a way through a head of the first and one of the
second layer counts in both. Entropy and share are those of the last token, in every layer.

An action is a gain before the shield, -1 and 1 being the ends of its range (`gain_map`). All
derivatives are exact. No random generator is used and no `.grad` is written, so training goes on
to the bit as if nobody had looked.

A head is idle if its share of the output is below a tenth of an equal share, 0.1 / K. The labels
of whole runs (healthy, weak, payload-invariant, diverged) have their rules in `run_labels.py`.
"""

from collections.abc import Callable
import math
from typing import NamedTuple

import numpy as np
from stable_baselines3.common.logger import Logger
from stable_baselines3.sac.policies import Actor
import torch
from torch.autograd.functional import jvp
from torch.nn import functional
from torch.nn.attention import sdpa_kernel, SDPBackend

from metactl_ros.control.window import feature_names
from metactl_ros.dynamics.two_link import NUM_JOINTS
from metactl_ros.signals import Array
from training.learn.collapsed_attention import AttentionBlock, CausalBlock, Heads
from training.learn.networks import DeepAttention, ShallowAttention, WindowExtractor
from training.learn.replay_buffer import WindowReplayBuffer

PAYLOAD = feature_names(('',) * NUM_JOINTS).index('payload_estimate_kg')
IDLE_BELOW = 0.1
"""Output share of an idle head, as a part of the equal share 1 / K."""
SPAN, STRIDE = 2560, 10
"""Every tenth of the newest transitions: 256 windows out of five episodes."""
AT_ONCE = 64
"""Windows whose derivatives are computed together."""
BY_HEAD = ('gradient_norm', 'entropy', 'output_share', 'payload_sensitivity')


class HeadReport(NamedTuple):
    """Of one layer: one number per head, shape (K,), over a batch of windows."""

    gradient_norm: Array
    """Of its rows of W_q, W_k, W_v and their biases, and its columns of W_o; NaN before any."""
    entropy: Array
    """Of its attention, by log W: 1 if uniform, 0 if on one row or if there is only one; mean."""
    output_share: Array
    """|c_k| / sum_j |c_j|, mean; sums to 1, but for windows in which all are zero."""
    payload_sensitivity: Array
    """|(da/ds) dc_k/dp_hat|, mean over windows and actions, 1 / kg."""
    residual_sensitivity: float
    """The same of r, the way past the heads: one number."""

    @property
    def num_idle(self) -> int:
        """How many heads have less than a tenth of an equal share of the output."""
        return int(np.sum(self.output_share < IDLE_BELOW / len(self.output_share)))


class Layer(NamedTuple):
    """One attention layer of an extractor, and what is before and behind it."""

    block: AttentionBlock
    heads: Callable[[torch.Tensor], Heads]
    """From observations, (B, W F), to what the heads do for the last token."""
    terms: Callable[[torch.Tensor], torch.Tensor]
    """From observations to c_1 ... c_K and r, shape (B, K + 1, d) or (B, K + 1, W, d)."""
    onward: Callable[[torch.Tensor], torch.Tensor]
    """From s, shape (B, d) or (B, W, d), to the summary, shape (B, d)."""


def layers_of(extractor: WindowExtractor) -> list[Layer]:
    """Return the attention layers of an extractor, the first one first; none of other models."""
    if isinstance(extractor, ShallowAttention):
        return [_shallow_layer(extractor)]
    if isinstance(extractor, DeepAttention):
        return [_deep_layer(extractor, index) for index in range(len(extractor.blocks))]
    return []


def _shallow_layer(extractor: ShallowAttention) -> Layer:
    block = extractor.block

    def terms(observations: torch.Tensor) -> torch.Tensor:
        last = extractor.embedding.last(extractor.to_tokens(observations))
        return _terms(block, extractor.attend(observations).outputs, last)

    return Layer(block, extractor.attend, terms, block.feed_forward)


def _deep_layer(extractor: DeepAttention, index: int) -> Layer:
    before, block = extractor.blocks[:index], extractor.blocks[index]
    behind = extractor.blocks[index + 1 :]
    assert isinstance(block, AttentionBlock)

    def stream(observations: torch.Tensor) -> torch.Tensor:
        h: torch.Tensor = before(extractor.embedding(extractor.to_tokens(observations)))
        return h  # (B, W, d)

    def terms(observations: torch.Tensor) -> torch.Tensor:
        h = stream(observations)
        if isinstance(block, CausalBlock):
            return _terms(block, block.outputs(h), h)
        return _terms(block, block.attend_last(h).outputs, h[:, -1])

    def onward(s: torch.Tensor) -> torch.Tensor:
        summary: torch.Tensor = behind(block.feed_forward(s))
        return summary

    return Layer(block, lambda x: block.attend_last(stream(x)), terms, onward)


def _terms(block: AttentionBlock, outputs: torch.Tensor, h: torch.Tensor) -> torch.Tensor:
    """Return what each head adds to h, then r, (B, K + 1, ..., d), of outputs (B, ..., K, d_k)."""
    out = block.attention.out_proj
    added = torch.einsum('dkc,b...kc->bk...d', block.by_head(out.weight), outputs)
    return torch.cat([added, (h + out.bias).unsqueeze(1)], dim=1)


@torch.no_grad()
def inspect_heads(actor: Actor, observations: torch.Tensor) -> list[HeadReport]:
    """Return what the heads of each layer do on observations, shape (B, W F); none has none.

    The gradient is that of the last update of the actor, which training leaves in place.
    """
    extractor = actor.features_extractor
    assert isinstance(extractor, WindowExtractor)
    return [_inspect(actor, extractor, layer, observations) for layer in layers_of(extractor)]


def _inspect(
    actor: Actor, extractor: WindowExtractor, layer: Layer, observations: torch.Tensor
) -> HeadReport:
    weights, outputs = layer.heads(observations)  # (B, K, W), (B, K, d_k)
    entropy = torch.special.entr(weights).sum(-1).mean(0) / math.log(max(weights.shape[-1], 2))
    added = _terms(layer.block, outputs, torch.zeros_like(outputs.flatten(1)))[:, :-1]
    norms = added.norm(dim=-1)  # (B, K)
    tiny = torch.finfo(norms.dtype).tiny
    parts = payload_derivative_by_term(actor, extractor, layer, observations)  # (B, K + 1, m)
    *by_head, residual = parts.abs().mean((0, 2)).tolist()
    return HeadReport(
        gradient_norm=gradient_norms(layer.block),
        entropy=_array(entropy),
        output_share=_array((norms / norms.sum(1, keepdim=True).clamp_min(tiny)).mean(0)),
        payload_sensitivity=np.array(by_head),
        residual_sensitivity=residual,
    )


def payload_sensitivity(actor: Actor, observations: torch.Tensor) -> Array:
    """Return the mean of |da / dp_hat| for each action, 1 / kg, shape (m,); for any model."""
    return _array(payload_derivative(actor, observations).abs().mean(0))


@torch.no_grad()
def payload_derivative(actor: Actor, observations: torch.Tensor) -> torch.Tensor:
    """Return da / dp_hat of every window, 1 / kg, shape (B, m)."""
    extractor = actor.features_extractor
    assert isinstance(extractor, WindowExtractor)
    direction = payload_direction(extractor, observations)
    return _derivative(lambda x: _action(actor, extractor(x)), observations, direction)


@torch.no_grad()
def payload_derivative_by_term(
    actor: Actor, extractor: WindowExtractor, layer: Layer, observations: torch.Tensor
) -> torch.Tensor:
    """Return the parts of a layer's heads of da / dp_hat, then of r, 1 / kg, (B, K + 1, m)."""
    direction = payload_direction(extractor, observations)
    terms = layer.terms(observations)  # (B, K + 1, ..., d)
    moves = _derivative(layer.terms, observations, direction)

    def action(s: torch.Tensor) -> torch.Tensor:
        summary = extractor.final_norm(layer.onward(s))
        return _action(actor, functional.relu(extractor.project(summary)))

    s = terms.sum(1, keepdim=True).expand_as(moves).flatten(0, 1)  # (B (K + 1), ..., d)
    parts = _derivative(action, s, moves.flatten(0, 1))
    return parts.reshape(*moves.shape[:2], -1)


def gradient_norms(block: AttentionBlock) -> Array:
    """Return the norm of what `.grad` holds for each head, shape (K,); NaN if it holds nothing.

    The bias of W_o belongs to no head. A loaded model holds nothing until its first update.
    """
    attention = block.attention
    sizes = (attention.num_heads, attention.head_dim)
    weight, bias = attention.in_proj_weight.grad, attention.in_proj_bias.grad
    out = attention.out_proj.weight.grad
    if weight is None or bias is None or out is None:
        return np.full(attention.num_heads, np.nan)
    squares = (
        weight.reshape(3, *sizes, -1).square().sum((0, 2, 3))
        + bias.reshape(3, *sizes).square().sum((0, 2))
        + out.reshape(-1, *sizes).square().sum((0, 2))
    )
    return _array(squares.sqrt())


def payload_direction(extractor: WindowExtractor, observations: torch.Tensor) -> torch.Tensor:
    """Return the observations' change per kg of p_hat: 1 in its column of all rows, (B, W F)."""
    row = observations.new_zeros(extractor.config.num_features)
    row[PAYLOAD] = 1.0
    return row.repeat(extractor.config.window).expand_as(observations)


def recent_observations(buffer: WindowReplayBuffer) -> torch.Tensor:
    """Return every tenth of the newest 2560 stored observations, newest first, (B, W F)."""
    back = np.arange(0, min(buffer.size(), SPAN), STRIDE)
    return buffer._get_samples((buffer.pos - 1 - back) % buffer.buffer_size).observations


class ActorReport(NamedTuple):
    """How the gains answer to the payload estimate, and what the heads do; of any model."""

    sensitivity: Array
    """Mean of |da / dp_hat| of each action, 1 / kg, shape (m,)."""
    layers: list[HeadReport]
    """The first layer first; empty for a model without heads."""


def inspect_actor(actor: Actor, buffer: WindowReplayBuffer) -> ActorReport:
    """Return what an actor does on the newest observations of its training."""
    observations = recent_observations(buffer)
    sensitivity = payload_sensitivity(actor, observations)
    return ActorReport(sensitivity, inspect_heads(actor, observations))


def record_actor(logger: Logger, found: ActorReport) -> None:
    """Log a report: heads/LAYER/HEAD/gradient_norm and so on, layers and heads from 0 on."""
    logger.record('payload_sensitivity/mean', float(found.sensitivity.mean()))
    for action, value in enumerate(found.sensitivity):
        logger.record(f'payload_sensitivity/{action}', float(value))
    for layer, report in enumerate(found.layers):
        logger.record(f'heads/{layer}/num_idle', report.num_idle)
        logger.record(f'heads/{layer}/residual_sensitivity', report.residual_sensitivity)
        for name in BY_HEAD:
            for head, value in enumerate(getattr(report, name)):
                logger.record(f'heads/{layer}/{head}/{name}', float(value))


def _action(actor: Actor, features: torch.Tensor) -> torch.Tensor:
    """Return the deterministic action of features: the actor's own, in any precision."""
    mean: torch.Tensor = actor.mu(actor.latent_pi(features))
    return mean.tanh()


def _derivative(
    function: Callable[[torch.Tensor], torch.Tensor], point: torch.Tensor, direction: torch.Tensor
) -> torch.Tensor:
    """Return the derivative of a function at points in directions, batch first, exactly."""
    # By differentiating twice, which fused attention and cuDNN's GRU cannot; plain kernels can.
    # Part by part, as plain attention keeps (B, K, W, W) many times.
    parts = zip(*(torch.split(each, AT_ONCE) for each in (point, direction)), strict=True)
    with sdpa_kernel(SDPBackend.MATH), torch.backends.cudnn.flags(enabled=False):
        return torch.cat([jvp(function, *part)[1] for part in parts])  # type: ignore[no-untyped-call]


def _array(values: torch.Tensor) -> Array:
    return values.detach().cpu().numpy().astype(np.float64)
