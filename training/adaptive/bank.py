# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""The observer bank in torch, for a batch of arms; a test holds it to `estimators/bank.py`.

Shapes: B arms, K delay hypotheses, n = 2 joints, (B, K, n) unless stated. Hypothesis k follows
the arm as it was k periods ago, is corrected by what is measured now, and is run forward to now
with the efforts that were sent since.
"""

from typing import NamedTuple, TypeAlias

import torch
from torch import nn, Tensor

from training.adaptive import bodies
from training.adaptive.bodies import Arms
from training.adaptive.worlds import DT_S, implicit_share

NUM_DELAYS = 5
FRICTION_SHARE = 0.02
"""Of the effort limit: the unit in which friction is estimated."""
WIDTHS_RADPS = (0.05, 0.12, 0.35)
HORIZONS_S = (1.0, 5.0)
NUM_FEATURES = len(WIDTHS_RADPS) + 1 + len(HORIZONS_S) + 1
BOUNDS = (4.0, 6.0, 4.0, 3.0, 12.0, 12.0, 0.9 / FRICTION_SHARE)
"""Largest coefficients, in units of friction."""
PULL_Q_RAD, PULL_V_RADPS, MOST_ZETA = 0.1, 1.5, 3.0
"""How far a hypothesis may be from what is measured before it is brought back."""
SLOPE_PER_S = 5.0
LEAST_WEIGHT = 1e-4

Reference: TypeAlias = tuple[Tensor, Tensor, Tensor]
"""Desired position, velocity and acceleration, each (B, n)."""


class BankConstants(nn.Module):
    """What is learned of every arm: prior and drift of the coefficients."""

    def __init__(self) -> None:
        super().__init__()
        self.mean = nn.Parameter(torch.tensor([0.1, 0.5, 0.2, 0.15, 0.5, 0.5, 0.0]))
        self.log_std = nn.Parameter(torch.log(torch.tensor([0.3, 0.6, 0.3, 0.2, 1.0, 1.0, 4.0])))
        self.log_drift = nn.Parameter(torch.full((NUM_FEATURES - 1,), -11.5))
        self.log_payload_std = nn.Parameter(torch.log(torch.tensor(0.3)))
        self.payload_mean = nn.Parameter(torch.tensor(0.2))


class Bank(NamedTuple):
    """What the bank remembers from tick to tick."""

    q: Tensor
    v: Tensor
    theta: Tensor
    """Coefficients of friction, memory and offset, (B, K, n, 7), in units of friction."""
    zeta: Tensor
    """Leaky integrals of v, (B, K, n, 2), rad."""
    payload: Tensor
    """(B, K), in units of the rated payload."""
    P: Tensor
    """Covariance of theta, (B, n, 7, 7)."""
    P_payload: Tensor
    """(B,)."""
    sent: Tensor
    """Efforts, newest first, (B, K, n), N m."""
    y_q: Tensor
    """Measured before, (B, n)."""
    y_v: Tensor
    v_now: Tensor
    """Estimated before, (B, n)."""
    d_now: Tensor
    """Estimated before, (B, n), N m."""
    pi: Tensor
    """Weights of the hypotheses, (B, K)."""
    age: Tensor
    """Ticks since the beginning, a number."""


class Schedule(NamedTuple):
    """What is decided each tick; (B, n) unless stated."""

    logits: Tensor
    """Of the delays, (B, K)."""
    correction: Tensor
    """L: of q, v and torque by the innovations of q and v, (B, n, 6)."""
    drift: Tensor
    """Of the offset, variance per tick."""
    noise: Tensor
    """Of the torque, variance."""
    payload_drift: Tensor
    """(B,), variance per tick."""
    beta: Tensor
    """Share of the estimated velocity in the argument of friction."""
    K_d: Tensor
    Lambda: Tensor
    K_p: Tensor


class Innovation(NamedTuple):
    """What is measured beyond what was predicted."""

    q: Tensor
    v: Tensor
    predicted_q: Tensor
    predicted_v: Tensor
    zeta: Tensor
    a: Tensor


class Estimate(NamedTuple):
    """State and disturbance now, (B, n); payload (B,) in kg."""

    q: Tensor
    v: Tensor
    d: Tensor
    payload_kg: Tensor
    pi: Tensor


class Setting(NamedTuple):
    """What the bank knows of its arms."""

    model: Arms
    effort: Tensor
    """Limits, (B, n), N m."""
    payload_unit_kg: Tensor
    """(B,)."""

    @property
    def unit_nm(self) -> Tensor:
        """The unit of friction of each joint, (B, n)."""
        return FRICTION_SHARE * self.effort


def features(v: Tensor, zeta: Tensor) -> Tensor:
    """Return the regressors of the joints, (..., 7)."""
    widths = torch.tensor(WIDTHS_RADPS, dtype=v.dtype)
    smooth = torch.tanh(v[..., None] / widths)
    return torch.cat((smooth, v[..., None], zeta, torch.ones_like(v)[..., None]), -1)


def damping(theta: Tensor, v: Tensor) -> Tensor:
    """Return by how much friction grows with v, at least 0, in units of friction."""
    widths = torch.tensor(WIDTHS_RADPS, dtype=v.dtype)
    smooth = torch.tanh(v[..., None] / widths)
    slope = (theta[..., :3] * (1.0 - smooth * smooth) / widths).sum(-1) + theta[..., 3]
    return torch.relu(slope)


def weights_of(logits: Tensor, age: Tensor) -> Tensor:
    """Return how likely the delays are, (B, K): a softmax without its thin tail.

    A delay counts once something that it predicts was measured; until then there is none.
    """
    order = torch.arange(NUM_DELAYS, dtype=logits.dtype)
    possible = torch.where(order < age.clamp(min=1.0), logits, -1e4)
    kept = torch.relu(torch.softmax(possible, -1) - LEAST_WEIGHT)
    return kept / kept.sum(-1, keepdim=True)


def begin_bank(
    constants: BankConstants, at: Setting, y_q: Tensor, y_v: Tensor, payload_hat_kg: Tensor
) -> Bank:
    """Return the bank with the first state; gravity of the model is held."""
    B, n = y_q.shape
    K = NUM_DELAYS

    def every(x: Tensor) -> Tensor:
        return x[:, None].expand(B, K, *x.shape[1:]).contiguous()

    told = (payload_hat_kg / at.payload_unit_kg).clamp(0.0, 1.0)
    expected = constants.payload_mean.to(y_q.dtype).clamp(0.0, 1.0)
    payload = torch.where(payload_hat_kg == 0.0, expected, told)
    body = bodies.loaded(at.model, told * at.payload_unit_kg)
    held = bodies.bias(body, y_q, torch.zeros_like(y_v))
    P = torch.diag(torch.exp(2.0 * constants.log_std)).to(y_q.dtype)
    return Bank(
        q=every(y_q),
        v=every(y_v),
        theta=constants.mean.to(y_q.dtype).expand(B, K, n, NUM_FEATURES),
        zeta=y_q.new_zeros(B, K, n, len(HORIZONS_S)),
        payload=every(payload),
        P=P.expand(B, n, NUM_FEATURES, NUM_FEATURES),
        P_payload=torch.exp(2.0 * constants.log_payload_std).to(y_q.dtype).expand(B),
        sent=every(held),
        y_q=y_q,
        y_v=y_v,
        v_now=y_v,
        d_now=torch.zeros_like(y_q),
        pi=y_q.new_full((B, K), 1.0 / K),
        age=torch.zeros(()),
    )


def predict(
    at: Setting,
    felt: Tensor,
    q: Tensor,
    v: Tensor,
    theta: Tensor,
    zeta: Tensor,
    payload: Tensor,
    effort: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return q, v, zeta after one period and the acceleration, all of (B, K', n...).

    One linearly implicit step: the slope of friction counts as armature, by the share that fits an
    exponential; light joints with stiff friction need it.
    """
    unit = at.unit_nm[:, None]
    friction = unit * (theta * features(v, zeta)).sum(-1)
    D = unit * damping(theta, v)
    with torch.no_grad():
        share = DT_S * implicit_share(DT_S * D / felt[:, None])
    body = bodies.loaded(at.model, payload * at.payload_unit_kg[:, None])
    middle = q + 0.5 * DT_S * v
    M = bodies.inertia(body, middle, at.model.rotor[:, None] + share * D)
    a = bodies.solve(M, effort - friction - bodies.bias(body, middle, v))
    mean = v + 0.5 * DT_S * a
    horizons = torch.tensor(HORIZONS_S, dtype=q.dtype)
    later = zeta + DT_S * (mean[..., None] - zeta / horizons)
    return q + DT_S * mean, v + DT_S * a, later, a


