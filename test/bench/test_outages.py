# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""Each silence of the robot is classified, from ticks and joint states made up for it."""

from types import SimpleNamespace

import numpy as np
import pytest

pytest.importorskip('rclpy', reason="needs ROS: pip install 'metactl_ros[ros]'")
from rclpy.serialization import serialize_message
from sensor_msgs.msg import JointState
from support.bags import a_message, START_NS, write_bag

from metactl_ros.bag.topics import load_definition
from metactl_ros.bag.writer import BagTopic, ReceivedMessage
from metactl_ros.bench.outages import classify, published_states, PublishedStates
from metactl_ros.control.modes import Mode
from metactl_ros.runtime.joint_states import set_stamp

BEGIN_NS, TICK_NS = 1_800_000_000 * 10**9, 10_000_000
STOP_NS = BEGIN_NS + 10 * TICK_NS + 1
DRIVEN, BLIND, FAULT = [Mode.NOMINAL] * 13, [Mode.BLIND] * 9, [Mode.FAULT] * 22
WENT_BLIND = [*DRIVEN, *BLIND]
LEAD_NS = 1_234_567  # from the publishing of a state to the command that answers it
LAST_NS = BEGIN_NS + 10 * TICK_NS - LEAD_NS  # when the last state was published
AGE_MS = 30.0 + LEAD_NS / 1e6


def a_silence(modes):
    """Return the ticks of a controller whose last state came at tick 10, and all states."""
    ticks = np.arange(len(modes))
    times_ns, behind_ns = BEGIN_NS + TICK_NS * ticks, 5 * 10**9  # as after many silences
    states = PublishedStates(times_ns - LEAD_NS - behind_ns, times_ns - LEAD_NS)
    used_ns = states.stamp_ns[np.minimum(ticks, 10)]
    shield = {
        'mode': np.array(modes, dtype=float),
        'state_stamp_sec': (used_ns // 10**9).astype(float),
        'state_stamp_nanosec': (used_ns % 10**9).astype(float),
    }
    return SimpleNamespace(stamp_ns=times_ns, shield=shield), states


@pytest.mark.parametrize(
    ('modes', 'stalls_ns', 'expected'),
    [
        (WENT_BLIND, [], ([AGE_MS], [], 0, 0)),
        (WENT_BLIND, [STOP_NS + 2 * TICK_NS], ([], [AGE_MS], 0, 0)),
        (WENT_BLIND, [LAST_NS + 1], ([], [AGE_MS], 0, 0)),
        (WENT_BLIND, [LAST_NS - 1], ([AGE_MS], [], 0, 0)),
        (WENT_BLIND, [STOP_NS + 9 * TICK_NS], ([AGE_MS], [], 0, 0)),
        ([*DRIVEN, *DRIVEN], [], ([], [], 1, 0)),
        ([*DRIVEN, *DRIVEN], [STOP_NS + 2 * TICK_NS], ([], [], 1, 0)),
        ([*DRIVEN, *DRIVEN, *BLIND], [], ([], [], 1, 0)),
        (FAULT, [], ([], [], 0, 1)),
    ],
    ids=[
        'seen',
        'stalled',
        'stalled on the way',
        'stalled before',
        'stalled later',
        'missed',
        'stalled and missed',
        'late',
        'faulted',
    ],
)
def test_each_silence_is_noticed_or_missed_or_of_an_arm_that_is_not_driven(
    modes, stalls_ns, expected
):
    log, states = a_silence(modes)
    found = classify(log, states, [STOP_NS], np.array(stalls_ns))
    for ages, wanted in zip(found[:2], expected[:2], strict=True):
        assert ages == pytest.approx(wanted)
    assert found[2:] == expected[2:]


def test_a_last_state_that_the_recorder_missed_makes_no_silence_shorter():
    log, states = a_silence(WENT_BLIND)
    recorded = PublishedStates(*(np.delete(column, 10) for column in states))
    found = classify(log, recorded, [STOP_NS], np.array([]))
    assert found.ages_ms == pytest.approx([AGE_MS + 10.0])


def test_states_are_read_from_a_bag_by_their_stamps_with_the_time_of_publishing(tmp_path):
    topic = BagTopic('/arm/joint_states', load_definition('sensor_msgs/msg/JointState'))
    expected, messages = [], []
    for number in range(3):
        message, published_ns = JointState(name=['joint1']), START_NS + 7 * number
        set_stamp(message.header.stamp, 10**9 - number)
        expected.insert(0, (10**9 - number, published_ns))
        data = serialize_message(message)
        messages.append(ReceivedMessage(topic, data, START_NS + 1000 + number, published_ns))
    write_bag(tmp_path / 'bag', [a_message(0), *messages])
    assert list(zip(*published_states(tmp_path / 'bag'), strict=True)) == expected
