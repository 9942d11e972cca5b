# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""Classical controllers by name: constant gains, with or without an estimator.

    ct, ct_best         fixed gains: the paper's, and the best constant ones in the box
    ct_integral, momentum_observer, slotine_li, slotine_li_memory, lugre_observer
                        constant gains, and an estimate of what the model lacks
    adaptive_bank       the same with a bank of observers: state, payload and disturbance of an arm
                        whose states may be late
    oracle              constant gains with the truth for an estimate: a limit, not a competitor

They run in the loop of the learned policy, under the same limits, modes and shield. An estimate is
a column of Phi of its own with a weight from 0 to 1: what the shield, which counts on it, may take
back of it. Whoever estimates has a position gain K_p, too.
`config/classical/` holds what `python -m training.tune` found for arms with different sensors.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import get_args, Literal, NamedTuple, TypeAlias

import numpy as np

from metactl_ros.control.estimators.bank import BankSettings
from metactl_ros.control.estimators.bank_estimation import token_size
from metactl_ros.control.estimators.choice import EstimatorSettings
from metactl_ros.control.estimators.friction_observers import OracleSettings
from metactl_ros.control.gain_map import ColumnRange, GainBox, GainMap
from metactl_ros.control.lyapunov import kronecker_matrix
from metactl_ros.control.settings import ControllerSettings
from metactl_ros.dynamics.two_link import Arm
from metactl_ros.errors import ConfigError
from metactl_ros.policy.bundle import Bundle, load_bundle
from metactl_ros.settings import load_file, PlantSettings
from metactl_ros.signals import Array, Policy

BaselineName: TypeAlias = Literal[
    'ct_best',
    'ct_integral',
    'momentum_observer',
    'slotine_li',
    'slotine_li_memory',
    'lugre_observer',
    'adaptive_bank',
    'oracle',
]
BASELINES: tuple[BaselineName, ...] = get_args(BaselineName)
ClassicalName: TypeAlias = Literal['ct'] | BaselineName
CLASSICAL: tuple[ClassicalName, ...] = ('ct', *BASELINES)
ORACLE: BaselineName = 'oracle'

ESTIMATE = ColumnRange(column='estimate', ends=(0.0, 1.0))
KP_PER_S2 = (0.0, 900.0)
"""Range of K_p where there is an estimate, 1 / s^2."""
ALPHA_PER_S, CROSS_S, SPEED_S2 = 3.96, 0.008054, 0.004
"""Of the shield where there is an estimate: P = [[1, cross], [cross, speed]] (x) I, as `python -m
training.lyapunov_fit --rho` finds them for a given speed, whatever rho is. The less speed weighs,
the faster V lets an arm return, and the less the shield has to move; the least certified error is
at 0.0065."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Baseline:
    """Gains and estimator of one classical controller, as `config/classical/` states them."""

    theta: tuple[float, ...]
    """K_d, Lambda, then K_p (with an estimator only) and the columns of the gain box, for each
    joint; an estimate weighs 1."""
    estimator: EstimatorSettings | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Baselines:
    """All of a file of `config/classical/`."""

    ct_best: Baseline
    ct_integral: Baseline
    momentum_observer: Baseline
    slotine_li: Baseline
    slotine_li_memory: Baseline
    lugre_observer: Baseline
    adaptive_bank: Baseline
    oracle: Baseline


@dataclass(frozen=True, slots=True)
class ControllerSpec:
    """Which controller: the fixed gains `ct`, unless there is more than a name."""

    name: str
    baseline: Baseline | None = None
    """A classical controller."""
    learned: Path | None = None
    """A bundle, or the folder of a training run."""
    policy: Policy | None = None
    """A policy in memory; it has the robot's settings."""

    @property
    def knows_plant(self) -> bool:
        """Whether it is given what no sensor measures, so that it fits one payload alone."""
        return self.baseline is not None and self.name == ORACLE


@dataclass(frozen=True, slots=True, eq=False)
class ConstantPolicy:
    """Proposes one action, whatever it sees."""

    action: Array
    """Shape (m,)."""

    def __call__(self, window: Array) -> Array:
        """Return the action for each window: (..., W, F) to (..., m)."""
        return np.broadcast_to(self.action, (*window.shape[:-2], len(self.action)))


class Classical(NamedTuple):
    """A classical controller, ready for a loop."""

    controller: ControllerSettings
    policy: ConstantPolicy | None
    """None for the nominal gains."""


def load_baselines(path: Path | None = None) -> Baselines:
    """Return the classical controllers of a YAML file, by default those for ideal sensors."""
    return load_file(Baselines, path, 'classical/nominal.yaml')


def load_spec(name: str, path: Path | None = None) -> ControllerSpec:
    """Return the classical controller of a name, its gains from a file of baselines."""
    return ControllerSpec(name, None if name == 'ct' else getattr(load_baselines(path), name))