def innovate(at: Setting, bank: Bank, felt: Tensor, y_q: Tensor, y_v: Tensor) -> Innovation:
    """Predict every hypothesis by one period and compare it with what is measured, (B, n)."""
    q, v, zeta, a = predict(
        at, felt, bank.q, bank.v, bank.theta, bank.zeta, bank.payload, bank.sent
    )
    order = torch.arange(NUM_DELAYS, dtype=y_q.dtype)
    waits = (bank.age <= order)[None, :, None]  # nothing that old was ever sent
    q, v = torch.where(waits, y_q[:, None], q), torch.where(waits, y_v[:, None], v)
    zeta = torch.where(waits[..., None], bank.zeta, zeta)
    a = torch.where(waits, 0.0, a)
    low, high = y_q[:, None] - PULL_Q_RAD, y_q[:, None] + PULL_Q_RAD
    q = torch.maximum(torch.minimum(torch.nan_to_num(q), high), low)
    low, high = y_v[:, None] - PULL_V_RADPS, y_v[:, None] + PULL_V_RADPS
    v = torch.maximum(torch.minimum(torch.nan_to_num(v), high), low)
    zeta = torch.nan_to_num(zeta).clamp(-MOST_ZETA, MOST_ZETA)
    a = torch.nan_to_num(a).clamp(-300.0, 300.0)
    return Innovation(y_q[:, None] - q, y_v[:, None] - v, q, v, zeta, a)


