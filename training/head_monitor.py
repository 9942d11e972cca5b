# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
r"""What each head does while it is trained, and how the gains answer to the payload estimate.

Behind the one block of `incrt` and `attention` the summary of a window is a sum of K + 1 terms,

    s = sum_k c_k + r     c_k = W_o[:, block k] output_k     r = h of the last token + bias of W_o

and the action is a(s). So the derivative by p_hat, moved in all rows at once as it is constant
over an episode, is a sum over the same terms, and head k has its own part of it:

    da / dp_hat = sum_k (da/ds) dc_k/dp_hat + (da/ds) dr/dp_hat

An action is a gain before the shield, -1 and 1 being the ends of its range (`gain_map`). All
derivatives are exact. No random generator is used and no `.grad` is written, so training goes on
to the bit as if nobody had looked.

A head is idle if its share of the output is below a tenth of an equal share, 0.1 / K. The labels
of whole runs (healthy, weak, payload-invariant, diverged) have their rules in `stats.label_of`.
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

from metactl_ros.arm import NUM_JOINTS
from metactl_ros.control.context_window import feature_names
from metactl_ros.signals import Array
from training.collapsed_attention import AttentionBlock
from training.networks import ShallowAttention, WindowExtractor
from training.replay_buffer import WindowReplayBuffer

PAYLOAD = feature_names(('',) * NUM_JOINTS).index('payload_estimate_kg')
IDLE_BELOW = 0.1
"""Output share of an idle head, as a part of the equal share 1 / K."""
SPAN, STRIDE = 2560, 10
"""Every tenth of the newest transitions: 256 windows out of five episodes."""


class HeadReport(NamedTuple):
    """One number per head, shape (K,), over a batch of windows."""

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


@torch.no_grad()
def inspect_heads(actor: Actor, observations: torch.Tensor) -> HeadReport | None:
    """Return what the heads do on observations, shape (B, W F); None if they are not collapsed.

    The gradient is that of the last update of the actor, which training leaves in place.
    """
    extractor = actor.features_extractor
    if not isinstance(extractor, ShallowAttention):
        return None
    weights = extractor.attend(observations).weights  # (B, K, W)
    entropy = torch.special.entr(weights).sum(-1).mean(0) / math.log(max(weights.shape[-1], 2))
    norms = summary_terms(extractor, observations)[:-1].norm(dim=-1)  # (K, B)
    tiny = torch.finfo(norms.dtype).tiny
    parts = payload_derivative_by_term(actor, extractor, observations)  # (K + 1, B, m)
    *by_head, residual = parts.abs().mean((1, 2)).tolist()
    return HeadReport(
        gradient_norm=gradient_norms(extractor.block),
        entropy=_array(entropy),
        output_share=_array((norms / norms.sum(0).clamp_min(tiny)).mean(1)),
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
    actor: Actor, extractor: ShallowAttention, observations: torch.Tensor
) -> torch.Tensor:
    """Return the heads' parts of da / dp_hat, then that of r, 1 / kg, shape (K + 1, B, m)."""
    direction = payload_direction(extractor, observations)
    terms = summary_terms(extractor, observations)  # (K + 1, B, d)
    moves = _derivative(lambda x: summary_terms(extractor, x), observations, direction)

    def action(summary: torch.Tensor) -> torch.Tensor:
        features = functional.relu(extractor.project(extractor.final_norm(summary)))
        return _action(actor, features)

    return _derivative(action, terms.sum(0).expand_as(moves), moves)


def summary_terms(extractor: ShallowAttention, observations: torch.Tensor) -> torch.Tensor:
    """Return what each head adds to the summary, then the residual, shape (K + 1, B, d)."""
    heads, out = extractor.attend(observations), extractor.block.attention.out_proj
    by_head = out.weight.reshape(len(out.weight), *heads.outputs.shape[1:])  # (d, K, d_k)
    added = torch.einsum('dkc,bkc->kbd', by_head, heads.outputs)  # (K, B, d)
    residual = extractor.embedding.last(extractor.to_tokens(observations)) + out.bias  # (B, d)
    return torch.cat([added, residual.unsqueeze(0)])


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


def record_heads(logger: Logger, report: HeadReport) -> None:
    """Log a report: heads/0/gradient_norm and so on, and what concerns all heads."""
    logger.record('heads/num_idle', report.num_idle)
    logger.record('heads/residual/payload_sensitivity', report.residual_sensitivity)
    for head in range(len(report.entropy)):
        for name in ('gradient_norm', 'entropy', 'output_share', 'payload_sensitivity'):
            logger.record(f'heads/{head}/{name}', float(getattr(report, name)[head]))


def record_actor(logger: Logger, actor: Actor, buffer: WindowReplayBuffer) -> None:
    """Log the sensitivity of each action, in the order of the gains, and the heads if any."""
    observations = recent_observations(buffer)
    sensitivity = payload_sensitivity(actor, observations)
    logger.record('payload_sensitivity/mean', float(sensitivity.mean()))
    for action, value in enumerate(sensitivity):
        logger.record(f'payload_sensitivity/{action}', float(value))
    report = inspect_heads(actor, observations)
    if report is not None:
        record_heads(logger, report)


def _action(actor: Actor, features: torch.Tensor) -> torch.Tensor:
    """Return the deterministic action of features: the actor's own, in any precision."""
    mean: torch.Tensor = actor.mu(actor.latent_pi(features))
    return mean.tanh()


def _derivative(
    function: Callable[[torch.Tensor], torch.Tensor], point: torch.Tensor, direction: torch.Tensor
) -> torch.Tensor:
    """Return the derivative of a function at a point in a direction, exactly."""
    # By differentiating twice, which fused attention and cuDNN's GRU cannot; plain kernels can.
    with sdpa_kernel(SDPBackend.MATH), torch.backends.cudnn.flags(enabled=False):
        _, moved = jvp(function, point, direction)  # type: ignore[no-untyped-call]
    derivative: torch.Tensor = moved
    return derivative


def _array(values: torch.Tensor) -> Array:
    return values.detach().cpu().numpy().astype(np.float64)
