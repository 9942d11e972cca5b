# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""Scenarios as files: what is shipped, and what is refused."""

from dataclasses import replace

import hil_mutants
import numpy as np
import pytest
import yaml

from metactl_ros.baselines import CLASSICAL
from metactl_ros.cli import main
from metactl_ros.errors import ConfigError
from metactl_ros.hil.scenario import (
    load_scenario,
    Margins,
    PROCESS_KINDS,
    ScenarioSetup,
    ScriptedFault,
    shipped_scenarios,
)
from metactl_ros.processes import Setup
from metactl_ros.settings import load_arm, load_faults
from metactl_ros.sim.faults import KINDS

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


def test_on_another_arm_bounds_are_the_same_share_of_what_its_joints_can_do(tmp_path):
    pytest.importorskip('pinocchio', reason="needs Pinocchio: pip install 'metactl_ros[urdf]'")
    limits = load_arm().limits
    expect = [
        {'effort_below_nm': [0.5 * limits.effort_nm[0], 0.25 * limits.effort_nm[1]]},
        {'effort_below_nm': [0.0, 0.0]},
        {'speed_below_radps': [0.2 * speed for speed in limits.velocity_radps]},
        {'error_below_rad': 0.1},
        {'never': 'FAULT'},
    ]
    path = write(tmp_path, expect=expect, faults=[{'kind': 'jam', 'at_s': 1.0, 'joint': 1}])
    scenario, theirs = load_scenario(path, 'fr3'), load_arm('fr3').limits
    effort, none, speed, error, never = scenario.expect
    assert effort.effort_below_nm == pytest.approx(0.5 * np.array(theirs.effort_nm))
    assert none.effort_below_nm == (0.0,) * 7
    assert speed.speed_below_radps == pytest.approx(0.2 * np.array(theirs.velocity_radps))
    assert error.error_below_rad == pytest.approx(0.1 * np.sqrt(3.5))
    assert never == load_scenario(path).expect[-1]
    setup = scenario.setup.applied_to(Setup())
    assert (setup.arm_file, setup.plant, setup.payload_kg) == ('fr3', 'pinocchio', 0.5)
    assert setup.controller in ('momentum_observer', 'policy')
    assert load_scenario(path, 'two_link') == load_scenario(path)


def test_a_joint_is_one_of_the_arm_that_is_driven(tmp_path):
    pytest.importorskip('pinocchio', reason="needs Pinocchio: pip install 'metactl_ros[urdf]'")
    path = write(tmp_path, faults=[{'kind': 'jam', 'at_s': 1.0, 'joint': 6}])
    assert load_scenario(path, 'fr3').faults[0].joint == 6
    with pytest.raises(ConfigError, match='expected a joint of 0 to 5, found 6'):
        load_scenario(path, 'ur5e')
    written_for = write(
        tmp_path, setup={'arm_file': 'fr3'}, faults=[], expect=[{'never': 'FAULT'}]
    )
    assert load_scenario(written_for, 'fr3').setup == ScenarioSetup(arm_file='fr3')


@pytest.mark.parametrize('path', shipped_scenarios(), ids=lambda path: path.stem)
def test_a_shipped_scenario_fits_seven_joints(path):
    pytest.importorskip('pinocchio', reason="needs Pinocchio: pip install 'metactl_ros[urdf]'")
    scenario = load_scenario(path, 'fr3')
    assert len(scenario.expect) == len(load_scenario(path).expect)
    assert len(load_faults(path, 7)) == sum(fault.is_of_plant for fault in scenario.faults)


FAULT = SCENARIO['faults'][0]
EXPECTED = SCENARIO['expect'][0]


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
        ({'expect': [EXPECTED | {'never': 'FAULT'}]}, 'exactly one of'),
        ({'expect': [{'from_s': 2}]}, 'exactly one of'),
        ({'expect': [{'nevr': 'FAULT'}]}, "unknown key 'nevr'; did you mean 'never'?"),
        ({'expect': [None]}, 'expect[0]: expected a table'),
        ({'expect': [{'mode': 'BLND', 'after_s': 2, 'within_s': 1}]}, 'expect[0]: mode'),
        ({'expect': [{'mode': 'BLIND', 'after_s': 2}]}, "expect[0]: missing key 'within_s'"),
        ({'expect': [{'never': 'FAULT', 'after_s': 2}]}, "expect[0]: unknown key 'after_s'"),
        ({'expect': [{'in_order': False}]}, 'expected true'),
        ({'expect': [{'alone': False}]}, 'expected true'),
        ({'expect': [EXPECTED | {'mode': None, 'leaves_nominal': False}]}, 'expected true'),
        ({'expect': [{'only': ['NOMNAL']}]}, 'expect[0]: only[0]'),
        ({'expect': [{'speed_below_radps': 3.0}]}, 'expected a list'),
        ({'expect': [EXPECTED | {'after_s': -1.0}]}, 'after_s'),
    ],
)
def test_a_mistake_is_refused_with_file_and_key(tmp_path, changes, says):
    with pytest.raises(ConfigError) as caught:
        load_scenario(write(tmp_path, **changes))
    assert 'one.yaml' in str(caught.value)
    assert says in str(caught.value)


@pytest.mark.parametrize('given', [{'speed': 2.0}, {'reason': 'why not'}, {'position_rad': 9.0}])
def test_other_margins_need_a_reason_and_the_usual_ones_have_none(given):
    with pytest.raises(ConfigError, match='expected a reason with other margins'):
        Margins(**given)


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
