# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
r"""What the workspace of an arm demands of its gains, friction and brake, and in which posture.

    m_i = 1 / max_q (M^-1)_ii                             what joint i feels at least
    max_q eig(M^-1 D) dt <= 2,  D = F_s / eps + sigma     friction that an explicit step can take
    K_d > p max_q eig(-Lambda^-1 d(M^-1 g_1)/dq)          where the arm holds a payload p it is
                                                          not told of; g_1: gravity of one kg
    D_i = m_i / (n dt)                                    a brake that never turns the motion round

Every maximum is sampled all over the joint ranges and then climbed to from the worst samples. That
is no proof: what is found is a lower bound of the maximum, with the posture that attains it.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from metactl_ros.config import for_joints, PerJoint, require_joints
from metactl_ros.dynamics.friction import Friction
from metactl_ros.dynamics.rigid_body import ArmModel, JointLimits, RigidBody
from metactl_ros.errors import ConfigError
from metactl_ros.signals import Array

NUM_SAMPLES = 1024
"""Postures of the workspace, beside its middle and the one nearest to zero."""
STABLE_STEP = 2.0
"""Largest eigenvalue of M^-1 D dt: beyond it a step turns a velocity round and makes it larger."""
SLOPE_STEP_RAD = 1e-5
"""Of central differences: their error is then about 1e-10 of the slope."""
NUM_CLIMBS = 3
"""From the worst samples: of several hills, the highest sample may be on a lower one."""
FINEST_SHARE, MAX_STEPS = 1e-5, 200
"""A climb ends with steps of this share of the joint range, or after so many of them."""


class Worst(NamedTuple):
    """The largest of some measure over the workspace, and where that is."""

    value: float
    q_rad: Array
    """The posture, shape (n,)."""


def workspace_postures(limits: JointLimits, num_samples: int = NUM_SAMPLES) -> Array:
    """Return postures that fill the joint ranges evenly, the same ones every time.

    It is an additive recurrence on powers of the generalised golden ratio, which fills a box of
    any dimension more evenly than random numbers do. The middle of the ranges and the posture
    nearest to zero are added: arms are stretched there, and no sequence hits that exactly.

    Returns:
        Joint positions, rad, shape (num_samples + 2, n).
    """
    num_joints = len(limits.position_rad)
    ratio = 2.0
    for _ in range(60):  # the root of x^(n + 1) = x + 1
        ratio = (1.0 + ratio) ** (1.0 / (num_joints + 1))
    steps = ratio ** -np.arange(1.0, num_joints + 1.0)
    shares = (0.5 + np.arange(1.0, num_samples + 1.0)[:, np.newaxis] * steps) % 1.0
    lower, upper = limits.lower_rad, limits.upper_rad
    middle, zero = 0.5 * (lower + upper), np.clip(0.0, lower, upper)
    return np.vstack([lower + shares * (upper - lower), middle, zero])


def worst_postures(measure: Callable[[Array], Array], limits: JointLimits) -> list[Worst]:
    """Return where each of several measures is largest within the joint ranges.

    Args:
        measure: From postures, rad, shape (S, n), to k numbers of each, shape (S, k).
        limits: The joint ranges.

    Returns:
        One entry for each of the k numbers.
    """
    postures = workspace_postures(limits)
    values = measure(postures)
    found = []
    for column in range(values.shape[1]):
        order = np.argsort(-values[:, column])[:NUM_CLIMBS]
        starts = [Worst(values[row, column], postures[row]) for row in order]
        climbs = [_climb(_column_of(measure, column), limits, start) for start in starts]
        found.append(max(climbs, key=lambda climb: climb.value))
    return found


def _column_of(measure: Callable[[Array], Array], column: int) -> Callable[[Array], Array]:
    return lambda q_rad: measure(q_rad)[:, column]


def _climb(measure: Callable[[Array], Array], limits: JointLimits, start: Worst) -> Worst:
    """Return a local maximum: the best step along one joint is taken, or all steps halved."""
    lower, upper = limits.lower_rad, limits.upper_rad
    directions = np.vstack([np.diag(upper - lower), np.diag(lower - upper)])
    best, share = start, 0.1
    for _ in range(MAX_STEPS):
        around = np.clip(best.q_rad + share * directions, lower, upper)
        values = measure(around)
        if values.max() > best.value:
            best = Worst(values.max(), around[values.argmax()])
        elif share > FINEST_SHARE:
            share *= 0.5
        else:
            break
    return Worst(float(best.value), best.q_rad)


def effective_inertias(arm: ArmModel) -> list[Worst]:
    """Return m_i, the least inertia that each joint feels while the others are free, kg m^2.

    It is least without payload, which adds a positive matrix to M.
    """
    body = arm.body()

    def mobility(q_rad: Array) -> Array:
        inverse = np.linalg.inv(body.inertia_matrix(q_rad))
        return np.asarray(np.diagonal(inverse, axis1=-2, axis2=-1))

    return [Worst(1.0 / at.value, at.q_rad) for at in worst_postures(mobility, arm.limits)]


def least_inertia(arm: ArmModel) -> Worst:
    """Return the least eigenvalue of M, kg m^2; without payload, as above."""
    body = arm.body()

    def lightness(q_rad: Array) -> Array:
        return np.asarray(-np.linalg.eigvalsh(body.inertia_matrix(q_rad))[:, :1], np.float64)

    (at,) = worst_postures(lightness, arm.limits)
    return Worst(-at.value, at.q_rad)


def brake_damping(arm: ArmModel, period_s: float) -> Array:
    """Return the damping D of a brake, N m s/rad, shape (n,).

    The trace of dt M^-1 D is at most 1 in every posture and with every payload, hence its
    eigenvalues are: a velocity sampled once per period and opposed by D for the whole of it dies
    out without changing sign.
    """
    least = np.array([at.value for at in effective_inertias(arm)])
    return np.asarray(least / (len(least) * period_s))


def friction_step(arm: ArmModel, friction: Friction, dt_s: float) -> Worst:
    """Return the largest eigenvalue of M^-1 D dt, without unit; explicit steps need at most 2.

    D = F_s / eps + sigma is the damping of friction at rest, where it is steepest.
    """
    num_joints = len(arm.joint_names)
    require_joints(friction, num_joints)
    static, smoothing, viscous = (
        for_joints(value, num_joints)
        for value in (
            friction.static_nm,
            friction.smoothing_velocity_radps,
            friction.viscous_nmsprad,
        )
    )
    root, body = np.sqrt(static / smoothing + viscous), arm.body()

    def stiffness(q_rad: Array) -> Array:
        # Of D^1/2 M^-1 D^1/2, which is symmetric and has the eigenvalues of M^-1 D.
        inverse = np.linalg.inv(body.inertia_matrix(q_rad))
        return dt_s * np.linalg.eigvalsh(root[:, np.newaxis] * inverse * root)[:, -1:]

    (at,) = worst_postures(stiffness, arm.limits)
    return at


def require_friction_step(arm: ArmModel, friction: Friction, dt_s: float) -> None:
    """Refuse friction that is too steep at rest for an explicit step of `dt_s`.

    Raises:
        ConfigError: With the posture, and by how much.
    """
    found = friction_step(arm, friction, dt_s)
    if found.value > STABLE_STEP:
        raise ConfigError(
            f'friction.smoothing_velocity_radps: expected friction whose step of {dt_s} s is at '
            f'most {STABLE_STEP} at rest (largest eigenvalue of M^-1 D dt), found '
            f'{found.value:.3g} at q = {np.round(found.q_rad, 3).tolist()} rad; raise it about '
            f'{found.value / STABLE_STEP:.2g} times, or shorten the step.'
        )


def least_kd(arm: ArmModel, payload_kg: float, lambda_per_s: PerJoint) -> Worst:
    """Return the K_d below which the arm falls with a payload that its model lacks, 1 / s.

    Where the arm rests, M K_d Lambda e = p g_1(q), that is K_d Lambda e = p a(q) with the sag
    a = M^-1 g_1. A small displacement is pulled back by K_d Lambda + p da/dq: the arm leaves a
    posture in which an eigenvalue of that is negative, as an inverted pendulum on a soft spring.

    Args:
        arm: The arm, whose model carries no payload.
        payload_kg: The payload p that it carries all the same, kg.
        lambda_per_s: Lambda of the law, 1 / s.

    Returns:
        The K_d that is the same for every joint, at least 0, and the posture that needs it.
    """
    slope = for_joints(lambda_per_s, len(arm.joint_names))
    body, per_kg = arm.body(), arm.body_per_kg()

    def needed(q_rad: Array) -> Array:
        softness = -payload_kg * _sag_slope(body, per_kg, q_rad) / slope[:, np.newaxis]
        return np.asarray(np.linalg.eigvals(softness).real.max(axis=-1, keepdims=True))

    (at,) = worst_postures(needed, arm.limits)
    return Worst(max(at.value, 0.0), at.q_rad)


def _sag_slope(body: RigidBody, per_kg: RigidBody, q_rad: Array) -> Array:
    """Return d(M^-1 g_1)/dq by central differences, 1 / (kg s^2), from (S, n) to (S, n, n)."""
    num_joints = body.num_joints
    steps = SLOPE_STEP_RAD * np.eye(num_joints)
    ends = []
    for side in (1.0, -1.0):
        q = q_rad[:, np.newaxis] + side * steps
        rest = np.zeros_like(q)
        ends.append(body.at(q, rest).solve(per_kg.at(q, rest).gravity))
    # Of an end, axis 1 is the joint that was moved: the columns of the slope.
    return np.asarray(np.swapaxes(ends[0] - ends[1], -1, -2) / (2.0 * SLOPE_STEP_RAD))
