# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st
import numpy as np
import pytest

from metactl_ros.motion.limits import motion_limits
from metactl_ros.settings import load_arm

ARM = load_arm()
ANGLES = st.floats(-np.pi, np.pi)
SIGNS = st.tuples(*[st.sampled_from([-1.0, 1.0])] * 2)


def torque_nm(arm, q_rad, qdd_radps2):
    """Return what accelerates an arm and holds it, without payload."""
    body, q = arm.body(), np.array(q_rad)
    return body.inertia_matrix(q) @ qdd_radps2 + body.gravity(q)


@given(q=st.tuples(ANGLES, ANGLES), signs=SIGNS)
def test_with_the_largest_accelerations_at_once_every_posture_is_within_the_efforts(q, signs):
    needed = torque_nm(ARM, q, signs * motion_limits(ARM).acceleration_radps2)
    assert (np.abs(needed) <= np.array(ARM.limits.effort_nm) * (1.0 + 1e-12)).all()


def test_in_one_posture_a_joint_then_has_all_of_its_effort():
    needed = torque_nm(ARM, (0.0, 0.0), motion_limits(ARM).acceleration_radps2)
    assert (needed / ARM.limits.effort_nm).max() == pytest.approx(1.0, rel=1e-12)


def test_positions_and_velocities_are_those_of_the_arm():
    limits = motion_limits(ARM)
    assert tuple(limits.upper_rad) == ARM.limits.position_rad
    assert tuple(limits.lower_rad) == tuple(-x for x in ARM.limits.position_rad)
    assert tuple(limits.velocity_radps) == ARM.limits.velocity_radps


def test_a_range_that_is_not_symmetric_stays_so():
    arm = replace(ARM, limits=replace(ARM.limits, position_lower_rad=(-0.3, 0.5)))
    limits = motion_limits(arm)
    assert tuple(limits.lower_rad) == (-0.3, 0.5)
    assert tuple(limits.upper_rad) == ARM.limits.position_rad


def test_an_arm_that_cannot_hold_itself_has_limits_above_zero():
    weak = replace(ARM, limits=replace(ARM.limits, effort_nm=(30.0, 5.0)))
    assert (motion_limits(weak).acceleration_radps2 > 0.0).all()
    lightest = replace(weak, gravity_mps2=0.0)
    ratio = motion_limits(weak).acceleration_radps2 / motion_limits(lightest).acceleration_radps2
    np.testing.assert_allclose(ratio, 0.5, rtol=1e-12)  # gravity is granted half of the effort
