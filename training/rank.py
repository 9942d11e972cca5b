# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
r"""How the present memory depends on past velocities, and how many heads that is worth.

The paper defines the temporal operator by the history gradient,

    A = E[ grad z(t) grad z(t)^T ], shape (W, W),   (grad z(t))_l = dz(t) / dqd(t - l dt), l = 1..W

as a second moment, not centred, and sums over the joints. The velocity is held over a control
period, as the encoder reports it, so a step of the perturbed memory has a closed form:

    z_dot = -(1 + |qd| / v_p) z / tau_z + lambda_z qd      v_p -> infinity: the memory of the plant
    z+    = s + (z - s) a,    a = exp(-(1 + |qd| / v_p) dt / tau_z),
                              s = lambda_z tau_z qd / (1 + |qd| / v_p)

and the gradient is exact: the product of a over the l - 1 later steps, times dz+/dqd of its own.

Every version of the operator is made from samples of shape (S, m, d): A = mean over S of the sum
over m of y y^T. The S rows are independent, so a bootstrap may draw them again.

How many directions of A are worth a head: the paper's Algorithm 1, corrected.

    start    u_1 = leading eigenvector of A, R = A - lambda_1 u_1 u_1^T
    growth   u = leading eigenvector of R, kept if
             g = r_eff(A_{K+1}) - r_eff(A_K) > gamma_add,   A_K = sum_{k <= K} lambda_k u_k u_k^T
             unless pruning would drop it again; then R <- R - lambda u u^T
    pruning  the least u_k^T A u_k / ||A||_F is dropped if below gamma_prune
    gate     m <- rho m + (1 - rho) (grow - prune);  K moves when |m| > 1/2, then m = 0
    stop     K unchanged for n_stable iterations

with r_eff(M) = tr(M)^2 / ||M||_F^2, the participation ratio. As printed, the algorithm deflates
with u u^T, so that R depends on the unit of z; it prunes on R, where every kept direction scores
zero; and it proposes u_1 twice. It measures growth by the fall of r_eff(R), which is negative when
one eigenvalue dominates, because what remains is flatter; `signal='residual'` keeps that measure.
"""

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Literal, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from metactl_ros.config import require_not_negative, require_positive
from metactl_ros.errors import ConfigError
from metactl_ros.motion.reference import Sinusoid
from metactl_ros.settings import make_plant, Settings
from metactl_ros.signals import Array, seconds
from metactl_ros.sim.plant import PlantStart
from metactl_ros.sim.task import draw_episode, Episode
from training.judge.rollouts import fixed_gains

Signal: TypeAlias = Literal['retained', 'residual']
NullDraw: TypeAlias = Callable[[Array, Array, np.random.Generator], Array]
"""From samples and a basis (d, r) to the coordinates of noise in that basis, shape (S, m, r)."""

ROUNDING = 1e-12
"""A residual below this share of ||A||_F is rounding, and has no shape worth measuring."""
GATE_LEVEL = 0.5
ROWS_PER_UNKNOWN = 4
"""Windows per number that one local regression fits; decided before the first run."""


