# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""Messages from CDR: as another implementation wrote them, and one error for all other bytes.

And what a bag keeps of its controller.
"""

from contextlib import suppress
import json

from hypothesis import given
from hypothesis import settings as searched
from hypothesis import strategies as st
import numpy as np
import pytest

pytest.importorskip('rosbags', reason='needs the extra `sim`')
from rosbags.typesys import get_typestore, Stores

from metactl_ros.bag.topics import (
    CdrError,
    read_joint_state,
    read_multi_array,
    read_string,
    read_trajectory,
    RecordedController,
)
from metactl_ros.baselines import BASELINES, load_classical
from metactl_ros.errors import ConfigError

STORE = get_typestore(Stores.ROS2_JAZZY)
NUMBERS = st.lists(st.floats(width=64), max_size=4)
NAMES = st.lists(st.text(max_size=9).filter(lambda text: '\0' not in text), max_size=4)


@pytest.mark.parametrize('name', BASELINES)
def test_what_is_recorded_of_a_baseline_is_read_to_the_bit(settings, name):
    controller, policy = load_classical(name, settings.controller, None, 1.0 / 3.0)
    action = policy.action
    text = RecordedController.of(controller, action).to_json()
    recorded = RecordedController.from_json(text, 'bag')
    assert recorded.applied_to(settings.controller) == controller
    np.testing.assert_array_equal(recorded.action, action)


def test_no_action_is_recorded_of_a_policy_that_depends_on_its_window(settings):
    text = RecordedController.of(settings.controller, None).to_json()
    assert RecordedController.from_json(text, 'bag').action is None


@pytest.mark.parametrize(
    ('text', 'says'),
    [
        ('', r'bag: cannot be read .*; record again'),
        ('[' * 100_000, r'bag: cannot be read'),
        ('[]', 'expected a table of RecordedController settings'),
        ('{"gain_bax": {}}', "did you mean 'gain_box'"),
    ],
)
def test_what_is_nothing_of_the_kind_is_refused(text, says):
    with pytest.raises(ConfigError, match=says):
        RecordedController.from_json(text, 'bag')


def test_an_action_of_another_size_is_refused(settings):
    recorded = json.loads(RecordedController.of(settings.controller, np.zeros(8)).to_json())
    recorded['action'].pop()
    with pytest.raises(ConfigError, match='expected 4 entries per joint, one per gain, found 7'):
        RecordedController.from_json(json.dumps(recorded), 'bag')


@searched(max_examples=100, deadline=None)
@given(NAMES, NUMBERS, NUMBERS, NUMBERS, st.text(max_size=9).filter(lambda t: '\0' not in t))
def test_cdr_is_read_as_rosbags_wrote_it(names, position, velocity, effort, frame):
    types = STORE.types
    stamp = types['builtin_interfaces/msg/Time'](3, 4)
    header = types['std_msgs/msg/Header'](stamp, frame)
    arrays = [np.array(x, dtype=np.float64) for x in (position, velocity, effort)]
    message = types['sensor_msgs/msg/JointState'](header, names, *arrays)
    data = bytes(STORE.serialize_cdr(message, 'sensor_msgs/msg/JointState'))
    found = read_joint_state(data)
    assert (found.stamp_ns, found.names) == (3_000_000_004, tuple(names))
    np.testing.assert_array_equal(np.array(found.effort), arrays[2])
    np.testing.assert_array_equal(np.array(found.position), arrays[0])
    since = types['builtin_interfaces/msg/Duration'](-1, 5)
    point = types['trajectory_msgs/msg/JointTrajectoryPoint'](*arrays, arrays[0], since)
    path = types['trajectory_msgs/msg/JointTrajectory'](header, names, [point, point])
    data = bytes(STORE.serialize_cdr(path, 'trajectory_msgs/msg/JointTrajectory'))
    for read_point in read_trajectory(data).points:
        np.testing.assert_array_equal(np.array(read_point.velocities), arrays[1])
        assert read_point.time_ns == -999_999_995
    text = types['std_msgs/msg/String'](frame)
    assert read_string(bytes(STORE.serialize_cdr(text, 'std_msgs/msg/String'))) == frame


@searched(max_examples=200, deadline=None)
@given(st.binary(max_size=200))
def test_bytes_that_are_no_message_raise_one_kind_of_error(data):
    for reader in (read_joint_state, read_trajectory, read_string, read_multi_array):
        for start in (b'', b'\0\1\0\0'):
            with suppress(CdrError):  # anything else fails
                reader(start + data)