def load_classical(
    name: str, controller: ControllerSettings, baselines: Path | None, payload_kg: float
) -> Classical:
    """Return a classical controller for a robot, from a YAML file of baselines.

    The oracle is given the payload; the rest it takes from the shipped `config/plant.yaml`.
    """
    spec, truth = load_spec(name, baselines), None
    if spec.knows_plant:
        plant = load_file(PlantSettings, None, 'plant.yaml')
        truth = truth_of(plant, payload_kg, plant.task.tau_z_s)
    return make_classical(controller, spec.baseline, truth)


def make_classical(
    controller: ControllerSettings, baseline: Baseline | None, truth: OracleSettings | None = None
) -> Classical:
    """Return a classical controller; without a baseline that of the nominal gains.

    Args:
        controller: The robot's settings; the gain box is replaced where there is an estimate.
        baseline: Gains and estimator.
        truth: In place of the estimator, for the oracle.
    """
    if baseline is None:
        return Classical(controller, None)
    estimator = baseline.estimator if truth is None else EstimatorSettings(oracle=truth)
    if estimator is not None:
        controller = with_estimator(controller, estimator)
    gain_map = GainMap(controller.gain_box, controller.num_joints)
    theta = np.array(baseline.theta)
    action = gain_map.action(theta) if len(theta) == gain_map.size else None
    if action is None or not np.abs(action).max() <= 1.0 + 1e-12:
        kinds = ', '.join(name for name, _ in controller.gain_box.named_ends())
        raise ConfigError(
            f'theta: expected {gain_map.size} gains from {gain_map.lower.tolist()} to '
            f'{gain_map.upper.tolist()}, found {list(baseline.theta)}; state {kinds} in this '
            'order, each for every joint.'
        )
    return Classical(controller, ConstantPolicy(action))


def on_bank(
    controller: ControllerSettings, bank: BankSettings | None = None
) -> ControllerSettings:
    """Return settings for a policy that schedules a bank of observers, by default the tuned one.

    Its tokens are more features of the context, its schedule more entries of an action.
    """
    if bank is None:
        estimator = load_baselines().adaptive_bank.estimator
        assert estimator is not None
        assert estimator.bank is not None
        bank = estimator.bank
    num_extra = controller.num_joints * token_size(bank.num_delays)
    scheduled = EstimatorSettings(bank=replace(bank, is_scheduled=True))
    return with_estimator(controller, scheduled, num_extra)


def with_estimator(
    controller: ControllerSettings, estimator: EstimatorSettings, num_extra: int = 0
) -> ControllerSettings:
    """Return a robot's settings with an estimator, gain box and shield for that.

    The policy sees `num_extra` features of it.
    """
    matrix = kronecker_matrix(CROSS_S, SPEED_S2, controller.num_joints)
    lyapunov = replace(
        controller.lyapunov,
        alpha_per_s=max(controller.lyapunov.alpha_per_s, ALPHA_PER_S),
        p_matrix=tuple(map(tuple, matrix.tolist())),
    )
    box = estimating_box(controller)
    context = replace(controller.context, num_extra=num_extra)
    return replace(
        controller, gain_box=box, lyapunov=lyapunov, estimator=estimator, context=context
    )


def estimating_box(controller: ControllerSettings) -> GainBox:
    """Return the gain box of classical controllers with an estimator on this robot."""
    return replace(controller.gain_box, feed_forward=(ESTIMATE,), kp_per_s2=KP_PER_S2)


def gain_boxes(controller: ControllerSettings) -> tuple[GainBox, ...]:
    """Return every gain box that controllers of this robot use."""
    return controller.gain_box, estimating_box(controller)


def load_learned(
    path: Path, arm: Arm, controller: ControllerSettings, *, sha256: str = ''
) -> Bundle:
    """Return the policy of a bundle for a robot, whether or not it schedules a bank.

    A hash that is given must be that of the bundle.
    """
    box = estimating_box(controller)
    return load_bundle(path, arm, controller, bank_box=box, sha256=sha256)


def truth_of(plant: PlantSettings, payload_kg: float, tau_z_s: float) -> OracleSettings:
    """Return what the oracle knows of an episode on a simulated arm."""
    names = {field.name for field in fields(OracleSettings)}
    changes = {f.name: getattr(plant.sensing, f.name) for f in fields(plant.sensing)}
    known = {name: value for name, value in changes.items() if name in names}
    return OracleSettings(friction=plant.friction, payload_kg=payload_kg, tau_z_s=tau_z_s, **known)


def same_for_joints(gains: Sequence[float], num_joints: int) -> tuple[float, ...]:
    """Return theta of gains that are the same for every joint."""
    return tuple(float(gain) for gain in gains for _ in range(num_joints))
