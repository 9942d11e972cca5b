# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""Tokens of the recent innovations, and the network that schedules bank and law from them.

Weights are shared over joints: a token belongs to one joint, and what the joints see is exchanged
by a mean. So one network serves arms with any number of joints.
"""

from dataclasses import dataclass
import math
from typing import get_args, Literal, TypeAlias

import torch
from torch import nn, Tensor
from torch.nn import functional

from metactl_ros.errors import ConfigError
from training.adaptive import bodies
from training.adaptive.bank import Bank, Innovation, NUM_DELAYS, Reference, Schedule, Setting
from training.adaptive.worlds import DT_S

NUM_SIGNED = 3 + 3 * NUM_DELAYS
NUM_STATIC = 4
NUM_TOKEN = 2 * NUM_SIGNED + 7
"""Features of a token; the last is 1, or 0 in a row that holds nothing yet."""
NUM_OUT = NUM_DELAYS + 6 + 4 + 3
KD_PER_S, LAMBDA_PER_S, KP_PER_S2 = (10.0, 60.0), (1.0, 10.0), (0.0, 900.0)
MOST_LOGIT = 8.0
FIRST_LOGITS = (0.6, 0.1, 0.0, -0.1, -0.2)
FIRST_SHARES = (0.85, 0.03, 0.4, 0.4, 0.2, 0.2, 0.4, 0.5, 0.3, 0.1, 0.55, 0.2, 0.6)
"""Where the schedule begins: six corrections, drift, noise, payload drift, beta, K_d, Lambda, K_p,
each as a share of its range."""
HEAD_DECAYS = (0.0, 0.03, 0.1, 0.4, 0.015, 0.06, 0.2, 0.8)
"""By how much the score of a head falls with each row into the past, at first."""

Kind: TypeAlias = Literal['attention', 'gru', 'conv', 'mlp', 'none']


def tokens(
    at: Setting,
    bank: Bank,
    found: Innovation,
    M: bodies.Inertia,
    y: tuple[Tensor, Tensor],
    ref: Reference,
) -> Tensor:
    """Return one row per joint, (B, n, NUM_TOKEN); the first, which nothing precedes, is zero."""
    y_q, y_v = y
    B, n = y_q.shape
    change = (y_q - bank.y_q) / DT_S
    middle, end = change - 0.5 * (y_v + bank.y_v), change - y_v
    size = (found.v.abs() / 0.02 + found.q.abs() / 3e-4).mean(-1)  # (B, K)
    pooled = torch.log1p(10.0 * size) - 2.0
    torque = bodies.apply(M, (bank.pi[..., None] * found.v).sum(1) / DT_S) / at.unit_nm
    signed = torch.cat(
        (
            torch.asinh(torch.stack((middle / 1e-3, end / 5e-3, torque), -1)),
            torch.asinh(found.v / 4e-3).transpose(1, 2),
            torch.asinh(found.q / 3e-4).transpose(1, 2),
            pooled[:, None].expand(B, n, NUM_DELAYS),
        ),
        -1,
    )
    rest = torch.stack(
        (
            torch.tanh(bank.v_now / 0.15),
            torch.tanh(bank.v_now / 0.03),
            torch.asinh((ref[0] - y_q) / 0.01),
            torch.tanh(ref[1] / 0.15),
            bank.sent[:, 0] / at.effort,
            torch.asinh(bank.d_now / at.unit_nm),
            torch.ones_like(y_q),
        ),
        -1,
    )
    row = torch.cat((signed, signed.abs(), rest), -1)
    return torch.where(bank.age > 0.0, row, 0.0)


def static(at: Setting, felt: Tensor, age: Tensor) -> Tensor:
    """Return what a joint is, and how long it has run, (B, n, NUM_STATIC)."""
    young, old = (age / 60.0).clamp(max=1.0), (age / 300.0).clamp(max=1.0)
    return torch.stack(
        (
            torch.log(at.unit_nm / felt) / 2.0,
            torch.log(felt) / 3.0,
            young.expand_as(felt),
            old.expand_as(felt),
        ),
        -1,
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class Shape:
    """Of the network."""

    kind: Kind = 'attention'
    heads: int = 4
    window: int = 50
    hidden: int = 64

    def __post_init__(self) -> None:
        if self.kind not in get_args(Kind):
            raise ConfigError(f'kind: expected one of {get_args(Kind)}, found {self.kind!r}.')
        if not 1 <= self.heads <= len(HEAD_DECAYS):
            raise ConfigError(f'heads: expected 1 to {len(HEAD_DECAYS)}, found {self.heads}.')


class AttentionPool(nn.Module):
    """One query per head from the newest row, against all rows as they are."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.heads, self.size = shape.heads, shape.heads * NUM_TOKEN
        self.query = nn.Linear(NUM_TOKEN, self.size)
        nn.init.normal_(self.query.weight, std=0.02)
        nn.init.zeros_(self.query.bias)
        back = torch.arange(shape.window - 1, -1, -1).float()
        self.position = nn.Parameter(-torch.outer(torch.tensor(HEAD_DECAYS[: shape.heads]), back))

    def forward(self, rows: Tensor) -> Tensor:
        """Return (N, heads * F) of rows (N, W, F)."""
        query = self.query(rows[:, -1]).view(len(rows), self.heads, NUM_TOKEN)
        score = torch.bmm(query, rows.transpose(1, 2)) / math.sqrt(NUM_TOKEN) + self.position
        score = score.masked_fill(rows[:, None, :, -1] == 0.0, -1e4)
        return torch.bmm(torch.softmax(score, -1), rows).flatten(1)