def correct(
    constants: BankConstants,
    at: Setting,
    bank: Bank,
    found: Innovation,
    by: Schedule,
    M: bodies.Inertia,
) -> Bank:
    """Return the bank corrected by its innovations; M is that of the measured posture."""
    L = by.correction[:, None].unbind(-1)
    q = found.predicted_q + L[0] * found.q + L[1] * DT_S * found.v
    v = found.predicted_v + L[2] * found.v + L[3] * found.q / DT_S
    push = L[4] * found.v / DT_S + L[5] * found.q / DT_S**2
    M_all = bodies.Inertia(*(x[:, None] for x in M))
    unit = at.unit_nm[:, None]
    missing = -bodies.apply(M_all, push) / unit  # torque that the coefficients must explain
    psi = features(found.predicted_v, found.zeta)
    P_psi = (bank.P[:, None] @ psi[..., None])[..., 0]
    spread = (psi * P_psi).sum(-1) + 1e-9
    y = payload_regressor(at, found) / unit
    own = missing / spread
    lever = (y * y / spread).sum(-1)
    P_p = bank.P_payload[:, None]
    shared = P_p * (y * own).sum(-1) / (1.0 + P_p * lever)
    explained = own - (y / spread) * shared[..., None]
    bounds = torch.tensor(BOUNDS, dtype=q.dtype)
    theta = bank.theta + P_psi * explained[..., None]
    theta = torch.maximum(torch.minimum(theta, bounds), -bounds)
    payload = (bank.payload + shared).clamp(0.0, 1.0)
    P, P_payload = _forget(constants, bank, by, psi, y)
    return bank._replace(
        q=q,
        v=v,
        theta=theta,
        zeta=found.zeta,
        payload=payload,
        P=P,
        P_payload=P_payload,
    )


def payload_regressor(at: Setting, found: Innovation) -> Tensor:
    """Return the torque that the rated payload takes, (B, K, n), N m."""
    scale = at.payload_unit_kg[:, None]
    per_kg = bodies.Lumped(*(x[:, None] * scale for x in at.model.per_kg))
    q = found.predicted_q
    M = bodies.inertia(per_kg, q, torch.zeros_like(q))
    return bodies.apply(M, found.a) + bodies.bias(per_kg, q, found.predicted_v)


