# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""What faults did to the arm, in figures; on runs made up for it."""

from dataclasses import replace
import json

import numpy as np
import pytest
from support.made_runs import changed, good_run, in_mode, TIMES_S, with_error

from metactl_ros.control.modes import Cause, Mode
from metactl_ros.errors import ConfigError
from metactl_ros.hil import fault_table
from metactl_ros.hil.fault_table import comparison, GUARDED, main, measure
from metactl_ros.hil.judge import Verdict
from metactl_ros.hil.scenario import shipped_scenarios

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

    def run_once(file, scenario, folder):
        failed = Verdict('never FAULT', has_passed=False, found='FAULT')
        return left.pop(0), (failed, Verdict('else', has_passed=True, found='fine'))

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


def test_every_scenario_about_the_arm_itself_is_measured():
    names = {path.stem for path in shipped_scenarios()}
    assert set(GUARDED) <= names
