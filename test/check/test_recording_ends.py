# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""Commands where a recording, a run or the log begins, ends or has a gap: what is excused."""

import numpy as np
import pytest

pytest.importorskip('rosbags', reason='needs the extra `sim`')
from support.made_bags import (
    a_day,
    bag_of,
    BOTH,
    counts_of,
    doctored,
    END_NS,
    enormous,
    NUM_TICKS,
    numbered_anew,
    PERIOD_NS,
    START_NS,
    TELEMETRY,
    whats_of,
    without,
)
from support.tick_logs import Day

from metactl_ros.bag.topics import FORWARD, STAMPED
from metactl_ros.check.sent_commands import CUT_S, JOIN_S
from metactl_ros.control.modes import Cause
from metactl_ros.signals import NANOSECONDS_PER_SECOND as SECOND

# Where a recording begins and ends.


@pytest.mark.parametrize('topics', [BOTH, (STAMPED,), (FORWARD,)])
def test_a_recorder_that_joined_later_hears_no_first_commands(judged, rows, topics):
    late = rows
    for topic in topics:
        late = without(late, topic, range(12))
    result = judged(late)
    assert (result.facts['verdict'], result.exit_code) == ('equal', 0)
    for topic in topics:
        assert counts_of(result, topic)['not_heard_yet'] == 12
        assert result.facts['commands'][topic]['not_heard_yet'] == 12


def received_at_once(rows, when_ns):
    """Return the messages as a recorder has them to which kept telemetry is sent when it joins."""
    return [
        row._replace(log_time_ns=max(row.log_time_ns, when_ns)) if '/controller/' in row.topic else
        row
        for row in rows
    ]  # fmt: skip


def test_a_recorder_may_join_long_after_the_ticks_that_are_kept_for_it(judged):
    ticks = a_day(400)
    rows = bag_of(ticks)
    for topic in BOTH:
        rows = without(rows, topic, range(380))
    result = judged(received_at_once(rows, START_NS + 380 * PERIOD_NS))
    assert (result.facts['verdict'], result.exit_code) == ('equal', 0)
    assert counts_of(result, STAMPED) == counts_of(result, FORWARD) == {'not_heard_yet': 380}


@pytest.mark.parametrize('topic', BOTH)
def test_commands_that_begin_too_long_after_the_ticks_are_missing(judged, topic):
    num_ticks = round(JOIN_S / 0.01) + 50
    rows = numbered_anew(without(bag_of(a_day(num_ticks)), topic, range(num_ticks - 10)))
    result = judged(rows)
    assert result.exit_code == 1
    assert counts_of(result, topic)['missing'] == len(result.sent.violations)
    assert abs(len(result.sent.violations) - 40) <= 1


@pytest.mark.parametrize('topics', [BOTH, (STAMPED,), (FORWARD,)])
def test_a_recording_that_ended_between_two_topics_is_cut_off(judged, ticks, topics):
    rows = bag_of(ticks)
    for topic in topics:
        rows = without(rows, topic, range(NUM_TICKS - 5, NUM_TICKS))
    result = judged(rows)
    assert (result.facts['verdict'], result.exit_code) == ('equal', 0)
    for topic in topics:
        assert counts_of(result, topic) == {'cut_off': 5}


@pytest.mark.parametrize('topic', BOTH)
def test_commands_that_end_too_long_before_the_ticks_are_missing(judged, ticks, topic):
    rows = without(bag_of(ticks), topic, range(NUM_TICKS - 50, NUM_TICKS))
    result = judged(rows)
    assert result.exit_code == 1
    counts = counts_of(result, topic)
    assert counts['missing'] == len(result.sent.violations) == 50 - counts['cut_off']
    assert counts['cut_off'] == pytest.approx(CUT_S / 0.01, abs=1)


def test_last_commands_that_are_missing_before_the_last_zero_are_not_cut_off(judged, rows):
    result = judged(numbered_anew(without(rows, STAMPED, {NUM_TICKS - 1})))
    assert whats_of(result) == [(NUM_TICKS - 1, f'{STAMPED}: missing')]


