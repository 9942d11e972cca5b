# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""The paper's simulator: one explicit Runge-Kutta step per control period, any number of arms."""

from dataclasses import replace

import numpy as np

from metactl_ros.config import require_joints
from metactl_ros.dynamics.friction import Friction, friction_torque, memory_rate
from metactl_ros.dynamics.two_link import Arm
from metactl_ros.errors import PlantError
from metactl_ros.signals import ArmState, Array, period_ns_of, seconds
from metactl_ros.sim.plant import check_conditions, PlantStart


class Rk4Arm:
    """A batch of arms integrated with RK4; the integration step is the control period."""

    def __init__(
        self,
        arm: Arm,
        friction: Friction,
        rate_hz: float,
        payload_scale_per_kg: float | None = None,
    ) -> None:
        self._arm = arm
        self._payload_scale_per_kg = payload_scale_per_kg
        self.set_friction(friction)
        self._period_ns = period_ns_of(rate_hz)
        self._stamp_ns = 0
        self._motion = np.zeros((3, 0, 0))

    def reset(self, start: PlantStart) -> ArmState:
        """Begin a new run at time zero; the batch shape may differ from the last run's."""
        self._stamp_ns = 0
        motion = np.stack([start.q_rad, start.qd_radps, start.memory_nm])
        self._motion = motion  # (3, ..., n)
        self.set_conditions(start.payload_kg, start.tau_z_s)
        return self._state()

    def step(self, effort_nm: Array) -> ArmState:
        """Hold the efforts for one period: x <- x + dt/6 (k1 + 2 k2 + 2 k3 + k4)."""
        expected = self._motion.shape[1:]
        if np.shape(effort_nm) != expected:
            raise PlantError(
                f'Rk4Arm.step: expected efforts of shape {expected}, found {np.shape(effort_nm)}.'
            )
        dt, x = seconds(self._period_ns), self._motion
        k1 = self._rate(x, effort_nm)
        k2 = self._rate(x + 0.5 * dt * k1, effort_nm)
        k3 = self._rate(x + 0.5 * dt * k2, effort_nm)
        k4 = self._rate(x + dt * k3, effort_nm)
        self._motion = x + (dt / 6.0) * (k1 + 2.0 * (k2 + k3) + k4)
        self._stamp_ns += self._period_ns
        return self._state()

    def set_conditions(self, payload_kg: Array, tau_z_s: Array) -> None:
        """Change payload and memory horizon, shape (...), from the next step on."""
        check_conditions(payload_kg, tau_z_s)
        payload, scale = np.asarray(payload_kg), self._payload_scale_per_kg
        if scale is None:  # a mass at the tip
            self._body = self._arm.body(payload)
        else:  # a factor of M and C
            bare, factor = self._arm.body(), 1.0 + scale * payload
            names = ('a1_kgm2', 'a2_kgm2', 'a3_kgm2')
            self._body = replace(bare, **{name: factor * getattr(bare, name) for name in names})
        self._tau_z_s = np.asarray(tau_z_s)[..., np.newaxis]

    def set_friction(self, friction: Friction) -> None:
        """Change the friction constants from the next step on."""
        require_joints(friction, len(self._arm.joint_names))
        self._friction = friction

    def close(self) -> None:
        """Do nothing: this plant holds only memory."""

    @property
    def true_q_rad(self) -> Array:
        """Where the arm is now, shape (..., n)."""
        return self._state().q_rad

    @property
    def true_state(self) -> ArmState:
        """Where the arm is and how it moves, whatever its sensors say."""
        return self._state()

    def acceleration(self, effort_nm: Array) -> Array:
        """Return what an effort gives the arm now, rad / s^2, shape (..., n)."""
        rate: Array = self._rate(self._motion, effort_nm)[1]
        return rate

    @property
    def memory_nm(self) -> Array:
        """The true friction memory z, shape (..., n)."""
        memory: Array = self._motion[2].copy()
        return memory

    def _state(self) -> ArmState:
        q, qd = self._motion[:2].copy()
        return ArmState(self._stamp_ns, q, qd)

    def _rate(self, motion: Array, effort_nm: Array) -> Array:
        """Return d/dt of (q, qd, z), shape (3, ..., n)."""
        q, qd, z = motion
        rate = np.empty_like(motion)
        rate[0] = qd
        net = effort_nm - friction_torque(self._friction, qd, z)
        rate[1] = self._body.forward_dynamics(q, qd, net)
        rate[2] = memory_rate(self._friction, qd, z, self._tau_z_s)
        return rate