class Trajectories(NamedTuple):
    """N episodes of the baseline on the RK4 plant, time first, T steps each."""

    qd_radps: Array
    """Shape (T + 1, N, n)."""
    tokens: Array
    """The paper's step observations, shape (T + 1, N, F)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PerturbedMemory:
    """The memory whose gradient depends on the motion; `v_p_radps` infinite: the linear one."""

    tau_z_s: float
    gain_nmprad: float
    """lambda_z, N m / rad."""
    v_p_radps: float
    """Speed at which the memory fades twice as fast, rad / s."""
    dt_s: float
    """Control period, over which a velocity is held, s."""

    def after(self, memory_nm: Array, qd_radps: Array) -> Array:
        """Return z after one period of constant velocity, N m, shape (...)."""
        _, decay, settled = self._step(qd_radps)
        return settled + (memory_nm - settled) * decay

    def along(self, qd_radps: Array) -> Array:
        """Return z at every instant of a motion that starts at z = 0, time first, shape (T, ...).

        Row k depends on the velocities of the rows before it.
        """
        memory = np.zeros_like(qd_radps)
        for k in range(len(qd_radps) - 1):
            memory[k + 1] = self.after(memory[k], qd_radps[k])
        return memory

    def history_gradient(self, qd_radps: Array, memory_nm: Array) -> Array:
        """Return dz(t) / dqd(t - l dt), N m s / rad, lags last, shape (..., W).

        Velocities and z are those at lags 1..W, the most recent first, shape (..., W).
        """
        fade, decay, settled = self._step(qd_radps)
        later = np.cumprod(decay, axis=-1) / decay  # the steps between lag l and now
        d_settled = self.gain_nmprad * self.tau_z_s / fade**2
        d_decay = -decay * np.sign(qd_radps) * self.dt_s / (self.v_p_radps * self.tau_z_s)
        own: Array = d_settled * (1.0 - decay) + (memory_nm - settled) * d_decay  # dz+/dqd
        return later * own

    def _step(self, qd: Array) -> tuple[Array, Array, Array]:
        """Return 1 + |qd| / v_p, a and s."""
        fade = 1.0 + np.abs(qd) / self.v_p_radps
        decay: Array = np.exp(-fade * self.dt_s / self.tau_z_s)
        return fade, decay, self.gain_nmprad * self.tau_z_s * qd / fade


class Regression(NamedTuple):
    """Gradients found from data alone, with what noise in the data does to them."""

    gradient: Array
    """Slopes of S local fits per joint, shape (S, n, W)."""
    covariance: Array
    """sigma^2 (X^T X)^-1 of each fit, shape (S, n, W, W)."""


def simulate(
    settings: Settings, num_episodes: int, tau_z_s: float, rng: np.random.Generator
) -> Trajectories:
    """Run the baseline on the true plant: random payload, phases and initial errors."""
    task = settings.plant.task
    episode = _batch([draw_episode(task, rng, tau_z_s) for _ in range(num_episodes)])
    plant = make_plant('rk4', settings)
    loop, policy = fixed_gains(settings)
    state = plant.reset(episode.start)
    loop.reset(state)
    velocities, tokens = [], []
    for step in range(settings.episode_steps + 1):
        reference = episode.reference.at(seconds(state.stamp_ns))
        window = loop.observe(state, reference, episode.payload_estimate_kg)
        velocities.append(state.qd_radps)
        tokens.append(window[..., -1, :].copy())
        if step < settings.episode_steps:
            effort = loop.actuate(policy(window), state, reference, state.stamp_ns).effort_nm
            state = plant.step(effort)
    plant.close()
    return Trajectories(np.stack(velocities), np.stack(tokens))


def _batch(episodes: list[Episode]) -> Episode:
    motions = [e.reference for e in episodes if isinstance(e.reference, Sinusoid)]
    first, phase = motions[0], np.stack([motion.phase_rad for motion in motions])
    start = PlantStart(
        *(np.stack([getattr(e.start, f.name) for e in episodes]) for f in fields(PlantStart))
    )
    estimate = np.stack([episode.payload_estimate_kg for episode in episodes])
    return Episode(Sinusoid(first.amplitude_rad, first.omega_radps, phase), start, estimate)


def draw_instants(
    num_steps: int, num: int, window: int, rng: np.random.Generator
) -> NDArray[np.int64]:
    """Return one instant t per episode with W steps before and W after it, shape (N,)."""
    return rng.integers(window, num_steps - window, size=num, endpoint=True)


def at_offsets(series: Array, instants: NDArray[np.int64], offsets: NDArray[np.int64]) -> Array:
    """Return a time series, shape (T + 1, N, ...), around one instant each: (N, offsets, ...)."""
    picked: Array = series[instants[:, np.newaxis] + offsets, np.arange(len(instants))[:, None]]
    return picked


def gradient_samples(
    memory: PerturbedMemory, trajectories: Trajectories, instants: NDArray[np.int64], window: int
) -> Array:
    """Return v3 (a): exact history gradients, one per window and joint, shape (N, n, W)."""
    lags = -np.arange(1, window + 1)
    qd = at_offsets(trajectories.qd_radps, instants, lags)  # (N, W, n)
    z = at_offsets(memory.along(trajectories.qd_radps), instants, lags)  # (N, W, n)
    return memory.history_gradient(np.moveaxis(qd, 1, -1), np.moveaxis(z, 1, -1))


def fit_gradients(qd_radps: Array, memory_nm: Array) -> Regression:
    """Return v3 (b): slopes of z(t) on the W past velocities, fitted where motion is alike.

    Per joint, windows are sorted by their mean velocity, on which the gradient depends most, and
    cut into groups of ROWS_PER_UNKNOWN (W + 1) or more. Each group gets least squares with an
    intercept. Measured velocities have shape (N, n, W), z at the end of each window (N, n).
    """
    num, num_joints, window = qd_radps.shape
    num_groups = num // rows_per_fit(window)
    slopes = np.empty((num_groups, num_joints, window))
    covariance = np.empty((num_groups, num_joints, window, window))
    for joint in range(num_joints):
        order = np.argsort(qd_radps[:, joint].mean(axis=-1), kind='stable')
        for group, rows in enumerate(np.array_split(order, num_groups)):
            x = qd_radps[rows, joint] - qd_radps[rows, joint].mean(axis=0)
            y = memory_nm[rows, joint] - memory_nm[rows, joint].mean()
            inverse = np.linalg.inv(x.T @ x)
            slope = inverse @ (x.T @ y)
            variance = np.sum((y - x @ slope) ** 2) / (len(rows) - window - 1)
            slopes[group, joint], covariance[group, joint] = slope, variance * inverse
    return Regression(slopes, covariance)


def rows_per_fit(window: int) -> int:
    """Return how many windows one local regression of W slopes and an intercept gets."""
    return ROWS_PER_UNKNOWN * (window + 1)


def operator_of(samples: Array) -> Array:
    """Return A = mean over S of the sum over m of y y^T, shape (S, m, d) to (d, d)."""
    rows = samples.reshape(-1, samples.shape[-1])
    return rows.T @ rows / len(samples)


@dataclass(frozen=True, kw_only=True, slots=True)
class Thresholds:
    """When a direction is worth keeping; the defaults are the paper's, but for the gate."""

    gamma_add: float = 0.05
    gamma_prune: float = 0.01
    num_stable: int = 20
    gate_memory: float = 0.5
    """rho of the exponential average: two equal decisions in a row move K."""

    def __post_init__(self) -> None:
        require_positive('Thresholds', gamma_add=self.gamma_add, num_stable=self.num_stable)
        require_not_negative(
            'Thresholds', gamma_prune=self.gamma_prune, gate_memory=self.gate_memory
        )
        if self.gate_memory**self.num_stable >= 1.0 - GATE_LEVEL:
            raise ConfigError(
                f'Thresholds.gate_memory: a gate of {self.gate_memory} cannot open within '
                f'num_stable = {self.num_stable} iterations; lower it or raise num_stable.'
            )


