# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""The judge on runs made up for it: each demand can be met and missed; and what it leaves."""

from dataclasses import replace
from typing import get_args
from xml.etree import ElementTree

import numpy as np
import pytest
from support.made_runs import (
    changed,
    good_run,
    in_mode,
    TIMES_NS,
    TIMES_S,
    with_effort,
    with_error,
)

from metactl_ros.check.invariants import Commands, States
from metactl_ros.config import build
from metactl_ros.control.modes import Mode
from metactl_ros.hil.judge import (
    EARLY_ERROR_RAD,
    Expectation,
    guarantee_of,
    HOLDING_RADPS,
    judge,
    Verdict,
)
from metactl_ros.hil.run import draw_timeline, in_lines, longest_stall_s, Outcome, write_junit
from metactl_ros.hil.run_log import Span, UsedStates
from metactl_ros.hil.scenario import Margins, Scenario, ScriptedFault


def with_few_commands():
    log = good_run()
    return replace(log, commands=Commands(*(column[::2] for column in log.commands)))


def with_a_step_back():
    log = good_run()
    stamps = changed(log.used_states[0].stamp_ns, 1.0, 1.01, 0)
    return replace(log, used_states=(UsedStates(TIMES_S, stamps),))


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


def verdicts(log, settings, *expected, margins=Margins()):  # noqa: B008
    """Return the verdicts on a run, of which things are expected as in a scenario file."""
    about = {'title': 't', 'duration_s': 5.0, 'protection': 'p', 'expect': expected}
    scenario = replace(build(Scenario, about, 'test'), margins=margins)
    return judge(scenario, log, guarantee_of(settings))


OUTCOME = Outcome(
    'silence',
    'States < stop & "go"',
    'p',
    (
        Verdict('never FAULT', has_passed=True, found='never'),
        Verdict('mode <BLIND>', has_passed=False, found='never came'),
    ),
    6.5,
    (0.0,),
)
REACH = {'after_s': 2.0, 'within_s': 0.1}


@pytest.mark.parametrize(
    ('expected', 'good', 'bad'),
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
def test_an_expectation_can_be_met_and_missed(settings, expected, good, bad):
    assert verdicts(good, settings, expected)[0].has_passed
    assert not verdicts(bad, settings, expected)[0].has_passed


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
        (replace(good_run(), lost_processes=('controller_node',)), 'is lost'),
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


def test_a_joint_is_judged_by_the_end_of_its_range_that_it_leaves(settings):
    limits = replace(settings.arm.limits, position_lower_rad=(-1.0, -2.6))
    one_sided = replace(settings, arm=replace(settings.arm, limits=limits))
    for place, is_out in ((-1.29, False), (-1.31, True), (3.19, False), (3.21, True)):
        log = at_position(4.5, 4.51, [place, 0.0])
        assert missed_of(log, one_sided) == ({'further out'} if is_out else set())


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


def test_every_kind_of_expectation_has_a_check_of_its_own():
    kinds = get_args(Expectation)
    assert len(kinds) == len({kind._check for kind in kinds}) == 15


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


def test_the_timeline_is_drawn_with_each_mode_where_it_was(tmp_path):
    figure = draw_timeline('title', in_mode(Mode.BLIND, 2.0, 3.0))
    figure.savefig(tmp_path / 'timeline.png', dpi=100)
    assert (tmp_path / 'timeline.png').stat().st_size > 10_000
    band = figure.axes[0]
    edges_s = [edge for p in band.patches for edge in (p.get_x(), p.get_x() + p.get_width())]
    assert edges_s == pytest.approx([0.0, 2.0, 2.0, 3.0, 3.0, 5.0])
    before, blind, after = (p.get_facecolor() for p in band.patches)
    assert before == after != blind
    legend = band.get_legend()
    assert [text.get_text() for text in legend.get_texts()] == ['NOMINAL', 'BLIND']
    assert [p.get_facecolor() for p in legend.get_patches()] == [before, blind]
