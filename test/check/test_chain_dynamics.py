# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""The second model against the closed form, which needs nothing, and against Pinocchio."""

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st
import numpy as np
import pytest
from support import urdf_arms
from support.urdf_arms import checked, CLOSED_FORM, model, NAMES, states

from metactl_ros.check.chain_dynamics import ChainDynamics
from metactl_ros.dynamics.urdf_arm import check_arm, LockedJoint

GRIPPER = """
  <link name="rail"><inertial><origin xyz="0.01 0.02 0.03" rpy="0.1 0.2 0.3"/><mass value="0.8"/>
    <inertia ixx="0.003" ixy="0.0004" ixz="0" iyy="0.002" iyz="-0.0003" izz="0.004"/></inertial>
  </link>
  <link name="finger"><inertial><origin xyz="0 0.05 0"/><mass value="0.3"/>
    <inertia ixx="0.001" ixy="0" ixz="0" iyy="0.001" iyz="0" izz="0.001"/></inertial></link>
  <joint name="swivel" type="continuous"><parent link="fr3_link8"/><child link="rail"/>
    <origin xyz="0 0 0.02" rpy="0.3 -0.2 0.9"/><axis xyz="0 1 1"/></joint>
  <joint name="slide" type="prismatic"><parent link="rail"/><child link="finger"/>
    <origin xyz="0.04 0 0" rpy="0 0.4 0"/><axis xyz="0 1 0"/>
    <limit lower="0" upper="0.1" effort="10" velocity="1"/></joint>
</robot>"""


def second(name):
    return ChainDynamics(checked(name).file, urdf_arms.urdf_text(name))


def test_the_second_model_equals_the_closed_form():
    q, qd, qdd, payloads_kg = states('two_link', 1000)
    chain, posture = second('two_link'), CLOSED_FORM.body(payloads_kg).at(q, qd)
    tau = posture.apply(qdd) + posture.bias
    found = chain.inverse_dynamics_nm(q, qd, qdd, payloads_kg)
    np.testing.assert_allclose(found, tau, rtol=0, atol=1e-10)
    M = CLOSED_FORM.body(payloads_kg).inertia_matrix(q)
    np.testing.assert_allclose(chain.mass_matrix(q, payloads_kg), M, rtol=0, atol=1e-12)


@pytest.mark.parametrize('name', NAMES)
def test_the_second_model_equals_pinocchio(name):
    q, qd, qdd, payloads_kg = states(name, 1000)
    chain, body = second(name), model(name).body(payloads_kg)
    posture = body.at(q, qd)
    for found, expected in (
        (chain.mass_matrix(q, payloads_kg), body.inertia_matrix(q)),
        (chain.gravity_nm(q, payloads_kg), posture.gravity),
        (chain.centrifugal_nm(q, qd, payloads_kg), posture.bias - posture.gravity),
        (
            chain.inverse_dynamics_nm(q, qd, qdd, payloads_kg),
            posture.apply(qdd) + posture.bias,
        ),
    ):
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-11)


@settings(max_examples=20)
@given(turned=st.floats(-3.0, 3.0), slid_m=st.floats(0.0, 0.1), seed=st.integers(0, 1000))
def test_both_models_carry_what_hangs_on_locked_joints(turned, slid_m, seed):
    fr3 = checked('fr3').file
    arm = replace(
        fr3,
        gravity_mps2=(3.0, -5.0, 7.0),  # hung from a slanted wall
        payload_frame='finger',
        payload_offset_m=(0.01, 0.02, -0.03),
        locked=(
            LockedJoint(joint='swivel', position=turned),
            LockedJoint(joint='slide', position=slid_m),
        ),
    )
    text = urdf_arms.urdf_text('fr3').replace('</robot>', GRIPPER)
    posture_of = urdf_arms.urdf_body().UrdfBody
    q, qd, qdd, payloads_kg = states('fr3', 5, seed)
    fits = check_arm(arm, text, 'gripper.urdf')
    models = urdf_arms.urdf_body().models_of(fits)
    posture = posture_of(*models, payloads_kg).at(q, qd)
    tau = ChainDynamics(arm, text).inverse_dynamics_nm(q, qd, qdd, payloads_kg)
    np.testing.assert_allclose(posture.apply(qdd) + posture.bias, tau, rtol=0, atol=1e-11)
