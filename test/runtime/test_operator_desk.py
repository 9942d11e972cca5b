# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""What the services of the controller answer: what the arm does, not what was asked for."""

from types import SimpleNamespace

import numpy as np
import pytest
from support.rides import ARM, FAULT, Ride, STOP, WARMUP

from metactl_ros.control.modes import Cause, Mode
from metactl_ros.signals import ArmState

pytest.importorskip('rclpy', reason="needs ROS: pip install 'metactl_ros[ros]'")
from metactl_ros.runtime import operator_desk as module
from metactl_ros.runtime.operator_desk import obstacles, OperatorDesk


class Desk(OperatorDesk):
    """A desk whose waiting lets the ride go on, or not."""

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
    desk = Desk(ride, monkeypatch)
    held = desk.enable(is_wanted=False)
    assert held.success
    assert held.message.startswith('holding: STOP (NO_REFERENCE): the operator holds the arm.')
    assert 'call ~/enable with true' in held.message
    assert ride.controller.last.mode == STOP
    enabled = desk.enable(is_wanted=True)
    assert enabled.success
    assert enabled.message.startswith('enabled: ')
    assert ride.controller.last.mode < STOP


@pytest.mark.parametrize('is_wanted', [False, True])
def test_a_request_that_cannot_help_in_fault_says_why_and_what_to_do(monkeypatch, is_wanted):
    desk = Desk(Ride().faulted(), monkeypatch)
    answer = desk.enable(is_wanted=is_wanted)
    assert not answer.success
    assert answer.message.startswith('no effect yet: FAULT (INTERNAL_ERROR)')
    assert '~/reset_fault' in answer.message


def test_enabling_without_a_reference_succeeds_and_says_what_is_missing(ride, monkeypatch):
    ride.reference.is_missing = True
    answer = Desk(ride, monkeypatch).enable(is_wanted=True)
    assert answer.success
    assert 'enabled: STOP (NO_REFERENCE): there is no reference' in answer.message


def test_a_stop_for_another_reason_is_not_taken_for_a_success(ride, monkeypatch):
    desk = Desk(ride, monkeypatch)
    stopped = ride.controller.last.step._replace(
        modes=np.array(Mode.STOP), causes=np.array(Cause.OUTSIDE_LIMITS)
    )
    monkeypatch.setattr(ride.controller.loop, 'actuate', lambda *_: stopped)
    answer = desk.enable(is_wanted=True)
    assert not answer.success
    assert 'OUTSIDE_LIMITS' in answer.message


def test_a_reset_succeeds_only_if_the_fault_is_left(monkeypatch):
    ride = Ride().faulted()
    good = Desk(ride, monkeypatch).reset_fault()
    assert good.success
    assert good.message.startswith('left FAULT: WARMUP (WINDOW_NOT_FULL)')
    assert ride.controller.last.mode == WARMUP


def test_a_reset_in_vain_names_what_is_still_bad_and_what_it_was(monkeypatch):
    ride = Ride().faulted()
    bad = Desk(ride, monkeypatch, error=Cause.SECOND_SOURCE).reset_fault()
    assert not bad.success
    assert bad.message.startswith('still bad: more than one publisher')
    assert '(SECOND_SOURCE). FAULT (INTERNAL_ERROR)' in bad.message
    assert ride.controller.last.mode == FAULT
    ride.reference.is_missing = True
    assert '(NO_REFERENCE)' in Desk(ride, monkeypatch).reset_fault().message


def test_without_a_fault_there_is_nothing_to_reset_and_nothing_is_asked(ride, monkeypatch):
    desk = Desk(ride, monkeypatch)
    assert desk.reset_fault().message.startswith('no fault: NOMINAL')
    assert not ride.requests.reset_fault
    assert desk.now_s == 0.0


def test_clearing_is_answered_once_the_window_is_empty(ride, monkeypatch):
    answer = Desk(ride, monkeypatch).clear_context()
    assert answer.success
    assert answer.message.startswith('cleared: WARMUP')
    assert ride.controller.last.mode == WARMUP


def test_clearing_again_at_once_is_refused(ride, monkeypatch):
    desk = Desk(ride, monkeypatch)
    assert desk.clear_context().success
    again = desk.clear_context()
    assert not again.success
    assert 'cleared just now; ask again in' in again.message


def test_clearing_is_refused_in_fault_and_not_kept_for_later(monkeypatch):
    ride = Ride().faulted()
    answer = Desk(ride, monkeypatch).clear_context()
    assert (answer.success, ride.requests.clear_context) == (False, False)
    assert answer.message.startswith('not in FAULT')


def test_a_request_that_no_tick_takes_is_answered_in_time_and_taken_back(monkeypatch):
    ride = Ride().faulted()
    desk = Desk(ride, monkeypatch, ticks_until_s=0.0)
    for answer in (desk.reset_fault(), desk.enable(is_wanted=True)):
        assert not answer.success
        assert 'no tick came within 0.5 s' in answer.message
    assert desk.now_s < 1.1
    assert not ride.requests.reset_fault
    ride = Ride().warm()
    desk = Desk(ride, monkeypatch, ticks_until_s=0.0)
    assert not desk.clear_context().success
    assert not ride.requests.clear_context


def test_one_tick_that_may_have_begun_before_is_not_an_answer(ride, monkeypatch):
    desk = Desk(ride, monkeypatch, ticks_until_s=0.003)  # one tick, then none
    assert 'no tick came' in desk.enable(is_wanted=False).message


def test_who_does_not_drive_says_so(ride, monkeypatch):
    desk = Desk(ride, monkeypatch, is_driving=False)
    assert desk.enable(is_wanted=False) == (
        True,
        'holding, once the controller drives: it does not yet.',
    )
    assert not ride.requests.is_enabled
    assert not desk.reset_fault().success
    assert not desk.clear_context().success
    assert (ride.requests.reset_fault, ride.requests.clear_context) == (False, False)
    assert desk.now_s == 0.0


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
