# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""Scenarios as they are run: robot, controller and recorder as processes over Fast DDS.

Cores of a test machine are busy: timeouts are ten times the usual ones, and so are the bounds.
"""

import json
import signal
import sys
from xml.etree import ElementTree

import numpy as np
import pytest
import yaml

from metactl_ros.config import build
from metactl_ros.control.modes import Mode
from metactl_ros.hil import run as hil_run
from metactl_ros.hil.judge import guarantee_of, judge, Verdict
from metactl_ros.hil.run import HilError, run_judged, run_scenario, timed_actions
from metactl_ros.hil.scenario import load_scenario, Scenario
from metactl_ros.processes import commands, Setup
from metactl_ros.settings import faults_file

pytest.importorskip('rclpy', reason="needs ROS: pip install 'metactl_ros[ros]'")
from support.ros_peer import wait_until
from support.verbs import assert_ends_all, DOMAIN, start_verb

from metactl_ros.ros.monitor import ModeMonitor

pytestmark = pytest.mark.ros
PATIENT_S = 0.25


def test_what_happens_to_processes_is_done_in_order_and_undone():
    faults = [
        {'kind': 'kill_plant', 'at_s': 3.0, 'for_s': 1.0},
        {'kind': 'silence', 'at_s': 1.0, 'for_s': 0.3},
        {'kind': 'cpu_load', 'at_s': 1.0, 'for_s': 2.5},
    ]
    about = {'title': 't', 'protection': 'p', 'duration_s': 6.0, 'faults': faults}
    actions = timed_actions(build(Scenario, about, 'test'))
    assert [(action.at_s, action.is_begin, action.fault.kind) for action in actions] == [
        (1.0, True, 'cpu_load'),
        (3.0, True, 'kill_plant'),
        (3.5, False, 'cpu_load'),
        (4.0, False, 'kill_plant'),
    ]


@pytest.mark.parametrize(('is_always', 'runs'), [(False, 3), (True, 1)])
def test_an_expectation_gets_another_chance_after_a_stall_but_safety_does_not(
    monkeypatch, tmp_path, is_always, runs
):
    asked = []

    def fail(file, scenario, folder, commands_of):
        asked.append(folder)
        return None, (Verdict('d', has_passed=False, found='f', is_always=is_always),)

    monkeypatch.setattr(hil_run, 'run_once', fail)
    monkeypatch.setattr(hil_run, 'longest_stall_s', lambda log: 0.08)
    file = faults_file('silence')
    outcome = run_judged(file, load_scenario(file), tmp_path)
    assert len(asked) == runs
    assert not outcome.has_passed


@pytest.fixture
def patient(tmp_path, monkeypatch):
    """Return a set-up whose processes wait ten times as long before they despair."""
    monkeypatch.setenv('ROS_DOMAIN_ID', str(DOMAIN))
    file = tmp_path / 'patient.yaml'
    values = {
        'controller': {'ros__parameters': {'state_timeout_s': PATIENT_S}},
        'plant': {'ros__parameters': {'command_timeout_s': PATIENT_S}},
    }
    file.write_text(yaml.safe_dump(values))
    return Setup(log_level='error', params_file=file)


def write(folder, duration_s, faults, expect=()):
    file = folder / 'one.yaml'
    about = {'title': 't', 'protection': 'p', 'setup': {'plant': 'rk4'}}
    about |= {'duration_s': duration_s, 'faults': faults, 'expect': list(expect)}
    file.write_text(yaml.safe_dump(about))
    return file


def run(file, folder, setup, settings):
    """Run a scenario; return its log and the demands that were missed."""
    scenario = load_scenario(file)
    log = run_scenario(file, scenario, folder, setup)
    guarantee = guarantee_of(settings)._replace(state_timeout_s=PATIENT_S, slack_s=0.5)
    missed = [v for v in judge(scenario, log, guarantee) if not v.has_passed]
    return log, missed


def test_a_robot_that_falls_silent_is_noticed_and_taken_back(tmp_path, patient, settings):
    file = write(
        tmp_path,
        6.0,
        [{'kind': 'silence', 'at_s': 1.5, 'for_s': 0.5}],
        [
            {'mode': 'BLIND', 'after_s': 1.5, 'within_s': 1.0},
            {'mode': 'NOMINAL', 'after_s': 2.0, 'within_s': 3.5},
        ],
    )
    log, missed = run(file, tmp_path / 'run', patient, settings)
    assert not missed
    (span,) = log.spans
    assert span.end_s - span.begin_s == pytest.approx(0.5, abs=0.4)


def test_a_killed_controller_is_noticed_and_replaced(tmp_path, patient, settings):
    file = write(
        tmp_path,
        8.0,
        [{'kind': 'kill_controller', 'at_s': 1.5, 'for_s': 0.2}],
        [
            {'braking': True, 'after_s': 1.5, 'within_s': 1.0},
            {'mode': 'NOMINAL', 'after_s': 1.7, 'within_s': 6.0},
        ],
    )
    log, missed = run(file, tmp_path / 'run', patient, settings)
    assert not missed
    assert len(log.used_states) == 2
    assert len(log.restarts_ns) == 1


def test_a_fault_is_reset_if_the_scenario_says_so(tmp_path, patient, settings):
    silences = [{'kind': 'silence', 'at_s': 1.0 + i, 'for_s': 0.5} for i in (0.0, 0.7, 1.4)]
    file = write(tmp_path, 7.0, silences)
    about = yaml.safe_load(file.read_text()) | {'reset_fault_after_s': 0.5}
    file.write_text(yaml.safe_dump(about))
    code = (
        'from dataclasses import replace\n'
        'from metactl_ros.control import modes\n'
        'honest = modes.next_mode\n'
        'modes.next_mode = lambda settings, *rest: honest('
        'replace(settings, fault_after_blind_s=0.05), *rest)\n'
        'from metactl_ros.ros.controller_node import main\n'
        'raise SystemExit(main())'
    )

    def easily_faulting(setup):
        lines = commands(setup)
        executable, _, _, *arguments = lines['controller_node']
        return lines | {'controller_node': [executable, '-c', code, *arguments]}

    log = run_scenario(file, load_scenario(file), tmp_path / 'run', patient, easily_faulting)
    assert log.num_resets
    first_fault = log.mode.tolist().index(Mode.FAULT)
    assert Mode.NOMINAL in log.mode[first_fault:]


def test_processes_that_cannot_start_are_an_error_that_names_their_log(tmp_path, patient):
    def broken(setup):
        return {'controller_node': [sys.executable, '-c', 'raise SystemExit(3)']}

    file = write(tmp_path, 2.0, [])
    with pytest.raises(HilError, match='controller_node: ended before the first tick'):
        run_scenario(file, load_scenario(file), tmp_path / 'run', patient, broken)
    outcome = run_judged(file, load_scenario(file), tmp_path / 'run', broken)
    assert [verdict.demand for verdict in outcome.verdicts] == ['it can be run']
    assert not outcome.has_passed


def test_commands_of_another_node_are_told_apart_from_the_controllers(tmp_path, patient, settings):
    file = write(
        tmp_path, 4.0, [{'kind': 'second_commands', 'at_s': 1.5, 'for_s': 1.0, 'amount': 0.1}]
    )
    log = run_scenario(file, load_scenario(file), tmp_path / 'run', patient)
    (span,) = log.spans
    assert len(log.foreign_s) > 20
    assert span.begin_s < log.foreign_s.min() <= log.foreign_s.max() < span.end_s + 0.5
    assert log.command_problems == ()
    assert log.lost_processes == ()
    assert len(log.commands.stamp_ns) == pytest.approx(len(log.tick_s), abs=30)
    assert not (log.commands.effort_nm == 0.1 * np.array(settings.arm.limits.effort_nm)).any()


def test_a_second_controller_is_another_node_and_is_ended(tmp_path, patient):
    file = write(tmp_path, 6.0, [{'kind': 'second_controller', 'at_s': 0.5, 'for_s': 4.0}])
    log = run_scenario(file, load_scenario(file), tmp_path / 'run', patient)
    assert (tmp_path / 'run' / 'second_controller.log').is_file()
    assert log.lost_processes == ()
    assert log.command_problems == ()
    assert len(log.used_states) == 1  # the topics of the second one have other names


UNTOLD_TIME = """
from itertools import count
from metactl_ros.ros.controller_node import LoopNode
from metactl_ros.ros.controller_node import main
honest, calls = LoopNode._wall_ns, count()
def now_ns(self):
    if next(calls) < 150:
        return honest(self)
    raise OverflowError('the wall clock is past 2038')
