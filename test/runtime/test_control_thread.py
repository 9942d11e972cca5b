# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""The control thread in a world whose clock only moves when somebody sleeps."""

from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
import numpy as np
import pytest
from support.rides import BLIND, NOMINAL, PERIOD_NS, WARMUP
from support.worlds import (
    assert_are_safe,
    BOOT_NS,
    breaks,
    each,
    FADE_NS,
    LEAD_NS,
    MEASURED_NM,
    MS,
    on_time,
    RAMP_NS,
    SECOND_NS,
    STEP_NM,
    TIMEOUT_NS,
    World,
)

from metactl_ros.control.modes import Mode
from metactl_ros.runtime import control_thread as module
from metactl_ros.runtime.control_thread import (
    WARM_CACHE_NS,
)


def test_nothing_is_sent_before_the_first_state():
    world = World().arrives(*each(PERIOD_NS, 2 * SECOND_NS, SECOND_NS)).run(2 * SECOND_NS)
    assert world.sent[0][0] == SECOND_NS + LEAD_NS
    assert world.sent[0][1].state_stamp_ns == BOOT_NS + SECOND_NS


def test_a_thread_that_is_stopped_before_the_first_state_sends_nothing():
    world = World().run(SECOND_NS)
    assert (world.sent, world.thread.error) == ([], None)


@pytest.mark.parametrize(('wakes_after_ms', 'is_blind'), [(2, False), (4, True)])
def test_a_tick_that_overslept_with_its_robot_waits_a_little_for_its_state(
    wakes_after_ms, is_blind
):
    asleep_ns, stall_ns = LEAD_NS + 49 * PERIOD_NS, 20 * MS
    awake_ns = asleep_ns + PERIOD_NS - WARM_CACHE_NS + stall_ns
    robot_ns = awake_ns + wakes_after_ms * MS
    world = World().arrives(*each(PERIOD_NS, asleep_ns), *each(PERIOD_NS, SECOND_NS, robot_ns))
    world.at(asleep_ns, lambda: setattr(world, 'sleeps_too_long_ns', stall_ns))
    world.at(awake_ns, lambda: setattr(world, 'sleeps_too_long_ns', 0))
    world.run(SECOND_NS)
    (late,) = [(ns, c) for ns, c in world.commands(SECOND_NS) if c.late_ns > 15 * MS]
    assert late[0] == (awake_ns + 3 * MS if is_blind else robot_ns)
    assert (late[1].tick.mode == BLIND) is is_blind
    assert (BLIND in world.modes(SECOND_NS)) is is_blind


def test_every_state_reaches_the_driver_once_and_in_order():
    world = World().arrives(*each(3 * MS, SECOND_NS))
    seen, tick = [], world.controller.drive
    world.controller.drive = lambda states, *a, **b: seen.extend(states) or tick(states, *a, **b)
    world.run(SECOND_NS)
    assert [state.stamp_ns for state in seen] == list(each(3 * MS, SECOND_NS))


