# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
r"""What a run was like on its way: one judgement every few thousand steps and one at the end.

    RUN/judgements.json    a list, the oldest first; complete or absent, as every result file

    step                   of training: what follows is of the networks after that many steps
    delta_percent          against fixed gains, on the few RK4 rollouts of train.mean_rmse
    shield_moved_percent   of the steps since the judgement before
    beta, entropy_weight   of the actor's loss
    payload_sensitivity    of each action, 1 / kg
    layers                 of each attention layer: one number per head, and for the way past them

What is not known, or not finite, is null. Numbers have six digits. A judgement is written before
the checkpoint of its step, and a run that goes on from a checkpoint drops the later ones, so that
each step is judged once, with the gradient of its own update.

How the heads answer to the payload estimate. Behind the attention of a layer the stream of a
window is a sum of K + 1 terms,

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
to the bit as if nothing had been judged. A head is idle if its share of the output is below a
tenth of an equal share, 0.1 / K.
"""

from collections.abc import Callable
import math
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from stable_baselines3.common.logger import Logger
from stable_baselines3.sac.policies import Actor
import torch
from torch.autograd.functional import jvp
from torch.nn import functional
from torch.nn.attention import sdpa_kernel, SDPBackend

from metactl_ros.files import write_json
from metactl_ros.signals import Array
from training.commands import read_json
from training.learn.attention import AttentionBlock, CausalBlock, Heads
from training.learn.networks import DeepAttention, ShallowAttention, WindowExtractor
from training.learn.run import RunError
from training.learn.shielded_sac import WindowReplayBuffer

FILE = 'judgements.json'
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
    extractor, found = actor.features_extractor, []
    assert isinstance(extractor, WindowExtractor)
    for layer in layers_of(extractor):
        weights, outputs = layer.heads(observations)  # (B, K, W), (B, K, d_k)
        entropy = torch.special.entr(weights).sum(-1).mean(0) / math.log(max(weights.shape[-1], 2))
        added = _terms(layer.block, outputs, torch.zeros_like(outputs.flatten(1)))[:, :-1]
        norms = added.norm(dim=-1)  # (B, K)
        share = norms / norms.sum(1, keepdim=True).clamp_min(torch.finfo(norms.dtype).tiny)
        parts = payload_derivative_by_term(actor, extractor, layer, observations)  # (B, K + 1, m)
        *by_head, residual = parts.abs().mean((0, 2)).tolist()
        numbers = (gradient_norms(layer.block), _array(entropy), _array(share.mean(0)))
        found.append(HeadReport(*numbers, np.array(by_head), residual))
    return found


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
    held = (attention.in_proj_weight, attention.in_proj_bias, attention.out_proj.weight)
    weight, bias, out = (parameter.grad for parameter in held)
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
    names = extractor.config.features
    row = observations.new_zeros(len(names))
    row[names.index('payload_estimate_kg')] = 1.0
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
    seen = recent_observations(buffer)
    return ActorReport(payload_sensitivity(actor, seen), inspect_heads(actor, seen))


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


def read_judgements(folder: Path) -> list[dict[str, Any]]:
    """Return the judgements of a run directory; none if it has none yet."""
    path = folder / FILE
    if not path.exists():
        return []
    found = read_json(path, 'remove it to go on without.', RunError)
    if not isinstance(found, list):
        raise RunError(f'{path}: expected a list of judgements; remove it to go on without.')
    return found


class Judgements:
    """The file of a run under way."""

    def __init__(self, folder: Path, step: int) -> None:
        """Go on with what a run had been judged up to a step, that one included."""
        self._folder = folder
        self._entries = [entry for entry in read_judgements(folder) if entry['step'] <= step]

    def has(self, step: int) -> bool:
        """Return whether a step is judged already."""
        return any(entry['step'] == step for entry in self._entries)

    def add(self, entry: dict[str, Any]) -> None:
        """Append a judgement and write the file."""
        self._entries.append(entry)
        write_json(self._folder / FILE, self._entries)


def judgement_of(actor: ActorReport, step: int, **numbers: float) -> dict[str, Any]:
    """Return one entry of the file; `numbers` are those of the run as a whole, by name."""
    return {
        'step': step,
        **{name: _number(value) for name, value in numbers.items()},
        'payload_sensitivity': [_number(value) for value in actor.sensitivity],
        'layers': [
            {name: [_number(value) for value in getattr(report, name)] for name in BY_HEAD}
            | {'residual_sensitivity': _number(report.residual_sensitivity)}
            | {'num_idle': report.num_idle}
            for report in actor.layers
        ],
    }


def head_report_of(judgements: list[dict[str, Any]]) -> dict[str, Any] | None:
    """Return what the heads did at the last judgement; None without one."""
    names = ('step', 'payload_sensitivity', 'layers')
    return {name: judgements[-1][name] for name in names} if judgements else None


def _number(value: float) -> float | None:
    return float(f'{value:.6g}') if math.isfinite(value) else None
