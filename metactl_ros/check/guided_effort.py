# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
r"""The torque of an arm that is guided by hand, written a second time.

    tau = g(q, p) - sum over joints of [ walls ] + share F (.) ramp(|qd|) sign(qd) - c M(q) qd

No Lyapunov condition speaks of such a tick: nothing is followed, so V is zero whatever the arm
does. `guided_ticks` are those that count as not certified; that their torque is this one, within
its limits and in no mode too mild, is checked as of every other tick.
"""

from typing import NamedTuple, TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from metactl_ros.check.matrix_law import product, Sized
from metactl_ros.control.modes import Mode
from metactl_ros.signals import Array

if TYPE_CHECKING:
    from metactl_ros.bag.tick_log import TickLog
    from metactl_ros.check.chain_dynamics import ChainDynamics
    from metactl_ros.check.matrix_law import Chain
    from metactl_ros.control.settings import ControllerSettings
    from metactl_ros.dynamics.rigid_body import ArmModel


class Guided(NamedTuple):
    """What was to be sent on the ticks that were guided, zero on all others."""

    ticks: NDArray[np.bool_]
    """Which were, shape (T,)."""
    effort: Sized
    """Before limits, shape (T, n)."""
    gravity_nm: Array
    """Shape (T, n)."""

    def in_place_of(self, effort: Sized, hold_nm: Array) -> tuple[Sized, Array]:
        """Return effort and hold of the law, shape (T, n), with these where the arm was guided."""
        here = self.ticks[:, np.newaxis]
        value = np.where(here, self.effort.value, effort.value)
        size = np.where(here, self.effort.size, effort.size)
        return Sized(value, size), np.where(here, self.gravity_nm, hold_nm)


def guided_ticks(log: 'TickLog', controller: 'ControllerSettings') -> NDArray[np.bool_]:
    """Return the ticks on which the arm was guided by hand, shape (T,)."""
    is_guided = np.full(len(log.now_ns), controller.guiding is not None)
    return np.asarray(is_guided & (log.shield['mode'] < float(Mode.STOP)))


def fastest_radps(arm: 'ArmModel', controller: 'ControllerSettings') -> Array:
    """Return the speed above which no joint is within its limits, shape (n,)."""
    fastest = np.array(arm.limits.velocity_radps)
    if controller.guiding is None:
        return fastest
    return np.asarray(np.minimum(fastest, controller.guiding.speed_limit_radps))


def guided_effort(
    log: 'TickLog',
    arm: 'ArmModel',
    controller: 'ControllerSettings',
    chain: 'Chain | ChainDynamics',
) -> Guided:
    """Return the efforts that guide the arm by hand, from what the log says of each tick."""
    ticks, guiding = guided_ticks(log, controller), controller.guiding
    q, qd = log.q_rad, log.qd_radps
    nothing = np.zeros_like(q)
    if guiding is None:
        return Guided(ticks, Sized(nothing, nothing), nothing)
    gravity = chain.gravity_nm(q, log.shield['payload_estimate_kg'])
    speed, width = np.abs(qd), np.broadcast_to(guiding.wall_width_rad, q.shape)
    # Of how much of a wall is used up: 1 at the joint limit.
    above = 1.0 - (arm.limits.upper_rad - q) / width
    below = 1.0 - (q - arm.limits.lower_rad) / width
    full = guiding.wall_effort_share * np.array(arm.limits.effort_nm)
    wall = full * (np.where(below > 0.0, below, 0.0) - np.where(above > 0.0, above, 0.0))
    dead = guiding.friction_dead_radps
    ramp = np.minimum((speed - dead) / (guiding.friction_full_radps - dead), 1.0)
    most = guiding.friction_share * np.broadcast_to(guiding.coulomb_nm, q.shape)
    friction = np.where(speed > dead, most * ramp * np.sign(qd), 0.0)
    ahead = np.where(qd > 0.0, above, np.where(qd < 0.0, below, 0.0))
    used = np.hstack([speed / guiding.speed_limit_radps, ahead]).max(axis=1)
    rise = guiding.damping_most_per_s - guiding.damping_per_s
    damping = guiding.damping_per_s + rise * np.clip(used, 0.0, 1.0) ** 2
    braking = product('tjk,tk->tj', chain.mass_matrix(q), damping[:, np.newaxis] * qd)
    # A wall is the difference of two positions: of their size is its rounding.
    span = full / width * (np.abs(q) + np.maximum(-arm.limits.lower_rad, arm.limits.upper_rad))
    size = np.abs(gravity) + np.abs(friction) + braking.size + span
    effort = Sized(gravity + friction + wall - braking.value, size)
    return Guided(ticks, effort, gravity)
