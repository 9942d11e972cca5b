# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""Scenarios as files: what is shipped, what is refused, what is made at random."""

from dataclasses import replace
from itertools import pairwise
import json
from pathlib import Path

import fault_page
import hil_mutants
import pytest
import yaml

from metactl_ros.cli import main
from metactl_ros.errors import ConfigError
from metactl_ros.hil.fault_table import GUARDED
from metactl_ros.hil.nemesis import (
    AMOUNTS,
    NEEDS_TRAJECTORIES,
    random_kinds,
    random_scenario,
    RESET_AFTER_S,
)
from metactl_ros.hil.run import deeds_of
from metactl_ros.hil.scenario import load_scenario, ScenarioSetup, shipped_scenarios
from metactl_ros.hil.scripted_fault import PROCESS_KINDS, ScriptedFault
from metactl_ros.nodes.fleet import Setup
from metactl_ros.plant.faults import KINDS
from metactl_ros.rivals import CLASSICAL
from training.false_alarms import REGIMES

ROOT = Path(__file__).resolve().parents[1]
SCENARIO = {
    'title': 'a title',
    'duration_s': 6,
    'setup': {'plant': 'rk4', 'payload_kg': 0.5},
    'faults': [{'kind': 'silence', 'at_s': 2.0, 'for_s': 0.3}],
    'expect': [{'mode': 'BLIND', 'after_s': 2.0, 'within_s': 0.1}],
    'protection': 'something',
}


def write(folder, **changes):
    path = folder / 'one.yaml'
    path.write_text(yaml.safe_dump(SCENARIO | changes))
    return path


@pytest.mark.parametrize('path', shipped_scenarios(), ids=lambda path: path.stem)
def test_a_shipped_scenario_says_why_expects_something_and_has_a_mutant(path):
    scenario = load_scenario(path)
    assert path.read_text().startswith('# ')
    assert scenario.expect
    assert path.stem in hil_mutants.MUTANTS


def test_there_are_at_least_15_and_no_mutant_without_scenario():
    names = {path.stem for path in shipped_scenarios()}
    assert len(names) >= 15
    assert names == set(hil_mutants.MUTANTS)


def test_every_scenario_about_the_arm_itself_is_measured():
    names = {path.stem for path in shipped_scenarios()}
    assert set(GUARDED) <= names


def test_the_shipped_scenarios_have_every_kind_of_fault():
    used = {fault.kind for path in shipped_scenarios() for fault in load_scenario(path).faults}
    assert used == set(KINDS) | set(PROCESS_KINDS)


def test_all_of_them_last_less_than_six_minutes():
    assert sum(load_scenario(path).duration_s for path in shipped_scenarios()) < 360.0


def test_a_scenario_chooses_from_the_set_up_and_leaves_the_rest(tmp_path):
    usual = Setup(seed=5)
    chosen = load_scenario(write(tmp_path)).setup.applied_to(usual)
    assert chosen == replace(usual, plant='rk4', payload_kg=0.5)
    for name in ('policy', *CLASSICAL):
        scenario = load_scenario(write(tmp_path, setup={'controller': name}))
        assert scenario.setup.applied_to(usual) == replace(usual, controller=name)


FAULT = SCENARIO['faults'][0]
WISH = SCENARIO['expect'][0]


@pytest.mark.parametrize(
    ('changes', 'says'),
    [
        ({'expcet': []}, "unknown key 'expcet'; did you mean 'expect'?"),
        ({'title': 3}, 'title: expected a text'),
        ({'duration_s': 0}, 'duration_s'),
        ({'setup': {'plnt': 'rk4'}}, "setup: unknown key 'plnt'; did you mean 'plant'?"),
        ({'setup': {'plant': 'real'}}, 'setup: plant'),
        ({'setup': {'controller': 'nobody'}}, "'policy', 'ct', 'ct_best', 'ct_integral'"),
        ({'faults': [FAULT | {'kind': 'silance'}]}, "did you mean 'silence'?"),
        ({'faults': [FAULT | {'kind': 'kill_robot'}]}, 'faults[0]: Fault.kind: unknown kind'),
        ({'faults': [FAULT | {'at_s': 7.0}]}, 'begin after the end'),
        ({'faults': [FAULT | {'amount': 1.0}]}, 'has no amount'),
        ({'faults': [{'kind': 'kill_plant', 'at_s': 1, 'joint': 0}]}, 'leave them out'),
        ({'faults': [{'kind': 'cpu_load', 'at_s': 1, 'amount': 99}]}, '1 to 16'),
        ({'faults': [{'kind': 'second_states', 'at_s': 1, 'joint': 0}]}, 'has no joint'),
        ({'faults': [{'kind': 'second_commands', 'at_s': 1, 'amount': 2}]}, '-1 to 1 share'),
        ({'setup': {'reference': 'circle'}}, 'setup: reference'),
        ({'margins': {'speed': 3}}, 'margins: Margins: expected a reason'),
        ({'expect': [WISH | {'never': 'FAULT'}]}, 'exactly one of'),
        ({'expect': [{'mode': 'BLND', 'after_s': 2, 'within_s': 1}]}, 'expect[0]: mode'),
        ({'expect': [{'mode': 'BLIND', 'after_s': 2}]}, 'expect[0]: Expectation.mode: goes with'),
        ({'expect': [{'never': 'FAULT', 'after_s': 2}]}, 'Expectation.never: goes with'),
        ({'expect': [{'in_order': False}]}, 'expected true'),
        ({'expect': [{'alone': False}]}, 'expected true'),
        ({'expect': [WISH | {'mode': None, 'leaves_nominal': False}]}, 'expected true'),
        ({'expect': [{'only': ['NOMNAL']}]}, 'expect[0]: only[0]'),
        ({'expect': [{'speed_below_radps': 3.0}]}, 'expected a list'),
        ({'expect': [WISH | {'after_s': -1.0}]}, 'after_s'),
    ],
)
def test_a_mistake_is_refused_with_file_and_key(tmp_path, changes, says):
    with pytest.raises(ConfigError) as caught:
        load_scenario(write(tmp_path, **changes))
    assert 'one.yaml' in str(caught.value)
    assert says in str(caught.value)


