# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""Closed-loop evaluation: one controller on a batch of episodes, and what came of each.

What memory costs a controller is what it loses against two twins: the same episode without memory,
and with memory known. Sweeping tau_z alone proves nothing, because a long memory turns into a
spring that can be read from the position.
"""

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from itertools import pairwise
from pathlib import Path
from typing import get_args, Literal, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from metactl_ros.baselines import (
    ConstantPolicy,
    ControllerSpec,
    load_learned,
    make_classical,
    truth_of,
)
from metactl_ros.control.gain_map import ColumnRange
from metactl_ros.control.loop import ControlLoop
from metactl_ros.control.settings import ControllerSettings
from metactl_ros.control.shield import Enforcement
from metactl_ros.metrics import is_lost, tracking_rmse
from metactl_ros.settings import make_plant, PlantName, Settings
from metactl_ros.signals import Array, Policy
from metactl_ros.sim.plant import Plant
from metactl_ros.sim.rollout import (
    EpisodeLog,
    for_learning,
    run_episode,
    with_window,
    without_warmup,
)
from metactl_ros.sim.task import draw_evaluation, Episode

Twin: TypeAlias = Literal['itself', 'without_memory', 'knowing_memory']
TWINS: tuple[Twin, ...] = get_args(Twin)

BUNDLE_SUFFIX = '.metactl'
KNOWN_MEMORY = ColumnRange(column='bias', ends=(-100.0, 100.0))
"""Wide enough for any memory torque; the bias column follows K_d and Lambda in theta."""


@dataclass(frozen=True, slots=True)
class Rollouts:
    """What came of a batch of episodes, one entry per rollout."""

    rmse_rad: Array
    """Infinite where the arm diverged."""
    is_lost: NDArray[np.bool_]
    """As `metrics.is_lost` says."""
    peak_effort_nm: Array
    """Shape (N, n)."""
    variation_nmps: Array
    """Total variation of the efforts, summed over the joints, N m per second."""
    limited_share: Array
    """Share of steps whose effort a limit changed."""
    shield_activation: Array
    """Share of steps whose proposal the shield moved or replaced."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Conditions:
    """Under which a controller is evaluated; by default as on a robot, on the fast plant."""

    plant: PlantName = 'rk4'
    enforcement: Enforcement = 'enforce'
    """Whether the shield acts, or counts only."""
    twin: Twin = 'itself'
    """The same without memory, or fixed gains that know it."""
    is_guarded: bool = True
    """Whether implausible sensors are noticed; training and the paper's protocol do not."""


USUAL = Conditions()


@dataclass(frozen=True, kw_only=True, slots=True)
class Trial:
    """A controller on drawn episodes of one payload: a unit of parallel work."""

    spec: ControllerSpec
    conditions: Conditions
    tau_z_s: float
    seed: int
    payload_kg: float
    num_rollouts: int
    num_steps: int


def run_trial(settings: Settings, trial: Trial) -> Rollouts:
    """Draw the episodes of a trial and evaluate its controller on them."""
    episodes = draw_evaluation(
        settings.plant.task, trial.seed, trial.payload_kg, trial.num_rollouts, trial.tau_z_s
    )
    return evaluate_controller(trial.spec, settings, episodes, trial.num_steps, trial.conditions)


def evaluate_controller(
    spec: ControllerSpec,
    settings: Settings,
    episodes: Episode,
    num_steps: int,
    conditions: Conditions = USUAL,
) -> Rollouts:
    """Run a controller on a batch of episodes, shape (N,), and measure every rollout.

    On RK4 they are run at once, in PyBullet one by one.
    """
    logs = run_controller(spec, settings, episodes, num_steps, conditions)
    found = [measure(log) for log in logs]
    names = [field.name for field in fields(Rollouts)]
    return Rollouts(*(np.concatenate([getattr(part, name) for part in found]) for name in names))


def run_controller(
    spec: ControllerSpec,
    settings: Settings,
    episodes: Episode,
    num_steps: int,
    conditions: Conditions = USUAL,
) -> Iterator[EpisodeLog]:
    """Yield the logs behind `evaluate_controller`, one per batch that is run at once."""
    twin = conditions.twin
    settings = settings_of_twin(settings, twin)
    prepared = None if spec.knows_plant else prepare(spec, settings, episodes)
    plant = make_plant(conditions.plant, settings)
    adapted = without_warmup if conditions.is_guarded else for_learning
    try:
        for batch in batches_of(spec, episodes, conditions.plant):
            controller, policy = prepared or prepare(spec, settings, batch)
            loop = ControlLoop(settings.arm, adapted(controller), conditions.enforcement)
            if twin == 'knowing_memory':
                loop, policy = gains_knowing_memory(settings, plant)
            chosen = policy or ConstantPolicy(loop.nominal_action)
            yield run_episode(plant, batch, chosen, loop, num_steps)
    finally:
        plant.close()


