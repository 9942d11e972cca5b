# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""Processes get the parameters that were chosen, and no signal leaves one of them behind."""

import os
import signal
import subprocess
import sys
import time

import psutil
import pytest
from support.verbs import assert_ends_all, start_verb

from metactl_ros import processes
from metactl_ros.bag.tick_log import read_ticks
from metactl_ros.cli import main
from metactl_ros.hil.run import ScenarioProcesses
from metactl_ros.hil.scenario import ScriptedFault
from metactl_ros.processes import (
    deferred_signals,
    parameters_of,
    ProcessGroup,
    running,
    Setup,
    SHUTDOWN_ORDER,
)

IDLE = [sys.executable, '-c', 'import time; time.sleep(600.0)']
EPISODE = {
    'payload_kg',
    'sinusoid.amplitude_rad',
    'sinusoid.omega_radps',
    'sinusoid.phase_rad',
    'sinusoid.centre_rad',
}


@pytest.mark.parametrize(
    ('chosen', 'expected'),
    [
        ({}, {}),
        ({'lockstep': True}, {'use_sim_time': True}),
        ({'payload_kg': 0.75}, {'payload_kg': 0.75}),
        ({'controller': 'oracle', 'tau_z_s': 5.0}, {'controller': 'oracle'}),
        (
            {'policy': 'some.metactl', 'policy_sha256': 'ab', 'classical_file': 'some.yaml'},
            {'policy': 'some.metactl', 'policy_sha256': 'ab', 'classical_file': 'some.yaml'},
        ),
    ],
)
def test_the_controller_of_a_real_robot_gets_only_what_was_chosen(chosen, expected):
    assert parameters_of(Setup(plant='none', **chosen)) == {'controller_node': expected}


def test_the_controller_of_a_simulated_robot_gets_its_episode_and_what_was_chosen():
    assert set(parameters_of(Setup())['controller_node']) == EPISODE
    values = parameters_of(Setup(controller='ct'))['controller_node']
    assert set(values) == {*EPISODE, 'controller'}


def test_in_lockstep_with_a_simulated_robot_the_controller_is_patient():
    values = parameters_of(Setup(lockstep=True))['controller_node']
    assert values['use_sim_time'] is True
    assert set(values) == {*EPISODE, 'use_sim_time', 'state_timeout_s', 'inference_budget_s'}


@pytest.mark.parametrize('words', [[], ['--payload', '0.75'], ['--payload', '0.5']])
def test_up_gives_the_controller_of_a_real_robot_a_payload_only_if_asked_to(monkeypatch, words):
    asked = []
    monkeypatch.setattr(processes, 'run_up', lambda setup, *_: asked.append(setup) or 0)
    assert main(['up', '--plant', 'none', *words]) == 0
    assert main(['up', *words]) == 0
    real, simulated = (parameters_of(setup) for setup in asked)
    assert real['controller_node'] == ({'payload_kg': float(words[1])} if words else {})
    assert simulated['plant_node']['payload_kg'] == (float(words[1]) if words else 0.75)
    assert simulated['controller_node']['payload_kg'] != simulated['plant_node']['payload_kg']


@pytest.fixture
def family():
    """Return a function to the living children of this process; none is left behind."""

    def living():
        return [c for c in psutil.Process().children() if c.status() != psutil.STATUS_ZOMBIE]

    before = living()
    yield lambda: [child for child in living() if child not in before]
    for child in living():
        if child not in before:
            child.kill()


def interrupted(start, number=signal.SIGINT):
    """Return `start` with a signal that comes before the process is written down."""

    def and_interrupt(*args, **kwargs):
        process = start(*args, **kwargs)
        signal.raise_signal(number)
        return process

    return and_interrupt


def test_an_interrupt_between_two_processes_leaves_neither(monkeypatch, family):
    monkeypatch.setattr(processes, 'commands', lambda setup: {'plant_node': IDLE})
    monkeypatch.setattr(subprocess, 'Popen', interrupted(subprocess.Popen))
    with pytest.raises(KeyboardInterrupt), running(Setup()):
        pass
    assert not family()


