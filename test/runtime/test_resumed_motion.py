# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""An arm that fell, stopped or was reset: it joins its reference again, from where it is."""

import numpy as np
import pytest
from support.episodes import LIMITS
from support.rides import (
    ARM,
    BLIND,
    BUDGET_NS,
    NOMINAL,
    PERIOD_NS,
    Ride,
    SETTINGS,
    state_at,
    STOP,
    WARMUP,
)
from support.tick_logs import Day
from support.trajectories import cdr_of, point, trajectory

from metactl_ros.control.modes import Cause, Mode
from metactl_ros.runtime.controller import LiveController, Requests
from metactl_ros.runtime.joint_states import MessageError
from metactl_ros.runtime.reference_source import TrajectorySource
from metactl_ros.sim.plant import PlantStart
from metactl_ros.sim.rk4_arm import Rk4Arm

POSTURE = np.array([-1.2, 0.4])


class Arm:
    """A simulated arm that holds, or follows trajectories."""

    def __init__(self):
        self.source = TrajectorySource(ARM.joint_names, LIMITS)
        self.requests = Requests(payload_kg=0.0)
        settings = (ARM, SETTINGS.controller, None, self.source, self.requests, BUDGET_NS)
        self.controller = LiveController(*settings)
        self.plant = Rk4Arm(ARM, SETTINGS.plant.friction, SETTINGS.controller.law.rate_hz)
        rest = {'qd_radps': np.zeros(2), 'memory_nm': np.zeros(2)}
        world = {'payload_kg': np.zeros(()), 'tau_z_s': np.full((), 2.0)}
        start = PlantStart(q_rad=POSTURE, **rest, **world, noise_seed=np.zeros((), dtype=int))
        self.state = self.plant.reset(start)
        self.controller.begin(self.state, None)

    def go(self, num_ticks, *, sees=True, error=Cause.NONE):
        """Tick; return the ticks."""
        ticks = []
        for _ in range(num_ticks):
            states = [self.state] if sees else []
            now_ns = self.state.stamp_ns
            ticks.append(self.controller.drive(states, now_ns, is_fresh=sees, error=error))
            self.state, error = self.plant.step(ticks[-1].step.effort_nm), Cause.NONE
        return ticks

    def follow(self, *points):
        data = cdr_of(trajectory(*points, names=ARM.joint_names))
        self.controller.follow(data, 0)


def jumps(ticks):
    """Return the largest steps of the reference between ticks, in position and velocity."""
    q, qd = (
        np.array([getattr(tick.reference, name) for tick in ticks])
        for name in ('q_rad', 'qd_radps')
    )
    return np.abs(np.diff(q, axis=0)).max(), np.abs(np.diff(qd, axis=0)).max()


def test_where_trajectories_are_followed_the_arm_is_driven_and_held_until_one_comes():
    arm = Arm()
    ticks = arm.go(100)
    assert {tick.mode for tick in ticks} == {Mode.WARMUP, Mode.NOMINAL}
    assert np.abs(arm.state.q_rad - POSTURE).max() < 0.05
    arm.follow(point(2.0, (-0.8, 0.1)))
    assert np.abs(jumps(arm.go(300))).max() < 0.05
    assert np.abs(arm.state.q_rad - (-0.8, 0.1)).max() < 0.1


def test_a_trajectory_is_refused_before_the_first_tick_and_while_the_arm_does_not_follow():
    arm, goal = Arm(), point(2.0, (-0.8, 0.1))
    arm.controller.reference = TrajectorySource(ARM.joint_names, LIMITS)  # which knows no state
    with pytest.raises(MessageError, match='trajectory: no joint state yet'):
        arm.follow(goal)
    arm = Arm()
    arm.follow(goal)
    arm.requests.is_enabled = False
    arm.go(3)
    expected = r'expected an arm that follows, found it in STOP \(NO_REFERENCE\); send it again'
    with pytest.raises(MessageError, match=expected):
        arm.follow(goal)


