# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""What faults did to the arm, in figures; on runs made up for it."""

from dataclasses import replace
import json

import numpy as np
import pytest
from test_hil_judge import changed, good_run, in_mode, TIMES_S, with_error

from metactl_ros.control.modes import Cause, Mode
from metactl_ros.errors import ConfigError
from metactl_ros.hil import fault_table
from metactl_ros.hil.always import Verdict
from metactl_ros.hil.fault_table import comparison, main, measure
from metactl_ros.hil.nemesis import (
    APART_S,
    following_error,
    FOLLOWING_ERROR_RAD,
    INTRUDERS,
    left_too_early,
    random_faults,
)
from metactl_ros.hil.run_log import Span
from metactl_ros.hil.scripted_fault import ScriptedFault

FAULT_S = 2.02  # of good_run


def test_figures_begin_with_the_fault():
    log = in_mode(Mode.BLIND, 1.0, 1.5)  # before it
    log = replace(log, true_qd_radps=changed(log.true_qd_radps, 1.0, 1.5, 99.0))
    log = replace(log, error_rad=changed(log.error_rad, 1.0, 1.5, 99.0))
    found = measure(log)
    assert found == {
        'left_nominal_s': None,
        'largest_speed_radps': [0.5, 0.5],
        'largest_error_rad': 0.01,
        'largest_effort_nm': [10.0, 5.0],
        'largest_gap_s': pytest.approx(0.01),
        'modes': ['NOMINAL'],
        'causes': ['NONE'],
        'final_mode': 'NOMINAL',
    }


def test_they_tell_when_nominal_was_left_and_how_fast_the_arm_became():
    log = in_mode(Mode.BLIND, 2.5, 3.0)
    log = replace(log, mode=changed(log.mode, 3.0, 9.0, Mode.FAULT))
    log = replace(log, true_qd_radps=changed(log.true_qd_radps, 3.0, 3.1, [-7.0, 3.0]))
    log = replace(log, cause=changed(log.cause, 3.0, 9.0, Cause.OVERSPEED))
    found = measure(log)
    assert found['left_nominal_s'] == pytest.approx(2.5 - FAULT_S)
    assert found['largest_speed_radps'] == [7.0, 3.0]
    assert found['modes'] == ['NOMINAL', 'BLIND', 'FAULT']
    assert found['causes'] == ['NONE', 'OVERSPEED']
    assert found['final_mode'] == 'FAULT'


def test_a_pause_counts_that_began_with_the_fault():
    log = good_run()
    kept = (TIMES_S < FAULT_S) | (TIMES_S > 2.5)
    paused = replace(log, commands=type(log.commands)(*(row[kept] for row in log.commands)))
    assert measure(paused)['largest_gap_s'] == pytest.approx(0.5, abs=0.02)


def test_an_error_counts_while_the_controller_means_to_follow():
    log = with_error(3.0, 4.0, 2.0)
    assert measure(log)['largest_error_rad'] == 2.0
    stopped = replace(log, mode=changed(log.mode, 3.0, 4.0, Mode.STOP))
    assert measure(stopped)['largest_error_rad'] == 0.01
    unknown = replace(log, error_rad=np.full(len(TIMES_S), np.nan))
    assert measure(unknown)['largest_error_rad'] is None


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
        ('freeze', 3.5, True),  # nobody can tell while the arm rests
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


ROW = {'scenario': 'a', 'title': 'A title'} | measure(good_run())


def test_two_files_become_one_table_in_which_a_dash_is_not_measured():
    after = ROW | {'left_nominal_s': 0.123, 'largest_speed_radps': [1.26, 3.0]}
    *_, first, second = comparison([ROW, ROW | {'scenario': 'b'}], [after])
    assert first.startswith('| A title | never | 0.12 | 0.5, 0.5 | 1.3, 3.0 | 0.01 | 0.01 | 10, 5')
    assert second.split(' | ')[1:4] == ['never', '-', '0.5, 0.5']
    unknown = comparison([ROW | {'largest_error_rad': None}], [])[-1]
    assert unknown.split(' | ')[5:7] == ['-', '-']


def runs_of(monkeypatch, logs):
    """Let runs of scenarios have these outcomes, one after the other."""
    left = list(logs)

    def run_once(file, folder):
        return left.pop(0), (Verdict('never FAULT', False, 'FAULT'), Verdict('else', True, 'fine'))

    monkeypatch.setattr(fault_table, 'run_once', run_once)
    return left


def test_a_run_that_says_nothing_of_its_fault_is_not_kept(monkeypatch, tmp_path):
    paused = replace(good_run(), step_s=np.delete(TIMES_S, slice(100, 107)))
    paused = replace(
        paused,
        **{
            n: np.delete(getattr(paused, n), slice(100, 107), axis=0)
            for n in ('true_q_rad', 'true_qd_radps')
        },
    )
    lost = with_error(1.0, 1.5, 2.0)
    stopped = in_mode(Mode.STOP, 1.0, 3.0)
    kept = in_mode(Mode.BLIND, 3.0, 9.0)
    left = runs_of(monkeypatch, [paused, lost, stopped, kept, good_run()])
    row = fault_table.run('silence', tmp_path)
    assert len(left) == 1
    assert row['modes'] == ['NOMINAL', 'BLIND']
    assert row['is_undisturbed']
    assert row['longest_stall_s_by_attempt'] == [pytest.approx(0.08), 0.0, 0.0, 0.0]
    assert row['failed_demands'] == ['never FAULT: found FAULT']


def test_a_fault_from_the_beginning_came_upon_no_mode_at_all():
    span = good_run().spans[0]._replace(begin_s=-0.1)
    log = replace(in_mode(Mode.WARMUP, 0.0, 0.5), spans=(span,))
    assert fault_table.was_nominal(log)
    assert not fault_table.was_nominal(replace(log, spans=(span._replace(begin_s=0.3),)))


def test_a_machine_that_always_stalls_is_told_of(monkeypatch, tmp_path):
    runs_of(monkeypatch, [with_error(1.0, 1.5, 2.0)] * fault_table.ATTEMPTS)
    assert not fault_table.run('silence', tmp_path)['is_undisturbed']


def test_the_command_keeps_what_a_file_says_of_other_scenarios(monkeypatch, tmp_path, capsys):
    out = tmp_path / 'table.json'
    for name in ('latency', 'frozen_for_good'):
        runs_of(monkeypatch, [good_run()])
        assert main([name, '--out', str(out), '--runs', str(tmp_path)]) == 0
    rows = json.loads(out.read_text())['scenarios']
    assert [row['scenario'] for row in rows] == ['frozen_for_good', 'latency']
    assert 'frozen_for_good' in capsys.readouterr().out


def test_an_unknown_scenario_is_refused(tmp_path, capsys):
    assert main(['no_such', '--out', str(tmp_path / 'table.json')]) == 2
    assert "found 'no_such'" in capsys.readouterr().err
    with pytest.raises(ConfigError, match='no_such'):
        fault_table.run('no_such', tmp_path)


@pytest.mark.parametrize('seed', range(5))
def test_no_controller_is_killed_while_somebody_else_commands_or_is_about_to(seed):
    faults = list(random_faults(600.0, seed))
    spans = {
        kind: [(f['at_s'], f['at_s'] + f['for_s']) for f in faults if f['kind'] == kind]
        for kind in ('kill_controller', *INTRUDERS)
    }
    assert all(spans.values())
    for kill in spans.pop('kill_controller'):
        for begin_s, end_s in (span for other in spans.values() for span in other):
            assert end_s + APART_S < kill[0] or kill[1] + APART_S < begin_s
