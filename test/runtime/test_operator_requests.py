# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""Every change of the mode is told once; services answer what the arm does, not what was asked."""

from types import SimpleNamespace

from hypothesis import given
from hypothesis import strategies as st
import numpy as np
import pytest
from support.rides import ARM, FAULT, Ride, STOP, WARMUP

from metactl_ros.control.modes import Cause, Mode, NO_JOINT
from metactl_ros.runtime import operator_requests as module
from metactl_ros.runtime.operator_requests import (
    ENDS,
    explain,
    HELD,
    LEAVING,
    MAX_PENDING,
    MAX_RECENT,
    ModeLog,
    obstacles,
    recent_lines,
    RequestHandler,
    text_of,
    TEXTS,
)
from metactl_ros.signals import ArmState


class Handler(RequestHandler):
    """A handler whose waiting lets the ride go on, or not."""

    def __init__(self, ride, monkeypatch, is_driving=True, ticks_until_s=10.0, **given):
        super().__init__(ride.controller, ARM, lambda: is_driving)
        self.now_s = 0.0

        def sleep(duration_s):
            self.now_s += duration_s
            if self.now_s < ticks_until_s:
                ride.tick(**given)

        times = SimpleNamespace(
            monotonic=lambda: self.now_s, monotonic_ns=lambda: int(1e9 * self.now_s), sleep=sleep
        )
        monkeypatch.setattr(module, 'time', times)


@pytest.fixture
def ride():
    return Ride().warm()


def test_holding_and_enabling_are_answered_once_the_arm_does_so(ride, monkeypatch):
    handler = Handler(ride, monkeypatch)
    held = handler.enable(is_wanted=False)
    assert held.success
    assert held.message.startswith('holding: STOP (NO_REFERENCE): the operator holds the arm.')
    assert 'call ~/enable with true' in held.message
    assert ride.controller.last.mode == STOP
    enabled = handler.enable(is_wanted=True)
    assert enabled.success
    assert enabled.message.startswith('enabled: ')
    assert ride.controller.last.mode < STOP


@pytest.mark.parametrize('is_wanted', [False, True])
def test_a_request_that_cannot_help_in_fault_says_why_and_what_to_do(monkeypatch, is_wanted):
    handler = Handler(Ride().faulted(), monkeypatch)
    answer = handler.enable(is_wanted=is_wanted)
    assert not answer.success
    assert answer.message.startswith('no effect yet: FAULT (INTERNAL_ERROR)')
    assert '~/reset_fault' in answer.message


def test_enabling_without_a_reference_succeeds_and_says_what_is_missing(ride, monkeypatch):
    ride.reference.is_missing = True
    answer = Handler(ride, monkeypatch).enable(is_wanted=True)
    assert answer.success
    assert 'enabled: STOP (NO_REFERENCE): there is no reference' in answer.message


def test_a_stop_for_another_reason_is_not_taken_for_a_success(ride, monkeypatch):
    handler = Handler(ride, monkeypatch)
    stopped = ride.controller.last.step._replace(
        modes=np.array(Mode.STOP), causes=np.array(Cause.OUTSIDE_LIMITS)
    )
    monkeypatch.setattr(ride.controller.loop, 'actuate', lambda *_: stopped)
    answer = handler.enable(is_wanted=True)
    assert not answer.success
    assert 'OUTSIDE_LIMITS' in answer.message


def test_a_reset_succeeds_only_if_the_fault_is_left(monkeypatch):
    ride = Ride().faulted()
    good = Handler(ride, monkeypatch).reset_fault()
    assert good.success
    assert good.message.startswith('left FAULT: WARMUP (WINDOW_NOT_FULL)')
    assert ride.controller.last.mode == WARMUP


def test_a_reset_in_vain_names_what_is_still_bad_and_what_it_was(monkeypatch):
    ride = Ride().faulted()
    bad = Handler(ride, monkeypatch, error=Cause.SECOND_SOURCE).reset_fault()
    assert not bad.success
    assert bad.message.startswith('still bad: more than one publisher')
    assert '(SECOND_SOURCE). FAULT (INTERNAL_ERROR)' in bad.message
    assert ride.controller.last.mode == FAULT
    ride.reference.is_missing = True
    assert '(NO_REFERENCE)' in Handler(ride, monkeypatch).reset_fault().message


def test_without_a_fault_there_is_nothing_to_reset_and_nothing_is_asked(ride, monkeypatch):
    handler = Handler(ride, monkeypatch)
    assert handler.reset_fault().message.startswith('no fault: NOMINAL')
    assert not ride.requests.reset_fault
    assert handler.now_s == 0.0


def test_clearing_is_answered_once_the_window_is_empty(ride, monkeypatch):
    answer = Handler(ride, monkeypatch).clear_context()
    assert answer.success
    assert answer.message.startswith('cleared: WARMUP')
    assert ride.controller.last.mode == WARMUP


