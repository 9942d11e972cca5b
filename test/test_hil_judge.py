# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""The judge on runs made up for it: each demand can be met, and can be missed."""

from dataclasses import replace
from types import SimpleNamespace
from xml.etree import ElementTree

import numpy as np
import pytest

from metactl_ros.control.modes import Mode
from metactl_ros.errors import ConfigError
from metactl_ros.evaluation.invariants import Commands, States
from metactl_ros.hil import command, timeline_plot
from metactl_ros.hil.always import EARLY_ERROR_RAD, Verdict
from metactl_ros.hil.believable import believable, gaps_ns, Said
from metactl_ros.hil.command import promise_of
from metactl_ros.hil.judge import HOLDING_RADPS, judge, longest_stall_s
from metactl_ros.hil.read_run import lost_processes
from metactl_ros.hil.report import in_lines, Outcome, write_junit
from metactl_ros.hil.run_log import Life, RunLog, Span
from metactl_ros.hil.scenario import Expectation, Margins, Scenario
from metactl_ros.hil.scripted_fault import ScriptedFault
from metactl_ros.hil.timeline_plot import plot_timeline

ZERO_NS = 1_800_000_000_000_000_000
TIMES_S = np.arange(0.0, 5.0, 0.01)
TIMES_NS = ZERO_NS + np.round(1e9 * TIMES_S).astype(np.int64)
SILENCE = ScriptedFault(kind='silence', at_s=2.0, for_s=0.3)


def good_run():
    """Return five seconds in which nothing happened, under a fault that came 20 ms late."""
    effort = np.tile([10.0, 5.0], (len(TIMES_S), 1))
    return RunLog(
        zero_ns=ZERO_NS,
        end_s=5.0,
        tick_s=TIMES_S,
        mode=np.zeros(len(TIMES_S), dtype=np.int64),
        cause=np.zeros(len(TIMES_S), dtype=np.int64),
        error_rad=np.full(len(TIMES_S), 0.01),
        excess=np.full(len(TIMES_S), -0.1),
        lives=(Life(TIMES_S, TIMES_NS - ZERO_NS),),
        commands=Commands(TIMES_NS, TIMES_NS, effort),
        states=States(TIMES_NS, np.zeros_like(effort), effort),
        restarts_ns=(),
        command_problems=(),
        foreign_s=np.zeros(0),
        braking_s=np.array([-1.0, 0.0]),
        is_braking=np.array([True, False]),
        step_s=TIMES_S,
        true_q_rad=np.zeros_like(effort),
        true_qd_radps=np.tile([0.5, -0.5], (len(TIMES_S), 1)),
        spans=(Span(SILENCE, 2.02, 2.32),),
        gone=(),
        num_resets=0,
    )


def changed(array, begin_s, end_s, value):
    """Return a copy of an array that has another value for a while."""
    copy = np.array(array)
    copy[(begin_s <= TIMES_S) & (end_s > TIMES_S)] = value
    return copy


def in_mode(mode, begin_s, end_s):
    log = good_run()
    return replace(log, mode=changed(log.mode, begin_s, end_s, mode))


def with_effort(begin_s, end_s, value):
    log = good_run()
    effort = changed(log.commands.effort_nm, begin_s, end_s, value)
    return replace(log, commands=log.commands._replace(effort_nm=effort))


def with_error(begin_s, end_s, value):
    log = good_run()
    return replace(log, error_rad=changed(log.error_rad, begin_s, end_s, value))


def with_few_commands():
    log = good_run()
    return replace(log, commands=Commands(*(column[::2] for column in log.commands)))


def with_a_step_back():
    log = good_run()
    stamps = changed(log.lives[0].stamp_ns, 1.0, 1.01, 0)
    return replace(log, lives=(Life(TIMES_S, stamps),))


def with_excess(mode):
    log = in_mode(mode, 1.0, 2.0)
    return replace(log, excess=changed(log.excess, 1.0, 2.0, 0.3))


