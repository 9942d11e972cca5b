# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""Clearing the context empties the window and nothing else; a bag of it is computed again."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from support.rides import BLIND, FAULT, NOMINAL, Ride, STOP, WARMUP
from support.tick_logs import ARM, Day, log_of, PERIOD_NS, SETTINGS

from metactl_ros.baselines import load_classical
from metactl_ros.check.certificates import check_certificates
from metactl_ros.control.loop import ControlLoop
from metactl_ros.control.modes import Cause, Health, Mode, ModeState, warmed_up_anew
from metactl_ros.motion.reference import Hold
from metactl_ros.replay.recompute import reproduce
from metactl_ros.runtime import operator_requests as module
from metactl_ros.runtime.operator_requests import CLEAR_EVERY_NS, RequestHandler
from metactl_ros.signals import ArmState

CONTROLLER = SETTINGS.controller
NOW_NS = 7 * PERIOD_NS
COUNTED = ModeState(
    mode=Mode.NOMINAL,
    cause=Cause.NONE,
    since_ns=3,
    fresh_ticks=90,
    good_ticks=80,
    violations=2,
    degradations_ns=(1, 2),
)


@pytest.mark.parametrize('mode', [Mode.NOMINAL, Mode.WARMUP, Mode.FALLBACK])
def test_what_drives_warms_up_and_every_count_stays(mode):
    expected = replace(
        COUNTED,
        mode=Mode.WARMUP,
        cause=Cause.WINDOW_NOT_FULL,
        since_ns=3 if mode == Mode.WARMUP else NOW_NS,
        fresh_ticks=0,
    )
    assert warmed_up_anew(replace(COUNTED, mode=mode), NOW_NS) == expected


@pytest.mark.parametrize('mode', [Mode.STOP, Mode.BLIND, Mode.FAULT])
def test_what_does_not_drive_stays_as_it_is_and_warms_up_later(mode):
    before = replace(COUNTED, mode=mode, cause=Cause.OVERSPEED)
    assert warmed_up_anew(before, NOW_NS) == replace(before, fresh_ticks=0)


def wild(seed=5):
    rng = np.random.default_rng(seed)
    return lambda window: rng.uniform(-1.6, 1.6, 8)


@pytest.mark.parametrize('shape', [(2,), (3, 2)], ids=['one', 'batch'])
def test_a_loop_forgets_its_window_and_its_estimate_but_not_its_effort(shape):
    rival = load_classical('momentum_observer', CONTROLLER, None, 0.0)
    loop = ControlLoop(ARM, rival.controller)
    q, zero = np.full(shape, 0.3), np.zeros(shape)
    goal, action = Hold(q + 0.02).at(0.0), np.zeros((*shape[:-1], loop.gain_map.size))
    loop.reset(ArmState(0, q, zero))
    for k in range(60):
        state = ArmState(k * PERIOD_NS, q, zero)
        loop.observe(state, goal, 0.5)
        step = loop.actuate(action, state, goal, state.stamp_ns)
    assert np.abs(step.estimate_nm).min() > 0.1
    loop.forget_context()
    state = ArmState(60 * PERIOD_NS, q + 0.01, zero)
    window = loop.observe(state, goal, 0.5)
    np.testing.assert_array_equal(window[..., :2], np.broadcast_to(0.31, window[..., :2].shape))
    step = loop.actuate(action, state, goal, state.stamp_ns - PERIOD_NS)
    np.testing.assert_array_equal(step.estimate_nm, zero)
    np.testing.assert_array_equal(step.modes, np.full(shape[:-1], Mode.WARMUP))
    again = loop.actuate(action, state, goal, state.stamp_ns - PERIOD_NS)  # no time has passed
    np.testing.assert_array_equal(again.effort_nm, step.effort_nm)


def test_a_row_that_was_not_finite_is_forgotten_with_the_window():
    loop = ControlLoop(ARM, CONTROLLER)
    state, goal = ArmState(0, np.zeros(2), np.zeros(2)), Hold(np.zeros(2)).at(0.0)
    loop.reset(state)
    loop.observe(state, goal, np.nan)
    loop.forget_context()
    steps = [
        loop.actuate(loop.nominal_action, state, goal, k * PERIOD_NS, Health()) for k in range(60)
    ]
    assert steps[-1].modes == Mode.NOMINAL


