# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""Deadlines alone, and in the hands of the control thread."""

from itertools import pairwise
import math
import os
import sys
import time

from hypothesis import given
from hypothesis import strategies as st
import numpy as np
import psutil
import pytest
from support.rides import BLIND, NOMINAL, PERIOD_NS, WARMUP
from support.worlds import (
    arrival,
    BOOT_NS,
    each,
    LEAD_NS,
    MS,
    on_time,
    SECOND_NS,
    STEP_NM,
    World,
)

from metactl_ros.runtime import deadlines as module
from metactl_ros.runtime.deadlines import (
    awake_cores,
    become_realtime,
    BINS_MS,
    CORE_LATENCY,
    CREEP,
    Deadlines,
    sleep_until,
    TICKS_KEPT,
)

FIRST_NS = 123_456_789
TICKS_TO_ALIGN = math.ceil(0.5 / CREEP)  # half a period at 2 % each

lateness = st.integers(0, PERIOD_NS // 2) | st.integers(0, 20 * PERIOD_NS)
phases = st.integers(0, PERIOD_NS - 1)


def ticked(*late_ns):
    """Return deadlines after ticks that came so late."""
    deadlines = Deadlines(PERIOD_NS, FIRST_NS)
    for late in late_ns:
        assert deadlines.begin_tick(deadlines.next_ns + late) == max(late, 0)
    return deadlines


def phase_error_ns(deadlines, phase_ns):
    """Return how far the next deadline is from a phase, ns, the short way round."""
    error = (deadlines.next_ns - phase_ns) % PERIOD_NS
    return min(error, PERIOD_NS - error)


def test_a_million_periods_do_not_drift_though_most_ticks_are_late_and_many_missed():
    late_ns = np.random.default_rng(1).integers(0, 20 * PERIOD_NS, 100_000)
    deadlines = ticked(*late_ns.tolist())
    num_missed = int((late_ns // PERIOD_NS).sum())
    assert len(late_ns) + num_missed > 1_000_000
    assert deadlines.next_ns == FIRST_NS + (len(late_ns) + num_missed) * PERIOD_NS
    assert (deadlines.num_ticks, deadlines.num_missed) == (len(late_ns), num_missed)
    assert deadlines.num_late == (late_ns > PERIOD_NS // 2).sum()
    assert deadlines.histogram.sum() == len(late_ns)


def test_a_tick_that_begins_early_is_not_late():
    assert ticked(-5, -PERIOD_NS).next_ns == FIRST_NS + 2 * PERIOD_NS
    assert ticked(-5).lateness_ms()['max'] == 0.0


@pytest.mark.parametrize(
    ('late_ns', 'missed'),
    [(PERIOD_NS - 1, 0), (PERIOD_NS, 1), (2 * PERIOD_NS - 1, 1), (100 * PERIOD_NS + 1, 100)],
)
def test_what_was_missed_is_skipped_and_counted(late_ns, missed):
    deadlines = ticked(late_ns)
    assert deadlines.num_missed == missed
    assert deadlines.num_ticks == 1
    assert deadlines.next_ns == FIRST_NS + (1 + missed) * PERIOD_NS


@given(late=st.lists(lateness, max_size=50))
def test_the_next_deadline_is_ahead_on_the_grid_and_at_most_a_period_away(late):
    deadlines = Deadlines(PERIOD_NS, FIRST_NS)
    for late_ns in late:
        now_ns = deadlines.next_ns + late_ns
        deadlines.begin_tick(now_ns)
        assert now_ns < deadlines.next_ns <= now_ns + PERIOD_NS
        assert (deadlines.next_ns - FIRST_NS) % PERIOD_NS == 0
    passed = (deadlines.next_ns - FIRST_NS) // PERIOD_NS
    assert deadlines.num_ticks + deadlines.num_missed == passed


@pytest.mark.parametrize(('late_ns', 'num_late'), [(PERIOD_NS // 2, 0), (PERIOD_NS // 2 + 1, 1)])
def test_a_tick_is_late_beyond_half_a_period(late_ns, num_late):
    assert ticked(late_ns).num_late == num_late


@given(phase_ns=phases, late=st.lists(lateness, min_size=TICKS_TO_ALIGN, max_size=60))
def test_any_phase_is_reached_within_25_ticks_and_kept(phase_ns, late):
    deadlines = Deadlines(PERIOD_NS, FIRST_NS)
    before = phase_error_ns(deadlines, phase_ns)
    for number, late_ns in enumerate(late, start=1):
        deadlines.begin_tick(deadlines.next_ns + late_ns)
        deadlines.align(phase_ns)
        after = phase_error_ns(deadlines, phase_ns)
        assert after == max(before - CREEP * PERIOD_NS, 0)
        assert after == 0 or number < TICKS_TO_ALIGN
        before = after


@given(phase_ns=phases, shift=st.integers(-(10**6), 10**6))
def test_a_wanted_moment_counts_by_its_phase_alone(phase_ns, shift):
    one, other = Deadlines(PERIOD_NS, FIRST_NS), Deadlines(PERIOD_NS, FIRST_NS)
    one.align(phase_ns)
    other.align(phase_ns + shift * PERIOD_NS)
    assert one.next_ns == other.next_ns
    assert abs(one.next_ns - FIRST_NS) <= CREEP * PERIOD_NS


def test_alignment_with_a_jittering_robot_leaves_the_rate_alone():
    rng = np.random.default_rng(2)
    deadlines, num_ticks, phase_ns = Deadlines(PERIOD_NS, FIRST_NS), 2_000, 7_000_000
    for _ in range(num_ticks):
        deadlines.begin_tick(deadlines.next_ns)
        deadlines.align(phase_ns + int(rng.integers(-500_000, 500_000)))
    drift_ns = deadlines.next_ns - FIRST_NS - num_ticks * PERIOD_NS
    assert abs(drift_ns) < PERIOD_NS
    assert phase_error_ns(deadlines, phase_ns) < 500_000


@pytest.mark.parametrize('robots_period_ns', [9_850_000, 10_150_000])
def test_deadlines_follow_a_robot_whose_clock_runs_a_little_differently(robots_period_ns):
    deadlines, state_ns = Deadlines(PERIOD_NS, 0), 5_000_000
    for _ in range(500):
        deadlines.begin_tick(deadlines.next_ns)
        state_ns += robots_period_ns
        deadlines.align(state_ns)
    assert abs((deadlines.next_ns - state_ns + PERIOD_NS // 2) % PERIOD_NS - PERIOD_NS // 2) <= 1


def test_before_the_first_tick_nothing_was_late():
    deadlines = Deadlines(PERIOD_NS, FIRST_NS)
    assert deadlines.lateness_ms() == {'p50': 0.0, 'p99': 0.0, 'max': 0.0}
    assert deadlines.histogram.tolist() == [0] * (len(BINS_MS) + 1)


def test_quantiles_are_those_of_the_ticks_so_far():
    late_ms = ticked(*(k * 10_000 for k in range(101))).lateness_ms()
    assert late_ms == pytest.approx({'p50': 0.5, 'p99': 0.99, 'max': 1.0})


def test_quantiles_forget_what_is_no_longer_kept():
    late_ms = ticked(5_000_000, *[1_000_000] * TICKS_KEPT).lateness_ms()
    assert late_ms == {'p50': 1.0, 'p99': 1.0, 'max': 1.0}
    assert ticked(5_000_000, *[1_000_000] * (TICKS_KEPT - 1)).lateness_ms()['max'] == 5.0


def test_the_histogram_has_a_bin_for_each_end_and_one_for_the_rest():
    ends_ns = [round(end * 1e6) for end in BINS_MS]
    assert ticked(0, *ends_ns).histogram.tolist() == [2, *[1] * (len(BINS_MS) - 1), 0]
    beyond = ticked(*(end + 1 for end in ends_ns))
    assert beyond.histogram.tolist() == [0, *[1] * len(BINS_MS)]


def test_sleep_lasts_until_the_moment_and_returns_the_time():
    moment_ns = time.monotonic_ns() + 3_000_000
    woke_ns = sleep_until(moment_ns)
    assert moment_ns <= woke_ns <= time.monotonic_ns()


def test_nobody_sleeps_until_the_past(monkeypatch):
    slept = []
    monkeypatch.setattr(module.time, 'sleep', slept.append)
    before_ns = time.monotonic_ns()
    assert sleep_until(before_ns - 1) >= before_ns
    assert not slept


@pytest.fixture
def scheduler(monkeypatch):
    """Record what is asked of the scheduler instead of doing it."""
    asked = []
    monkeypatch.setattr(os, 'sched_setscheduler', lambda *request: asked.append(request))
    return asked


def test_the_calling_thread_becomes_realtime(scheduler):
    assert become_realtime(10) is True
    ((thread, policy, parameter),) = scheduler
    assert thread == 0  # which means: the calling one
    assert (policy, parameter.sched_priority) == (os.SCHED_FIFO, 10)


def test_priority_zero_asks_for_nothing(scheduler):
    assert become_realtime(0) is False
    assert not scheduler


def test_a_refusal_of_the_system_is_an_answer(monkeypatch):
    def refuse(*_):
        raise PermissionError(1, 'Operation not permitted')

    monkeypatch.setattr(os, 'sched_setscheduler', refuse)
    assert become_realtime(10) is False


def latency_us():
    """Return how long the system may take to wake a core, us."""
    with CORE_LATENCY.open('rb', buffering=0) as device:
        return int.from_bytes(device.read(4), sys.byteorder)


@pytest.mark.skipif(not os.access(CORE_LATENCY, os.W_OK), reason='needs leave to keep cores awake')
def test_no_core_sleeps_within_the_block():
    with awake_cores(is_wanted=True):
        assert latency_us() == 0


@pytest.mark.parametrize('is_wanted', [True, False])
def test_cores_are_kept_awake_only_if_wanted_and_only_within_the_block(
    is_wanted, monkeypatch, tmp_path
):
    device = tmp_path / 'latency'
    device.write_bytes(b'')
    monkeypatch.setattr(module, 'CORE_LATENCY', device)
    with awake_cores(is_wanted=is_wanted):
        assert device.read_bytes() == (bytes(4) if is_wanted else b'')
        files = [file.path for file in psutil.Process().open_files()]
        assert (str(device) in files) is is_wanted
    assert str(device) not in [file.path for file in psutil.Process().open_files()]


def test_a_system_without_such_a_device_is_let_be(monkeypatch, tmp_path):
    monkeypatch.setattr(module, 'CORE_LATENCY', tmp_path / 'latency')
    with awake_cores(is_wanted=True):
        assert not list(tmp_path.iterdir())


def test_each_period_has_one_command_shortly_after_its_state():
    world = on_time().run(SECOND_NS)
    times = [ns for ns, _ in world.commands(SECOND_NS)]
    assert times == list(each(PERIOD_NS, SECOND_NS, LEAD_NS))
    assert [c.state_stamp_ns - BOOT_NS for _, c in world.commands(SECOND_NS)] == [
        ns - LEAD_NS for ns in times
    ]
    assert world.modes(SECOND_NS) == [WARMUP] * 4 + [NOMINAL] * 96
    assert [c.tick.now_ns for _, c in world.commands(SECOND_NS)] == times


def test_commands_follow_the_phase_of_the_states_within_25_ticks():
    shifted = each(PERIOD_NS, SECOND_NS, SECOND_NS // 2 + 4 * MS)
    world = on_time(SECOND_NS // 2).arrives(*shifted).run(SECOND_NS)
    settled = [ns for ns, _ in world.commands(SECOND_NS) if ns > SECOND_NS // 2 + 26 * PERIOD_NS]
    assert len(settled) > 20
    assert {(ns - shifted[0]) % PERIOD_NS for ns in settled} == {LEAD_NS}


@pytest.mark.parametrize('states_hz', [50, 200, 400, 1000, 3000])
def test_whatever_the_rate_of_the_states_control_keeps_its_own(states_hz):
    moments = each(SECOND_NS // states_hz, 2 * SECOND_NS)
    world = World().arrives(*moments).run(2 * SECOND_NS)
    assert abs(len(world.commands(2 * SECOND_NS)) - 200) <= 1
    assert BLIND not in world.modes(2 * SECOND_NS)


def test_late_ticks_are_told_and_counted():
    world = on_time()
    world.sleeps_too_long_ns = 6 * MS
    world.run(SECOND_NS)
    assert {c.late_ns for _, c in world.commands(SECOND_NS)} == {6 * MS}
    assert world.thread.deadlines.num_late == world.thread.deadlines.num_ticks > 90


@pytest.mark.parametrize('states_go_on', [False, True])
def test_after_a_pause_there_is_no_burst(states_go_on):
    begin_ns, end_ns = 500 * MS + LEAD_NS, 1_503 * MS
    moments = each(PERIOD_NS, 2 * SECOND_NS)
    world = World().arrives(*(ns for ns in moments if states_go_on or not 500 * MS < ns < end_ns))

    def send(command):
        World.send(world, command)
        if world.now_ns == begin_ns:
            world.go_on_until(end_ns)

    world.thread.output.send = send
    world.run(2 * SECOND_NS)
    times = [ns for ns, _ in world.commands(2 * SECOND_NS) if ns > begin_ns]
    assert times[0] == end_ns + (0 if states_go_on else 3 * MS)  # a state is waited for
    assert min(b - a for a, b in pairwise(times[1:])) >= 0.98 * PERIOD_NS
    assert len(times) <= (2 * SECOND_NS - end_ns) // PERIOD_NS + 2
    assert world.thread.deadlines.num_missed == 99
    first = next(c for ns, c in world.sent if ns == times[0])
    assert first.tick.mode == BLIND  # whoever stood still, the arm was alone


def test_after_a_pause_of_simulated_time_the_effort_is_not_frozen():
    world = World(ticks_on_states=True).arrives(*each(PERIOD_NS, SECOND_NS))
    pause_ns = 3 * SECOND_NS  # of the steady clock, in which no stamp passes
    for ns in each(PERIOD_NS, 2 * SECOND_NS, SECOND_NS):
        world.at(ns + pause_ns, lambda ns=ns: world.inbox.put(arrival(ns, ns + pause_ns)))
    world.run(5 * SECOND_NS)
    resumed = [c for ns, c in world.commands(5 * SECOND_NS) if ns >= SECOND_NS + pause_ns]
    assert [c.tick.now_ns for c in resumed] == list(each(PERIOD_NS, 2 * SECOND_NS, SECOND_NS))
    assert {c.tick.mode for c in resumed[:3]} == {WARMUP}
    first, second = (c.tick.step for c in resumed[:2])
    assert not first.effort_nm.any()  # a step back in time counts as standing still
    expected = np.clip(second.wanted_nm, -STEP_NM, STEP_NM)
    np.testing.assert_allclose(second.effort_nm, expected, rtol=0, atol=1e-9)
    assert expected.all()
