# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st
import numpy as np
import pytest

from metactl_ros.runtime.joint_states import (
    ADOPT_AFTER,
    CLOCK_TOLERANCE_NS,
    JointSample,
    OF_CLOCKS,
    SPAN_NS,
    StateGate,
)
from metactl_ros.settings import load_arm

ARM = load_arm()
PERIOD_NS = 10_000_000
SECOND_NS = 1_000_000_000
BOOT_NS = 1_700_000_000 * SECOND_NS
STEADY_NS = 5_000 * SECOND_NS
TIMEOUT_NS = 25_000_000

refusals = (*OF_CLOCKS, 'impossible motions')


def sample(stamp_ns, q_rad=(0.0, 0.0)):
    return JointSample(stamp_ns, np.array(q_rad, dtype=np.float64), np.zeros(2), None)


class Robot:
    """A robot at a gate: each turn, one period passes and it may say something."""

    def __init__(self, timeout_ns=TIMEOUT_NS):
        self.gate = StateGate(ARM, PERIOD_NS, timeout_ns)
        self.turn = 0
        self.shift_ns = BOOT_NS
        self.q_rad = (0.3, -0.4)

    def passes(self, count=1):
        self.turn += count
        return self

    def says(self, stamp_ns=None, q_rad=None):
        """Offer a state measured now, unless told otherwise; return the stamp that leaves."""
        now_ns = self.turn * PERIOD_NS
        stamp_ns = self.shift_ns + now_ns if stamp_ns is None else stamp_ns
        offered = sample(stamp_ns, self.q_rad if q_rad is None else q_rad)
        state = self.gate.admit(offered, STEADY_NS + now_ns)
        if state is None:
            return None
        assert state.q_rad is offered.q_rad
        assert state.qd_radps is offered.qd_radps
        return state.stamp_ns

    def runs(self, count):
        """Return what leaves the gate in the next turns of a healthy robot."""
        return [self.passes().says() for _ in range(count)]

    @property
    def refused(self):
        return {name: self.gate.counts[name] for name in refusals if self.gate.counts[name]}


@pytest.fixture(params=[TIMEOUT_NS, None], ids=['robot', 'simulator'])
def robot(request):
    return Robot(request.param)


def test_the_first_stamp_is_zero_and_the_others_follow_it(robot):
    assert robot.says() == 0
    assert robot.runs(3) == [PERIOD_NS, 2 * PERIOD_NS, 3 * PERIOD_NS]
    assert {name for name, count in robot.gate.counts.items() if count} == {'accepted'}
    assert robot.gate.counts['accepted'] == 4


def test_a_duplicate_and_an_old_state_are_refused_and_disturb_nobody(robot):
    robot.says()
    robot.runs(5)
    assert robot.says() is None
    assert robot.says(stamp_ns=BOOT_NS + 3 * PERIOD_NS) is None
    assert robot.refused == {'old stamps': 2}
    assert robot.runs(1) == [6 * PERIOD_NS]


def test_a_duplicate_is_refused_however_often_it_comes(robot):
    robot.says()
    assert {robot.passes().says(stamp_ns=BOOT_NS) for _ in range(50)} == {None}


def test_one_stamp_a_nanosecond_newer_is_newer(robot):
    robot.says()
    assert robot.says(stamp_ns=BOOT_NS + 1) == 1


@pytest.mark.parametrize('joint', [0, 1])
@pytest.mark.parametrize('sign', [-1.0, 1.0])
@pytest.mark.parametrize('periods', [1, 3])
def test_a_joint_may_seem_twice_as_fast_as_its_limit_but_no_faster(joint, sign, periods):
    reach = 2.0 * np.array(ARM.limits.velocity_radps) * periods * PERIOD_NS / SECOND_NS
    step = np.where(np.arange(2) == joint, sign * reach, 0.0)
    for share, is_admitted in ((0.999, True), (1.001, False)):
        robot = Robot()
        robot.says(q_rad=(0.0, 0.0))
        assert (robot.passes(periods).says(q_rad=share * step) is not None) == is_admitted
        assert robot.refused == ({} if is_admitted else {'impossible motions': 1})


def test_between_two_close_states_a_joint_may_move_as_in_one_period(robot):
    robot.says(q_rad=(0.0, 0.0))
    assert robot.says(stamp_ns=BOOT_NS + 1, q_rad=(0.159, -0.159)) == 1


