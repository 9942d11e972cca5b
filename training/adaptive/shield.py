# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""The shield in torch, for a batch of arms; a test holds it to `control/shield.py`.

What the shield would take back must not be learned: under it a network proposed stiff K_p with
soft K_d in the first ticks, which the shield then moved in most of them.

P = [[1, b], [b, c]] (x) I for every arm, as `training.lyapunov_fit` finds it whatever rho is. rho
is a share of the unit of friction, and v_0 follows from it and from the model of the arm.
"""

import math

import torch
from torch import Tensor

from metactl_ros.baselines import ALPHA_PER_S
from metactl_ros.control.lyapunov import CROSS_S, SPEED_S2
from training.adaptive import bodies
from training.adaptive.bank import (
    Estimate,
    FRICTION_SHARE,
    Reference,
    Schedule,
    Setting,
    SLOPE_PER_S,
)
from training.adaptive.bodies import Arms

RHO_SHARE = 0.15
"""Of the unit of friction."""
LOW, HIGH = (10.0, 1.0, 0.0, 0.0), (60.0, 10.0, 900.0, 1.0)
"""Ends of the gain box: K_d, Lambda, K_p, and the weight of the estimate."""
NOMINAL = (30.0, 5.0, 0.0, 1.0)


def target_level(model: Arms, effort_nm: Tensor) -> Tensor:
    """Return v_0, (B,), of arms without payload: see `margin_level` of `control/lyapunov.py`."""
    kd, slope = NOMINAL[0], SLOPE_PER_S
    # Under the nominal gains e_dot = s - slope e and s_dot = -K_d s, joint by joint.
    A = torch.tensor([[0.5 * ALPHA_PER_S - slope, 1.0], [0.0, 0.5 * ALPHA_PER_S - kd]])
    P = torch.tensor([[1.0, CROSS_S], [CROSS_S, SPEED_S2]])
    Q = -(A.T @ P + P @ A)
    share = float(P[1] @ torch.linalg.solve(Q, P[1])) / (2.0 * ALPHA_PER_S)
    rho_nm, levels = RHO_SHARE * FRICTION_SHARE * effort_nm, []
    for bend in (0.0, 0.5 * math.pi, math.pi):
        M = bodies.inertia(model.empty, torch.full_like(rho_nm, bend), model.rotor)
        for sign in (1.0, -1.0):
            push = rho_nm * torch.tensor([1.0, sign])
            levels.append(bodies.solve(M, push).square().sum(-1))
    return share * torch.stack(levels).max(0).values


def admitted(
    at: Setting, now: Estimate, by: Schedule, ref: Reference, level: Tensor
) -> tuple[Schedule, Tensor, Tensor]:
    """Return the schedule with gains that the shield admits, the weight of d, and the way to them.

    That is normalised and squared. Gradients flow through the gains, not through the half-space.
    """
    wanted = torch.stack((by.K_d, by.Lambda, by.K_p, torch.ones_like(by.K_d)), -2)  # (B, 4, n)
    low, high, nominal = (
        torch.tensor(ends, dtype=wanted.dtype)[:, None] for ends in (LOW, HIGH, NOMINAL)
    )
    middle, width = 0.5 * (low + high), 0.5 * (high - low)
    with torch.no_grad():
        normal, offset = _half_space(at, now, ref, level, middle)
        normal = (normal * width).flatten(1)
        length = normal.norm(dim=-1).clamp(min=1e-12)
        normal, offset = normal / length[:, None], offset / length
    proposal = ((wanted - middle) / width).flatten(1)
    action = _project(proposal, normal, offset)
    is_empty = (-normal.abs().sum(-1) > offset)[:, None, None]
    gains = torch.where(is_empty, nominal, middle + width * action.view(wanted.shape))
    K_d, Lambda, K_p, weight = gains.unbind(-2)
    moved = (action - proposal).square().sum(-1)
    return by._replace(K_d=K_d, Lambda=Lambda, K_p=K_p), weight, moved


def _half_space(
    at: Setting, now: Estimate, ref: Reference, level: Tensor, middle: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the normal, (B, 4, n), and the offset from the middle of the box, (B,)."""
    e, e_dot = ref[0] - now.q, ref[1] - now.v
    s = e_dot + SLOPE_PER_S * e
    u, w = e + CROSS_S * s, CROSS_S * e + SPEED_S2 * s
    value = 0.5 * (e * u + s * w).sum(-1)
    body = bodies.loaded(at.model, now.payload_kg)
    y = bodies.solve(bodies.inertia(body, now.q, at.model.rotor), w)
    normal = -torch.stack((w * s, w * e_dot, w * e, y * now.d), -2)
    constant = ((u + SLOPE_PER_S * w) * e_dot + y * now.d + RHO_SHARE * at.unit_nm * y.abs()).sum(
        -1
    )
    constant = constant + ALPHA_PER_S * (value - level)
    return normal, -constant - (normal * middle).sum((-1, -2))


def _project(proposal: Tensor, normal: Tensor, offset: Tensor) -> Tensor:
    """Return the nearest points of {|a_i| <= 1, normal . a <= offset}, (B, m)."""
    with torch.no_grad():
        slope = torch.where(normal.abs() < 1e-12, 1.0, normal)
        knots = torch.cat(((proposal - 1.0) / slope, (proposal + 1.0) / slope), -1)
        at_knots = (proposal[:, None] - knots[..., None] * normal[:, None]).clamp(-1.0, 1.0)
        is_above = (at_knots * normal[:, None]).sum(-1) > offset[:, None]
        lower = torch.where(is_above, knots, 0.0).max(-1).values.clamp(min=0.0)
        upper = torch.where(is_above, torch.inf, knots).min(-1).values
        upper = torch.where(torch.isfinite(upper), upper, lower)
        between = proposal - 0.5 * (lower + upper)[:, None] * normal
        is_free = between.abs() < 1.0
        steepness = torch.where(is_free, normal * normal, 0.0).sum(-1).clamp(min=1e-12)
        inside = (proposal.clamp(-1.0, 1.0) * normal).sum(-1)
        is_beyond = inside > offset
    fixed = torch.where(is_free, proposal, between.sign())
    mu = ((fixed * normal).sum(-1) - offset) / steepness
    mu = torch.where(is_beyond, torch.minimum(torch.maximum(mu, lower), upper), 0.0)
    return (proposal - mu[:, None] * normal).clamp(-1.0, 1.0)
