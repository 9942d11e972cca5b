# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
r"""The computed-torque law, affine in its gains, and the limits every effort passes.

    e = q_d - q,    s = e_dot + Lambda_0 e
    tau = M^(q) [ qdd_d + Lambda (.) e_dot + K_d (.) s ] + C^(q, qd) qd + g^(q) + Phi eta

theta = (K_d, Lambda, eta) has m = 4 n entries: two gains and two feed-forward weights per joint.
Phi = [ I | diag tanh(qd_d / eps) ]: a bias and a Coulomb term per joint. The Coulomb term follows
the *reference* velocity, because the measured one would feed back positively. The paper's sliding
term K_d (e_dot + Lambda e) is bilinear; with the fixed slope Lambda_0 the law is affine, so
the set of admissible gains is convex. The model M^, C^, g^ carries no payload.
"""

from dataclasses import dataclass

import numpy as np

from metactl_ros.arm import apply_inertia, bias_torque, Inertia, JointLimits
from metactl_ros.config import require_not_negative, require_positive
from metactl_ros.signals import ArmState, Array, Reference


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


def nominal_gains(law: ControlLaw, num_joints: int) -> Array:
    """Return theta of the fixed-gain controller, shape (4 n,): K_d, Lambda, no feed-forward."""
    ones = np.ones(num_joints)
    no_feed_forward = np.zeros(2 * num_joints)
    return np.concatenate(
        [law.nominal_kd_per_s * ones, law.nominal_lambda_per_s * ones, no_feed_forward]
    )


def computed_torque(
    law: ControlLaw, model: Inertia, state: ArmState, reference: Reference, theta: Array
) -> Array:
    """Return the effort of the law before any limit, in N m, shape (..., n).

    `theta` has shape (..., 4 n); leading axes broadcast against those of the state.
    """
    kd, lam, bias, coulomb = np.split(theta, 4, axis=-1)
    e = reference.q_rad - state.q_rad
    e_dot = reference.qd_radps - state.qd_radps
    s = e_dot + law.slope_per_s * e
    acceleration = reference.qdd_radps2 + lam * e_dot + kd * s
    direction = np.tanh(reference.qd_radps / law.coulomb_smoothing_radps)
    effort = apply_inertia(model, state.q_rad, acceleration)
    effort += bias_torque(model, state.q_rad, state.qd_radps)
    return effort + bias + coulomb * direction


def limit_effort(limits: JointLimits, effort_nm: Array, previous_nm: Array, dt_s: float) -> Array:
    """Return the effort nearest to the wanted one that the joints bear, in N m, shape (..., n).

    First the rate around the previous effort, then the size. If the previous effort was within
    limits, the size clamp only moves the result back towards it, so both limits hold.
    """
    reach = np.array(limits.effort_rate_nmps) * dt_s
    largest = np.array(limits.effort_nm)
    reachable = np.clip(effort_nm, previous_nm - reach, previous_nm + reach)
    return np.asarray(np.clip(reachable, -largest, largest))