def test_a_single_glitch_is_refused_and_does_not_disturb(robot):
    robot.says()
    robot.runs(4)
    assert robot.passes().says(q_rad=(1.3, -0.4)) is None
    assert robot.runs(2) == [6 * PERIOD_NS, 7 * PERIOD_NS]
    assert robot.refused == {'impossible motions': 1}


@pytest.mark.parametrize('way_rad', [0.2, 0.7, 1.5, -2.0])
def test_a_joint_that_leaps_and_stays_is_believed_again_but_counted(robot, way_rad):
    """Be it that the arm could have got there meanwhile."""
    robot.says()
    robot.runs(5)
    robot.q_rad = (0.3 + way_rad, -0.4)
    after = robot.runs(ADOPT_AFTER + 1)
    assert after[0] is None
    assert after[-1] is not None
    assert robot.gate.counts['leaps'] == 1
    robot.runs(20)
    assert robot.gate.counts['leaps'] == 1


def test_a_glitch_that_is_over_is_no_leap(robot):
    robot.says()
    for _ in range(5):
        robot.passes().says(q_rad=(1.8, -0.4))
    assert None not in robot.runs(20)
    assert robot.gate.counts['leaps'] == 0


def test_glitches_that_good_states_interrupt_never_add_up(robot):
    robot.says()
    for _ in range(3 * ADOPT_AFTER):
        assert robot.passes().says(q_rad=(1.3, -0.4)) is None
        assert robot.runs(1) != [None]
    assert robot.gate.counts['new timelines'] == 0


def test_refused_states_that_disagree_with_each_other_never_add_up(robot):
    robot.says()
    for turn in range(5 * ADOPT_AFTER):
        far = (1.3 + turn % 2, -0.4)
        assert robot.passes().says(stamp_ns=BOOT_NS + 1 + turn, q_rad=far) is None


def test_nine_that_agree_a_good_one_and_nine_again_begin_no_new_timeline(robot):
    robot.says()
    for _ in range(2):
        agreeing = [robot.passes().says(q_rad=(2.3, 0.4)) for _ in range(ADOPT_AFTER - 1)]
        assert set(agreeing) == {None}
        assert None not in robot.runs(1)


@pytest.mark.parametrize('shift_ns', [-3600 * SECOND_NS, -BOOT_NS + SECOND_NS])
def test_a_restarted_robot_is_adopted_with_its_tenth_agreeing_state(robot, shift_ns):
    robot.says()
    before = robot.runs(20)
    robot.passes(300)
    robot.shift_ns += shift_ns
    robot.q_rad = (-2.0, 2.0)
    after = robot.runs(ADOPT_AFTER + 3)
    assert after[: ADOPT_AFTER - 1] == [None] * (ADOPT_AFTER - 1)
    # Time has gone on by the steady clock: 20 turns, a break of 300, ten turns of agreement.
    assert after[ADOPT_AFTER - 1 :] == [(330 + k) * PERIOD_NS for k in range(4)]
    assert before[-1] == 20 * PERIOD_NS
    assert robot.refused == {'old stamps': ADOPT_AFTER}
    assert robot.gate.counts['new timelines'] == 1
    assert robot.gate.counts['leaps'] == 0


def test_a_robot_adopted_within_one_instant_still_advances_by_a_period(robot):
    robot.says()
    robot.turn += 1
    stamps = [robot.says(stamp_ns=BOOT_NS - SECOND_NS + k) for k in range(ADOPT_AFTER)]
    assert stamps == [None] * (ADOPT_AFTER - 1) + [PERIOD_NS]


def test_another_arm_on_the_same_topic_is_adopted_only_if_the_first_falls_silent(robot):
    robot.says()
    foreign = [robot.passes().says(q_rad=(2.0, 2.0)) for _ in range(ADOPT_AFTER)]
    assert foreign == [None] * (ADOPT_AFTER - 1) + [ADOPT_AFTER * PERIOD_NS]
    assert robot.refused == {'impossible motions': ADOPT_AFTER}
    assert robot.gate.counts['leaps'] == 1


@pytest.mark.parametrize('jump_ns', [SECOND_NS + 1, 3600 * SECOND_NS, -3600 * SECOND_NS])
def test_a_jump_of_the_robots_clock_is_adopted_and_time_does_not_jump(jump_ns):
    robot = Robot()
    robot.says()
    robot.shift_ns += jump_ns
    after = robot.runs(ADOPT_AFTER + 1)
    assert after[: ADOPT_AFTER - 1] == [None] * (ADOPT_AFTER - 1)
    assert after[ADOPT_AFTER - 1 :] == [ADOPT_AFTER * PERIOD_NS, (ADOPT_AFTER + 1) * PERIOD_NS]
    assert robot.refused == {'clock jumps' if jump_ns > 0 else 'old stamps': ADOPT_AFTER}


