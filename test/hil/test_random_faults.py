# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""Random faults: the timeline follows from a seed, and what must hold all the same."""

from dataclasses import replace
from itertools import pairwise

import pytest
from support.made_runs import changed, good_run, in_mode, with_error
import yaml

from metactl_ros.control.modes import Mode
from metactl_ros.hil.random_faults import (
    AMOUNTS,
    APART_S,
    draw_faults,
    following_error,
    FOLLOWING_ERROR_RAD,
    INTRUDERS,
    left_too_early,
    NEEDS_TRAJECTORIES,
    random_scenario,
    RESET_AFTER_S,
)
from metactl_ros.hil.run_log import Span
from metactl_ros.hil.scenario import load_scenario, PROCESS_KINDS, ScriptedFault
from metactl_ros.sim.faults import KINDS


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


def test_a_random_scenario_of_another_arm_strikes_all_of_its_joints(tmp_path):
    pytest.importorskip('pinocchio', reason="needs Pinocchio: pip install 'metactl_ros[urdf]'")
    path = tmp_path / 'random.yaml'
    path.write_text(yaml.safe_dump(random_scenario(1000.0, 7, 'fr3')))
    scenario = load_scenario(path)
    assert scenario.setup.arm_file == 'fr3'
    assert {fault.joint for fault in scenario.faults} == {None, *range(7)}
    assert scenario == load_scenario(path, 'fr3')


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


@pytest.mark.parametrize('seed', range(5))
def test_no_controller_is_killed_while_another_node_commands_or_is_about_to(seed):
    faults = list(draw_faults(600.0, seed, 2))
    spans = {
        kind: [(f['at_s'], f['at_s'] + f['for_s']) for f in faults if f['kind'] == kind]
        for kind in ('kill_controller', *INTRUDERS)
    }
    assert all(spans.values())
    for kill in spans.pop('kill_controller'):
        for begin_s, end_s in (span for other in spans.values() for span in other):
            assert end_s + APART_S < kill[0] or kill[1] + APART_S < begin_s


@pytest.mark.parametrize(
    ('log', 'passes', 'says'),
    [
        (good_run(), True, '0.010 rad'),
        (
            with_error(3.0, 3.02, FOLLOWING_ERROR_RAD + 0.1),
            False,
            '2 of 500 ticks, first at 3.000',
        ),
        (in_mode(Mode.STOP, 0.0, 9.0), False, 'it never did'),
    ],
)
def test_random_faults_may_not_lose_an_arm_that_is_said_to_follow(log, passes, says):
    verdict = following_error(log)
    assert (verdict.has_passed, verdict.is_always) == (passes, True)
    assert says in verdict.found


def test_an_arm_that_is_not_said_to_follow_may_be_anywhere():
    log = with_error(3.0, 4.0, 9.0)
    assert following_error(replace(log, mode=changed(log.mode, 3.0, 4.0, Mode.FAULT))).has_passed


@pytest.mark.parametrize(
    ('kind', 'left_s', 'passes'),
    [
        ('second_states', 3.5, False),
        ('second_states', 2.5, True),  # it may not be noticed yet
        ('second_states', 4.9, True),  # it is as good as over
        ('freeze', 3.5, True),  # nothing shows it while the arm rests
    ],
)
def test_a_fault_is_not_left_while_its_cause_can_be_told(kind, left_s, passes):
    span = Span(ScriptedFault(kind=kind, at_s=2.0, for_s=3.0), 2.0, 5.0)
    log = replace(in_mode(Mode.FAULT, 2.2, left_s), spans=(span,))
    verdict = left_too_early(log)
    assert (verdict.has_passed, verdict.is_always) == (passes, True)
    assert ('none of 1 was' if passes else f'in spite of {kind}') in verdict.found


@pytest.mark.parametrize(('rate', 'passes'), [(0.935, True), (1.09, True), (0.89, False)])
def test_a_clock_that_is_hardly_wrong_need_not_be_noticed(rate, passes):
    fault = ScriptedFault(kind='clock_rate', at_s=2.0, for_s=3.0, amount=rate)
    log = replace(in_mode(Mode.FAULT, 2.2, 3.5), spans=(Span(fault, 2.0, 5.0),))
    assert left_too_early(log).has_passed == passes


def test_a_controller_that_is_started_anew_leaves_no_fault():
    span = Span(ScriptedFault(kind='clock_stick', at_s=2.0, for_s=3.0), 2.0, 5.0)
    log = replace(in_mode(Mode.FAULT, 2.2, 3.5), spans=(span,))
    assert not left_too_early(log).has_passed
    first_ns = log.zero_ns + 3_502_000_000  # its first command, a moment after its first tick
    assert left_too_early(replace(log, restarts_ns=(first_ns,))).has_passed
    assert not left_too_early(replace(log, restarts_ns=(first_ns - 10**9,))).has_passed
