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

Shapes: arms (...), K hypotheses, n joints; arrays are (..., K, n) unless stated. A tick of one arm
is a few hundred calls of NumPy on a few numbers each, so calls are what costs: what is treated
alike is stacked, parts in front so that each is contiguous; constants have the shape of what they
meet, for broadcasting costs as much as four calls; and only likely hypotheses are run forward.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from metactl_ros.config import require_length, require_not_negative, require_positive
from metactl_ros.control.estimators.estimator import Estimate
from metactl_ros.dynamics.rigid_body import ArmModel, RigidBody
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
FARTHEST = np.array([PULL_Q_RAD, PULL_V_RADPS, MOST_ZETA_RAD, MOST_ZETA_RAD, MOST_A_RADPS2])
"""The same, as a state is stacked."""
MISFIT_UNITS = np.array([3e-4, 0.02])
"""In which the innovations of q and v are compared, rad and rad / s."""
PARTNERS = np.array([0, 1, 1, 0, 1, 0])
"""Which innovation each of L1 to L6 weighs: 0 that of q, 1 that of v."""
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

    nu: Array
    """Of q and v, (2, ..., K, n)."""
    state: Array
    """Predicted: q, v, zeta_1, zeta_5, and the acceleration that led there, (5, ..., K, n)."""

    @property
    def nu_q(self) -> Array:
        """Innovation of the position, rad."""
        nu_q: Array = self.nu[0]
        return nu_q

    @property
    def nu_v(self) -> Array:
        """Innovation of the velocity, rad / s."""
        nu_v: Array = self.nu[1]
        return nu_v


class Model(NamedTuple):
    """What some of the hypotheses take the arm for."""

    theta: Array
    """(..., K, n, 7)."""
    body: RigidBody
    """With payloads of shape (..., K)."""


