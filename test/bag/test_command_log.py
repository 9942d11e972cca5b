# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""Both command topics of a bag as arrays: a row for every message, numbers only of sound ones."""

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

from metactl_ros.bag.command_log import commands_of as commands_in
from metactl_ros.bag.command_log import FORWARD, read_commands, STAMPED
from metactl_ros.bag.reader import BagMessage

NUM = 5
TEXTS = st.text(max_size=9).filter(lambda text: '\0' not in text and ',' not in text)


@pytest.fixture(scope='module')
def ticks():
    return a_day(NUM)


def test_both_topics_have_names_stamps_times_and_efforts(tmp_path, ticks):
    stamped, forward = read_commands(write(tmp_path / 'a.mcap', bag_of(ticks)), ARM.joint_names)
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
    for log in read_commands(write(tmp_path / 'a.mcap', rows), ARM.joint_names):
        assert log.effort_nm.shape == (0, 2)
        assert log.names == ()


def test_each_robot_has_its_own_commands(tmp_path, ticks):
    rows = [row._replace(topic=f'/left{row.topic}') for row in bag_of(ticks)]
    bag = write(tmp_path / 'a.mcap', rows)
    for log in read_commands(bag, ARM.joint_names, '/left'):
        assert len(log.names) == NUM
    for log in read_commands(bag, ARM.joint_names):
        assert len(log.names) == 0


def test_what_is_not_for_the_arm_has_a_row_without_numbers(tmp_path, ticks):
    def renamed(message):
        message.name = ['joint1', 'wrist']

    def longer(message):
        message.data = np.zeros(3)

    rows = doctored(doctored(bag_of(ticks), STAMPED, renamed, {1}), FORWARD, longer, {3})
    stamped, forward = read_commands(write(tmp_path / 'a.mcap', rows), ARM.joint_names)
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