LoopNode._wall_ns = now_ns
raise SystemExit(main())
"""


def test_a_wall_clock_that_fits_no_stamp_ends_with_a_command_of_zero(tmp_path, patient):
    def late(setup):
        lines = commands(setup)
        executable, _, _, *arguments = lines['controller_node']
        return lines | {'controller_node': [executable, '-c', UNTOLD_TIME, *arguments]}

    file = write(tmp_path, 4.0, [])
    log = run_scenario(file, load_scenario(file), tmp_path / 'run', patient, late)
    assert log.commands.effort_nm[-1].tolist() == [0.0, 0.0]


def test_the_command_leaves_verdicts_a_picture_and_a_bag(tmp_path):
    file, out = write(tmp_path, 2.0, [{'kind': 'drop', 'at_s': 1.0}]), tmp_path / 'out'
    with start_verb('hil', file, '--out', out) as process:
        output, _ = process.communicate(timeout=120)
    assert process.returncode in (0, 1), output  # on a busy machine it may miss what is promised
    (result,) = json.loads((out / 'results.json').read_text())['scenarios']
    assert process.returncode == (0 if result['has_passed'] else 1)
    (suite,) = ElementTree.parse(out / 'junit.xml').getroot()
    assert len(suite) == len(result['verdicts']) >= 5
    assert (out / 'one' / 'timeline.png').is_file()
    assert (out / 'one' / 'bag' / 'metadata.yaml').is_file()


def test_ctrl_c_while_the_monitor_spins_waits_until_it_has_spun(patient):
    seen = []

    def interrupt():
        signal.raise_signal(signal.SIGINT)  # in the midst of rclpy
        seen.append('all')

    monitor = ModeMonitor()
    monitor._node.create_timer(0.01, interrupt)
    usual = signal.signal(signal.SIGINT, signal.default_int_handler)  # the suite may have another
    try:
        with pytest.raises(KeyboardInterrupt):
            wait_until(lambda: monitor.spin_once(0.1) or seen)
    finally:
        signal.signal(signal.SIGINT, usual)
    monitor.close()
    assert seen == ['all']


@pytest.mark.parametrize('number', [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_ends_every_process(tmp_path, number):
    file, out = write(tmp_path, 60.0, [{'kind': 'cpu_load', 'at_s': 0.1}]), tmp_path / 'out'
    with start_verb('hil', file, '--out', out) as process:
        assert_ends_all(process, number, num_children=4, exit_code=130)