def braking(at_s):
    return replace(good_run(), braking_s=np.array([0.0, at_s]), is_braking=np.array([False, True]))


def at_speed(begin_s, end_s, value):
    log = good_run()
    return replace(log, true_qd_radps=changed(log.true_qd_radps, begin_s, end_s, value))


def at_position(begin_s, end_s, value):
    log = good_run()
    return replace(log, true_q_rad=changed(log.true_q_rad, begin_s, end_s, value))


def with_foreign(*times_s):
    return replace(good_run(), foreign_s=np.array(times_s))


def with_a_pause(begin_s, end_s):
    log = good_run()
    kept = (begin_s >= TIMES_S) | (end_s <= TIMES_S)
    return replace(log, commands=Commands(*(column[kept] for column in log.commands)))


def let_go(at_s):
    """Return a run in which the torque is zero from a time on, and the arm falls."""
    log = with_effort(at_s, 9.0, 0.0)
    return replace(log, true_qd_radps=changed(log.true_qd_radps, 0.0, 9.0, 3.0))


def verdicts(log, settings, *wishes, margins=Margins()):  # noqa: B008
    scenario = Scenario(title='t', duration_s=5.0, protection='p', expect=wishes, margins=margins)
    return judge(scenario, log, promise_of(settings))


REACH = {'after_s': 2.0, 'within_s': 0.1}


@pytest.mark.parametrize(
    ('wish', 'good', 'bad'),
    [
        ({'mode': 'BLIND'} | REACH, in_mode(Mode.BLIND, 2.1, 3.0), in_mode(Mode.BLIND, 2.2, 3)),
        ({'mode': 'BLIND'} | REACH, in_mode(Mode.BLIND, 1.0, 3.0), in_mode(Mode.BLIND, 1, 2)),
        ({'braking': True} | REACH, braking(2.1), braking(2.2)),
        ({'braking': True} | REACH, braking(1.0), good_run()),
        ({'never': 'FAULT'}, in_mode(Mode.STOP, 1, 2), in_mode(Mode.FAULT, 1.0, 1.01)),
        ({'never': 'STOP', 'from_s': 2.5}, in_mode(Mode.STOP, 1, 2), in_mode(Mode.STOP, 2, 3)),
        ({'error_below_rad': 0.1, 'to_s': 3.0}, with_error(4, 5, 1.0), with_error(1, 1.01, 0.2)),
        ({'error_below_rad': 0.1}, with_error(1, 4, np.nan), with_error(0, 5, np.nan)),
        ({'effort_below_nm': (10, 5)}, good_run(), with_effort(1, 1.01, [10.1, 5.0])),
        ({'effort_below_nm': (9, 5), 'from_s': 3}, with_effort(2.9, 5, 0.0), good_run()),
        ({'rate_above_hz': 90}, good_run(), with_few_commands()),
        ({'in_order': True}, good_run(), with_a_step_back()),
        ({'certified': True}, with_excess(Mode.WARMUP), with_excess(Mode.NOMINAL)),
        ({'certified': True}, good_run(), in_mode(Mode.STOP, 0, 5)),
        (
            {'mode_in': ('STOP', 'FAULT')} | REACH,
            in_mode(Mode.FAULT, 2.1, 3.0),
            in_mode(Mode.BLIND, 2.1, 3.0),
        ),
        ({'leaves_nominal': True} | REACH, in_mode(Mode.WARMUP, 2.1, 2.11), good_run()),
        ({'leaves_nominal': True} | REACH, in_mode(Mode.BLIND, 1, 3), in_mode(Mode.BLIND, 2.2, 3)),
        (
            {'only': ('NOMINAL', 'STOP'), 'from_s': 2.0},
            in_mode(Mode.STOP, 1, 9),
            in_mode(Mode.BLIND, 4.9, 9),
        ),
        (
            {'only': ('NOMINAL',), 'to_s': 3.0},
            in_mode(Mode.BLIND, 3.1, 9),
            in_mode(Mode.BLIND, 1, 2),
        ),
        ({'speed_below_radps': (0.6, 0.6)}, good_run(), at_speed(4.9, 5, [0.0, -0.7])),
        ({'speed_below_radps': (0.6,), 'from_s': 3}, at_speed(0, 2.9, 9.0), at_speed(3.1, 5, 9.0)),
        (
            {'speed_below_radps': (0.6,), 'from_s': 1},
            at_speed(0, 0.9, 9.0),
            at_speed(1, 1.01, 0.6),
        ),
        ({'gap_below_s': 0.05}, with_a_pause(1, 1.04), with_a_pause(1, 1.06)),
        ({'gap_below_s': 0.05, 'from_s': 2}, with_a_pause(1, 1.5), with_a_pause(2.5, 9)),
        ({'alone': True, 'from_s': 2.0}, with_foreign(1.0), with_foreign(1.0, 3.0)),
        ({'zero_or_holding': True} | REACH, let_go(2.0), let_go(2.2)),
        ({'zero_or_holding': True} | REACH, at_speed(0, 9, HOLDING_RADPS), good_run()),
        ({'zero_or_holding': True} | REACH, braking(1.0), braking(2.3)),
    ],
)
def test_an_expectation_can_be_met_and_missed(settings, wish, good, bad):
    assert verdicts(good, settings, Expectation(**wish))[0].has_passed
    assert not verdicts(bad, settings, Expectation(**wish))[0].has_passed