def cleared(policy, controller=CONTROLLER):
    """Return the ticks of a day on which the context was cleared twice, once in no time."""
    day = Day(policy, controller=controller)
    day.go(90)
    day.requests.clear_context = True
    day.go(90)
    day.requests.clear_context = True
    day.ticks.append(day.controller.drive([], day.ticks[-1].now_ns, is_fresh=True))
    day.go(60)
    assert sum(tick.was_restarted for tick in day.ticks) == 3
    return day.ticks


def test_a_day_with_cleared_contexts_has_sound_certificates():
    assert check_certificates(log_of(cleared(wild())), ARM, CONTROLLER) == []


@pytest.mark.parametrize('name', ['wild', 'momentum_observer'])
def test_a_day_with_cleared_contexts_is_computed_again_to_the_bit(name):
    made = [(wild(), CONTROLLER), (wild(), CONTROLLER)]
    if name != 'wild':
        rival = load_classical(name, CONTROLLER, None, 0.75)
        made = [(rival.policy, rival.controller)] * 2
    log = log_of(cleared(*made[0]))
    again = reproduce(log, ARM, made[1][1], made[1][0])
    assert again.first_difference is None
    assert again.is_compared.all()


def test_a_context_that_was_cleared_where_ticks_are_missing_goes_on_from_the_recorded_effort():
    rival = load_classical('ct_best', CONTROLLER, None, 0.75)
    day = Day(rival.policy, controller=rival.controller)
    day.go(90)
    day.go(40, sees=False, is_fresh=False)  # the torque is zero
    day.go(5)  # it is not any more
    day.requests.clear_context = True
    day.go(70)
    log = log_of(day.ticks[:130] + day.ticks[135:])
    assert log.is_restart[130]
    again = reproduce(log, ARM, rival.controller, rival.policy)
    assert again.first_difference is None


class Handler(RequestHandler):
    """A handler at a given time, whose waiting is a period of the day."""

    def __init__(self, day, monkeypatch):
        super().__init__(day.controller, ARM, lambda: True)
        self._day, self.now_ns = day, 10**12
        monkeypatch.setattr(module, 'time', SimpleNamespace(monotonic_ns=lambda: self.now_ns))

    def _tick_that_took(self, is_taken):
        self._day.go(1)
        assert is_taken()
        return self._day.ticks[-1]


def test_the_context_is_cleared_at_most_once_a_second_and_whoever_asks_is_told(monkeypatch):
    day = Day(wild())
    handler = Handler(day, monkeypatch)
    assert handler.clear_context() == (False, 'there is no context yet: no joint state has come')
    day.go(1)
    answers = []
    for number in range(250):  # 100 Hz
        handler.now_ns = 10**12 + number * PERIOD_NS
        answers.append(handler.clear_context())
        if not answers[-1].success:
            day.go(1)
    assert [number for number, answer in enumerate(answers) if answer.success] == [0, 100, 200]
    assert sum(tick.was_restarted for tick in day.ticks) == 1 + 3
    assert answers[1] == (False, 'cleared just now; ask again in 0.99 s')
    assert CLEAR_EVERY_NS == 100 * PERIOD_NS


@pytest.mark.parametrize(
    ('circumstance', 'mode'),
    [
        ({'sees': False, 'is_fresh': False}, 'BLIND'),
        ({'error': Cause.INTERNAL_ERROR}, 'FAULT'),
        (None, 'STOP'),
    ],
)
def test_an_arm_that_is_not_driven_has_no_context_to_clear(circumstance, mode, monkeypatch):
    day = Day(wild())
    day.go(60)
    day.requests.is_enabled = circumstance is not None
    day.go(1, **(circumstance or {}))
    found = Handler(day, monkeypatch).clear_context()
    assert found == (False, f'not in {mode}: ask again once the arm is driven')
    assert not day.requests.clear_context


def test_clearing_the_context_forgets_no_count_of_the_modes():
    """Four silences and a clearing are no flapping, but five silences are, cleared or not."""
    ride = Ride().warm()
    for _ in range(4):
        assert ride.tick_without_state().mode == BLIND
        ride.warm()
        ride.requests.clear_context = True
        assert ride.tick().mode == WARMUP
    assert (ride.tick_without_state().mode, ride.controller.last.cause) == (FAULT, Cause.FLAPPING)


def test_clearing_the_context_waits_for_the_end_of_a_stop():
    ride = Ride().warm()
    ride.requests.is_enabled = False
    ride.tick()
    ride.requests.clear_context = True
    assert [ride.tick().mode for _ in range(2)] == [STOP, STOP]
    ride.requests.is_enabled = True
    assert [ride.tick().mode for _ in range(2)] == [NOMINAL, WARMUP]
