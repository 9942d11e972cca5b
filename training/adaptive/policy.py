# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""What was learned as a control loop takes it: a policy from windows to actions, and a bank.

The policy computes what `network.py` does with operators that a bundle may have: SiLU and sigmoid
by tanh, means over joints as products with constants.
"""

from collections.abc import Callable
from dataclasses import replace
import math

import numpy as np
import torch
from torch import nn, Tensor

from metactl_ros.control.estimators.bank import BankSettings
from metactl_ros.control.estimators.bank_estimation import PER_JOINT
from metactl_ros.signals import Array
from training.adaptive.bank import BankConstants, NUM_DELAYS
from training.adaptive.network import (
    AttentionPool,
    Constant,
    KD_PER_S,
    KP_PER_S2,
    MOST_LOGIT,
    NUM_STATIC,
    NUM_TOKEN,
    schedule,
    Scheduler,
    stiffest,
)
from training.adaptive.segments import Adaptive

PAPER_PER_JOINT, PAPER_OTHERS = 4, 3
"""Features in front of the tokens: those of the paper's row, 4 n + 3."""
SIGMOIDS = slice(NUM_DELAYS, None)
ESTIMATE_WEIGHT = 1.0


def silu(x: Tensor) -> Tensor:
    """Return x sigmoid(x)."""
    return 0.5 * x * (1.0 + torch.tanh(0.5 * x))


class WindowPolicy(nn.Module):
    """The scheduler of an arm with n joints, from (B, W, 4 n + 3 + n F) to (B, m)."""

    def __init__(self, law: Adaptive, num_joints: int) -> None:
        super().__init__()
        assert isinstance(law.scheduler, Scheduler)
        self.net, self.num_joints = law.scheduler, num_joints
        self.register_buffer('mean', torch.full((num_joints, num_joints), 1.0 / num_joints))
        self.mean: Tensor

    def forward(self, window: Tensor) -> Tensor:
        """Return actions in [-1, 1]: gains, then the schedule of the bank."""
        n, net, size = self.num_joints, self.net, NUM_TOKEN + NUM_STATIC
        num_rows = net.shape.window
        tokens = window[:, :, PAPER_PER_JOINT * n + PAPER_OTHERS :]
        # (B, W, n F) to (B n, W, F)
        rows = tokens.reshape(-1, num_rows, n, size).transpose(1, 2).reshape(-1, num_rows, size)
        newest = rows[:, -1]
        pooled = self._pool(rows[:, :, :NUM_TOKEN])
        seen = (*pooled, newest)
        one = silu(net.first(torch.cat(seen, -1))).reshape(-1, n, net.shape.hidden)
        two = silu(net.second(torch.cat((one, torch.matmul(self.mean, one)), -1)))
        return self._action(net.out(two))

    def _pool(self, rows: Tensor) -> tuple[Tensor, ...]:
        pool = self.net.pool
        if not isinstance(pool, AttentionPool):
            return (pool(rows),)
        query = pool.query(rows[:, -1]).reshape(-1, pool.heads, NUM_TOKEN)
        score = torch.matmul(query, rows.transpose(1, 2)) * (1.0 / math.sqrt(NUM_TOKEN))
        is_full = rows[:, :, NUM_TOKEN - 1 :].transpose(1, 2)  # 1, or 0 of rows that hold nothing
        score = score + pool.position + (1e4 * is_full + -1e4)
        mixed = torch.matmul(torch.softmax(score, -1), rows)
        return (mixed.reshape(-1, pool.heads * NUM_TOKEN),)

    def _action(self, raw: Tensor) -> Tensor:
        """Return (B, m) of the outputs per joint, (B, n, NUM_OUT)."""
        n = self.num_joints
        squashed = torch.tanh(0.5 * raw[:, :, SIGMOIDS])  # 2 sigmoid - 1
        logits = torch.matmul(self.mean, raw[:, :, :NUM_DELAYS])[:, 0]
        payload = torch.matmul(self.mean, squashed[:, :, 8:9])[:, 0]
        bank = torch.cat((squashed[:, :, :8], squashed[:, :, 9:10]), -1)
        kd, slope, share = squashed[:, :, 10], squashed[:, :, 11], 0.5 + 0.5 * squashed[:, :, 12]
        K_d = 0.5 * (KD_PER_S[0] + KD_PER_S[1]) + 0.5 * (KD_PER_S[1] - KD_PER_S[0]) * kd
        kp = share * stiffest(K_d) * (2.0 / KP_PER_S2[1]) + -1.0
        gains = torch.cat((kd, slope, kp), -1)
        weight = 0.0 * gains[:, :n] + ESTIMATE_WEIGHT
        delays = torch.tanh(logits * (1.0 / MOST_LOGIT))
        return torch.cat((gains, weight, delays, bank.reshape(-1, PER_JOINT * n), payload), -1)


def policy_of(law: Adaptive, num_joints: int) -> Callable[[Array], Array]:
    """Return what was learned as the policy of a loop, in double precision."""
    module = WindowPolicy(law, num_joints).double().eval()

    def policy(window: Array) -> Array:
        rows = torch.from_numpy(np.ascontiguousarray(window.reshape(-1, *window.shape[-2:])))
        with torch.no_grad():
            action: Array = module(rows).numpy()
        return action.reshape(*window.shape[:-2], -1)

    return policy


def constant_bank(law: Adaptive, payload_max_kg: float) -> BankSettings:
    """Return the bank that was learned without a network, with its constant schedule.

    In training a delay's misfit is its mean over the window, here it fades over half a second.
    """
    assert isinstance(law.scheduler, Constant)
    bias = law.scheduler.bias.detach()
    by = schedule(bias[None, None])
    return replace(
        bank_settings(law.constants, payload_max_kg),
        correction=numbers(by.correction[0, 0]),
        offset_drift=by.drift.item(),
        noise=by.noise.item(),
        payload_drift=by.payload_drift.item(),
        beta=by.beta.item(),
        delay_logits=numbers(bias[:NUM_DELAYS]),
        sharpness=law.scheduler.log_sharpness.exp().item(),
        is_scheduled=False,
    )


def numbers(x: Tensor) -> tuple[float, ...]:
    """Return the entries of a vector."""
    return tuple(x.detach().double().tolist())


def bank_settings(constants: BankConstants, payload_max_kg: float) -> BankSettings:
    """Return the bank that the constants describe, scheduled by a policy.

    What the schedule of the settings would be matters only while no policy has answered.
    """
    return BankSettings(
        num_delays=NUM_DELAYS,
        payload_max_kg=payload_max_kg,
        prior_mean=numbers(constants.mean),
        prior_std=numbers(constants.log_std.exp()),
        payload_std=math.exp(constants.log_payload_std.item()),
        payload_mean=min(max(constants.payload_mean.item(), 0.0), 1.0),
        drift=numbers(constants.log_drift.exp()),
        correction=(0.8, 0.03, 0.3, 0.3, 0.1, 0.05),
        offset_drift=1e-3,
        noise=1.0,
        payload_drift=1e-6,
        beta=0.1,
        delay_logits=(0.0,) * NUM_DELAYS,
        sharpness=0.0,
        is_scheduled=True,
    )
