# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from metactl_ros.control.modes import (
    Cause,
    Mode,
    ModeInputs,
    ModeSettings,
    ModeState,
    next_mode,
    NO_JOINT,
    warmed_up_anew,
)
from metactl_ros.errors import ConfigError
from metactl_ros.settings import load_settings

NOMINAL, WARMUP, FALLBACK, STOP, BLIND, FAULT = Mode
PERIOD_NS = 10_000_000
SECOND_NS = 1_000_000_000

SHIPPED = load_settings()
SHORT = ModeSettings(
    warmup_ticks=3,
    recovery_ticks=4,
    rest_velocity_radps=0.01,
    stop_settle_s=0.3,
    stop_velocity_radps=1.0,
    violation_tolerance=1e-6,
    stop_after_violations=3,
    fault_after_violations=6,
    fault_after_degradations_per_s=5,
    fault_after_blind_s=10.0,
    blind_ramp_s=0.2,
)
GOOD = ModeInputs(
    state_is_fresh=True,
    reference_is_valid=True,
    policy_is_valid=True,
    meets_condition=True,
    is_within_limits=True,
    is_at_rest=True,
    is_stopping=True,
    can_move=True,
    error=Cause.NONE,
    joint=NO_JOINT,
    reset_requested=False,
)
STALE = {'state_is_fresh': False}
NO_GOAL = {'reference_is_valid': False}
BAD_POLICY = {'policy_is_valid': False}
OUTSIDE = {'is_within_limits': False}
UNCERTIFIED = {'meets_condition': False}
MOVING = {'is_at_rest': False}
ERROR = {'error': Cause.INTERNAL_ERROR}
RESET = {'reset_requested': True}


class Bench:
    def __init__(self, mode=NOMINAL, settings=SHORT):
        self.settings, self.now_ns = settings, 0
        self.state = ModeState(mode=mode, fresh_ticks=100, good_ticks=0)

    def tick(self, inputs=None, after_ns=PERIOD_NS):
        self.now_ns += after_ns
        self.state = next_mode(
            self.settings, self.state, GOOD._replace(**(inputs or {})), self.now_ns
        )
        return self.state.mode

    def ticks(self, count, inputs=None):
        return [self.tick(inputs) for _ in range(count)]


@pytest.mark.parametrize(
    ('before', 'inputs', 'after'),
    [
        (NOMINAL, {}, NOMINAL),
        (NOMINAL, MOVING, NOMINAL),
        (NOMINAL, RESET, NOMINAL),
        (NOMINAL, UNCERTIFIED, NOMINAL),
        (NOMINAL, BAD_POLICY, FALLBACK),
        (NOMINAL, NO_GOAL, STOP),
        (NOMINAL, OUTSIDE, STOP),
        (NOMINAL, STALE, BLIND),
        (NOMINAL, ERROR, FAULT),
        (WARMUP, {}, NOMINAL),
        (WARMUP, BAD_POLICY, FALLBACK),
        (WARMUP, NO_GOAL, STOP),
        (WARMUP, STALE, BLIND),
        (WARMUP, ERROR, FAULT),
        (FALLBACK, {}, FALLBACK),
        (FALLBACK, BAD_POLICY, FALLBACK),
        (FALLBACK, OUTSIDE, STOP),
        (FALLBACK, STALE, BLIND),
        (FALLBACK, ERROR, FAULT),
        (STOP, {}, FALLBACK),
        (STOP, BAD_POLICY, FALLBACK),
        (STOP, MOVING, STOP),
        (STOP, NO_GOAL, STOP),
        (STOP, OUTSIDE, STOP),
        (STOP, STALE, BLIND),
        (STOP, ERROR, FAULT),
        (BLIND, STALE, BLIND),
        (BLIND, NO_GOAL, STOP),
        (BLIND, OUTSIDE, STOP),
        (BLIND, ERROR, FAULT),
        (FAULT, {}, FAULT),
        (FAULT, STALE, FAULT),
        (FAULT, ERROR, FAULT),
        (FAULT, NO_GOAL, FAULT),
        (FAULT, RESET, WARMUP),
    ],
)
def test_one_tick_leads_from_each_mode_to_the_next(before, inputs, after):
    assert Bench(before).tick(inputs) == after