def test_what_happens_to_processes_is_done_in_order_and_undone(tmp_path):
    faults = [
        {'kind': 'kill_plant', 'at_s': 3.0, 'for_s': 1.0},
        {'kind': 'silence', 'at_s': 1.0, 'for_s': 0.3},
        {'kind': 'cpu_load', 'at_s': 1.0, 'for_s': 2.5},
    ]
    deeds = deeds_of(load_scenario(write(tmp_path, faults=faults)))
    assert [(deed.at_s, deed.is_begin, deed.fault.kind) for deed in deeds] == [
        (1.0, True, 'cpu_load'),
        (3.0, True, 'kill_plant'),
        (3.5, False, 'cpu_load'),
        (4.0, False, 'kill_plant'),
    ]


def test_a_random_scenario_follows_from_its_seed_alone():
    assert random_scenario(60.0, 7) == random_scenario(60.0, 7)
    assert random_scenario(60.0, 7)['faults'] != random_scenario(60.0, 8)['faults']


def test_a_random_scenario_has_every_kind_and_can_be_read_back(tmp_path):
    path = tmp_path / 'scenario.yaml'
    path.write_text(yaml.safe_dump(random_scenario(200.0, 7)))
    faults = load_scenario(path).faults
    kinds = [fault.kind for fault in faults]
    every = (set(KINDS) | set(PROCESS_KINDS)) - NEEDS_TRAJECTORIES
    assert set(kinds[: len(every)]) == every  # all of them before any comes again
    assert any(a.end_s > b.at_s for a, b in pairwise(faults))


def test_a_random_scenario_has_faults_that_outlast_a_reset_and_long_stalls():
    faults = [f for seed in range(5) for f in random_scenario(400.0, seed)['faults']]
    for kind in ('freeze', 'second_states', 'second_commands', 'clock_stick', 'velocity_scale'):
        lengths = [fault['for_s'] for fault in faults if fault['kind'] == kind]
        assert min(lengths) > RESET_AFTER_S
    stalls = [fault['for_s'] for fault in faults if fault['kind'] == 'sigstop_controller']
    assert 0.3 <= min(stalls) < 1.0 < max(stalls) <= 3.0
    for fault in faults:
        if fault['kind'] in AMOUNTS:
            low, high = AMOUNTS[fault['kind']]
            assert low <= fault['amount'] <= high
    assert max(fault['at_s'] + fault['for_s'] for fault in faults) < 400.0


def test_a_scenario_may_let_the_controller_follow_trajectories():
    chosen = ScenarioSetup(reference='trajectory', seed=3).applied_to(Setup())
    assert chosen == Setup(reference='trajectory', seed=3)


def test_a_fault_without_length_stays():
    assert ScriptedFault(kind='kill_plant', at_s=1.0).end_s == float('inf')


@pytest.mark.parametrize(
    ('arguments', 'says'),
    [
        (['no_such_scenario'], 'silence'),
        ([], 'neither'),
        (['--all', 'silence'], 'both'),
        (['--random', 'silence'], 'leave the others out'),
    ],
)
def test_wrong_use_ends_with_code_2_and_says_what_there_is(arguments, says, capsys):
    assert main(['hil', *arguments]) == 2
    assert says in capsys.readouterr().err


def test_a_scenario_with_a_mistake_ends_with_code_2_before_anything_runs(tmp_path, capsys):
    path = write(tmp_path, expcet=[])
    assert main(['hil', str(path), '--out', str(tmp_path / 'out')]) == 2
    assert "did you mean 'expect'" in capsys.readouterr().err
    assert not (tmp_path / 'out').exists()


def test_the_page_of_faults_is_that_of_what_is_kept():
    assert fault_page.page() == (ROOT / 'docs' / 'faults.md').read_text()


def test_every_scenario_has_a_mutant_and_each_was_noticed():
    rows = kept('hil_mutants')['mutants']
    assert [row['scenario'] for row in rows] == [path.stem for path in shipped_scenarios()]
    assert all(row['is_noticed'] for row in rows)


def kept(name):
    return json.loads((ROOT / 'results' / f'{name}.json').read_text())


def test_no_kept_fault_led_the_guarded_arm_to_what_is_not_allowed():
    after = kept('faults_after')['scenarios']
    assert [row['scenario'] for row in after] == list(GUARDED)
    for row in after:
        assert row['failed_demands'] == []
        assert row['is_undisturbed']


@pytest.mark.parametrize('seed', fault_page.SEEDS)
def test_kept_random_faults_broke_no_promise(seed):
    found = kept(f'nemesis_{seed}')
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
