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

Limits of size and rate leave a box of efforts. Cutting each joint to it alone would turn the
acceleration: with M coupled, less torque on one joint accelerates the others. So what a limit
leaves is scaled along the line from the torque h = C^ qd + g^ + Phi eta, which holds the arm:

    tau = h + share M^ a    with the largest share in [0, 1] that the box allows

The arm then accelerates by share a: slower than commanded, never against it (`saturate`). That
holds while h is within reach. If not, as after a payload too heavy to hold or within the first
ticks of a rate limit, the arm besides sinks by what it lacks of h, whatever is commanded.
"""

from collections.abc import Sequence

import numpy as np

from metactl_ros.control.law import TrackingError
from metactl_ros.control.shield import AdmissibleGains
from metactl_ros.dynamics.two_link import apply_mass, Mass
from metactl_ros.signals import (
    are_between,
    Array,
    choose,
    clamp,
    Component,
    dot,
    every,
    split,
    stack,
    Vector,
)


def holding_torque(
    bias_nm: Vector, phi: Sequence[Vector], gains: AdmissibleGains
) -> list[Component]:
    """Return h = C^ qd + g^ + Phi eta: what the law sends if it commands no acceleration, in N m.

    Args:
        bias_nm: C^ qd + g^ of the nominal arm.
        phi: Feed-forward features, one vector per column of eta.
        gains: Only what went through the shield is accepted.
    """
    n, theta = len(bias_nm), gains.components
    return [
        bias_nm[joint] + dot(theta[2 * n + joint :: n], [column[joint] for column in phi])
        for joint in range(n)
    ]


def computed_torque(
    mass: Mass,
    hold_nm: Vector,
    qdd_desired_radps2: Vector,
    error: TrackingError,
    gains: AdmissibleGains,
) -> list[Component]:
    """Return the effort of the law before any limit, in N m.

    Args:
        mass: M^ of the nominal arm in the measured posture.
        hold_nm: What holds the arm, of the same gains.
        qdd_desired_radps2: Reference acceleration.
        error: Tracking error and sliding variable.
        gains: Only what went through the shield is accepted.
    """
    n = len(hold_nm)
    theta = gains.components
    kd, lam = theta[:n], theta[n : 2 * n]
    acceleration = [
        qdd + damping * e_dot + gain * s
        for qdd, damping, e_dot, gain, s in zip(
            qdd_desired_radps2, lam, error.e_dot_radps, kd, error.s_radps, strict=True
        )
    ]
    push = apply_mass(mass, acceleration)
    return [pushed + held for pushed, held in zip(push, hold_nm, strict=True)]


def effort_box(
    previous_nm: Vector, largest_nm: Vector, reach_nm: Vector
) -> tuple[list[Component], list[Component]]:
    """Return the least and the largest effort that size and rate leave each joint, in N m.

    Both intervals hold the previous effort, so they overlap.

    Args:
        previous_nm: The effort of the step before, within its size limit.
        largest_nm: Size limit of each joint.
        reach_nm: Largest change of each joint in one step.
    """
    smallest = [-most for most in largest_nm]
    lowest = [before - reach for before, reach in zip(previous_nm, reach_nm, strict=True)]
    highest = [before + reach for before, reach in zip(previous_nm, reach_nm, strict=True)]
    return clamp(lowest, smallest, largest_nm), clamp(highest, smallest, largest_nm)


def limit_effort(
    hold_nm: Vector, wanted_nm: Vector, low_nm: Vector, high_nm: Vector, *, is_commanded: Component
) -> list[Component]:
    """Return what a box leaves of the wanted effort, in N m.

    Of an arm that is commanded an acceleration it is saturated. A torque that fades commands none:
    there each joint goes its own way.
    """
    if is_commanded is True:
        return saturate(hold_nm, wanted_nm, low_nm, high_nm)
    begin = choose(is_commanded, hold_nm, wanted_nm)
    saturated = saturate(begin, wanted_nm, low_nm, high_nm)
    return choose(is_commanded, saturated, clamp(wanted_nm, low_nm, high_nm))


def saturate(
    hold_nm: Vector, wanted_nm: Vector, low_nm: Vector, high_nm: Vector
) -> list[Component]:
    """Return the effort on the line from h to the wanted one, as far as a box allows, in N m.

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
    is_inside = are_between(wanted_nm, low_nm, high_nm)
    if every(is_inside):
        return list(wanted_nm)
    hold, wanted, low, high = map(stack, (hold_nm, wanted_nm, low_nm, high_nm))
    enter, leave = _passage(hold, wanted - hold, low, high)
    misses = np.maximum(enter, 0.0) > np.minimum(leave, 1.0)  # (...), also if leave < 0
    begin = np.where(misses[..., np.newaxis], np.clip(hold, low, high), hold)
    _, leave = _passage(begin, wanted - hold, low, high)
    share = np.clip(leave, 0.0, 1.0)[..., np.newaxis]
    scaled = np.clip(begin + share * (wanted - hold), low, high)  # clipping mends rounding only
    return split(np.where(np.asarray(is_inside)[..., np.newaxis], wanted, scaled))


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
