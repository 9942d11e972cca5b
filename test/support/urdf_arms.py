# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""Arms from their URDFs: the shipped ones, and the two-link arm of `config/arm.yaml`."""

from functools import cache

import numpy as np
import pytest

from metactl_ros.arm_file import read_arm_file
from metactl_ros.dynamics.urdf_arm import ArmFile, check_arm, StatedLimits
from metactl_ros.settings import load_arm, share_directory

CONFIG = share_directory() / 'config'
NAMES = ('two_link', 'ur5e', 'fr3')
HEAVIEST_KG = {'two_link': 1.5, 'ur5e': 5.0, 'fr3': 3.0}
CLOSED_FORM = load_arm()
TWO_LINK = ArmFile(
    urdf='arm.urdf',
    joints=CLOSED_FORM.joint_names,
    payload_frame='payload',
    rated_payload_kg=1.5,
    gravity_mps2=(0.0, 0.0, -CLOSED_FORM.gravity_mps2),
    limits=StatedLimits(
        effort_rate_nmps=CLOSED_FORM.limits.effort_rate_nmps,
        position_rad=CLOSED_FORM.limits.position_rad,
    ),
    rotor_inertia_kgm2=(0.0, 0.0),
)


def urdf_body():
    """Return the module that needs Pinocchio, or skip the test."""
    pytest.importorskip('pinocchio', reason="needs Pinocchio: pip install 'metactl_ros[urdf]'")
    from metactl_ros.dynamics import urdf_body

    return urdf_body


def urdf_text(name):
    path = CONFIG / 'arm.urdf' if name == 'two_link' else CONFIG / 'arms' / f'{name}.urdf'
    return path.read_text()


@cache
def checked(name):
    """Return file and URDF of an arm, as they fit together."""
    if name == 'two_link':
        return check_arm(TWO_LINK, urdf_text(name), 'arm.urdf')
    return read_arm_file(CONFIG / 'arms' / f'{name}.yaml')


@cache
def model(name):
    """Return the arm as Pinocchio computes it."""
    return urdf_body().UrdfArm(checked(name))


def states(name, count, seed=0):
    """Return q, qd and qdd, each of shape (count, n), and payloads of shape (count,)."""
    num_joints = len(checked(name).file.joints)
    rng = np.random.default_rng(seed)
    q = rng.uniform(-np.pi, np.pi, (count, num_joints))
    qd, qdd = rng.uniform(-8.0, 8.0, (2, count, num_joints))
    return q, qd, qdd, rng.uniform(0.0, HEAVIEST_KG[name], count)


def with_payload(text, frame, payload_kg):
    """Return a URDF with a point mass on a link of its own."""
    link = f"""
  <link name="added_payload"><inertial><mass value="{payload_kg!r}"/>
    <inertia ixx="0" ixy="0" ixz="0" iyy="0" iyz="0" izz="0"/></inertial></link>
  <joint name="added_joint" type="fixed"><parent link="{frame}"/><child link="added_payload"/>
  </joint>
</robot>"""
    return text.replace('</robot>', link)
