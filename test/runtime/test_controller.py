# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from support.episodes import as_followed, LIMITS
from support.rides import (
    ARM,
    BLIND,
    BUDGET_NS,
    FALLBACK,
    FAULT,
    GRAVITY_NM,
    Held,
    NOMINAL,
    NOMINAL_GAINS,
    NUM_ROWS,
    PERIOD_NS,
    POSTURE,
    QUICK,
    Ride,
    Seen,
    SETTINGS,
    state_at,
    STOP,
    WARMUP,
)

from metactl_ros.control.loop import ControlLoop
from metactl_ros.control.modes import Cause, HEALTHY
from metactl_ros.runtime import controller as module
from metactl_ros.runtime.controller import LiveController, Requests, with_full_window
from metactl_ros.runtime.reference_source import MotionSource
from metactl_ros.sim.rk4_arm import Rk4Arm
from metactl_ros.sim.rollout import run_episode
from metactl_ros.sim.task import draw_episode


def has_nominal_gains(tick):
    return np.allclose(tick.step.decision.gains.theta, NOMINAL_GAINS, atol=1e-12)


@pytest.mark.parametrize('rehearses', [False, True])
def test_an_arm_driven_tick_by_tick_gets_the_efforts_of_the_simulation_to_the_bit(rehearses):
    rng = np.random.default_rng(11)
    weights = rng.normal(0.0, 0.3, (11, 8))

    def policy(window):
        return 1.5 * np.tanh(window.mean(axis=0) @ weights)  # at times out of its box

    episode = draw_episode(SETTINGS.plant.task, rng, tau_z_s=2.0)
    plant = Rk4Arm(ARM, SETTINGS.plant.friction, SETTINGS.controller.law.rate_hz)
    loop = ControlLoop(ARM, with_full_window(SETTINGS.controller))
    log = run_episode(plant, as_followed(episode), policy, loop, 200)

    requests = Requests(payload_kg=float(episode.payload_estimate_kg))
    source = MotionSource(episode.reference, LIMITS)
    controller = LiveController(ARM, SETTINGS.controller, policy, source, requests, 10**12)
    state, ticks = plant.reset(episode.start), []
    controller.begin(state, None)
    for _ in range(200):
        if rehearses:
            controller.warm_cache(10**12)
        ticks.append(controller.drive([state], state.stamp_ns, is_fresh=True))
        state = plant.step(ticks[-1].step.effort_nm)
    np.testing.assert_array_equal([tick.step.effort_nm for tick in ticks], log.effort_nm)
    np.testing.assert_array_equal([tick.mode for tick in ticks], log.modes)
    assert [tick.mode for tick in ticks] == [WARMUP] * 50 + [NOMINAL] * 150
    assert controller.num_moved == log.was_moved.sum() > 0
    assert {tick.health for tick in ticks} == {HEALTHY}


@pytest.mark.parametrize(('warmup', 'rows', 'expected'), [(0, 4, 4), (4, 4, 4), (9, 4, 9)])
def test_the_warm_up_lasts_until_the_window_is_full_or_longer(warmup, rows, expected):
    settings = replace(
        QUICK,
        context=replace(QUICK.context, num_rows=rows),
        modes=replace(QUICK.modes, warmup_ticks=warmup),
    )
    full = with_full_window(settings)
    assert full.modes.warmup_ticks == expected
    assert replace(full, modes=settings.modes) == settings


def test_control_begins_from_the_measured_effort_or_from_gravity():
    assert Ride(effort_nm=np.array([3.0, -4.0])).effort.tolist() == [3.0, -4.0]
    assert Ride(effort_nm=np.array([1e9, -4.0])).effort.tolist() == [ARM.limits.effort_nm[0], -4.0]
    np.testing.assert_array_equal(Ride().effort, GRAVITY_NM)


def test_a_tick_tells_what_it_saw_and_decided():
    ride = Ride().warm()
    now_ns = ride.now_ns
    tick = ride.tick()
    assert (tick.now_ns, tick.state.stamp_ns, tick.payload_kg) == (now_ns, now_ns, 0.5)
    assert tick.reference is ride.reference.held
    assert tick.action.tolist() == [0.5] * 8
    assert tick.mode == int(tick.step.modes) == NOMINAL
    assert tick.health == HEALTHY
    assert ride.policy.windows[-1][:, 8].tolist() == [0.5] * NUM_ROWS
    assert ride.controller.num_ticks == NUM_ROWS + 2


