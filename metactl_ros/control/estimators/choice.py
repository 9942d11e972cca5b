# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""The estimators that classical controllers are made of, chosen by their settings.

ct_integral         computed torque and integral action     `disturbance.Integral`
momentum_observer   generalised momentum                    `disturbance.MomentumObserver`
slotine_li          adaptive, with or without memory        `slotine_li.SlotineLi`
lugre_observer      identified friction                     `friction_observers.LugreObserver`
oracle              knows payload, friction and memory      `friction_observers.Oracle`
adaptive_bank       an observer for each delay              `bank.ObserverBank`
adaptive            the same, scheduled by a network
"""

from dataclasses import dataclass, field, fields

from metactl_ros.config import LATER
from metactl_ros.control.estimators.bank import BankSettings
from metactl_ros.control.estimators.bank_estimation import BankEstimation
from metactl_ros.control.estimators.disturbance import (
    Integral,
    IntegralSettings,
    MomentumObserver,
    MomentumObserverSettings,
)
from metactl_ros.control.estimators.estimator import Estimation, Estimator, LoopEstimation
from metactl_ros.control.estimators.friction_observers import (
    LugreObserver,
    LugreSettings,
    Oracle,
    OracleSettings,
)
from metactl_ros.control.estimators.slotine_li import SlotineLi, SlotineLiSettings
from metactl_ros.control.law import LawSettings
from metactl_ros.dynamics.rigid_body import ArmModel
from metactl_ros.errors import ConfigError


@dataclass(frozen=True, kw_only=True, slots=True)
class EstimatorSettings:
    """One estimator: the entry that is given."""

    integral: IntegralSettings | None = None
    momentum_observer: MomentumObserverSettings | None = None
    slotine_li: SlotineLiSettings | None = None
    lugre_observer: LugreSettings | None = None
    oracle: OracleSettings | None = None
    bank: BankSettings | None = field(default=None, metadata=LATER)

    def __post_init__(self) -> None:
        names = [entry.name for entry in fields(self)]
        given = [name for name in names if getattr(self, name) is not None]
        if len(given) != 1:
            raise ConfigError(f'EstimatorSettings: expected one of {names}, found {given}.')


def make_estimation(
    settings: EstimatorSettings,
    arm: ArmModel,
    law: LawSettings,
    period_ns: int,
    num_skipped: int = 0,
) -> LoopEstimation:
    """Return the estimator of the settings as a control loop asks it.

    A bank does not look at the first `num_skipped` states.
    """
    if settings.bank is not None:
        return BankEstimation(settings.bank, arm, period_ns, num_skipped)
    estimator = make_estimator(settings, arm, law)
    return Estimation(estimator, law, arm.body(), arm.limits.effort_nm, period_ns)


def make_estimator(settings: EstimatorSettings, arm: ArmModel, law: LawSettings) -> Estimator:
    """Return the estimator of d of the settings, for an arm whose model has no payload."""
    if settings.integral is not None:
        return Integral(settings.integral, arm.limits.effort_nm)
    if settings.momentum_observer is not None:
        return MomentumObserver(settings.momentum_observer, arm.limits.effort_nm)
    if settings.slotine_li is not None:
        return SlotineLi(settings.slotine_li, law, arm.body_per_kg())
    if settings.lugre_observer is not None:
        return LugreObserver(settings.lugre_observer)
    assert settings.oracle is not None
    return Oracle(settings.oracle, arm.body_per_kg())
