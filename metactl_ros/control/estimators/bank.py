# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
r"""A bank of observers, one for each delay that the sensors may have.

Hypothesis k says that what is measured now is the arm k control periods ago. It follows the arm
with the model, one period per tick, and is corrected by its innovation, measured minus predicted:

    q <- q + L1 nu_q + L2 dt nu_v            v <- v + L3 nu_v + L4 nu_q / dt
    d <- d - M^ (L5 nu_v / dt + L6 nu_q / dt^2)

The correction of the torque d is shared out among what can cause one: for each joint the
coefficients theta of

    d_i = f_i theta_i . [tanh(v / .05), tanh(v / .12), tanh(v / .35), v, zeta_1, zeta_5, 1],

friction, memory (zeta_T is a leaky integral of v with horizon T) and an offset in units f of a
share of the effort limit, and one payload at the tip. Each takes by its covariance, as recursive
least squares would have it. Then every hypothesis is run forward to now with the efforts that were
sent since, and their mean by the weights pi is the estimate: q, qd, d and payload of this instant.

Who sets L, pi, drift and noise is the schedule: constant (`adaptive_bank`), or a network's.

The prediction is one linearly implicit step: the slope of friction counts as armature, by the
share that fits an exponential. An explicit step would chatter on light joints.

Shapes: arms (...), K hypotheses, n joints; arrays are (..., K, n) unless stated.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from metactl_ros.config import require_length, require_not_negative, require_positive
from metactl_ros.control.estimators.estimator import Estimate
from metactl_ros.dynamics.rigid_body import ArmModel
from metactl_ros.errors import ConfigError
from metactl_ros.signals import Array, Flags, is_all

WIDTHS_RADPS = np.array([0.05, 0.12, 0.35])
HORIZONS_S = np.array([1.0, 5.0])
NUM_FEATURES = len(WIDTHS_RADPS) + 1 + len(HORIZONS_S) + 1
FRICTION_SHARE = 0.02
"""Of the effort limit: the unit f of friction."""
BOUNDS = np.array([4.0, 6.0, 4.0, 3.0, 12.0, 12.0, 0.9 / FRICTION_SHARE])
"""Of theta: more is no friction, and an offset never asks for more than a joint can give."""
PULL_Q_RAD, PULL_V_RADPS, MOST_ZETA_RAD, MOST_A_RADPS2 = 0.1, 1.5, 3.0, 300.0
"""How far a hypothesis may stray from what is measured before it is brought back."""
IMPOSSIBLE = -1e4
"""As a logit."""
LEAST_WEIGHT = 1e-4
"""A delay that is less likely does not count."""
MISFIT_SHARE = 0.04
"""Of the newest innovation in the mean by which hypotheses are compared: about half a second."""


@dataclass(frozen=True, kw_only=True, slots=True)
class BankSettings:
    """The bank, and the schedule that it has without a network."""

    num_delays: int
    """K: delays of 0 to K - 1 control periods."""
    payload_max_kg: float
    """What the arm is rated for: the payload is estimated between 0 and this."""
    prior_mean: tuple[float, ...]
    """Of theta, in units of friction."""
    prior_std: tuple[float, ...]
    payload_std: float
    """Of the payload at first, as a share of the largest."""
    drift: tuple[float, ...]
    """Variance that theta gains in a period, without that of the offset."""
    correction: tuple[float, ...]
    """L1 to L6."""
    offset_drift: float
    """Variance that the offset gains in a period."""
    noise: float
    """Variance of the torque that no regressor explains, in units of friction squared."""
    payload_drift: float
    """Variance that the payload gains in a period, as a share of the largest squared."""
    beta: float
    """Share of the estimated, instead of the desired, velocity in the friction that is fed
    forward."""
    delay_logits: tuple[float, ...]
    """How likely each delay is before anything is measured, as logits."""
    sharpness: float
    """How decidedly the better hypothesis is preferred; 0 leaves it to a policy alone."""
    payload_mean: float = 0.0
    """What a payload that nobody tells of is taken for at first, as a share of the largest."""
    is_scheduled: bool = False
    """Whether a policy sets the schedule, tick by tick, from a window of innovations."""

    def __post_init__(self) -> None:
        require_length('BankSettings', NUM_FEATURES, prior_mean=self.prior_mean)
        require_length('BankSettings', NUM_FEATURES, prior_std=self.prior_std)
        require_length('BankSettings', NUM_FEATURES - 1, drift=self.drift)
        require_length('BankSettings', 6, correction=self.correction)
        require_length('BankSettings', self.num_delays, delay_logits=self.delay_logits)
        require_positive(
            'BankSettings', payload_max_kg=self.payload_max_kg, prior_std=self.prior_std
        )
        require_not_negative(
            'BankSettings',
            payload_std=self.payload_std,
            payload_mean=self.payload_mean,
            drift=self.drift,
            correction=self.correction,
            offset_drift=self.offset_drift,
            noise=self.noise,
            payload_drift=self.payload_drift,
            beta=self.beta,
            sharpness=self.sharpness,
        )
        if not 1 <= self.num_delays <= 10:
            raise ConfigError(
                f'BankSettings.num_delays: expected 1 to 10, found {self.num_delays}.'
            )


class Schedule(NamedTuple):
    """How the bank is corrected in one tick; (..., n) unless stated."""

    logits: Array
    """Of the delays, (..., K)."""
    correction: Array
    """L1 to L6, (..., n, 6)."""
    drift: Array
    noise: Array
    beta: Array
    payload_drift: Array
    """(...)."""


class Innovation(NamedTuple):
    """What each hypothesis predicted, and what was measured beyond it."""

    nu_q: Array
    nu_v: Array
    q: Array
    v: Array
    zeta: Array
    """(..., K, n, 2)."""
    a: Array
    """Acceleration of the prediction, rad / s^2."""


def features(v_radps: Array, zeta_rad: Array) -> Array:
    """Return the regressors of friction, memory and offset, (..., 7)."""
    out = np.empty((*v_radps.shape, NUM_FEATURES))
    np.tanh(v_radps[..., np.newaxis] / WIDTHS_RADPS, out=out[..., :3])
    out[..., 3] = v_radps
    out[..., 4:6] = zeta_rad
    out[..., 6] = 1.0
    return out


def implicit_share(x: Array) -> Array:
    """Return how implicit a step must be to fit an exponential: 1/2 if soft, 1 if stiff."""
    x = x + 1e-3
    return 1.0 / (1.0 - np.exp(-x)) - 1.0 / x


class ObserverBank:
    """The bank of one arm, or of a batch of them."""

    def __init__(self, settings: BankSettings, arm: ArmModel, dt_s: float) -> None:
        self.settings = settings
        self._arm = arm
        self._dt_s = dt_s
        self.unit_nm = FRICTION_SHARE * np.array(arm.limits.effort_nm)
        self._per_kg = arm.body_per_kg()
        self._mean = np.array(settings.prior_mean)
        self._P0 = np.diag(np.square(settings.prior_std))
        self._drift = np.array((*settings.drift, 0.0))
        self._delays = np.arange(settings.num_delays)

    def begin(self, q: Array, qd: Array, payload_kg: Array, effort_nm: Array) -> None:
        """Forget everything; the arm is at (q, qd), shape (..., n), and held by an effort.

        A payload of exactly 0 is what is told when nobody knows: the expected one is taken then.
        An arm that carries nothing is off by as much, but an arm that carries any is off by less.
        """
        K, lead, n = self.settings.num_delays, q.shape[:-1], q.shape[-1]
        share = np.clip(payload_kg / self.settings.payload_max_kg, 0.0, 1.0)
        share = np.where(payload_kg == 0.0, self.settings.payload_mean, share)
        self._q, self._v = _repeat(q, K), _repeat(qd, K)
        self._theta = np.broadcast_to(self._mean, (*lead, K, n, NUM_FEATURES))
        self._zeta = np.zeros((*lead, K, n, len(HORIZONS_S)))
        self._payload = np.repeat(np.broadcast_to(share, lead)[..., np.newaxis], K, axis=-1)
        self._body = self._arm.body(self.settings.payload_max_kg * self._payload)
        self._P = np.broadcast_to(self._P0, (*lead, n, NUM_FEATURES, NUM_FEATURES))
        self._P_payload = np.full(lead, self.settings.payload_std**2)
        self._sent = _repeat(effort_nm, K)
        self.age = 0
        """Periods since the beginning."""
        self._misfit = np.zeros((*lead, K))
        self.pi = np.full((*lead, K), 1.0 / K)

    def record_effort(self, effort_nm: Array) -> None:
        """Remember the effort that was sent with this tick, shape (..., n)."""
        self._sent = np.concatenate(
            (effort_nm[..., np.newaxis, :], self._sent[..., :-1, :]), axis=-2
        )

    @property
    def last_sent(self) -> Array:
        """The newest effort, shape (..., n), N m."""
        return self._sent[..., 0, :]

    def coast(self) -> None:
        """Let a period pass of which nothing was measured."""
        self._q, self._v, self._zeta, _ = self._predict(self._q, self._v, self._zeta, self._sent)
        self.age += 1

    def innovate(self, y_q: Array, y_v: Array) -> Innovation:
        """Predict every hypothesis by one period and compare it with what is measured."""
        y_q, y_v = y_q[..., np.newaxis, :], y_v[..., np.newaxis, :]
        share = np.sum(self.pi * self._payload, axis=-1, keepdims=True)
        self.measured = self._arm.body(self.settings.payload_max_kg * share).at(y_q, y_v)
        self.felt = self.measured.effective_inertia
        q, v, zeta, a = self._predict(self._q, self._v, self._zeta, self._sent)
        if self.age < len(self._delays):  # nothing that old was ever sent
            waits = (self.age <= self._delays)[:, np.newaxis]
            q, v = np.where(waits, y_q, q), np.where(waits, y_v, v)
            zeta = np.where(waits[..., np.newaxis], self._zeta, zeta)
            a = np.where(waits, 0.0, a)
        q = _within(q, y_q - PULL_Q_RAD, y_q + PULL_Q_RAD)
        v = _within(v, y_v - PULL_V_RADPS, y_v + PULL_V_RADPS)
        zeta = _within(zeta, -MOST_ZETA_RAD, MOST_ZETA_RAD)
        a = _within(a, -MOST_A_RADPS2, MOST_A_RADPS2)
        found = Innovation(y_q - q, y_v - v, q, v, zeta, a)
        size = np.abs(found.nu_v) / 0.02 + np.abs(found.nu_q) / 3e-4
        misfit = np.log1p(10.0 * np.mean(size, axis=-1))
        self._misfit = self._misfit + MISFIT_SHARE * (misfit - self._misfit)
        return found

    @property
    def evidence(self) -> Array:
        """By how much each delay fitted worse than another so far, as logits, (..., K)."""
        return -self.settings.sharpness * self._misfit

    def constant_schedule(self) -> Schedule:
        """Return the schedule of the settings; the delay by how well each hypothesis fitted."""
        settings, lead = self.settings, self._misfit.shape[:-1]
        joints = (*lead, len(self.unit_nm))
        return Schedule(
            logits=np.array(settings.delay_logits) + self.evidence,
            correction=np.broadcast_to(np.array(settings.correction), (*joints, 6)),
            drift=np.full(joints, settings.offset_drift),
            noise=np.full(joints, settings.noise),
            beta=np.full(joints, settings.beta),
            payload_drift=np.full(lead, settings.payload_drift),
        )

    def _predict(
        self, q: Array, v: Array, zeta: Array, effort_nm: Array
    ) -> tuple[Array, Array, Array, Array]:
        """Return q, v, zeta of the hypotheses after one period, and the acceleration."""
        dt, theta = self._dt_s, self._theta
        phi = features(v, zeta)
        friction = self.unit_nm * np.sum(theta * phi, axis=-1)
        smooth = phi[..., :3]
        steepness = np.sum(theta[..., :3] * (1.0 - smooth * smooth) / WIDTHS_RADPS, axis=-1)
        damping = self.unit_nm * np.maximum(steepness + theta[..., 3], 0.0)
        armature = dt * implicit_share(dt * damping / self.felt) * damping
        posture = self._body.at(q + 0.5 * dt * v, v)
        a = posture.solve(effort_nm - friction - posture.bias, armature)
        mean = v + 0.5 * dt * a
        later = zeta + dt * (mean[..., np.newaxis] - zeta / HORIZONS_S)
        return q + dt * mean, v + dt * a, later, a

    def correct(self, found: Innovation, by: Schedule, may_learn: Flags | None = None) -> None:
        """Correct every hypothesis by its innovation.

        Args:
            found: What was measured beyond what was predicted.
            by: How to correct.
            may_learn: Whether coefficients and payload may change, shape (...); None: they may.
        """
        dt = self._dt_s
        L = by.correction[..., np.newaxis, :, :]
        self._q = found.q + L[..., 0] * found.nu_q + L[..., 1] * dt * found.nu_v
        self._v = found.v + L[..., 2] * found.nu_v + L[..., 3] * found.nu_q / dt
        self._zeta = found.zeta
        # A delay counts once something that it predicts was measured; until then there is none.
        is_possible = self._delays < max(self.age, 1)
        self.pi = weights_of(np.where(is_possible, by.logits, IMPOSSIBLE))
        kept = self._learned
        self._explain(found, by, L)
        self.age += 1
        if may_learn is not None and not is_all(may_learn):
            new = zip(self._learned, kept, strict=True)
            self._learned = tuple(_where(may_learn, now, before) for now, before in new)
        self._body = self._arm.body(self.settings.payload_max_kg * self._payload)

    @property
    def _learned(self) -> tuple[Array, ...]:
        """What is estimated of the arm, beside its state."""
        return self._theta, self._payload, self._P, self._P_payload

    @_learned.setter
    def _learned(self, values: tuple[Array, ...]) -> None:
        self._theta, self._payload, self._P, self._P_payload = values

    def _explain(self, found: Innovation, by: Schedule, L: Array) -> None:
        """Share out the torque that is missing among all that can cause it."""
        dt = self._dt_s
        push = L[..., 4] * found.nu_v / dt + L[..., 5] * found.nu_q / dt**2
        missing = -self.measured.apply(push) / self.unit_nm
        phi = features(found.v, found.zeta)
        P_phi = np.matmul(self._P[..., np.newaxis, :, :, :], phi[..., np.newaxis])[..., 0]
        spread = np.sum(phi * P_phi, axis=-1) + 1e-9
        y = self._rated_torque(found) / self.unit_nm
        # (diag(spread) + P_p y y^T)^-1 of what is missing, by Sherman and Morrison
        own = missing / spread
        P_p = self._P_payload[..., np.newaxis]
        lever = np.sum(y * y / spread, axis=-1)
        shared = P_p * np.sum(y * own, axis=-1) / (1.0 + P_p * lever)
        explained = own - (y / spread) * shared[..., np.newaxis]
        theta = self._theta + P_phi * explained[..., np.newaxis]
        self._theta = np.minimum(np.maximum(theta, -BOUNDS), BOUNDS)
        self._payload = np.minimum(np.maximum(self._payload + shared, 0.0), 1.0)
        if self.age > 0:
            self._learn(by, phi, y)

    def _rated_torque(self, found: Innovation) -> Array:
        """Return the torque that the rated payload takes on its own."""
        one = self._per_kg.at(found.q, found.v)
        return self.settings.payload_max_kg * (one.apply(found.a) + one.bias)

    def _learn(self, by: Schedule, phi: Array, y: Array) -> None:
        """Renew the covariances: one measurement more, and the drift of one period."""
        weights = self.pi[..., np.newaxis]
        phi_now = np.sum(weights[..., np.newaxis] * phi, axis=-3)
        y_now = np.sum(weights * y, axis=-2)
        P_phi = np.matmul(self._P, phi_now[..., np.newaxis])[..., 0]
        spread = np.sum(phi_now * P_phi, axis=-1) + by.noise
        outer = P_phi[..., :, np.newaxis] * P_phi[..., np.newaxis, :]
        P = self._P - outer / spread[..., np.newaxis, np.newaxis]
        index = np.arange(NUM_FEATURES)
        P[..., index, index] += self._drift
        P[..., -1, -1] += by.drift
        self._P = P
        P_p = self._P_payload
        information = np.sum(y_now * y_now / spread, axis=-1)
        self._P_payload = P_p / (1.0 + P_p * information) + by.payload_drift

    def to_now(self, by: Schedule, qd_desired: Array, qdd_desired: Array) -> Estimate:
        """Run every hypothesis forward to now and mix them."""
        q, v, zeta = self._q, self._v, self._zeta
        oldest = np.flatnonzero(self.pi.reshape(-1, len(self._delays)).any(axis=0)).max()
        for ticks in range(1, oldest + 1):  # hypothesis k takes k of them, the oldest effort first
            runs = (self._delays >= ticks)[:, np.newaxis]
            effort_nm = self._sent[..., np.maximum(self._delays - ticks, 0), :]
            later = self._predict(q, v, zeta, effort_nm)
            q, v = np.where(runs, later[0], q), np.where(runs, later[1], v)
            zeta = np.where(runs[..., np.newaxis], later[2], zeta)
        weights = self.pi[..., np.newaxis]
        q_now, v_now = np.sum(weights * q, axis=-2), np.sum(weights * v, axis=-2)
        theta = np.sum(weights[..., np.newaxis] * self._theta, axis=-3)
        zeta_now = np.sum(weights[..., np.newaxis] * zeta, axis=-3)
        payload_kg = self.settings.payload_max_kg * np.sum(self.pi * self._payload, axis=-1)
        dt = self._dt_s
        expected = qd_desired + 0.5 * dt * qdd_desired + by.beta * (v_now - qd_desired)
        phi = features(expected, zeta_now + 0.5 * dt * expected[..., np.newaxis])
        return Estimate(q_now, v_now, self.unit_nm * np.sum(theta * phi, axis=-1), payload_kg)


def ahead(arm: ArmModel, now: Estimate, effort_nm: Array, dt_s: float) -> Estimate:
    """Return an estimate one period later, under an effort, shape (..., n)."""
    posture = arm.body(now.payload_kg).at(now.q, now.qd)
    a = posture.solve(effort_nm - posture.bias - now.d_nm)
    return now._replace(q=now.q + dt_s * (now.qd + 0.5 * dt_s * a), qd=now.qd + dt_s * a)


def _where(condition: Flags, yes: Array, no: Array) -> Array:
    """Return (..., any shape): for each arm that of one of two arrays."""
    return np.where(
        condition.reshape(condition.shape + (1,) * (yes.ndim - condition.ndim)), yes, no
    )


def _repeat(x: Array, num: int) -> Array:
    """Return (..., n) as (..., num, n)."""
    return np.repeat(x[..., np.newaxis, :], num, axis=-2)


def _within(x: Array, low: Array | float, high: Array | float) -> Array:
    """Return x between two ends; what is not finite becomes 0 first."""
    if not np.isfinite(x).all():
        x = np.nan_to_num(x, nan=0.0, posinf=0.0, neginf=0.0)
    return np.minimum(np.maximum(x, low), high)


def weights_of(logits: Array) -> Array:
    """Return how likely the delays are, shape (..., K): a softmax without its thin tail.

    A delay that is next to impossible costs as much time as a likely one, so its weight is zero.
    """
    likely = np.exp(logits - np.maximum.reduce(logits, axis=-1, keepdims=True))
    likely = likely / np.add.reduce(likely, axis=-1, keepdims=True)
    kept = np.maximum(likely - LEAST_WEIGHT, 0.0)
    weights: Array = kept / np.add.reduce(kept, axis=-1, keepdims=True)
    return weights