def test_times_of_a_fault_are_those_at_which_it_really_came():
    log = good_run()
    assert (log.when(2.0), log.when(2.3), log.when(2.1)) == (2.02, 2.32, 2.1)


def blind_but_driven():
    log = good_run()
    is_early = TIMES_S < 2.0
    return replace(log, states=States(*(column[is_early] for column in log.states)))


@pytest.mark.parametrize(
    ('bad', 'demand'),
    [
        (with_effort(1, 1.01, np.nan), 'finite'),
        (with_effort(1, 1.01, [151.0, 5.0]), 'limits'),
        (with_effort(1, 1.01, [60.0, 5.0]), 'rate'),
        (blind_but_driven(), 'no state'),
        (replace(good_run(), gone=('controller_node',)), 'is lost'),
        (replace(good_run(), command_problems=('3 differ',)), 'both topics'),
        (at_speed(0.0, 0.01, [10.1, 0.0]), 'faster'),
        (at_speed(4.9, 4.91, [0.0, -10.1]), 'faster'),
        (at_position(0.5, 0.51, [-3.21, 0.0]), 'further out'),
        (at_position(4.5, 4.51, [0.0, 2.91]), 'further out'),
        (with_error(0.5, 0.51, EARLY_ERROR_RAD), 'until the first fault'),
    ],
)
def test_what_is_demanded_of_every_run_can_be_missed(settings, bad, demand):
    assert all(verdict.has_passed for verdict in verdicts(good_run(), settings))
    missed = [verdict.demand for verdict in verdicts(bad, settings) if not verdict.has_passed]
    assert any(demand in text for text in missed)


def test_the_arm_itself_is_judged_from_the_first_driven_step_to_the_end(settings):
    log = at_speed(4.0, 9.0, 99.0)
    assert not missed_of(log, settings) - {'faster'}
    late = replace(log, end_s=3.9)
    early = replace(late, step_s=TIMES_S - 0.01)  # the step before the first driven one
    assert not missed_of(late, settings)
    assert not missed_of(
        replace(early, true_qd_radps=changed(late.true_qd_radps, 0, 0.01, 99.0)), settings
    )


def missed_of(log, settings, **options):
    """Return which of the usual demands on the arm were missed, in a word."""
    words = ('faster', 'further out', 'until the first fault')
    demands = [v.demand for v in verdicts(log, settings, **options) if not v.has_passed]
    return {word for word in words for demand in demands if word in demand}