class Prepared(NamedTuple):
    """A controller, ready for a loop."""

    controller: ControllerSettings
    policy: Policy | None
    """None for the nominal gains."""


def batches_of(spec: ControllerSpec, episodes: Episode, plant: PlantName = 'rk4') -> list[Episode]:
    """Return the parts of a batch that can be run at once, in order.

    PyBullet has one arm, and a controller that knows its plant is made for one payload.
    """
    payload_kg = episodes.start.payload_kg
    if plant == 'bullet':
        return [episodes.of_arm(index) for index in range(len(payload_kg))]
    if not spec.knows_plant:
        return [episodes]
    ends = [0, *np.flatnonzero(np.diff(payload_kg)) + 1, len(payload_kg)]
    return [episodes.of_arm(slice(*pair)) for pair in pairwise(ends)]


def prepare(spec: ControllerSpec, settings: Settings, episode: Episode) -> Prepared:
    """Return settings and policy of a controller for an episode; policy None: nominal gains."""
    if spec.policy is not None:
        return Prepared(settings.controller, spec.policy)
    if spec.learned is not None:
        return _prepare_learned(spec.learned, settings)
    truth = None
    if spec.knows_plant:
        start = episode.start
        known = (float(np.ravel(values)[0]) for values in (start.payload_kg, start.tau_z_s))
        truth = truth_of(settings.plant, *known)
    return Prepared(*make_classical(settings.controller, spec.baseline, truth))


def _prepare_learned(path: Path, settings: Settings) -> Prepared:
    if path.suffix == BUNDLE_SUFFIX:
        bundle = load_learned(path, settings.arm, settings.controller)
        return Prepared(bundle.controller, bundle.policy)
    # Imported here: a classical controller or a bundle needs no torch.
    from training.learn.checkpoint import load_policy
    from training.learn.run import read_run, settings_of

    run = read_run(path)
    controller = settings_of(settings, run).controller
    return Prepared(with_window(controller, run.window), load_policy(path))


def measure(log: EpisodeLog) -> Rollouts:
    """Return the figures of a log; errors are those of the arm, not of what its sensors say."""
    change = np.abs(np.diff(log.effort_nm, axis=0)).sum(axis=(0, -1))
    return Rollouts(
        rmse_rad=np.atleast_1d(tracking_rmse(log.q_desired_rad, log.true_q_rad)),
        is_lost=np.atleast_1d(is_lost(log.q_desired_rad, log.true_q_rad)),
        peak_effort_nm=np.atleast_2d(np.abs(log.effort_nm).max(axis=0)),
        variation_nmps=np.atleast_1d(change / (log.time_s[-1] - log.time_s[1])),
        limited_share=np.atleast_1d(log.is_limited.any(axis=-1).mean(axis=0)),
        shield_activation=np.atleast_1d(log.was_moved.mean(axis=0)),
    )


def settings_of_twin(settings: Settings, twin: Twin) -> Settings:
    """Return the settings of a twin: no memory, or a bias column that can carry it."""
    if twin == 'without_memory':
        friction = replace(settings.plant.friction, memory_gain_nmprad=0.0)
        return replace(settings, plant=replace(settings.plant, friction=friction))
    if twin == 'knowing_memory':
        box = replace(settings.controller.gain_box, feed_forward=(KNOWN_MEMORY,))
        return replace(settings, controller=replace(settings.controller, gain_box=box))
    return settings


def fixed_gains(
    settings: Settings, enforcement: Enforcement = 'enforce'
) -> tuple[ControlLoop, Policy]:
    """Return the loop and the policy of the baseline, without the guards of a robot."""
    loop = ControlLoop(settings.arm, for_learning(settings.controller), enforcement)
    return loop, ConstantPolicy(loop.nominal_action)


def gains_knowing_memory(settings: Settings, plant: Plant) -> tuple[ControlLoop, Policy]:
    """Return the baseline that is given z exactly, and carries it in the bias column of eta.

    To the shield, whose model has no friction, that is a disturbance, so there it only counts.
    """
    loop, fixed = fixed_gains(settings, enforcement='count')

    def policy(window: Array) -> Array:
        theta = loop.gain_map.gains(fixed(window))
        memory = plant.memory_nm
        n = memory.shape[-1]
        theta[..., 2 * n : 3 * n] = memory  # the bias column, behind K_d and Lambda
        return loop.gain_map.action(theta)

    return loop, policy
