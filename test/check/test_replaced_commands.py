# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""Efforts that the last check before sending replaced: reported, and held to size and rate."""

import numpy as np
import pytest

pytest.importorskip('rosbags', reason='needs the extra `sim`')
from support.made_bags import (
    bag_of,
    BOTH,
    doctored,
    efforts_of,
    END_NS,
    NUM_TICKS,
    PERIOD_NS,
    TELEMETRY,
    whats_of,
    without,
)
from support.tick_logs import Day

from metactl_ros.bag.topics import FORWARD, STAMPED
from metactl_ros.replay.verdict import summary


@pytest.fixture(scope='module')
def rows(ticks):
    return bag_of(ticks)


def far_away(message):
    message.effort = np.array([-40.0, 0.0])


def replaced_at(rows, number, effort_nm):
    """Return the messages with an impossible effort decided at a tick, and another sent."""

    def decided(message):
        message.effort = np.array([1e4, 0.0])

    rows = doctored(rows, 'controller/output', decided, {number})
    for topic in BOTH:
        rows = doctored(rows, topic, lambda m: setattr(m, efforts_of(m), effort_nm), {number})
    return rows


def test_a_command_that_the_last_check_replaced_is_reported_and_nothing_else(judged, ticks, rows):
    before, step = ticks[29].step.effort_nm, 0.01 * np.array([4000.0, 1500.0])

    def decided(message):
        message.effort = np.array([1e4, 0.0])

    def sent(message):
        setattr(message, efforts_of(message), before - 0.5 * np.clip(before, -step, step))

    wild = doctored(rows, 'controller/output', decided, {30})
    replaced = doctored(doctored(wild, STAMPED, sent, {30}), FORWARD, sent, {30})
    result = judged(replaced)
    assert result.sent.violations == []
    assert result.sent.counts[STAMPED]['replaced'] == 1
    assert ('  replaced', '1') in summary(result)
    assert result.again.first_difference.quantity == 'effort'
    assert result.exit_code == 1  # nor may a controller decide such an effort
    for kind in TELEMETRY:  # where ticks are not compared, nothing differs but this command
        replaced = without(replaced, f'controller/{kind}', range(25))
    result = judged(replaced)
    assert result.sent.counts[STAMPED]['replaced'] == 1
    assert result.again.first_difference is None

    def too_far(message):
        setattr(message, efforts_of(message), before + 1.1 * step)

    beyond = doctored(doctored(wild, STAMPED, too_far, {30}), FORWARD, too_far, {30})
    result = judged(beyond)
    assert result.sent.counts[STAMPED]['replaced'] == 0
    assert (30, f'{STAMPED}: not as decided') in whats_of(result)


def test_the_last_check_goes_on_from_what_it_sent(judged, ticks, rows):
    """The tick after a replacement decides on from what was decided, which was not sent."""
    before, after = ticks[29].step.effort_nm, ticks[31].step.effort_nm
    sent_nm = before - np.sign(after - before) * 0.01 * np.array([4000.0, 1500.0])

    def decided(message):
        message.effort = np.array([1e4, 0.0])

    def sent(message):
        setattr(message, efforts_of(message), sent_nm)

    rows = doctored(rows, 'controller/output', decided, {30})
    for topic in BOTH:
        rows = doctored(rows, topic, sent, {30, 31})
    result = judged(rows)
    assert result.sent.counts[STAMPED]['replaced'] == 2
    # The next one is as decided, but too far from what was sent: the check would not let it pass.
    assert whats_of(result) == [(32, f'{STAMPED}: beyond its rate after a replaced one')]


def test_after_a_pause_the_last_check_goes_on_from_what_acts_on_the_arm(judged):
    day = Day(None)
    day.policy = lambda _: day.controller.loop.nominal_action
    day.go(30)
    acting = day.ticks[-1].step.effort_nm - np.array([90.0, 0.0])  # farther than one period leads
    day.controller.resume(acting)
    day.go(30)
    result = judged(replaced_at(bag_of(day.ticks), 30, acting))
    assert result.sent.counts[STAMPED]['replaced'] == 1
    assert (30, f'{STAMPED}: not as decided') not in whats_of(result)


def test_at_the_begin_of_a_run_the_last_check_goes_on_from_what_acts_on_the_arm(judged, ticks):
    first = ticks[0].effort_before_nm
    second = bag_of(ticks, begin_ns=END_NS + 200 * PERIOD_NS, num_before=NUM_TICKS)
    rows = bag_of(ticks) + replaced_at(second, 0, first)
    result = judged(doctored(rows, STAMPED, far_away, {NUM_TICKS - 1}))
    assert result.sent.counts[STAMPED]['replaced'] == 1
    assert (NUM_TICKS, f'{STAMPED}: not as decided') not in whats_of(result)


def test_after_a_gap_the_last_check_goes_on_from_what_the_tick_tells(judged, ticks, rows):
    rows = replaced_at(rows, 40, ticks[40].effort_before_nm)
    rows = doctored(rows, STAMPED, far_away, {9})
    for kind in TELEMETRY:
        rows = without(rows, f'controller/{kind}', range(10, 40))
    result = judged(rows)
    assert result.log.is_break[10]
    assert result.sent.counts[STAMPED]['replaced'] == 1
