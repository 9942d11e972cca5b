# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""Commands of a bag that are not what its ticks decided: each kind is found, and none is green."""

import json

import numpy as np
import pytest

pytest.importorskip('rosbags', reason='needs the extra `sim`')
from support.made_bags import (
    bag_of,
    BOTH,
    counts_of,
    doctored,
    efforts_of,
    END_NS,
    enormous,
    extra,
    JOINT_STATE,
    MS,
    NUM_TICKS,
    numbered_anew,
    PERIOD_NS,
    START_NS,
    whats_of,
    without,
    write,
)

from metactl_ros.bag.topics import FORWARD, STAMPED
from metactl_ros.cli import main
from metactl_ros.replay.verdict import summary


def test_a_whole_run_is_equal_and_every_command_is_compared(judged, rows, fade):
    result = judged(rows)
    assert (result.facts['verdict'], result.exit_code) == ('equal', 0)
    assert result.facts['ticks']['compared'] == NUM_TICKS
    assert result.sent.counts[STAMPED]['compared'] == NUM_TICKS
    assert result.sent.counts[FORWARD]['compared'] == NUM_TICKS + len(fade)
    assert counts_of(result, STAMPED) == {'fading': len(fade)}
    assert counts_of(result, FORWARD) == {}


# What is in a command.


def with_nan(message):
    getattr(message, efforts_of(message))[1] = np.nan


def without_efforts(message):
    setattr(message, efforts_of(message), np.zeros(0))


def too_long(message):
    name = efforts_of(message)
    setattr(message, name, np.append(getattr(message, name), 0.0))


def misnamed(message):
    if hasattr(message, 'name'):
        message.name = ['joint1', 'joint3']
    else:
        message.layout.dim[0].label = 'joint2,joint1'


def one_bit_off(message):
    values = getattr(message, efforts_of(message))
    values[0] = np.nextafter(values[0], np.inf)


@pytest.mark.parametrize('topic', BOTH)
@pytest.mark.parametrize(
    ('change', 'what'),
    [
        (with_nan, 'not finite'),
        (without_efforts, 'not for these joints'),
        (too_long, 'not for these joints'),
        (misnamed, 'not for these joints'),
        (one_bit_off, 'not as decided'),
        (enormous, 'not as decided'),
    ],
)
@pytest.mark.parametrize('numbers', [{0}, {30}, {NUM_TICKS - 1}, range(NUM_TICKS)])
def test_a_command_with_another_content_is_found(judged, rows, topic, change, what, numbers):
    result = judged(doctored(rows, topic, change, numbers))
    assert result.exit_code == 1
    assert whats_of(result) == [(k, f'{topic}: {what}') for k in numbers]
    assert f'{len(numbers)} commands wrong or missing' in result.facts['verdict']


def test_a_command_that_is_no_number_is_found_even_if_it_was_decided_so(judged, rows):
    rows = doctored(rows, 'controller/output', with_nan, {30})
    for topic in BOTH:
        rows = doctored(rows, topic, with_nan, {30})
    assert whats_of(judged(rows)) == [(30, f'{topic}: not finite') for topic in BOTH]


def test_a_stamped_command_without_names_is_found(judged, rows):
    result = judged(doctored(rows, STAMPED, lambda m: setattr(m, 'name', []), {30}))
    assert whats_of(result) == [(30, f'{STAMPED}: not for these joints')]


def test_a_forward_command_needs_no_label(judged, rows):
    unlabelled = doctored(rows, FORWARD, lambda m: m.layout.dim.clear(), range(NUM_TICKS))
    assert judged(unlabelled).exit_code == 0


@pytest.mark.parametrize('topic', BOTH)
def test_zeros_of_another_sign_are_not_equal_to_the_bit(judged, ticks, fade, topic):
    def negated(message):
        getattr(message, efforts_of(message)).fill(-0.0)

    still = bag_of(ticks, tail=[*fade, np.zeros(2)])
    last = NUM_TICKS + len(fade)
    result = judged(doctored(still, topic, negated, {last}))
    assert result.exit_code == 1
    (violation,) = result.sent.violations
    assert violation.found > violation.allowed


