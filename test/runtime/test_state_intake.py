# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0

from itertools import count
from types import SimpleNamespace

from hypothesis import given
from hypothesis import strategies as st
import numpy as np
import pytest

from metactl_ros.runtime.state_intake import (
    Contradictions,
    EVIDENCE_LASTS_NS,
    GOES_ON_NS,
    Inbox,
    LATENCIES_KEPT,
    LEASE_NS,
    names_of,
    NEAR,
    NUM_VERDICTS,
    Publisher,
    PublisherList,
    SourceWatch,
    StateIntake,
    StateLatency,
    STREAM_LASTS_NS,
    Streams,
    TAKEOVER_NS,
    TOGETHER_NS,
    UNNUMBERED,
)
from metactl_ros.settings import load_arm

MS = 1_000_000
TIMEOUT_NS = 25 * MS


def finding(latencies_ms):
    latency = StateLatency(TIMEOUT_NS)
    for latency_ms in latencies_ms:
        latency.note(round(latency_ms * MS))
    return latency.finding()


def test_before_a_state_came_nothing_is_known():
    assert finding([]) == (True, 'not known', {})


def test_the_quantiles_of_the_latency_are_told():
    found = finding(np.arange(101) / 10.0)
    assert found.is_good
    assert found.text == '5.0 ms'
    assert found.values == {'p50 ms': pytest.approx(5.0), 'p99 ms': pytest.approx(9.9)}


@pytest.mark.parametrize(('latency_ms', 'is_good'), [(25.0, True), (25.1, False), (220.0, False)])
def test_a_constant_latency_above_the_timeout_is_not_good(latency_ms, is_good):
    found = finding([latency_ms] * 100)
    assert found.is_good is is_good
    assert found.text.startswith(f'{latency_ms:.1f} ms')
    assert ("or the robot's clock is behind" in found.text) is not is_good
    assert found.values == {'p50 ms': latency_ms, 'p99 ms': latency_ms}


def test_a_few_late_states_are_told_but_good():
    found = finding([1.0] * 98 + [300.0] * 2)
    assert found.is_good
    assert found.values['p99 ms'] > 25.0


@pytest.mark.parametrize(
    ('offset_ms', 'says'),
    [(-1.01, '0.00101 s ahead'), (-5e6, '5e+03 s ahead'), (1000.1, '1 s behind')],
)
def test_clocks_that_differ_make_it_unknown_but_for_its_changes(offset_ms, says):
    found = finding([offset_ms + extra for extra in (0.0, 2.0, 4.0)])
    assert found.is_good
    assert says in found.text
    assert 'only changes are known' in found.text
    assert found.values['p50 above the least ms'] == pytest.approx(2.0, abs=1e-5)
    assert found.values['p99 above the least ms'] == pytest.approx(3.96, abs=1e-5)
    assert not finding([offset_ms, offset_ms + 26.0, offset_ms + 26.0]).is_good


@pytest.mark.parametrize('offset_ms', [-1.0, 1000.0])
def test_clocks_that_are_kept_in_step_may_differ_a_little(offset_ms):
    assert 'not known' not in finding([offset_ms] * 10).text


def test_the_oldest_latencies_make_room():
    found = finding([900.0] * 10 + [3.0] * LATENCIES_KEPT)
    assert found.values == {'p50 ms': 3.0, 'p99 ms': 3.0}


class Robot:
    """An intake in simulated time, its inbox, and all that it complains of."""

    def __init__(self):
        self.inbox, self.complaints, self.arm = Inbox(), [], load_arm()
        timing = SimpleNamespace(
            state_timeout_ns=TIMEOUT_NS, ticks_on_states=True, period_ns=10 * MS
        )
        sources = SimpleNamespace(
            streams=SimpleNamespace(receive=lambda *_: True),
            are_states_in_doubt=lambda _: False,
            contradictions=SimpleNamespace(record=lambda *_, **__: None),
        )
        self.intake = StateIntake(
            self.arm, timing, sources, self.inbox, None, self.complaints.append
        )

    def says(self, number, effort_nm):
        stamp = SimpleNamespace(sec=1, nanosec=number * 10 * MS)
        message = SimpleNamespace(
            header=SimpleNamespace(stamp=stamp),
            name=self.arm.joint_names,
            position=[0.1, 0.2],
            velocity=[0.0, 0.0],
            effort=effort_nm,
        )
        self.intake.receive(message, {'publication_sequence_number': number})
        (arrival,) = self.inbox.take()
        return arrival.effort_nm