@pytest.mark.parametrize(
    ('faults', 'after'),
    [
        ([BAD_POLICY, NO_GOAL], STOP),
        ([BAD_POLICY, OUTSIDE], STOP),
        ([NO_GOAL, STALE], BLIND),
        ([BAD_POLICY, STALE], BLIND),
        ([OUTSIDE, STALE], BLIND),
        ([STALE, ERROR], FAULT),
        ([NO_GOAL, ERROR], FAULT),
        ([BAD_POLICY, NO_GOAL, OUTSIDE, STALE, ERROR], FAULT),
    ],
)
@pytest.mark.parametrize('before', [NOMINAL, WARMUP, FALLBACK, STOP, BLIND])
def test_of_several_faults_the_gravest_decides(before, faults, after):
    assert (
        Bench(before).tick({key: value for one in faults for key, value in one.items()}) == after
    )


def test_one_more_fault_never_makes_the_mode_better():
    for before, flags in product(Mode, product([True, False], repeat=len(GOOD))):
        inputs = ModeInputs(*flags)._asdict()
        mode = Bench(before).tick(inputs)
        for fault in (STALE, NO_GOAL, BAD_POLICY, OUTSIDE, UNCERTIFIED, MOVING, ERROR):
            assert Bench(before).tick({**inputs, **fault}) >= mode, (before, inputs, fault)


@pytest.mark.parametrize('fault', [STALE, NO_GOAL, BAD_POLICY, OUTSIDE, ERROR])
def test_no_bad_input_is_ever_nominal(fault):
    for before, flags in product(Mode, product([True, False], repeat=len(GOOD))):
        assert Bench(before).tick({**ModeInputs(*flags)._asdict(), **fault}) != NOMINAL


def test_warmup_lasts_exactly_as_many_fresh_samples_as_set():
    bench = Bench(WARMUP)
    bench.state = ModeState()
    assert bench.ticks(4) == [WARMUP] * 3 + [NOMINAL]


def test_without_warmup_the_first_sample_is_nominal():
    assert next_mode(replace(SHORT, warmup_ticks=0), ModeState(), GOOD, 0).mode == NOMINAL


def test_a_policy_is_not_needed_during_warmup():
    bench = Bench()
    bench.state = ModeState()
    assert bench.ticks(4, BAD_POLICY) == [WARMUP] * 3 + [FALLBACK]


def test_after_blindness_the_window_is_filled_again():
    bench = Bench()
    bench.ticks(2, STALE)
    assert bench.ticks(4) == [WARMUP] * 3 + [NOMINAL]


def test_a_stale_sample_during_warmup_starts_it_again():
    bench = Bench()
    bench.tick(STALE)
    bench.ticks(2)
    assert bench.tick(STALE) == BLIND
    assert bench.ticks(4) == [WARMUP] * 3 + [NOMINAL]


def test_fallback_ends_on_the_last_of_exactly_as_many_good_ticks_as_set():
    bench = Bench()
    assert bench.tick(BAD_POLICY) == FALLBACK
    assert bench.ticks(4) == [FALLBACK] * 3 + [NOMINAL]


def test_a_bad_answer_during_recovery_starts_it_again():
    bench = Bench()
    bench.tick(BAD_POLICY)
    bench.ticks(3)
    assert bench.tick(BAD_POLICY) == FALLBACK
    assert bench.ticks(4) == [FALLBACK] * 3 + [NOMINAL]


def test_a_stop_in_between_does_not_shorten_the_recovery_of_the_policy():
    bench = Bench()
    assert [bench.tick(x) for x in (BAD_POLICY, {**NO_GOAL, **BAD_POLICY})] == [FALLBACK, STOP]
    assert bench.ticks(4) == [FALLBACK] * 3 + [NOMINAL]


def test_stop_ends_only_at_rest():
    bench = Bench()
    bench.tick({**NO_GOAL, **MOVING})
    assert bench.ticks(50, MOVING) == [STOP] * 50
    assert bench.ticks(50, NO_GOAL) == [STOP] * 50
    assert bench.tick() == NOMINAL


def test_violations_in_a_row_lead_to_stop_and_then_to_fault():
    bench = Bench()
    expected = [NOMINAL] * 2 + [STOP] * 3 + [FAULT] * 2
    assert bench.ticks(7, UNCERTIFIED) == expected


