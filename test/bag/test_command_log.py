# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""Commands of a bag as arrays, a row for every message; those without stamps found by content."""

import time

from hypothesis import given
from hypothesis import settings as searched
from hypothesis import strategies as st
import numpy as np
import pytest

pytest.importorskip('rosbags', reason='needs the extra `sim`')
from support.made_bags import (
    a_day,
    bag_of,
    commands_of,
    doctored,
    JOINT_STATE,
    make,
    MS,
    MULTI_ARRAY,
    PERIOD_NS,
    raw,
    START_NS,
    STORE,
    write,
)
from support.tick_logs import ARM

from metactl_ros.bag.command_log import align, command_topics
from metactl_ros.bag.command_log import commands_of as commands_in
from metactl_ros.bag.reader import BagMessage, read_bag
from metactl_ros.bag.topics import FORWARD, STAMPED

NUM = 5
COUNT = 60
NUMBERS = st.sets(st.integers(0, COUNT - 1), max_size=8)
TEXTS = st.text(max_size=9).filter(lambda text: '\0' not in text and ',' not in text)


@pytest.fixture(scope='module')
def ticks():
    return a_day(NUM)


def read_commands(bag, namespace=''):
    messages = read_bag(bag, lambda _: True).messages
    return [commands_in(messages, topic, ARM.joint_names) for topic in command_topics(namespace)]


