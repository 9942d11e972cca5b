# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""What the launch file's arguments mean, and the file itself where ROS's launch packages are."""

import importlib.util
import os
from pathlib import Path
import re
import subprocess
import sys

import pytest

from metactl_ros.bag.tick_log import read_ticks
from metactl_ros.baselines import CONTROLLERS
from metactl_ros.errors import ConfigError
from metactl_ros.options import from_texts, launch_arguments
from metactl_ros.processes import LaunchRequest, parameters_of

ARGUMENTS = launch_arguments(LaunchRequest)
PATH = Path(__file__).resolve().parents[2] / 'launch' / 'meta_controller.launch.py'
OTHERS = {
    'policy': 'some.metactl',
    'policy_sha256': 'ab' * 32,
    'controller': 'ct',
    'classical_file': 'some.yaml',
    'arm': 'arm.yaml',
    'controller_file': 'controller.yaml',
    'joint_prefix': 'left_',
    'reference': 'trajectory',
    'autostart': 'false',
    'shadow': 'true',
    'plant': 'rk4',
    'tau_z': '3',
    'payload': '1.5',
    'seed': '7',
    'duration': '5',
    'namespace': 'left',
    'params_file': 'params.yaml',
    'record': 'some/bag',
    'faults': 'some_faults',
    'use_sim_time': 'true',
    'loopback': 'false',
    'log_level': 'debug',
}
"""A text for every argument that is not its default."""


def texts(**given):
    """Return the text of every argument, as given or as usual."""
    return {name: argument.default for name, argument in ARGUMENTS.items()} | given


def processes(**given):
    """Return the parameters of each process that these arguments start."""
    return parameters_of(from_texts(LaunchRequest, texts(**given)))


def test_every_argument_has_a_description():
    assert all(len(argument.description) > 10 for argument in ARGUMENTS.values())


def test_a_controller_is_chosen_from_all_there_are():
    assert ARGUMENTS['controller'].choices == ['policy', *CONTROLLERS]


def test_without_arguments_the_usual_is_started_on_this_machine_and_never_ends():
    assert from_texts(LaunchRequest, texts()) == LaunchRequest(duration_s=0.0, loopback=True)


def test_no_argument_is_forgotten():
    assert set(OTHERS) == set(ARGUMENTS)
    usual = LaunchRequest()
    changed = {n: from_texts(LaunchRequest, texts(**{n: text})) for n, text in OTHERS.items()}
    assert not [name for name, request in changed.items() if request == usual]


def test_every_argument_ends_where_it_belongs():
    assert from_texts(LaunchRequest, OTHERS) == LaunchRequest(
        policy='some.metactl',
        policy_sha256='ab' * 32,
        controller='ct',
        classical_file='some.yaml',
        arm_file='arm.yaml',
        controller_file='controller.yaml',
        joint_prefix='left_',
        reference='trajectory',
        autostart=False,
        shadow=True,
        plant='rk4',
        tau_z_s=3.0,
        payload_kg=1.5,
        seed=7,
        namespace='left',
        params_file=Path('params.yaml'),
        record=Path('some/bag'),
        faults='some_faults',
        lockstep=True,
        log_level='debug',
        duration_s=5.0,
        loopback=False,
    )


def test_for_a_real_robot_the_controller_starts_alone_and_is_told_only_what_was_chosen():
    assert processes(plant='none') == {'controller_node': {}}
    told = processes(plant='none', payload='0.75', use_sim_time='True', controller='ct')
    assert told == {
        'controller_node': {'payload_kg': 0.75, 'use_sim_time': True, 'controller': 'ct'}
    }
    told = processes(plant='none', reference='sinusoid', autostart='True', joint_prefix='left_')
    assert told == {
        'controller_node': {
            'reference': 'sinusoid',
            'autostart': True,
            'joint_prefix': 'left_',
        }
    }


@pytest.mark.parametrize('word', ['', 'false', 'False', 'FALSE'])
def test_nothing_is_recorded_unless_asked_for(word):
    assert list(processes(record=word)) == ['plant_node', 'controller_node']


@pytest.mark.parametrize('word', ['true', 'True', 'TRUE'])
def test_a_recording_that_is_only_asked_for_gets_a_folder_of_its_own(word):
    assert re.fullmatch(r'runs/bags/\d{8}_\d{6}', processes(record=word)['recorder']['out'])


