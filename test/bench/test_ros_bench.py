# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""The benchmark over ROS, as short as it goes: it measures something, and all of it is safe.

How long things took is for `make nightly` to say; the kept figures are held to their goals here.
"""

import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

pytest.importorskip('rclpy', reason="needs ROS: pip install 'metactl_ros[ros]'")
from rclpy.serialization import serialize_message
from sensor_msgs.msg import JointState
from support.bags import a_message, START_NS, write_bag

from metactl_ros.bag.topics import load_definition
from metactl_ros.bag.writer import BagTopic, ReceivedMessage
from metactl_ros.bench import timing as ros_bench
from metactl_ros.bench.silences import published_states, PublishedStates, sorted_out
from metactl_ros.bench.timing import num_unsafe, run_bench
from metactl_ros.control.modes import Mode
from metactl_ros.runtime.joint_samples import set_stamp
from metactl_ros.settings import shipped_policy

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.ros
def test_a_short_bench_has_every_figure_and_no_unsafe_effort(tmp_path, monkeypatch):
    monkeypatch.setattr(ros_bench, 'ATTEMPTS', 1)
    out = tmp_path / 'timing.json'
    headlines = tmp_path / 'bench.json'
    headlines.write_text('{"other": 1}')
    run_bench(out, 1.0, 1, 1, shipped_policy(), headlines)
    named = {'tick_p99_ms', 'inference_p99_ms_w50', 'node_rss_mb'}
    assert json.loads(headlines.read_text()).keys() == {'other'} | named
    found = json.loads(out.read_text())
    kept = json.loads((ROOT / 'results' / 'ros_timing.json').read_text())
    for section in ('quiet', 'loaded', 'blind', 'crashes', 'replay', 'tracking'):
        assert found[section].keys() == kept[section].keys()
    assert found['measured'].keys() == kept['measured'].keys() == set(ros_bench.SECTIONS)
    for run in ('quiet', 'loaded'):
        assert found[run]['num_ticks'] > 10
        assert found[run]['unsafe_efforts'] == 0
    silences = found['blind']
    noticed = silences['number'] + len(silences['while_the_machine_stalled_ms'])
    assert silences['injected'] == noticed + silences['missed'] + silences['while_not_driving']
    assert noticed >= 1
    assert found['replay']['verdict'] == 'equal'
    crashes = found['crashes']
    for killed in ('controller', 'plant'):
        assert crashes[killed]['largest_effort_step_share'] <= 1.0 + 1e-9
    assert crashes['sigterm']['last_command_zero'] == 1
    assert crashes['sigterm']['exit_codes'] == [0]


@pytest.mark.parametrize(
    ('before', 'effort', 'sent', 'expected'),
    [
        (10.0, 10.0, 10.0, 0),
        (10.0, 10.0, np.nan, 0),  # not recorded
        (10.0, np.nan, 10.0, 1),
        (1e4, 1e4, 10.0, 1),
        (0.0, 20.0, 0.0, 1),
        (0.0, 0.0, 20.0, 1),
        (10.0, 10.0, np.inf, 1),
    ],
)
def test_an_effort_that_is_no_number_too_large_or_too_far_is_counted(
    before, effort, sent, expected
):
    names = ('effort_before_nm', 'effort_nm', 'sent_nm')
    log = SimpleNamespace(**{name: np.zeros((5, 2)) for name in names})
    for name, value in zip(names, (before, effort, sent), strict=True):
        getattr(log, name)[3, 1] = value
    assert num_unsafe(log) == expected


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
def test_each_silence_is_noticed_or_missed_or_of_an_arm_nobody_drives(modes, stalls_ns, expected):
    log, states = a_silence(modes)
    found = sorted_out(log, states, [STOP_NS], np.array(stalls_ns))
    for ages, wanted in zip(found[:2], expected[:2], strict=True):
        assert ages == pytest.approx(wanted)
    assert found[2:] == expected[2:]


def test_a_last_state_that_the_recorder_missed_makes_no_silence_shorter():
    log, states = a_silence(WENT_BLIND)
    recorded = PublishedStates(*(np.delete(column, 10) for column in states))
    found = sorted_out(log, recorded, [STOP_NS], np.array([]))
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


KEPT = json.loads((ROOT / 'results' / 'ros_timing.json').read_text())


@pytest.mark.parametrize(
    ('path', 'least', 'most'),
    [
        ('quiet rate_hz', 99.9, 100.1),
        ('loaded rate_hz', 99.9, 100.1),
        ('quiet tick_ms p99', None, 2.0),
        ('quiet controller_rss_mb', None, 200.0),
        ('quiet unsafe_efforts', None, 0),
        ('loaded unsafe_efforts', None, 0),
        ('blind number', 100, None),
        ('blind missed', None, 0),
        ('quiet inference_ms p99', None, 0.5),
        ('blind last_state_to_blind_ms max', None, 40.0),
        ('crashes controller last_command_to_brake_ms max', None, 40.0),
        ('crashes controller start_to_nominal_s max', None, 5.0),
        ('crashes plant start_to_nominal_s max', None, 5.0),
        ('crashes sigterm exit_s max', None, 0.5),
        ('crashes plant kill_to_blind_ms max', None, 40.0),
        ('crashes controller largest_effort_step_share', None, 1.0 + 1e-9),
        ('crashes plant largest_effort_step_share', None, 1.0 + 1e-9),
        ('replay times_real_time', 20.0, None),
    ],
)
def test_a_kept_figure_over_ros_meets_its_goal(path, least, most):
    value = KEPT
    for name in path.split():
        value = value[name]
    assert least is None or value >= least
    assert most is None or value <= most


def test_the_kept_tracking_over_ros_is_that_in_process_and_no_worse_after_a_minute():
    found = KEPT['tracking']
    for span in ('', '_5s'):
        assert found[f'rmse_over_ros{span}'] == pytest.approx(
            found[f'rmse_in_process{span}'], rel=0.05
        )
    assert KEPT['quiet']['duration_s'] > 59.0
    assert found['rmse_over_ros'] <= found['rmse_over_ros_5s']