def test_the_error_after_the_first_fault_is_for_the_scenario_to_bound(settings):
    assert not missed_of(with_error(2.02, 5.0, 9.0), settings)
    harmless = Span(ScriptedFault(kind='trajectory_smooth', at_s=1.0), 1.0, 2.0)
    log = replace(with_error(1.5, 1.6, 9.0), spans=(harmless, *good_run().spans))
    assert missed_of(log, settings) == {'until the first fault'}
    assert not missed_of(replace(log, spans=()), settings) - {'until the first fault'}
    assert missed_of(replace(with_error(4, 5, 9.0), spans=()), settings)


def test_a_scenario_may_grant_a_larger_margin_and_says_why(settings):
    log = at_speed(3.0, 3.1, [15.0, 0.0])
    log = replace(log, true_q_rad=changed(log.true_q_rad, 3.0, 3.1, 3.8))
    assert missed_of(log, settings) == {'faster', 'further out'}
    granted = Margins(speed=2.0, position_rad=1.3, reason='it was pushed')
    assert not missed_of(log, settings, margins=granted)


@pytest.mark.parametrize('given', [{'speed': 2.0}, {'reason': 'why not'}, {'position_rad': 9.0}])
def test_other_margins_need_a_reason_and_the_usual_ones_have_none(given):
    with pytest.raises(ConfigError, match='expected a reason with other margins'):
        Margins(**given)


def test_a_new_controller_may_begin_from_the_effort_the_robot_measured(settings):
    log = with_effort(2.0, 5.0, [60.0, 5.0])
    restart_ns = int(TIMES_NS[200])
    effort = log.commands.effort_nm
    log = replace(log, states=log.states._replace(effort_nm=effort), restarts_ns=(restart_ns,))
    assert all(verdict.has_passed for verdict in verdicts(log, settings))


def test_a_stall_is_a_pause_that_no_fault_of_a_process_explains():
    log = good_run()
    paused = replace(log, step_s=np.delete(TIMES_S, slice(100, 107)))
    assert longest_stall_s(log) == 0.0
    assert longest_stall_s(paused) == pytest.approx(0.08)
    stop = Span(ScriptedFault(kind='sigstop_plant', at_s=1.0, for_s=0.1), 1.0, 1.1)
    assert longest_stall_s(replace(paused, spans=(stop,))) == 0.0
    other = Span(ScriptedFault(kind='second_states', at_s=1.0), 1.0, np.inf)
    assert longest_stall_s(replace(paused, spans=(other,))) == pytest.approx(0.08)


def test_the_recorder_missed_what_the_numbers_of_the_messages_lack():
    def said(*pairs):
        return [Said(when, number, SimpleNamespace()) for when, number in pairs]

    assert gaps_ns(said((10, 1), (20, 2), (30, 3))) == []
    assert gaps_ns(said((10, 5), (20, 6))) == [(0, 10)]
    assert gaps_ns(said((10, 1), (40, 4))) == [(10, 40)]
    assert gaps_ns(said((10, 1), (20, 2), (90, 1))) == []
    assert gaps_ns(said((10, 1), (20, 2), (90, 7))) == [(20, 90)]
    assert gaps_ns(said((10, 7), (20, 1), (30, 8), (40, 2))) == [(0, 10)]  # two publishers


def test_a_process_is_lost_if_it_ended_before_its_time_or_with_an_error():
    codes = {'controller_node': -6, 'plant_node': 1, 'recorder': 0}
    run = {'gone': ['plant_node'], 'exit_codes': codes}
    assert lost_processes(run) == ('plant_node', 'controller_node (code -6)')


@pytest.mark.parametrize(('is_always', 'runs'), [(False, 3), (True, 1)])
def test_a_wish_gets_another_chance_after_a_stall_but_safety_does_not(
    monkeypatch, tmp_path, is_always, runs
):
    asked = []

    def fail(file, folder, commands_of):
        asked.append(folder)
        return None, (Verdict('d', False, 'f', is_always),)

    monkeypatch.setattr(command, 'run_once', fail)
    monkeypatch.setattr(command, 'longest_stall_s', lambda log: 0.08)
    outcome = command.run_judged(command.faults_file('silence'), tmp_path)
    assert len(asked) == runs
    assert not outcome.has_passed


