# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""What the node is to follow: however it begins, resumes or is told, within every limit."""

from contextlib import suppress
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st
import numpy as np
import pytest
from support.trajectories import JOINTS, nanoseconds_of, point, SECOND_NS, trajectory

from metactl_ros.errors import ConfigError
from metactl_ros.motion.joining import Braking, join
from metactl_ros.motion.reference import motion_limits, MotionBounds, Sinusoid
from metactl_ros.options import defaults_of
from metactl_ros.runtime import reference_source as module
from metactl_ros.runtime.joint_states import MessageError
from metactl_ros.runtime.reference_source import (
    LEAD_NS,
    LEAD_PER_POINT_NS,
    MotionSource,
    source_of,
    TrajectorySource,
)
from metactl_ros.settings import load_arm
from metactl_ros.signals import ArmState, seconds

BEGIN_NS = 3 * SECOND_NS
NOW_NS = 5 * SECOND_NS
ROS_NOW_NS = 1_700_000_000 * SECOND_NS
REST = np.array([0.25, -0.5])
LIMITS = motion_limits(load_arm())
WIDE = MotionBounds(np.full(2, -1e9), *np.full((3, 2), 1e9))
MOTION = Sinusoid(np.array([0.8, 0.6]), np.array([1.0, 1.4]), np.array([0.3, -0.7]))
MOST = np.stack([LIMITS.upper_rad, LIMITS.velocity_radps, LIMITS.acceleration_radps2])

