# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""Bags that are whole but not what was hoped for: empty, foreign, reordered, of two robots."""

import json
import os
import random

import numpy as np
import pytest
from support.bags import a_message, write_bag

pytest.importorskip('rclpy', reason="needs ROS: pip install 'metactl_ros[ros]'")
from mcap.writer import CompressionType
from support.made_bags import without
from support.recordings import (
    changed,
    read,
    record_ticks,
    stamp_ns,
    STORE,
    write_own,
    write_raw_mcap,
)

from metactl_ros.bag.reader import BagError, read_bag
from metactl_ros.bag.tick_log import read_ticks

pytestmark = pytest.mark.ros

DOMAIN = os.getpid() % 50 * 2 + 1
TICKS = 60


@pytest.fixture(scope='module')
def messages(tmp_path_factory):
    return record_ticks(tmp_path_factory.mktemp('ct') / 'bag', DOMAIN, TICKS, controller='ct')


def of_topic(messages, topic):
    return [message for message in messages if message.topic == topic]


def test_a_whole_bag_has_no_problems(tmp_path, messages):
    log = read_ticks(write_own(tmp_path / 'bag', messages))
    assert log.problems == ()
    assert len(log.stamp_ns) == TICKS
    assert log.is_restart.tolist() == [True] + [False] * (TICKS - 1)
    assert log.facts.keys() == {'controller', 'parameters'}
    assert log.facts['controller'] == 'ct'
    np.testing.assert_array_equal(log.effort_before_nm[1:], log.effort_nm[:-1])
    np.testing.assert_array_equal(np.diff(log.seen.stamp_ns), 10_000_000)


def test_the_first_ticks_of_a_log_are_a_log(tmp_path, messages):
    log = read_ticks(write_own(tmp_path / 'bag', messages))
    part = log.first(7)
    assert len(part.effort_nm) == len(part.shield['mode']) == len(part.seen.q_rad) == 7
    assert part.seen.begin[-1] == 7


@pytest.mark.parametrize('compression', [CompressionType.NONE, CompressionType.LZ4])
def test_chunks_may_be_compressed(tmp_path, messages, compression):
    log = read_ticks(write_raw_mcap(tmp_path / 'a.mcap', messages, compression))
    assert (len(log.stamp_ns), log.problems) == (TICKS, ())


@pytest.mark.parametrize(
    ('make', 'complaint'),
    [
        (lambda path: None, 'found nothing'),
        (lambda path: path.write_text('hello'), 'found another file'),
        (lambda path: path.mkdir(), 'found no file'),
    ],
)
def test_what_is_no_bag_is_refused(tmp_path, make, complaint):
    make(tmp_path / 'bag')
    with pytest.raises(BagError, match=complaint):
        read_bag(tmp_path / 'bag', lambda _: True)


@pytest.mark.parametrize('content', [b'', b'\0' * 1000, os.urandom(1000)])
@pytest.mark.parametrize('suffix', ['.mcap', '.db3'])
def test_a_file_of_nonsense_is_refused_with_its_reason(tmp_path, content, suffix):
    (tmp_path / f'a{suffix}').write_bytes(content)
    with pytest.raises(BagError, match='breaks off after 0 messages'):
        read_ticks(tmp_path / f'a{suffix}')


def test_an_empty_bag_is_refused(tmp_path):
    write_bag(tmp_path / 'bag', [])
    with pytest.raises(BagError, match='Found no topics'):
        read_ticks(tmp_path / 'bag')


def test_a_foreign_bag_is_told_what_it_lacks(tmp_path, messages):
    foreign = [m for m in messages if not m.topic.startswith('/controller/')]
    with pytest.raises(BagError, match=r'lacks the telemetry.*/joint_commands, /joint_states'):
        read_ticks(write_own(tmp_path / 'bag', foreign))


def test_telemetry_of_an_older_version_is_refused(tmp_path, messages):
    def older(message):
        message.name = [name for name in message.name if name != 'was_restarted']
        message.position = message.position[1:]

    rows = changed(messages, '/controller/shield', 0, older)
    with pytest.raises(BagError, match='another version and lacks was_restarted'):
        read_ticks(write_own(tmp_path / 'bag', rows))


def test_reordered_ticks_are_put_in_order_and_flagged(tmp_path, messages):
    times = [message.log_time_ns for message in messages]
    shuffled = messages.copy()
    random.Random(3).shuffle(shuffled)
    rows = [m._replace(log_time_ns=t) for m, t in zip(shuffled, times, strict=True)]
    log = read_ticks(write_own(tmp_path / 'bag', rows))
    assert 'ticks are not in the order in which they happened' in log.problems
    assert (np.diff(log.stamp_ns) > 0).all()