def test_commands_whose_tick_was_not_told_any_more_are_counted(judged, ticks):
    rows = bag_of(ticks)
    for kind in TELEMETRY:
        rows = without(rows, f'controller/{kind}', range(NUM_TICKS - 2, NUM_TICKS))
    result = judged(rows)
    assert (result.facts['verdict'], result.exit_code) == ('equal', 0)
    others = counts_of(result, STAMPED)
    assert others.get('untold', 0) + others.get('fading', 0) == 2
    assert counts_of(result, FORWARD) == {}


def test_commands_that_go_on_without_ticks_are_found(judged, ticks):
    rows = bag_of(ticks)
    for kind in TELEMETRY:
        rows = without(rows, f'controller/{kind}', range(NUM_TICKS - 40, NUM_TICKS))
    result = judged(rows)
    assert result.exit_code == 1
    assert counts_of(result, STAMPED)['foreign'] > 0


# The last commands of a run.


def test_a_fading_torque_that_leaps_is_found(judged, ticks, fade):
    result = judged(bag_of(ticks, tail=[fade[-1], fade[-1]]))
    assert result.exit_code == 1
    assert {what for _, what in whats_of(result)} >= {f'{STAMPED}: of no tick'}


def test_a_torque_that_grows_after_the_last_tick_is_found(judged, ticks):
    last = ticks[-1].step.effort_nm
    growing = [last + k * 0.1 * np.sign(last) for k in range(1, 60)]
    result = judged(bag_of(ticks, tail=growing))
    assert result.exit_code == 1
    assert counts_of(result, STAMPED)['foreign'] == pytest.approx(59 - CUT_S / 0.01, abs=1)


def test_zeros_are_not_sent_for_ever(judged, ticks, fade):
    result = judged(bag_of(ticks, tail=[*fade, *(np.zeros(2) for _ in range(300))]))
    assert result.exit_code == 1
    assert counts_of(result, STAMPED)['foreign'] > 0
    assert counts_of(result, STAMPED)['fading'] > 200


def test_each_run_of_a_bag_may_fade(judged, ticks, fade):
    second = bag_of(
        a_day(),
        begin_ns=END_NS + 200 * PERIOD_NS,
        tail=fade,
        num_before=NUM_TICKS + len(fade),
    )
    result = judged([*bag_of(ticks, tail=fade), *second])
    assert (result.facts['verdict'], result.exit_code) == ('equal', 0)
    assert counts_of(result, STAMPED) == {'fading': 2 * len(fade)}
    assert result.sent.counts[FORWARD]['compared'] == 2 * (NUM_TICKS + len(fade))


def test_where_all_bear_one_stamp_order_tells_whose_a_command_is(judged, ticks, fade):
    """As after January 2038; simulated time stands still at the end of every run."""
    rows = bag_of(ticks, tail=fade, stamp_ns=START_NS)
    result = judged(rows)
    assert (result.facts['verdict'], result.exit_code) == ('equal', 0)
    assert counts_of(result, STAMPED) == {'fading': len(fade)}
    for topic in BOTH:
        rows = without(rows, topic, range(12))
    result = judged(rows)
    assert (result.facts['verdict'], result.exit_code) == ('equal', 0)
    assert counts_of(result, STAMPED) == {'fading': len(fade), 'not_heard_yet': 12}
    result = judged(numbered_anew(without(rows, STAMPED, {20})))
    assert whats_of(result) == [(32, f'{STAMPED}: missing')]
    result = judged(doctored(rows, STAMPED, enormous, {20}))
    assert whats_of(result) == [(32, f'{STAMPED}: not as decided')]


def test_the_zeros_that_share_the_stamp_of_the_last_ticks_are_nobodys(judged):
    day = Day(None)
    day.policy = lambda _: day.controller.loop.nominal_action
    day.go(30)
    day.go(15, sees=False, is_fresh=False)
    assert day.ticks[-1].step.effort_nm.all()
    rows = bag_of(day.ticks, stamp_ns=START_NS, tail=[np.zeros(2)])
    rows = numbered_anew(without(rows, STAMPED, {44}))
    assert whats_of(judged(rows)) == [(44, f'{STAMPED}: missing')]


