# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""One tick of a batch of worlds under the law, from what is measured to what is counted."""

from typing import Any, NamedTuple

import torch
from torch import nn, Tensor
from torch.nn import functional

from training.adaptive import bank as banks
from training.adaptive import bodies, shield, worlds
from training.adaptive.bank import Bank, BankConstants, NUM_DELAYS, Schedule, Setting
from training.adaptive.network import (
    Constant,
    KD_PER_S,
    KP_PER_S2,
    NUM_TOKEN,
    schedule,
    Scheduler,
    Shape,
    static,
    tokens,
)
from training.adaptive.worlds import DT_S, Motion, World

GENTLE_KD, GENTLE_LAMBDA, GENTLE_KP = 15.0, 3.0, 30.0
"""Gains with which few arms are lost, whatever their delay: training begins with them."""


class Adaptive(nn.Module):
    """Constants of the bank and the scheduler: all that is learned."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.constants = BankConstants()
        self.scheduler = Constant(shape) if shape.kind == 'none' else Scheduler(shape)


class Run(NamedTuple):
    """A batch under way."""

    bank: Bank
    window: Tensor
    """(B, n, W, F)."""
    motion: Motion
    last: Tensor
    """Effort sent before, (B, n), N m."""
    time_s: Tensor
    trust: Tensor
    """How far the gains of the schedule act, from 0 (gentle ones) to 1."""
    level: Tensor
    """v_0 of the shield, (B,)."""


class Counted(NamedTuple):
    """What the loss takes from a tick, each (B,)."""

    square_error: Tensor
    """Of the arm one tick later, rad^2."""
    variation: Tensor
    """Change of effort, mean share of the limits per second."""
    delay_loss: Tensor
    """How wrong the delay was estimated."""
    state_loss: Tensor
    """How wrong the state was estimated."""
    stiffness: Tensor
    """Of the gains, from about 0 to 2."""
    moved: Tensor
    """By how much the shield moved the gains, normalised and squared."""
    is_right: Tensor
    """Whether the likeliest delay was the true one."""


def setting_of(world: World) -> Setting:
    """Return what the bank knows of its arms."""
    return Setting(world.model, world.effort, world.payload_unit_kg)


def begin(law: Adaptive, world: World, motion: Motion, trust: float = 1.0) -> Run:
    """Return a batch before its first tick."""
    y_q, y_v = worlds.observed(world, motion)
    bank = banks.begin_bank(law.constants, setting_of(world), y_q, y_v, world.payload_hat_kg)
    B, n = y_q.shape
    window = y_q.new_zeros(B, n, law.scheduler.shape.window, NUM_TOKEN)
    level = shield.target_level(world.model, world.effort)
    zero = torch.zeros(())
    return Run(bank, window, motion, bank.sent[:, 0], zero, torch.tensor(trust), level)


def tick(law: Adaptive, world: World, run: Run, noise: Tensor) -> tuple[Run, Counted]:
    """Return the batch one control period later; `noise` is standard normal, (B, n)."""
    at, bank = setting_of(world), run.bank
    y = worlds.observed(world, run.motion)
    ref = worlds.reference(world, run.time_s)
    with torch.no_grad():
        known = bodies.loaded(at.model, (bank.pi * bank.payload).sum(1) * at.payload_unit_kg)
        M = bodies.inertia(known, y[0], at.model.rotor)
        felt = bodies.effective_inertia(M)
    found = banks.innovate(at, bank, felt, *y)
    with torch.no_grad():
        row = tokens(at, bank, found, M, y, ref)
        window = torch.cat((run.window[:, :, 1:], row[:, :, None]), 2)
        fixed = static(at, felt, bank.age)
    asked = schedule(law.scheduler(window, fixed))
    by = _gentle(asked, run.trust)
    bank = banks.correct(law.constants, at, bank, found, by, M)
    now = banks.to_now(at, bank, by, felt, ref)
    by, weight, moved = shield.admitted(at, now, by, ref, run.level)
    wanted = banks.law(at, now, by, ref, weight)
    effort = banks.limit(*wanted, run.last, world.effort, world.rate)
    change = (effort - run.last).abs() / world.effort / DT_S
    time_s = run.time_s + DT_S
    motion = worlds.advance(world, run.motion, effort, run.time_s, noise)
    error = worlds.reference(world, time_s)[0] - motion.q
    stiffness = (asked.K_p / KP_PER_S2[1] + asked.K_d / KD_PER_S[1]).mean(-1)
    counted = Counted(
        square_error=(error**2).sum(-1),
        variation=torch.where(bank.age > 0.0, change.mean(-1), 0.0),
        delay_loss=torch.where(bank.age > 1.0, _delay_loss(world, by.logits), 0.0),
        state_loss=_state_loss(run.motion, now),
        stiffness=stiffness,
        moved=moved,
        is_right=(by.logits.argmax(-1) == world.delay).to(error.dtype),
    )
    bank = bank._replace(
        sent=torch.cat((effort[:, None], bank.sent[:, :-1]), 1),
        y_q=y[0].detach(),
        y_v=y[1].detach(),
        v_now=now.v.detach(),
        d_now=now.d.detach(),
        pi=now.pi.detach(),
        age=bank.age + 1.0,
    )
    return Run(bank, window, motion, effort, time_s, run.trust, run.level), counted


def _gentle(by: Schedule, trust: Tensor) -> Schedule:
    return by._replace(
        K_d=GENTLE_KD + trust * (by.K_d - GENTLE_KD),
        Lambda=GENTLE_LAMBDA + trust * (by.Lambda - GENTLE_LAMBDA),
        K_p=GENTLE_KP + trust * (by.K_p - GENTLE_KP),
    )


def _delay_loss(world: World, logits: Tensor) -> Tensor:
    """Return the cross-entropy of the delay, (B,).

    A delay that is longer than all hypotheses counts a fifth: the longest is the best answer.
    """
    nearest = world.delay.clamp(max=NUM_DELAYS - 1)
    loss = functional.cross_entropy(logits, nearest, reduction='none')
    return torch.where(world.delay < NUM_DELAYS, loss, 0.2 * loss)


def _state_loss(truth: Motion, now: banks.Estimate) -> Tensor:
    """Return how far the estimated state is from the true one, (B,)."""
    off_q = torch.log1p((now.q - truth.q.detach()).abs() / 1e-3).sum(-1)
    off_v = torch.log1p((now.v - truth.v.detach()).abs() / 0.02).sum(-1)
    return off_q + off_v


def detached(run: Any) -> Any:
    """Return nested tuples of tensors without their history."""
    if isinstance(run, Tensor):
        return run.detach()
    return type(run)(*(detached(part) for part in run))


def begun_anew(law: Adaptive, world: World, run: Run, is_lost: Tensor) -> Run:
    """Return the batch with lost arms put back to where they should be, their banks empty."""
    q, v, _ = worlds.reference(world, run.time_s)
    zero = torch.zeros_like(q)
    draw = worlds.Draw(len(q), torch.Generator().manual_seed(int(is_lost.sum())))
    last, readings = worlds.first_readings(world, q, v, draw)
    fresh = detached(begin(law, world, Motion(q, v, zero, last, readings)))
    chosen: Run = _chosen(is_lost, fresh, run)
    return chosen._replace(trust=run.trust)


def _chosen(is_lost: Tensor, fresh: Any, old: Any) -> Any:
    if not isinstance(fresh, Tensor):
        pairs = zip(fresh, old, strict=True)
        return type(fresh)(*(_chosen(is_lost, one, other) for one, other in pairs))
    if fresh.dim() == 0:
        return old
    flags = is_lost.view(-1, *(1,) * (fresh.dim() - 1))
    return torch.where(flags, fresh, torch.nan_to_num(old))
