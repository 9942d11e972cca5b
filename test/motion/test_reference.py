# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st
import numpy as np
import pytest

from metactl_ros.errors import ConfigError
from metactl_ros.motion.reference import Hold, motion_limits, PointToPoint, Sinusoid
from metactl_ros.settings import load_arm

MOTIONS = {
    'sinusoid': Sinusoid(np.array([0.8, 0.5]), np.array([1.0, 2.0**0.5]), np.array([0.3, 4.0])),
    'off_centre': Sinusoid(
        *(np.array([0.8, 0.5]), np.array([1.0, 2.0**0.5]), np.array([0.3, 4.0])),
        centre_rad=np.array([1.5, -0.7]),
    ),
    'point_to_point': PointToPoint(np.array([0.1, -0.4]), np.array([1.0, 0.7]), 2.0),
    'hold': Hold(np.array([0.2, -0.3])),
}


@pytest.mark.parametrize('name', MOTIONS)
@given(t=st.floats(-1.0, 6.0))
def test_velocity_and_acceleration_are_the_derivatives(name, t):
    motion, h = MOTIONS[name], 1e-5
    before, now, after = (motion.at(x) for x in (t - h, t, t + h))
    slope = (after.q_rad - before.q_rad) / (2 * h)
    bend = (after.qd_radps - before.qd_radps) / (2 * h)
    np.testing.assert_allclose(now.qd_radps, slope, rtol=0, atol=1e-7)
    # The jerk of the quintic jumps at its ends, so the difference quotient is off by jerk * h.
    np.testing.assert_allclose(now.qdd_radps2, bend, rtol=0, atol=2e-4)


def test_a_centre_moves_the_positions_and_nothing_else():
    t = np.linspace(0.0, 20.0, 401)
    plain, moved = (MOTIONS[name].at(t) for name in ('sinusoid', 'off_centre'))
    centre = MOTIONS['off_centre'].centre_rad
    np.testing.assert_array_equal(moved.q_rad, centre + plain.q_rad)
    np.testing.assert_array_equal(moved.qd_radps, plain.qd_radps)
    np.testing.assert_array_equal(moved.qdd_radps2, plain.qdd_radps2)


@pytest.mark.parametrize('name', ['sinusoid', 'off_centre'])
def test_the_extent_of_a_sinusoid_is_reached_and_never_left(name):
    motion = MOTIONS[name]
    most, path = motion.extent(), motion.at(np.linspace(0.0, 200.0, 200_001))
    for found, expected in (
        (path.q_rad.min(axis=0), most.lower_rad),
        (path.q_rad.max(axis=0), most.upper_rad),
        (np.abs(path.qd_radps).max(axis=0), most.velocity_radps),
        (np.abs(path.qdd_radps2).max(axis=0), most.acceleration_radps2),
    ):
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-6)


def test_one_arm_of_a_batch_keeps_the_centre():
    phases = np.array([[0.3, 4.0], [1.0, 2.0]])
    batch = Sinusoid(np.ones(2), np.ones(2), phases, centre_rad=np.array([1.5, -0.7]))
    for index in range(2):
        alone = batch.of_arm(index).at(2.0).q_rad
        np.testing.assert_array_equal(alone, batch.at(2.0).q_rad[index])


def test_point_to_point_rests_at_both_ends_and_beyond():
    motion = MOTIONS['point_to_point']
    ends = [(t, motion.start_rad) for t in (-1.0, 0.0)] + [
        (t, motion.goal_rad) for t in (2.0, 9.0)
    ]
    for t, place in ends:
        reference = motion.at(t)
        np.testing.assert_allclose(reference.q_rad, place, rtol=0, atol=1e-12)
        np.testing.assert_allclose(reference.qd_radps, 0.0, rtol=0, atol=1e-12)
        np.testing.assert_allclose(reference.qdd_radps2, 0.0, rtol=0, atol=1e-12)


def test_point_to_point_does_not_overshoot():
    q = MOTIONS['point_to_point'].at(np.linspace(0.0, 2.0, 500)).q_rad
    assert np.all(np.diff(q, axis=0) >= -1e-15)


@pytest.mark.parametrize('name', MOTIONS)
def test_many_times_at_once_equal_the_times_one_by_one(name):
    times = np.linspace(0.0, 5.0, 11)
    together = MOTIONS[name].at(times)
    for index, t in enumerate(times):
        alone = MOTIONS[name].at(float(t))
        np.testing.assert_array_equal(together.q_rad[index], alone.q_rad)
        np.testing.assert_array_equal(together.qd_radps[index], alone.qd_radps)
        np.testing.assert_array_equal(together.qdd_radps2[index], alone.qdd_radps2)


@pytest.mark.parametrize('duration', [0.0, -1.0, np.nan, np.inf])
def test_a_motion_without_a_duration_is_refused(duration):
    with pytest.raises(ConfigError, match='duration_s: expected a finite time above 0'):
        PointToPoint(np.zeros(2), np.ones(2), duration)


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
