# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
r"""What Phase 1 looks at: how the present memory depends on the velocities of the last W steps.

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
"""

from dataclasses import dataclass, fields
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from metactl_ros.bench.twins import fixed_gain_twin
from metactl_ros.motion.reference import Sinusoid
from metactl_ros.plants import make_plant
from metactl_ros.settings import Settings
from metactl_ros.signals import Array, seconds
from metactl_ros.sim.plant import PlantStart
from metactl_ros.sim.task import draw_episode, Episode

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
        decay, settled = self._step(qd_radps)
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

        Args:
            qd_radps: Velocities at lags 1..W, the most recent first, shape (..., W).
            memory_nm: z at the same instants, shape (..., W).
        """
        decay, settled = self._step(qd_radps)
        later = np.cumprod(decay, axis=-1) / decay  # the steps between lag l and now
        return later * self._own_step(qd_radps, memory_nm, decay, settled)

    def _own_step(self, qd: Array, memory: Array, decay: Array, settled: Array) -> Array:
        """Return dz+/dqd = s' (1 - a) + (z - s) a'."""
        fade = 1.0 + np.abs(qd) / self.v_p_radps
        d_settled = self.gain_nmprad * self.tau_z_s / fade**2
        d_decay = -decay * np.sign(qd) * self.dt_s / (self.v_p_radps * self.tau_z_s)
        gradient: Array = d_settled * (1.0 - decay) + (memory - settled) * d_decay
        return gradient

    def _step(self, qd: Array) -> tuple[Array, Array]:
        """Return a and s."""
        fade = 1.0 + np.abs(qd) / self.v_p_radps
        decay: Array = np.exp(-fade * self.dt_s / self.tau_z_s)
        return decay, self.gain_nmprad * self.tau_z_s * qd / fade


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
    loop, policy = fixed_gain_twin(settings, plant, 'itself')
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


def feature_samples(trajectories: Trajectories, instants: NDArray[np.int64], window: int) -> Array:
    """Return v1: the observation features of every row of every window, shape (N, W, F)."""
    return at_offsets(trajectories.tokens, instants, np.arange(1 - window, 1))


def horizon_samples(trajectories: Trajectories, instants: NDArray[np.int64], window: int) -> Array:
    """Return v2: the observations 1..W steps ahead as one stack, shape (N, 1, W F)."""
    future = at_offsets(trajectories.tokens, instants, np.arange(1, window + 1))
    return future.reshape(len(future), 1, -1)


def gradient_samples(
    memory: PerturbedMemory,
    trajectories: Trajectories,
    instants: NDArray[np.int64],
    window: int,
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
    intercept.

    Args:
        qd_radps: Measured velocities, shape (N, n, W).
        memory_nm: The memory at the end of each window, shape (N, n).
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
