# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""With a real robot nothing moves until commanded, and no file is missed in silence."""

import pytest

from metactl_ros import processes
from metactl_ros.cli import main
from metactl_ros.errors import ConfigError
from metactl_ros.options import defaults_of
from metactl_ros.processes import commands, default_parameters, parameters_of, Setup
from metactl_ros.settings import policy_file, require_files, share_directory, shipped_policy

FLAGS = {
    'params_file': '--params-file',
    'arm_file': '--arm',
    'controller_file': '--controller-file',
    'classical_file': '--classical-file',
}


def test_a_node_started_by_hand_waits_and_then_holds():
    defaults = defaults_of('controller_node.yaml')
    assert (defaults['autostart'], defaults['reference']) == (False, 'trajectory')


def test_with_a_real_robot_nothing_is_assumed_and_with_a_simulated_one_it_moves():
    real = Setup(plant='none')
    assert (default_parameters(real), parameters_of(real)) == ({}, {'controller_node': {}})
    moves = {'controller_node': {'autostart': True, 'reference': 'sinusoid'}}
    assert [default_parameters(Setup(plant=plant)) for plant in ('rk4', 'bullet')] == [
        moves,
        moves,
    ]


def test_a_parameter_file_overrules_what_is_assumed_and_what_is_chosen_overrules_both(tmp_path):
    file = tmp_path / 'params.yaml'
    file.touch()
    words = commands(Setup(params_file=file, reference='trajectory'))['controller_node']
    places = [
        words.index('reference:="sinusoid"'),
        words.index(str(file)),
        words.index('reference:="trajectory"'),
    ]
    assert places == sorted(places)
    assert words.index('autostart:=true') < places[1]


@pytest.mark.parametrize('plant', ['none', 'rk4'])
@pytest.mark.parametrize('name', FLAGS)
def test_a_file_that_does_not_exist_refuses_with_code_2_and_its_name(
    name, plant, tmp_path, capsys, monkeypatch
):
    monkeypatch.setattr(processes.subprocess, 'Popen', None)  # nothing is started
    missing = str(tmp_path / 'misspelt.yaml')
    assert main(['up', '--plant', plant, FLAGS[name], missing]) == 2
    said = capsys.readouterr().err
    assert f'{name}: expected the path of a file, found {missing!r}' in said


def test_a_policy_that_does_not_exist_refuses_with_code_2_and_the_names_there_are(capsys):
    assert main(['up', '--plant', 'none', '--policy', 'robust_tau3']) == 2
    said = capsys.readouterr().err
    assert (
        "policy: expected the path of a bundle NAME.metactl or one of ['adaptive', 'paper_sac'"
        in said
    )
    assert "found 'robust_tau3'" in said


def test_a_policy_is_found_by_name_or_by_path(tmp_path):
    assert policy_file('adaptive') == shipped_policy()
    assert policy_file(tmp_path) == tmp_path


@pytest.mark.parametrize('name', [*list(FLAGS)[1:], 'policy'])
def test_a_node_refuses_the_name_of_a_file_that_does_not_exist(name):
    require_files({name: ''})
    require_files({name: str(shipped_policy() if name == 'policy' else shipped_file())})
    with pytest.raises(ConfigError, match=f"{name}: expected the path .*found '/nowhere/at.all'"):
        require_files({name: '/nowhere/at.all'})


def shipped_file():
    return share_directory() / 'config' / 'arm.yaml'


def test_robot_and_controller_are_told_of_the_same_arm():
    told = parameters_of(Setup(arm_file=str(shipped_file())))
    assert told['plant_node']['arm_file'] == told['controller_node']['arm_file']
    assert 'arm_file' not in parameters_of(Setup())['plant_node']


def test_a_prefix_is_refused_for_the_simulated_robot_which_has_none():
    with pytest.raises(ConfigError, match=r"joint_prefix: .* found 'left_'; give an arm_file"):
        parameters_of(Setup(joint_prefix='left_'))
    told = parameters_of(Setup(joint_prefix='left_', plant='none'))
    assert told == {'controller_node': {'joint_prefix': 'left_'}}


@pytest.mark.parametrize(
    ('words', 'told'),
    [
        (['--reference', 'sinusoid'], {'reference': 'sinusoid'}),
        (['--autostart'], {'autostart': True}),
        (['--no-autostart'], {'autostart': False}),
        (['--shadow'], {'shadow': True}),
        (['--joint-prefix', 'left_'], {'joint_prefix': 'left_'}),
        (['--arm', 'a.yaml'], {'arm_file': 'a.yaml'}),
        (['--controller-file', 'c.yaml'], {'controller_file': 'c.yaml'}),
    ],
)
def test_up_tells_the_controller_of_a_real_robot_what_was_said_aloud(words, told, monkeypatch):
    asked = []
    monkeypatch.setattr(processes, 'run_up', lambda setup, *_: asked.append(setup) or 0)
    assert main(['up', '--plant', 'none', *words]) == 0
    assert parameters_of(asked[0]) == {'controller_node': told}
