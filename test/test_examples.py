# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""The examples: each runs as its docstring says, and one sees what that promises."""

import ast
import os
from pathlib import Path
import re
import subprocess
import sys

import pytest

ROOT = Path(__file__).resolve().parents[1]
EXAMPLES = sorted((ROOT / 'examples').glob('*.py'))
PROMISES = {
    'fixed_gains': r'payload 1\.50 kg: RMSE +1\d\d\.\d mrad',
    'learned_gains': r'learned gains +: RMSE +1\.\d mrad.*integral action: RMSE +4\.',
    'own_policy': r'soft_and_wrong +enforce: .*<= +0\.00.*count +: .*<= +[1-9]',
    'fault': r'NOMINAL.* FAULT .*\[0\. 0\.\] N m.* BLIND .* NOMINAL ',
    'replay_bag': r'equal\n0 violations',
}
"""What the output of an example matches."""


def run(name, folder, *arguments):
    """Run an example in a folder of its own, where a warning is an error; return its output."""
    if name == 'replay_bag':
        pytest.importorskip('rclpy', reason="needs ROS: pip install 'metactl_ros[ros]'")
    done = subprocess.run(
        [sys.executable, '-W', 'error', ROOT / 'examples' / f'{name}.py', *arguments],
        cwd=folder,
        env=os.environ | {'PYTHONPATH': str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize(
    'name',
    [
        *(name for name in PROMISES if name != 'replay_bag'),
        pytest.param('replay_bag', marks=pytest.mark.ros),
    ],
)
def test_an_example_shows_what_it_promises(name, tmp_path):
    found = run(name, tmp_path)
    assert re.search(PROMISES[name], found, re.DOTALL), found


def test_the_example_with_a_picture_writes_it_where_it_was_asked_to(tmp_path):
    run('plot_tracking', tmp_path, tmp_path / 'folder' / 'mine.png')
    assert (tmp_path / 'folder' / 'mine.png').read_bytes().startswith(b'\x89PNG')


@pytest.mark.parametrize('path', EXAMPLES, ids=lambda path: path.stem)
def test_an_example_is_short_and_says_how_it_is_run(path):
    text = path.read_text()
    assert len(text.splitlines()) <= 60
    assert f'    python examples/{path.name}' in ast.get_docstring(ast.parse(text))


def test_every_example_is_run_here():
    assert {path.stem for path in EXAMPLES} == {*PROMISES, 'plot_tracking'}
