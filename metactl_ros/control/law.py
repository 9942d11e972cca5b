# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
r"""The computed-torque law, affine in its gains, and the limits every effort passes.

    e = q_d - q,    s = e_dot + Lambda_0 e
    tau = M^(q) [ qdd_d + K_d (.) s + Lambda (.) e_dot + K_p (.) e ]
          + C^(q, qd) qd + g^(q) + Phi eta

theta = (K_d, Lambda, K_p, eta) has an entry of each kind per joint: gains of the acceleration, K_p
only where the gain box states it, and a weight for each column of Phi. The columns are diagonal: a
bias, a Coulomb term tanh(qd_d / eps) that follows the *reference* velocity, because the measured
one would feed back positively, and the estimate of what the model lacks. The paper's sliding term
K_d (e_dot + Lambda e) is bilinear; with the fixed slope Lambda_0 the law is affine, so the set of
admissible gains is convex. The model M^, C^, g^ carries no payload.

Limits of size and rate leave a box of efforts. Cutting each joint to it alone would turn the
acceleration: with M coupled, less torque on one joint accelerates the others. So what a limit
leaves is scaled along the line from the torque h = C^ qd + g^ + Phi eta, which holds the arm:

    tau = h + share M^ a    with the largest share in [0, 1] that the box allows

The arm then accelerates by share a: slower than commanded, never against it (`saturate`). That
holds while h is within reach. If not, as after a payload too heavy to hold or within the first
ticks of a rate limit, the arm besides sinks by what it lacks of h, whatever is commanded.

All arrays are (..., n) unless stated otherwise.
"""

from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeAlias

import numpy as np

from metactl_ros.config import (
    for_joints,
    joint_array,
    PerJoint,
    require_joints,
    require_not_negative,
    require_positive,
)
from metactl_ros.dynamics.rigid_body import Posture
from metactl_ros.signals import Array, each_arm, Flags, is_all, where_arms