def test_an_interrupt_while_processes_end_leaves_none(monkeypatch, family):
    both = dict.fromkeys(('controller_node', 'plant_node'), IDLE)
    monkeypatch.setattr(processes, 'commands', lambda setup: both)
    monkeypatch.setattr(ProcessGroup, 'stop', interrupted(ProcessGroup.stop))
    with pytest.raises(KeyboardInterrupt), running(Setup()):
        assert len(family()) == 2
    assert not family()


def test_an_interrupt_between_two_loads_of_the_cores_leaves_neither(tmp_path, monkeypatch, family):
    monkeypatch.setattr(subprocess, 'Popen', interrupted(subprocess.Popen))
    group = ScenarioProcesses(Setup(), tmp_path, lambda setup: {}, {})
    with pytest.raises(KeyboardInterrupt):
        group.begin(ScriptedFault(kind='cpu_load', at_s=0.0, amount=2.0))
    assert len(family()) == 2 * os.cpu_count()
    group.stop_all()
    assert not family()


def test_an_interrupt_as_a_scenario_starts_its_processes_leaves_none(
    tmp_path, monkeypatch, family
):
    monkeypatch.setattr(subprocess, 'Popen', interrupted(subprocess.Popen))
    group = ScenarioProcesses(Setup(), tmp_path, lambda setup: {'recorder': IDLE}, {})
    with pytest.raises(KeyboardInterrupt):
        group.start_all()
    assert len(family()) == 1
    assert group.stop_all() == {'recorder': -signal.SIGTERM}
    assert not family()


def test_a_second_interrupt_does_not_stop_the_ending(tmp_path, monkeypatch, family):
    lines = dict.fromkeys(SHUTDOWN_ORDER, IDLE)
    group = ScenarioProcesses(Setup(), tmp_path, lambda setup: lines, {})
    group.start_all()
    monkeypatch.setattr(ProcessGroup, 'stop', interrupted(ProcessGroup.stop))
    with pytest.raises(KeyboardInterrupt):
        group.stop_all()
    assert not family()


def up(*arguments):
    return start_verb('up', '--plant', 'rk4', '--log-level', 'error', *arguments)


@pytest.mark.ros
def test_up_lasts_as_long_as_asked_and_leaves_a_bag(tmp_path):
    pytest.importorskip('rclpy', reason="needs ROS: pip install 'metactl_ros[ros]'")
    with up('--duration', '6', '--controller', 'ct', '--record', str(tmp_path / 'bag')) as process:
        output, _ = process.communicate(timeout=60)
    assert process.returncode == 0, output
    assert len(read_ticks(tmp_path / 'bag').stamp_ns) > 100


@pytest.mark.ros
@pytest.mark.parametrize('number', [signal.SIGINT, signal.SIGTERM])
def test_up_ends_its_processes_when_asked(number):
    pytest.importorskip('rclpy', reason="needs ROS: pip install 'metactl_ros[ros]'")
    with up() as process:
        assert_ends_all(process, number, num_children=2, exit_code=0)


@pytest.mark.ros
def test_up_ends_with_the_code_of_the_process_that_ended_by_itself(tmp_path):
    pytest.importorskip('rclpy', reason="needs ROS: pip install 'metactl_ros[ros]'")
    with up('--policy', str(tmp_path / 'none.metactl')) as process:
        output, _ = process.communicate(timeout=60)
    assert process.returncode == 2, output
    assert 'none.metactl' in output


@pytest.mark.ros
@pytest.mark.parametrize('plant', ['rk4', 'none'])
def test_a_params_file_chooses_the_policy_where_no_option_does(tmp_path, plant):
    pytest.importorskip('rclpy', reason="needs ROS: pip install 'metactl_ros[ros]'")
    file = tmp_path / 'params.yaml'
    file.write_text(f'/**: {{ros__parameters: {{policy: {tmp_path}/none.metactl}}}}')
    # The duration ends a controller that took another policy.
    with up('--plant', plant, '--params-file', str(file), '--duration', '20') as process:
        output, _ = process.communicate(timeout=60)
    assert process.returncode == 2, output
    assert 'none.metactl' in output