def _forget(
    constants: BankConstants, bank: Bank, by: Schedule, psi: Tensor, y: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the covariances after one more measurement, and with the drift of one period."""
    weights = weights_of(by.logits, bank.age)
    with torch.no_grad():
        psi_now = (weights[:, :, None, None] * psi).sum(1)
        y_now = (weights[:, :, None] * y).sum(1)
    P = bank.P
    P_psi = (P @ psi_now[..., None])[..., 0]
    spread = (psi_now * P_psi).sum(-1) + by.noise
    fixed = torch.exp(constants.log_drift).to(P.dtype).expand(*by.drift.shape, NUM_FEATURES - 1)
    drift = torch.diag_embed(torch.cat((fixed, by.drift[..., None]), -1))
    renewed = P - P_psi[..., :, None] * P_psi[..., None, :] / spread[..., None, None] + drift
    P_p = bank.P_payload
    renewed_p = P_p / (1.0 + P_p * (y_now * y_now / spread).sum(-1)) + by.payload_drift
    has_begun = bank.age > 0.0
    return torch.where(has_begun, renewed, P), torch.where(has_begun, renewed_p, P_p)


def to_now(at: Setting, bank: Bank, by: Schedule, felt: Tensor, ref: Reference) -> Estimate:
    """Run every hypothesis forward to now and mix them; friction as the reference will meet it."""
    K = NUM_DELAYS
    q, v, zeta = bank.q[:, K - 1 :], bank.v[:, K - 1 :], bank.zeta[:, K - 1 :]
    for j in range(K - 1, 0, -1):  # hypotheses from j on take the effort that was sent j ticks ago
        effort = bank.sent[:, j - 1 : j]
        q, v, zeta, _ = predict(
            at, felt, q, v, bank.theta[:, j:], zeta, bank.payload[:, j:], effort
        )
        q = torch.cat((bank.q[:, j - 1 : j], q), 1)
        v = torch.cat((bank.v[:, j - 1 : j], v), 1)
        zeta = torch.cat((bank.zeta[:, j - 1 : j], zeta), 1)
    pi = weights_of(by.logits, bank.age)
    w = pi[..., None]
    q_now, v_now = (w * q).sum(1), (w * v).sum(1)
    theta = (w[..., None] * bank.theta).sum(1)
    zeta_now = (w[..., None] * zeta).sum(1)
    payload_kg = (pi * bank.payload).sum(1) * at.payload_unit_kg
    _, v_d, a_d = ref
    expected = v_d + 0.5 * DT_S * a_d
    expected = expected + by.beta * (v_now - v_d)
    d = at.unit_nm * (theta * features(expected, zeta_now + 0.5 * DT_S * expected[..., None])).sum(
        -1
    )
    return Estimate(q_now, v_now, d, payload_kg, pi)


def law(
    at: Setting, now: Estimate, by: Schedule, ref: Reference, weight: Tensor | float = 1.0
) -> tuple[Tensor, Tensor]:
    """Return the torque that holds the arm, and that of the law, each (B, n), N m."""
    q_d, v_d, a_d = ref
    e, e_dot = q_d - now.q, v_d - now.v
    a = a_d + by.Lambda * e_dot + by.K_d * (e_dot + SLOPE_PER_S * e) + by.K_p * e
    body = bodies.loaded(at.model, now.payload_kg)
    M = bodies.inertia(body, now.q, at.model.rotor)
    hold = bodies.bias(body, now.q, now.v) + weight * now.d
    return hold, hold + bodies.apply(M, a)


def limit(hold: Tensor, wanted: Tensor, last: Tensor, effort: Tensor, rate: Tensor) -> Tensor:
    """Return the effort on the line from `hold` to `wanted` as far as size and rate allow.

    As `saturate` of `control/law.py`: where `hold` is out of reach, its nearest in reach counts.
    """
    low = torch.maximum(last - rate * DT_S, -effort)
    high = torch.minimum(last + rate * DT_S, effort)
    way = wanted - hold
    enter, leave = _passage(hold, way, low, high)
    misses = (enter.clamp(min=0.0) > leave.clamp(max=1.0))[..., None]
    start = torch.where(misses, torch.maximum(torch.minimum(hold, high), low), hold)
    share = _passage(start, way, low, high)[1].clamp(0.0, 1.0)[..., None]
    return torch.maximum(torch.minimum(start + share * way, high), low)


def _passage(start: Tensor, way: Tensor, low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
    """Return between which x the point start + x way is within a box, each (B,)."""
    slope = torch.where(way.abs() < 1e-9, 1e-9, way)
    ends = (low - start) / slope, (high - start) / slope
    enter = torch.minimum(*ends).max(-1).values
    return enter, torch.maximum(*ends).min(-1).values
