# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""The way onto a motion: from any state, continuous, within every limit, and in finite time."""

from dataclasses import replace
from itertools import pairwise

from hypothesis import assume, example, given
from hypothesis import strategies as st
import numpy as np
import pytest

from metactl_ros.errors import ConfigError
from metactl_ros.motion import joining
from metactl_ros.motion.joining import (
    AT_LEAST_S,
    brake,
    Far,
    join,
    LARGEST_SHARE,
    Near,
    require_joinable,
    SHARE,
)
from metactl_ros.motion.reference import Hold, motion_limits, MotionBounds, Sinusoid
from metactl_ros.settings import load_arm

LIMITS = motion_limits(load_arm())
JOINTS = ('shoulder', 'elbow')
ORDERS = ('upper_rad', 'velocity_radps', 'acceleration_radps2')
MOTION = Sinusoid(np.array([0.8, 0.6]), np.array([1.0, 1.4]), np.array([0.3, -0.7]))


def pairs(low, high):
    return st.tuples(st.floats(low, high), st.floats(low, high)).map(np.array)


motions = st.builds(
    lambda share, omega, phase: Sinusoid(share * LIMITS.upper_rad, omega, phase),
    pairs(-1.0, 1.0),
    pairs(-5.0, 5.0),
    pairs(-4.0, 4.0),
)
shares = pairs(-1.0, 1.0)
wild = pairs(-3.0, 3.0)
times = st.floats(0.0, 100.0)


def values(reference):
    """Return (q, qd, qdd), shape (3, ..., n)."""
    return np.stack([reference.q_rad, reference.qd_radps, reference.qdd_radps2])


def sizes(bounds):
    return np.stack([getattr(bounds, name) for name in ORDERS])


def end_of(way):
    begin_s = way.braking.duration_s.max() if isinstance(way, Far) else 0.0
    return way.joined_s + begin_s + way.duration_s


def is_joinable(motion):
    try:
        require_joinable('it', motion, LIMITS, JOINTS)
    except ConfigError:
        return False
    return True


def joined(motion, t_s, q_share, qd_share):
    assume(is_joinable(motion))
    q, qd = q_share * LIMITS.upper_rad, qd_share * LIMITS.velocity_radps
    return join(motion, LIMITS, t_s, q, qd), q, qd


def instants(way):
    """Return times along a way, and a little beyond it."""
    ends = [way.joined_s, end_of(way)]
    if isinstance(way, Far):
        ends[1:1] = sorted(way.joined_s + way.braking.duration_s)
    pieces = pairwise([*ends, ends[-1] + 1.0])
    return np.concatenate([np.linspace(a, b, 60) for a, b in pieces])


@given(motion=motions, t_s=times, q_share=wild, qd_share=wild)
@example(MOTION, 0.0, np.array([1.0, 0.0]), np.array([1.0, 0.0]))  # at its limit, with full speed
@example(MOTION, 0.0, np.array([-1.0, 0.0]), np.array([1.0, 0.0]))
@example(MOTION, 0.0, np.zeros(2), np.zeros(2))
def test_from_whatever_state_the_way_keeps_to_every_limit(motion, t_s, q_share, qd_share):
    way, _, _ = joined(motion, t_s, q_share, qd_share)
    found = np.abs(values(way.at(instants(way))))
    assert (found <= sizes(LIMITS)[:, np.newaxis]).all()


@given(motion=motions, t_s=times, q_share=wild, qd_share=wild)
def test_the_way_is_continuous_in_position_and_velocity(motion, t_s, q_share, qd_share):
    """No step is larger than what the limits of the next derivative allow."""
    way, _, _ = joined(motion, t_s, q_share, qd_share)
    t = np.sort(np.concatenate([instants(way), instants(way) + 1e-7]))
    found, passed = values(way.at(t)), np.diff(t)[:, np.newaxis]
    most = sizes(LIMITS)
    for order in (0, 1):
        steps = np.abs(np.diff(found[order], axis=0))
        assert (steps <= passed * most[order + 1] * (1.0 + 1e-9) + 1e-12).all()


