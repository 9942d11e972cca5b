# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""Robots whose clocks are honest but whose lines stall, and robots whose clocks are not."""

from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
import numpy as np
import pytest
from test_state_gate import (
    ARM,
    BOOT_NS,
    PERIOD_NS,
    Robot,
    sample,
    SECOND_NS,
    STEADY_NS,
    TIMEOUT_NS,
)

from metactl_ros.runtime.joint_states import (
    ADOPT_AFTER,
    DRIFT,
    DRIFTS_AFTER_NS,
    LATE,
    LATE_NS,
    SPAN_NS,
    STALL_NS,
    StampClock,
    StateGate,
)

MS = 1_000_000


def honest_line(rng, count, *, period_ns=PERIOD_NS, rate=1.0, stalls_per_s, stand_stills_per_s):
    """Yield (stamp, received, lateness) of a robot that skips periods, over a line that stalls.

    The line keeps the order.
    """
    moment_ns = free_ns = last_ns = 0
    for _ in range(count):
        moment_ns += period_ns
        share = period_ns / SECOND_NS
        if rng.random() < stand_stills_per_s * share:
            moment_ns += int(rng.integers(2 * period_ns, STALL_NS))
        if rng.random() < stalls_per_s * share:
            free_ns = moment_ns + int(rng.integers(0, STALL_NS))
        last_ns = max(moment_ns + int(rng.exponential(MS)), free_ns, last_ns)
        yield BOOT_NS + round(moment_ns * rate), STEADY_NS + last_ns, last_ns - moment_ns


