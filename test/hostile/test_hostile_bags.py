# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""A selection of the hostile bags; `make nightly` replays all of them, with their pages."""

import json
import os
from pathlib import Path
import subprocess
import sys

import pytest

pytest.importorskip('rclpy', reason="needs ROS: pip install 'metactl_ros[ros]'")
from hostile.bags import KINDS

pytestmark = pytest.mark.ros

ROOT = Path(__file__).resolve().parents[2]


def test_every_kind_of_hostile_bag_is_answered(tmp_path):
    arguments = ['--count', str(len(KINDS)), '--without-pages', '--results', 'found.json']
    done = subprocess.run(
        [sys.executable, '-m', 'hostile.bags', *arguments],
        cwd=tmp_path,
        env=os.environ | {'PYTHONPATH': f'{ROOT / "test"}:{ROOT}'},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads((tmp_path / 'found.json').read_text())
    assert found['num_cases'] == len(KINDS)
    assert set(found['by_kind']) == set(KINDS)
    assert found['peak_memory_mb'] < 1000