def test_a_policy_rehearses_unless_that_took_too_long_or_it_was_never_asked():
    policy = Seen()
    controller = LiveController(ARM, QUICK, policy, Held(), Requests(payload_kg=0.0), BUDGET_NS)
    controller.begin(state_at(0), None)
    controller.warm_cache(10**12)
    assert not policy.windows
    controller.drive([state_at(0)], 0, is_fresh=True)
    controller.drive([], PERIOD_NS, is_fresh=True)  # nothing came: the policy is not asked
    controller.warm_cache(0)
    assert len(policy.windows) == 1
    controller.warm_cache(10**12)
    assert len(policy.windows) == 2


def test_without_a_policy_the_nominal_gains_are_nominal():
    controller = LiveController(ARM, QUICK, None, Held(), Requests(payload_kg=0.0), BUDGET_NS)
    controller.begin(state_at(0), None)
    for k in range(NUM_ROWS + 1):
        tick = controller.drive([state_at(k * PERIOD_NS)], k * PERIOD_NS, is_fresh=True)
    assert tick.mode == NOMINAL
    np.testing.assert_array_equal(tick.action, controller.loop.nominal_action)
    assert tick.inference_ns == 0


def test_a_stale_state_makes_the_arm_blind_and_fresh_ones_warm_it_up_again():
    ride = Ride().warm()
    asked = len(ride.policy.windows)
    assert [ride.tick_without_state().mode for _ in range(3)] == [BLIND] * 3
    assert len(ride.policy.windows) == asked
    assert not ride.reference.rejoined
    tick = ride.tick()
    assert tick.mode == WARMUP
    assert ride.reference.rejoined == [tick.state.stamp_ns]  # the arm has moved by itself
    ride.tick()
    assert len(ride.reference.rejoined) == 1


def test_a_missing_but_still_fresh_state_is_acted_upon_with_the_reference_of_now():
    ride = Ride().warm()
    last_ns, asked = ride.now_ns - PERIOD_NS, len(ride.policy.windows)
    tick = ride.tick_without_state(is_fresh=True)
    assert (tick.mode, tick.state.stamp_ns, tick.inference_ns) == (NOMINAL, last_ns, 0)
    assert len(ride.policy.windows) == asked
    assert ride.reference.asked[-1] == tick.now_ns == last_ns + PERIOD_NS


def test_a_state_older_than_now_is_acted_upon_with_the_reference_of_its_stamp():
    ride = Ride().warm()
    state = state_at(ride.now_ns)
    ride.controller.drive([state], ride.now_ns + 3_000_000, is_fresh=True)
    assert ride.reference.asked.count(state.stamp_ns) == 1  # it may be another the second time
    assert ride.reference.asked[-1] == state.stamp_ns


def raising(window):
    raise RuntimeError('the runtime is gone')


FAILURES = {
    'raises': (raising, 1),
    'says NaN': (Seen(np.nan), 0),
    'says infinity': (Seen(-np.inf), 0),
    'says a batch': (lambda window: np.zeros((1, 8)), 1),
    'says nothing': (lambda window: None, 1),
    'says words': (lambda window: ['gain'] * 8, 1),
}


@pytest.mark.parametrize('failure', FAILURES)
def test_a_policy_that_fails_is_replaced_in_the_same_tick_and_heard_again_later(failure):
    policy, num_errors = FAILURES[failure]
    ride = Ride(lambda window: answers(window))
    answers = Seen()
    ride.warm()
    answers = policy
    tick = ride.tick()
    assert tick.mode == FALLBACK
    assert has_nominal_gains(tick)
    assert ride.controller.num_policy_errors == num_errors
    answers = Seen()
    assert [ride.tick().mode for _ in range(3)] == [FALLBACK, FALLBACK, NOMINAL]


def test_a_failed_proposal_is_not_tried_again_while_no_state_comes():
    ride = Ride().warm()
    ride.policy.value = np.nan
    ride.tick()
    assert ride.tick_without_state(is_fresh=True).mode == FALLBACK


