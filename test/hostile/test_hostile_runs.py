# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""The judge of hostile input sees what it must not overlook."""

import json
from pathlib import Path
import subprocess
import sys

import pytest

FOLDER = Path(__file__).parents[1]
PROGRAM = """
import json, os, signal, sys, time
from hostile import runs
from hostile.runs import run_forked, Tally
runs.HANG_S = 0.5

def fail(): raise KeyError('nothing')
def say(code):
    sys.stderr.write('error: no'); return code
def exit_with(code): raise SystemExit(code)
def allocate():
    return say(len(bytearray(300 * 2**20)) and 2)

cases = {
    'good': lambda: 0,
    'refused': lambda: say(2),
    'silent': lambda: 2,
    'other code': lambda: say(9),
    'raises': fail,
    'exits': lambda: exit_with(0),
    'sleeps': lambda: time.sleep(60),
    'spins': lambda: [0 for _ in iter(int, 1)] and 0,
    'aborts': os.abort,
    'killed': lambda: os.kill(os.getpid(), signal.SIGSEGV),
    'memory': allocate,
}
tally = Tally()
for name, case in cases.items():
    tally.add('kind', name, run_forked(case), allowed=(0, 2))
print(json.dumps(tally.figures()))
"""


@pytest.fixture(scope='module')
def figures():
    # In a process of its own, which has no threads: it forks.
    done = subprocess.run(
        [sys.executable, '-c', PROGRAM], cwd=FOLDER, capture_output=True, text=True, check=True
    )
    return json.loads(done.stdout)


def test_every_bad_end_is_noticed(figures):
    found = dict(line.split(': ', 1) for line in figures['bad'])
    assert {name: text.split(':')[0] for name, text in found.items()} == {
        'silent': 'exit 2',
        'other code': 'exit 9',
        'raises': 'traceback',
        'sleeps': 'hang',
        'spins': 'hang',
        'aborts': 'killed by SIGABRT',
        'killed': 'killed by SIGSEGV',
    }
    assert "KeyError: 'nothing'" in found['raises']


def test_good_ends_are_counted(figures):
    assert figures['num_cases'] == 11
    assert figures['outcomes']['exit 0'] == 2
    assert figures['by_kind'] == {'kind': figures['outcomes']}


def test_the_largest_and_the_slowest_are_named(figures):
    assert figures['largest'] == 'memory'
    assert 300 < figures['peak_memory_mb'] < 600
    assert figures['slowest'] in ('sleeps', 'spins')
