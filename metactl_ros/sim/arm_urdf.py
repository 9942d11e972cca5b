# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""The arm of `config/arm.yaml` as a URDF, so that its masses and lengths are stated once.

`config/arm.urdf`, for RViz and robot_state_publisher, is this text; a test keeps it so. To renew:

    python test/write_arm_urdf.py
"""

from metactl_ros.dynamics.two_link import Arm

TIP_LINK = 'payload'
# The thickness only matters to the eye: the model is planar, inertia about the rod axis is unused.
ROD_RADIUS_M = 0.03


def arm_urdf(arm: Arm, payload_kg: float = 0.0) -> str:
    """Return URDF text of the arm; joints turn about -y, so positive angles lift the arm.

    Joints are continuous: position limits belong to the controller, and hard stops in one
    simulator only would make the two disagree.
    """
    (m1, m2), (l1, l2) = arm.link_masses_kg, arm.link_lengths_m
    j1, j2 = arm.joint_names
    e1, e2 = arm.limits.effort_nm
    v1, v2 = arm.limits.velocity_radps
    return f"""<?xml version="1.0"?>
<!-- Generated from config/arm.yaml by metactl_ros.sim.arm_urdf; do not edit. -->
<robot name="two_link_arm">
  <link name="base_link">
    <inertial>
      <mass value="0"/>
      <inertia ixx="0" ixy="0" ixz="0" iyy="0" iyz="0" izz="0"/>
    </inertial>
  </link>
{_rod('link1', m1, l1)}
{_rod('link2', m2, l2)}
  <link name="{TIP_LINK}">
    <inertial>
      <mass value="{payload_kg!r}"/>
      <inertia ixx="0" ixy="0" ixz="0" iyy="0" iyz="0" izz="0"/>
    </inertial>
  </link>
{_hinge(j1, 'base_link', 'link1', 0.0, e1, v1)}
{_hinge(j2, 'link1', 'link2', l1, e2, v2)}
  <joint name="tip" type="fixed">
    <parent link="link2"/>
    <child link="{TIP_LINK}"/>
    <origin xyz="{l2!r} 0 0"/>
  </joint>
</robot>
"""


def _rod(name: str, mass_kg: float, length_m: float) -> str:
    turning = mass_kg * length_m**2 / 12.0
    middle = f'<origin xyz="{length_m / 2.0!r} 0 0"'
    return f"""  <link name="{name}">
    <inertial>
      {middle}/>
      <mass value="{mass_kg!r}"/>
      <inertia ixx="0" ixy="0" ixz="0" iyy="{turning!r}" iyz="0" izz="{turning!r}"/>
    </inertial>
    <visual>
      {middle} rpy="0 1.5707963267948966 0"/>
      <geometry><cylinder radius="{ROD_RADIUS_M}" length="{length_m!r}"/></geometry>
    </visual>
  </link>"""


def _hinge(
    name: str, parent: str, child: str, offset_m: float, effort_nm: float, velocity_radps: float
) -> str:
    return f"""  <joint name="{name}" type="continuous">
    <parent link="{parent}"/>
    <child link="{child}"/>
    <origin xyz="{offset_m!r} 0 0"/>
    <axis xyz="0 -1 0"/>
    <limit effort="{effort_nm!r}" velocity="{velocity_radps!r}"/>
  </joint>"""
