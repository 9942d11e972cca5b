# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""The regimes of the benchmark: what the arm, its sensors and its task do differently in each."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np

from metactl_ros.config import require_positive
from metactl_ros.motion.reference import PointToPoint, Sinusoid
from metactl_ros.per_joint import scaled
from metactl_ros.settings import load_file, Settings
from metactl_ros.signals import Array
from metactl_ros.sim.task import compose_episode, Episode, lattice_phases

MOVE_S = 2.0
"""Of a motion from point to point; then the arm rests."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Cases:
    """Which episodes a regime consists of."""

    seed: int
    rollouts: int
    payloads_kg: tuple[float, ...]
    amplitude_rad: tuple[float, ...]
    omega_radps: tuple[float, ...]

    def __post_init__(self) -> None:
        require_positive('Cases', rollouts=self.rollouts)


@dataclass(frozen=True, kw_only=True, slots=True)
class Regime:
    """One column of the benchmark; what is not said is as in `config/plant.yaml`."""

    name: str
    meaning: str
    tuned_for: Literal['nominal', 'noisy', 'delayed'] = 'nominal'
    """Which file of `config/classical/` is used: the kind of sensors is known when tuning."""
    tau_z_s: float = 2.0
    memory_factor: float = 1.0
    """Of lambda_z."""
    speed_factor: float = 1.0
    """Of the reference."""
    motion: Literal['sinusoid', 'point_to_point'] = 'sinusoid'
    duration_s: float = 5.0
    velocity_noise_radps: float = 0.0
    encoder_bits: int = 0
    transport_delay_s: float = 0.0
    effort_limit_factor: float | None = None
    """What the motors give at most, of the peak of ct on the tuning episodes."""
    payload_step_kg: float = 0.0
    payload_step_at_s: float = 0.0
    tau_z_drift_to_s: float | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Sensors:
    """The regime in which baselines are tuned for each kind of sensors."""

    nominal: str
    noisy: str
    delayed: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Benchmark:
    """All of `config/benchmark.yaml`."""

    tuning: Cases
    judging: Cases
    sensors: Sensors
    regimes: tuple[Regime, ...]

    def regime(self, name: str) -> Regime:
        """Return the regime of a name."""
        return next(regime for regime in self.regimes if regime.name == name)


def load_benchmark(path: Path | None = None) -> Benchmark:
    """Return a benchmark, by default the shipped one."""
    return load_file(Benchmark, path, 'benchmark.yaml')


def settings_in(settings: Settings, regime: Regime, peak_nm: tuple[float, ...]) -> Settings:
    """Return the settings of a regime; `peak_nm` is that of ct, one per joint."""
    plant = settings.plant
    gain = scaled(regime.memory_factor, plant.friction.memory_gain_nmprad)
    factor = regime.effort_limit_factor
    sensing = replace(
        plant.sensing,
        velocity_noise_radps=regime.velocity_noise_radps,
        encoder_bits=regime.encoder_bits,
        transport_delay_s=regime.transport_delay_s,
        actuator_limit_nm=None if factor is None else tuple(factor * peak for peak in peak_nm),
        payload_step_kg=regime.payload_step_kg,
        payload_step_at_s=regime.payload_step_at_s,
        tau_z_drift_to_s=regime.tau_z_drift_to_s,
        tau_z_drift_over_s=regime.duration_s,
    )
    friction = replace(plant.friction, memory_gain_nmprad=gain)
    return replace(settings, plant=replace(plant, friction=friction, sensing=sensing))


def draw_cases(settings: Settings, regime: Regime, cases: Cases) -> Episode:
    """Draw the episodes of a regime as one batch, payload by payload, shape (P R,).

    All payloads share their phases, so that a rollout can be compared across them.
    """
    rng = np.random.default_rng(cases.seed)
    payload = np.repeat(np.array(cases.payloads_kg), cases.rollouts)
    phase = np.tile(
        lattice_phases(rng, cases.rollouts, len(cases.amplitude_rad)), (len(cases.payloads_kg), 1)
    )
    amplitude = np.array(cases.amplitude_rad)
    motion: Sinusoid | PointToPoint
    if regime.motion == 'sinusoid':
        motion = Sinusoid(amplitude, regime.speed_factor * np.array(cases.omega_radps), phase)
    else:
        motion = _moves(amplitude, phase)
    return compose_episode(settings.plant.task, rng, payload, motion, regime.tau_z_s)


def _moves(amplitude_rad: Array, phase_rad: Array) -> PointToPoint:
    """Return motions through the same range, from where a sinusoid is to where it turns around."""
    start = amplitude_rad * np.sin(phase_rad)
    goal = amplitude_rad * np.where(start > 0.0, -1.0, 1.0)
    return PointToPoint(start, goal, MOVE_S)
