# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""Trajectories from bytes: too large, broken or misnamed ones are refused, and say why."""

from hypothesis import given
from hypothesis import strategies as st
import numpy as np
import pytest
from support.trajectories import cdr_of, JOINTS, point, trajectory

from metactl_ros.bag import topics
from metactl_ros.runtime import reference_source as module
from metactl_ros.runtime.joint_states import MessageError
from metactl_ros.runtime.reference_source import (
    knots_of,
    MAX_BYTES,
    MAX_NAMES,
    MAX_POINTS,
    unpack,
)

FINE = point(1.0, (0.0, 0.0))
numbers = st.floats(-1e6, 1e6)
fields = st.sampled_from([(), (0.5, -0.25)])


@given(
    stamp_ns=st.integers(0, 2**31 * 10**9 - 1),
    rows=st.lists(st.tuples(st.floats(0.0, 2e9), fields, fields, fields), max_size=5),
    names=st.lists(st.text(st.characters(codec='utf-8', exclude_characters='\0')), max_size=4),
)
def test_what_is_unpacked_is_what_was_sent(stamp_ns, rows, names):
    sent = trajectory(*(point(*row) for row in rows), names=names, stamp_ns=stamp_ns)
    assert unpack(cdr_of(sent)) == sent


@pytest.mark.ros
def test_what_ros_sends_is_unpacked():
    messages = pytest.importorskip('trajectory_msgs.msg', reason='needs ROS')
    from rclpy.serialization import serialize_message

    sent = messages.JointTrajectory(joint_names=['elbow', 'shoulder'])
    sent.header.stamp.sec, sent.header.stamp.nanosec = 7, 8
    sent.header.frame_id = 'base'
    for k in range(3):
        one = messages.JointTrajectoryPoint(positions=[0.1 * k, 0.2], velocities=[0.3, 0.4])
        one.time_from_start.sec = k
        sent.points.append(one)
    found = unpack(bytes(serialize_message(sent)))
    expected = [point(k, (0.1 * k, 0.2), (0.3, 0.4)) for k in range(3)]
    assert found == (7_000_000_008, ('elbow', 'shoulder'), tuple(expected))


@pytest.mark.parametrize(
    ('sent', 'text'),
    [
        (trajectory(*[FINE] * (MAX_POINTS + 1)), 'at most 2000 points, found 2001; send less'),
        (trajectory(FINE, names=['x'] * (MAX_NAMES + 1)), 'at most 64 names, found 65; send less'),
        (trajectory(names=['x' * MAX_BYTES]), 'at most 1048576 bytes, found 1048'),
    ],
)
def test_what_is_too_large_is_refused_unread(sent, text, monkeypatch):
    data = cdr_of(sent)
    monkeypatch.setattr(module, 'read_trajectory', None)
    with pytest.raises(MessageError, match=f'trajectory: expected {text}'):
        unpack(data)


def test_as_many_as_permitted_are_read():
    many = trajectory(*[FINE] * MAX_POINTS, names=[f'joint{k}' for k in range(MAX_NAMES)])
    assert unpack(cdr_of(many)) == many


def test_a_hundred_thousand_points_are_refused_from_a_few_bytes(monkeypatch):
    """However many they are, only the names before them are looked at."""
    data, looked = cdr_of(trajectory(*[FINE] * 10)), []
    head = len(cdr_of(trajectory()))
    many = data[: head - 4] + (100_000).to_bytes(4, 'little') + data[head:] * 10_000
    unpack_from = topics.struct.unpack_from

    def watched(kind, buffer, place=0):
        looked.append(place)
        return unpack_from(kind, buffer, place)

    monkeypatch.setattr(topics.struct, 'unpack_from', watched)
    with pytest.raises(MessageError, match='at most 2000 points, found 100000'):
        unpack(many)
    assert max(looked) == head - 4
    assert len(looked) < 10


@pytest.mark.parametrize('size', [0, 3, 4, 10, 17, 40, 60, 90])
def test_bytes_that_are_cut_short_are_no_trajectory(size):
    data = cdr_of(trajectory(FINE, FINE))
    with pytest.raises(MessageError, match='trajectory: not a JointTrajectory'):
        unpack(data[:size])


def test_20000_fuzzed_bytes_are_refused_or_read():
    rng, data = np.random.default_rng(20000), cdr_of(trajectory(point(1, (1, 2), (3, 4)), FINE))
    num_read = 0
    for _ in range(20_000):
        broken = bytearray(data[: rng.integers(len(data)) if rng.random() < 0.2 else None])
        for _ in range(rng.integers(1, 4)):
            if broken:
                broken[rng.integers(len(broken))] = rng.integers(256)
        try:
            unpack(bytes(broken))
        except MessageError:
            continue
        num_read += 1
    assert 2_000 < num_read < 19_000


REFUSALS = {
    'point 1: time_from_start must rise from 0, found 1.0 s': trajectory(FINE, FINE),
    'point 0: time_from_start must rise from 0, found -1.0 s': trajectory(point(-1.0, (0, 0))),
    'point 1: has no positions': trajectory(FINE, point(2.0, (), (1, 1))),
    'point 0: expected 2 positions, one per name, found 3': trajectory(point(1.0, (1, 2, 3))),
    'point 1: expected 2 velocities, one per name, found 1': trajectory(
        FINE, point(2.0, (1, 2), (3,))
    ),
    "point 0: joint 'elbow': expected finite positions of at most 1e.06, found nan": trajectory(
        point(1.0, (0, np.nan))
    ),
    "point 0: joint 'shoulder': expected finite velocities .* found inf": trajectory(
        point(1.0, (0, 0), (np.inf, 0))
    ),
    "point 1: joint 'elbow': expected finite accelerations .* found -1e.308": trajectory(
        FINE, point(2.0, (0, 0), (0, 0), (0, -1e308))
    ),
    "joint 'elbow': not in the message": trajectory(FINE, names=('shoulder', 'ellbow')),
    "joint 'elbow': named twice": trajectory(
        point(1.0, (0, 0, 0)), names=('shoulder', 'elbow', 'elbow')
    ),
}


@pytest.mark.parametrize('text', REFUSALS)
def test_points_that_cannot_be_used_are_refused_by_number_and_joint(text):
    with pytest.raises(MessageError, match=text):
        knots_of(REFUSALS[text], JOINTS)


def test_joints_are_matched_by_name_and_others_ignored():
    names = ('elbow', 'grip', 'shoulder')
    mixed = trajectory(point(2, (2, np.nan, 1), (4, np.inf, 3), (6, np.nan, 5)), names=names)
    found, plain = (
        knots_of(one, JOINTS) for one in (mixed, trajectory(point(2.0, (1, 2), (3, 4), (5, 6))))
    )
    for name in ('t_s', 'q_rad', 'qd_radps', 'qdd_radps2'):
        np.testing.assert_array_equal(getattr(found, name), getattr(plain, name))


def test_what_a_point_does_not_give_is_no_number_nor_is_an_acceleration_without_a_velocity():
    rows = (point(1, (1, 2)), point(2, (1, 2), (3, 4)), point(3, (1, 2), (), (5, 6)))
    found = knots_of(trajectory(*rows), JOINTS)
    assert found.t_s.tolist() == [1.0, 2.0, 3.0]
    np.testing.assert_array_equal(found.qd_radps[:, 0], [np.nan, 3.0, np.nan])
    assert np.isnan(found.qdd_radps2).all()