def test_the_shipped_counts_of_violations_are_ten_and_fifty():
    bench = Bench(settings=SHIPPED.controller.modes)
    expected = [NOMINAL] * 9 + [STOP] * 40 + [FAULT]
    assert bench.ticks(50, UNCERTIFIED) == expected


def test_one_admissible_tick_starts_the_count_of_violations_again():
    bench = Bench()
    for _ in range(20):
        assert bench.ticks(2, UNCERTIFIED) == [NOMINAL] * 2
        assert bench.tick() == NOMINAL


def test_blindness_becomes_a_fault_after_its_time_and_not_before():
    bench = Bench()
    bench.tick(STALE)
    assert bench.tick(STALE, after_ns=10 * SECOND_NS) == BLIND
    assert bench.tick(STALE, after_ns=1) == FAULT


def test_time_spent_in_another_mode_is_not_blindness():
    bench = Bench()
    assert bench.tick(STALE, after_ns=3600 * SECOND_NS) == BLIND
    bench.tick(after_ns=9 * SECOND_NS)
    assert bench.tick(STALE, after_ns=9 * SECOND_NS) == BLIND


def blindness_every(spacing_ns, count):
    bench, modes = Bench(), []
    for _ in range(count):
        modes.append(bench.tick(STALE, after_ns=spacing_ns - 1))
        bench.tick(after_ns=1)
    return modes