@pytest.mark.parametrize('topic', BOTH)
def test_a_message_of_another_type_is_a_problem_of_the_bag(judged, rows, topic):
    other = 'std_msgs/msg/Float64MultiArray' if topic == STAMPED else JOINT_STATE
    retyped = [r._replace(type_name=other) if r.topic == f'/{topic}' else r for r in rows]
    result = judged(retyped)
    assert result.exit_code == 3
    assert f'/{topic}: {NUM_TICKS + 3} messages cannot be read' in result.problems


# How many there are.


@pytest.mark.parametrize('topic', BOTH)
def test_a_topic_without_commands_is_never_green(judged, rows, topic):
    result = judged([row for row in rows if row.topic != f'/{topic}'])
    assert result.exit_code == 3
    assert result.facts['verdict'].startswith('partial')
    assert any('no command of a tick is in the bag, 0 others' in p for p in result.problems)
    assert result.sent.counts[topic]['missing'] >= NUM_TICKS
    assert result.sent.violations == []  # nobody can say that they were not sent


def test_a_bag_of_ticks_alone_is_never_green(judged, rows):
    result = judged([row for row in rows if row.topic.startswith('/controller/')])
    assert (result.exit_code, len(result.sent.problems)) == (3, 2)


@pytest.mark.parametrize('topic', BOTH)
@pytest.mark.parametrize('numbers', [{30}, {30, 31, 32}, set(range(20, 50)), {5, 40}])
def test_commands_that_were_not_sent_are_missing(judged, rows, topic, numbers):
    result = judged(numbered_anew(without(rows, topic, numbers)))
    assert result.exit_code == 1
    assert whats_of(result) == [(k, f'{topic}: missing') for k in sorted(numbers)]


@pytest.mark.parametrize('topic', BOTH)
@pytest.mark.parametrize('numbers', [{30}, {30, 31, 32}, set(range(20, 50)), {5, 40}])
def test_commands_that_only_the_recorder_missed_make_the_bag_partial(judged, rows, topic, numbers):
    result = judged(without(rows, topic, numbers))
    assert result.exit_code == 3
    assert result.sent.violations == []
    assert counts_of(result, topic)['lost'] == len(numbers)
    expected = f'/{topic}: {len(numbers)} commands were sent, as their numbers tell, that are not'
    assert any(problem.startswith(expected) for problem in result.problems)


def test_a_forward_command_lost_among_equal_ones_is_told_by_its_number(judged, ticks, fade):
    still = bag_of(ticks, tail=[*fade, *(np.zeros(2) for _ in range(20))])
    result = judged(without(still, FORWARD, {NUM_TICKS + len(fade) + 9}))
    assert result.exit_code == 3
    assert any('1 commands were sent' in problem for problem in result.problems)


def test_numbers_that_count_all_topics_are_not_believed(judged, rows):
    """As those of a writer that knows no publishers."""
    counted = [row._replace(sequence=number) for number, row in enumerate(rows, 1)]
    assert judged(counted).exit_code == 0
    result = judged(without(counted, STAMPED, {30}))
    assert whats_of(result) == [(30, f'{STAMPED}: missing')]


@pytest.mark.parametrize('topic', BOTH)
@pytest.mark.parametrize('effort', [(1e9, 0.0), (0.0, 0.0), (np.nan, 0.0), (1.0, -2.0)])
@pytest.mark.parametrize('tick', [0, 30])
def test_a_command_under_a_foreign_stamp_is_found(judged, rows, topic, effort, tick):
    when_ns = START_NS + tick * PERIOD_NS + 4 * MS
    result = judged(extra(rows, topic, when_ns, effort, stamp_ns=when_ns))
    assert result.exit_code == 1
    assert whats_of(result) == [(tick, f'{topic}: of no tick')]


@pytest.mark.parametrize('topic', BOTH)
def test_a_second_publisher_that_repeats_every_command_is_found(judged, rows, topic):
    again = [
        row._replace(log_time_ns=row.log_time_ns + 3 * MS, publish_time_ns=row.publish_time_ns)
        for row in rows
        if row.topic == f'/{topic}'
    ]
    result = judged([*rows, *again])
    assert result.exit_code == 1
    assert counts_of(result, topic)['foreign'] >= NUM_TICKS - 1


@pytest.mark.parametrize('topic', BOTH)
def test_a_command_before_the_first_tick_of_a_run_is_found(judged, rows, topic):
    result = judged(extra(rows, topic, START_NS - 5 * MS, (0.0, 0.0)))
    assert result.exit_code == 1
    assert whats_of(result) == [(0, f'{topic}: of no tick')]


