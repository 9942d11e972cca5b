# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""A controller that was away comes back blind, and goes on from what it finds."""

from dataclasses import replace
import heapq
from itertools import pairwise

import numpy as np
import pytest
from support.rides import ARM, BLIND, GRAVITY_NM, NOMINAL, PERIOD_NS, POSTURE, QUICK, Ride, WARMUP
from support.tick_logs import ARM as DAY_ARM
from support.tick_logs import Day, log_of, SETTINGS
from support.worlds import (
    arrival,
    BOOT_NS,
    each,
    LEAD_NS,
    MEASURED_NM,
    MOST_NM,
    MS,
    SECOND_NS,
    STEP_NM,
    TIMEOUT_NS,
    World,
)

from metactl_ros.bag.tick_log import find_breaks, TickMessages
from metactl_ros.bag.topics import JointValues, Point, SHIELD_NAMES
from metactl_ros.baselines import load_classical
from metactl_ros.check.certificates import check_certificates
from metactl_ros.control.modes import Cause, Mode
from metactl_ros.motion.reference import Hold
from metactl_ros.replay.recompute import reproduce
from metactl_ros.runtime.control_thread import WARM_CACHE_NS
from metactl_ros.runtime.joint_states import Arrival
from metactl_ros.signals import ArmState

HORIZON_S = QUICK.context.horizon_s
BRAKED_NM = np.array([20.0, 5.0])  # what the robot's brake needs of its motors
AWAY_NS = LEAD_NS + 49 * PERIOD_NS
"""When the controller falls asleep."""