@pytest.mark.parametrize('spacing_ns', [2, PERIOD_NS, SECOND_NS // 4 - 1])
def test_a_burst_of_degradations_within_a_second_is_a_fault(spacing_ns):
    assert blindness_every(spacing_ns, 5) == [BLIND] * 4 + [FAULT]


@pytest.mark.parametrize('spacing_ns', [SECOND_NS // 4, SECOND_NS])
def test_the_same_degradations_over_a_longer_time_are_not(spacing_ns):
    assert blindness_every(spacing_ns, 50) == [BLIND] * 50


def test_a_reset_clears_the_degradations_before_it():
    bench = Bench()
    for _ in range(5):
        bench.tick(STALE)
        bench.tick()
    assert bench.state.mode == FAULT
    assert bench.tick(RESET) == WARMUP
    assert bench.tick(STALE) == BLIND


def test_a_fault_latches_whatever_comes_until_a_reset():
    bench = Bench()
    bench.tick(ERROR)
    for flags in product([True, False], repeat=len(GOOD)):
        assert bench.tick({**ModeInputs(*flags)._asdict(), 'reset_requested': False}) == FAULT
    assert bench.tick(after_ns=3600 * SECOND_NS) == FAULT


@pytest.mark.parametrize('fault', [STALE, ERROR, NO_GOAL, OUTSIDE, UNCERTIFIED])
def test_a_reset_leaves_a_fault_only_if_all_is_well(fault):
    bench = Bench()
    bench.tick(ERROR)
    assert bench.tick({**RESET, **fault}) == FAULT
    assert bench.tick(RESET) == WARMUP


def test_after_a_reset_the_window_is_filled_again():
    bench = Bench()
    bench.tick(ERROR)
    bench.ticks(10)
    assert bench.tick(RESET) == WARMUP
    assert bench.ticks(3) == [WARMUP] * 2 + [NOMINAL]


@pytest.mark.parametrize(
    ('change', 'message'),
    [
        ({'warmup_ticks': -1}, r'ModeSettings\.warmup_ticks: .* at least 0, found -1'),
        ({'blind_ramp_s': np.nan}, r'ModeSettings\.blind_ramp_s: .* at least 0, found nan'),
        ({'fault_after_blind_s': 0.0}, r'ModeSettings\.fault_after_blind_s: .* above 0'),
        ({'fault_after_degradations_per_s': 0}, r'degradations_per_s: .* above 0, found 0'),
    ],
)
def test_impossible_settings_are_refused(change, message):
    with pytest.raises(ConfigError, match=message):
        replace(SHORT, **change)


@pytest.mark.parametrize(
    ('before', 'inputs', 'mode', 'cause'),
    [
        (NOMINAL, {}, NOMINAL, Cause.NONE),
        (NOMINAL, BAD_POLICY, FALLBACK, Cause.POLICY_FAILED),
        (FALLBACK, {}, FALLBACK, Cause.RECOVERING),
        (NOMINAL, NO_GOAL, STOP, Cause.NO_REFERENCE),
        (NOMINAL, OUTSIDE, STOP, Cause.OUTSIDE_LIMITS),
        (NOMINAL, STALE, BLIND, Cause.STALE_STATE),
        (NOMINAL, {'error': Cause.OVERSPEED}, FAULT, Cause.OVERSPEED),
    ],
)
def test_every_mode_says_why(before, inputs, mode, cause):
    bench = Bench(before)
    assert (bench.tick(inputs), bench.state.cause) == (mode, cause)


def test_a_stop_that_goes_on_and_a_latched_fault_remember_why_they_were_entered():
    bench = Bench()
    bench.tick(OUTSIDE)
    assert (bench.tick(MOVING), bench.state.cause) == (STOP, Cause.OUTSIDE_LIMITS)
    bench.tick({'error': Cause.SECOND_SOURCE})
    assert (bench.tick(), bench.state.cause) == (FAULT, Cause.SECOND_SOURCE)
    assert (bench.tick(RESET), bench.state.cause) == (WARMUP, Cause.WINDOW_NOT_FULL)


def test_counted_causes_are_named():
    bench = Bench()
    bench.ticks(3, UNCERTIFIED)
    assert (bench.state.mode, bench.state.cause) == (STOP, Cause.CONDITION_VIOLATED)
    bench.ticks(3, UNCERTIFIED)
    assert (bench.state.mode, bench.state.cause) == (FAULT, Cause.CONDITION_VIOLATED)
    flapping = Bench()
    for _ in range(5):
        flapping.tick(STALE)
        flapping.ticks(5)
    assert (flapping.state.mode, flapping.state.cause) == (FAULT, Cause.FLAPPING)
    blind = Bench()
    blind.tick(STALE)
    blind.tick(STALE, after_ns=11 * SECOND_NS)
    assert (blind.state.mode, blind.state.cause) == (FAULT, Cause.BLIND_TOO_LONG)


def test_a_stop_that_does_not_slow_the_arm_down_becomes_a_fault_in_time():
    bench = Bench(settings=SHORT)
    fast = {'is_stopping': False, 'is_at_rest': False}
    assert bench.ticks(31, OUTSIDE | fast) == [STOP] * 31
    assert (bench.tick(OUTSIDE | fast), bench.state.cause) == (FAULT, Cause.STOP_FAILED)
    slow = Bench()
    assert slow.ticks(100, OUTSIDE | MOVING) == [STOP] * 100


def test_full_effort_without_motion_stops_the_arm():
    bench = Bench()
    assert (bench.tick({'can_move': False}), bench.state.cause) == (STOP, Cause.NO_MOTION)


def test_an_error_names_its_joint_as_long_as_it_is_latched():
    bench = Bench()
    bench.tick({'error': Cause.OVERSPEED, 'joint': 1})
    assert (bench.state.cause, bench.state.joint) == (Cause.OVERSPEED, 1)
    bench.tick({'error': Cause.TRACKING_ERROR, 'joint': 0})
    assert (bench.state.cause, bench.state.joint) == (Cause.OVERSPEED, 1)
    bench.tick(RESET)
    assert bench.state.joint == NO_JOINT


def test_good_ticks_before_a_failure_do_not_count_for_the_recovery():
    bench = Bench()
    bench.ticks(20)
    bench.tick(BAD_POLICY)
    assert bench.ticks(4) == [FALLBACK] * 3 + [NOMINAL]


@pytest.mark.parametrize(
    ('mode', 'after', 'since_ns'),
    [(NOMINAL, WARMUP, 9), (WARMUP, WARMUP, 5), (FALLBACK, WARMUP, 9), (STOP, STOP, 5)],
)
def test_an_emptied_window_begins_a_warmup_only_where_none_is_under_way(mode, after, since_ns):
    before = ModeState(mode=mode, since_ns=5, fresh_ticks=7, violations=2, degradations_ns=(1,))
    found = warmed_up_anew(before, 9)
    assert (found.mode, found.since_ns, found.fresh_ticks) == (after, since_ns, 0)
    assert (found.violations, found.degradations_ns) == (2, (1,))
