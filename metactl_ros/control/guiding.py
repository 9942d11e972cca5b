# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
r"""Guiding by hand: gravity is compensated and nothing is followed.

    tau = g^(q, p) + f(qd) - c(q, qd) M^(q) qd - k(q)

    f_i = share F_i sign(qd_i) clip((|qd_i| - dead) / (full - dead), 0, 1)
    k_i = K_i (how far q_i is within the wall),   K_i wall_width = wall_effort_share * effort_nm
    c   = c_least + (c_most - c_least) min(u, 1)^2
    u   = max over joints of |qd_i| / speed limit, and of the depth in a wall / its width while
          the joint goes deeper

F is the least Coulomb friction of a joint, stated by whoever knows the arm. There is no C^ qd:
with it the arm would not be passive. Let E = 1/2 qd^T M qd + U, where U >= 0 is the potential of
the walls. With the right payload, true friction F(qd) and the hand's torque h,

    E_dot = qd . h + qd . (f - F(qd)) - c qd^T M^ qd

The last term is not positive, for c >= 0 is one number and M^ positive definite. Of the second,
each joint has |f_i| <= share F_i whatever velocity is measured, however late or noisy, and at the
true velocity f opposes no more than a share < 1 of dry friction. So nothing but the hand adds
energy, as long as friction is not less than stated; friction that is smooth about rest must at
|qd| be at least share F_i times the same ramp, which the dead band ensures. With a payload wrong
by dp the arm sinks or rises as if a hand bore dp g(q): damping bounds the speed, and where that
does not suffice the speed limit ends guiding (STOP).

M^ is without payload: a heavier true arm is only damped less, whereas with a payload that is not
there a light wrist would be damped more than a sampled loop bears. All arrays are (..., n).
"""

from dataclasses import dataclass

import numpy as np

from metactl_ros.config import (
    for_joints,
    PerJoint,
    require_joints,
    require_not_negative,
    require_positive,
)
from metactl_ros.dynamics.rigid_body import ArmModel, Posture
from metactl_ros.errors import ConfigError
from metactl_ros.signals import Array

MOST_SAMPLED = 0.5
"""Of damping times the period, and of the wall's natural frequency times it: beyond twice that a
sampled loop with one more period of delay is no longer stable."""


@dataclass(frozen=True, kw_only=True, slots=True)
class GuidingSettings:
    """How an arm is guided by hand, as `config/gravity_compensation.yaml` states it."""

    coulomb_nm: PerJoint
    """F, the least Coulomb friction of each joint, N m; zero where it is not known."""
    friction_share: float
    """How much of it is compensated; below 1."""
    friction_dead_radps: float
    """Below this speed no friction is compensated: noise must not drive the arm, rad / s."""
    friction_full_radps: float
    """From this speed on the whole share is, rad / s."""
    damping_per_s: float
    """c of a slow arm, 1 / s."""
    damping_most_per_s: float
    """c at the speed limit, 1 / s."""
    speed_limit_radps: PerJoint
    """What is faster ends guiding: STOP, rad / s."""
    wall_width_rad: PerJoint
    """How far before a joint limit its wall begins, rad."""
    wall_effort_share: float
    """What the wall gives at the joint limit, as a share of the effort limit."""

    def __post_init__(self) -> None:
        require_joints(self)
        require_positive(
            'GuidingSettings',
            friction_full_radps=self.friction_full_radps,
            damping_per_s=self.damping_per_s,
            speed_limit_radps=self.speed_limit_radps,
            wall_width_rad=self.wall_width_rad,
            wall_effort_share=self.wall_effort_share,
        )
        require_not_negative(
            'GuidingSettings',
            coulomb_nm=self.coulomb_nm,
            friction_share=self.friction_share,
            friction_dead_radps=self.friction_dead_radps,
        )
        for name, found, wanted, is_met in (
            ('friction_share', self.friction_share, 'below 1', self.friction_share < 1.0),
            (
                'friction_full_radps',
                self.friction_full_radps,
                f'above friction_dead_radps = {self.friction_dead_radps:g}',
                self.friction_full_radps > self.friction_dead_radps,
            ),
            (
                'damping_most_per_s',
                self.damping_most_per_s,
                f'at least damping_per_s = {self.damping_per_s:g}',
                self.damping_most_per_s >= self.damping_per_s,
            ),
            ('wall_effort_share', self.wall_effort_share, 'below 1', self.wall_effort_share < 1.0),
        ):
            if not is_met:
                raise ConfigError(f'GuidingSettings.{name}: expected {wanted}, found {found:g}.')