def test_both_topics_have_names_stamps_times_and_efforts(tmp_path, ticks):
    stamped, forward = read_commands(write(tmp_path / 'a.mcap', bag_of(ticks)))
    stamps_ns = START_NS + PERIOD_NS * np.arange(NUM)
    np.testing.assert_array_equal(stamped.stamp_ns, stamps_ns)
    np.testing.assert_array_equal(stamped.publish_time_ns, stamps_ns)
    np.testing.assert_array_equal(stamped.log_time_ns, stamps_ns + MS // 10)
    np.testing.assert_array_equal(forward.stamp_ns, 0)
    np.testing.assert_array_equal(forward.publish_time_ns, stamps_ns + MS // 5)
    for log, topic in ((stamped, STAMPED), (forward, FORWARD)):
        assert log.topic == f'/{topic}'
        assert log.names == (ARM.joint_names,) * NUM
        assert (log.is_for_arm.all(), log.num_unreadable) == (True, 0)
        np.testing.assert_array_equal(log.sequence, np.arange(NUM) + 1)
        np.testing.assert_array_equal(log.effort_nm, [tick.step.effort_nm for tick in ticks])


def test_a_bag_without_commands_has_no_rows(tmp_path, ticks):
    rows = [row for row in bag_of(ticks) if row.topic.startswith('/controller/')]
    for log in read_commands(write(tmp_path / 'a.mcap', rows)):
        assert log.effort_nm.shape == (0, 2)
        assert log.names == ()


def test_each_robot_has_its_own_commands(tmp_path, ticks):
    rows = [row._replace(topic=f'/left{row.topic}') for row in bag_of(ticks)]
    bag = write(tmp_path / 'a.mcap', rows)
    for log in read_commands(bag, '/left'):
        assert len(log.names) == NUM
    for log in read_commands(bag):
        assert len(log.names) == 0


def test_what_is_not_for_the_arm_has_a_row_without_numbers(tmp_path, ticks):
    def renamed(message):
        message.name = ['joint1', 'wrist']

    def longer(message):
        message.data = np.zeros(3)

    rows = doctored(doctored(bag_of(ticks), STAMPED, renamed, {1}), FORWARD, longer, {3})
    stamped, forward = read_commands(write(tmp_path / 'a.mcap', rows))
    assert stamped.names[1] == ('joint1', 'wrist')
    for log, row in ((stamped, 1), (forward, 3)):
        assert log.is_for_arm.tolist() == [k != row for k in range(NUM)]
        np.testing.assert_array_equal(np.isnan(log.effort_nm).all(axis=1), ~log.is_for_arm)


def test_times_that_no_clock_has_are_read(ticks):
    row = commands_of(START_NS, 1, np.zeros(2), START_NS)[0]
    late = row._replace(publish_time_ns=2**64 - 1, log_time_ns=2**64 - 1)
    log = commands_in([late], f'/{STAMPED}', ARM.joint_names)
    assert log.publish_time_ns[0] == log.log_time_ns[0] == 2**63 - 1


@searched(max_examples=100, deadline=None)
@given(st.lists(TEXTS, max_size=3), st.lists(st.floats(width=64), max_size=5))
def test_a_forward_command_is_read_as_rosbags_wrote_it(labels, values):
    dimensions = [
        make('std_msgs/msg/MultiArrayDimension', label=label, size=1, stride=2) for label in labels
    ]
    layout = make('std_msgs/msg/MultiArrayLayout', dim=dimensions, data_offset=7)
    row = raw(f'/{FORWARD}', MULTI_ARRAY, START_NS, 1, layout=layout, data=np.array(values))
    joints = [f'joint{k}' for k in range(len(values))]
    log = commands_in([row], f'/{FORWARD}', joints)
    assert log.num_unreadable == 0
    assert log.names == ((tuple(labels) if any(labels) else ()),)
    if log.is_for_arm[0]:
        np.testing.assert_array_equal(log.effort_nm[0], values)
    assert log.is_for_arm[0] == (not any(labels) or labels == joints)


@searched(max_examples=200, deadline=None)
@given(st.binary(max_size=200))
def test_bytes_that_are_no_command_are_counted(data):
    for topic, kind in ((STAMPED, JOINT_STATE), (FORWARD, MULTI_ARRAY)):
        for start in (b'', b'\0\1\0\0'):
            row = BagMessage(f'/{topic}', kind, 0, start + data, 0, 0)
            log = commands_in([row], f'/{topic}', ARM.joint_names)
            assert len(log.names) + log.num_unreadable == 1


def test_a_cut_forward_command_is_never_read_as_a_shorter_one():
    data = commands_of(START_NS, 1, np.ones(2), START_NS)[1].data
    assert STORE.deserialize_cdr(data, MULTI_ARRAY).data.tolist() == [1.0, 1.0]
    for size in range(len(data)):
        row = BagMessage(f'/{FORWARD}', MULTI_ARRAY, 0, data[:size], 0, 0)
        assert commands_in([row], f'/{FORWARD}', ARM.joint_names).num_unreadable == 1


def aligned(expected, found, expected_s=None, found_s=None):
    """Align texts; by default their times say nothing."""
    times = [
        np.zeros(len(texts), dtype=np.int64) if s is None else np.array(s)
        for texts, s in ((expected, expected_s), (found, found_s))
    ]
    first, second = ([text.encode() for text in texts] for texts in (expected, found))
    return align(first, times[0], second, times[1]).tolist()


@given(st.integers(0, COUNT), st.integers(0, COUNT))
def test_a_part_is_found_in_its_place(begin, end):
    expected = [str(k) for k in range(COUNT)]
    assert aligned(expected, expected[begin:end]) == list(range(COUNT))[begin:end]


@given(NUMBERS)
def test_what_is_missing_leaves_all_others_in_place(missing):
    kept = [k for k in range(COUNT) if k not in missing]
    assert aligned([str(k) for k in range(COUNT)], [str(k) for k in kept]) == kept


@given(NUMBERS)
def test_what_is_altered_keeps_its_place(altered):
    expected = [str(k) for k in range(COUNT)]
    found = [f'other {k}' if k in altered else text for k, text in enumerate(expected)]
    assert aligned(expected, found) == list(range(COUNT))


@given(NUMBERS)
def test_what_is_added_answers_nothing(places):
    expected, found, own = [str(k) for k in range(COUNT)], [], []
    for k, text in enumerate(expected):
        found += [text, f'added {k}'] if k in places else [text]
        own += [k, -1] if k in places else [k]
    assert aligned(expected, found) == own


def test_a_long_gap_and_long_additions_are_passed():
    expected = [str(k) for k in range(300)]
    assert aligned(expected, expected[:50] + expected[250:]) == [*range(50), *range(250, 300)]
    found = expected[:50] + [f'added {k}' for k in range(100)] + expected[50:]
    assert aligned(expected, found) == [*range(50), *[-1] * 100, *range(50, 300)]


def test_an_added_one_at_the_front_does_not_shift_the_others():
    assert aligned('abcd', 'xabcd') == [-1, 0, 1, 2, 3]
    assert aligned('abcd', 'axbcd') == [0, -1, 1, 2, 3]
    assert aligned('abcz', 'zabcz') == [-1, 0, 1, 2, 3]  # the last is no place to begin


def test_among_equal_ones_the_time_tells_where_to_begin():
    expected_s = [0, 10, 20, 30, 40, 50]
    assert aligned('aaaaab', 'aab', expected_s, [31, 41, 51]) == [3, 4, 5]
    assert aligned('aaaaab', 'aa', expected_s, [11, 21]) == [1, 2]


def test_without_anything_equal_the_time_tells_where_to_begin():
    assert aligned('abcdef', 'xyz', [0, 10, 20, 30, 40, 50], [21, 31, 41]) == [2, 3, 4]
    assert aligned('abc', 'x', [10, 20, 30], [5]) == [0]
    assert aligned('abc', 'b') == [1]


def test_nothing_answers_nothing():
    assert aligned('', 'abc') == [-1, -1, -1]
    assert aligned('abc', '') == []


def test_an_hour_of_equal_ones_is_aligned_in_seconds():
    begin_s = time.monotonic()
    count = 100_000
    times = np.arange(count)
    zeros = [b'0'] * count
    assert (align(zeros, times, zeros, times) == times).all()
    broken = [b'0', b''] * (count // 2)
    assert (align(zeros, times, broken, times) >= 0).sum() > 0
    assert (align(zeros, times, [b''] * count, times) == times).all()
    assert time.monotonic() - begin_s < 30.0
