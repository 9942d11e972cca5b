# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
import json

from PIL import Image
import pytest

from metactl_ros.cli import main


def test_demo_shows_what_memory_does_to_fixed_gains(tmp_path, capsys):
    assert main(['demo', '--out', str(tmp_path)]) == 0
    summary = json.loads((tmp_path / 'summary.json').read_text())
    fixed = summary['rmse']['fixed gains']
    known = summary['rmse']['fixed gains, memory known and fed forward']
    assert known < 0.85 * fixed
    with Image.open(tmp_path / 'demo.png') as picture:
        assert picture.width > 800
    assert f'{fixed:.4f}' in capsys.readouterr().out


def test_an_impossible_payload_ends_with_a_message_and_code_2(tmp_path, capsys):
    assert main(['demo', '--payload', '-1', '--out', str(tmp_path)]) == 2
    assert 'payload_kg: expected finite masses of at least 0' in capsys.readouterr().err


def test_help_names_every_verb(capsys):
    with pytest.raises(SystemExit):
        main(['--help'])
    assert 'demo' in capsys.readouterr().out