def test_efforts_that_cannot_be_right_are_not_passed_on_and_told_once():
    robot = Robot()
    np.testing.assert_array_equal(robot.says(0, [3.0, 4.0]), [3.0, 4.0])
    assert robot.says(1, [3e4, 4.0]) is None
    assert robot.says(2, [3e4, 4.0]) is None
    np.testing.assert_array_equal(robot.says(3, [3.0, 4.0]), [3.0, 4.0])
    assert len(robot.complaints) == 1
    assert 'measured effort rejected' in robot.complaints[0]


MS, PERIOD_NS = 1_000_000, 10_000_000
POLL_NS = 50 * MS
ROBOT, OTHER = Publisher('/robot', b'r'), Publisher('/other', b'o')


class Ear:
    """Streams, and what they made of messages in the order of their coming."""

    def __init__(self):
        self.streams, self.now_ns = Streams(), 10**12

    def hears(self, numbers, every_ns=PERIOD_NS):
        used = []
        for number in numbers:
            self.now_ns += every_ns
            used.append(self.streams.receive(number, self.now_ns))
        return used

    @property
    def are_several(self):
        return self.streams.are_several(self.now_ns)


@given(
    start=st.integers(1, 10**9),
    gaps=st.lists(st.integers(1, 10_000), max_size=60),
    every_ns=st.sampled_from([1, 100_000, PERIOD_NS, STREAM_LASTS_NS, 10 * STREAM_LASTS_NS]),
)
def test_one_publisher_is_one_however_many_messages_are_lost(start, gaps, every_ns):
    ear = Ear()
    assert all(ear.hears(np.cumsum([start, *gaps]).tolist(), every_ns))
    assert not ear.are_several
    assert ear.streams.num_foreign_used == 0


@given(
    mine=st.integers(1, 10**6),
    theirs=st.integers(1, 10**6),
    turns=st.lists(st.booleans(), min_size=4, max_size=40),
)
def test_two_that_alternate_are_two_by_the_second_message_of_the_later(mine, theirs, turns):
    ear, numbers = Ear(), {False: count(mine), True: count(theirs)}
    ear.hears([next(numbers[False]) for _ in range(5)])
    num_true = 0
    for is_other in turns:
        was_several = ear.are_several
        ear.hears([next(numbers[is_other])], 5 * MS)
        num_true += is_other
        # Known once the first spoke after the other, and at the latest when that speaks again.
        if num_true >= 2 and not is_other:
            ear.hears([next(numbers[True])], 5 * MS)
            assert ear.are_several
        assert ear.are_several >= was_several


@pytest.mark.parametrize('first', [1, 4990, 4999, 5000, 5001, 5002, 5050, 10**6])
def test_of_an_intruder_almost_nothing_is_used(first):
    ear = Ear()
    ear.hears(range(4001, 5001))
    used = {False: [], True: []}
    for k in range(10):
        used[True] += ear.hears([first + k], 5 * MS)
        used[False] += ear.hears([5001 + k], 5 * MS)
    assert ear.are_several
    # One that counts ahead takes the place of the robot for a moment.
    assert sum(used[True]) <= ear.streams.num_foreign_used <= 2
    assert sum(used[True]) == (first > 5000)
    assert not any(used[False][2:])  # nobody is believed any more


def test_a_single_message_of_another_is_noticed_with_the_next_of_the_robot():
    ear = Ear()
    ear.hears(range(1, 100))
    assert ear.hears([7]) == [False]
    assert not ear.are_several
    assert ear.hears([100]) == [False]
    assert ear.are_several
    used = ear.hears(range(101, 301))
    assert used == sorted(used)  # first none, and all a second later
    assert sum(used) == 200 - EVIDENCE_LASTS_NS // PERIOD_NS + 1


