# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
r"""The rigid body of an arm from its URDF written a second time, for checking the first.

Nothing here is shared with the code that drives the arm but the settings: the URDF is read again,
without Pinocchio, and no recursion of its kind is used. Every link is a body of its own, those on
locked and fixed joints, too; all is written in the frame of the base, one row per tick:

    M = sum_b [ m J_v^T J_v + J_w^T I J_w ] + diag(rotors)
    tau = sum_b [ J_v^T m (a - gravity) + J_w^T (I alpha + w x I w) ] + rotors qdd

J_v and J_w, from joint rates to the motion of a body, follow from where the axes are; w, alpha and
a, its velocity and accelerations, are summed joint by joint on the way from the base.
"""

from typing import NamedTuple, TYPE_CHECKING
from xml.etree import ElementTree

import numpy as np

from metactl_ros.signals import Array

if TYPE_CHECKING:
    from metactl_ros.dynamics.urdf_arm import ArmFile


class _Joint(NamedTuple):
    """A joint on the way to a link."""

    name: str
    kind: str
    turn: Array
    """From its own frame to that of its parent, shape (3, 3)."""
    offset_m: Array
    """Shape (3,)."""
    axis: Array
    """Shape (3,)."""


class _Body(NamedTuple):
    """A mass, the way to it, and how it lies in the frame of its link."""

    way: list[_Joint]
    mass_kg: float
    """Zero of the payload frame, whose mass comes with each tick."""
    centre_m: Array
    """Shape (3,)."""
    inertia_kgm2: Array
    """About the centre, shape (3, 3)."""


class _Motion(NamedTuple):
    """How the mass centre of a body moves, in the frame of the base, one row per tick."""

    linear: Array
    """J_v, shape (T, 3, n)."""
    angular: Array
    """J_w, shape (T, 3, n)."""
    turn: Array
    """From the link to the base, shape (T, 3, 3)."""
    spin: Array
    """w, rad / s, shape (T, 3)."""
    spin_rate: Array
    """alpha, rad / s^2, shape (T, 3)."""
    acceleration: Array
    """a, m / s^2, shape (T, 3)."""


class ChainDynamics:
    """The rigid-body terms of an arm; a payload, shape (T,) or a number, is at its frame."""

    def __init__(self, arm: 'ArmFile', urdf: str) -> None:
        root = ElementTree.fromstring(urdf)
        above = {_text(joint, 'child', 'link'): joint for joint in root.findall('joint')}
        self._columns = {name: column for column, name in enumerate(arm.joints)}
        self._locked = {entry.joint: entry.position for entry in arm.locked}
        self._rotors = np.array(arm.rotor_inertia_kgm2)
        self._gravity = np.array(arm.gravity_mps2)
        self._bodies = [
            _body(link, _way(link.get('name', ''), above))
            for link in root.findall('link')
            if link.find('inertial') is not None
        ]
        tip = _way(arm.payload_frame, above)
        self._payload = _Body(tip, 0.0, np.array(arm.payload_offset_m), np.zeros((3, 3)))

    def mass_matrix(self, q_rad: Array, payload_kg: Array | float = 0.0) -> Array:
        """Return M, shape (T, n, n), kg m^2, of postures of shape (T, n)."""
        rest = np.zeros_like(q_rad)
        total = np.zeros((*q_rad.shape, q_rad.shape[-1])) + np.diag(self._rotors)
        for body, mass_kg in self._masses(payload_kg):
            motion = self._motion(body, q_rad, rest, rest)
            J_v, J_w = motion.linear, motion.angular
            inertia = motion.turn @ body.inertia_kgm2 @ _transposed(motion.turn)
            total += np.reshape(mass_kg, (-1, 1, 1)) * (_transposed(J_v) @ J_v)
            total += _transposed(J_w) @ inertia @ J_w
        return total

    def inverse_dynamics_nm(
        self, q_rad: Array, qd_radps: Array, qdd_radps2: Array, payload_kg: Array | float = 0.0
    ) -> Array:
        """Return M qdd + C qd + g, N m; all arrays have the shape (T, n)."""
        torque = self._rotors * qdd_radps2
        for body, mass_kg in self._masses(payload_kg):
            motion = self._motion(body, q_rad, qd_radps, qdd_radps2)
            inertia = motion.turn @ body.inertia_kgm2 @ _transposed(motion.turn)
            force = np.reshape(mass_kg, (-1, 1)) * (motion.acceleration - self._gravity)
            moment = _times(inertia, motion.spin_rate)
            moment += np.cross(motion.spin, _times(inertia, motion.spin))
            torque = torque + _times(_transposed(motion.linear), force)
            torque += _times(_transposed(motion.angular), moment)
        return torque

    def gravity_nm(self, q_rad: Array, payload_kg: Array | float = 0.0) -> Array:
        """Return g, shape (T, n)."""
        rest = np.zeros_like(q_rad)
        return self.inverse_dynamics_nm(q_rad, rest, rest, payload_kg)

    def centrifugal_nm(
        self, q_rad: Array, qd_radps: Array, payload_kg: Array | float = 0.0
    ) -> Array:
        """Return C qd, shape (T, n)."""
        moving = self.inverse_dynamics_nm(q_rad, qd_radps, np.zeros_like(q_rad), payload_kg)
        return moving - self.gravity_nm(q_rad, payload_kg)

    def _masses(self, payload_kg: Array | float) -> list[tuple[_Body, Array | float]]:
        of_links = [(body, body.mass_kg) for body in self._bodies]
        return [*of_links, (self._payload, payload_kg)]

    def _motion(self, body: _Body, q_rad: Array, qd_radps: Array, qdd_radps2: Array) -> _Motion:
        """Return the motion of the mass centre of a body, joint by joint from the base."""
        ticks, num_joints = q_rad.shape
        turn = np.broadcast_to(np.eye(3), (ticks, 3, 3))
        place, spin, spin_rate, acceleration = np.zeros((4, ticks, 3))
        axes: dict[int, tuple[Array, Array]] = {}
        for joint in body.way:
            arm = _times(turn, np.broadcast_to(joint.offset_m, (ticks, 3)))
            acceleration = acceleration + _swung(spin, spin_rate, arm)
            place, turn = place + arm, turn @ joint.turn
            if joint.name in self._columns:
                column = self._columns[joint.name]
                axis = _times(turn, np.broadcast_to(joint.axis, (ticks, 3)))
                axes[column] = axis, place
                own = axis * qd_radps[:, column, np.newaxis]
                spin_rate = spin_rate + axis * qdd_radps2[:, column, np.newaxis]
                spin_rate = spin_rate + np.cross(spin, own)
                spin = spin + own
                turn = turn @ _rotations(joint.axis, q_rad[:, column])
            elif joint.kind == 'prismatic':
                slid = _times(turn, np.broadcast_to(self._slide(joint), (ticks, 3)))
                acceleration = acceleration + _swung(spin, spin_rate, slid)
                place = place + slid
            elif joint.kind != 'fixed':
                turn = turn @ _rotations(joint.axis, np.array([self._locked[joint.name]]))
        arm = _times(turn, np.broadcast_to(body.centre_m, (ticks, 3)))
        acceleration, centre = acceleration + _swung(spin, spin_rate, arm), place + arm
        linear, angular = np.zeros((2, ticks, 3, num_joints))
        for column, (axis, at) in axes.items():
            linear[:, :, column], angular[:, :, column] = np.cross(axis, centre - at), axis
        return _Motion(linear, angular, turn, spin, spin_rate, acceleration)

    def _slide(self, joint: _Joint) -> Array:
        return self._locked[joint.name] * joint.axis


