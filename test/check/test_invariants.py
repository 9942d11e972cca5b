# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
import numpy as np
import pytest
from support.tick_logs import ARM, Day, PERIOD_NS, SETTINGS

from metactl_ros.check.invariants import (
    blind_share,
    check_commands,
    Commands,
    Guarantee,
    States,
)
from metactl_ros.check.matrix_law import Chain
from metactl_ros.control.modes import Mode

MODES = SETTINGS.controller.modes
TIMEOUT_NS, SLACK_NS = 30_000_000, 20_000_000
PROMISE = Guarantee(ARM, PERIOD_NS / 1e9, TIMEOUT_NS / 1e9, MODES.blind_ramp_s, SLACK_NS / 1e9)
STEP_NM = np.array(ARM.limits.effort_rate_nmps) * PROMISE.period_s
POSTURE = np.array([0.4, -0.3])
GRAVITY_NM = Chain(ARM).gravity_nm(POSTURE[np.newaxis])[0]


def commands_of(efforts, received_ns=None):
    efforts = np.array(efforts, dtype=np.float64)
    times = np.arange(len(efforts)) * PERIOD_NS if received_ns is None else np.array(received_ns)
    return Commands(times, times, efforts)


def states_at(*received_ns, effort_nm=(np.nan, np.nan)):
    count = len(received_ns)
    times = np.array(received_ns, dtype=np.int64)
    return States(times, np.tile(POSTURE, (count, 1)), np.tile(effort_nm, (count, 1)))


def whats(violations):
    return {(violation.tick, violation.what) for violation in violations}


ALWAYS = states_at(*range(-PERIOD_NS, 200 * PERIOD_NS, PERIOD_NS))


class Silent(Day):
    """A day on which states stay away for a while, again and again; time is the arm's."""

    def __init__(self, policy, silences, num_ticks=900):
        super().__init__(policy)
        self.received = []
        for k in range(num_ticks):
            if not any(begin <= k < end for begin, end in silences):
                self.received.append(self.state)
            age_ns = self.state.stamp_ns - self.received[-1].stamp_ns
            self.go(1, sees=age_ns == 0, is_fresh=age_ns <= TIMEOUT_NS)

    @property
    def commands(self):
        return commands_of(
            [tick.step.effort_nm for tick in self.ticks], [tick.now_ns for tick in self.ticks]
        )

    @property
    def states(self):
        q_rad = np.array([state.q_rad for state in self.received])
        times = np.array([state.stamp_ns for state in self.received])
        return States(times, q_rad, np.full_like(q_rad, np.nan))


@pytest.fixture(scope='module')
def silent():
    rng = np.random.default_rng(0)
    silences = [(80, 82), (120, 140), (250, 300), (420, 427), (500, 560), (700, 850)]
    return Silent(lambda window: rng.uniform(-1.5, 1.5, 8), silences)


def test_the_controller_keeps_its_guarantee_through_silences(silent):
    assert {tick.mode for tick in silent.ticks} >= {Mode.NOMINAL, Mode.WARMUP, Mode.BLIND}
    assert check_commands(silent.commands, silent.states, PROMISE) == []
    assert blind_share(silent.commands, silent.states, PROMISE) > 0.25
    assert not silent.commands.effort_nm[849].any()


def test_it_keeps_it_when_it_was_stopped_for_a_while(silent):
    """A controller that was held up knows only later that it is blind, and fades from then."""
    day = Silent(silent.policy, [(60, 200)], num_ticks=60)
    for _ in range(40):
        day.state = day.plant.step(day.ticks[-1].step.effort_nm)
    day.go(60, sees=False, is_fresh=False)
    assert check_commands(day.commands, day.states, PROMISE) == []
    assert blind_share(day.commands, day.states, PROMISE) == 0.5


def mutated(silent, change):
    """Return commands with those of blind ticks changed, as a worse controller would send."""
    commands = silent.commands
    efforts = commands.effort_nm.copy()
    for k, tick in enumerate(silent.ticks):
        if tick.mode == Mode.BLIND:
            near = (efforts[k - 1] - STEP_NM, efforts[k - 1] + STEP_NM)
            efforts[k] = np.clip(change(k, efforts[k - 1], efforts[k]), *near)
    return commands._replace(effort_nm=efforts)


MUTANTS = {
    'holds its last torque': lambda k, before, good: before,
    'goes on as if it saw': lambda k, before, good: GRAVITY_NM + 20.0 * np.sin(0.02 * k),
    'holds gravity for ever': lambda k, before, good: GRAVITY_NM,
    'pushes the other way': lambda k, before, good: -good,
    'leaves a little torque on': lambda k, before, good: good + 0.01,
}


@pytest.mark.parametrize('name', MUTANTS)
def test_a_controller_that_is_not_safe_while_blind_is_caught(silent, name):
    found = check_commands(mutated(silent, MUTANTS[name]), silent.states, PROMISE)
    assert 'blind' in {violation.what for violation in found}
    for violation in found:
        assert violation.found > violation.allowed
        if violation.what == 'blind':
            assert silent.ticks[violation.tick].mode == Mode.BLIND