@hypothesis_settings(max_examples=25)
@given(
    seed=st.integers(0, 2**32),
    rate=st.sampled_from([1.0, 1.0005]) | st.floats(0.96, 1.04),
    stalls_per_s=st.sampled_from([0.0, 0.5, 5.0]),
    stand_stills_per_s=st.sampled_from([0.0, 0.5, 3.0]),
    period_ns=st.sampled_from([PERIOD_NS, 2 * PERIOD_NS, PERIOD_NS // 10]),
)
def test_of_an_honest_clock_only_late_states_are_refused_however_the_line_stalls(
    seed, rate, stalls_per_s, stand_stills_per_s, period_ns
):
    gate, count = StateGate(ARM, PERIOD_NS, TIMEOUT_NS), 1000
    line = honest_line(
        np.random.default_rng(seed),
        count,
        period_ns=period_ns,
        rate=rate,
        stalls_per_s=stalls_per_s,
        stand_stills_per_s=stand_stills_per_s,
    )
    for stamp_ns, received_ns, late_ns in line:
        is_admitted = gate.admit(sample(stamp_ns), received_ns) is not None
        assert is_admitted or late_ns > LATE_NS
    assert gate.counts['accepted'] + gate.counts[LATE] == count
    assert gate.counts['new timelines'] == gate.counts['clock drifts'] == 0


PACES = {
    'by 1 ns each': (1e-7, 0.06, 1.1),
    'at a hundredth': (0.01, 0.06, 1.1),
    'at half': (0.5, 0.13, 1.2),
    '10 % slow': (0.9, 1.1, 2.1),
    '10 % fast': (1.1, 1.1, 6.0),
    '30 % fast': (1.3, 0.5, 3.0),
    'thrice': (3.0, 0.1, 1.2),
    'at 90 times': (90.0, 0.01, 1.1),
}
"""How fast stamps run, and s until the first is refused, and until it is called a drift."""


@pytest.mark.parametrize(('pace', 'refused_s', 'drifts_s'), PACES.values(), ids=PACES)
@pytest.mark.parametrize('jitter_ns', [0, MS])
def test_stamps_that_do_not_keep_pace_are_refused_and_soon_called_a_drift(
    pace, refused_s, drifts_s, jitter_ns
):
    gate, rng = StateGate(ARM, PERIOD_NS, TIMEOUT_NS), np.random.default_rng(1)
    stamp_ns, refused, drifts, ahead_ns = BOOT_NS, [], [], []
    for turn in range(-500, 700):
        stamp_ns += PERIOD_NS if turn < 0 else round(pace * PERIOD_NS)
        received_ns = turn * PERIOD_NS + int(rng.exponential(jitter_ns))
        before = gate.counts['clock drifts']
        state = gate.admit(sample(stamp_ns), STEADY_NS + received_ns)
        refused += [turn] if state is None else []
        drifts += [turn] if gate.counts['clock drifts'] > before else []
        if state is not None:
            ahead_ns.append(state.stamp_ns - received_ns - 500 * PERIOD_NS)
    assert 0 <= refused[0] * PERIOD_NS <= refused_s * SECOND_NS
    assert 0 < drifts[0] * PERIOD_NS <= drifts_s * SECOND_NS
    # Before the first is refused, time has not leapt ahead by more than it was allowed to.
    assert max(ahead_ns[: 500 + refused[0]]) <= TIMEOUT_NS + DRIFT * SPAN_NS + 10 * jitter_ns


@pytest.mark.parametrize('pace', [0.01, 0.5, 3.0])
def test_stamps_that_run_off_do_not_agree_with_each_other_though_each_does_with_the_last(pace):
    robot = Robot()
    robot.runs(300)
    begin_ns = BOOT_NS + robot.turn * PERIOD_NS
    for turn in range(1, 150):
        robot.passes().says(begin_ns + round(pace * turn * PERIOD_NS))
    assert robot.gate.counts['new timelines'] == 0
    assert robot.gate.counts['clock drifts'] == 1


def test_a_drift_that_goes_on_is_called_so_again_and_one_that_ends_is_forgiven():
    robot = Robot()
    robot.runs(300)
    for _ in range(250):
        robot.shift_ns += 5 * PERIOD_NS
        robot.passes().says()
    assert robot.gate.counts['clock drifts'] == 2
    assert robot.runs(101)[:95] == [None] * 95
    assert None not in robot.runs(400)
    assert robot.gate.counts['clock drifts'] == 2
    robot.shift_ns += SECOND_NS  # and it may be set again, as any clock may
    assert robot.runs(ADOPT_AFTER)[-1] is not None


@pytest.mark.parametrize('pace', [0.3, 0.493, 0.692, 0.85, 1.3, 3.0, 20.0])
def test_once_a_clock_drifts_no_state_is_believed_until_it_has_kept_pace_for_a_second(pace):
    robot = Robot()
    robot.runs(300)
    begin_ns = BOOT_NS + robot.turn * PERIOD_NS
    drifted = []
    for turn in range(1, 1000):
        found = robot.passes().says(begin_ns + round(pace * turn * PERIOD_NS))
        drifted += [found] if robot.gate.counts['clock drifts'] else []
    assert len(drifted) > 300
    assert drifted == [None] * len(drifted)
    robot.shift_ns += round((pace - 1.0) * 1000 * PERIOD_NS)
    assert robot.runs(101)[:75] == [None] * 75  # the last of before may have agreed already
    assert None not in robot.runs(200)


def test_stamps_that_stick_are_a_drift_after_a_second():
    robot = Robot()
    robot.runs(300)
    stuck_ns = BOOT_NS + robot.turn * PERIOD_NS
    for turn in range(DRIFTS_AFTER_NS // PERIOD_NS + 1):
        assert robot.gate.counts['clock drifts'] == 0, turn
        assert robot.passes().says(stuck_ns) is None
    assert robot.gate.counts['clock drifts'] == 1


def test_in_simulated_time_nothing_drifts():
    robot = Robot(None)
    robot.runs(300)
    for _ in range(300):
        robot.shift_ns += 50 * PERIOD_NS
        assert robot.passes().says() is not None
    for _ in range(300):
        assert robot.passes().says(BOOT_NS) is None
    assert robot.gate.counts['clock drifts'] == 0


def test_glitches_of_the_sensors_are_no_drift():
    robot = Robot()
    robot.runs(300)
    for turn in range(300):
        assert robot.passes().says(q_rad=(1e3 + 1e3 * (turn % 2), 0.0)) is None
    assert robot.gate.counts['clock drifts'] == 0


@pytest.mark.parametrize('jump_ns', [300 * MS, -300 * MS, 5 * SECOND_NS, -3600 * SECOND_NS])
@pytest.mark.parametrize(('spacing_s', 'num_drifts'), [(4, 1), (6, 0)])
def test_a_clock_may_be_set_twice_within_ten_seconds_but_not_thrice(
    jump_ns, spacing_s, num_drifts
):
    robot = Robot()
    robot.runs(300)
    for number in range(3):
        assert robot.gate.counts['clock drifts'] == 0
        robot.shift_ns += jump_ns
        after = robot.runs(spacing_s * 100)
        is_drift = number == 2 and num_drifts
        num_refused = SECOND_NS // PERIOD_NS if is_drift else ADOPT_AFTER - 1
        assert after[:num_refused] == [None] * num_refused
        assert None not in after[num_refused:]
        assert robot.gate.counts['new timelines'] == number + 1
    assert robot.gate.counts['clock drifts'] == num_drifts


def test_another_arm_that_is_adopted_again_and_again_is_no_drift():
    robot = Robot()
    robot.runs(300)
    for number in range(4):
        robot.q_rad = (1e3 * (number + 1), 2.0)
        robot.runs(50)
    assert robot.gate.counts['new timelines'] == 4
    assert robot.gate.counts['clock drifts'] == 0


def clock_after(seconds, *, spacing_ns=PERIOD_NS):
    """Return a clock that has heard a punctual robot for so long, and the time."""
    clock = StampClock(TIMEOUT_NS)
    for now_ns in range(0, seconds * SECOND_NS + 1, spacing_ns):
        clock.note(0, now_ns)
    return clock, now_ns


@pytest.mark.parametrize(('excess_ns', 'is_so'), [(0, False), (1, True)])
def test_how_far_a_state_may_be_behind_or_ahead(excess_ns, is_so):
    clock, now_ns = clock_after(4)
    later_ns = now_ns + PERIOD_NS
    # The last block began with this state: 20 of them, the newest least delay is its own.
    allowed_ns = LATE_NS + round(DRIFT * PERIOD_NS)
    assert clock.is_behind(allowed_ns + excess_ns, later_ns) is is_so
    # In the first second of two, the oldest of equal delays.
    allowed_ns = TIMEOUT_NS + round(DRIFT * (later_ns - clock._blocks[0][0]))
    assert clock.is_ahead(-allowed_ns - excess_ns, later_ns) is is_so
    other = (7, later_ns - SECOND_NS)
    far_ns = TIMEOUT_NS + round(DRIFT * SECOND_NS) + excess_ns
    assert clock.agree(7 + far_ns, later_ns, other) is not is_so
    assert clock.agree(7 - far_ns, later_ns, other) is not is_so


@pytest.mark.parametrize(('excess_ns', 'is_so'), [(0, False), (1, True)])
def test_the_first_states_may_all_have_come_late_by_a_stall(excess_ns, is_so):
    clock, now_ns = clock_after(1)
    allowed_ns = TIMEOUT_NS + STALL_NS + round(DRIFT * now_ns)
    assert clock.is_ahead(-allowed_ns - excess_ns, now_ns) is is_so


@pytest.mark.parametrize('late_ns', [20 * MS, 45 * MS])
def test_states_that_come_a_little_late_from_now_on_are_believed(late_ns):
    robot = Robot()
    robot.runs(300)
    robot.passes(late_ns // PERIOD_NS)
    robot.shift_ns -= late_ns
    assert None not in robot.runs(500)


@pytest.mark.parametrize('late_ns', [150 * MS, 280 * MS, 900 * MS])
def test_states_that_come_late_and_stay_late_are_a_drift_and_no_new_timeline(late_ns):
    robot = Robot()
    robot.runs(300)
    robot.passes(late_ns // PERIOD_NS)
    robot.shift_ns -= late_ns  # a line that is longer from now on: first a silence, then the past
    assert robot.runs(SECOND_NS // PERIOD_NS) == [None] * (SECOND_NS // PERIOD_NS)
    assert robot.gate.counts['clock drifts'] == 0
    robot.runs(1)
    assert robot.gate.counts['clock drifts'] == 1  # a FAULT; who resets it has looked
    assert robot.runs(99) == [None] * 99
    assert None not in robot.runs(300)
    assert robot.gate.counts['clock drifts'] == 1


def test_states_that_were_late_are_believed_at_once_when_they_are_not_any_more():
    robot = Robot()
    robot.runs(300)
    robot.passes(28)
    robot.shift_ns -= 280 * MS
    assert robot.runs(90) == [None] * 90
    robot.shift_ns += 280 * MS
    assert None not in robot.runs(300)
    assert robot.gate.counts['clock drifts'] == 0


def test_before_anything_is_known_everything_is_in_step():
    clock = StampClock(TIMEOUT_NS)
    assert not clock.is_behind(SECOND_NS, 0)
    assert not clock.is_ahead(-SECOND_NS, 0)


def test_a_patient_controller_is_not_patient_without_end():
    robot = Robot(10 * SECOND_NS)
    robot.runs(300)
    robot.shift_ns += STALL_NS + round(DRIFT * SPAN_NS) + PERIOD_NS
    assert robot.runs(1) == [None]