@pytest.mark.parametrize('words', [(), ('--no-loopback',)])
def test_up_for_a_real_robot_starts_the_controller_alone_and_in_the_network_asked_for(
    monkeypatch, words
):
    started = []

    class SpiedGroup(ProcessGroup):
        def __init__(self, environment):
            super().__init__(environment)
            started.append(environment)

        def start(self, name, command):
            started.append(name)
            return super().start(name, [sys.executable, '-c', 'raise SystemExit(3)'])

    monkeypatch.setattr(processes, 'ProcessGroup', SpiedGroup)
    # `up` takes the signals for itself.
    usual = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        assert main(['up', '--plant', 'none', *words]) == 3
    finally:
        for number, handler in usual.items():
            signal.signal(number, handler)
    assert started == [{} if words else None, 'controller_node']


@pytest.fixture
def group(tmp_path, family):
    with ProcessGroup({}, tmp_path) as group:
        yield group
    assert not family()


def test_what_a_process_writes_goes_to_its_log(group, tmp_path):
    code = 'import sys; print(sys.stdin.readline().upper()); sys.stderr.write("bad")'
    process = group.start('one', [sys.executable, '-c', code], has_input=True)
    process.stdin.write(b'said\n')
    process.stdin.flush()
    process.wait(10.0)
    assert group.ended() == {'one': 0}
    assert (tmp_path / 'one.log').read_text() in ('SAID\n\nbad', 'badSAID\n\n')


def test_processes_end_in_their_order_and_others_before_them(group, monkeypatch):
    stopped, stop = [], group.stop
    monkeypatch.setattr(group, 'stop', lambda name: stopped.append(name) or stop(name))
    for name in ('recorder', 'plant_node', 'other', 'controller_node'):
        group.start(name, IDLE)
    codes = group.stop_all()
    assert stopped == list(codes) == ['other', *SHUTDOWN_ORDER]
    assert set(codes.values()) == {-signal.SIGTERM}


def test_a_stopped_process_ends_when_asked_and_one_that_will_not_is_killed(
    group, tmp_path, monkeypatch
):
    monkeypatch.setattr(processes, 'END_WITHIN_S', 0.2)
    group.start('still', IDLE)
    group.send_signal('still', signal.SIGSTOP)
    assert group.stop('still') == -signal.SIGTERM
    deaf = 'import signal, time; signal.signal(15, signal.SIG_IGN); print(1, flush=True)'
    process = group.start('deaf', [sys.executable, '-c', f'{deaf}; time.sleep(600.0)'])
    until_s = time.monotonic() + 10.0
    while not (tmp_path / 'deaf.log').read_text() and time.monotonic() < until_s:
        time.sleep(0.01)
    assert group.stop('deaf') == -signal.SIGKILL == process.returncode


def test_a_killed_process_may_be_started_again(group):
    first = group.start('one', IDLE)
    group.kill('one')
    assert 'one' not in group
    assert group.start('one', IDLE).pid != first.pid
    assert group.ended() == {}


@pytest.mark.parametrize('number', [signal.SIGINT, signal.SIGTERM])
def test_a_signal_waits_until_the_block_is_left_and_comes_once(number):
    came = []
    usual = signal.signal(number, lambda *_: came.append(number))
    try:
        with deferred_signals():
            os.kill(os.getpid(), number)
            os.kill(os.getpid(), number)
            assert not came
        assert came == [number]
        os.kill(os.getpid(), number)
        assert came == [number, number]
    finally:
        signal.signal(number, usual)


def test_a_block_that_fails_gives_the_signals_back():
    usual = signal.getsignal(signal.SIGINT)
    with pytest.raises(ZeroDivisionError), deferred_signals():
        raise ZeroDivisionError
    assert signal.getsignal(signal.SIGINT) is usual