def test_clearing_again_at_once_is_refused(ride, monkeypatch):
    handler = Handler(ride, monkeypatch)
    assert handler.clear_context().success
    again = handler.clear_context()
    assert not again.success
    assert 'cleared just now; ask again in' in again.message


def test_clearing_is_refused_in_fault_and_not_kept_for_later(monkeypatch):
    ride = Ride().faulted()
    answer = Handler(ride, monkeypatch).clear_context()
    assert (answer.success, ride.requests.clear_context) == (False, False)
    assert answer.message.startswith('not in FAULT')


def test_a_request_that_no_tick_takes_is_answered_in_time_and_taken_back(monkeypatch):
    ride = Ride().faulted()
    handler = Handler(ride, monkeypatch, ticks_until_s=0.0)
    for answer in (handler.reset_fault(), handler.enable(is_wanted=True)):
        assert not answer.success
        assert 'no tick came within 0.5 s' in answer.message
    assert handler.now_s < 1.1
    assert not ride.requests.reset_fault
    ride = Ride().warm()
    handler = Handler(ride, monkeypatch, ticks_until_s=0.0)
    assert not handler.clear_context().success
    assert not ride.requests.clear_context


def test_one_tick_that_may_have_begun_before_is_not_an_answer(ride, monkeypatch):
    handler = Handler(ride, monkeypatch, ticks_until_s=0.003)  # one tick, then none
    assert 'no tick came' in handler.enable(is_wanted=False).message


def test_who_does_not_drive_says_so(ride, monkeypatch):
    handler = Handler(ride, monkeypatch, is_driving=False)
    assert handler.enable(is_wanted=False) == (
        True,
        'holding, once the controller drives: it does not yet.',
    )
    assert not ride.requests.is_enabled
    assert not handler.reset_fault().success
    assert not handler.clear_context().success
    assert (ride.requests.reset_fault, ride.requests.clear_context) == (False, False)
    assert handler.now_s == 0.0


def test_what_keeps_a_fault_is_found_and_else_what_made_it(ride):
    tick = ride.tick()
    health, (q, qd) = tick.health, (ARM.limits.position_rad, ARM.limits.velocity_radps)

    def found(state=tick.state, doubt=Cause.NONE, **changes):
        changed = tick._replace(state=state, health=health._replace(**changes))
        return obstacles(changed, ARM.limits, doubt)

    def moved(q_rad, qd_radps):
        return ArmState(0, np.array(q_rad), np.array(qd_radps))

    assert found() == [tick.cause] == [Cause.NONE]
    assert found(error=Cause.CLOCK_MISMATCH) == [Cause.CLOCK_MISMATCH]
    assert found(doubt=Cause.FROZEN_STATE) == [Cause.FROZEN_STATE]
    twice = {'error': Cause.OVERSPEED, 'doubt': Cause.OVERSPEED}
    assert found(**twice) == [Cause.OVERSPEED]
    assert found(state_is_fresh=False, reference_is_valid=False) == [
        Cause.STALE_STATE,
        Cause.NO_REFERENCE,
    ]
    assert found(moved([-q[0] - 0.1, 0.0], [0.0, 0.0])) == [Cause.OUTSIDE_LIMITS]
    assert found(moved([0.0, 0.0], [0.0, qd[1] + 0.1])) == [Cause.OUTSIDE_LIMITS]


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
            assert lost == 0 or len(changes) == MAX_PENDING
            told += [None] * lost + [(change.before, change.mode) for change in changes]
            num_lost += lost
    changes, lost = log.take()
    told += [None] * lost + [(change.before, change.mode) for change in changes]
    assert log.num_changes == len(expected) == len(told)
    assert all(found in (None, wanted) for found, wanted in zip(told, expected, strict=True))
    assert log.take() == ([], 0)


def test_changes_that_nobody_takes_are_bounded_and_the_oldest_are_lost():
    log = noted(*[Mode.NOMINAL, Mode.FALLBACK] * MAX_PENDING)
    changes, num_lost = log.take()
    assert (len(changes), num_lost) == (MAX_PENDING, MAX_PENDING)
    assert changes[-1].number == log.num_changes == 2 * MAX_PENDING


def test_the_last_changes_stay_for_diagnostics_newest_first():
    log = noted(*[Mode.NOMINAL, Mode.FALLBACK] * 10)
    log.take()
    lines = recent_lines(log.recent, 30 * SECOND_NS)
    assert list(lines) == [f'change {place}' for place in range(1, MAX_RECENT + 1)]
    assert lines['change 1'].startswith('11.0 s ago: NOMINAL -> FALLBACK (NONE): ')
    assert lines['change 8'].startswith('18.0 s ago: FALLBACK -> NOMINAL (NONE): ')