@pytest.mark.parametrize('topic', BOTH)
@pytest.mark.parametrize('after_s', [0.05, 1.0, 10.0])
@pytest.mark.parametrize('effort', [(1e9, 0.0), (20.0, 5.0)])
def test_a_command_after_the_end_of_a_run_is_found(judged, rows, fade, topic, after_s, effort):
    when_ns = END_NS + len(fade) * PERIOD_NS + round(after_s * 1e9)
    result = judged(extra(rows, topic, when_ns, effort, stamp_ns=when_ns))
    assert result.exit_code == 1
    assert whats_of(result) == [(NUM_TICKS - 1, f'{topic}: of no tick')]


def test_commands_of_which_all_have_foreign_stamps_are_never_green(judged, rows):
    def later(message):
        message.header.stamp.nanosec += 1

    result = judged(doctored(rows, STAMPED, later, range(NUM_TICKS + 3)))
    assert result.exit_code == 3
    assert counts_of(result, STAMPED)['foreign'] == NUM_TICKS + 3
    assert len(result.sent.violations) > NUM_TICKS
    assert '73 others are' in result.sent.problems[0]


@pytest.mark.parametrize(
    ('topic', 'found'),
    [
        (STAMPED, [(30, f'{STAMPED}: out of order')]),
        (FORWARD, [(29, f'{FORWARD}: of no tick'), (31, f'{FORWARD}: missing')]),
    ],
)
def test_commands_in_another_order_are_found(judged, rows, topic, found):
    places = [k for k, row in enumerate(rows) if row.topic == f'/{topic}'][30:32]
    swapped = list(rows)
    for k, other in zip(places, reversed(places), strict=True):
        swapped[k] = rows[k]._replace(data=rows[other].data)
    result = judged(swapped)
    assert (result.exit_code, whats_of(result)) == (1, found)


# What is said of it all.


def test_a_run_in_shadow_has_no_commands_and_says_so(judged, ticks):
    rows = [r for r in bag_of(ticks, shadow=True) if r.topic not in (f'/{STAMPED}', f'/{FORWARD}')]
    result = judged(rows)
    assert result.facts['verdict'] == 'equal, in shadow: no commands were sent'
    assert (result.exit_code, result.facts['commands']['is_shadow']) == (0, True)
    driven = judged(extra(rows, STAMPED, START_NS + 4 * MS, (3.0, 0.0), stamp_ns=START_NS))
    assert driven.exit_code == 0
    assert (f'{STAMPED}, in shadow: not judged', "1, somebody else's") in summary(driven)


@pytest.mark.parametrize('shadow', ['true', 1, False, None])
def test_only_who_says_shadow_plainly_is_in_shadow(judged, ticks, shadow):
    rows = [row for row in bag_of(ticks, shadow=shadow) if row.topic != f'/{STAMPED}']
    assert judged(rows).exit_code == 3


def test_every_number_is_in_text_json_and_page(tmp_path, rows, capsys):
    rows = without(without(rows, STAMPED, {30}), 'controller/gains', {50})
    bag = write(tmp_path / 'bag.mcap', extra(rows, FORWARD, START_NS + 44 * MS, (0.0, 0.0)))
    assert main(['replay', str(bag), '--out', str(tmp_path)]) == 3
    text = ' '.join(capsys.readouterr().out.split())
    page = (tmp_path / 'replay.html').read_text()
    facts = json.loads((tmp_path / 'replay.json').read_text())
    assert facts['ticks']['recorded'] == NUM_TICKS
    reasons = facts['ticks']['not_compared']
    assert reasons['a message of the tick is missing'] == 1
    num_skipped = reasons['what the loop knew is missing after a gap']
    assert facts['ticks']['compared'] + num_skipped + 1 == NUM_TICKS
    assert facts['commands'][STAMPED]['lost'] == 1
    assert facts['commands'][STAMPED]['in_gaps'] == 1
    assert facts['commands'][FORWARD]['foreign'] == 1
    for words in ('not compared: a message of the tick', 'lost', 'in gaps', 'foreign'):
        assert words in text
        assert words in page
    assert 'commands were sent' in text
    assert 'class="verdict red"' in page
