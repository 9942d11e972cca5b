# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""What a replay says in its table: whose figures they are, and what was not compared."""

import json

import numpy as np
import pytest

pytest.importorskip('rosbags', reason='needs the extra `sim`')
from support.made_bags import a_day, bag_of, doctored, NUM_TICKS, TELEMETRY, without, write

from metactl_ros.cli import main
from metactl_ros.replay.report import summary
from metactl_ros.replay.verdict import replay_bag, ReplayRequest


@pytest.fixture(scope='module')
def rows():
    return bag_of(a_day())


@pytest.fixture
def asked(tmp_path):
    """Return the replay of messages, once they are in a bag, and its table."""

    def ask(rows, **options):
        result = replay_bag(ReplayRequest(bag=write(tmp_path / 'bag.mcap', rows), **options))
        return result, summary(result)

    return ask


def test_in_open_loop_each_figure_says_whose_it_is(asked, rows):
    own, own_table = asked(rows)
    other, table = asked(rows, controller='ct_best')
    assert (own.exit_code, other.exit_code) == (0, 0)
    assert own.facts['recording'] == other.facts['recording']
    assert other.facts['recording']['of'] == 'ct'
    lines = dict(table)
    assert lines['open loop, what would have commanded'] == 'ct_best'
    assert lines['open loop, would have: tracking RMSE'] == 'not known, its efforts moved nothing'
    for name, text in own_table:
        if name.startswith(('tracking', 'effort', 'moved', 'modes', 'rate', 'lateness')):
            assert lines[f'recorded run: {name}'] == text
            assert name not in lines
    for joint in ('joint1', 'joint2'):
        name = f'effort {joint}: RMS, peak'
        would = other.facts['computed_again']['effort'][joint]
        expected = f'{would["rms_nm"]:.4g}, {would["peak_nm"]:.4g} N m'
        assert lines[f'open loop, would have: {name}'] == expected
        assert lines[f'open loop, would have: {name}'] != lines[f'recorded run: {name}']
    assert 'open loop, would have: modes' in lines


def test_in_open_loop_nothing_is_called_compared(asked, rows):
    result, table = asked(rows, controller='ct_best')
    assert result.facts['verdict'] == 'open loop, compared with nothing'
    assert result.facts['ticks']['compared'] == 0
    assert result.facts['ticks']['not_compared'] == {'open loop': NUM_TICKS}
    assert result.facts['ticks']['quantities_compared'] == []
    assert result.facts['largest_difference_nm'] is None
    assert ('ticks, of these compared', f'{NUM_TICKS}, 0') in table
    assert not any(text == 'equal to the bit' for _, text in table)


def test_in_open_loop_the_page_says_whose_the_curves_are(tmp_path, rows):
    bag = write(tmp_path / 'bag.mcap', rows)
    assert main(['replay', str(bag), '--controller', 'ct_best', '--out', str(tmp_path)]) == 0
    page = (tmp_path / 'replay.html').read_text()
    for heading in ('Position of joint1', 'Modes', 'Lateness of each tick'):
        assert f'<figcaption>{heading}, of the recorded run</figcaption>' in page
    assert 'class="verdict amber"' in page
    assert main(['replay', str(bag), '--out', str(tmp_path)]) == 0
    page = (tmp_path / 'replay.html').read_text()
    assert 'of the recorded run' not in page
    assert 'class="verdict green"' in page


def test_commands_are_judged_in_open_loop_too(asked, rows):
    result, _ = asked(without(rows, 'joint_commands', range(NUM_TICKS)), controller='ct_best')
    assert result.exit_code == 3


def test_ticks_that_are_not_compared_are_told_with_their_reason(asked, rows):
    for kind in TELEMETRY:
        rows = without(rows, f'controller/{kind}', {0, 1, 2})
    rows = without(rows, 'controller/gains', {40})
    rows = doctored(rows, 'controller/feedback', lambda m: m.position.fill(np.nan), {50})
    result, table = asked(rows)
    told = result.facts['ticks']
    reasons = told['not_compared']
    assert told['recorded'] == NUM_TICKS - 3
    assert told['compared'] + sum(reasons.values()) == told['recorded']
    assert reasons['a message of the tick is missing'] == 1
    assert reasons['impossible values'] == 1
    assert reasons['the recording begins in the middle of a run'] > 0
    assert reasons['what the loop knew is missing after a gap'] > 0
    for why, count in reasons.items():
        assert (f'  not compared: {why}', str(count)) in table


def test_nothing_compared_is_never_green(asked, rows):
    for kind in TELEMETRY:
        rows = without(rows, f'controller/{kind}', {*range(3), *range(20, NUM_TICKS)})
    result, table = asked(rows)
    assert not result.again.is_compared.any()
    assert result.exit_code == 3
    assert 'no tick could be compared' in result.problems
    assert 'nothing could be compared' in result.facts['verdict']
    assert not any(text == 'equal to the bit' for _, text in table)


def test_nothing_compared_is_a_problem_by_itself(asked, rows):
    from dataclasses import replace

    result, _ = asked(rows)
    again = replace(result.again, is_compared=np.zeros(NUM_TICKS, dtype=bool))
    assert replace(result, again=again).exit_code == 3


def test_a_hold_that_cannot_be_certified_is_counted(asked):
    rows = bag_of(a_day())
    stop = 3.0

    def stopped(message):
        message.position[message.name.index('mode')] = stop

    for kind in TELEMETRY:
        rows = without(rows, f'controller/{kind}', {0, 1, 2})
    result, table = asked(doctored(rows, 'controller/shield', stopped, range(NUM_TICKS)))
    assert result.facts['ticks']['not_certified'] == {'a hold begun in a gap': NUM_TICKS - 3}
    assert result.facts['ticks']['certified'] == 0
    assert ('  not certified: a hold begun in a gap', str(NUM_TICKS - 3)) in table


def test_efforts_that_are_no_numbers_are_told_as_none(tmp_path, rows):
    def broken(message):
        message.effort[:] = np.nan

    wrong = doctored(rows, 'controller/output', broken, {30})
    bag = write(tmp_path / 'bag.mcap', wrong)
    assert main(['replay', str(bag), '--out', str(tmp_path)]) != 0
    facts = json.loads((tmp_path / 'replay.json').read_text())
    assert facts['recording']['effort']['joint1']['rms_nm'] is None