def test_a_single_stamp_from_the_future_is_refused_and_does_not_disturb():
    robot = Robot()
    robot.says()
    assert robot.passes().says(stamp_ns=BOOT_NS + 3600 * SECOND_NS) is None
    assert robot.runs(1) == [2 * PERIOD_NS]
    assert robot.refused == {'clock jumps': 1}


def test_stamps_that_stand_still_while_the_steady_clock_runs_are_a_jump_too():
    robot = Robot()
    robot.says()
    assert robot.passes(102).says(stamp_ns=BOOT_NS + PERIOD_NS) is None
    assert robot.refused == {'clock jumps': 1}


def test_a_long_silence_of_a_healthy_robot_is_no_jump():
    robot = Robot()
    robot.says()
    assert robot.passes(100_000).says() == 100_000 * PERIOD_NS


def test_the_tolerance_of_the_clock_is_its_last_nanosecond():
    silence = SPAN_NS // PERIOD_NS + 1  # after which nothing else is known
    for excess_ns, is_admitted in ((0, True), (1, False)):
        robot = Robot()
        robot.says()
        stamp_ns = BOOT_NS + silence * PERIOD_NS + CLOCK_TOLERANCE_NS + excess_ns
        assert (robot.passes(silence).says(stamp_ns=stamp_ns) is not None) == is_admitted


@given(steps=st.lists(st.tuples(st.integers(1, 10**10), st.integers(0, 10**12)), max_size=20))
def test_simulated_time_ignores_the_steady_clock(steps):
    gate = StateGate(ARM, PERIOD_NS, None)
    stamp_ns = received_ns = 1
    gate.admit(sample(stamp_ns), received_ns)
    for passed_ns, steady_ns in steps:
        stamp_ns, received_ns = stamp_ns + passed_ns, received_ns + steady_ns
        assert gate.admit(sample(stamp_ns), received_ns).stamp_ns == stamp_ns - 1


@given(is_lost=st.lists(st.booleans(), max_size=60), jitter=st.randoms(use_true_random=False))
def test_as_many_drops_are_counted_as_there_were(is_lost, jitter):
    robot = Robot()
    robot.says()
    for lost in [*is_lost, False]:
        robot.passes()
        if not lost:
            shake_ns = jitter.randint(-PERIOD_NS // 5, PERIOD_NS // 5)
            assert robot.says(BOOT_NS + robot.turn * PERIOD_NS + shake_ns) is not None
    assert robot.gate.counts['dropped'] == sum(is_lost)
    assert robot.gate.counts['accepted'] == 2 + len(is_lost) - sum(is_lost)


def test_a_robot_ten_times_as_fast_drops_nothing():
    robot = Robot()
    stamps = [robot.says(BOOT_NS + k * PERIOD_NS // 10) for k in range(100)]
    assert stamps == [k * PERIOD_NS // 10 for k in range(100)]
    assert robot.gate.counts['dropped'] == 0


stamps = st.integers(1, 50 * PERIOD_NS) | st.integers(1, 2**62)
postures = st.sampled_from([0.0, 0.1, 2.0]) | st.floats(-1e6, 1e6)
offers = st.tuples(stamps, postures, st.integers(0, 2 * SECOND_NS), st.integers(1, 12))


@given(
    offers=st.lists(offers, max_size=30), timeout_ns=st.sampled_from([TIMEOUT_NS, SECOND_NS, None])
)
def test_admitted_stamps_strictly_increase_whatever_is_offered(offers, timeout_ns):
    gate = StateGate(ARM, PERIOD_NS, timeout_ns)
    received_ns, admitted, num_offered = 0, [], 0
    for stamp_ns, posture, passed_ns, count in offers:
        received_ns += passed_ns
        for k in range(count):  # runs of states that agree, so that some are adopted
            found = gate.admit(sample(stamp_ns + k * PERIOD_NS, (posture, 0.0)), received_ns)
            admitted += [] if found is None else [found.stamp_ns]
            num_offered += 1
    assert admitted[:1] in ([], [0])
    assert all(a < b for a, b in pairwise(admitted))
    assert gate.counts['accepted'] == len(admitted)
    refused = sum(gate.counts[name] for name in refusals)
    assert num_offered == len(admitted) + refused - gate.counts['new timelines']