FeedForward: TypeAlias = Literal['bias', 'coulomb', 'estimate']
"""Columns of Phi; `estimate` is that of an estimator, in N m: what the model lacks."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LawSettings:
    """Constants of the law, as `config/controller.yaml` states them."""

    rate_hz: float
    """Control rate, Hz."""
    slope_per_s: float
    """Lambda_0, the fixed slope of the sliding variable, 1 / s."""
    nominal_kd_per_s: PerJoint
    """K_d of the fixed-gain controller, 1 / s; this and what follows may be stated per joint."""
    nominal_lambda_per_s: PerJoint
    """Lambda of the fixed-gain controller, 1 / s."""
    coulomb_smoothing_radps: PerJoint
    """eps of the Coulomb feed-forward, rad / s."""

    def __post_init__(self) -> None:
        require_joints(self)
        require_positive(
            'LawSettings',
            rate_hz=self.rate_hz,
            slope_per_s=self.slope_per_s,
            coulomb_smoothing_radps=self.coulomb_smoothing_radps,
        )
        require_not_negative(
            'LawSettings',
            nominal_kd_per_s=self.nominal_kd_per_s,
            nominal_lambda_per_s=self.nominal_lambda_per_s,
        )


class TrackingState(NamedTuple):
    """Where the arm is and where it should be, in rad and s."""

    q: Array
    qd: Array
    q_desired: Array
    qd_desired: Array
    qdd_desired: Array


class TrackingError(NamedTuple):
    """How far the arm is from where it should be."""

    e_rad: Array
    """q_d - q."""
    e_dot_radps: Array
    """qd_d - qd."""
    s_radps: Array
    """e_dot + Lambda_0 e."""


def tracking_error(law: LawSettings, at: TrackingState) -> TrackingError:
    """Return error, error rate and sliding variable."""
    e, e_dot = at.q_desired - at.q, at.qd_desired - at.qd
    return TrackingError(e, e_dot, e_dot + law.slope_per_s * e)


class GainLayout(NamedTuple):
    """Which gains follow K_d and Lambda in theta."""

    has_kp: bool
    """Whether K_p does."""
    columns: tuple[FeedForward, ...]
    """Of Phi, in the order of eta."""

    @property
    def counts_on_estimate(self) -> bool:
        """Whether what the model lacks is estimated and may be added to the effort."""
        return 'estimate' in self.columns


class Features(NamedTuple):
    """What the gains of theta multiply, joint by joint."""

    acceleration: Array
    """s, e_dot and, where there is K_p, e: shape (..., 2 or 3, n)."""
    torque: Array
    """The diagonals of Phi, N m per unit of eta, shape (..., columns, n)."""


def make_features(
    law: LawSettings,
    layout: GainLayout,
    error: TrackingError,
    qd_desired_radps: Array,
    estimate_nm: Array | None = None,
) -> Features:
    """Return the features of theta in the order of a layout.

    Args:
        law: Its constants.
        layout: Of theta.
        error: Tracking error and sliding variable.
        qd_desired_radps: Reference velocity.
        estimate_nm: What the model is estimated to lack, for the column `estimate`.
    """
    shape = error.s_radps.shape
    acceleration = np.empty((*shape[:-1], 3 if layout.has_kp else 2, shape[-1]))
    acceleration[..., 0, :] = error.s_radps
    acceleration[..., 1, :] = error.e_dot_radps
    if layout.has_kp:
        acceleration[..., 2, :] = error.e_rad
    phi = np.empty((*shape[:-1], len(layout.columns), shape[-1]))
    for number, column in enumerate(layout.columns):
        if column == 'bias':
            phi[..., number, :] = 1.0
        elif column == 'coulomb':
            phi[..., number, :] = np.tanh(
                qd_desired_radps / joint_array(law.coulomb_smoothing_radps)
            )
        else:
            assert estimate_nm is not None  # ControllerSettings demands an estimator
            phi[..., number, :] = estimate_nm
    return Features(acceleration, phi)


def nominal_gains(law: LawSettings, layout: GainLayout, num_joints: int) -> Array:
    """Return K_0, theta of the fixed-gain controller, shape (m,).

    An estimate has the weight 1, because the shield counts on it; no other feed-forward, no K_p.
    """
    gains = [law.nominal_kd_per_s, law.nominal_lambda_per_s]
    gains += [0.0] * layout.has_kp
    gains += [1.0 if column == 'estimate' else 0.0 for column in layout.columns]
    return np.concatenate([for_joints(of_kind, num_joints) for of_kind in gains])


@dataclass(frozen=True, slots=True)
class AdmissibleGains:
    """Gains that went through the shield. Only `shield.py` constructs it; a test says so."""

    theta: Array
    """In physical units, shape (..., m)."""


@dataclass(frozen=True, slots=True)
class CountedGains:
    """Gains that a shield which only counts let pass: for studies in simulation, never a robot."""

    theta: Array
    """In physical units, shape (..., m), within the box and perhaps beyond the half-space."""


Gains: TypeAlias = AdmissibleGains | CountedGains


def holding_torque(bias_nm: Array, features: Features, gains: Gains) -> Array:
    """Return h = C^ qd + g^ + Phi eta: what the law sends if it commands no acceleration, N m.

    Args:
        bias_nm: C^ qd + g^ of the nominal arm.
        features: What the gains multiply.
        gains: What the shield returned.
    """
    num_gains, n = features.acceleration.shape[-2:]
    eta = gains.theta[..., num_gains * n :].reshape(features.torque.shape)
    feed_forward: Array = np.add.reduce(features.torque * eta, axis=-2)
    return bias_nm + feed_forward


def computed_torque(
    posture: Posture,
    hold_nm: Array,
    qdd_desired_radps2: Array,
    features: Features,
    gains: Gains,
) -> Array:
    """Return the effort of the law before any limit, N m.

    Args:
        posture: Of the nominal arm, at the measured state.
        hold_nm: What holds the arm, of the same gains.
        qdd_desired_radps2: Reference acceleration.
        features: What the gains multiply.
        gains: What the shield returned.
    """
    num_gains, n = features.acceleration.shape[-2:]
    theta = gains.theta[..., : num_gains * n].reshape(features.acceleration.shape)
    terms = theta * features.acceleration
    # In this order since the first recordings: another one would change the last digits.
    acceleration = qdd_desired_radps2 + terms[..., 1, :] + terms[..., 0, :]
    if num_gains > 2:
        acceleration = acceleration + terms[..., 2, :]
    return hold_nm + posture.apply(acceleration)


def effort_box(previous_nm: Array, largest_nm: Array, reach_nm: Array) -> tuple[Array, Array]:
    """Return the least and the largest effort that size and rate leave each joint, N m.

    Both intervals hold the previous effort, so they overlap.

    Args:
        previous_nm: The effort of the step before, within its size limit.
        largest_nm: Size limit of each joint, shape (n,).
        reach_nm: Largest change of each joint in one step, shape (n,).
    """
    low = np.maximum(previous_nm - reach_nm, -largest_nm)
    return low, np.minimum(previous_nm + reach_nm, largest_nm)


def limit_effort(
    hold_nm: Array, wanted_nm: Array, low_nm: Array, high_nm: Array, *, is_commanded: Flags
) -> Array:
    """Return what a box leaves of the wanted effort, N m.

    Of an arm that is commanded an acceleration it is saturated. A torque that fades commands none:
    there each joint goes its own way.
    """
    if is_all(is_commanded):
        return saturate(hold_nm, wanted_nm, low_nm, high_nm)
    begin = where_arms(is_commanded, hold_nm, wanted_nm)
    saturated = saturate(begin, wanted_nm, low_nm, high_nm)
    return where_arms(is_commanded, saturated, np.clip(wanted_nm, low_nm, high_nm))


def saturate(hold_nm: Array, wanted_nm: Array, low_nm: Array, high_nm: Array) -> Array:
    """Return the effort on the line from h to the wanted one, as far as a box allows, N m.

    Let h + x (wanted - h) be within the box for x in [enter, leave]. If that meets [0, 1], the
    share is the largest x in both: the arm accelerates by exactly that share of the command. If
    not, h itself is out of reach. The nearest torque in the box takes its place, and from there
    the share is scaled; what the arm then lacks to be held does not depend on the command.

    Args:
        hold_nm: h, finite.
        wanted_nm: h + M^ a, finite.
        low_nm: Lower end of the box, per joint.
        high_nm: Upper end of the box, per joint.
    """
    is_inside = (low_nm <= wanted_nm) & (wanted_nm <= high_nm)
    if is_all(is_inside):
        return wanted_nm
    enter, leave = _passage(hold_nm, wanted_nm - hold_nm, low_nm, high_nm)
    misses = np.maximum(enter, 0.0) > np.minimum(leave, 1.0)  # (...), also if leave < 0
    begin = where_arms(misses, np.clip(hold_nm, low_nm, high_nm), hold_nm)
    _, leave = _passage(begin, wanted_nm - hold_nm, low_nm, high_nm)
    share = np.clip(leave, 0.0, 1.0)[..., np.newaxis]
    way = share * (wanted_nm - hold_nm)
    scaled = np.clip(begin + way, low_nm, high_nm)  # clipping mends rounding only
    return where_arms(each_arm(is_inside), wanted_nm, scaled)


def _passage(begin: Array, way: Array, low: Array, high: Array) -> tuple[Array, Array]:
    """Return between which x the point begin + x way is within a box, each of shape (...)."""
    moves = way != 0.0
    slope = np.where(moves, way, 1.0)
    with np.errstate(over='ignore'):  # a joint that hardly moves never leaves
        ends = np.stack([(low - begin) / slope, (high - begin) / slope])
    never = (begin < low) | (begin > high)  # of a joint that does not move
    enter = np.where(moves, ends.min(axis=0), np.where(never, np.inf, -np.inf))
    leave = np.where(moves, ends.max(axis=0), np.where(never, -np.inf, np.inf))
    return enter.max(axis=-1), leave.min(axis=-1)
