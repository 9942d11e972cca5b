# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""The architecture as a test: who may import whom, and how large a module may grow."""

import ast
from graphlib import TopologicalSorter
from pathlib import Path
import re
import subprocess
import sys

import module_table
import pytest

ROOT = Path(__file__).resolve().parents[1]
OUTSIDE = {'torch', 'stable_baselines3', 'gymnasium'}
URDF_BODY = 'dynamics.urdf_body'
"""Where Pinocchio may be imported."""
HEAVY = OUTSIDE | {'rclpy', 'pybullet', 'yaml', 'scipy', 'matplotlib', 'onnxruntime', 'rich'}
NUMPY_ONLY = (
    'signals',
    'config',
    'errors',
    'metrics',
    'dynamics',
    'motion',
    'control',
    'sim.plant',
    'sim.rk4_arm',
    'sim.arm_urdf',
    'sim.task',
    'sim.rollout',
)
WITHOUT_ROS = ('bag', 'check', 'policy', 'replay', 'runtime', 'settings', 'baselines')
ROS = ('ros', 'hil.intruder')
"""Where rclpy may be imported."""


def modules():
    for path in sorted((ROOT / 'metactl_ros').rglob('*.py')):
        yield '.'.join(path.relative_to(ROOT).with_suffix('').parts).removesuffix('.__init__')


def forbidden_for(module):
    name = module.removeprefix('metactl_ros.')
    forbidden = set() if name == URDF_BODY else {'pinocchio'}
    if is_in(name, NUMPY_ONLY):
        return forbidden | HEAVY
    forbidden |= OUTSIDE
    if not is_in(name, ROS):
        forbidden |= {'rclpy'}
    if name != 'sim.bullet_arm':
        forbidden |= {'pybullet'}
    return forbidden


def is_in(name, rooms):
    return any(name == room or name.startswith(f'{room}.') for room in rooms)


def imports(package='metactl_ros'):
    """Yield (room, room it imports from) of every import; a module at the top is its own room."""
    for path in (ROOT / package).rglob('*.py'):
        inside = path.relative_to(ROOT / package).parts
        for node in ast.walk(ast.parse(path.read_text())):
            names = []
            if isinstance(node, ast.ImportFrom) and node.module:
                names = [node.module, *(f'{node.module}.{alias.name}' for alias in node.names)]
            elif isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            for name in names:
                package_name, _, rest = name.partition('.')
                if package_name == package and rest:
                    yield inside[0].removesuffix('.py'), rest.partition('.')[0]


@pytest.mark.parametrize('module', list(modules()))
def test_module_stays_within_its_layer(module):
    forbidden = forbidden_for(module)
    code = f'import sys, {module}; print(*sorted(set(sys.modules) & {forbidden!r}))'
    if module == f'metactl_ros.{URDF_BODY}':
        pytest.importorskip('pinocchio', reason="needs Pinocchio: pip install 'metactl_ros[urdf]'")
    if is_in(module.removeprefix('metactl_ros.'), ROS):
        pytest.importorskip('rclpy', reason="needs ROS: pip install 'metactl_ros[ros]'")
    fresh = subprocess.run(
        [sys.executable, '-c', code], check=True, capture_output=True, text=True, cwd=ROOT
    )
    leaked = {name for name in fresh.stdout.split() if name in forbidden}
    assert not leaked, f'{module} must not import {leaked}: move the import to its driver.'


@pytest.mark.parametrize('folder', ['metactl_ros', 'training', 'test'])
def test_no_module_grows_beyond_500_lines(folder):
    sizes = {p.name: len(p.read_text().splitlines()) for p in (ROOT / folder).rglob('*.py')}
    assert max(sizes.values()) <= 500, sizes


@pytest.mark.parametrize('package', ['metactl_ros', 'training'])
def test_no_two_rooms_import_each_other(package):
    needs = {}
    for room, other in imports(package):
        if room not in (other, '__init__'):
            needs.setdefault(room, set()).add(other)
    order = list(TopologicalSorter(needs).static_order())  # a cycle raises, and names its rooms
    assert len(order) > 5


@pytest.mark.parametrize('room', WITHOUT_ROS)
def test_what_needs_no_ros_does_not_import_the_nodes(room):
    assert 'ros' not in {other for own, other in imports() if own == room}, room


def test_training_does_not_reach_for_ros():
    for path in (ROOT / 'training').rglob('*.py'):
        assert 'rclpy' not in path.read_text()
        assert 'metactl_ros.ros' not in path.read_text()


def test_training_is_not_importable_outside_the_checkout(tmp_path):
    found = subprocess.run(
        [sys.executable, '-c', 'import training'], cwd=tmp_path, capture_output=True, text=True
    )
    assert "No module named 'training'" in found.stderr


def test_every_module_says_what_it_is_for():
    for path in (ROOT / 'metactl_ros').rglob('*.py'):
        text = path.read_text()
        assert not text or '"""' in text.split('import')[0], path


def test_the_page_of_modules_says_what_the_modules_say():
    assert module_table.PAGE.read_text() == module_table.page(), (
        'write docs/architecture.md again: python test/module_table.py'
    )


@pytest.mark.parametrize('package', module_table.PACKAGES)
def test_the_first_line_of_a_module_is_a_sentence_that_fits_a_table(package):
    for path in (ROOT / package).rglob('*.py'):
        assert re.fullmatch(r'[^|]+[.?]', module_table.first_line(path)), path


def test_a_new_module_is_missing_from_the_page_until_it_is_written_again(tmp_path):
    (tmp_path / 'metactl_ros').mkdir()
    (tmp_path / 'metactl_ros' / '__init__.py').write_text('"""All of it."""')
    (tmp_path / 'metactl_ros' / 'new.py').write_text('"""Is new.\n\nAt length."""')
    assert module_table.tables(tmp_path).splitlines()[-1] == '| `new.py` | Is new. |'
