# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""The rigid body of an arm that a URDF describes, computed by Pinocchio.

    M(q, p) = M_links(q) + diag(rotors) + p M_1(q), and so C and g: linear in the payload p

Two models are kept, of the links and of one kilogram at the payload frame without any link. So a
body with another payload costs nothing to make, as control loops do in every tick. Pinocchio
computes one arm at a time; a batch is a loop over its rows.

A body has the scratch space of its arm: one thread at a time may use an arm.
"""

from collections.abc import Callable
from copy import copy
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from metactl_ros.config import stated
from metactl_ros.dynamics.bounds import (
    effective_inertias,
    least_inertia,
    workspace_postures,
    Worst,
)
from metactl_ros.dynamics.reduced_arm import ReducedArm, rounded
from metactl_ros.dynamics.urdf_arm import CheckedArm
from metactl_ros.errors import ConfigError, MissingDependency
from metactl_ros.signals import Array

try:
    import pinocchio
    from pinocchio import (
        aba,
        computeCoriolisMatrix,
        computeGeneralizedGravity,
        crba,
        nonLinearEffects,
    )
except ImportError as error:  # also if it is the plug-in of nose that has that name on PyPI
    raise MissingDependency(
        "an arm from a URDF needs Pinocchio; run: pip install 'metactl_ros[urdf]', or install "
        'ros-jazzy-pinocchio (the package pinocchio of PyPI is another one)'
    ) from error

PAYLOAD_SAMPLES = 5
LEAST_INERTIA_KGM2 = 1e-6
"""An arm that is lighter than that somewhere has a joint that moves nothing."""


class _Model(NamedTuple):
    """A model of Pinocchio, and its scratch space."""

    model: Any
    data: Any


class UrdfArm:
    """An arm with the joints and limits of its arm file, and the rigid body of its URDF."""

    def __init__(self, arm: CheckedArm) -> None:
        self.checked = arm
        """What it was made from."""
        self.joint_names = arm.file.joints
        """Names in `joint_states`, in the order of every joint axis."""
        self.limits = arm.limits
        """What the hardware bears."""
        self.rated_payload_kg = arm.file.rated_payload_kg
        """The heaviest payload."""
        self._links, self._one_kg = models_of(arm)
        self._lightest = least_inertia(self)
        if self._lightest.value < LEAST_INERTIA_KGM2:
            raise ConfigError(
                f'{arm.where}: expected an inertia of at least {LEAST_INERTIA_KGM2} kg m^2 in '
                f'every direction, found {self._lightest.value:.2g} at q = '
                f'{np.round(self._lightest.q_rad, 3).tolist()} rad; give the links behind the '
                'last joints their inertias, or the joints their rotors.'
            )
        self.remarks = tuple(_remarks(arm, self._lightest.value))
        """What whoever uses the arm should be told, in sentences."""

    def body(self, payload_kg: float | Array = 0.0) -> 'UrdfBody':
        """Return the rigid body with a point mass at the payload frame, kg, of shape (...)."""
        return UrdfBody(self._links, self._one_kg, payload_kg)

    def body_per_kg(self) -> 'UrdfBody':
        """Return what one kilogram at the payload frame adds to M, C and g."""
        return UrdfBody(None, self._one_kg, 1.0)

    def smallest_inertia_kgm2(self) -> float:
        """Return the least eigenvalue of M that was found over all postures and payloads.

        A payload adds a positive matrix to M, so it is found without one.
        """
        return self._lightest.value

    def sample_inertias(self, payload_max_kg: float = 0.0) -> Array:
        """Return M all over the workspace, with payloads from none to the heaviest, (S, n, n).

        The postures in which a joint feels least, and the lightest of all, are among them.
        """
        postures = self.postures
        bare = self.body().inertia_matrix(postures)
        if not payload_max_kg:
            return bare
        per_kg = self.body_per_kg().inertia_matrix(postures)
        payloads_kg = np.linspace(0.0, payload_max_kg, PAYLOAD_SAMPLES)
        return np.concatenate([bare + kg * per_kg for kg in payloads_kg])

    def largest_mobility(self) -> Array:
        """Return the largest (M^-1)_ii found over all postures, 1 / (kg m^2), shape (n,)."""
        return np.array([1.0 / at.value for at in self._effective])

    def heaviest(self) -> tuple[Array, Array]:
        """Return the largest |M_ij|, (n, n), and |g_i|, (n,), found over all postures."""
        body, q = self.body(), self.postures
        mass, gravity = body.inertia_matrix(q), body.at(q, np.zeros_like(q)).gravity
        return np.asarray(np.abs(mass).max(axis=0)), np.asarray(np.abs(gravity).max(axis=0))

    def renamed(self, joint_names: tuple[str, ...]) -> 'UrdfArm':
        """Return the same arm with other names of its joints."""
        arm = copy(self)
        arm.joint_names = joint_names
        return arm

    def statement(self) -> object:
        """Return arm file and limits as plain values, and the URDF in one text."""
        arm = self.checked
        return {'file': stated(arm.file), 'limits': stated(arm.limits), 'urdf': arm.urdf}

    def reduced(self) -> ReducedArm:
        """Return what decides how it moves, whatever its file looks like."""
        model, data = self._links
        pinocchio.computeJointJacobians(model, data, np.zeros(model.nv))
        links = [data.oMi[joint].act(model.inertias[joint]) for joint in range(1, model.njoints)]
        kilogram = self._one_kg.model.inertias
        masses = [kilogram[joint].mass for joint in range(1, model.njoints)]
        holder = int(np.argmax(masses))
        payload_m = data.oMi[holder + 1].act(kilogram[holder + 1].lever)
        return ReducedArm(
            joint_names=self.joint_names,
            limits=self.limits,
            screws=tuple(rounded(column) for column in data.J.T),
            link_inertias=tuple(rounded(link.toDynamicParameters()) for link in links),
            rotor_inertia_kgm2=self.checked.file.rotor_inertia_kgm2,
            gravity_mps2=self.checked.file.gravity_mps2,
            payload_joint=holder,
            payload_at_m=rounded(payload_m),
            rated_payload_kg=self.rated_payload_kg,
        )

    def simulated(self, link_mass_factor: float = 1.0) -> 'SimulatedBody':
        """Return the arm for a simulation, its links heavier by a factor than its model has them.

        It has models of its own: simulation and controller may use them in different threads.
        """
        return SimulatedBody(self.checked, link_mass_factor)

    @cached_property
    def postures(self) -> Array:
        """All over the joint ranges, and where the arm feels lightest, rad, shape (S, n)."""
        extremes = [self._lightest, *self._effective]
        return np.vstack([workspace_postures(self.limits), *(at.q_rad for at in extremes)])

    @cached_property
    def _effective(self) -> list[Worst]:
        return effective_inertias(self)


class UrdfBody:
    """The links of an arm, or none, and a payload of shape (...) in kg."""

    def __init__(self, links: _Model | None, one_kg: _Model, payload_kg: float | Array) -> None:
        self._links, self._one_kg = links, one_kg
        self._payload_kg = np.asarray(payload_kg, dtype=np.float64)
        self.num_joints: int = one_kg.model.nv
        """N."""

    def at(self, q_rad: Array, qd_radps: Array) -> 'UrdfPosture':
        """Return the posture and motion of shape (..., n)."""
        return UrdfPosture(self, q_rad, qd_radps)

    def inertia_matrix(self, q_rad: Array) -> Array:
        """Return M(q), symmetric positive definite, kg m^2, shape (..., n, n)."""
        return self.evaluate(_inertia, q_rad, q_rad)

    def evaluate(
        self, term: Callable[[Any, Any, Array, Array], Array], q_rad: Array, qd_radps: Array
    ) -> Array:
        """Return a term that is linear in the payload, at each row of a batch.

        Args:
            term: From model, scratch space, q and qd of one arm to a vector or matrix.
            q_rad: Joint positions, shape (..., n).
            qd_radps: Joint velocities, shape (..., n).

        Returns:
            Shape (..., n) or (..., n, n); the leading axes are those of q, qd and payload.
        """
        if q_rad.ndim == qd_radps.ndim == 1 and not self._payload_kg.ndim:
            return self._evaluate_one(term, q_rad, qd_radps, float(self._payload_kg))
        shape = np.broadcast_shapes(q_rad.shape[:-1], qd_radps.shape[:-1], self._payload_kg.shape)
        rows = zip(
            np.broadcast_to(q_rad, (*shape, self.num_joints)).reshape(-1, self.num_joints),
            np.broadcast_to(qd_radps, (*shape, self.num_joints)).reshape(-1, self.num_joints),
            np.broadcast_to(self._payload_kg, shape).reshape(-1).tolist(),
            strict=True,
        )
        values = [self._evaluate_one(term, q, qd, payload) for q, qd, payload in rows]
        if not values:  # an empty batch has the shape of a term all the same
            one = np.zeros(self.num_joints)
            return np.empty((*shape, *self._evaluate_one(term, one, one, 0.0).shape))
        return np.reshape(values, (*shape, *values[0].shape))

    def _evaluate_one(
        self,
        term: Callable[[Any, Any, Array, Array], Array],
        q_rad: Array,
        qd_radps: Array,
        payload_kg: float,
    ) -> Array:
        if self._links is None:
            return payload_kg * term(*self._one_kg, q_rad, qd_radps)
        of_links = term(*self._links, q_rad, qd_radps)
        if payload_kg == 0.0:
            return of_links
        return of_links + payload_kg * term(*self._one_kg, q_rad, qd_radps)


class UrdfPosture:
    """The arm at (q, qd); each term is computed when it is first asked for, and kept."""

    def __init__(self, body: UrdfBody, q_rad: Array, qd_radps: Array) -> None:
        self._body, self._q, self._qd = body, q_rad, qd_radps

    @cached_property
    def bias(self) -> Array:
        """C(q, qd) qd + g(q), N m, shape (..., n)."""
        return self._body.evaluate(_bias, self._q, self._qd)

    @cached_property
    def gravity(self) -> Array:
        """g(q), the torque that holds the arm still, N m, shape (..., n)."""
        return self._body.evaluate(_gravity, self._q, self._qd)

    @property
    def diagonal(self) -> Array:
        """The diagonal of M(q), kg m^2, shape (..., n)."""
        return np.array(np.diagonal(self._inertia, axis1=-2, axis2=-1))

    @property
    def momentum_flow(self) -> Array:
        """C(q, qd)^T qd, N m, shape (..., n)."""
        return _product(np.swapaxes(self._coriolis, -1, -2), self._qd)

    def apply(self, x: Array) -> Array:
        """Return M(q) x, shape (..., n)."""
        return _product(self._inertia, x)

    @property
    def effective_inertia(self) -> Array:
        """1 / (M^-1)_ii, kg m^2, shape (..., n)."""
        return np.asarray(1.0 / np.diagonal(self._inverse, axis1=-2, axis2=-1))

    def solve(self, torque_nm: Array, armature_kgm2: Array | None = None) -> Array:
        """Return (M(q) + diag(armature))^-1 tau, rad / s^2, shape (..., n)."""
        if armature_kgm2 is None:
            return _product(self._inverse, torque_nm)
        added = armature_kgm2[..., np.newaxis] * np.eye(self._body.num_joints)
        return _product(_inverse(self._inertia + added), torque_nm)

    def coriolis(self, v_radps: Array) -> Array:
        """Return C(q, qd) v with C in Christoffel form, N m, shape (..., n)."""
        return _product(self._coriolis, v_radps)

    @cached_property
    def _inertia(self) -> Array:
        return self._body.evaluate(_inertia, self._q, self._qd)

    @cached_property
    def _inverse(self) -> Array:
        # Kept, because a tick solves several times; as exact as a factorisation to the eye of a
        # controller: errors are of the size of the condition, some thousands, times rounding.
        return _inverse(self._inertia)

    @cached_property
    def _coriolis(self) -> Array:
        return self._body.evaluate(_coriolis, self._q, self._qd)


class SimulatedBody:
    """One arm for a simulation: its acceleration by the articulated-body algorithm.

    It is another algorithm than that of the controller's model, and four times as fast.
    """

    def __init__(self, arm: CheckedArm, link_mass_factor: float) -> None:
        links, one_kg = models_of(arm)
        self._model, self._data = links
        joints = range(self._model.njoints)
        scaled = [_times(link_mass_factor, self._model.inertias[joint]) for joint in joints]
        self._of_links, self._kilogram = scaled, list(one_kg.model.inertias)
        self._rotors = np.array(arm.file.rotor_inertia_kgm2)
        self._payload_kg: float | None = None

    def accelerate(
        self, q_rad: Array, qd_radps: Array, torque_nm: Array, added_kgm2: Array, payload_kg: float
    ) -> Array:
        """Return (M(q) + diag(added))^-1 (tau - C qd - g) of one arm, rad / s^2, shape (n,)."""
        if payload_kg != self._payload_kg:
            self._load(payload_kg)
        self._model.armature = self._rotors + added_kgm2
        value: Array = aba(self._model, self._data, q_rad, qd_radps, torque_nm)
        return value.copy()

    def _load(self, payload_kg: float) -> None:
        for joint, (link, kilogram) in enumerate(zip(self._of_links, self._kilogram, strict=True)):
            carried = _times(payload_kg, kilogram)
            self._model.inertias[joint] = link + carried if carried.mass > 0.0 else link
        self._payload_kg = payload_kg


def _times(factor: float, inertia: Any) -> Any:
    """Return an inertia with all of its mass multiplied."""
    return pinocchio.Inertia(factor * inertia.mass, inertia.lever, factor * inertia.inertia)


def _inertia(model: Any, data: Any, q_rad: Array, _qd_radps: Array) -> Array:
    value: Array = crba(model, data, q_rad)
    return value


def _bias(model: Any, data: Any, q_rad: Array, qd_radps: Array) -> Array:
    value: Array = nonLinearEffects(model, data, q_rad, qd_radps)
    return value


def _gravity(model: Any, data: Any, q_rad: Array, _qd_radps: Array) -> Array:
    value: Array = computeGeneralizedGravity(model, data, q_rad)
    return value


def _coriolis(model: Any, data: Any, q_rad: Array, qd_radps: Array) -> Array:
    value: Array = computeCoriolisMatrix(model, data, q_rad, qd_radps)
    return value


def _inverse(matrix: Array) -> Array:
    return np.asarray(np.linalg.inv(matrix), dtype=np.float64)


def _product(matrix: Array, vector: Array) -> Array:
    """Return matrix times vector: (..., n, n) and (..., n) to (..., n)."""
    if vector.ndim == 1 and matrix.ndim == 2:
        return np.asarray(matrix.dot(vector))
    return np.asarray((matrix @ vector[..., np.newaxis])[..., 0])


def models_of(arm: CheckedArm) -> tuple[_Model, _Model]:
    """Return the model of the links, and that of one kilogram at the payload frame."""
    links = _reduced_model(arm)
    one_kg = _payload_model(links, arm)
    return _Model(links, links.createData()), _Model(one_kg, one_kg.createData())


def _reduced_model(arm: CheckedArm) -> Any:
    """Return the model of the controlled joints; what hangs on locked ones is part of links."""
    try:
        whole = pinocchio.buildModelFromXML(arm.urdf)
    except (ValueError, RuntimeError) as error:
        raise ConfigError(f'{arm.where}: Pinocchio refuses it ({error}); correct it.') from None
    q, locked = pinocchio.neutral(whole), []
    for entry in arm.file.locked:
        joint = whole.getJointId(entry.joint)
        q[whole.joints[joint].idx_q] = entry.position
        locked.append(joint)
    model = pinocchio.buildReducedModel(whole, locked, q)
    assert tuple(model.names)[1:] == arm.file.joints, 'a chain has one order'
    model.armature = np.array(arm.file.rotor_inertia_kgm2)
    model.gravity.linear = np.array(arm.file.gravity_mps2)
    return model


def _payload_model(model: Any, arm: CheckedArm) -> Any:
    """Return a model with the joints of another one, and one kilogram at the payload frame."""
    one_kg = pinocchio.Model(model)
    for joint in range(one_kg.njoints):
        one_kg.inertias[joint] = pinocchio.Inertia.Zero()
    frame = model.frames[model.getFrameId(arm.file.payload_frame, pinocchio.BODY)]
    lever = frame.placement.act(np.array(arm.file.payload_offset_m))
    one_kg.inertias[frame.parentJoint] = pinocchio.Inertia(1.0, lever, np.zeros((3, 3)))
    one_kg.armature = np.zeros(model.nv)
    return one_kg


def _remarks(arm: CheckedArm, lightest_kgm2: float) -> list[str]:
    pairs = zip(arm.file.joints, arm.file.rotor_inertia_kgm2, strict=True)
    without = [name for name, rotor in pairs if rotor == 0.0]
    if not without:
        return []
    return [
        f'{arm.where}: rotor_inertia_kgm2 is zero for {", ".join(without)}; the arm is then as '
        f'light as {lightest_kgm2:.2g} kg m^2 in the model. If these joints have gears, the true '
        'arm is heavier, and the controller tracks badly or chatters.'
    ]