def resting(ns):
    q_rad = POSTURE + 1e-6 * (ns // PERIOD_NS % 2)  # never quite the same: that is no sensor
    return arrival(ns)._replace(state=ArmState(ns, q_rad, np.zeros(2)))


class PausedWorld(World):
    """A world in which time may pass between two commands."""

    def assert_is_safe(self):
        """Check that no two commands are further apart than their rate allows in between."""
        for (a_ns, a), (b_ns, b) in pairwise(self.sent):
            assert (np.abs(b.effort_nm) <= MOST_NM + 1e-9).all()
            periods = max((b_ns - a_ns) // PERIOD_NS, 1)
            assert (np.abs(b.effort_nm - a.effort_nm) <= periods * STEP_NM + 1e-9).all()


class Nap(PausedWorld):
    """Its controller is away for a while; then the last five states come at once."""

    def __init__(
        self,
        nap_ns,
        measured_nm=BRAKED_NM,
        goal_rad=(0.3, 0.3),
        states_go_on=True,
        others_come_ns=0,
    ):
        super().__init__()
        self.back_ns = AWAY_NS + PERIOD_NS - WARM_CACHE_NS + nap_ns
        self.measured_nm = measured_nm
        before, after = each(PERIOD_NS, AWAY_NS), each(PERIOD_NS, 6 * SECOND_NS)
        for ns in before:
            self.at(ns, lambda ns=ns: self.inbox.put(resting(ns)))
        meanwhile = [ns for ns in after if AWAY_NS < ns <= self.back_ns]
        come_ns = self.back_ns + others_come_ns
        for ns in meanwhile[-5:] if states_go_on else ():
            self.at(come_ns, lambda ns=ns: self.inbox.put(self.braked(ns, come_ns)))
        for ns in (ns for ns in after if ns > self.back_ns):
            self.at(ns, lambda ns=ns: self.inbox.put(self.braked(ns, ns)))
        self.at(AWAY_NS - 4 * PERIOD_NS, lambda: self.want(goal_rad))  # not for long: it rests
        self.at(self.back_ns, lambda: self.want((0.0, 0.0)))
        self.at(AWAY_NS, lambda: setattr(self, 'sleeps_too_long_ns', nap_ns))
        self.at(self.back_ns, lambda: setattr(self, 'sleeps_too_long_ns', 0))

    def want(self, goal_rad):
        self.controller.reference.held = Hold(POSTURE + np.array(goal_rad)).at(0.0)

    def braked(self, stamp_ns, received_ns):
        state = ArmState(stamp_ns, resting(stamp_ns).state.q_rad + 0.01, np.zeros(2))
        return Arrival(state, BOOT_NS + stamp_ns, self.measured_nm, received_ns)

    def wake(self):
        """Run; return the last command before the nap and all that follow it."""
        self.run(self.back_ns + SECOND_NS)
        before = [c for ns, c in self.sent if ns <= AWAY_NS][-1]
        return before, [c for ns, c in self.commands(self.back_ns + SECOND_NS) if ns > AWAY_NS]


NAPS_NS = [TIMEOUT_NS + MS, 300 * MS, 3 * SECOND_NS]


@pytest.mark.parametrize('nap_ns', NAPS_NS)
def test_a_controller_that_was_away_is_blind_and_warms_up_with_the_newest_state_alone(nap_ns):
    world = Nap(nap_ns)
    before, after = world.wake()
    newest_ns = world.back_ns // PERIOD_NS * PERIOD_NS
    assert before.tick.mode == NOMINAL
    assert (after[0].tick.mode, after[0].tick.cause) == (BLIND, Cause.STALE_STATE)
    assert after[0].late_ns == nap_ns - WARM_CACHE_NS
    assert [state.stamp_ns for state, _ in after[0].tick.seen] == [newest_ns]
    assert [c.tick.mode for c in after[1:6]] == [WARMUP] * 4 + [NOMINAL]
    (joined_ns,) = world.controller.reference.rejoined
    assert joined_ns == after[1].tick.state.stamp_ns >= newest_ns
    phase = newest_ns / SECOND_NS % HORIZON_S / HORIZON_S
    (window, *_) = (w for w in world.controller._policy.windows if w[-1, 10] == phase)
    assert window[:, 10].tolist() == [phase] * len(window)  # nothing from before


@pytest.mark.parametrize(('late_ns', 'is_blind'), [(TIMEOUT_NS, False), (TIMEOUT_NS + 1, True)])
def test_a_tick_may_be_late_by_the_timeout_of_the_states(late_ns, is_blind):
    world = World().arrives(0, PERIOD_NS)
    world.go_on_until(PERIOD_NS)
    with world.in_its_time():
        first, second = world.take()
        world.thread._newest = first
        effort_nm = world.controller.begin(first.state, first.effort_nm)
        world.thread.output.effort_nm = effort_nm
        world.thread._tick([second], PERIOD_NS, late_ns)
    assert (world.sent[0][1].tick.mode == BLIND) is is_blind


@pytest.mark.parametrize('nap_ns', NAPS_NS[1:])
def test_after_a_long_pause_the_effort_goes_on_from_what_the_robot_measures(nap_ns):
    before, after = Nap(nap_ns).wake()
    assert (np.abs(before.effort_nm - BRAKED_NM) > 2.0 * STEP_NM).all()
    np.testing.assert_array_equal(after[0].tick.effort_before_nm, BRAKED_NM)
    expected = BRAKED_NM + np.clip(GRAVITY_NM - BRAKED_NM, -STEP_NM, STEP_NM)
    np.testing.assert_allclose(after[0].effort_nm, expected, atol=0.5)  # it has moved a little


@pytest.mark.parametrize('states_go_on', [True, False])
def test_after_a_long_pause_of_a_robot_that_does_not_measure_it_goes_on_from_gravity(
    states_go_on,
):
    before, after = Nap(300 * MS, measured_nm=None, states_go_on=states_go_on).wake()
    assert (np.abs(before.effort_nm - GRAVITY_NM) > STEP_NM).all()
    gravity = ARM.body().gravity(after[0].tick.state.q_rad)
    np.testing.assert_allclose(after[0].effort_nm, gravity, rtol=0, atol=1e-9)
    assert after[0].tick.was_resumed
    assert not after[1].tick.was_resumed


@pytest.mark.parametrize('comes_in_time', [True, False])
def test_a_state_from_before_the_pause_is_not_what_the_robot_measures_now(comes_in_time):
    world = Nap(300 * MS, others_come_ns=(2 if comes_in_time else 5) * MS)
    waiting_ns = AWAY_NS + PERIOD_NS - LEAD_NS
    world.at(waiting_ns, lambda: world.inbox.put(resting(waiting_ns)))  # for a tick that overslept
    _, after = world.wake()
    (seen, _), *_ = after[0].tick.seen
    newest_ns = world.back_ns // PERIOD_NS * PERIOD_NS
    assert seen.stamp_ns == (newest_ns if comes_in_time else waiting_ns)
    expected = BRAKED_NM if comes_in_time else GRAVITY_NM
    np.testing.assert_allclose(after[0].tick.effort_before_nm, expected, atol=1e-3)


def test_after_a_short_pause_the_effort_goes_on_as_far_as_the_rate_leads_meanwhile():
    before, after = Nap(TIMEOUT_NS + MS).wake()
    # 35.2 ms after the command before: three whole periods, of which the tick needs one.
    far = np.clip(BRAKED_NM - before.effort_nm, -2.0 * STEP_NM, 2.0 * STEP_NM)
    np.testing.assert_array_equal(after[0].tick.effort_before_nm, before.effort_nm + far)


def test_after_a_pause_no_effort_is_larger_than_what_is_asked_from_the_blended_reference():
    world = Nap(300 * MS)
    source = world.controller.reference
    source.rejoin = lambda state: setattr(source, 'held', Hold(state.q_rad).at(0.0))
    before, after = world.wake()
    warming = [c for c in after if c.tick.mode != NOMINAL]
    assert [c.tick.mode for c in warming] == [BLIND] + [WARMUP] * 4
    asked = np.abs([c.tick.step.wanted_nm for c in warming]).max(axis=0)
    assert (asked < np.abs(before.effort_nm) / 2.0).all()
    assert (np.abs([c.effort_nm for c in warming]) <= asked + 1e-9).all()


@pytest.mark.parametrize('error', [Cause.NONE, Cause.INTERNAL_ERROR])
def test_a_pause_does_not_wake_the_torque_of_a_blind_or_faulty_arm(error):
    world = Nap(300 * MS, states_go_on=False)
    world.events = [event for event in world.events if not 100 * MS < event[0] < AWAY_NS]
    heapq.heapify(world.events)
    world.at(105 * MS, lambda: world.thread.exchange.report(error))
    _, after = world.wake()
    assert not np.any([c.effort_nm for c in after[: 1 if error == Cause.NONE else None]])
    assert not any(c.tick.was_resumed for c in after)


def test_an_effort_that_is_no_number_is_not_gone_on_from():
    world = Nap(300 * MS)
    world.controller.acting_effort = lambda *_: np.array([np.nan, 0.0])
    before, after = world.wake()
    np.testing.assert_array_equal(after[0].tick.effort_before_nm, before.effort_nm)


def test_an_effort_beyond_its_limit_is_gone_on_from_no_further_than_that():
    world = Nap(300 * MS)
    world.controller.acting_effort = lambda *_: np.array([1e9, -1e9])
    _, after = world.wake()  # checks every command
    np.testing.assert_allclose(after[0].tick.effort_before_nm, MOST_NM * [1, -1], atol=1e-8)


def test_a_context_cleared_during_a_pause_is_cleared_from_what_the_robot_measures():
    world = Nap(300 * MS)
    world.at(AWAY_NS + MS, lambda: setattr(world.controller.requests, 'clear_context', True))
    _, after = world.wake()
    assert (after[0].tick.was_restarted, after[0].tick.was_resumed) == (True, True)
    np.testing.assert_array_equal(after[0].tick.effort_before_nm, BRAKED_NM)


def test_after_a_pause_an_estimator_begins_anew():
    controller, policy = load_classical('momentum_observer', SETTINGS.controller, None, 0.0)
    day = Day(policy, controller=controller)
    day.go(60)
    assert day.ticks[-1].step.estimate_nm.any()
    day.controller.resume(day.ticks[-1].step.effort_nm)
    day.go(1, is_fresh=False)
    assert not day.ticks[-1].step.estimate_nm.any()


@pytest.mark.parametrize(('is_paused', 'mode'), [(False, Mode.FAULT), (True, Mode.STOP)])
def test_after_a_pause_the_evidence_of_before_does_not_count(is_paused, mode):
    ride, speed = Ride().warm(), 1.2 * ARM.limits.velocity_radps[0]
    often = round(QUICK.guard.persistence_s * SECOND_NS / PERIOD_NS) - 1
    for number in range(2 * often):
        if is_paused and number == often:
            ride.controller.resume(ride.controller.last.step.effort_nm)
        q_rad = POSTURE + np.array([number * speed * PERIOD_NS / SECOND_NS, 0.0])
        state = ArmState(ride.now_ns, q_rad, np.array([speed, 0.0]))
        tick = ride.controller.drive([state], ride.now_ns, is_fresh=True)
        ride.now_ns += PERIOD_NS
    assert tick.mode == mode


def away_while_deciding(pause_ns, **changes):
    """Return a world whose controller stood still within a tick, and the times around that."""
    world, told = PausedWorld(**changes), []
    world.thread.output.publish = told.append
    for ns in each(PERIOD_NS, 2 * SECOND_NS):
        world.at(ns, lambda ns=ns: world.inbox.put(resting(ns)))
    tick = world.controller.drive

    def slow_tick(*inputs, **known):
        decided = tick(*inputs, **known)
        if AWAY_NS <= world.now_ns < AWAY_NS + MS:
            world.go_on_until(world.now_ns + pause_ns)
        return decided

    world.controller.drive = slow_tick
    world.thread.deadlines.next_ns = 0  # which only a tick on deadlines changes
    goal = Hold(POSTURE + 0.3).at(0.0)
    world.at(AWAY_NS - MS, lambda: setattr(world.controller.reference, 'held', goal))
    world.run(AWAY_NS + pause_ns + 9 * PERIOD_NS)
    return world, told


def test_what_was_decided_before_a_pause_is_told_but_not_sent_after_it():
    world, told = away_while_deciding(300 * MS)
    (withheld,) = (c for c in told if c.is_withheld)
    assert withheld.tick.mode == NOMINAL
    assert withheld.effort_nm is withheld.tick.step.effort_nm
    sent = [c for _, c in world.sent]
    assert [id(c.effort_nm) for c in told if c is not withheld] == [id(c.effort_nm) for c in sent]
    place = next(k for k, c in enumerate(told) if c is withheld)
    before, after = sent[place - 1 : place + 1]
    assert before.tick.mode == NOMINAL
    assert (after.tick.mode, after.tick.was_resumed) == (BLIND, True)
    assert world.thread.output.num_checks_failed == 0
    # It went on from what was measured then, not from what was never sent.
    expected = MEASURED_NM + np.clip(GRAVITY_NM - MEASURED_NM, -STEP_NM, STEP_NM)
    np.testing.assert_allclose(after.effort_nm, expected, atol=1e-3)


def test_after_a_short_pause_it_goes_on_from_what_was_sent_not_from_what_was_withheld():
    _, told = away_while_deciding(TIMEOUT_NS + PERIOD_NS + 1)
    place = next(k for k, c in enumerate(told) if c.is_withheld)
    before, withheld, after = told[place - 1 : place + 2]
    assert (np.abs(withheld.effort_nm - before.effort_nm) > 0.8 * STEP_NM).all()
    # 45 ms since the last: four whole periods, of which the tick needs one.
    far = np.clip(MEASURED_NM - before.effort_nm, -3.0 * STEP_NM, 3.0 * STEP_NM)
    np.testing.assert_array_equal(after.tick.effort_before_nm, before.effort_nm + far)


@pytest.mark.parametrize(
    ('pause_ns', 'changes', 'num_withheld'),
    [
        (TIMEOUT_NS + PERIOD_NS, {}, 0),
        (TIMEOUT_NS + PERIOD_NS + 1, {}, 1),
        (300 * MS, {'ticks_on_states': True}, 0),
    ],
)
def test_only_what_the_next_tick_would_be_blind_after_is_withheld(pause_ns, changes, num_withheld):
    world, told = away_while_deciding(pause_ns, **changes)
    assert [c.is_withheld for c in told].count(True) == num_withheld
    assert [c.tick.was_resumed for _, c in world.sent if c.tick].count(True) == num_withheld


def test_what_a_faulty_arm_was_to_do_is_sent_whenever():
    world, told = World(), []
    world.thread.output.publish = told.append
    world.at(AWAY_NS - PERIOD_NS, lambda: world.thread.exchange.report(Cause.CLOCK_MISMATCH))
    world.at(AWAY_NS, lambda: setattr(world, 'take_takes_ns', 300 * MS))
    world.at(AWAY_NS + 300 * MS, lambda: setattr(world, 'take_takes_ns', 0))
    for ns in each(PERIOD_NS, SECOND_NS):
        world.at(ns, lambda ns=ns: world.inbox.put(arrival(ns)))
    world.run(SECOND_NS)
    assert [id(c.effort_nm) for c in told] == [id(c.effort_nm) for _, c in world.sent]


def test_in_simulated_time_nobody_is_late():
    world = World(ticks_on_states=True).arrives(0, 10 * MS, 900 * MS)
    world.run(SECOND_NS)
    assert not any(c.tick.was_resumed for _, c in world.sent if c.tick)


def test_a_run_with_a_pause_is_computed_again_to_the_bit():
    day = Day(lambda window: np.tanh(window[-1, :8]))
    day.go(120)
    day.controller.resume(np.array([33.0, -7.0]))
    day.go(1, is_fresh=False)
    day.go(120)
    log = log_of(day.ticks)
    again = reproduce(log, DAY_ARM, SETTINGS.controller, lambda window: np.tanh(window[-1, :8]))
    assert again.first_difference is None
    np.testing.assert_array_equal(again.effort_nm, log.effort_nm)
    assert log.is_resumed.sum() == 1
    forgotten = replace(log, is_resumed=np.zeros_like(log.is_resumed))
    other = reproduce(forgotten, DAY_ARM, SETTINGS.controller, day.policy)
    assert other.first_difference.tick == 120


def ticks_of(step_s, **last):
    """Return messages of ticks, the last of which is so far from the others."""
    shields = [{'was_restarted': float(k == 0), 'now_s': 0.01 * k} for k in range(5)]
    shields.append(last | {'now_s': 0.04 + step_s})
    told = [JointValues(0, (), (), (), (effort, effort)) for effort in (2.0, 9.0)]
    rest = [None] * (len(TickMessages._fields) - 6)
    return [
        TickMessages(
            0,
            tuple((dict.fromkeys(SHIELD_NAMES, 0.0) | shield).values()),
            (Point((), (), (), 0),),
            (told[shield is shields[-1]],),  # where it begins is not where the others end
            told[0],
            JointValues(0, (), (), (), ()),
            *rest,
        )
        for shield in shields
    ]


def test_a_pause_in_a_log_is_no_gap_unless_more_time_is_missing():
    pause = {'was_resumed': 1.0, 'late_ms': 300.0}
    assert not find_breaks(ticks_of(0.31, **pause)).any()
    for messages in (ticks_of(0.32, **pause), ticks_of(0.31, late_ms=300.0)):
        assert find_breaks(messages).tolist() == [False] * 5 + [True]


def test_after_a_pause_an_effort_further_than_the_rate_led_is_found():
    day = Day(lambda window: np.zeros(8))
    day.go(120)
    sent = day.ticks[-1].step.effort_nm
    for share, found in ((0.99, []), (1.01, ['effort before'])):
        far = share * 40 * PERIOD_NS / SECOND_NS * np.array(ARM.limits.effort_rate_nmps)
        ticks = [*day.ticks]
        last = ticks[-1]._replace(was_resumed=True, effort_before_nm=sent + far)
        log = log_of([*ticks, last])
        now_ns = log.now_ns.copy()
        now_ns[-1] += 40 * PERIOD_NS
        late_ms = log.shield['late_ms'].copy()
        late_ms[-1] = 390.0
        log = replace(log, now_ns=now_ns, shield=log.shield | {'late_ms': late_ms})
        violations = check_certificates(log, ARM, SETTINGS.controller)
        assert [v.what for v in violations if v.what == 'effort before'] == found