def _way(link: str, above: dict[str, ElementTree.Element]) -> list[_Joint]:
    """Return the joints from the base to a link."""
    way: list[_Joint] = []
    while link in above:
        element = above[link]
        turn, offset = _origin(element)
        axis = _numbers(element.find('axis'), 'xyz', '1 0 0')
        axis = axis / np.linalg.norm(axis)
        way.append(_Joint(element.get('name', ''), element.get('type', ''), turn, offset, axis))
        link = _text(element, 'parent', 'link')
    return way[::-1]


def _body(link: ElementTree.Element, way: list[_Joint]) -> _Body:
    inertial = link.find('inertial')
    assert inertial is not None
    turn, centre = _origin(inertial)
    xx, xy, xz, yy, yz, zz = (
        float(_text(inertial, 'inertia', key))
        for key in ('ixx', 'ixy', 'ixz', 'iyy', 'iyz', 'izz')
    )
    own = np.array([[xx, xy, xz], [xy, yy, yz], [xz, yz, zz]])
    return _Body(way, float(_text(inertial, 'mass', 'value')), centre, turn @ own @ turn.T)


def _text(element: ElementTree.Element, tag: str, attribute: str) -> str:
    found = element.find(tag)
    return '' if found is None else found.get(attribute, '')


def _numbers(element: ElementTree.Element | None, attribute: str, otherwise: str) -> Array:
    text = otherwise if element is None else element.get(attribute, otherwise)
    return np.array(text.split(), dtype=np.float64)


def _origin(element: ElementTree.Element) -> tuple[Array, Array]:
    """Return the rotation of <origin>, about fixed x, then y, then z, and its offset in m."""
    origin = element.find('origin')
    angles = _numbers(origin, 'rpy', '0 0 0')
    about_x, about_y, about_z = (
        _rotations(axis, angle[np.newaxis])[0]
        for axis, angle in zip(np.eye(3), angles, strict=True)
    )
    return about_z @ about_y @ about_x, _numbers(origin, 'xyz', '0 0 0')


def _rotations(axis: Array, angles_rad: Array) -> Array:
    """Return turns about a unit axis after Rodrigues, from (T,) to (T, 3, 3)."""
    x, y, z = axis
    cross = np.array([[0.0, -z, y], [z, 0.0, -x], [-y, x, 0.0]])
    sine, versine = np.sin(angles_rad), 1.0 - np.cos(angles_rad)
    turned = sine[:, np.newaxis, np.newaxis] * cross
    return np.asarray(np.eye(3) + turned + versine[:, np.newaxis, np.newaxis] * (cross @ cross))


def _swung(spin: Array, spin_rate: Array, arm: Array) -> Array:
    """Return the acceleration of the end of a rigid arm against its beginning, (T, 3)."""
    return np.cross(spin_rate, arm) + np.cross(spin, np.cross(spin, arm))


def _times(matrices: Array, vectors: Array) -> Array:
    return np.asarray(np.einsum('tij,tj->ti', matrices, vectors))


def _transposed(matrices: Array) -> Array:
    return np.swapaxes(matrices, -1, -2)