class GuidingLaw:
    """The torque with which an arm can be guided by hand."""

    def __init__(self, settings: GuidingSettings, arm: ArmModel, period_s: float) -> None:
        """Check what is stated against an arm and a period.

        Raises:
            ConfigError: If a joint may be faster than its limit, its walls leave no room between
                them, or damping or walls are too strong for the period.
        """
        limits, n = arm.limits, len(arm.joint_names)
        require_joints(settings, n)
        width = for_joints(settings.wall_width_rad, n)
        self._settings = settings
        self._speed_limit_radps = for_joints(settings.speed_limit_radps, n)
        self._friction_nm = settings.friction_share * for_joints(settings.coulomb_nm, n)
        self._lower_rad, self._upper_rad = limits.lower_rad + width, limits.upper_rad - width
        self._width_rad = width
        self._stiffness_nmprad = settings.wall_effort_share * np.array(limits.effort_nm) / width
        fastest_wall = np.sqrt(self._stiffness_nmprad * arm.largest_mobility())
        for name, found, most in (
            ('speed_limit_radps', self._speed_limit_radps, np.array(limits.velocity_radps)),
            ('wall_width_rad', width, 0.25 * (limits.upper_rad - limits.lower_rad)),
            ('coulomb_nm', self._friction_nm, np.array(limits.effort_nm)),
            (
                'damping_most_per_s',
                np.full(n, settings.damping_most_per_s),
                np.full(n, MOST_SAMPLED / period_s),
            ),
            (
                'wall_effort_share: natural frequency of the wall on the light arm, rad/s',
                fastest_wall,
                np.full(n, MOST_SAMPLED / period_s),
            ),
        ):
            if (found > most).any():
                joint = int(np.argmax(found - most))
                raise ConfigError(
                    f'GuidingSettings.{name}: expected at most {most[joint]:.4g} for '
                    f'{arm.joint_names[joint]}, found {found[joint]:.4g}; lower it, or widen the '
                    'wall if it is its stiffness.'
                )

    def torque(self, at: Posture, gravity_nm: Array, q_rad: Array, qd_radps: Array) -> Array:
        """Return the torque of the law before any limit, N m.

        Args:
            at: Posture of the arm without payload.
            gravity_nm: g^ with the payload.
            q_rad: Measured.
            qd_radps: Measured.
        """
        too_low = np.maximum(self._lower_rad - q_rad, 0.0)
        too_high = np.maximum(q_rad - self._upper_rad, 0.0)
        damping = self._damping_per_s(too_low, too_high, qd_radps)
        wall = self._stiffness_nmprad * (too_high - too_low)
        braking = at.apply(damping[..., np.newaxis] * qd_radps)
        return np.asarray(gravity_nm + self.friction(qd_radps) - braking - wall)

    def friction(self, qd_radps: Array) -> Array:
        """Return f, the feed-forward of friction, N m."""
        dead, full = self._settings.friction_dead_radps, self._settings.friction_full_radps
        ramp = np.clip((np.abs(qd_radps) - dead) / (full - dead), 0.0, 1.0)
        return np.asarray(self._friction_nm * np.sign(qd_radps) * ramp)

    def _damping_per_s(self, too_low: Array, too_high: Array, qd_radps: Array) -> Array:
        """Return c, shape (...)."""
        least, most = self._settings.damping_per_s, self._settings.damping_most_per_s
        deeper = np.where(qd_radps > 0.0, too_high, np.where(qd_radps < 0.0, too_low, 0.0))
        used = np.maximum(np.abs(qd_radps) / self._speed_limit_radps, deeper / self._width_rad)
        return np.asarray(least + (most - least) * np.minimum(used.max(axis=-1), 1.0) ** 2)
