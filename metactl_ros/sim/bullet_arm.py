# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""The same arm in PyBullet, 1 kHz sub-steps, friction with memory injected at every one of them.

PyBullet drives joints, damps links and forgets torques by default. Each of the calls in `_load`
switches one of these habits off; without any one of them the arm is another arm.
"""

from pathlib import Path
import tempfile
from typing import Any

import numpy as np

from metactl_ros.dynamics.friction import Friction, friction_of_joints
from metactl_ros.dynamics.two_link import Arm
from metactl_ros.errors import MissingDependency, PlantError
from metactl_ros.signals import ArmState, Array, period_ns_of
from metactl_ros.sim.described_arm import described_two_link, DescribedArm
from metactl_ros.sim.plant import check_conditions, PlantStart, substeps_per_period

try:
    import pybullet
except ImportError as error:
    raise MissingDependency(
        "the PyBullet plant needs pybullet; run: pip install 'metactl_ros[sim]', from Python 3.12 "
        'on pip install pybullet and a compiler, or use the rk4 plant.'
    ) from error

NO_INERTIA = [0.0, 0.0, 0.0]


class BulletArm:
    """One arm in a physics client of its own; arrays have shape (n,)."""

    def __init__(
        self, arm: Arm | DescribedArm, friction: Friction, rate_hz: float, substep_hz: float
    ) -> None:
        described = described_two_link(arm) if isinstance(arm, Arm) else arm
        self._num_substeps = substeps_per_period(rate_hz, substep_hz)
        self._dt_s = 1.0 / substep_hz
        self._client = pybullet.connect(pybullet.DIRECT)
        self._here = {'physicsClientId': self._client}
        self._body = load_body(self._client, described)
        # Links are numbered as the joints that carry them, and fixed joints count.
        numbers = {name: number for number, name, _ in _joints_of(self._client, self._body)}
        links = {link: number for number, _, link in _joints_of(self._client, self._body)}
        self._joints = [numbers[name] for name in described.joint_names]
        self._tip = links[described.payload_link]
        self.set_friction(friction)
        self._period_ns = period_ns_of(rate_hz)
        self._stamp_ns = 0
        self._memory_nm = [0.0] * len(self._joints)
        self._tau_z_s, self._payload_kg = 1.0, 0.0
        pybullet.setGravity(*described.gravity_mps2, **self._here)
        pybullet.setTimeStep(self._dt_s, **self._here)

    def reset(self, start: PlantStart) -> ArmState:
        """Begin a new run at time zero; `start` must describe a single arm."""
        if np.shape(start.q_rad) != (len(self._joints),):
            raise PlantError(
                f'BulletArm.reset: expected one arm, shape ({len(self._joints)},), found '
                f'{np.shape(start.q_rad)}; reset once per arm, or use the RK4 plant for batches.'
            )
        self._stamp_ns = 0
        self._memory_nm = [float(z) for z in start.memory_nm]
        self.set_conditions(start.payload_kg, start.tau_z_s)
        for joint, *motion in zip(
            self._joints, start.q_rad.tolist(), start.qd_radps.tolist(), strict=True
        ):
            pybullet.resetJointState(self._body, joint, *motion, **self._here)
        return self._state(self._joint_states())

    def step(self, effort_nm: Array) -> ArmState:
        """Hold the efforts for one control period; friction follows the motion within it."""
        if np.shape(effort_nm) != (len(self._joints),):
            raise PlantError(
                f'BulletArm.step: expected efforts of shape ({len(self._joints)},), '
                f'found {np.shape(effort_nm)}.'
            )
        efforts = effort_nm.tolist()  # plain floats: the loop below runs a thousand times a second
        motion = self._joint_states()
        for _ in range(self._num_substeps):
            before = motion
            torques = [
                effort - friction.torque(joint[1], memory)
                for friction, effort, joint, memory in zip(
                    self._frictions, efforts, before, self._memory_nm, strict=True
                )
            ]
            pybullet.setJointMotorControlArray(  # a torque lasts for one sub-step only
                self._body, self._joints, pybullet.TORQUE_CONTROL, forces=torques, **self._here
            )
            pybullet.stepSimulation(**self._here)
            motion = self._joint_states()
            self._memory_nm = [
                friction.memory_after(0.5 * (old[1] + new[1]), memory, self._tau_z_s, self._dt_s)
                for friction, old, new, memory in zip(
                    self._frictions, before, motion, self._memory_nm, strict=True
                )
            ]
        self._stamp_ns += self._period_ns
        return self._state(motion)

    def set_conditions(self, payload_kg: Array, tau_z_s: Array) -> None:
        """Change payload and memory horizon, both plain numbers, from the next step on."""
        check_conditions(payload_kg, tau_z_s)
        self._tau_z_s, self._payload_kg = float(tau_z_s), float(payload_kg)
        loaded = {'mass': self._payload_kg, 'localInertiaDiagonal': NO_INERTIA}
        pybullet.changeDynamics(self._body, self._tip, **loaded, **self._here)

    def set_friction(self, friction: Friction) -> None:
        """Change the friction constants from the next step on."""
        self._frictions = friction_of_joints(friction, len(self._joints))

    def close(self) -> None:
        """Disconnect from the physics server; closing twice is harmless."""
        if self._client >= 0:
            pybullet.disconnect(**self._here)
            self._client = -1

    @property
    def true_q_rad(self) -> Array:
        """Where the arm is now, shape (n,)."""
        return self._state(self._joint_states()).q_rad

    @property
    def memory_nm(self) -> Array:
        """The true friction memory z, shape (n,)."""
        return np.array(self._memory_nm)

    def _joint_states(self) -> Any:
        """Return (position, velocity, ...) of each joint."""
        return pybullet.getJointStates(self._body, self._joints, **self._here)

    def _state(self, motion: Any) -> ArmState:
        q, qd = (np.array([joint[k] for joint in motion]) for k in (0, 1))
        return ArmState(self._stamp_ns, q, qd)


def load_body(client: int, arm: DescribedArm) -> int:
    """Load an arm into a physics client, free of every default force, and return its body id."""
    here, as_stated = {'physicsClientId': client}, pybullet.URDF_USE_INERTIA_FROM_FILE
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / 'arm.urdf'
        path.write_text(arm.urdf, encoding='utf-8')
        body = pybullet.loadURDF(str(path), useFixedBase=True, flags=as_stated, **here)
    joints = [number for number, _, _ in _joints_of(client, body)]
    undamped = dict.fromkeys(('linearDamping', 'angularDamping', 'jointDamping'), 0.0)
    for link in (-1, *joints):
        pybullet.changeDynamics(body, link, **undamped, **here)
    # A velocity motor holds every joint unless told not to.
    forces, motor = [0.0] * len(joints), pybullet.VELOCITY_CONTROL
    pybullet.setJointMotorControlArray(body, joints, motor, forces=forces, **here)
    return int(body)


def _joints_of(client: int, body: int) -> list[tuple[int, str, str]]:
    """Return (number, name, link that it carries) of every joint, those that are fixed too."""
    count = pybullet.getNumJoints(body, physicsClientId=client)
    infos = [pybullet.getJointInfo(body, i, physicsClientId=client) for i in range(count)]
    return [(int(info[0]), info[1].decode(), info[12].decode()) for info in infos]
