# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
from types import SimpleNamespace

import numpy as np
import pytest

from metactl_ros.runtime.state_intake import Inbox, LATENCIES_KEPT, StateIntake, StateLatency
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