class GruPool(nn.Module):
    """The last state of a GRU over the rows; as many parameters as four heads of attention."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.size = shape.hidden
        self.gru = nn.GRU(NUM_TOKEN, shape.hidden, batch_first=True)

    def forward(self, rows: Tensor) -> Tensor:
        """Return (N, hidden) of rows (N, W, F)."""
        state: Tensor = self.gru(rows)[0][:, -1]
        return state


class ConvPool(nn.Module):
    """Two strided convolutions over the rows, and their mean."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.size = shape.hidden
        self.first = nn.Conv1d(NUM_TOKEN, shape.hidden, 5, stride=2)
        self.second = nn.Conv1d(shape.hidden, shape.hidden, 5, stride=2)

    def forward(self, rows: Tensor) -> Tensor:
        """Return (N, hidden) of rows (N, W, F)."""
        newest_first = rows.flip(1).transpose(1, 2)  # what does not fill a stride is the oldest
        one = functional.silu(self.first(newest_first))
        return functional.silu(self.second(one)).mean(-1)


class NoPool(nn.Module):
    """Nothing of the past: the newest row is all there is."""

    size = 0

    def forward(self, rows: Tensor) -> Tensor:
        """Return (N, 0)."""
        return rows[:, 0, :0]


def _pool(shape: Shape) -> AttentionPool | GruPool | ConvPool | NoPool:
    if shape.kind == 'attention':
        return AttentionPool(shape)
    if shape.kind == 'gru':
        return GruPool(shape)
    return ConvPool(shape) if shape.kind == 'conv' else NoPool()


class Scheduler(nn.Module):
    """From (B, n, W, NUM_TOKEN) and (B, n, NUM_STATIC) to (B, n, NUM_OUT), not yet squashed."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.pool = _pool(shape)
        self.first = nn.Linear(self.pool.size + NUM_TOKEN + NUM_STATIC, shape.hidden)
        self.second = nn.Linear(2 * shape.hidden, shape.hidden)
        self.out = nn.Linear(shape.hidden, NUM_OUT)
        nn.init.normal_(self.out.weight, std=0.01)
        shares = [math.log(x / (1.0 - x)) for x in FIRST_SHARES]
        with torch.no_grad():
            self.out.bias.copy_(torch.tensor([*FIRST_LOGITS, *shares]))

    def forward(self, window: Tensor, fixed: Tensor) -> Tensor:
        """Return the outputs."""
        B, n, W, F = window.shape
        rows = window.reshape(B * n, W, F)
        seen = (self.pool(rows), rows[:, -1], fixed.reshape(B * n, NUM_STATIC))
        one = functional.silu(self.first(torch.cat(seen, -1))).view(B, n, -1)
        mean = one.mean(1, keepdim=True).expand_as(one)
        result: Tensor = self.out(functional.silu(self.second(torch.cat((one, mean), -1))))
        return result


class Constant(nn.Module):
    """No network: one schedule for all, and the delay by the likelihood of the window."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        shares = [math.log(x / (1.0 - x)) for x in FIRST_SHARES]
        self.bias = nn.Parameter(torch.tensor([*FIRST_LOGITS, *shares]))
        self.log_sharpness = nn.Parameter(torch.tensor(1.0))

    def forward(self, window: Tensor, fixed: Tensor) -> Tensor:
        """Return the outputs, (B, n, NUM_OUT)."""
        B, n = fixed.shape[:2]
        pooled = window[..., NUM_SIGNED - NUM_DELAYS : NUM_SIGNED].mean((1, 2))  # (B, K)
        logits = self.bias[:NUM_DELAYS] - torch.exp(self.log_sharpness) * pooled
        rest = self.bias[NUM_DELAYS:].expand(B, n, -1)
        return torch.cat((logits[:, None].expand(B, n, NUM_DELAYS), rest), -1)


def stiffest(K_d: Tensor) -> Tensor:
    """Return the largest K_p that goes with a K_d, 1 / s^2.

    A quarter of its square: damped at 0.87 of the critical or more. With K_p free up to 900 a
    network chose K_d of 40 for it, and where efforts were limited an arm in sixty went from limit
    to limit.
    """
    return 0.25 * K_d * K_d


def schedule(raw: Tensor) -> Schedule:
    """Return the schedule of the outputs of a network."""
    K = NUM_DELAYS
    g = torch.sigmoid(raw[..., K:])

    def between(share: Tensor, ends: tuple[float, float]) -> Tensor:
        return ends[0] + (ends[1] - ends[0]) * share

    K_d = between(g[..., 10], KD_PER_S)
    return Schedule(
        logits=MOST_LOGIT * torch.tanh(raw[..., :K].mean(1) / MOST_LOGIT),
        correction=g[..., :6],
        drift=10.0 ** between(g[..., 6], (-5.0, 0.0)),
        noise=10.0 ** between(g[..., 7], (-2.0, 3.0)),
        payload_drift=10.0 ** between(g[..., 8].mean(1), (-8.0, -2.0)),
        beta=g[..., 9],
        K_d=K_d,
        Lambda=between(g[..., 11], LAMBDA_PER_S),
        K_p=stiffest(K_d) * g[..., 12],
    )
