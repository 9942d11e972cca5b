# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""Classical controllers by name: constant gains, with or without an estimator.

    ct, ct_best         fixed gains: the paper's, and the best constant ones in the box
    ct_integral, momentum_observer, slotine_li, slotine_li_memory, lugre_observer
                        constant gains, and an estimate of what the model lacks
    adaptive_bank       the same with a bank of observers: state, payload and disturbance of an arm
                        whose states may be late
    oracle              constant gains with the truth for an estimate: a limit, not a competitor
    gravity_compensation
                        no gains at all: the arm is guided by hand (`control/guiding.py`)

They run in the loop of the learned policy, under the same limits, modes and shield. An estimate is
a column of Phi of its own with a weight from 0 to 1: what the shield, which counts on it, may take
back of it. Whoever estimates has a position gain K_p, too.
`config/classical/` holds what `python -m training.tune` found for arms with different sensors.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, get_args, Literal, NamedTuple, TypeAlias

import numpy as np

from metactl_ros.arm_defaults import friction_of
from metactl_ros.config import for_joints
from metactl_ros.control.estimators.bank import BankSettings
from metactl_ros.control.estimators.bank_estimation import token_size
from metactl_ros.control.estimators.choice import EstimatorSettings
from metactl_ros.control.estimators.friction_observers import OracleSettings
from metactl_ros.control.gain_map import ColumnRange, GainBox, GainMap
from metactl_ros.control.guiding import GuidingSettings
from metactl_ros.control.law import nominal_gains
from metactl_ros.control.lyapunov import CROSS_S, kronecker_matrix, SPEED_S2
from metactl_ros.control.settings import ControllerSettings
from metactl_ros.dynamics.rigid_body import ArmModel
from metactl_ros.dynamics.urdf_arm import FromUrdf
from metactl_ros.errors import ConfigError
from metactl_ros.policy.bundle import Bundle, load_bundle
from metactl_ros.settings import load_file, load_plant, PlantSettings
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
GRAVITY_COMPENSATION = 'gravity_compensation'
CONTROLLERS = (*CLASSICAL, GRAVITY_COMPENSATION)
"""Whatever can be asked for by name: what tracks, and what is guided by hand."""

SLOTINE_LI_TORQUES = (
    'coulomb_rate',
    'viscous_rate',
    'memory_rate',
    'coulomb_most_nm',
    'viscous_most_nmsprad',
    'memory_most_nmprad',
)
LUGRE_TORQUES = (
    'stiffness_nmprad',
    'damping_nmsprad',
    'coulomb_nm',
    'static_nm',
    'viscous_nmsprad',
)
"""Settings in N m, or with N m in them, which follow the friction of a joint."""
LEAST_RATED_KG = 0.1
"""What an estimator takes an arm to be rated for that is rated for nothing."""
ESTIMATE = ColumnRange(column='estimate', ends=(0.0, 1.0))
KP_PER_S2 = (0.0, 900.0)
"""Range of K_p where there is an estimate, 1 / s^2."""
ALPHA_PER_S = 3.96
"""Of the shield where there is an estimate, which has the same P on every arm: found with it by
`python -m training.lyapunov_fit --rho`, whatever rho is."""


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


def spec_for(
    name: str, arm: FromUrdf, controller: ControllerSettings, path: Path | None = None
) -> ControllerSpec:
    """Return the classical controller of a name for an arm from a URDF.

    The file has gains of the two-link arm, which are scaled to the joints of this one.
    """
    spec = load_spec(name, path)
    if spec.baseline is None:
        return spec
    has_estimate = spec.knows_plant or spec.baseline.estimator is not None
    scaled = scaled_baseline(spec.baseline, arm, controller, has_estimate=has_estimate)
    return replace(spec, baseline=scaled)


