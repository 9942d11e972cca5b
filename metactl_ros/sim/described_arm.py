# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""An arm as a URDF that a physics engine can load: every link with inertia, payload on its own."""

from typing import NamedTuple
from xml.etree import ElementTree

from metactl_ros.dynamics.two_link import Arm
from metactl_ros.dynamics.urdf_arm import CheckedArm
from metactl_ros.errors import ConfigError
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
            _multiply(inertial, link_mass_factor)
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


def _multiply(inertial: ElementTree.Element, factor: float) -> None:
    for tag, names in (('mass', ('value',)), ('inertia', MASSES)):
        element = inertial.find(tag)
        assert element is not None, 'the arm was checked'
        for name in names:
            element.set(name, repr(factor * float(element.get(name, '0'))))