def features(v_radps: Array, zeta_rad: Array) -> Array:
    """Return the regressors of friction, memory and offset, (..., 7); zeta is (2, ...)."""
    out = np.empty((*v_radps.shape, NUM_FEATURES))
    np.tanh(v_radps[..., np.newaxis] / WIDTHS_RADPS, out=out[..., :3])
    out[..., 3] = v_radps
    out[..., 4], out[..., 5] = zeta_rad
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
        of_joints = (settings.num_delays, len(self.unit_nm))
        self._units_nm = np.broadcast_to(self.unit_nm, of_joints).copy()
        self._widths_radps = np.broadcast_to(WIDTHS_RADPS, (*of_joints, len(WIDTHS_RADPS))).copy()
        self._bounds = np.broadcast_to(BOUNDS, (*of_joints, NUM_FEATURES)).copy()
        self._per_kg = arm.body_per_kg()
        self._mean = np.array(settings.prior_mean)
        self._P0 = np.diag(np.square(settings.prior_std))
        self._drift = np.diag((*settings.drift, 0.0))
        self._delays = np.arange(settings.num_delays)
        self._scales = np.array([1.0, dt_s, 1.0, 1.0 / dt_s, 1.0 / dt_s, 1.0 / dt_s**2])

    def begin(self, q: Array, qd: Array, payload_kg: Array, effort_nm: Array) -> None:
        """Forget everything; the arm is at (q, qd), shape (..., n), and held by an effort.

        A payload of exactly 0 is what is told when nobody knows: the expected one is taken then.
        An arm that carries nothing is off by as much, but an arm that carries any is off by less.
        """
        K, lead, n = self.settings.num_delays, q.shape[:-1], q.shape[-1]
        share = np.clip(payload_kg / self.settings.payload_max_kg, 0.0, 1.0)
        share = np.where(payload_kg == 0.0, self.settings.payload_mean, share)
        self._state = np.zeros((len(FARTHEST), *lead, K, n))
        self._state[0], self._state[1] = _repeat(q, K), _repeat(qd, K)
        self._farthest = _as_parts(FARTHEST, self._state)
        self._units = _as_parts(MISFIT_UNITS, self._state[:2])
        self._horizons_s = _as_parts(HORIZONS_S, self._state[2:4])
        self._theta = np.broadcast_to(self._mean, (*lead, K, n, NUM_FEATURES))
        self._payload = np.repeat(np.broadcast_to(share, lead)[..., np.newaxis], K, axis=-1)
        self._body = self._arm.body(self.settings.payload_max_kg * self._payload)
        self._P = np.broadcast_to(self._P0, (*lead, n, NUM_FEATURES, NUM_FEATURES))
        self._P_payload = np.full(lead, self.settings.payload_std**2)
        self._sent = _repeat(effort_nm, K)
        self.age = 0
        """Periods since the beginning."""
        self.misfit = self._mean_misfit = np.zeros((*lead, K))
        """How large the innovation of each hypothesis is, as a logarithm."""
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
        self._state = self._predict(Model(self._theta, self._body), self._state, self._sent)
        self.age += 1

    def innovate(self, y_q: Array, y_v: Array) -> Innovation:
        """Predict every hypothesis by one period and compare it with what is measured."""
        share = np.add.reduce(self.pi * self._payload, axis=-1, keepdims=True)
        body = self._arm.body(self.settings.payload_max_kg * share)
        self.measured = body.at(y_q[..., np.newaxis, :], y_v[..., np.newaxis, :])
        self.felt = self.measured.effective_inertia
        y = np.zeros(self._state.shape)
        y[0], y[1] = y_q[..., np.newaxis, :], y_v[..., np.newaxis, :]
        state = self._predict(Model(self._theta, self._body), self._state, self._sent)
        if self.age < len(self._delays):  # nothing that old was ever sent
            waiting = y.copy()
            waiting[2:4] = self._state[2:4]
            state = np.where((self.age <= self._delays)[:, np.newaxis], waiting, state)
        beyond = y - state
        if not is_all(np.abs(beyond) <= self._farthest):
            beyond = y - np.nan_to_num(state, nan=0.0, posinf=0.0, neginf=0.0)
            beyond = np.minimum(np.maximum(beyond, -self._farthest), self._farthest)
            state = y - beyond
        found = Innovation(beyond[:2], state)
        size = np.add.reduce(np.abs(found.nu) / self._units, axis=(0, -1))
        self.misfit = np.log1p((10.0 / y_q.shape[-1]) * size)
        self._mean_misfit = self._mean_misfit + MISFIT_SHARE * (self.misfit - self._mean_misfit)
        return found

    @property
    def evidence(self) -> Array:
        """By how much each delay fitted worse than another so far, as logits, (..., K)."""
        return -self.settings.sharpness * self._mean_misfit

    def constant_schedule(self) -> Schedule:
        """Return the schedule of the settings; the delay by how well each hypothesis fitted."""
        settings, lead = self.settings, self.pi.shape[:-1]
        joints = (*lead, len(self.unit_nm))
        return Schedule(
            logits=np.array(settings.delay_logits) + self.evidence,
            correction=np.broadcast_to(np.array(settings.correction), (*joints, 6)),
            drift=np.full(joints, settings.offset_drift),
            noise=np.full(joints, settings.noise),
            beta=np.full(joints, settings.beta),
            payload_drift=np.full(lead, settings.payload_drift),
        )

    def _predict(self, model: Model, state: Array, effort_nm: Array) -> Array:
        """Return the state of some hypotheses after one period, (5, ..., K, n)."""
        dt, theta, unit_nm = self._dt_s, model.theta, self._units_nm[: state.shape[-2]]
        q, v, zeta = state[0], state[1], state[2:4]
        phi = features(v, zeta)
        friction = unit_nm * np.add.reduce(theta * phi, axis=-1)
        slopes = (1.0 - np.square(phi[..., :3])) / self._widths_radps[: state.shape[-2]]
        steepness = np.add.reduce(theta[..., :3] * slopes, axis=-1) + theta[..., 3]
        damping = dt * unit_nm * np.maximum(steepness, 0.0)
        armature = implicit_share(damping / self.felt) * damping
        posture = model.body.at(q + 0.5 * dt * v, v)
        a = posture.solve(effort_nm - friction - posture.bias, armature)
        mean = v + 0.5 * dt * a
        later = np.empty(state.shape)
        later[0] = q + dt * mean
        later[1] = v + dt * a
        later[2:4] = zeta + dt * (mean - zeta / self._horizons_s[..., : state.shape[-2], :])
        later[4] = a
        return later

    def correct(self, found: Innovation, by: Schedule, may_learn: Flags | None = None) -> None:
        """Correct every hypothesis by its innovation.

        Args:
            found: What was measured beyond what was predicted.
            by: How to correct.
            may_learn: Whether coefficients and payload may change, shape (...); None: they may.
        """
        weights = _parts_first(by.correction * self._scales)[..., np.newaxis, :]
        terms = weights * found.nu[PARTNERS]
        steps = terms[::2] + terms[1::2]  # of q, of v, and of the acceleration
        self._state = found.state.copy()
        self._state[:2] += steps[:2]
        # A delay counts once something that it predicts was measured; until then there is none.
        is_possible = self._delays < max(self.age, 1)
        self.pi = weights_of(np.where(is_possible, by.logits, IMPOSSIBLE))
        kept = self._learned
        self._explain(found, by, steps[2])
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

    def _explain(self, found: Innovation, by: Schedule, push: Array) -> None:
        """Share out the torque that is missing among all that can cause it.

        Args:
            found: What was measured beyond what was predicted.
            by: How to correct.
            push: The acceleration that is missing, L5 nu_v / dt + L6 nu_q / dt^2.
        """
        state = found.state
        missing = -self.measured.apply(push) / self._units_nm
        phi = features(state[1], state[2:4])
        P_phi = np.matmul(self._P[..., np.newaxis, :, :, :], phi[..., np.newaxis])[..., 0]
        spread = np.add.reduce(phi * P_phi, axis=-1) + 1e-9
        y = self._rated_torque(state) / self._units_nm
        # (diag(spread) + P_p y y^T)^-1 of what is missing, by Sherman and Morrison
        own = missing / spread
        P_p = self._P_payload[..., np.newaxis]
        lever = np.add.reduce(y * y / spread, axis=-1)
        shared = P_p * np.add.reduce(y * own, axis=-1) / (1.0 + P_p * lever)
        explained = own - (y / spread) * shared[..., np.newaxis]
        theta = self._theta + P_phi * explained[..., np.newaxis]
        self._theta = np.minimum(np.maximum(theta, -self._bounds), self._bounds)
        self._payload = np.minimum(np.maximum(self._payload + shared, 0.0), 1.0)
        if self.age > 0:
            self._learn(by, phi, y)

    def _rated_torque(self, state: Array) -> Array:
        """Return the torque that the rated payload takes on its own."""
        one = self._per_kg.at(state[0], state[1])
        return self.settings.payload_max_kg * (one.apply(state[4]) + one.bias)

    def _learn(self, by: Schedule, phi: Array, y: Array) -> None:
        """Renew the covariances: one measurement more, and the drift of one period."""
        phi_now, y_now = mixed(self.pi, phi), mixed(self.pi, y)
        P_phi = np.matmul(self._P, phi_now[..., np.newaxis])
        spread = np.add.reduce(phi_now * P_phi[..., 0], axis=-1) + by.noise
        outer = P_phi * np.swapaxes(P_phi, -1, -2)
        P = self._P - outer / spread[..., np.newaxis, np.newaxis]
        P += self._drift
        P[..., -1, -1] += by.drift
        self._P = P
        P_p = self._P_payload
        information = np.add.reduce(y_now * y_now / spread, axis=-1)
        self._P_payload = P_p / (1.0 + P_p * information) + by.payload_drift

    def to_now(self, by: Schedule, qd_desired: Array, qdd_desired: Array) -> Estimate:
        """Run every hypothesis that is likely forward to now and mix them."""
        likely = np.flatnonzero(self.pi.reshape(-1, len(self._delays)).any(axis=0))
        rows = slice(likely[0], likely[-1] + 1)
        pi, delays, rated_kg = self.pi[..., rows], self._delays[rows], self.settings.payload_max_kg
        payload_kg = rated_kg * self._payload[..., rows]
        state, theta = self._state[..., rows, :], self._theta[..., rows, :, :]
        if delays[-1] > 0:
            model = Model(theta, self._arm.body(payload_kg))
        for ticks in range(1, delays[-1] + 1):  # hypothesis k takes k of them, oldest effort first
            effort_nm = self._sent[..., np.maximum(delays - ticks, 0), :]
            later = self._predict(model, state, effort_nm)
            runs = (delays >= ticks)[:, np.newaxis]
            state = later if ticks <= delays[0] else np.where(runs, later, state)
        now = np.matmul(pi[..., np.newaxis, :], state)[..., 0, :]
        theta_now, v_now, dt = mixed(pi, theta), now[1], self._dt_s
        expected = qd_desired + 0.5 * dt * qdd_desired + by.beta * (v_now - qd_desired)
        phi = features(expected, now[2:4] + 0.5 * dt * expected)
        d_nm = self.unit_nm * np.add.reduce(theta_now * phi, axis=-1)
        return Estimate(now[0], v_now, d_nm, np.add.reduce(pi * payload_kg, axis=-1))