@given(motion=motions, t_s=times, q_share=shares, qd_share=shares)
def test_a_way_begins_at_the_state_if_the_arm_can_brake_before_its_limits(
    motion, t_s, q_share, qd_share
):
    way, q, qd = joined(motion, t_s, 0.999 * q_share, 0.999 * qd_share)
    room = LIMITS.upper_rad - np.abs(q)
    assume((qd**2 < 2.0 * 0.999 * LIMITS.acceleration_radps2 * room).all())
    begin = values(way.at(t_s))
    np.testing.assert_allclose(begin[:2], [q, qd], rtol=0, atol=1e-12)


@given(motion=motions, t_s=times, q_share=wild, qd_share=wild, later_s=st.floats(0.0, 10.0))
def test_at_its_end_the_motion_is_met_and_from_then_on_it_is_the_motion(
    motion, t_s, q_share, qd_share, later_s
):
    way, _, _ = joined(motion, t_s, q_share, qd_share)
    end_s = float(end_of(way))
    assert np.isfinite(end_s)
    just_before, met = values(way.at(end_s - 1e-9)), values(motion.at(end_s))
    np.testing.assert_allclose(just_before, met, rtol=0, atol=1e-6)
    t = end_s + 1e-12 * end_s + later_s
    np.testing.assert_array_equal(values(way.at(t)), values(motion.at(t)))


@given(motion=motions, t_s=times, q_share=shares, qd_share=shares, share=st.floats(0.05, 0.95))
def test_stated_derivatives_are_the_derivatives(motion, t_s, q_share, qd_share, share):
    way, _, _ = joined(motion, t_s, q_share, qd_share)
    t, step = float(way.joined_s + share * (end_of(way) - way.joined_s)), 1e-5
    kinks = [way.joined_s]
    kinks += [] if isinstance(way, Near) else (way.joined_s + way.braking.duration_s).tolist()
    assume(min(abs(t - kink) for kink in kinks) > 2.0 * step)
    ahead, here, behind = (values(way.at(x)) for x in (t + step, t, t - step))
    np.testing.assert_allclose((ahead - behind)[:2] / (2.0 * step), here[1:], rtol=0, atol=2e-3)


@given(motion=motions, t_s=times, q_share=shares, qd_share=shares)
def test_many_times_at_once_are_as_one_after_the_other(motion, t_s, q_share, qd_share):
    way, _, _ = joined(motion, t_s, q_share, qd_share)
    t = instants(way)[::7]
    one_by_one = np.stack([values(way.at(float(x))) for x in t], axis=1)
    np.testing.assert_allclose(values(way.at(t)), one_by_one, rtol=0, atol=1e-9)


@pytest.mark.parametrize(
    ('q', 'qd', 'kind'),
    [
        ((0.3, -0.4), (0.7, 0.6), Near),  # on the motion, nearly
        ((-1.0, 1.0), (0.0, 0.0), Near),  # at rest, elsewhere
        ((2.8, 0.0), (0.0, 0.0), Far),  # beside the motion it would leave the positions
        ((0.3, -0.4), (7.0, 0.0), Far),  # too fast
    ],
)
def test_what_is_near_fades_and_what_is_far_brakes_first(q, qd, kind):
    assert isinstance(join(MOTION, LIMITS, 0.0, np.array(q), np.array(qd)), kind)


def test_a_near_way_begins_with_the_acceleration_of_the_motion():
    way = join(MOTION, LIMITS, 2.0, np.array([0.5, 0.5]), np.zeros(2))
    np.testing.assert_allclose(way.at(2.0).qdd_radps2, MOTION.at(2.0).qdd_radps2, atol=1e-12)


