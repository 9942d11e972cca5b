# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
r"""Arms with any number of joints, 1 kHz sub-steps, friction with memory implicit in velocity.

    (M(q, p) + dt D) a = tau - F(qd, z) - C qd - g        D = dF/dqd, where it is above 0
    qd <- qd + dt a,   q <- q + dt qd

Friction at rest is a damper of F_s / eps + sigma. On a light wrist an explicit step of 1 ms turns
such a velocity round and chatters; with the slope D as armature the step never does, however
light the joint. A batch is a loop over its arms.
"""

import numpy as np

from metactl_ros.config import joint_array, require_joints
from metactl_ros.dynamics.friction import Friction, friction_slope, friction_torque
from metactl_ros.dynamics.urdf_arm import Accelerated
from metactl_ros.errors import PlantError
from metactl_ros.signals import ArmState, Array, period_ns_of
from metactl_ros.sim.plant import check_conditions, PlantStart, substeps_per_period


class ImplicitArm:
    """A batch of arms, or one; arrays have shape (..., n)."""

    def __init__(
        self,
        body: Accelerated,
        num_joints: int,
        friction: Friction,
        rate_hz: float,
        substep_hz: float,
    ) -> None:
        self._body, self._num_joints = body, num_joints
        self._num_substeps = substeps_per_period(rate_hz, substep_hz)
        self._dt_s = 1.0 / substep_hz
        self._period_ns = period_ns_of(rate_hz)
        self._stamp_ns = 0
        self._q = self._qd = self._memory = np.zeros((0, num_joints))
        self.set_friction(friction)

    def reset(self, start: PlantStart) -> ArmState:
        """Begin a new run at time zero; the batch shape may differ from the last run's."""
        if np.shape(start.q_rad)[-1:] != (self._num_joints,):
            raise PlantError(
                f'ImplicitArm.reset: expected {self._num_joints} joints, found positions of shape '
                f'{np.shape(start.q_rad)}; draw the episode from the task of this arm.'
            )
        self._stamp_ns = 0
        self._q, self._qd = start.q_rad.copy(), start.qd_radps.copy()
        self._memory = start.memory_nm.copy()
        self.set_conditions(start.payload_kg, start.tau_z_s)
        return self._state()

    def step(self, effort_nm: Array) -> ArmState:
        """Hold the efforts for one control period; friction follows the motion within it."""
        if np.shape(effort_nm) != self._q.shape:
            raise PlantError(
                f'ImplicitArm.step: expected efforts of shape {self._q.shape}, found '
                f'{np.shape(effort_nm)}.'
            )
        dt_s = self._dt_s
        for _ in range(self._num_substeps):
            before = self._qd
            torque = effort_nm - friction_torque(self._friction, before, self._memory)
            added = dt_s * np.maximum(friction_slope(self._friction, before), 0.0)
            self._qd = before + dt_s * self._accelerate(torque, added)
            self._q = self._q + dt_s * self._qd
            settled = self._charge_s * (0.5 * (before + self._qd))
            self._memory = settled + (self._memory - settled) * self._fade
        self._stamp_ns += self._period_ns
        return self._state()

    def set_conditions(self, payload_kg: Array, tau_z_s: Array) -> None:
        """Change payload and memory horizon, shape (...), from the next step on."""
        check_conditions(payload_kg, tau_z_s)
        lead = self._q.shape[:-1]
        self._payload_kg = np.broadcast_to(payload_kg, lead).ravel().tolist()
        self._tau_z_s = np.asarray(tau_z_s, dtype=np.float64)[..., np.newaxis]
        self._prepare()

    def set_friction(self, friction: Friction) -> None:
        """Change the friction constants from the next step on."""
        require_joints(friction, self._num_joints)
        self._friction = friction
        if self._stamp_ns or self._q.size:
            self._prepare()

    def close(self) -> None:
        """Do nothing: this plant holds only memory."""

    @property
    def true_q_rad(self) -> Array:
        """Where the arm is now, shape (..., n)."""
        return self._q.copy()

    @property
    def memory_nm(self) -> Array:
        """The true friction memory z, shape (..., n)."""
        return self._memory.copy()

    def _prepare(self) -> None:
        """Compute what a sub-step makes of the memory: z settles at lambda_z tau_z qd."""
        self._charge_s = joint_array(self._friction.memory_gain_nmprad) * self._tau_z_s
        self._fade = np.exp(-self._dt_s / self._tau_z_s)

    def _accelerate(self, torque_nm: Array, added_kgm2: Array) -> Array:
        if self._q.ndim == 1:
            (payload_kg,) = self._payload_kg
            arguments = (self._q, self._qd, torque_nm, added_kgm2)
            return self._body.accelerate(*arguments, payload_kg)
        flat = [
            np.reshape(x, (-1, self._num_joints))
            for x in (self._q, self._qd, torque_nm, added_kgm2)
        ]
        rows = [self._body.accelerate(*row) for row in zip(*flat, self._payload_kg, strict=True)]
        return np.reshape(rows, self._q.shape)

    def _state(self) -> ArmState:
        return ArmState(self._stamp_ns, self._q.copy(), self._qd.copy())