def test_a_fault_can_be_reset_where_trajectories_are_followed_and_then_nothing_moves():
    arm = Arm()
    arm.go(60)
    arm.follow(point(2.0, (-0.8, 0.1)))
    arm.go(50)
    assert arm.go(5, error=Cause.INTERNAL_ERROR)[-1].mode == Mode.FAULT
    arm.requests.reset_fault = True
    ticks = arm.go(100)
    assert (ticks[0].mode, ticks[-1].mode) == (Mode.WARMUP, Mode.NOMINAL)
    held = ticks[0].reference
    np.testing.assert_array_equal(held.q_rad, ticks[0].state.q_rad)
    np.testing.assert_array_equal(held.qd_radps, ticks[0].state.qd_radps)
    assert not ticks[-1].reference.qd_radps.any()  # it braked, and the trajectory is forgotten


@pytest.mark.parametrize('num_blind', [3, 15, 30])
def test_an_arm_that_fell_is_caught_without_a_step_of_its_reference(num_blind):
    day = Day(None)
    day.policy = lambda window: day.controller.loop.nominal_action
    day.go(150)
    day.go(num_blind, sees=False, is_fresh=False)
    caught = len(day.ticks)
    day.go(200)
    begin, end = day.ticks[caught], day.ticks[-1]
    assert begin.mode == Mode.WARMUP
    np.testing.assert_allclose(begin.reference.q_rad, begin.state.q_rad, atol=1e-12)
    np.testing.assert_allclose(begin.reference.qd_radps, begin.state.qd_radps, atol=1e-12)
    step_rad, step_radps = jumps(day.ticks[caught:])
    most = LIMITS.acceleration_radps2.max() * PERIOD_NS / 1e9
    assert step_radps <= most
    assert step_rad <= LIMITS.velocity_radps.max() * PERIOD_NS / 1e9
    sent = np.array([tick.step.effort_nm for tick in day.ticks[caught:]])
    assert (np.abs(sent) < 0.9 * np.array(ARM.limits.effort_nm)).all()
    assert end.mode == Mode.NOMINAL


def test_an_arm_that_was_stopped_joins_its_reference_again():
    ride = Ride().warm()
    outside = state_at(ride.now_ns, [ARM.limits.position_rad[0] + 0.01, 0.0])
    assert ride.controller.drive([outside], ride.now_ns, is_fresh=True).mode == STOP
    ride.effort = ride.controller.last.step.effort_nm
    ride.now_ns += PERIOD_NS
    assert not ride.reference.rejoined
    assert ride.tick().mode < STOP
    assert ride.reference.rejoined == [ride.now_ns - PERIOD_NS]


def test_an_arm_without_a_reference_joins_none_when_one_comes():
    ride = Ride().warm()
    ride.reference.is_missing = True
    assert [ride.tick().mode for _ in range(3)] == [STOP] * 3
    ride.reference.is_missing = False
    assert ride.tick().mode == NOMINAL  # it begins where the arm is
    assert not ride.reference.rejoined


def test_a_blind_arm_rejoins_at_the_newest_state_and_sees_no_other():
    ride = Ride().warm()
    ride.tick_without_state()
    states = [state_at(ride.now_ns + k) for k in range(3)]
    tick = ride.controller.drive(states, ride.now_ns + 2, is_fresh=True)
    assert [state for state, _ in tick.seen] == states[-1:]
    assert ride.reference.rejoined == [states[-1].stamp_ns]


def test_an_arm_that_sees_again_without_a_new_state_rejoins_at_the_last_one():
    ride = Ride().warm()
    last_ns = ride.now_ns
    assert ride.tick(is_fresh=False).mode == BLIND  # a state came, but the controller was away
    assert ride.tick_without_state(is_fresh=True).mode == WARMUP
    assert ride.reference.rejoined == [last_ns]


def test_a_stopped_arm_that_is_seen_remembers_every_state():
    ride = Ride().warm()
    ride.requests.is_enabled = False
    ride.tick()
    states = [state_at(ride.now_ns + k) for k in range(3)]
    tick = ride.controller.drive(states, ride.now_ns + 2, is_fresh=True)
    assert (tick.mode, [state for state, _ in tick.seen]) == (STOP, states)


def test_a_blind_arm_without_a_reference_joins_the_one_that_comes():
    ride = Ride().warm()
    ride.reference.is_missing = True
    ride.tick_without_state()
    ride.reference.is_missing = False
    assert ride.tick().mode == WARMUP
    assert ride.reference.rejoined == [ride.now_ns - PERIOD_NS]
