# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""An arm that did not follow its reference for a while, and joins it again."""

from support.rides import ARM, BLIND, NOMINAL, PERIOD_NS, Ride, state_at, STOP, WARMUP


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
