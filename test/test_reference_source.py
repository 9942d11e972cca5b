# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
from types import SimpleNamespace

from hypothesis import given
from hypothesis import strategies as st
import numpy as np
import pytest

from metactl_ros.nodes import reference_source as module
from metactl_ros.nodes.joint_messages import MessageError, set_stamp
from metactl_ros.nodes.reference_source import BLEND_S, MotionSource, TrajectorySource
from metactl_ros.reference import Sinusoid
from metactl_ros.signals import ArmState, seconds

JOINTS = ('shoulder', 'elbow')
SECOND_NS = 1_000_000_000
BEGIN_NS = 3 * SECOND_NS
NOW_NS = 5 * SECOND_NS
ROS_NOW_NS = 1_700_000_000 * SECOND_NS
REST = np.array([0.25, -0.5])
MOTION = Sinusoid(np.array([0.8, 0.6]), np.array([1.0, 1.4]), np.array([0.3, -0.7]))

pairs = st.tuples(st.floats(-2.0, 2.0), st.floats(-2.0, 2.0))
durations_ns = st.integers(SECOND_NS // 2, 5 * SECOND_NS)
derivatives = st.integers(0, 2)
shares = st.floats(0.01, 0.99)


def nanoseconds_of(t_s):
    return round(t_s * SECOND_NS)


def stamp_of(stamp_ns):
    stamp = SimpleNamespace()
    set_stamp(stamp, stamp_ns)
    return stamp


def point(t_s, positions, velocities=(), accelerations=()):
    return SimpleNamespace(
        positions=list(positions),
        velocities=list(velocities),
        accelerations=list(accelerations),
        time_from_start=stamp_of(nanoseconds_of(t_s)),
    )


def trajectory(*points, names=JOINTS, stamp_ns=0):
    header = SimpleNamespace(stamp=stamp_of(stamp_ns))
    return SimpleNamespace(header=header, joint_names=list(names), points=list(points))


def begun(*points, **options):
    """Return a source that began at rest and got a trajectory two seconds later."""
    source = TrajectorySource(JOINTS)
    source.begin(ArmState(BEGIN_NS, REST, np.zeros(2)))
    if points:
        source.accept(trajectory(*points, **options), NOW_NS, ROS_NOW_NS)
    return source


def numbers(reference):
    return np.stack([reference.q_rad, reference.qd_radps, reference.qdd_radps2])


def after(source, t_s):
    """Return (q, qd, qdd), shape (3, n), at a time after the trajectory came."""
    return numbers(source.at(NOW_NS + nanoseconds_of(t_s)))


def assert_is_held(found, q_rad):
    np.testing.assert_array_equal(found, [q_rad, np.zeros(2), np.zeros(2)])


def assert_derivatives_fit(value, t_s, step_s=1e-4):
    """Compare the derivatives that are stated with differences of what they are derivatives of."""
    ahead, here, behind = value(t_s + step_s), value(t_s), value(t_s - step_s)
    slopes = (ahead - behind)[:2] / (2.0 * step_s)
    np.testing.assert_allclose(here[1:], slopes, rtol=0, atol=1e-3)


def test_before_any_trajectory_there_is_no_reference():
    assert TrajectorySource(JOINTS).at(NOW_NS) is None
    assert begun().at(NOW_NS) is None


def test_a_new_beginning_forgets_the_trajectory():
    source = begun(point(1.0, (1.0, 2.0)))
    source.begin(ArmState(NOW_NS, REST, np.zeros(2)))
    assert source.at(NOW_NS + SECOND_NS) is None


@given(
    knots=st.lists(st.tuples(durations_ns, pairs, pairs, pairs), min_size=3, max_size=3),
    num_given=st.integers(1, 3),  # a line, a cubic, a quintic
)
def test_what_a_point_gives_is_met_from_both_sides(knots, num_given):
    t_ns, points = 0, []
    for passed_ns, *values in knots:
        t_ns += passed_ns
        points.append((t_ns, values[:num_given]))
    source = begun(*(point(seconds(t_ns), *values) for t_ns, values in points))
    for t_ns, values in points[:-1]:
        at_knot, just_before = after(source, seconds(t_ns)), numbers(source.at(NOW_NS + t_ns - 1))
        np.testing.assert_allclose(at_knot[:num_given], values, rtol=0, atol=1e-12)
        np.testing.assert_allclose(just_before[:num_given], values, rtol=0, atol=1e-5)
    assert_is_held(after(source, seconds(points[-1][0])), points[-1][1][0])


@given(
    duration_ns=durations_ns,
    values=st.tuples(pairs, pairs, pairs),
    ends=st.tuples(pairs, pairs, pairs),
    given=derivatives,
    share=shares,
)
def test_stated_derivatives_are_the_derivatives(duration_ns, values, ends, given, share):
    first, last = 1.0, 1.0 + seconds(duration_ns)
    source = begun(point(first, *values[: given + 1]), point(last, *ends[: given + 1]))
    assert_derivatives_fit(lambda t_s: after(source, t_s), first + share * (last - first))


@given(values=st.tuples(pairs, pairs, pairs), ends=pairs, share=shares)
def test_without_velocities_the_way_is_straight_whatever_else_is_given(values, ends, share):
    first = point(1.0, values[0], (), values[2])
    source = begun(first, point(3.0, ends))
    way = np.subtract(ends, values[0])
    found = after(source, 1.0 + 2.0 * share)
    np.testing.assert_allclose(found[0], values[0] + share * way, rtol=0, atol=1e-8)
    np.testing.assert_allclose(found[1], way / 2.0, rtol=0, atol=1e-12)
    assert not found[2].any()


def degree(*points):
    """Return the degree of the polynomial of joint 1 between the first two points."""
    t_s = np.linspace(1.05, 1.95, 19)
    source = begun(*points)
    q = [after(source, t)[0, 0] for t in t_s]
    residuals = [np.abs(np.polyval(np.polyfit(t_s, q, d), t_s) - q).max() for d in range(7)]
    return int(np.argmax(np.array(residuals) < 1e-6))


def test_the_degree_follows_from_what_both_points_give():
    full_a, full_b = point(1.0, (1, 0), (2, 0), (30, 0)), point(2.0, (-1, 0), (1, 0), (-9, 0))
    half_a, half_b = point(1.0, (1, 0), (2, 0)), point(2.0, (-1, 0), (1, 0))
    bare_a, bare_b = point(1.0, (1, 0)), point(2.0, (-1, 0))
    assert degree(full_a, full_b) == 5
    assert [degree(half_a, full_b), degree(full_a, half_b), degree(half_a, half_b)] == [3, 3, 3]
    assert [degree(bare_a, full_b), degree(full_a, bare_b), degree(bare_a, bare_b)] == [1, 1, 1]


def test_past_its_end_the_last_position_is_held():
    source = begun(point(1.0, (1.0, 2.0), (3.0, 4.0), (5.0, 6.0)))
    for t_s in (1.0, 1.5, 1e6):
        assert_is_held(after(source, t_s), (1.0, 2.0))


def test_the_first_trajectory_begins_where_control_began():
    source = begun(point(2.0, (1.0, 1.0), (0.0, 0.0), (0.0, 0.0)))
    assert_is_held(after(source, 0.0), REST)
    assert_is_held(after(source, -1.0), REST)
    np.testing.assert_allclose(after(source, 1.0)[0], (REST + 1.0) / 2.0, rtol=0, atol=1e-12)


def test_a_trajectory_before_any_state_holds_its_first_point_until_then():
    source = TrajectorySource(JOINTS)
    source.accept(trajectory(point(1.0, (1.0, 2.0)), point(2.0, (3.0, 4.0))), NOW_NS, ROS_NOW_NS)
    assert_is_held(after(source, 0.0), (1.0, 2.0))
    np.testing.assert_allclose(after(source, 1.5)[0], (2.0, 3.0), rtol=0, atol=1e-12)


def test_a_new_trajectory_goes_on_from_position_velocity_and_acceleration():
    goal = point(4.0, (1.0, 1.0), (0.0, 0.0), (0.0, 0.0))
    source = begun(goal)
    before = after(source, 1.0)
    assert np.abs(before).min() > 0.0
    source.accept(trajectory(goal), NOW_NS + SECOND_NS, ROS_NOW_NS)
    np.testing.assert_allclose(after(source, 1.0), before, rtol=0, atol=1e-12)
    assert_is_held(after(source, 5.0), (1.0, 1.0))


def test_an_empty_trajectory_holds_at_once_whatever_its_stamp():
    for stamp_ns in (0, 1, ROS_NOW_NS + SECOND_NS):
        source = begun(point(4.0, (1.0, 1.0), (0.0, 0.0), (0.0, 0.0)))
        before = after(source, 1.0)
        source.accept(trajectory(stamp_ns=stamp_ns), NOW_NS + SECOND_NS, ROS_NOW_NS)
        for t_s in (1.0, 2.0, 10.0):
            assert_is_held(after(source, t_s), before[0])


def test_an_empty_trajectory_before_any_other_changes_nothing():
    source = begun()
    source.accept(trajectory(), NOW_NS, ROS_NOW_NS)
    assert source.at(NOW_NS) is None


def test_a_stamp_in_the_future_moves_every_point_there():
    plain = (point(1.0, (1.0, 1.0)), point(2.0, (2.0, 2.0)))
    source = begun(*plain, stamp_ns=ROS_NOW_NS + 3 * SECOND_NS)
    np.testing.assert_allclose(after(source, 0.0)[0], REST, rtol=0, atol=1e-12)
    np.testing.assert_allclose(after(source, 4.0)[0], (1.0, 1.0), rtol=0, atol=1e-12)
    np.testing.assert_allclose(after(source, 4.5)[0], (1.5, 1.5), rtol=0, atol=1e-12)
    assert_is_held(after(source, 5.0), (2.0, 2.0))


def test_of_a_stamp_in_the_past_the_points_that_remain_are_reached_in_time():
    source = begun(point(0.5, (9.0, 9.0)), point(2.0, (2.0, 2.0)), stamp_ns=ROS_NOW_NS - SECOND_NS)
    np.testing.assert_allclose(after(source, 0.0)[0], REST, rtol=0, atol=1e-12)
    np.testing.assert_allclose(after(source, 0.5)[0], (REST + 2.0) / 2.0, rtol=0, atol=1e-12)
    assert_is_held(after(source, 1.0), (2.0, 2.0))


def test_a_first_point_that_is_now_is_where_the_reference_is():
    source = begun(point(0.0, (9.0, 9.0)), point(1.0, (1.0, 1.0)))
    np.testing.assert_allclose(after(source, 0.5)[0], (REST + 1.0) / 2.0, rtol=0, atol=1e-12)


FINE = point(1.0, (0.0, 0.0))
REFUSALS = {
    'ends 1 s ago': trajectory(FINE, stamp_ns=ROS_NOW_NS - 2 * SECOND_NS),
    'must end in the future, ends 0 s ago': trajectory(point(0.0, (0.0, 0.0))),
    'point 1: time_from_start must rise from 0, found 1.0 s': trajectory(FINE, FINE),
    'point 0: time_from_start must rise from 0, found -1.0 s': trajectory(point(-1.0, (0, 0))),
    'point 1: has no positions': trajectory(FINE, point(2.0, (), (1, 1))),
    'point 0: expected 2 numbers, found 3': trajectory(point(1.0, (1, 2, 3))),
    'point 1: expected 2 numbers, found 1': trajectory(FINE, point(2.0, (1, 2), (3,))),
    "joint 'elbow': trajectory point 0 is nan": trajectory(point(1.0, (0, np.nan))),
    "joint 'shoulder': trajectory point 0 is inf": trajectory(point(1.0, (0, 0), (np.inf, 0))),
    "joint 'elbow': trajectory point 1 is -1e": trajectory(
        FINE, point(2.0, (0, 0), (0, 0), (0, -1e308))
    ),
    "joint 'elbow': not in the message": trajectory(FINE, names=('shoulder', 'ellbow')),
    "joint 'elbow': named twice": trajectory(
        point(1.0, (0, 0, 0)), names=('shoulder', 'elbow', 'elbow')
    ),
}


@pytest.mark.parametrize('text', REFUSALS)
def test_a_trajectory_that_cannot_be_followed_is_refused_and_the_last_goes_on(text):
    source = begun(point(4.0, (1.0, 1.0)))
    before = after(source, 2.0)
    with pytest.raises(MessageError, match=text):
        source.accept(REFUSALS[text], NOW_NS, ROS_NOW_NS)
    np.testing.assert_array_equal(after(source, 2.0), before)


def test_joints_are_matched_by_name_and_others_ignored():
    names = ('elbow', 'grip', 'shoulder')
    mixed = begun(point(2.0, (2, np.nan, 1), (4, np.inf, 3), (6, np.nan, 5)), names=names)
    plain = begun(point(2.0, (1, 2), (3, 4), (5, 6)))
    np.testing.assert_array_equal(after(mixed, 1.2), after(plain, 1.2))


def test_a_trajectory_that_is_replaced_while_it_is_read_is_read_as_a_whole(monkeypatch):
    source = begun(point(2.0, (1.0, 1.0)))
    before = after(source, 1.0)

    def seconds_while_another_thread_begins_anew(stamp_ns):
        source.begin(ArmState(0, REST, np.zeros(2)))
        return seconds(stamp_ns)

    monkeypatch.setattr(module, 'seconds', seconds_while_another_thread_begins_anew)
    np.testing.assert_array_equal(after(source, 1.0), before)
    assert source.at(NOW_NS) is None


def fuzzed_trajectory(rng):
    names = list(rng.permutation([*JOINTS, 'grip'])) if rng.random() < 0.8 else ['elbow']

    def values():
        size = len(names) if rng.random() < 0.9 else rng.integers(0, 5)
        found = rng.normal(size=size) * 10.0 ** rng.integers(-9, 6)
        if size and rng.random() < 0.1:
            found[rng.integers(size)] = rng.choice([np.nan, np.inf, 1e308])
        return found if rng.random() < 0.8 else []

    times = rng.integers(-1 if rng.random() < 0.1 else 0, 2**31, rng.integers(0, 4)) / 10**9
    points = [point(t_s, values(), values(), values()) for t_s in sorted(times)]
    stamp_ns = 0 if rng.random() < 0.5 else ROS_NOW_NS + int(rng.integers(-(2**31), 2**31))
    return trajectory(*points, names=names, stamp_ns=stamp_ns)


def test_5000_fuzzed_trajectories_are_refused_or_give_finite_references():
    rng = np.random.default_rng(5000)
    source, num_followed = begun(), 0
    for _ in range(5_000):
        try:
            source.accept(fuzzed_trajectory(rng), NOW_NS, ROS_NOW_NS)
        except MessageError:
            continue
        num_followed += 1
        for stamp_ns in NOW_NS + rng.integers(-(10**9), 4 * 10**9, 3):
            found = source.at(int(stamp_ns))
            assert found is None or np.isfinite(numbers(found)).all()
    assert num_followed > 500


def motion_from(distance_rad, qd_radps=(0.0, 0.0)):
    source = MotionSource(MOTION)
    q = MOTION.at(0.0).q_rad + distance_rad
    source.begin(ArmState(NOW_NS, q, np.array(qd_radps)))
    return source, q


@given(t_s=st.floats(0.0, 100.0), distance=st.tuples(*[st.floats(-0.0999, 0.0999)] * 2))
def test_a_near_start_is_not_blended(t_s, distance):
    source, _ = motion_from(np.array(distance))
    stamp_ns = NOW_NS + nanoseconds_of(t_s)
    expected = numbers(MOTION.at(seconds(stamp_ns - NOW_NS)))
    np.testing.assert_array_equal(numbers(source.at(stamp_ns)), expected)


@given(distance=pairs, joint=st.integers(0, 1), sign=st.sampled_from([-1.0, 1.0]), share=shares)
def test_a_far_start_is_approached_continuously(distance, joint, sign, share):
    distance = np.array(distance)
    distance[joint] = sign * (0.11 + abs(distance[joint]))
    source, q = motion_from(distance)
    begin, motion = after(source, 0.0), numbers(MOTION.at(0.0))
    np.testing.assert_allclose(begin[0], q, rtol=0, atol=1e-12)
    np.testing.assert_allclose(begin[1:], motion[1:], rtol=0, atol=1e-12)
    just_before, end = after(source, BLEND_S - 1e-9), numbers(MOTION.at(BLEND_S))
    np.testing.assert_allclose(just_before, end, rtol=0, atol=1e-7)
    np.testing.assert_array_equal(after(source, BLEND_S), end)
    assert_derivatives_fit(lambda t_s: after(source, t_s), 0.01 + share * (BLEND_S - 0.02))


@pytest.mark.parametrize(('distance', 'is_blended'), [(0.0999, False), (-0.1001, True)])
def test_a_start_is_far_beyond_a_tenth_of_a_radian_and_near_again_after_two_seconds(
    distance, is_blended
):
    source, _ = motion_from(np.array([0.0, distance]))
    differs = [(after(source, t) != numbers(MOTION.at(t))).any() for t in (0.0, 1.99, 2.0)]
    assert differs == [is_blended, is_blended, False]


def test_a_motion_begun_anew_nearby_is_no_longer_blended():
    source, _ = motion_from(np.array([0.5, 0.0]))
    source.begin(ArmState(2 * NOW_NS, MOTION.at(0.0).q_rad, np.zeros(2)))
    np.testing.assert_array_equal(numbers(source.at(2 * NOW_NS)), numbers(MOTION.at(0.0)))


def test_a_motion_rejoined_from_afar_goes_on_from_there_and_in_its_own_time():
    source, _ = motion_from(np.zeros(2))
    far = np.array([1.0, -1.0])
    source.rejoin(ArmState(2 * NOW_NS, far, np.zeros(2)))
    np.testing.assert_allclose(source.at(2 * NOW_NS).q_rad, far, rtol=0, atol=1e-12)
    after_ns = 2 * NOW_NS + nanoseconds_of(BLEND_S)
    np.testing.assert_array_equal(
        numbers(source.at(after_ns)), numbers(MOTION.at(seconds(after_ns - NOW_NS)))
    )


def test_a_trajectory_is_forgotten_when_the_arm_was_let_go():
    source = begun(point(1.0, [0.5, 0.5]))
    assert source.at(NOW_NS) is not None
    source.rejoin(ArmState(NOW_NS, REST, np.zeros(2)))
    assert source.at(NOW_NS) is None
