# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""An arm as a URDF that a physics engine can load: every link with inertia, payload on its own."""

from typing import NamedTuple
from xml.etree import ElementTree

import numpy as np

from metactl_ros.dynamics.two_link import Arm
from metactl_ros.dynamics.urdf_arm import CheckedArm
from metactl_ros.errors import ConfigError
from metactl_ros.signals import Array
from metactl_ros.sim.arm_urdf import arm_urdf, TIP_LINK

PAYLOAD_LINK = 'metactl_payload'
MASSES = ('ixx', 'ixy', 'ixz', 'iyy', 'iyz', 'izz')


class DescribedArm(NamedTuple):
    """An arm without rotors, ready for a physics engine."""

    urdf: str
    joint_names: tuple[str, ...]
    payload_link: str
    """Whose mass is the payload."""
    gravity_mps2: tuple[float, ...]


def described_two_link(arm: Arm, payload_kg: float = 0.0) -> DescribedArm:
    """Return the two-link arm with a payload to begin with."""
    gravity_mps2 = (0.0, 0.0, -arm.gravity_mps2)
    return DescribedArm(arm_urdf(arm, payload_kg), arm.joint_names, TIP_LINK, gravity_mps2)


def described_arm(arm: CheckedArm, link_mass_factor: float = 1.0) -> DescribedArm:
    """Return an arm of an arm file, its links heavier by a factor.

    Raises:
        ConfigError: If it has rotors or locked joints, which no URDF can state.
    """
    file = arm.file
    if any(file.rotor_inertia_kgm2) or file.locked:
        what = 'rotors' if any(file.rotor_inertia_kgm2) else 'locked joints'
        raise ConfigError(
            f'{arm.where}: the PyBullet plant knows no {what}, and would simulate another arm; '
            'take the plant pinocchio.'
        )
    root = ElementTree.fromstring(arm.urdf)
    for link in root.findall('link'):
        inertial = link.find('inertial')
        if inertial is None:
            _add_mass(link)  # an engine would take a link without one for one kilogram
        else:
            _state(inertial, link_mass_factor)
    _add_mass(ElementTree.SubElement(root, 'link', name=PAYLOAD_LINK))
    joint = ElementTree.SubElement(root, 'joint', name=PAYLOAD_LINK, type='fixed')
    ElementTree.SubElement(joint, 'parent', link=file.payload_frame)
    ElementTree.SubElement(joint, 'child', link=PAYLOAD_LINK)
    offset = ' '.join(map(repr, file.payload_offset_m))
    ElementTree.SubElement(joint, 'origin', xyz=offset, rpy='0 0 0')
    text = ElementTree.tostring(root, encoding='unicode')
    return DescribedArm(text, file.joints, PAYLOAD_LINK, file.gravity_mps2)


def _add_mass(link: ElementTree.Element) -> None:
    """Give a link a mass of zero."""
    inertial = ElementTree.SubElement(link, 'inertial')
    ElementTree.SubElement(inertial, 'mass', value='0')
    ElementTree.SubElement(inertial, 'inertia', dict.fromkeys(MASSES, '0'))


def _state(inertial: ElementTree.Element, factor: float) -> None:
    """State an inertia along its principal axes, and multiplied.

    An engine would look for these axes itself; PyBullet stops at 1e-5 of the inertia.
    """
    mass, inertia, origin = (inertial.find(tag) for tag in ('mass', 'inertia', 'origin'))
    assert mass is not None, 'the arm was checked'
    assert inertia is not None, 'the arm was checked'
    if origin is None:
        origin = ElementTree.SubElement(inertial, 'origin')
    xx, xy, xz, yy, yz, zz = (float(inertia.get(name, '0')) for name in MASSES)
    moments, axes = np.linalg.eigh([[xx, xy, xz], [xy, yy, yz], [xz, yz, zz]])
    axes[:, 2] *= np.linalg.det(axes)
    angles = np.array(origin.get('rpy', '0 0 0').split(), dtype=np.float64)
    turned = _rotation(angles) @ axes
    origin.set('rpy', ' '.join(map(repr, _angles(turned).tolist())))
    for name in MASSES:
        inertia.set(name, '0')
    for name, moment in zip(('ixx', 'iyy', 'izz'), moments.tolist(), strict=True):
        inertia.set(name, repr(factor * max(moment, 0.0)))
    mass.set('value', repr(factor * float(mass.get('value', '0'))))


def _rotation(angles_rad: Array) -> Array:
    """Return the rotation of roll, pitch and yaw of a URDF: about fixed x, then y, then z."""
    (a, b, c), (i, j, k) = np.cos(angles_rad), np.sin(angles_rad)
    about_x = np.array([[1.0, 0.0, 0.0], [0.0, a, -i], [0.0, i, a]])
    about_y = np.array([[b, 0.0, j], [0.0, 1.0, 0.0], [-j, 0.0, b]])
    about_z = np.array([[c, -k, 0.0], [k, c, 0.0], [0.0, 0.0, 1.0]])
    return np.asarray(about_z @ about_y @ about_x)


def _angles(rotation: Array) -> Array:
    """Return roll, pitch and yaw of a rotation; the roll is 0 where the pitch is 90 degrees."""
    across = np.hypot(rotation[0, 0], rotation[1, 0])
    pitch = np.arctan2(-rotation[2, 0], across)
    if across < 1e-9:
        return np.array([0.0, pitch, np.arctan2(-rotation[0, 1], rotation[1, 1])])
    roll = np.arctan2(rotation[2, 1], rotation[2, 2])
    return np.array([roll, pitch, np.arctan2(rotation[1, 0], rotation[0, 0])])