def test_the_policy_rehearses_shortly_before_each_tick_that_is_not_late_already():
    world, heard = on_time(), []
    world.controller.warm_cache = lambda budget_ns: heard.append(world.now_ns)
    late_ns = WARM_CACHE_NS // 2
    world.at(LEAD_NS + 49 * PERIOD_NS, lambda: setattr(world, 'sleeps_too_long_ns', late_ns))
    ticks = [ns for ns, _ in world.run(SECOND_NS).commands(SECOND_NS // 2)]
    assert len(ticks) == 50
    assert heard == [ns - WARM_CACHE_NS for ns in ticks]


def test_a_policy_that_fails_in_rehearsal_harms_nobody():
    world = on_time()
    world.controller._policy = breaks('nothing to say')
    assert world.run(SECOND_NS).thread.error is None
    assert world.controller.num_policy_errors == len(world.commands(SECOND_NS))


def test_states_that_stop_make_the_arm_blind_when_they_are_too_old():
    world = on_time(SECOND_NS // 2).run(SECOND_NS)
    last_ns = SECOND_NS // 2 - PERIOD_NS
    first_ns = next(ns for ns, c in world.sent if c.tick.mode == BLIND)
    assert TIMEOUT_NS < first_ns - last_ns <= TIMEOUT_NS + PERIOD_NS
    assert not world.efforts[-RAMP_NS // PERIOD_NS].any()


def test_a_state_is_fresh_up_to_the_timeout():
    for timeout_ns, modes in ((LEAD_NS + 2 * PERIOD_NS, {WARMUP}), (LEAD_NS, {WARMUP, BLIND})):
        world = World(state_timeout_ns=timeout_ns).arrives(0).run(2 * PERIOD_NS + 2 * MS)
        assert set(world.modes(2 * PERIOD_NS + 2 * MS)) == modes


def test_a_state_that_comes_while_the_tick_begins_is_of_age_zero():
    world = on_time()
    world.take_takes_ns, world.send_takes_ns = 9 * MS, MS // 2
    world.run(SECOND_NS)
    ages = [c.tick.now_ns - c.tick.state.stamp_ns for _, c in world.commands(SECOND_NS)]
    assert min(ages) == 0
    assert world.thread.tick_ns.min() >= 0


@pytest.mark.parametrize('on_states', [False, True])
def test_the_time_from_a_tick_to_its_command_is_kept(on_states):
    world = on_time(ticks_on_states=on_states)
    world.thread.tick_ns = np.full(8, -1)
    world.send_takes_ns = 2 * MS
    num_ticks = world.run(5 * PERIOD_NS).thread.deadlines.num_ticks
    assert world.thread.tick_ns.tolist() == [2 * MS] * num_ticks + [-1] * (8 - num_ticks)


numbers = st.sampled_from([np.nan, np.inf, -np.inf, 1e308, 151.0, 61.0]) | st.floats(-200.0, 200.0)
bad_efforts = st.lists(numbers, min_size=2, max_size=2).map(np.array) | st.sampled_from(
    [np.zeros(3), np.zeros(1), np.zeros((1, 2)), np.float64(0.0)]
)


@hypothesis_settings(max_examples=60)
@given(plan=st.lists(st.none() | bad_efforts, max_size=40), on_states=st.booleans())
def test_whatever_the_driver_wants_every_command_is_safe_and_a_bad_one_faults(plan, on_states):
    world = on_time(ticks_on_states=on_states)
    actuate, wanted = world.controller.loop.actuate, iter(plan)

    def bad_actuate(*inputs):
        step = actuate(*inputs)
        effort = next(wanted, None)
        return step if effort is None else step._replace(effort_nm=effort)

    world.controller.loop.actuate = bad_actuate
    world.run(SECOND_NS // 2)  # checks every command
    is_replaced = [
        c.effort_nm is not c.tick.step.effort_nm for _, c in world.commands(SECOND_NS // 2)
    ]
    assert world.thread.output.num_checks_failed >= sum(is_replaced)
    modes = world.modes(SECOND_NS // 2)
    if True in is_replaced[:-1]:
        first = is_replaced.index(True)
        assert set(modes[first + 1 :]) == {Mode.FAULT}
        assert Mode.FAULT not in modes[: first + 1]
    else:
        assert Mode.FAULT not in modes


@pytest.mark.parametrize('beyond_nm', [0.0, 1e-6])
def test_efforts_are_checked_at_their_limits_and_not_before(beyond_nm):
    # From 100 and -50 N m: a step up, a limit, a step down.
    for effort in [(140 + beyond_nm, -60), (140, -60 - beyond_nm), (60, -35 + beyond_nm)]:
        output = World().thread.output
        output.effort_nm = MEASURED_NM
        output.issue(np.array(effort), None, state_stamp_ns=0)
        assert output.num_checks_failed == (beyond_nm > 0.0)


def test_a_violation_is_an_error_of_one_tick_which_a_reset_clears():
    world = on_time()
    actuate = world.controller.loop.actuate
    world.at(305 * MS, lambda: setattr(world.controller.loop, 'actuate', bad_once))

    def bad_once(*inputs):
        world.controller.loop.actuate = actuate
        return actuate(*inputs)._replace(effort_nm=np.full(2, np.nan))

    world.at(505 * MS, lambda: setattr(world.controller.requests, 'reset_fault', True))
    world.run(SECOND_NS)
    assert world.thread.output.num_checks_failed == 1
    modes = world.modes(SECOND_NS)
    assert modes[30:34] == [NOMINAL] * 2 + [Mode.FAULT] * 2
    assert modes[50:53] == [Mode.FAULT] + [WARMUP] * 2


@pytest.mark.parametrize('on_states', [False, True])
def test_an_error_in_the_driver_ends_control_with_a_ramp_to_zero(on_states):
    world = on_time(ticks_on_states=on_states)
    world.at(0, lambda: setattr(world.controller, 'tick', breaks('out of order')))
    world.run(SECOND_NS)
    assert 'RuntimeError: out of order' in world.thread.error
    ramp = [np.maximum(np.abs(MEASURED_NM) - k * STEP_NM, 0.0) for k in range(1, 5)]
    np.testing.assert_allclose(np.abs(world.efforts[:4]), ramp, rtol=0, atol=1e-9)
    assert {c.tick for _, c in world.sent} == {None}
    assert len(world.sent) == FADE_NS // PERIOD_NS + 1


def test_an_error_before_anything_was_sent_sends_nothing():
    world = on_time()
    world.controller.begin = breaks('no beginning')
    world.run(SECOND_NS)
    assert 'no beginning' in world.thread.error
    assert not world.sent


@pytest.mark.parametrize('fade_ns', [0, FADE_NS])
@pytest.mark.parametrize('on_states', [False, True])
def test_a_stopped_thread_fades_and_ends_with_zero_and_without_error(on_states, fade_ns):
    world = on_time(fade_ns=fade_ns, ticks_on_states=on_states).run(SECOND_NS)
    assert world.thread.error is None
    assert world.now_ns <= SECOND_NS + fade_ns + RAMP_NS + 3 * PERIOD_NS
    fading = [(ns, c) for ns, c in world.sent if c.tick and not c.tick.health.state_is_fresh]
    assert [c.tick.mode for _, c in fading] == [BLIND] * (fade_ns // PERIOD_NS)
    assert [c.tick.now_ns for _, c in fading] == [ns for ns, _ in fading]


def test_an_error_while_fading_is_told_and_the_ramp_goes_on():
    world = on_time()
    faders = iter([world.controller.fade] * 5)
    world.controller.fade = lambda *now: next(faders, breaks('tired'))(*now)
    world.run(SECOND_NS)
    assert 'tired' in world.thread.error
    fading = [c.tick for _, c in world.sent if c.tick and not c.tick.health.state_is_fresh]
    assert len(fading) == 5
    assert [c.tick for _, c in world.sent][-16:] == [None] * 16


@pytest.mark.parametrize('fails', ['with a tick', 'while fading', 'always'])
def test_whatever_fails_in_sending_zero_is_sent_last(fails):
    world, offered = on_time(), []

    def send(command):
        offered.append(command.effort_nm)
        fades = command.tick is not None and not command.tick.health.state_is_fresh
        if fails == 'always' or (command.tick if fails == 'with a tick' else fades):
            raise RuntimeError('nobody listens')

    world.thread.output.send = send
    world.run(SECOND_NS)
    assert 'nobody listens' in world.thread.error
    assert_are_safe(offered)
    assert not offered[-1].any()
    assert not offered[-2].any()


def test_on_states_each_arrival_has_one_command_with_its_stamp():
    moments = [0, 0, 0, 10 * MS, 30 * MS, 31 * MS, 50 * MS]
    world = World(ticks_on_states=True).arrives(*moments).run(60 * MS)
    commands = world.commands(60 * MS)
    assert [(ns, c.state_stamp_ns - BOOT_NS) for ns, c in commands] == [(ns, ns) for ns in moments]
    assert {c.late_ns for _, c in commands} == {0}
    assert world.thread.deadlines.num_ticks == len(moments)


def test_on_states_a_stream_that_stops_makes_the_arm_blind_after_each_timeout():
    world = World(ticks_on_states=True, state_timeout_ns=TIMEOUT_NS - 1)
    world.arrives(0, 10 * MS, 200 * MS).send_takes_ns = 1
    world.run(250 * MS)
    blind = [ns for ns, c in world.commands(250 * MS) if c.tick.mode == BLIND]
    assert blind == [10 * MS + k * TIMEOUT_NS for k in range(1, 8)] + [225 * MS]
    assert {c.late_ns for _, c in world.sent} == {0}
    assert world.thread.deadlines.num_ticks == 3


def test_the_thread_asks_for_its_priority_and_says_what_became_of_it(monkeypatch):
    for answer in (True, False):
        monkeypatch.setattr(module, 'become_realtime', lambda priority, a=answer: a and priority)
        assert World(priority=42).run(SECOND_NS).thread.is_realtime == (42 if answer else False)
