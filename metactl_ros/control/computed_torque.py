# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
r"""The computed-torque law, affine in its gains, and the limits every effort passes.

    e = q_d - q,    s = e_dot + Lambda_0 e
    tau = M^(q) [ qdd_d + Lambda (.) e_dot + K_d (.) s ] + C^(q, qd) qd + g^(q) + Phi eta

theta = (K_d, Lambda, eta) has m = (2 + columns) n entries: two gains and one weight per column of
Phi, for each joint. The columns are diagonal: a bias, and a Coulomb term tanh(qd_d / eps) that
follows the *reference* velocity, because the measured one would feed back positively. The paper's
sliding term K_d (e_dot + Lambda e) is bilinear; with the fixed slope Lambda_0 the law is affine,
so the set of admissible gains is convex. The model M^, C^, g^ carries no payload.
"""

from collections.abc import Sequence

from metactl_ros.arm import apply_mass, Mass
from metactl_ros.control.law import TrackingError
from metactl_ros.control.shield import AdmissibleGains
from metactl_ros.signals import clamp, Component, dot, Vector


def computed_torque(
    mass: Mass,
    bias_nm: Vector,
    qdd_desired_radps2: Vector,
    error: TrackingError,
    phi: Sequence[Vector],
    gains: AdmissibleGains,
) -> list[Component]:
    """Return the effort of the law before any limit, in N m.

    Args:
        mass: M^ of the nominal arm in the measured posture.
        bias_nm: C^ qd + g^ of the nominal arm.
        qdd_desired_radps2: Reference acceleration.
        error: Tracking error and sliding variable.
        phi: Feed-forward features, one vector per column of eta.
        gains: Only what went through the shield is accepted.
    """
    n = len(bias_nm)
    theta = gains.components
    kd, lam = theta[:n], theta[n : 2 * n]
    acceleration = [
        qdd + damping * e_dot + gain * s
        for qdd, damping, e_dot, gain, s in zip(
            qdd_desired_radps2, lam, error.e_dot_radps, kd, error.s_radps, strict=True
        )
    ]
    effort = apply_mass(mass, acceleration)
    for joint in range(n):
        weights = theta[2 * n + joint :: n]
        effort[joint] += bias_nm[joint] + dot(weights, [column[joint] for column in phi])
    return effort


def limit_effort(
    wanted_nm: Vector, previous_nm: Vector, largest_nm: Vector, reach_nm: Vector
) -> list[Component]:
    """Return the effort nearest to the wanted one that the joints bear, in N m.

    Size and rate are two intervals that both hold the previous effort, so they overlap.

    Args:
        wanted_nm: Finite.
        previous_nm: The effort of the step before, within its size limit.
        largest_nm: Size limit of each joint.
        reach_nm: Largest change of each joint in one step.
    """
    lowest = [before - reach for before, reach in zip(previous_nm, reach_nm, strict=True)]
    highest = [before + reach for before, reach in zip(previous_nm, reach_nm, strict=True)]
    reachable = clamp(wanted_nm, lowest, highest)
    return clamp(reachable, [-most for most in largest_nm], largest_nm)