def test_a_recording_goes_where_it_is_told():
    assert processes(record='some/Bag')['recorder'] == {'out': 'some/Bag'}


@pytest.mark.parametrize(('word', 'truth'), [('true', True), ('True', True), ('FALSE', False)])
def test_truth_is_said_in_any_capitals(word, truth):
    request = from_texts(LaunchRequest, texts(use_sim_time=word, loopback=word))
    assert (request.lockstep, request.loopback) == (truth, truth)


@pytest.mark.parametrize(
    ('name', 'word', 'expected'),
    [
        ('use_sim_time', 'maybe', 'true or false'),
        ('autostart', 'maybe', 'true or false'),
        ('shadow', '', 'true or false'),
        ('loopback', '', 'true or false'),
        ('tau_z', 'two', 'a number of seconds'),
        ('payload', '1kg', 'a number of kg'),
        ('seed', '1.5', 'a whole number'),
        ('duration', '', 'a number of seconds'),
    ],
)
def test_another_word_is_refused_with_the_name_and_a_way_out(name, word, expected):
    with pytest.raises(
        ConfigError, match=f'{name}: expected {expected}, found {word!r}; say {name}:=.+'
    ):
        from_texts(LaunchRequest, texts(**{name: word}))


@pytest.fixture
def launched():
    """Return a function from arguments to the actions of the launch file."""
    pytest.importorskip('launch_ros', reason='needs ROS 2: launch_ros is not on PyPI')
    from launch import LaunchContext

    spec = importlib.util.spec_from_file_location('meta_controller_launch', PATH)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)

    def actions(**given):
        context = LaunchContext()
        context.launch_configurations.update(given)
        *declared, start = module.generate_launch_description().entities
        for argument in declared:
            argument.execute(context)
        return start.execute(context)

    return actions


@pytest.mark.parametrize(
    ('given', 'started'),
    [
        ({'record': 'true'}, ['metactl_recorder', 'metactl_plant', 'metactl_controller']),
        ({'plant': 'none'}, ['metactl_controller']),
    ],
)
def test_the_launch_file_starts_what_the_arguments_ask_for(launched, given, started):
    actions = launched(**given)
    assert [a.node_executable for a in actions if hasattr(a, 'node_executable')] == started


def test_the_launch_file_refuses_a_controller_there_is_not(launched):
    with pytest.raises(RuntimeError, match='nobody'):
        launched(controller='nobody')


@pytest.mark.parametrize('plant', ['rk4', 'none'])
def test_the_launch_file_refuses_a_file_that_does_not_exist(launched, plant):
    with pytest.raises(ConfigError, match="params_file: expected the path of a file, found 'no"):
        launched(plant=plant, params_file='no.yaml')


def test_the_launch_file_ends_in_time_and_leaves_the_network_alone_if_told(launched):
    usual = {type(action).__name__ for action in launched()}
    other = {type(action).__name__ for action in launched(duration='5', loopback='False')}
    assert usual == {'Node', 'SetEnvironmentVariable'}
    assert other == {'Node', 'TimerAction'}


def test_ros2_launch_drives_the_simulated_arm_and_leaves_a_bag(tmp_path):
    pytest.importorskip('ros2launch', reason='needs ROS 2: ros2launch is not on PyPI')
    from ament_index_python.packages import get_package_prefix, PackageNotFoundError

    try:
        get_package_prefix('metactl_ros')
    except PackageNotFoundError:
        pytest.skip('needs a workspace in which metactl_ros was built and sourced')
    code = 'import sys; from ros2cli.cli import main; sys.exit(main())'
    words = ['launch', 'metactl_ros', PATH.name, 'plant:=rk4', 'duration:=6']
    done = subprocess.run(
        [sys.executable, '-c', code, *words, f'record:={tmp_path / "bag"}'],
        env=os.environ | {'ROS_DOMAIN_ID': str(os.getpid() % 50 * 2 + 1)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=120.0,
    )
    assert done.returncode == 0, done.stdout
    assert done.stdout.count('process has finished cleanly') == 3
    assert len(read_ticks(tmp_path / 'bag').stamp_ns) > 100
