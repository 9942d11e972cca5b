# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""The mutants of `hil_mutants.py` still replace something: a stale name switches nothing off."""

import ast
import json
from pathlib import Path
import subprocess
import sys

import pytest

pytest.importorskip('rclpy', reason="needs ROS: pip install 'metactl_ros[ros]'")
from hil_mutants import MUTANTS

RESULTS = Path(__file__).resolve().parents[2] / 'results' / 'hil_mutants.json'


def checked(code):
    """Return code that demands of every attribute it replaces that it is there."""
    lines = []
    for statement in ast.parse(code).body:
        targets = [n for t in getattr(statement, 'targets', ()) for n in ast.walk(t)]
        for target in targets:
            if isinstance(target, ast.Attribute) and isinstance(target.ctx, ast.Store):
                owner = ast.unparse(target.value)
                lines.append(f'assert hasattr({owner}, {target.attr!r}), {ast.unparse(target)!r}')
        lines.append(ast.unparse(statement))
    return '\n'.join(lines)


def test_a_mutant_that_replaces_nothing_is_found():
    assert checked('import os\nos.nothing = 1').splitlines()[1].startswith('assert hasattr(os, ')


def test_every_mutant_replaces_what_is_there():
    programs = [checked(mutant.code) for mutant in MUTANTS.values()]
    assert all('assert hasattr' in program for program in programs)
    # One after the other in one process: a replaced attribute is still there for the next.
    script = '\n'.join(f'exec({program!r}, {{}})' for program in programs)
    done = subprocess.run([sys.executable, '-c', script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_every_kept_mutant_was_noticed():
    rows = json.loads(RESULTS.read_text())['mutants']
    assert {row['scenario'] for row in rows} == set(MUTANTS)
    for row in rows:
        assert row['mutant'] == MUTANTS[row['scenario']].says
        assert row['is_noticed'], row['scenario']