@pytest.mark.parametrize('topic', ['shield', 'reference', 'feedback', 'output', 'gains'])
def test_a_tick_that_lacks_a_message_is_flagged(tmp_path, messages, topic):
    rows = without(messages, f'controller/{topic}', {30})
    log = read_ticks(write_own(tmp_path / 'bag', rows))
    assert log.num_incomplete == 1
    assert '1 ticks lack a message and are left out' in log.problems
    assert log.is_break[30]


def test_a_lost_tick_is_a_gap(tmp_path, messages):
    rows = messages
    for topic in ('shield', 'reference', 'feedback', 'output', 'gains'):
        rows = without(rows, f'controller/{topic}', {30})
    log = read_ticks(write_own(tmp_path / 'bag', rows))
    assert '1 gaps, the first before tick 30' in log.problems


def test_a_message_that_is_there_twice_is_flagged(tmp_path, messages):
    twice = of_topic(messages, '/controller/output')[30]
    rows = sorted([*messages, twice], key=lambda message: message.log_time_ns)
    assert read_ticks(write_own(tmp_path / 'bag', rows)).problems


def test_a_tick_with_impossible_values_is_flagged(tmp_path, messages):
    rows = changed(messages, '/controller/feedback', 30, lambda m: m.position.fill(np.nan))
    log = read_ticks(write_own(tmp_path / 'bag', rows))
    assert '1 ticks hold impossible values, left out' in log.problems


def test_a_message_that_cannot_be_read_is_flagged(tmp_path, messages):
    chosen = of_topic(messages, '/controller/output')[30]
    rows = [m._replace(data=m.data[:20]) if m is chosen else m for m in messages]
    log = read_ticks(write_own(tmp_path / 'bag', rows))
    assert '/controller/output: 1 messages cannot be read' in log.problems


def test_of_two_robots_one_is_asked_for(tmp_path, messages):
    both = [m._replace(topic=side + m.topic) for m in messages for side in ('/left', '/right')]
    bag = write_own(tmp_path / 'bag', both)
    with pytest.raises(BagError, match='/left/controller, /right/controller; name one'):
        read_ticks(bag)
    log = read_ticks(bag, '/left/controller')
    assert (len(log.stamp_ns), log.problems) == (TICKS, ())
    np.testing.assert_array_equal(log.sent_nm, log.effort_nm)


def test_ticks_that_share_a_stamp_have_each_their_own_command(tmp_path, messages):
    """As those of a robot in simulated time whose first command got lost."""
    second_ns = stamp_ns(of_topic(messages, '/controller/shield')[41])
    rows = []
    for message in messages:
        if message.topic.startswith(('/controller/', '/joint_commands')):
            content = read(message)
            if stamp_ns(message) == second_ns:
                content.header.stamp.nanosec -= 10_000_000
                data = bytes(STORE.serialize_cdr(content, message.type_name))
                message = message._replace(data=data)
        rows.append(message)
    whole = read_ticks(write_own(tmp_path / 'whole', rows))
    assert whole.stamp_ns[40] == whole.stamp_ns[41]
    assert whole.problems == ()
    np.testing.assert_array_equal(whole.sent_nm[40:42], whole.effort_nm[40:42])
    of_both = [m for m in of_topic(rows, '/joint_commands') if stamp_ns(m) == whole.stamp_ns[40]]
    rows = [message for message in rows if message is not of_both[0]]
    log = read_ticks(write_own(tmp_path / 'bag', rows))
    assert np.isnan(log.sent_nm[40]).all()
    np.testing.assert_array_equal(log.sent_nm[41], log.effort_nm[41])


def test_ticks_of_two_policies_are_refused(tmp_path, messages):
    def alter(message):
        message.data = json.dumps({'controller': 'policy'})

    other = changed(messages, '/controller/bundle', 0, alter)
    second = of_topic(other, '/controller/bundle')
    rows = sorted([*messages, *second], key=lambda message: message.log_time_ns)
    with pytest.raises(BagError, match='two controllers'):
        read_ticks(write_own(tmp_path / 'bag', rows))


def test_metadata_that_promises_more_is_believed(tmp_path):
    bag = tmp_path / 'bag'
    write_bag(bag, [a_message(number) for number in range(9)])
    text = (bag / 'metadata.yaml').read_text()
    (bag / 'metadata.yaml').write_text(text.replace('message_count: 9', 'message_count: 10'))
    content = read_bag(bag, lambda _: True)
    assert content.problems == ('metadata.yaml: says 10 messages, 9 were found',)


def test_a_recording_that_stopped_early_says_so(tmp_path):
    bag = tmp_path / 'bag'
    write_bag(bag, [a_message(number) for number in range(9)])
    text = (bag / 'metadata.yaml').read_text()
    stopped = text.replace('custom_data: null', 'custom_data: {stopped: no space}')
    (bag / 'metadata.yaml').write_text(stopped)
    assert 'stopped early (no space)' in read_bag(bag, lambda _: True).problems[0]