@pytest.mark.parametrize(('took_ns', 'mode'), [(BUDGET_NS, NOMINAL), (BUDGET_NS + 1, FALLBACK)])
def test_a_policy_is_late_beyond_its_budget(monkeypatch, took_ns, mode):
    ride = Ride().warm()
    times = iter([1_000, 1_000 + took_ns])
    monkeypatch.setattr(module, 'time', SimpleNamespace(perf_counter_ns=lambda: next(times)))
    tick = ride.tick()
    assert (tick.mode, tick.inference_ns) == (mode, took_ns)
    assert has_nominal_gains(tick) == (mode == FALLBACK)
    assert ride.controller.inference_ns[ride.controller.num_ticks - 1] == took_ns


def test_the_oldest_inference_times_make_room():
    ride = Ride()
    ride.controller.inference_ns = np.full(3, -1)
    ticks = [ride.tick() for _ in range(4)]
    expected = [ticks[k].inference_ns for k in (3, 1, 2)]
    assert ride.controller.inference_ns.tolist() == expected


def test_a_missing_reference_stops_the_arm_where_it_is():
    ride = Ride(q_desired=POSTURE + 0.01).warm()
    ride.reference.is_missing = True
    tick = ride.tick()
    assert (tick.mode, tick.health.reference_is_valid) == (STOP, False)
    np.testing.assert_array_equal(tick.reference.q_rad, POSTURE)
    np.testing.assert_array_equal(ride.policy.windows[-1][-1, 4:6], POSTURE)
    assert ride.tick_without_state(is_fresh=True).mode == STOP
    ride.reference.is_missing = False
    assert [ride.tick().mode for _ in range(2)] == [FALLBACK, NOMINAL]


def test_a_disabled_arm_stops_until_it_is_enabled_and_joins_its_reference_again():
    ride = Ride().warm()
    ride.requests.is_enabled = False
    assert [ride.tick().mode for _ in range(5)] == [STOP] * 5
    assert not ride.reference.rejoined
    ride.requests.is_enabled = True
    tick = ride.tick()
    assert tick.mode == NOMINAL
    ride.tick()
    assert ride.reference.rejoined == [tick.state.stamp_ns]


def test_an_error_faults_and_stays():
    ride = Ride().faulted()
    assert [ride.tick().mode for _ in range(5)] == [FAULT] * 5
    assert not ride.effort.any()


def test_a_reset_is_consumed_by_one_tick():
    ride = Ride().faulted()
    ride.requests.reset_fault = True
    assert ride.tick_without_state().mode == FAULT  # too early: it is blind
    assert not ride.requests.reset_fault
    assert ride.tick().mode == FAULT
    ride.requests.reset_fault = True
    assert [ride.tick().mode, ride.tick(error=Cause.INTERNAL_ERROR).mode] == [WARMUP, FAULT]


class Impatient:
    """Requests of an operator who asks for a reset just after the controller has looked."""

    payload_kg, is_enabled, clear_context = 0.5, True, False

    def __init__(self):
        self.is_asked = self.is_watching = False

    @property
    def reset_fault(self):
        seen, self.is_asked = self.is_asked, self.is_asked or self.is_watching
        return seen

    @reset_fault.setter
    def reset_fault(self, value):
        self.is_asked = value


def test_a_reset_that_comes_during_a_tick_is_for_the_next():
    ride = Ride(requests=Impatient()).faulted()
    ride.requests.is_watching = True
    assert ride.tick().mode == FAULT
    assert ride.tick().mode == WARMUP


def test_clearing_the_context_warms_up_anew_from_the_last_effort():
    ride = Ride(q_desired=POSTURE + 0.01).warm()
    ride.requests.clear_context = True
    ride.warm()
    assert not ride.requests.clear_context
    phases = ride.policy.windows[NUM_ROWS + 1][:, 10]
    assert phases.tolist() == [phases[-1]] * NUM_ROWS  # the first state fills the window
    ride.requests.clear_context = True
    assert ride.tick_without_state(is_fresh=True).mode == WARMUP