pairs = st.tuples(st.floats(-2.0, 2.0), st.floats(-2.0, 2.0))
shares = st.tuples(st.floats(-1.0, 1.0), st.floats(-1.0, 1.0)).map(np.array)
durations_ns = st.integers(SECOND_NS // 2, 5 * SECOND_NS)


def lead_s(num_points):
    return seconds(LEAD_NS + num_points * LEAD_PER_POINT_NS)


def at_rest(q_rad=REST, stamp_ns=BEGIN_NS):
    return ArmState(stamp_ns, np.array(q_rad), np.zeros(2))


def begun(*points, limits=WIDE, **options):
    """Return a source that began at rest and got a trajectory two seconds later."""
    source = TrajectorySource(JOINTS, limits)
    source.begin(at_rest())
    if points:
        source.accept(trajectory(*points, **options), NOW_NS, ROS_NOW_NS)
    return source


def test_trajectories_that_come_faster_than_they_begin_do_not_pile_up():
    source = begun()
    for k in range(300):
        source.accept(trajectory(point(1.0, REST)), NOW_NS + k * SECOND_NS // 100, ROS_NOW_NS)
    plan, length = source._followed[0], 1
    while plan.before is not None:
        plan, length = plan.before, length + 1
    assert 2 <= length <= 5


def numbers(reference):
    return np.stack([reference.q_rad, reference.qd_radps, reference.qdd_radps2])


def after(source, t_s, num_points=0):
    """Return (q, qd, qdd), shape (3, n), at a time after so many points took effect."""
    lead_ns = LEAD_NS + num_points * LEAD_PER_POINT_NS if num_points else 0
    return numbers(source.at(NOW_NS + lead_ns + nanoseconds_of(t_s)))


def assert_is_held(found, q_rad):
    np.testing.assert_array_equal(found, [q_rad, np.zeros(2), np.zeros(2)])


def assert_within_limits_and_continuous(source, begin_ns, end_ns):
    """No step is larger than what the limits of the next derivative allow."""
    stamps_ns = np.linspace(begin_ns, end_ns, 500).astype(np.int64).tolist()
    found = np.stack([numbers(source.at(stamp_ns)) for stamp_ns in stamps_ns], axis=1)
    assert (np.abs(found) <= MOST[:, np.newaxis] * (1.0 + 1e-8)).all()
    passed_s = np.diff(stamps_ns)[:, np.newaxis] / SECOND_NS
    for order in (0, 1):
        steps = np.abs(np.diff(found[order], axis=0))
        assert (steps <= passed_s * MOST[order + 1] * (1.0 + 1e-6) + 1e-8).all()


def test_before_control_begins_there_is_no_reference():
    for source in (TrajectorySource(JOINTS, LIMITS), MotionSource(MOTION, LIMITS)):
        assert source.at(NOW_NS) is None


@pytest.mark.parametrize('way_of_beginning', ['begin', 'rejoin'])
def test_until_a_trajectory_comes_the_arm_is_braked_and_held(way_of_beginning):
    source = begun(point(1.0, (1.0, 1.0)), limits=LIMITS)
    qd = np.array([0.4, -0.6])
    getattr(source, way_of_beginning)(ArmState(NOW_NS, REST, qd))
    np.testing.assert_array_equal(after(source, 0.0)[:2], [REST, qd])
    held = after(source, 1.0)
    assert_is_held(held, held[0])
    assert (np.sign(held[0] - REST) == np.sign(qd)).all()
    assert_is_held(after(source, 100.0), held[0])
    assert_within_limits_and_continuous(source, NOW_NS, NOW_NS + SECOND_NS)


@given(
    knots=st.lists(st.tuples(durations_ns, pairs, pairs, pairs), min_size=3, max_size=3),
    num_given=st.integers(1, 3),
)
def test_what_a_point_gives_is_met(knots, num_given):
    t_ns, points = 0, []
    for passed_ns, *values in knots:
        t_ns += passed_ns
        points.append((t_ns, values[:num_given]))
    points[-1] = (t_ns, [points[-1][1][0], (0.0, 0.0), (0.0, 0.0)][:num_given])
    source = begun(*(point(seconds(t_ns), *values) for t_ns, values in points))
    for t_ns, values in points[:-1]:
        found = after(source, seconds(t_ns), 3)
        np.testing.assert_allclose(found[:num_given], values, rtol=0, atol=1e-6)
    assert_is_held(after(source, seconds(points[-1][0]), 3), points[-1][1][0])


def degree(*points):
    """Return the degree of the polynomial of joint 1 between the first two of three points."""
    t_s = np.linspace(1.05, 1.95, 19)
    source = begun(*points, point(9.0, (0, 0), (0, 0), (0, 0)))
    q = [after(source, t, 3)[0, 0] for t in t_s]
    residuals = [np.abs(np.polyval(np.polyfit(t_s, q, d), t_s) - q).max() for d in range(7)]
    return int(np.argmax(np.array(residuals) < 1e-6))


def test_the_degree_follows_from_what_both_points_give():
    full_a, full_b = point(1.0, (1, 0), (2, 0), (30, 0)), point(2.0, (-1, 0), (1, 0), (-9, 0))
    half_a, half_b = point(1.0, (1, 0), (2, 0)), point(2.0, (-1, 0), (1, 0))
    bare_a, bare_b = point(1.0, (1, 0)), point(2.0, (-1, 0))
    assert degree(full_a, full_b) == 5
    assert [degree(half_a, full_b), degree(full_a, half_b), degree(half_a, half_b)] == [3, 3, 3]
    assert [degree(bare_a, full_b), degree(full_a, bare_b), degree(bare_a, bare_b)] == [3, 3, 3]


def test_the_first_trajectory_begins_where_control_began_and_when_it_takes_effect():
    source = begun(point(2.0, (1.0, 1.0), (0.0, 0.0), (0.0, 0.0)))
    for t_s in (-1.0, -lead_s(1), 0.0):
        assert_is_held(after(source, t_s, 1), REST)
    np.testing.assert_allclose(after(source, 1.0, 1)[0], (REST + 1.0) / 2.0, rtol=0, atol=1e-12)


def test_a_new_trajectory_goes_on_from_position_velocity_and_acceleration():
    goal = point(4.0, (1.0, 1.0), (0.0, 0.0), (0.0, 0.0))
    source, old = begun(goal), begun(goal)
    source.accept(trajectory(goal), NOW_NS + SECOND_NS, ROS_NOW_NS)
    for t_s in (0.5, 1.0, 1.0 + 0.9 * lead_s(1), 1.0 + lead_s(1)):  # until then it is the old one
        np.testing.assert_allclose(after(source, t_s), after(old, t_s), rtol=0, atol=1e-12)
    assert np.abs(after(source, 1.0 + lead_s(1))).min() > 0.0
    assert (after(source, 2.0, 1) != after(old, 2.0, 1)).all()
    assert_is_held(after(source, 5.0 + lead_s(1)), (1.0, 1.0))


def test_of_two_that_come_at_once_the_first_leads_over_to_the_second():
    goal = point(2.0, (1.0, 1.0))
    source = begun(goal, limits=LIMITS)
    source.accept(trajectory(point(3.0, (-1.0, 0.0))), NOW_NS + 1, ROS_NOW_NS)
    assert_within_limits_and_continuous(source, NOW_NS - SECOND_NS, NOW_NS + 4 * SECOND_NS)


def test_an_empty_trajectory_brakes_and_holds_whatever_its_stamp_and_names():
    for stamp_ns in (0, 1, ROS_NOW_NS + SECOND_NS):
        source = begun(point(4.0, (1.0, 1.0)), limits=LIMITS)
        moving = after(source, 1.0 + lead_s(0))
        empty = trajectory(stamp_ns=stamp_ns, names=())
        source.accept(empty, NOW_NS + SECOND_NS, ROS_NOW_NS)
        np.testing.assert_allclose(
            after(source, 1.0 + lead_s(0))[:2], moving[:2], rtol=0, atol=1e-12
        )
        assert_within_limits_and_continuous(source, NOW_NS, NOW_NS + 3 * SECOND_NS)
        assert_is_held(after(source, 2.0), after(source, 20.0)[0])


def test_a_stamp_in_the_future_moves_every_point_there():
    plain = (point(1.0, (1.0, 1.0)), point(2.0, (2.0, 2.0)))
    source = begun(*plain, stamp_ns=ROS_NOW_NS + 3 * SECOND_NS)
    np.testing.assert_allclose(after(source, 0.0)[0], REST, rtol=0, atol=1e-12)
    np.testing.assert_allclose(after(source, 4.0)[0], (1.0, 1.0), rtol=0, atol=1e-12)
    assert_is_held(after(source, 5.0), (2.0, 2.0))


def test_of_a_stamp_in_the_past_the_points_that_remain_are_reached_in_time():
    points = (point(0.5, (0.9, 0.9)), point(3.0, (1.0, 1.0)))
    source = begun(*points, stamp_ns=ROS_NOW_NS - SECOND_NS)
    middle_s = (2.0 + lead_s(2)) / 2.0
    np.testing.assert_allclose(after(source, 0.0)[0], REST, rtol=0, atol=1e-12)
    np.testing.assert_allclose(after(source, middle_s)[0], (REST + 1.0) / 2.0, rtol=0, atol=1e-9)
    assert_is_held(after(source, 2.0), (1.0, 1.0))


def test_a_first_point_that_is_now_is_where_the_reference_is():
    source = begun(point(0.0, (0.9, 0.9)), point(1.0, (1.0, 1.0)))
    np.testing.assert_allclose(after(source, 0.5, 2)[0], (REST + 1.0) / 2.0, rtol=0, atol=1e-9)


REFUSALS = {
    'must end in the future, ends 1.02.* s before it': trajectory(
        point(1.0, (0, 0)), stamp_ns=ROS_NOW_NS - 2 * SECOND_NS
    ),
    'must end in the future, ends 0 s before it': trajectory(point(0.0, (0.0, 0.0))),
    'point 0: has no positions': trajectory(point(1.0, ())),
    r"point 1: joint 'shoulder': expected a position of -2.9 to 2.9 rad, found 9 rad; "
    'choose': trajectory(point(5.0, (0, 0)), point(10.0, (9, 0))),
    "on the way to point 1: joint 'shoulder' would reach 8.4e.09 rad/s, expected at most 8 rad/s; "
    'give it more time': trajectory(point(5.0, (-2.8, -0.5)), point(5.0 + 1e-9, (2.8, -0.5))),
    "on the way to point 0: joint 'elbow' would reach 60 rad/s, expected": trajectory(
        point(0.05, (0.25, 1.5))
    ),
    r"on the way to point 0: joint 'shoulder' would reach 12 rad/s\^2, expected at most 6.871 "
    r'rad/s\^2; give it more time': trajectory(point(1.0, (2.25, -0.5))),
    "on the way to point 1: joint 'elbow' would reach 2.812 rad, expected at most 2.6 rad; it over"
    'shoots': trajectory(point(5.0, (0, 2.59), (0, 0.5)), point(8.0, (0, 2.59))),
    "point 1: joint 'elbow': expected rest at the last point, found -0.01 rad/s; end": trajectory(
        point(5.0, (0, 0)), point(6.0, (0, 0), (0.0005, -0.01))
    ),
}


ONE_SIDED = replace(LIMITS, lower_rad=np.array([-0.3, -0.7]))
OF_ONE_SIDE = {
    "point 0: joint 'shoulder': expected a position of -0.3 to 2.9 rad, found -0.4 rad; choose": (
        point(5.0, (-0.4, 0.0)),
    ),
    "on the way to point 1: joint 'elbow' would reach -0.9122 rad, expected at least -0.7 rad; it "
    'overshoots': (point(5.0, (0, -0.69), (0, -0.5)), point(8.0, (0, -0.69))),
}


@pytest.mark.parametrize('text', OF_ONE_SIDE)
def test_a_trajectory_beyond_the_lower_end_of_a_range_is_refused(text):
    assert begun(*OF_ONE_SIDE[text], limits=LIMITS) is not None
    with pytest.raises(MessageError, match=f'trajectory.*{text}'):
        begun(*OF_ONE_SIDE[text], limits=ONE_SIDED)


def test_within_a_range_that_is_not_symmetric_all_of_its_larger_side_may_be_used():
    source = begun(point(8.0, (2.85, -0.65)), point(16.0, (-0.29, 2.55)), limits=ONE_SIDED)
    for t_s in np.linspace(0.0, 17.0, 200):
        q = after(source, t_s)[0]
        assert ((ONE_SIDED.lower_rad <= q) & (q <= ONE_SIDED.upper_rad)).all()
    assert_is_held(after(source, 17.0), (-0.29, 2.55))


@pytest.mark.parametrize('text', REFUSALS)
def test_a_trajectory_that_cannot_be_followed_is_refused_and_the_last_goes_on(text):
    source = begun(point(4.0, (1.0, 1.0)), limits=LIMITS)
    fresh = begun(limits=LIMITS)
    before = after(source, 2.0)
    for one in (fresh, source):
        with pytest.raises(MessageError, match=f'trajectory.*{text}' if one is fresh else '.'):
            one.accept(REFUSALS[text], NOW_NS, ROS_NOW_NS)
    np.testing.assert_array_equal(after(source, 2.0), before)
    assert_is_held(after(fresh, 20.0), REST)


def test_a_last_point_that_hardly_moves_is_one_at_rest():
    source = begun(point(3.0, (0.5, 0.5), (0.0009, -0.0009)), limits=LIMITS)
    assert_within_limits_and_continuous(source, NOW_NS, NOW_NS + 4 * SECOND_NS)


def test_a_trajectory_before_any_state_is_refused():
    with pytest.raises(MessageError, match='no joint state yet; send it again'):
        TrajectorySource(JOINTS, WIDE).accept(trajectory(point(1.0, (0, 0))), 0, ROS_NOW_NS)


def test_a_machine_too_slow_for_its_lead_takes_a_longer_one(monkeypatch):
    source, honest, asked = begun(limits=LIMITS), module.path_within, []

    def slow(*given):
        asked.append(given[2])
        source.at(NOW_NS + 2 * LEAD_NS * len(asked))
        return honest(*given)

    monkeypatch.setattr(module, 'path_within', slow)
    source.accept(trajectory(point(3.0, (0.5, 0.5))), NOW_NS, ROS_NOW_NS)
    assert len(asked) == 2
    assert_within_limits_and_continuous(source, NOW_NS, NOW_NS + 4 * SECOND_NS)


def test_a_machine_too_slow_for_every_lead_refuses(monkeypatch):
    source, honest = begun(limits=LIMITS), module.path_within
    source.at(NOW_NS)

    def slower(*given):
        source.at(source._asked_ns + 100 * LEAD_NS)
        return honest(*given)

    monkeypatch.setattr(module, 'path_within', slower)
    with pytest.raises(MessageError, match='could not be checked before'):
        source.accept(trajectory(point(3.0, (0.5, 0.5))), NOW_NS, ROS_NOW_NS)
    assert_is_held(after(source, 20.0), REST)


def test_an_arm_that_stops_while_a_trajectory_is_checked_does_not_follow_it(monkeypatch):
    source, honest, stopped = begun(limits=LIMITS), module.path_within, np.array([0.1, 0.2])

    def as_it_stops(*given):
        source.rejoin(at_rest(stopped, NOW_NS))
        return honest(*given)

    monkeypatch.setattr(module, 'path_within', as_it_stops)
    with pytest.raises(MessageError, match='the arm stopped as it came; send it again'):
        source.accept(trajectory(point(3.0, (0.5, 0.5))), NOW_NS, ROS_NOW_NS)
    assert_is_held(after(source, 2.0), stopped)


@given(
    points=st.lists(
        st.tuples(st.floats(0.02, 4.0), shares, shares, shares, st.integers(1, 3)),
        min_size=1,
        max_size=5,
    ),
    moment=st.floats(0.0, 2.0),
)
def test_whatever_is_accepted_at_whatever_moment_is_continuous_and_within_limits(points, moment):
    source = begun(point(2.0, (0.8, -0.2)), limits=LIMITS)
    t_s, rows = 0.0, []
    for passed_s, *values, num_given in points:
        t_s += passed_s
        scaled = [share * most for share, most in zip(values, 0.4 * MOST, strict=True)]
        rows.append(point(t_s, *scaled[:num_given]))
    now_ns = NOW_NS + nanoseconds_of(moment)
    source.at(now_ns)
    with suppress(MessageError):
        source.accept(trajectory(*rows), now_ns, ROS_NOW_NS)
    assert_within_limits_and_continuous(source, NOW_NS, now_ns + nanoseconds_of(t_s + 1.0))


def fuzzed_trajectory(rng):
    names = list(rng.permutation([*JOINTS, 'grip'])) if rng.random() < 0.8 else ['elbow']

    def values():
        size = len(names) if rng.random() < 0.9 else rng.integers(0, 5)
        found = rng.normal(size=size) * 10.0 ** rng.integers(-9, 2)
        if size and rng.random() < 0.1:
            found[rng.integers(size)] = rng.choice([np.nan, np.inf, 1e308])
        return found if rng.random() < 0.8 else []

    times = rng.integers(-1 if rng.random() < 0.1 else 0, 2**33, rng.integers(0, 4)) / 10**9
    points = [point(t_s, values(), values(), values()) for t_s in sorted(times)]
    stamp_ns = 0 if rng.random() < 0.5 else ROS_NOW_NS + int(rng.integers(-(2**31), 2**31))
    return trajectory(*points, names=names, stamp_ns=stamp_ns)


def test_5000_fuzzed_trajectories_are_refused_or_keep_to_the_limits():
    rng = np.random.default_rng(5000)
    source, num_followed = begun(limits=LIMITS), 0
    for k in range(5_000):
        now_ns = NOW_NS + k * SECOND_NS // 10
        source.at(now_ns)
        try:
            source.accept(fuzzed_trajectory(rng), now_ns, ROS_NOW_NS)
        except MessageError:
            continue
        num_followed += 1
        for stamp_ns in now_ns + rng.integers(0, 4 * 10**9, 3):
            assert (np.abs(numbers(source.at(int(stamp_ns)))) <= MOST * (1.0 + 1e-8)).all()
        source.at(now_ns)
    assert num_followed > 500


@given(q=shares, qd=shares, t_s=st.floats(0.0, 20.0), begun_s=st.floats(0.0, 5.0))
def test_a_motion_rejoined_from_anywhere_is_continuous_within_limits_and_in_its_own_time(
    q, qd, t_s, begun_s
):
    source, begin_ns = MotionSource(MOTION, LIMITS), nanoseconds_of(begun_s)
    source.begin(at_rest(stamp_ns=begin_ns))
    stamp_ns = begin_ns + nanoseconds_of(t_s)
    state = ArmState(stamp_ns, 0.9 * q * LIMITS.upper_rad, 0.1 * qd * LIMITS.velocity_radps)
    source.rejoin(state)
    found = numbers(source.at(stamp_ns))
    np.testing.assert_allclose(found[:2], [state.q_rad, state.qd_radps], rtol=0, atol=1e-12)
    assert_within_limits_and_continuous(source, stamp_ns, stamp_ns + 5 * SECOND_NS)
    late_ns = stamp_ns + 20 * SECOND_NS
    expected = numbers(MOTION.at(seconds(late_ns - begin_ns)))
    np.testing.assert_array_equal(numbers(source.at(late_ns)), expected)


def test_a_motion_begun_anew_begins_at_its_time_zero():
    source = MotionSource(MOTION, LIMITS)
    for begin_ns in (BEGIN_NS, 2 * NOW_NS):
        source.begin(at_rest(stamp_ns=begin_ns))
        expected = join(MOTION, LIMITS, 0.0, REST, np.zeros(2))
        for t_s in (0.0, 0.5, 20.0):
            found = source.at(begin_ns + nanoseconds_of(t_s))
            np.testing.assert_array_equal(numbers(found), numbers(expected.at(t_s)))


def test_parameters_choose_the_source_and_a_sinusoid_must_fit_the_arm():
    values = defaults_of('controller_node.yaml')
    trajectories = source_of(values | {'reference': 'trajectory'}, JOINTS, LIMITS)
    assert isinstance(trajectories, TrajectorySource)
    sinusoid = values | {'reference': 'sinusoid'}
    source = source_of(sinusoid, JOINTS, LIMITS)
    source.begin(at_rest())
    assert np.abs(source.at(BEGIN_NS + 10 * SECOND_NS).q_rad).max() > 0.1
    with pytest.raises(ConfigError, match="sinusoid: joint 'elbow' would reach 3 rad"):
        source_of(sinusoid | {'sinusoid.amplitude_rad': [0.5, 3.0]}, JOINTS, LIMITS)


def test_a_hold_is_what_its_state_could_brake_to():
    source = TrajectorySource(JOINTS, LIMITS)
    source.begin(ArmState(BEGIN_NS, np.array([5.0, 0.0]), np.array([100.0, 0.0])))
    assert_within_limits_and_continuous(source, BEGIN_NS, NOW_NS)
    assert isinstance(source._hold.motion, Braking)
