# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""The workflows of hosted machines: files that can be read, and jobs true to their names."""

from pathlib import Path
import re

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[1]
WORKFLOWS = {
    path.stem: yaml.safe_load(path.read_text())
    for path in sorted((ROOT / '.github' / 'workflows').glob('*.yaml'))
}


def commands_of(job):
    return '\n'.join(step['run'] for step in job['steps'] if 'run' in step)


def test_there_is_a_job_for_lint_tests_and_colcon():
    assert {name: set(flow['jobs']) for name, flow in WORKFLOWS.items()} == {
        'colcon': {'colcon'},
        'lint': {'lint'},
        'tests': {'tests'},
    }


@pytest.mark.parametrize('name', WORKFLOWS)
def test_a_workflow_runs_for_every_change_and_may_write_nothing(name):
    flow = WORKFLOWS[name]
    assert flow['name'] == name
    assert set(flow[True]) == {'push', 'pull_request'}  # YAML 1.1 reads `on` as true
    assert flow['permissions'] == {'contents': 'read'}


@pytest.mark.parametrize('name', WORKFLOWS)
def test_a_job_ends_and_every_step_does_one_thing(name):
    (job,) = WORKFLOWS[name]['jobs'].values()
    assert job['timeout-minutes'] > 0
    assert all(('run' in step) != ('uses' in step) for step in job['steps'])


@pytest.mark.parametrize(('name', 'verb'), [('lint', 'make lint'), ('tests', 'make test')])
def test_a_hosted_machine_runs_the_verb_that_people_run(name, verb):
    assert commands_of(WORKFLOWS[name]['jobs'][name]) == verb
    assert re.search(rf'^{verb.removeprefix("make ")}:', (ROOT / 'Makefile').read_text(), re.M)


def test_the_tests_run_on_both_versions_of_python():
    job = WORKFLOWS['tests']['jobs']['tests']
    assert job['strategy']['matrix'] == {'python-version': ['3.11', '3.12']}
    assert any('${{ matrix.python-version }}' in str(step.get('with')) for step in job['steps'])


def test_colcon_builds_this_package_in_a_container_of_jazzy():
    job = WORKFLOWS['colcon']['jobs']['colcon']
    assert job['container'] == 'ros:jazzy'
    assert 'colcon build --packages-select metactl_ros' in commands_of(job)
    (launched,) = re.findall(r'ros2 launch metactl_ros (\S+)', commands_of(job))
    (example,) = re.findall(r'src/metactl_ros/(\S+)', commands_of(job))
    assert (ROOT / 'launch' / launched).is_file()
    assert (ROOT / example).is_file()