def test_clearing_the_context_leaves_reference_and_time_as_they_are():
    ride = Ride().warm()
    ride.requests.clear_context = True
    tick = ride.tick()
    assert (ride.reference.begun, ride.reference.rejoined) == ([0], [])
    assert tick.loop_ns == tick.now_ns == (NUM_ROWS + 1) * PERIOD_NS


def test_clearing_what_has_not_yet_begun_changes_nothing():
    ride = Ride(effort_nm=np.array([100.0, 50.0]))
    ride.requests.clear_context = True
    ride.tick()  # checks that the effort goes on from the measured one
    assert not ride.requests.clear_context
    assert ride.reference.begun == [0]


def test_a_second_run_does_not_go_on_from_the_last_effort_of_the_first():
    ride = Ride().warm()
    ride.requests.clear_context = True
    ride.effort = ride.controller.begin(state_at(ride.now_ns), np.array([-100.0, 50.0]))
    assert ride.controller.last is None
    ride.tick()


def test_clearing_the_context_does_not_forget_a_fault():
    ride = Ride().faulted()
    ride.requests.clear_context = True
    assert [ride.tick().mode for _ in range(5)] == [FAULT] * 5
    ride.requests.reset_fault = True
    ride.tick()
    assert ride.requests.clear_context
    ride.warm()


def test_clearing_the_context_does_not_wake_the_torque_of_a_blind_arm():
    ride = Ride().warm()
    for _ in range(30):
        ride.tick_without_state()
    assert not ride.effort.any()
    ride.requests.clear_context = True
    for _ in range(5):
        assert ride.tick_without_state().mode == BLIND
        assert not ride.effort.any()


def test_states_that_come_together_enter_the_window_as_if_they_had_come_one_by_one():
    states = [state_at(k * PERIOD_NS, POSTURE + 0.001 * k) for k in range(9)]
    one_by_one, together = Seen(), Seen()
    ways = ((one_by_one, [[state] for state in states]), (together, [states[:3], states[3:]]))
    for policy, batches in ways:
        controller = LiveController(
            ARM, QUICK, policy, Held(), Requests(payload_kg=0.5), BUDGET_NS
        )
        controller.begin(states[0], None)
        for batch in batches:
            tick = controller.drive(batch, batch[-1].stamp_ns, is_fresh=True)
            assert tick.state is batch[-1]
    assert len(together.windows) == 2
    np.testing.assert_array_equal(together.windows[0], one_by_one.windows[2])
    np.testing.assert_array_equal(together.windows[1], one_by_one.windows[8])


def test_an_arm_that_is_left_alone_fades_to_zero_and_asks_no_policy():
    ride = Ride().warm()
    ride.controller.inference_ns[:] = -1
    efforts = []
    for _ in range(22):
        tick = ride._checked(ride.controller.fade(ride.now_ns))
        assert (tick.mode, tick.inference_ns) == (BLIND, 0)
        np.testing.assert_array_equal(tick.reference.q_rad, POSTURE)
        efforts.append(tick.step.effort_nm / GRAVITY_NM)
    expected = np.maximum(1.0 - np.arange(22) / 20.0, 0.0)
    np.testing.assert_allclose(efforts, np.stack([expected, expected], axis=1), atol=1e-9)
    assert (
        ride.controller.inference_ns[NUM_ROWS + 1 : ride.controller.num_ticks].tolist() == [0] * 22
    )


def test_a_tick_tells_all_it_was_made_from():
    ride = Ride()
    start = ride.effort
    first, second = ride.tick(), ride.tick()
    assert [first.was_restarted, second.was_restarted] == [True, False]
    np.testing.assert_array_equal(first.effort_before_nm, start)
    assert second.effort_before_nm is first.step.effort_nm
    late = ride.controller.drive([state_at(25), state_at(30)], 31, is_fresh=True)
    assert [state.stamp_ns for state, _ in late.seen] == [25, 30]
    assert all(reference is ride.reference.held for _, reference in late.seen)
    assert not ride.tick_without_state().seen
    assert not ride.controller.fade(40).seen
    assert (late.now_ns, late.loop_ns) == (31, PERIOD_NS)  # the loop was never told to go back


def test_a_cleared_context_is_told_as_a_restart():
    ride = Ride().warm()
    ride.requests.clear_context = True
    assert ride.tick().was_restarted
    assert not ride.tick().was_restarted
