# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""What is kept in results/ of faults meets its goals, and docs/faults.md says the same."""

import json
from pathlib import Path

import fault_page
import pytest

from metactl_ros.hil.fault_table import GUARDED
from metactl_ros.hil.random_faults import random_kinds
from training.false_alarms import REGIMES

ROOT = Path(__file__).resolve().parents[2]


def kept(name):
    return json.loads((ROOT / 'results' / f'{name}.json').read_text())


def test_the_page_of_faults_is_that_of_what_is_kept():
    assert fault_page.page() == (ROOT / 'docs' / 'faults.md').read_text()


def test_no_kept_fault_led_the_guarded_arm_to_what_is_not_allowed():
    after = kept('faults_after')['scenarios']
    assert [row['scenario'] for row in after] == list(GUARDED)
    for row in after:
        assert row['failed_demands'] == []
        assert row['is_undisturbed']


@pytest.mark.xfail(reason='the runs were not made with the present demands yet')
@pytest.mark.parametrize('seed', fault_page.SEEDS)
def test_kept_random_faults_broke_no_promise(seed):
    found = kept(f'random_faults_{seed}')
    assert found['seed'] == seed
    assert found['duration_s'] == 600.0
    assert set(found['faults_by_kind']) == set(random_kinds())
    assert all(verdict['has_passed'] for verdict in found['verdicts'])


def test_no_false_alarm_was_kept_of_a_controller_that_loses_no_arm():
    cells = kept('false_alarms')['cells']
    assert {cell['regime'] for cell in cells} == set(REGIMES)
    sound = [cell for cell in cells if not cell['num_astray_without_guard']]
    assert len(sound) >= 32
    assert all(cell['hours'] >= 1.0 and not cell['num_false_alarms'] for cell in sound)


@pytest.mark.parametrize(('what', 'least'), [('bundles', 500), ('bags', 500), ('yaml', 300)])
def test_every_kept_hostile_file_was_answered(what, least):
    found = kept(f'hostile_{what}')
    assert found['num_cases'] >= least
    assert found['num_bad'] == 0
    assert found['slowest_s'] <= 5.0
