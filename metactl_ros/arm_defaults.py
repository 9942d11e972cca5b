# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""What world and controller an arm gets that states none: the shipped ones, scaled to its joints.

`config/plant.yaml` and `config/controller.yaml` are for the two-link arm, torques in N m. For an
arm from a URDF the same numbers mean shares of what its joints can do:

    friction        static 2 % of the effort limit; all else of friction in the shipped proportions
    bias, Coulomb   feed-forward up to 4 % and 2 % of the effort limit
    payload         up to what the arm is rated for, where the shipped arm has 1.5 kg
    reference       sinusoids about the middle of each range, over at most 30 % of it to each side,
                    with half the speed and half the acceleration that a motion may have
    K_d             from 20 % above what holds the rated payload; at least the shipped range
    P               one 2 x 2 block, the same for every joint
    guard           as much unexplained effort as the rated payload can cause, and a third more

Files named ARM.plant.yaml and ARM.controller.yaml beside ARM.yaml overrule any of it, key by key.
"""

from dataclasses import replace

import numpy as np

from metactl_ros.config import for_joints, PerJoint
from metactl_ros.control.gain_map import ColumnRange, Ends, GainBox
from metactl_ros.control.guard import GuardSettings
from metactl_ros.control.lyapunov import CROSS_S, kronecker_matrix, SPEED_S2
from metactl_ros.control.settings import ControllerSettings
from metactl_ros.dynamics.bounds import least_kd, Worst, worst_postures
from metactl_ros.dynamics.friction import Friction
from metactl_ros.dynamics.rigid_body import ArmModel
from metactl_ros.errors import ConfigError
from metactl_ros.motion.reference import motion_limits
from metactl_ros.signals import Array
from metactl_ros.sim.task import Task

STATIC_SHARE, BIAS_SHARE = 0.02, 0.04
"""Of the effort limit: static friction, which the Coulomb feed-forward reaches, and bias."""
RANGE_SHARE, MOTION_SHARE = 0.3, 0.5
"""Of half a joint range, and of the largest speed and acceleration of a motion."""
KD_MARGIN, NOMINAL_MARGIN = 1.2, 1.5
"""Of the least and the nominal K_d above the least that holds the rated payload."""
GUARD_MARGIN, GUARD_FRICTION_SHARE = 1.33, 0.05


def friction_of(arm: ArmModel, shipped: Friction) -> Friction:
    """Return friction that is the same share of what each joint can do."""
    effort = np.array(arm.limits.effort_nm)
    share = STATIC_SHARE * effort / for_joints(shipped.static_nm, 2)[0]

    def of_joints(value: PerJoint) -> tuple[float, ...]:
        return tuple(float(x) for x in share * for_joints(value, 2)[0])

    return replace(
        shipped,
        coulomb_nm=of_joints(shipped.coulomb_nm),
        static_nm=of_joints(shipped.static_nm),
        viscous_nmsprad=of_joints(shipped.viscous_nmsprad),
        memory_gain_nmprad=of_joints(shipped.memory_gain_nmprad),
    )


def task_of(arm: ArmModel, shipped: Task, rated_payload_kg: float) -> Task:
    """Return the tracking task of an arm, its payloads up to what it is rated for."""
    bounds, omega = motion_limits(arm), frequencies(len(arm.joint_names))
    lower, upper = bounds.lower_rad, bounds.upper_rad
    most = [
        np.full(len(omega), max(shipped.amplitude_rad)),
        RANGE_SHARE * 0.5 * (upper - lower),
        MOTION_SHARE * bounds.velocity_radps / omega,
        MOTION_SHARE * bounds.acceleration_radps2 / omega**2,
    ]
    heavier = rated_payload_kg / shipped.payload_max_kg
    return replace(
        shipped,
        amplitude_rad=tuple(np.min(most, axis=0).tolist()),
        omega_radps=tuple(omega.tolist()),
        centre_rad=tuple((0.5 * (lower + upper)).tolist()),
        payload_max_kg=rated_payload_kg,
        payload_levels_kg=tuple(heavier * kg for kg in shipped.payload_levels_kg),
        payload_estimate_std_kg=heavier * shipped.payload_estimate_std_kg,
    )


def frequencies(num_joints: int) -> Array:
    """Return incommensurate frequencies from 1 to below 1.42 rad/s, the shipped two at first.

    They are powers of two with the exponents 1/2 times 0, 1, 1/2, 1/4, 3/4, 1/8, ...: no ratio of
    two of them is rational.
    """
    exponents = [0.0, 1.0]
    level = 2
    while len(exponents) < num_joints:
        exponents += [odd / level for odd in range(1, level, 2)]
        level *= 2
    return np.asarray(2.0 ** (0.5 * np.array(exponents[:num_joints])))


def controller_of(
    arm: ArmModel, shipped: ControllerSettings, rated_payload_kg: float
) -> ControllerSettings:
    """Return the controller of an arm that states none."""
    law, num_joints = shipped.law, len(arm.joint_names)
    least = least_kd(arm, rated_payload_kg, law.slope_per_s).value
    nominal = max(float(np.max(law.nominal_kd_per_s)), NOMINAL_MARGIN * least)
    matrix = kronecker_matrix(CROSS_S, SPEED_S2, num_joints)
    return replace(
        shipped,
        law=replace(law, nominal_kd_per_s=nominal),
        gain_box=_box_of(arm, shipped.gain_box, KD_MARGIN * least),
        lyapunov=replace(shipped.lyapunov, p_matrix=tuple(map(tuple, matrix.tolist()))),
        guard=_guard_of(arm, shipped.guard, rated_payload_kg),
    )


def _box_of(arm: ArmModel, shipped: GainBox, least_kd_per_s: float) -> GainBox:
    effort = np.array(arm.limits.effort_nm)
    shares = {'bias': BIAS_SHARE, 'coulomb': STATIC_SHARE}
    columns = []
    for entry in shipped.feed_forward:
        ends: Ends = entry.ends
        if entry.column in shares:
            most = shares[entry.column] * effort
            ends = tuple((-x, x) for x in most.tolist())
        columns.append(ColumnRange(column=entry.column, ends=ends))
    lower, upper = (float(end) for end in np.ravel(np.array(shipped.kd_per_s))[:2])
    kd = max(lower, least_kd_per_s)
    return replace(shipped, kd_per_s=(kd, max(upper, 2.0 * kd)), feed_forward=tuple(columns))


def _guard_of(arm: ArmModel, shipped: GuardSettings, rated_payload_kg: float) -> GuardSettings:
    """Return a guard to which the rated payload and friction are no alarm."""
    per_kg, effort = arm.body_per_kg(), np.array(arm.limits.effort_nm)

    def share(q_rad: Array) -> Array:
        held = np.abs(per_kg.at(q_rad, np.zeros_like(q_rad)).gravity)
        return np.asarray((held / effort).max(axis=-1, keepdims=True))

    (worst,) = worst_postures(share, arm.limits)
    most = GUARD_MARGIN * (rated_payload_kg * worst.value + GUARD_FRICTION_SHARE)
    return replace(
        shipped, unexplained_effort_share=max(shipped.unexplained_effort_share, min(most, 1.0))
    )


def require_stable_kd(
    arm: ArmModel, controller: ControllerSettings, rated_payload_kg: float
) -> Worst:
    """Refuse gains with which the arm falls when it carries what it is rated for.

    Returns:
        The least K_d that holds it, and the posture that needs it.

    Raises:
        ConfigError: With the number, and the posture.
    """
    num_joints = len(arm.joint_names)
    worst = least_kd(arm, rated_payload_kg, controller.law.slope_per_s)
    found = {
        'gain_box.kd_per_s': float(controller.gain_box.ends(num_joints)[:num_joints, 0].min()),
        'law.nominal_kd_per_s': float(
            for_joints(controller.law.nominal_kd_per_s, num_joints).min()
        ),
    }
    for name, least in found.items():
        if least <= worst.value:
            raise ConfigError(
                f'{name}: expected more than {worst.value:.4g} 1/s, below which the arm falls '
                f'with {rated_payload_kg:g} kg that its model lacks, found {least:g}; it falls '
                f'from q = {np.round(worst.q_rad, 3).tolist()} rad. Raise it, or '
                'rate the arm for less.'
            )
    return worst
