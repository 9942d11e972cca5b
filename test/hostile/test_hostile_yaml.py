# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""A selection of the hostile YAML files; `make nightly` reads all of them."""

import json
import os
from pathlib import Path
import subprocess
import sys

import pytest

pytest.importorskip('rclpy', reason="needs ROS: pip install 'metactl_ros[ros]'")
pytest.importorskip('torch', reason="needs torch: pip install 'metactl_ros[train]'")
from hostile.yaml_files import READERS
from hostile.yaml_texts import KINDS

pytestmark = pytest.mark.ros

ROOT = Path(__file__).resolve().parents[2]
COUNT = len(KINDS) * len(READERS)


def test_every_reader_answers_every_kind_of_hostile_file(tmp_path):
    arguments = ['--count', str(COUNT), '--seed', '16', '--results', tmp_path / 'found.json']
    done = subprocess.run(
        [sys.executable, '-m', 'hostile.yaml_files', *arguments],
        env=os.environ | {'PYTHONPATH': f'{ROOT / "test"}:{ROOT}'},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads((tmp_path / 'found.json').read_text())
    assert found['num_cases'] == COUNT
    assert found['peak_memory_mb'] < 1000
