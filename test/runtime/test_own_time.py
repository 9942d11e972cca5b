# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""Time is the controller's own: whatever stamps say, and after it was away itself."""

import numpy as np
import pytest
from support.rides import PERIOD_NS, Ride, state_at
from support.worlds import (
    arrival,
    each,
    LEAD_NS,
    MS,
    SECOND_NS,
    STEP_NM,
    World,
)

from metactl_ros.control.modes import Cause, Mode

PACES = {'stuck but for 1 ns': 1e-7, 'at a hundredth': 0.01, 'thrice': 3.0, 'at 90 times': 90.0}


def at_pace(pace, **changes):
    """Return a world whose stamps go at a pace of their own."""
    world = World(**changes)
    for ns in each(PERIOD_NS, SECOND_NS):
        stamp_ns = round(ns * pace)
        world.at(ns, lambda ns=ns, stamp_ns=stamp_ns: world.inbox.put(arrival(stamp_ns, ns)))
    return world


@pytest.mark.parametrize('pace', PACES.values(), ids=PACES)
def test_whatever_the_pace_of_the_stamps_torque_leaves_in_a_fault_as_fast_as_it_may(pace):
    world, fault_ns = at_pace(pace), 300 * MS
    world.at(fault_ns, lambda: world.thread.exchange.report(Cause.INTERNAL_ERROR))
    world.run(SECOND_NS)
    before, *after = (c for ns, c in world.commands(SECOND_NS) if ns > fault_ns - PERIOD_NS)
    assert before.effort_nm.any()
    assert {c.tick.mode for c in after} == {Mode.FAULT}
    ramp = [np.maximum(np.abs(before.effort_nm) - k * STEP_NM, 0.0) for k in range(1, 10)]
    np.testing.assert_allclose(np.abs([c.effort_nm for c in after[:9]]), ramp, atol=1e-9)
    assert not after[9].effort_nm.any()


@pytest.mark.parametrize('pace', PACES.values(), ids=PACES)
def test_whatever_the_pace_of_the_stamps_the_loop_has_the_time_of_the_steady_clock(pace):
    world = at_pace(pace).run(SECOND_NS)
    ticks = [(ns, c.tick) for ns, c in world.sent if c.tick is not None]
    begin_ns = ticks[0][1].now_ns  # where the states were
    assert [tick.loop_ns for _, tick in ticks] == [begin_ns + ns - LEAD_NS for ns, _ in ticks]
    assert len(ticks) > 110  # those of the way out among them


def test_a_loop_begins_again_at_the_time_of_the_states_and_goes_on_by_the_steady_clock():
    ride, steady_ns = Ride(), 7 * 10**12
    stamps, times = (PERIOD_NS, 5 * PERIOD_NS, 6 * PERIOD_NS, 6 * PERIOD_NS + 1), []
    for number, stamp_ns in enumerate(stamps):
        now_ns = stamp_ns + 3  # the state is 3 ns old
        state, steady_ns = state_at(stamp_ns), steady_ns + PERIOD_NS
        if number == 2:
            ride.controller.begin(state, None)
        tick = ride.controller.drive([state], now_ns, is_fresh=True, steady_ns=steady_ns)
        times.append((tick.now_ns, tick.loop_ns))
    first_ns, second_ns = PERIOD_NS + 3, 6 * PERIOD_NS + 3
    assert times == [
        (first_ns, first_ns),
        (5 * PERIOD_NS + 3, first_ns + PERIOD_NS),
        (second_ns, second_ns),
        (second_ns + 1, second_ns + PERIOD_NS),
    ]


def test_on_states_the_loop_has_the_time_of_the_states():
    world = at_pace(3, ticks_on_states=True)
    ticks = [c.tick for _, c in world.run(SECOND_NS).commands(SECOND_NS)]
    assert [tick.loop_ns for tick in ticks] == list(each(3 * PERIOD_NS, 3 * SECOND_NS))