@pytest.mark.parametrize(('distance', 'order'), [(0.3, 2), (2.5, 2), (2.5, 1)])
def test_a_way_takes_no_longer_than_its_share_of_a_limit_demands(distance, order):
    """From rest to a place one limit is used to its share, and no other beyond it."""
    slow = np.array([1.0, 1.0, 1.0])
    slow[order] = 0.2
    rates = slow[1:, np.newaxis] * sizes(LIMITS)[1:]
    limits = MotionBounds(LIMITS.lower_rad, LIMITS.upper_rad, *rates)
    start = np.array([distance, 0.0]) - 1.2
    way = join(Hold(np.array([-1.2, -1.2])), limits, 0.0, start, np.zeros(2))
    found = np.abs(values(way.at(np.linspace(0.0, way.duration_s, 4001)))).max(axis=1)[1:, 0]
    shares = found / (SHARE * sizes(limits)[1:, 0])
    assert shares.max() == pytest.approx(1.0, abs=1e-6)
    assert shares[order - 1] == shares.max()


def test_a_short_way_does_not_hurry():
    way = join(MOTION, LIMITS, 0.0, MOTION.at(0.0).q_rad + 1e-6, MOTION.at(0.0).qd_radps)
    assert way.duration_s == AT_LEAST_S


def test_the_sizes_of_the_polynomials_are_those_stated():
    x = np.linspace(0.0, 1.0, 200_001)
    d = x * (1.0 - x) ** 3 * (1.0 + 3.0 * x)
    s = x**3 * (10.0 - 15.0 * x + 6.0 * x**2)
    for values_of, stated in (
        (d, (joining.D_SIZE, joining.D_SLOPE, joining.D_BEND)),
        (s, (1.0, joining.S_SLOPE, joining.S_BEND)),
    ):
        slope = np.gradient(values_of, x, edge_order=2)
        bend = np.gradient(slope, x, edge_order=2)
        found = [np.abs(row).max() for row in (values_of, slope, bend)]
        np.testing.assert_allclose(found, stated, rtol=1e-4)


def test_braking_takes_half_the_acceleration_unless_a_limit_is_near():
    most = LIMITS.acceleration_radps2
    far = brake(LIMITS, np.zeros(2), np.array([1.0, -2.0]))
    np.testing.assert_allclose(far.deceleration_radps2, SHARE * most, rtol=1e-8)
    near = brake(LIMITS, np.array([2.9 - 0.1, 0.0]), np.array([1.0, 0.0]))
    np.testing.assert_allclose(near.deceleration_radps2, [1.0 / 0.2, SHARE * most[1]], rtol=1e-6)
    np.testing.assert_allclose(near.at(10.0).q_rad, [2.9, 0.0], rtol=1e-8)
    np.testing.assert_array_equal(values(near.at(10.0))[1:], np.zeros((2, 2)))


def test_an_arm_that_cannot_brake_before_its_limit_is_given_a_speed_with_which_it_could():
    most = LIMITS.acceleration_radps2
    way = brake(LIMITS, np.array([2.9 - 0.1, -2.7]), np.array([8.0, -3.0]))
    assert way.qd_radps[0] == pytest.approx(np.sqrt(2.0 * most[0] * 0.1), rel=1e-6)
    assert way.qd_radps[1] == 0.0  # outside already: it waits at the limit
    np.testing.assert_allclose(way.at(1.0).q_rad, [2.9, -2.6], rtol=1e-8)


@pytest.mark.parametrize(
    ('motion', 'text'),
    [
        (Sinusoid(np.array([0.1, 2.7]), np.ones(2), np.zeros(2)), "'elbow' would reach 2.7 rad,"),
        (
            Sinusoid(np.array([0.1, 0.1]), np.array([1.0, 73.0]), np.zeros(2)),
            "'elbow' would reach 7.3 rad/s, expected at most 7.2 rad/s; choose",
        ),
        (
            Sinusoid(np.array([-0.1, 0.1]), np.array([9.0, 1.0]), np.zeros(2)),
            r"'shoulder' would reach 8.1 rad/s\^2, expected at most 6.18",
        ),
        (Sinusoid(np.array([np.nan, 0.1]), np.ones(2), np.zeros(2)), "'shoulder' .* nan rad,"),
    ],
)
def test_a_motion_that_leaves_its_limits_is_refused_with_the_joint(motion, text):
    with pytest.raises(ConfigError, match=f'sinusoid: joint {text}'):
        require_joinable('sinusoid', motion, LIMITS, JOINTS)