def test_the_listener_grants_the_timeout_and_twice_its_slack():
    """Blind from 60 ms on, and for 20 ms more the rate limit may not yet have acted."""
    found = check_commands(commands_of(np.tile([100.0, 0.0], (20, 1))), states_at(0), PROMISE)
    assert whats(found) == {(tick, 'blind') for tick in range(8, 20)}
    first = found[0]
    assert (first.time_s, first.found) == (0.08, 100.0)
    assert first.allowed == pytest.approx(max(GRAVITY_NM[0], 60.0))
    assert blind_share(commands_of(np.zeros((20, 2))), states_at(0), PROMISE) == 14 / 20


def test_numbers_are_finite_and_within_size():
    efforts = np.tile(GRAVITY_NM, (6, 1))
    efforts[2, 1] = np.nan
    efforts[4, 0] = 150.1
    found = check_commands(commands_of(efforts), ALWAYS, PROMISE)
    assert (2, 'finite') in whats(found)
    assert (4, 'effort size') in whats(found)
    size = next(v for v in found if v.what == 'effort size')
    assert (size.time_s, size.found, size.allowed) == (0.04, 150.1, 150.0)
    assert check_commands(commands_of(np.full((3, 2), np.nan)), ALWAYS, PROMISE)[2].tick == 2


@pytest.mark.parametrize(('over', 'expected'), [(0.0, set()), (1e-6, {(3, 'effort rate')})])
def test_the_rate_is_that_of_one_period(over, expected):
    efforts = np.zeros((6, 2))
    efforts[3:] = STEP_NM + np.array([0.0, over])
    assert whats(check_commands(commands_of(efforts), ALWAYS, PROMISE)) == expected


def test_commands_that_come_together_have_a_period_each_and_lost_ones_count():
    efforts = np.array([[0.0, 0.0], STEP_NM, 2 * STEP_NM, 0 * STEP_NM])
    times = [0, PERIOD_NS, PERIOD_NS + 1000, 3 * PERIOD_NS]
    assert check_commands(commands_of(efforts, times), ALWAYS, PROMISE) == []
    times[-1] = 2 * PERIOD_NS
    found = check_commands(commands_of(efforts, times), ALWAYS, PROMISE)
    assert whats(found) == {(3, 'effort rate')}


@pytest.mark.parametrize(
    ('start', 'is_well'),
    [(GRAVITY_NM, True), (np.array([-70.0, 30.0]), True), (np.array([0.0, -30.0]), False)],
)
def test_a_new_controller_begins_from_the_measured_effort_or_from_gravity(start, is_well):
    efforts = np.vstack([np.tile([-110.0, 50.0], (5, 1)), np.tile(start, (5, 1))])
    states = ALWAYS._replace(effort_nm=np.tile([-110.0, 30.0], (len(ALWAYS.q_rad), 1)))
    restart = [4 * PERIOD_NS + 5]
    found = check_commands(commands_of(efforts), states, PROMISE, restart)
    assert whats(found) == (set() if is_well else {(5, 'effort rate')})
    assert (5, 'effort rate') in whats(check_commands(commands_of(efforts), states, PROMISE))


def test_a_new_controller_that_commands_before_any_state_is_caught():
    efforts = np.zeros((5, 2))
    found = check_commands(commands_of(efforts), states_at(), PROMISE, [-1])
    assert (0, 'effort rate') in whats(found)


def test_a_state_without_numbers_is_no_state():
    efforts = np.tile(GRAVITY_NM, (60, 1))
    assert check_commands(commands_of(efforts), ALWAYS, PROMISE) == []
    broken = ALWAYS._replace(q_rad=ALWAYS.q_rad.copy())
    broken.q_rad[10:, 1] = np.nan
    found = check_commands(commands_of(efforts), broken, PROMISE)
    assert {violation.what for violation in found} == {'blind'}


def test_torque_without_any_state_must_fade():
    efforts = np.tile(GRAVITY_NM, (20, 1))
    found = check_commands(commands_of(efforts), states_at(), PROMISE)
    assert {violation.what for violation in found} == {'blind'}
    assert check_commands(commands_of(0.0 * efforts), states_at(), PROMISE) == []


def test_without_commands_there_is_nothing_to_find():
    assert check_commands(commands_of(np.zeros((0, 2))), ALWAYS, PROMISE) == []
    assert blind_share(commands_of(np.zeros((0, 2))), ALWAYS, PROMISE) == 0.0


def test_an_arm_with_brakes_lets_go_at_once():
    guarantee = PROMISE._replace(blind_ramp_s=0.0)
    states = states_at(0)
    efforts = np.tile(GRAVITY_NM, (30, 1))
    efforts[4:] = 0.0
    efforts[4] = GRAVITY_NM - np.clip(GRAVITY_NM, -STEP_NM, STEP_NM)
    efforts[5] = efforts[4] - np.clip(efforts[4], -STEP_NM, STEP_NM)
    assert check_commands(commands_of(efforts), states, guarantee) == []
    efforts[15:] = 0.01
    assert min(v.tick for v in check_commands(commands_of(efforts), states, guarantee)) == 15
