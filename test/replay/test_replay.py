# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""Recordings over real ROS, computed again to the bit."""

from importlib import import_module
import json
import os
import re
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

pytest.importorskip('rclpy', reason="needs ROS: pip install 'metactl_ros[ros]'")
from rclpy.serialization import deserialize_message
from std_srvs.srv import Trigger
from support.recordings import (
    assert_equal,
    changed,
    num_ticks,
    record_lockstep,
    stamp_ns,
    whole_ticks,
    write_own,
    write_raw_mcap,
    write_sqlite,
)
from support.ros_peer import Peer, ROOT, wait_until

from metactl_ros.bag.tick_log import read_ticks
from metactl_ros.cli import main
from metactl_ros.control.modes import Mode
from metactl_ros.processes import loopback_environment, running, Setup
from metactl_ros.replay.recompute import compared_ticks
from metactl_ros.replay.verdict import replay_bag, ReplayRequest

pytestmark = pytest.mark.ros

DOMAIN = os.getpid() % 50 * 2 + 1
TICKS = 200


@pytest.fixture(scope='module')
def lockstep(tmp_path_factory):
    return record_lockstep(tmp_path_factory.mktemp('lockstep') / 'bag', DOMAIN, TICKS)


@pytest.fixture(scope='module')
def messages(lockstep):
    return whole_ticks(lockstep, TICKS)


@pytest.fixture(scope='module')
def baseline(tmp_path_factory):
    folder = tmp_path_factory.mktemp('ct') / 'bag'
    return record_lockstep(folder, DOMAIN, TICKS, controller='ct')


def test_a_lockstep_recording_is_computed_again_to_the_bit(lockstep):
    result = replay_bag(ReplayRequest(bag=lockstep))
    assert_equal(result)
    assert result.sent.counts['joint_commands']['fading'] > 0  # the last zero
    np.testing.assert_array_equal(result.again.effort_nm, result.log.effort_nm)
    assert {Mode.NOMINAL, Mode.BLIND} <= set(result.again.modes)  # it ends with fading torque


def test_the_fixed_gains_are_computed_again_to_the_bit(baseline):
    result = replay_bag(ReplayRequest(bag=baseline))
    assert_equal(result)
    assert result.facts['computed_by'] == 'ct'


def test_a_recording_of_joints_with_a_prefix_is_computed_again_to_the_bit(tmp_path):
    arm = (ROOT / 'config' / 'arm.yaml').read_text()
    (tmp_path / 'arm.yaml').write_text(re.sub(r'\bjoint([12])\b', r'left_joint\1', arm))
    (tmp_path / 'params.yaml').write_text(
        f'plant: {{ros__parameters: {{arm_file: {tmp_path / "arm.yaml"}}}}}\n'
        'controller: {ros__parameters: {joint_prefix: left_}}\n'
    )
    bag = record_lockstep(tmp_path / 'bag', DOMAIN, TICKS, params_file=tmp_path / 'params.yaml')
    result = replay_bag(ReplayRequest(bag=bag))
    assert result.log.joint_names == ('left_joint1', 'left_joint2')
    assert_equal(result)


def test_another_controller_is_compared_in_open_loop_and_called_so(lockstep, baseline):
    for bag, other in ((lockstep, 'ct'), (baseline, None)):
        from metactl_ros.settings import shipped_policy

        bundle = None if other else shipped_policy()
        result = replay_bag(ReplayRequest(bag=bag, controller=other, bundle=bundle))
        assert result.again.is_open_loop
        assert 'open loop' in result.facts['verdict']
        assert 'open loop' in result.facts['computed_again']['label']
        assert result.facts['effort_rms_difference_nm'] > 0.1
        assert result.violations == []


def test_a_real_robot_that_falls_silent_and_a_controller_that_does_are_computed_again_to_the_bit(
    tmp_path,
):
    bag = tmp_path / 'bag'
    setup = Setup(plant='rk4', seed=5, record=bag, log_level='error')
    peer = Peer(DOMAIN)
    try:
        with running(setup, loopback_environment(DOMAIN)) as processes:
            wait_until(lambda: num_ticks(bag) > 80)
            processes['plant_node'].send_signal(signal.SIGSTOP)
            time.sleep(0.15)  # the fault itself: so long is it silent
            processes['plant_node'].send_signal(signal.SIGCONT)
            wait_until(lambda: (read_ticks(bag).shield['mode'] == Mode.BLIND).any())
            wait_until(lambda: read_ticks(bag).shield['mode'][-1] == Mode.NOMINAL)
            processes['controller_node'].send_signal(signal.SIGSTOP)
            time.sleep(0.15)  # so long is it away
            processes['controller_node'].send_signal(signal.SIGCONT)
            wait_until(lambda: read_ticks(bag).is_resumed.any())
            wait_until(lambda: read_ticks(bag).shield['mode'][-1] == Mode.NOMINAL)
            peer.call(Trigger, '/controller/clear_context', Trigger.Request())
            wait_until(lambda: read_ticks(bag).is_restart.sum() > 1)
            least = num_ticks(bag) + 80
            wait_until(lambda: num_ticks(bag) > least)
    finally:
        peer.close()
    result = replay_bag(ReplayRequest(bag=bag))
    assert_equal(result)
    assert result.log.num_states.min() == 0
    assert result.log.num_states.max() > 1