OUTCOME = Outcome(
    'silence',
    'States < stop & "go"',
    'p',
    (Verdict('never FAULT', True, 'never'), Verdict('mode <BLIND>', False, 'never came')),
    6.5,
    (0.0,),
)


def test_junit_has_a_suite_per_scenario_and_a_case_per_expectation(tmp_path):
    write_junit(tmp_path / 'junit.xml', [OUTCOME, replace(OUTCOME, name='nan')])
    root = ElementTree.parse(tmp_path / 'junit.xml').getroot()
    assert [suite.get('name') for suite in root] == ['silence', 'nan']
    assert (root[0].get('tests'), root[0].get('failures')) == ('2', '1')
    good, bad = root[0]
    assert good.find('failure') is None
    assert bad.find('failure').get('message') == 'never came'
    assert bad.get('name') == 'mode <BLIND>'


def test_a_terminal_is_told_what_failed_and_what_was_found():
    text = in_lines(OUTCOME)
    assert 'FAILED' in text
    assert 'mode <BLIND>: found never came' in text


def test_the_timeline_is_drawn_with_each_mode_where_it_was(tmp_path, monkeypatch):
    drawn = []
    with monkeypatch.context() as patch:
        patch.setattr(timeline_plot.pyplot, 'close', drawn.append)
        plot_timeline(tmp_path / 'timeline.png', 'title', in_mode(Mode.BLIND, 2.0, 3.0))
    timeline_plot.pyplot.close(*drawn)
    assert (tmp_path / 'timeline.png').stat().st_size > 10_000
    band = drawn[0].axes[0]
    edges_s = [edge for p in band.patches for edge in (p.get_x(), p.get_x() + p.get_width())]
    assert edges_s == pytest.approx([0.0, 2.0, 2.0, 3.0, 3.0, 5.0])
    before, blind, after = (p.get_facecolor() for p in band.patches)
    assert before == after != blind
    legend = band.get_legend()
    assert [text.get_text() for text in legend.get_texts()] == ['NOMINAL', 'BLIND']
    assert [p.get_facecolor() for p in legend.get_patches()] == [before, blind]


def test_states_that_led_to_a_new_timeline_could_be_believed_by_a_gate_that_began_elsewhere():
    def state(number, stamp_ns):
        stamp = SimpleNamespace(sec=stamp_ns // 10**9, nanosec=stamp_ns % 10**9)
        message = SimpleNamespace(
            header=SimpleNamespace(stamp=stamp),
            name=['joint1', 'joint2'],
            position=np.zeros(2),
            velocity=np.zeros(2),
            effort=np.zeros(2),
        )
        return Said(number * 10_000_000, number, message)

    told = [state(k, 10**9 + k * 10_000_000) for k in range(1, 300)]
    told += [state(k, 9 * 10**9 + k * 10_000_000) for k in range(300, 330)]  # its clock was set
    topics = {'joint_states': told, 'controller/shield': [], 'controller/feedback': []}
    assert believable(topics, ()).received_ns.tolist() == [entry.published_ns for entry in told]
    stuck = [state(k, 4 * 10**9) for k in range(300, 500)]  # for two seconds, then it goes on
    after = [state(k, 9 * 10**9 + k * 10_000_000) for k in range(500, 530)]
    topics['joint_states'] = [*told[:299], *stuck, *after]
    assert believable(topics, ()).received_ns[-30:].tolist() == [e.published_ns for e in after]
    single = [*told[:299], state(300, 9 * 10**9), *[state(k, k) for k in range(301, 330)]]
    topics['joint_states'] = single
    assert len(believable(topics, ()).received_ns) == 299
