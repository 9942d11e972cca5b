# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""Classical controllers by name: constant gains, with or without an estimator.

    ct, ct_best         fixed gains: the paper's, and the best constant ones in the box
    ct_integral, momentum_observer, slotine_li, slotine_li_memory, lugre_observer
                        constant gains, and an estimate of what the model lacks
    oracle              the same, with the truth for an estimate: the limit, not a rival

They run in the loop of the learned policy, under the same limits, modes and shield. An estimate is
a column of Phi of its own with a weight from 0 to 1: what the shield may take back of it.
`config/classical/` holds what `python -m training.tune` found for arms with different sensors.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import get_args, Literal, NamedTuple, TypeAlias

import numpy as np

from metactl_ros.control.estimators.choice import EstimatorSettings
from metactl_ros.control.estimators.friction_observers import OracleSettings
from metactl_ros.control.gain_map import ColumnRange, GainBox, GainMap
from metactl_ros.control.settings import ControllerSettings
from metactl_ros.dynamics.two_link import Arm, NUM_JOINTS
from metactl_ros.errors import ConfigError
from metactl_ros.policy.bundle import Bundle, load_bundle
from metactl_ros.settings import load_file, PlantSettings
from metactl_ros.signals import Array, Policy

RivalName: TypeAlias = Literal[
    'ct_best',
    'ct_integral',
    'momentum_observer',
    'slotine_li',
    'slotine_li_memory',
    'lugre_observer',
    'oracle',
]
RIVALS: tuple[RivalName, ...] = get_args(RivalName)
ClassicalName: TypeAlias = Literal['ct'] | RivalName
CLASSICAL: tuple[ClassicalName, ...] = ('ct', *RIVALS)

ESTIMATE = ColumnRange(column='estimate', ends=(0.0, 1.0))


@dataclass(frozen=True, kw_only=True, slots=True)
class Rival:
    """One classical controller, as a file of `config/classical/` states it."""

    theta: tuple[float, ...]
    """K_d, Lambda, then the columns of the gain box, for each joint; an estimate weighs 1."""
    estimator: EstimatorSettings | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Rivals:
    """All of such a file."""

    ct_best: Rival
    ct_integral: Rival
    momentum_observer: Rival
    slotine_li: Rival
    slotine_li_memory: Rival
    lugre_observer: Rival
    oracle: Rival


@dataclass(frozen=True, kw_only=True, slots=True)
class OnObserver:
    """What learning on top of an observer changes, as `config/meta_observer.yaml` states it."""

    gain_box: GainBox
    estimator: EstimatorSettings


class Classical(NamedTuple):
    """A classical controller, ready for a loop."""

    controller: ControllerSettings
    policy: Policy | None
    """None for the nominal gains."""


def load_rivals(path: Path | None = None) -> Rivals:
    """Return the classical controllers of a YAML file, by default those for ideal sensors."""
    return load_file(Rivals, path, 'classical/nominal.yaml')


def load_classical(
    name: str, controller: ControllerSettings, rivals: Path | None, payload_kg: float
) -> Classical:
    """Return a classical controller for a robot, from a YAML file of rivals.

    The oracle is told the payload; the rest it takes from the shipped `config/plant.yaml`.
    """
    truth = None
    if name == 'oracle':
        plant = load_file(PlantSettings, None, 'plant.yaml')
        truth = truth_of(plant, payload_kg, plant.task.tau_z_s)
    rival = None if name == 'ct' else getattr(load_rivals(rivals), name)
    return make_classical(controller, rival, truth)


def make_classical(
    controller: ControllerSettings, rival: Rival | None, truth: OracleSettings | None = None
) -> Classical:
    """Return a classical controller; without a rival that of the nominal gains.

    Args:
        controller: The robot's settings; the gain box is replaced where there is an estimate.
        rival: Gains and estimator.
        truth: In place of the estimator, for the oracle.
    """
    if rival is None:
        return Classical(controller, None)
    estimator = rival.estimator if truth is None else EstimatorSettings(oracle=truth)
    if estimator is not None:
        box = replace(controller.gain_box, feed_forward=(ESTIMATE,))
        controller = replace(controller, gain_box=box, estimator=estimator)
    gain_map = GainMap(controller.gain_box, NUM_JOINTS)
    action = np.array(gain_map.action(rival.theta)) if len(rival.theta) == gain_map.size else None
    if action is None or not np.abs(action).max() <= 1.0 + 1e-12:
        raise ConfigError(
            f'theta: expected {gain_map.size} gains from {list(gain_map.lower)} to '
            f'{list(gain_map.upper)}, found {list(rival.theta)}.'
        )
    return Classical(controller, constant_policy(action))


def on_observer(controller: ControllerSettings, path: Path | None = None) -> ControllerSettings:
    """Return settings for learned gains on top of a momentum observer.

    Its estimate is a column of Phi and two more features of the context.
    """
    base = load_file(OnObserver, path, 'meta_observer.yaml')
    context = replace(controller.context, num_extra=NUM_JOINTS)
    return replace(controller, gain_box=base.gain_box, estimator=base.estimator, context=context)


def gain_boxes(controller: ControllerSettings) -> tuple[GainBox, ...]:
    """Return every gain box that controllers of this robot use."""
    box = controller.gain_box
    return box, replace(box, feed_forward=(ESTIMATE,)), on_observer(controller).gain_box


def load_learned(
    path: Path, arm: Arm, controller: ControllerSettings, *, sha256: str = ''
) -> Bundle:
    """Return the policy of a bundle for a robot, whether or not it was learned on an observer.

    A hash that is given must be that of the bundle.
    """
    return load_bundle(path, arm, controller, on_observer(controller), sha256=sha256)


def observer_gains(controller: ControllerSettings) -> tuple[float, ...]:
    """Return theta of the tuned momentum observer in the gain box of learning on top of it."""
    kd, slope = np.split(np.array(load_rivals().momentum_observer.theta), 3)[:2]
    rest = {'bias': 0.0, 'coulomb': 0.0, 'estimate': 1.0}
    columns = [rest[column] for column in controller.gain_box.columns]
    return (*kd.tolist(), *slope.tolist(), *same_for_joints(columns))


def constant_policy(action: Array) -> Policy:
    """Return a policy that proposes one action, shape (m,), whatever it sees."""

    def policy(window: Array) -> Array:
        return np.broadcast_to(action, (*window.shape[:-2], len(action)))

    return policy


def truth_of(plant: PlantSettings, payload_kg: float, tau_z_s: float) -> OracleSettings:
    """Return what the oracle knows of an episode on a simulated arm."""
    names = {field.name for field in fields(OracleSettings)}
    changes = {f.name: getattr(plant.sensing, f.name) for f in fields(plant.sensing)}
    known = {name: value for name, value in changes.items() if name in names}
    return OracleSettings(friction=plant.friction, payload_kg=payload_kg, tau_z_s=tau_z_s, **known)


def same_for_joints(gains: Sequence[float]) -> tuple[float, ...]:
    """Return theta of gains that are the same for every joint."""
    return tuple(float(gain) for gain in gains for _ in range(NUM_JOINTS))