def scaled_baseline(
    baseline: Baseline, arm: FromUrdf, controller: ControllerSettings, *, has_estimate: bool
) -> Baseline:
    """Return what was tuned for the two-link arm, for every joint of another arm.

    K_d, Lambda and K_p act on accelerations: every joint has the mean of the two, within the box.
    A Coulomb weight stays the share of its range that it was; a bias is zero, for it was the
    gravity of another arm's payload. What an estimator knows of friction in N m is scaled by the
    static friction of the joint, what it knows of the payload by what the arm is rated for.
    """
    num_joints = len(arm.joint_names)
    shipped = load_file(ControllerSettings, None, 'controller.yaml')
    old_box = estimating_box(shipped) if has_estimate else shipped.gain_box
    box = estimating_box(controller) if has_estimate else controller.gain_box
    old_ends = old_box.ends(2).reshape(-1, 2, 2)
    ends = box.ends(num_joints).reshape(-1, num_joints, 2)
    theta: list[float] = []
    for kind, old in enumerate(np.reshape(baseline.theta, (-1, 2))):
        name, _ = box.named_ends()[kind]
        least, most = ends[kind].T
        value = np.full(num_joints, old.mean())
        if name == 'feed_forward.coulomb':
            value = old.mean() / old_ends[kind, 0, 1] * most
        elif name == 'feed_forward.bias':
            value = np.zeros(num_joints)
        theta += np.clip(value, least, most).tolist()
    estimator = baseline.estimator
    if estimator is not None:
        estimator = _scaled_estimator(estimator, arm)
    return Baseline(theta=tuple(theta), estimator=estimator)


def _scaled_estimator(estimator: EstimatorSettings, arm: FromUrdf) -> EstimatorSettings:
    """Return an estimator whose friction is as much larger as that of a joint."""
    shipped = load_file(PlantSettings, None, 'plant.yaml').friction
    static = for_joints(friction_of(arm, shipped).static_nm, len(arm.joint_names))
    share = static / for_joints(shipped.static_nm, 2).max()
    rated_kg = max(arm.checked.file.rated_payload_kg, LEAST_RATED_KG)

    def larger(settings: object, names: Sequence[str]) -> dict[str, Any]:
        return {name: tuple((share * getattr(settings, name)).tolist()) for name in names}

    if (adaptive := estimator.slotine_li) is not None:
        changes = larger(adaptive, SLOTINE_LI_TORQUES)
        scaled = replace(adaptive, payload_most_kg=rated_kg, **changes)
        return EstimatorSettings(slotine_li=scaled)
    if (observer := estimator.lugre_observer) is not None:
        changes = larger(observer, LUGRE_TORQUES)
        return EstimatorSettings(lugre_observer=replace(observer, **changes))
    if (bank := estimator.bank) is not None:
        return EstimatorSettings(bank=replace(bank, payload_max_kg=rated_kg))
    return estimator


def load_classical(
    name: str,
    controller: ControllerSettings,
    baselines: Path | None,
    payload_kg: float,
    arm: ArmModel | None = None,
) -> Classical:
    """Return a classical controller for a robot, from a YAML file of baselines.

    The oracle is given the payload; the rest it takes from the world that the arm has by default.
    None for the arm is the two-link arm.
    """
    if name == GRAVITY_COMPENSATION:
        controller = replace(controller, guiding=load_guiding(baselines, arm))
        gains = nominal_gains(controller.law, controller.gain_box.layout, controller.num_joints)
        action = GainMap(controller.gain_box, controller.num_joints).action(gains)
        return Classical(controller, ConstantPolicy(action))
    if isinstance(arm, FromUrdf):
        spec, plant = spec_for(name, arm, controller, baselines), load_plant(arm)
    else:
        spec, plant = load_spec(name, baselines), load_file(PlantSettings, None, 'plant.yaml')
    truth = None
    if spec.knows_plant:
        truth = truth_of(plant, payload_kg, plant.task.tau_z_s)
    return make_classical(controller, spec.baseline, truth)


def load_guiding(path: Path | None, arm: ArmModel | None = None) -> GuidingSettings:
    """Return how an arm is guided by hand, from a YAML file, by default the shipped one.

    That knows the friction of the two-link arm, which is scaled to the joints of another one.
    """
    guiding = load_file(GuidingSettings, path, 'gravity_compensation.yaml')
    if path is not None or not isinstance(arm, FromUrdf):
        return guiding
    shipped = load_file(PlantSettings, None, 'plant.yaml').friction
    num_joints = len(arm.joint_names)
    static = for_joints(friction_of(arm, shipped).static_nm, num_joints)
    share = static / for_joints(shipped.static_nm, 2).max()
    coulomb_nm = share * for_joints(guiding.coulomb_nm, num_joints)
    return replace(guiding, coulomb_nm=tuple(coulomb_nm.tolist()))


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
    path: Path, arm: ArmModel, controller: ControllerSettings, *, sha256: str = ''
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
