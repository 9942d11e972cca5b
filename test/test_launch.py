# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""The launch file against ROS's own launch packages, which are not on PyPI."""

import ast
import importlib.util
import os
from pathlib import Path
import subprocess
import sys

import pytest

from metactl_ros.bag.tick_log import read_ticks

PATH = Path(__file__).resolve().parents[1] / 'launch' / 'meta_controller.launch.py'
WANTED = {
    'policy',
    'controller',
    'classical_file',
    'plant',
    'tau_z',
    'payload',
    'duration',
    'namespace',
    'params_file',
    'record',
    'faults',
    'use_sim_time',
    'log_level',
}


def arguments():
    """Return names and descriptions of the launch file's arguments, by reading it."""
    for node in ast.parse(PATH.read_text(encoding='utf-8')).body:
        if isinstance(node, ast.Assign) and node.targets[0].id == 'ARGUMENTS':
            rows = zip(node.value.keys, node.value.values, strict=True)
            return {key.value: row.elts[1].value for key, row in rows}
    raise AssertionError('no ARGUMENTS')


def test_a_controller_is_chosen_from_all_there_are():
    text = PATH.read_text(encoding='utf-8')
    assert "'controller': ['policy', *CLASSICAL]" in text
    assert 'choices=CHOICES.get(name)' in text


def test_every_argument_has_a_description():
    assert set(arguments()) >= WANTED
    assert all(len(description) > 10 for description in arguments().values())


def test_the_launch_description_starts_plant_controller_and_recorder(tmp_path):
    pytest.importorskip('launch_ros', reason='needs ROS 2: launch_ros is not on PyPI')
    from launch import LaunchContext

    spec = importlib.util.spec_from_file_location('meta_controller_launch', PATH)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    context = LaunchContext()
    for name, (default, _) in module.ARGUMENTS.items():
        context.launch_configurations[name] = default
    context.launch_configurations['record'] = str(tmp_path / 'bag')
    started = [a.node_executable for a in module.start(context) if hasattr(a, 'node_executable')]
    assert started == ['metactl_recorder', 'metactl_plant', 'metactl_controller']


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