def test_evidence_is_forgotten_after_a_second():
    ear = Ear()
    ear.hears([5, 1, 6])
    assert ear.streams.are_several(ear.now_ns + EVIDENCE_LASTS_NS - 1)
    assert not ear.streams.are_several(ear.now_ns + EVIDENCE_LASTS_NS)


@pytest.mark.parametrize('num_before', [1, 3, 30, 3000])
@pytest.mark.parametrize('pause_ns', [TAKEOVER_NS, STREAM_LASTS_NS, 10 * STREAM_LASTS_NS])
def test_a_robot_that_starts_again_is_one_and_is_used_at_once(num_before, pause_ns):
    ear = Ear()
    ear.hears(range(1, num_before + 1))
    ear.now_ns += pause_ns
    assert all(ear.hears(range(1, 6000)))
    assert not ear.are_several
    assert ear.streams.num_foreign_used == 0


def test_another_that_takes_over_at_once_is_used_after_a_short_silence():
    ear = Ear()
    ear.hears(range(100, 200))
    used = ear.hears(range(1, 21))
    assert used == [False] * (TAKEOVER_NS // PERIOD_NS) + [True] * (20 - TAKEOVER_NS // PERIOD_NS)
    assert not ear.are_several


def test_one_that_took_over_from_a_robot_that_comes_back_was_a_second_one():
    ear = Ear()
    ear.hears(range(100, 200))
    num_used = sum(ear.hears(range(1, 21)))
    assert num_used > 0
    ear.hears([200 + NEAR - 1])
    assert ear.are_several
    assert num_used <= ear.streams.num_foreign_used <= num_used + 1


def test_where_the_middleware_numbers_nothing_all_is_used():
    ear = Ear()
    assert all(ear.hears(UNNUMBERED * 10))
    assert not ear.are_several


def judged(verdicts):
    """Return how many verdicts it took to be sure, or None."""
    contradictions = Contradictions()
    for number, contradicts in enumerate(verdicts, start=1):
        contradictions.record(number, contradicts=contradicts)
        if contradictions.were_found(number):
            return number
    return None


def test_states_of_two_arms_in_turn_are_noticed_within_a_tenth_of_a_second():
    assert judged([False, True] * 10) <= 10  # two arms at 100 Hz each: 5 ms per state


@pytest.mark.parametrize(
    'verdicts',
    [
        [False] * 100,
        [True] * 100,  # a robot at another place: a new timeline begins
        ([False] * 10 + [True] * 9) * 5,  # leaps, far apart
        ([False] * 5 + [True]) * 20,  # a glitch now and then
        [False, True] * 3 + [False] * NUM_VERDICTS + [False, True] * 3,
    ],
)
def test_leaps_and_glitches_are_no_second_arm(verdicts):
    assert judged(verdicts) is None


def test_a_share_of_a_quarter_is_a_second_arm():
    assert judged([False] * 20 + [False, False, False, True] * 5) is not None


def test_contradictions_are_forgotten_after_a_second():
    contradictions = Contradictions()
    for contradicts in [False, True] * 5:
        contradictions.record(0, contradicts=contradicts)
    assert contradictions.were_found(EVIDENCE_LASTS_NS - 1)
    assert not contradictions.were_found(EVIDENCE_LASTS_NS)


class PolledList:
    """A listing of the publishers of joint states, polled again and again."""

    def __init__(self):
        self.listing, self.ear = PublisherList(), Ear()
        self.number = count(1)

    def polls(self, *listed, times=1, speaks=True):
        """Poll; meanwhile the robot speaks, or not. Return the last judgement."""
        for _ in range(times):
            now_ns = self.ear.now_ns
            several = self.listing.poll(listed, now_ns, self.ear.streams)
            if speaks:
                self.ear.hears([next(self.number) for _ in range(5)])
            else:
                self.ear.now_ns += POLL_NS
        return several


def test_a_publisher_alone_is_one():
    polled = PolledList()
    assert not polled.polls()
    assert not polled.polls(ROBOT, times=1000)


def test_who_appears_beside_a_robot_that_goes_on_speaking_is_noticed_in_time():
    polled = PolledList()
    polled.polls(times=3)
    polled.polls(ROBOT, times=20)
    times = GOES_ON_NS // POLL_NS + 2
    assert not polled.polls(ROBOT, OTHER, times=times - 1)
    assert polled.polls(ROBOT, OTHER)
    assert times * POLL_NS <= 1000 * MS
    assert not polled.polls(ROBOT)  # it left


def test_a_robot_that_was_killed_and_started_again_is_one_though_two_are_listed():
    polled = PolledList()
    polled.polls(ROBOT, times=20)
    polled.polls(ROBOT, times=20, speaks=False)  # dead, and still listed
    polled.number = count(1)
    for _ in range(19_700 * MS // POLL_NS):
        assert not polled.polls(ROBOT, OTHER)
    for _ in range(100):
        assert not polled.polls(OTHER)


def test_first_words_that_come_before_the_first_look_are_of_the_new_one():
    polled = PolledList()
    polled.polls(ROBOT, times=20)
    polled.polls(ROBOT, times=20, speaks=False)
    polled.number = count(1)
    polled.ear.hears([next(polled.number) for _ in range(5)])  # appeared between two polls
    assert not polled.polls(ROBOT, OTHER, times=100)


def test_two_that_appear_together_are_two_though_nobody_speaks():
    polled = PolledList()
    polled.polls(speaks=False)
    assert polled.polls(ROBOT, OTHER, speaks=False)
    polled = PolledList()
    polled.polls(ROBOT, times=TOGETHER_NS // POLL_NS - 1, speaks=False)
    assert polled.polls(ROBOT, OTHER, speaks=False)
    polled = PolledList()
    polled.polls(ROBOT, times=TOGETHER_NS // POLL_NS, speaks=False)
    assert not polled.polls(ROBOT, OTHER, speaks=False)


def test_two_that_are_listed_for_longer_than_a_lease_are_two():
    polled = PolledList()
    polled.polls(ROBOT, times=100, speaks=False)
    times = LEASE_NS // POLL_NS
    assert not polled.polls(ROBOT, OTHER, times=times, speaks=False)
    assert polled.polls(ROBOT, OTHER, times=2, speaks=False)


def test_findings_name_the_topic_and_all_who_publish():
    watch = SourceWatch('/joint_states')
    watch.poll([ROBOT], {'/joint_commands': []}, 0)
    assert watch.findings == ()
    watch.poll([ROBOT, OTHER], {'/joint_commands': [OTHER], '/c': [ROBOT]}, 1)
    first, second, third = watch.findings
    assert first.startswith('/joint_states: expected one publisher, found /other, /robot alive;')
    assert second == '/joint_commands: expected no other publisher, found /other; end it.'
    assert third.startswith('/c: ')
    assert watch.states == [ROBOT, OTHER]


def test_of_two_the_one_that_is_left_is_not_believed_before_it_is_alone():
    """The other may have been the robot, which starts again."""
    watch = SourceWatch('/joint_states')
    for number in (5, 1, 6):
        watch.streams.receive(number, 0)
    watch.poll([ROBOT, OTHER], {}, 0)
    late_ns = 10_000_000_000
    watch.streams.receive(100, late_ns)
    assert not watch.are_states_in_doubt(late_ns)
    watch.poll([ROBOT, OTHER], {}, late_ns)
    assert 'found /other, /robot alive' in watch.findings[0]
    watch.poll([OTHER], {}, late_ns + 1)
    assert watch.findings == ()
    watch.poll([OTHER], {}, late_ns + 2)
    assert watch.findings == ()


def test_messages_are_findings_as_well_and_can_be_forgotten():
    watch = SourceWatch('/joint_states')
    for contradicts in [False, True] * 5:
        watch.contradictions.record(0, contradicts=contradicts)
    assert watch.are_states_in_doubt(0)
    watch.poll([ROBOT], {}, 0)
    assert 'some that contradict the others, from /robot' in watch.findings[0]
    for number in (5, 1, 6):
        watch.streams.receive(number, 0)
    watch.poll([ROBOT], {}, 0)
    assert 'found /robot alive' in watch.findings[0]
    watch.contradictions = Contradictions()
    assert watch.are_states_in_doubt(0)
    watch.forget_messages()
    assert not watch.are_states_in_doubt(0)
    watch.poll([ROBOT], {}, 0)
    assert watch.findings == ()
    assert names_of([]) == 'nobody'
