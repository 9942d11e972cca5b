# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
import pytest

from metactl_ros.baselines import CLASSICAL, CONTROLLERS
from metactl_ros.cli import main
from metactl_ros.errors import ConfigError
from metactl_ros.processes import parameters_of, Setup
from metactl_ros.settings import shipped_policy

VERBS = ('up', 'demo', 'bench', 'record', 'replay', 'hil', 'inspect')


def test_help_names_every_verb(capsys):
    with pytest.raises(SystemExit):
        main(['--help'])
    said = capsys.readouterr().out
    assert all(verb in said for verb in VERBS)


@pytest.mark.parametrize('verb', VERBS)
def test_every_verb_explains_itself(verb, capsys):
    with pytest.raises(SystemExit):
        main([verb, '--help'])
    assert f'metactl {verb}' in capsys.readouterr().out


@pytest.mark.parametrize('words', [['up'], ['replay', 'BAG']])
def test_an_unknown_controller_is_refused_with_the_names_there_are(words, capsys):
    with pytest.raises(SystemExit) as ended:
        main([*words, '--controller', 'nobody'])
    said = capsys.readouterr().err
    assert ended.value.code == 2
    assert all(name in said for name in CONTROLLERS)


@pytest.mark.parametrize('name', CLASSICAL)
def test_only_the_oracle_is_told_the_true_payload(name):
    setup = Setup(controller=name, classical_file='some.yaml', payload_kg=1.125)
    values = parameters_of(setup)['controller_node']
    assert (values['controller'], values['classical_file']) == (name, 'some.yaml')
    assert (values['payload_kg'] == 1.125) == (name == 'oracle')


def test_an_oracle_that_would_not_know_the_memory_is_refused():
    with pytest.raises(ConfigError, match=r'oracle knows the tau_z .* 2 s, found a robot of 5 s'):
        parameters_of(Setup(controller='oracle', tau_z_s=5.0))


def test_inspect_prints_the_card_of_the_shipped_bundle(capsys):
    assert main(['inspect', str(shipped_policy())]) == 0
    assert shipped_policy().name in capsys.readouterr().out


def test_inspect_refuses_what_is_no_bundle_with_code_2(tmp_path, capsys):
    assert main(['inspect', str(tmp_path / 'nothing.metactl')]) == 2
    assert 'nothing.metactl' in capsys.readouterr().err