def test_a_killed_recorder_loses_less_than_a_second_and_the_rest_is_equal(tmp_path):
    bag = tmp_path / 'bag'
    setup = Setup(plant='rk4', seed=5, record=bag, log_level='error')
    with running(setup, loopback_environment(DOMAIN)) as processes:
        wait_until(lambda: num_ticks(bag) > 150)
        processes['recorder'].kill()
        killed_ns = time.time_ns()
        processes['recorder'].wait()
    result = replay_bag(ReplayRequest(bag=bag))
    assert killed_ns - result.log.stamp_ns[-1] < 1e9
    assert result.exit_code == 3
    assert any('was not ended' in problem for problem in result.log.problems)
    assert result.again.first_difference is None


def test_the_verb_records_a_robot_that_runs_already(tmp_path):
    environment = loopback_environment(DOMAIN)
    setup = Setup(plant='rk4', seed=5, log_level='error')
    code = 'import sys; from metactl_ros.cli import main; sys.exit(main())'
    command = [sys.executable, '-c', code, 'record', '--duration', '3']
    with running(setup, environment):
        done = subprocess.run(
            [*command, '--out', str(tmp_path / 'bag')],
            env=os.environ | environment,
            cwd=ROOT,
            timeout=60.0,
        )
    assert done.returncode == 0
    result = replay_bag(ReplayRequest(bag=tmp_path / 'bag'))
    assert len(result.log.stamp_ns) > 50
    assert result.again.first_difference is None


@pytest.mark.parametrize('number', [0, 60, 150])
@pytest.mark.parametrize(
    ('topic', 'field', 'quantity'),
    [
        ('feedback', 'position', {'estimate', 'action', 'gain', 'effort'}),
        ('output', 'effort', {'effort'}),
        ('gains', 'position', {'gain'}),
        ('gains', 'velocity', {'action'}),
    ],
)
def test_one_altered_sample_is_caught_at_that_sample(
    tmp_path, messages, topic, field, quantity, number
):
    def alter(message):
        getattr(message, field)[0] += 1e-12

    bag = write_own(tmp_path / 'bag', changed(messages, f'/controller/{topic}', number, alter))
    result = replay_bag(ReplayRequest(bag=bag))
    assert result.again.first_difference.tick == number
    assert result.again.first_difference.quantity in quantity
    assert result.exit_code == 1


def test_a_command_other_than_the_computed_one_is_caught(tmp_path, messages):
    def alter(message):
        message.effort[1] += 1e-12

    rows = changed(messages, '/joint_commands', 100, alter)
    first = replay_bag(ReplayRequest(bag=write_own(tmp_path / 'bag', rows))).again.first_difference
    assert (first.tick, first.quantity) == (100, 'command')
    assert first.joint_or_gain == 'joint2'
    assert first.recorded != first.recomputed


def test_bags_of_other_writers_are_equal_too(tmp_path, messages):
    for bag in (
        write_sqlite(tmp_path / 'sqlite', messages),
        next(write_sqlite(tmp_path / 'file', messages).glob('*.db3')),
        write_raw_mcap(tmp_path / 'raw.mcap', messages),
    ):
        result = replay_bag(ReplayRequest(bag=bag))
        assert (result.facts['verdict'], result.exit_code) == ('equal', 0), result.facts['partial']
        assert len(result.log.stamp_ns) == TICKS


