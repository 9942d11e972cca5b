# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
import pytest

from metactl_ros.cli import main
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


def test_inspect_prints_the_card_of_the_shipped_bundle(capsys):
    assert main(['inspect', str(shipped_policy())]) == 0
    assert shipped_policy().name in capsys.readouterr().out


def test_inspect_refuses_what_is_no_bundle_with_code_2(tmp_path, capsys):
    assert main(['inspect', str(tmp_path / 'nothing.metactl')]) == 2
    assert 'nothing.metactl' in capsys.readouterr().err