@pytest.mark.parametrize(('factor', 'is_fine'), [(0.999, True), (1.001, False)])
def test_a_motion_may_take_its_share_of_the_limits_and_no_more(factor, is_fine):
    most = factor * LARGEST_SHARE * sizes(LIMITS)[:, 1]
    still, speed, omega = np.zeros(2), np.array([0.0, most[1]]), 3.5
    assert is_joinable(Hold(np.array([0.0, most[0] / LARGEST_SHARE]))) == is_fine
    assert is_joinable(Sinusoid(speed / omega, np.full(2, omega), still)) == is_fine
    assert (
        is_joinable(Sinusoid(np.array([0.0, most[2] / 25.0]), np.full(2, 5.0), still)) == is_fine
    )


ONE_SIDED = replace(LIMITS, lower_rad=np.array([-0.3, 0.5]), upper_rad=np.array([2.9, 2.6]))
"""A range like that of many elbows: zero is at its end, or beyond it."""
middles = pairs(0.0, 1.0)


@given(
    centre=middles, width=middles, omega=pairs(0.0, 3.0), t_s=times, q_share=wild, qd_share=wild
)
@example(np.full(2, 0.5), np.ones(2), np.full(2, 0.5), 0.0, np.array([-0.3, 2.6]), np.zeros(2))
def test_within_a_range_that_is_not_symmetric_the_way_keeps_to_both_ends(
    centre, width, omega, t_s, q_share, qd_share
):
    lower, upper = ONE_SIDED.lower_rad, ONE_SIDED.upper_rad
    middle = lower + (0.1 + 0.8 * centre) * (upper - lower)
    amplitude = 0.99 * width * np.minimum(upper - middle, middle - lower)
    motion = Sinusoid(amplitude, omega, np.zeros(2), centre_rad=middle)
    try:
        require_joinable('it', motion, ONE_SIDED, JOINTS)
    except ConfigError:
        assume(False)
    way = join(motion, ONE_SIDED, t_s, 3.0 * q_share, qd_share * LIMITS.velocity_radps)
    found = values(way.at(instants(way)))
    assert ((lower <= found[0]) & (found[0] <= upper)).all()
    assert (np.abs(found[1:]) <= sizes(LIMITS)[1:, np.newaxis]).all()
    end_s = float(end_of(way))
    np.testing.assert_allclose(
        values(way.at(end_s - 1e-9)), values(motion.at(end_s)), rtol=0, atol=1e-6
    )


def test_braking_stops_at_the_end_that_is_ahead():
    down = brake(ONE_SIDED, np.array([0.0, 0.6]), np.array([-1.8, -1.9]))
    up = brake(ONE_SIDED, np.array([0.0, 0.6]), np.array([1.8, 1.9]))
    np.testing.assert_allclose(down.at(10.0).q_rad, [-0.3, 0.5], rtol=0, atol=1e-8)
    assert (up.deceleration_radps2 < down.deceleration_radps2).all()  # it has room
    outside = brake(ONE_SIDED, np.zeros(2), np.zeros(2))
    np.testing.assert_allclose(outside.at(0.0).q_rad, [0.0, 0.5], rtol=0, atol=1e-8)


@pytest.mark.parametrize(
    ('centre', 'text'),
    [
        ((1.0, 0.9), "'elbow' would reach 0.4 rad, expected at least 0.5 rad; choose"),
        ((1.0, 2.2), "'elbow' would reach 2.7 rad, expected at most 2.6 rad; choose"),
        ((0.0, 1.5), "'shoulder' would reach -0.5 rad, expected at least -0.3 rad; choose"),
    ],
)
def test_a_motion_that_leaves_one_end_of_a_range_is_refused_with_that_end(centre, text):
    half = np.full(2, 0.5)
    require_joinable('it', Sinusoid(half, half, half, np.array([1.0, 1.5])), ONE_SIDED, JOINTS)
    motion = Sinusoid(half, half, half, centre_rad=np.array(centre))
    with pytest.raises(ConfigError, match=f'it: joint {text}'):
        require_joinable('it', motion, ONE_SIDED, JOINTS)