def _as_parts(values: Array, like: Array) -> Array:
    """Return one value for each part of an array, in its shape, (parts, ..., K, n)."""
    column = values.reshape(-1, *(1,) * (like.ndim - 1))
    return np.broadcast_to(column, like.shape).copy()


def _parts_first(x: Array) -> Array:
    """Return (..., parts) as (parts, ...)."""
    return x.transpose(-1, *range(x.ndim - 1))


def mixed(weights: Array, values: Array) -> Array:
    """Return the mean of what hypotheses say: (..., K) and (..., K, any shape) to the rest."""
    *lead, num = weights.shape
    flat = np.matmul(weights[..., np.newaxis, :], values.reshape(*lead, num, -1))
    mean: Array = flat.reshape(*lead, *values.shape[weights.ndim :])
    return mean


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


def weights_of(logits: Array) -> Array:
    """Return how likely the delays are, shape (..., K): a softmax without its thin tail.

    A delay that is next to impossible costs as much time as a likely one, so its weight is zero.
    """
    likely = np.exp(logits - np.maximum.reduce(logits, axis=-1, keepdims=True))
    likely = likely / np.add.reduce(likely, axis=-1, keepdims=True)
    kept = np.maximum(likely - LEAST_WEIGHT, 0.0)
    weights: Array = kept / np.add.reduce(kept, axis=-1, keepdims=True)
    return weights
