# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""Every change of the mode is told once, with cause and remedy."""

from types import SimpleNamespace

from hypothesis import given
from hypothesis import strategies as st
import pytest

from metactl_ros.control.modes import Cause, Mode, NO_JOINT
from metactl_ros.runtime.mode_report import (
    ENDS,
    explain,
    HELD,
    LEAVING,
    ModeLog,
    MOST_NEWS,
    MOST_RECENT,
    recent_lines,
    text_of,
    TEXTS,
)

SECOND_NS = 1_000_000_000


def tick(mode, cause=Cause.NONE, joint=NO_JOINT):
    return SimpleNamespace(mode=mode, cause=cause, joint=joint)


def noted(*modes):
    log = ModeLog()
    for number, mode in enumerate(modes):
        log.note(tick(mode), number * SECOND_NS, is_enabled=True)
    return log


def test_every_cause_has_words_of_its_own_and_a_remedy():
    assert list(TEXTS) == list(Cause)
    assert len({text.happened for text in TEXTS.values()}) == len(Cause)
    for text in (*TEXTS.values(), HELD, ENDS):
        assert text.happened
        assert text.remedy
        for words in text:
            assert words.strip(' .') == words  # they become parts of a sentence


def test_a_line_has_mode_cause_what_happened_the_remedy_and_how_the_mode_is_left():
    text = TEXTS[Cause.OVERSPEED]
    said = f'{text.happened}. To do: {text.remedy}; then call ~/reset_fault.'
    assert explain(Mode.FAULT, Cause.OVERSPEED, text, '') == f'FAULT (OVERSPEED): {said}'
    assert explain(Mode.FAULT, Cause.OVERSPEED, text, 'j2') == f'FAULT (OVERSPEED, j2): {said}'
    assert set(LEAVING) == {Mode.STOP, Mode.BLIND, Mode.FAULT}
    for mode, leaving in LEAVING.items():
        assert text.to_do(mode) == f'{text.remedy}; {leaving}'
    assert text.to_do(Mode.FALLBACK) == text.remedy
    assert ENDS.to_do(Mode.BLIND) == ENDS.remedy


@pytest.mark.parametrize('cause', Cause)
def test_who_holds_and_who_ends_an_arm_is_told_apart(cause):
    assert text_of(cause, is_enabled=True) == TEXTS[cause]
    assert text_of(cause, is_enabled=True, is_ending=True) == ENDS
    held = text_of(cause, is_enabled=False)
    assert held == (HELD if cause == Cause.NO_REFERENCE else TEXTS[cause])


def test_a_change_tells_where_from_where_to_and_why():
    log = ModeLog()
    log.note(tick(Mode.WARMUP, Cause.WINDOW_NOT_FULL), 1, is_enabled=True)
    log.note(tick(Mode.STOP, Cause.NO_REFERENCE), 2, is_enabled=False)
    log.is_ending = True
    log.note(tick(Mode.BLIND, Cause.STALE_STATE), 3, is_enabled=False)
    changes, num_lost = log.take()
    assert num_lost == 0
    assert [str(change).split(':')[0] for change in changes] == [
        'control begins -> WARMUP (WINDOW_NOT_FULL)',
        'WARMUP -> STOP (NO_REFERENCE)',
        'STOP -> BLIND (STALE_STATE)',
    ]
    assert [change.text for change in changes[1:]] == [HELD, ENDS]
    assert [change.at_ns for change in changes] == [1, 2, 3]


@pytest.mark.parametrize(('joint', 'name'), [(NO_JOINT, ''), (0, ''), (1, ', elbow'), (2, '')])
def test_the_joint_that_a_cause_is_about_is_named(joint, name):
    log = ModeLog(('', 'elbow'))
    log.note(tick(Mode.FAULT, Cause.OVERSPEED, joint), 0, is_enabled=True)
    assert f'FAULT (OVERSPEED{name}): ' in str(log.recent[0])


@given(st.lists(st.tuples(st.sampled_from(Mode), st.booleans()), max_size=150))
def test_each_change_is_taken_once_in_order_or_counted_as_lost(rows):
    log, before, expected, told, num_lost = ModeLog(), None, [], [], 0
    for mode, is_taken in rows:
        log.note(tick(mode), 0, is_enabled=True)
        if mode != before:
            expected.append((before, mode))
            before = mode
        if is_taken:
            changes, lost = log.take()
            assert lost == 0 or len(changes) == MOST_NEWS
            told += [None] * lost + [(change.before, change.mode) for change in changes]
            num_lost += lost
    changes, lost = log.take()
    told += [None] * lost + [(change.before, change.mode) for change in changes]
    assert log.num_changes == len(expected) == len(told)
    assert all(found in (None, wanted) for found, wanted in zip(told, expected, strict=True))
    assert log.take() == ([], 0)


def test_changes_that_nobody_takes_are_bounded_and_the_oldest_are_lost():
    log = noted(*[Mode.NOMINAL, Mode.FALLBACK] * MOST_NEWS)
    changes, num_lost = log.take()
    assert (len(changes), num_lost) == (MOST_NEWS, MOST_NEWS)
    assert changes[-1].number == log.num_changes == 2 * MOST_NEWS


def test_the_last_changes_stay_for_diagnostics_newest_first():
    log = noted(*[Mode.NOMINAL, Mode.FALLBACK] * 10)
    log.take()
    lines = recent_lines(log.recent, 30 * SECOND_NS)
    assert list(lines) == [f'change {place}' for place in range(1, MOST_RECENT + 1)]
    assert lines['change 1'].startswith('11.0 s ago: NOMINAL -> FALLBACK (NONE): ')
    assert lines['change 8'].startswith('18.0 s ago: FALLBACK -> NOMINAL (NONE): ')
