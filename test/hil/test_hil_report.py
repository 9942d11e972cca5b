# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""What a scenario leaves: JUnit XML, lines for a terminal, a picture."""

from dataclasses import replace
from xml.etree import ElementTree

import pytest
from support.made_runs import in_mode

from metactl_ros.control.modes import Mode
from metactl_ros.hil.judge import Verdict
from metactl_ros.hil.report import draw_timeline, in_lines, Outcome, write_junit

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
