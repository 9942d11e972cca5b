# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""What law and shield both speak of: the constants, the error, the feed-forward columns."""

from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeAlias

import numpy as np

from metactl_ros.config import require_not_negative, require_positive
from metactl_ros.signals import Array, Component, functions_for, Vector

FeedForward: TypeAlias = Literal['bias', 'coulomb', 'estimate']
"""Columns of Phi; `estimate` is that of an estimator, in N m: what the model lacks."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ControlLaw:
    """Constants of the law, as `config/controller.yaml` states them."""

    rate_hz: float
    """Control rate, Hz."""
    slope_per_s: float
    """Lambda_0, the fixed slope of the sliding variable, 1 / s."""
    nominal_kd_per_s: float
    """K_d of the fixed-gain controller, 1 / s."""
    nominal_lambda_per_s: float
    """Lambda of the fixed-gain controller, 1 / s."""
    coulomb_smoothing_radps: float
    """eps of the Coulomb feed-forward, rad / s."""

    def __post_init__(self) -> None:
        require_positive(
            'ControlLaw',
            rate_hz=self.rate_hz,
            slope_per_s=self.slope_per_s,
            coulomb_smoothing_radps=self.coulomb_smoothing_radps,
        )
        require_not_negative(
            'ControlLaw',
            nominal_kd_per_s=self.nominal_kd_per_s,
            nominal_lambda_per_s=self.nominal_lambda_per_s,
        )


class Situation(NamedTuple):
    """Where the arm is and where it should be, in rad and s, as components."""

    q: Vector
    qd: Vector
    q_desired: Vector
    qd_desired: Vector
    qdd_desired: Vector


class TrackingError(NamedTuple):
    """How far the arm is from where it should be."""

    e_rad: Vector
    """q_d - q."""
    e_dot_radps: Vector
    """qd_d - qd."""
    s_radps: Vector
    """e_dot + Lambda_0 e."""


def tracking_error(law: ControlLaw, at: Situation) -> TrackingError:
    """Return error, error rate and sliding variable."""
    e = [wanted - found for wanted, found in zip(at.q_desired, at.q, strict=True)]
    e_dot = [wanted - found for wanted, found in zip(at.qd_desired, at.qd, strict=True)]
    s = [rate + law.slope_per_s * error for rate, error in zip(e_dot, e, strict=True)]
    return TrackingError(e, e_dot, s)


def feed_forward_features(
    law: ControlLaw,
    columns: tuple[FeedForward, ...],
    qd_desired_radps: Vector,
    estimate_nm: Vector | None = None,
) -> list[list[Component]]:
    """Return the diagonals of Phi, in N m per unit of eta: one vector per column."""
    phi: list[list[Component]] = []
    for column in columns:
        if column == 'bias':
            phi.append([1.0] * len(qd_desired_radps))
        elif column == 'coulomb':
            tanh = functions_for(qd_desired_radps[0]).tanh
            phi.append([tanh(qd / law.coulomb_smoothing_radps) for qd in qd_desired_radps])
        else:
            assert estimate_nm is not None  # ControllerSettings demands an estimator
            phi.append(list(estimate_nm))
    return phi


def nominal_gains(law: ControlLaw, num_joints: int, num_columns: int) -> Array:
    """Return K_0, theta of the fixed-gain controller, shape (m,): no feed-forward."""
    gains = [law.nominal_kd_per_s, law.nominal_lambda_per_s, *([0.0] * num_columns)]
    return np.repeat(gains, num_joints)