def test_a_bag_by_mcap_ros2_support_is_equal_too(tmp_path, messages):
    writing = pytest.importorskip(
        'mcap_ros2.writer', reason="needs the extra dev: pip install 'metactl_ros[dev]'"
    )
    from metactl_ros.bag.topics import load_definition

    with writing.Writer(str(tmp_path / 'other.mcap')) as writer:
        schemas = {
            kind: writer.register_msgdef(kind, load_definition(kind).text)
            for kind in {message.type_name for message in messages}
        }
        for message in messages:
            package, _, name = message.type_name.split('/')
            if package == 'diagnostic_msgs':  # rclpy has bytes where this writer wants numbers
                continue
            content = deserialize_message(
                message.data, getattr(import_module(f'{package}.msg'), name)
            )
            writer.write_message(
                message.topic, schemas[message.type_name], content, message.log_time_ns
            )
    result = replay_bag(ReplayRequest(bag=tmp_path / 'other.mcap'))
    assert (result.facts['verdict'], result.exit_code) == ('equal', 0), result.facts['partial']


def replay_from_tick(messages, number, bag):
    """Replay messages as if a recorder had begun in the middle of a run."""
    begin_ns = stamp_ns([m for m in messages if m.topic == '/controller/shield'][number])
    later = [m for m in messages if m.topic.endswith('/bundle') or stamp_ns(m) >= begin_ns]
    result = replay_bag(ReplayRequest(bag=write_own(bag, later)))
    assert result.exit_code == 3
    assert any('middle of a run' in problem for problem in result.log.problems)
    assert result.again.first_difference is None
    assert not result.again.is_compared[0]
    return result


def test_a_recording_begun_in_the_middle_of_a_run_is_equal_once_settled(tmp_path, baseline):
    result = replay_from_tick(whole_ticks(baseline, TICKS), 20, tmp_path / 'bag')
    assert result.again.is_compared.sum() > 100


def test_of_an_estimator_nothing_is_compared_until_it_begins_anew(tmp_path, messages):
    """What it learned before the recording cannot be known."""
    result = replay_from_tick(messages, 20, tmp_path / 'bag')
    assert not result.again.is_compared.any()
    assert result.facts['verdict'] == 'partial, nothing could be compared'


def test_ticks_after_a_gap_are_compared_once_one_is_equal_or_two_windows_passed():
    is_break = np.arange(12) == 2
    is_equal = np.zeros(12, dtype=bool)
    assert compared_ticks(is_break, is_equal, 3).tolist() == [True] * 2 + [False] * 6 + [True] * 4
    is_equal[6] = True
    assert compared_ticks(is_break, is_equal, 3).tolist() == [True] * 2 + [False] * 4 + [True] * 6


def test_ticks_after_a_gap_are_not_compared_with_an_estimator_until_it_begins_anew():
    is_break, is_restart = np.arange(12) == 2, np.arange(12) % 9 == 0
    is_equal = np.ones(12, dtype=bool)
    expected = [True] * 2 + [False] * 7 + [True] * 3
    assert compared_ticks(is_break, is_equal, 3, is_restart).tolist() == expected
    is_restart[9] = False
    assert compared_ticks(is_break, is_equal, 3, is_restart).tolist() == [True] * 2 + [False] * 10


def test_the_verb_writes_its_files_and_says_the_verdict_by_its_code(
    tmp_path, lockstep, messages, capsys
):
    out, whole = tmp_path / 'out', write_own(tmp_path / 'whole', messages)
    assert main(['replay', str(whole), '--out', str(out)]) == 0
    assert json.loads((out / 'replay.json').read_text())['verdict'] == 'equal'
    assert '<html' in (out / 'replay.html').read_text()
    assert 'equal to the bit' in capsys.readouterr().out
    other = changed(messages, '/controller/output', 9, lambda m: m.effort.fill(0.0))
    bag = write_own(tmp_path / 'altered', other)
    assert main(['replay', str(bag), '--out', str(out)]) == 1
    assert 'tick 9' in capsys.readouterr().out
    assert main(['replay', str(tmp_path / 'nothing'), '--out', str(out)]) == 2
    file = next(lockstep.glob('*.mcap'))
    (tmp_path / 'part.mcap').write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    assert main(['replay', str(tmp_path / 'part.mcap'), '--out', str(out)]) == 3
    assert 'partial' in capsys.readouterr().out


def test_a_recording_of_another_policy_names_what_it_wants(tmp_path, messages, capsys):
    def alter(message):
        message.data = json.dumps(json.loads(message.data) | {'bundle sha256': 'abc123'})

    bag = write_own(tmp_path / 'bag', changed(messages, '/controller/bundle', 0, alter))
    assert main(['replay', str(bag), '--out', str(tmp_path / 'out')]) == 2
    output = capsys.readouterr().err
    assert 'abc123' in output
    assert '--bundle' in output