class HeadCount(NamedTuple):
    """The fixed point of the algorithm."""

    directions: Array
    """Kept directions, orthonormal, shape (K, d)."""
    eigenvalues: Array
    """Their eigenvalues, shape (K,)."""
    growth: tuple[float, ...]
    """Growth signal of every proposal in order, kept or not."""
    num_iterations: int

    @property
    def k_star(self) -> int:
        """K*, the number of heads."""
        return len(self.directions)


def participation_ratio(eigenvalues: Array) -> float:
    """Return (sum lambda)^2 / sum lambda^2, between 1 and their number; 0 if all are zero."""
    largest = np.max(np.abs(eigenvalues), initial=0.0)
    if largest == 0.0:
        return 0.0
    scaled = eigenvalues / largest  # squares of tiny or huge numbers stay in range
    return float(np.sum(scaled) ** 2 / np.sum(scaled**2))


def spectrum(operator: Array) -> tuple[Array, Array]:
    """Return eigenvalues, largest first, shape (d,), and eigenvectors as rows, shape (d, d).

    The operator is symmetric positive semi-definite; what rounding left below zero is zero.
    """
    values, columns = np.linalg.eigh(operator)
    values, rows = values[::-1], columns.T[::-1]
    floor = ROUNDING * max(float(values[0]), 0.0)
    return np.where(values > floor, values, 0.0), rows