def test_a_clock_that_is_set_back_changes_nothing(judged, rows, fade):
    """Publish times are the publisher's wall clock; the recorder's does not step back."""
    begin_ns = START_NS + 40 * PERIOD_NS
    back = [
        row._replace(publish_time_ns=row.publish_time_ns - 30 * SECOND)
        if row.publish_time_ns >= begin_ns
        else row
        for row in rows
    ]
    result = judged(back)
    assert (result.facts['verdict'], result.exit_code) == ('equal', 0)
    assert result.sent.counts[FORWARD]['compared'] == NUM_TICKS + len(fade)


def test_a_controller_that_was_started_again_is_found_anew_by_the_recorder(judged, ticks):
    second = bag_of(a_day(), begin_ns=END_NS + 200 * PERIOD_NS)
    for topic in BOTH:
        second = without(second, topic, range(20))
    result = judged([*bag_of(ticks), *second])
    assert (result.facts['verdict'], result.exit_code) == ('equal', 0)
    assert counts_of(result, STAMPED) == counts_of(result, FORWARD) == {'not_heard_yet': 20}


# What the log lacks.


@pytest.mark.parametrize('kinds', [TELEMETRY, ('gains',)])
def test_commands_of_ticks_that_are_not_in_the_log_are_counted(judged, rows, kinds):
    for kind in kinds:
        rows = without(rows, f'controller/{kind}', {30, 31})
    result = judged(rows)
    assert result.exit_code == 3
    assert result.sent.violations == []
    assert counts_of(result, STAMPED)['in_gaps'] == 2
    assert result.facts['ticks']['compared'] < NUM_TICKS


def test_a_tick_that_was_left_out_is_a_gap_even_where_nothing_changes(judged):
    """As with the zeros of a fault: the tick after it limits its rate from the same effort."""
    day = Day(None)
    day.policy = lambda _: day.controller.loop.nominal_action
    day.go(20)
    day.go(50, error=Cause.INTERNAL_ERROR)
    assert not day.ticks[60].step.effort_nm.any()
    rows = bag_of(day.ticks)
    impossible = doctored(rows, 'controller/feedback', lambda m: m.position.fill(np.nan), {60})
    for broken in (without(rows, 'controller/gains', {60}), impossible):
        result = judged(broken)
        assert not result.log.is_break.any()
        assert (result.exit_code, result.sent.violations) == (3, [])
        assert counts_of(result, STAMPED) == {'in_gaps': 1}


def test_commands_long_before_the_first_tick_of_the_log_are_found(judged):
    num_before = round(JOIN_S / 0.01) + 20
    rows = bag_of(a_day(num_before + 80))
    for kind in TELEMETRY:
        rows = without(rows, f'controller/{kind}', range(num_before))
    result = judged(rows)
    counts = counts_of(result, STAMPED)
    assert counts['foreign'] == pytest.approx(20, abs=1)
    assert counts['foreign'] + counts['in_gaps'] == num_before


def test_a_command_in_a_gap_is_still_within_size(judged, rows):
    rows = doctored(rows, STAMPED, enormous, {30})
    for kind in TELEMETRY:
        rows = without(rows, f'controller/{kind}', {30, 31})
    result = judged(rows)
    assert (29, f'{STAMPED}: of no tick') in whats_of(result)


def test_commands_before_a_recording_that_begins_in_the_middle_are_counted(judged, rows):
    for kind in TELEMETRY:
        rows = without(rows, f'controller/{kind}', range(10))
    result = judged(rows)
    assert (result.exit_code, result.sent.violations) == (3, [])
    assert counts_of(result, STAMPED)['in_gaps'] == 10
    reasons = result.facts['ticks']['not_compared']
    assert reasons['the recording begins in the middle of a run'] > 0