def count_heads(operator: Array, thresholds: Thresholds, signal: Signal = 'retained') -> HeadCount:
    """Return the heads of a symmetric positive semi-definite operator, shape (d, d).

    R - lambda u u^T has the eigenpairs of R except (lambda, u). The leading eigenvector of R is
    therefore the next one of A, and one decomposition serves all proposals.

    Always ends: a direction is only kept if pruning would spare it, and what pruning drops scores
    the same when proposed again. K thus only rises, by at most d - 1, or falls from 1 to 0 once.
    """
    values, directions = spectrum(operator)
    # u_k^T A u_k / ||A||_F = lambda_k / ||A||_F of each direction, (d,)
    scaled: Array = values / values[0] if values[0] > 0.0 else values
    would_be_pruned = scaled / (np.linalg.norm(scaled) or 1.0) < thresholds.gamma_prune
    k, gate, unchanged, num_iterations = 1, 0.0, 0, 0
    growth = [_growth(values, k, signal)]
    while unchanged < thresholds.num_stable:
        num_iterations += 1
        grows = growth[-1] > thresholds.gamma_add and not would_be_pruned[k]
        prunes = bool(would_be_pruned[:k].any())
        gate *= thresholds.gate_memory
        gate += (1.0 - thresholds.gate_memory) * (int(grows) - int(prunes))
        if abs(gate) <= GATE_LEVEL:
            unchanged += 1
            continue
        k += 1 if gate > 0.0 else -1  # the last direction is the one that contributes least
        growth.append(_growth(values, k, signal))
        gate, unchanged = 0.0, 0
    return HeadCount(directions[:k], values[:k], tuple(growth), num_iterations)


def _growth(values: Array, k: int, signal: Signal) -> float:
    """Return the growth signal of direction k + 1; zero if there is none."""
    if signal == 'residual':
        return participation_ratio(values[k:]) - participation_ratio(values[k + 1 :])
    return participation_ratio(values[: k + 1]) - participation_ratio(values[:k])


def bootstrap_k_star(
    samples: Array, thresholds: Thresholds, num_draws: int, rng: np.random.Generator
) -> NDArray[np.int64]:
    """Return K* of operators from samples drawn again with replacement, shape (num_draws,)."""
    draws = (rng.integers(len(samples), size=len(samples)) for _ in range(num_draws))
    return np.array([count_heads(operator_of(samples[d]), thresholds).k_star for d in draws])


def isotropic_noise(samples: Array, basis: Array, rng: np.random.Generator) -> Array:
    """Return rows as long as the samples' in a basis, each pointing anywhere, (S, m, r)."""
    length = np.linalg.norm(samples @ basis, axis=-1, keepdims=True)
    anywhere = rng.standard_normal((*samples.shape[:-1], basis.shape[-1]))
    rows: Array = length * anywhere / np.linalg.norm(anywhere, axis=-1, keepdims=True)
    return rows


def regression_noise(covariance: Array) -> NullDraw:
    """Return draws of what least squares finds where the memory is noise.

    Its covariance, sigma^2 (X^T X)^-1 of every fit, has the shape (S, m, d, d).
    """
    factor = np.linalg.cholesky(covariance)

    def draw(samples: Array, basis: Array, rng: np.random.Generator) -> Array:
        rows: Array = factor @ rng.standard_normal((*samples.shape, 1))
        return rows[..., 0] @ basis

    return draw


def count_above_noise(
    samples: Array,
    heads: HeadCount,
    rng: np.random.Generator,
    draw: NullDraw = isotropic_noise,
    num_draws: int = 100,
) -> int:
    """Return how many kept directions, in order, carry more than noise would.

    Direction k counts if its eigenvalue exceeds the 95 % quantile of the leading eigenvalue of
    noise in the space that directions 1..k-1 leave; the first that does not ends the count. Fewer
    than K* means that noise, not memory, sets the rank.
    """
    for k, value in enumerate(heads.eigenvalues):
        # Orthonormal, of what is orthogonal to the directions so far, (d, d - k).
        basis = np.linalg.qr(heads.directions[:k].T, mode='complete').Q[:, k:]
        noise = [spectrum(operator_of(draw(samples, basis, rng)))[0][0] for _ in range(num_draws)]
        if value <= np.quantile(noise, 0.95):
            return k
    return heads.k_star
