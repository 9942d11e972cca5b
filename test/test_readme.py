# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""What the README and the pages beside it say: it runs, it exists, and it is what was measured."""

import csv
import json
import math
from pathlib import Path
import re

import pytest

from training.judge.benchmark_page import leaders_of, ONCE

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / 'README.md').read_text()
RESULTS = (ROOT / 'docs' / 'results.md').read_text()
BY_HAND = [
    ROOT / name
    for name in (
        *('README.md', 'CONTRIBUTING.md', 'SECURITY.md', 'docs/architecture.md'),
        *('docs/bundles.md', 'docs/calibration.md', 'docs/on_a_robot.md', 'docs/phase1.md'),
        *(
            'docs/paper_differences.md',
            'docs/results.md',
            'docs/training.md',
            'docs/adaptive_law.md',
        ),
    )
]
"""Pages that no program writes."""
NOT_YET = {'results/study/', 'results/hang_watch.json'}
"""What a page says there will be."""


def kept(name):
    return json.loads((ROOT / 'results' / name).read_text())


def of_each(name, key, form, factor=1.0):
    """Return a figure of every record of a file, as the pages print it."""
    return [format(factor * record[key], form) for record in kept(name)]


def contest():
    """Return the cells of the benchmark by controller, regime and enforcement."""
    cells = {}
    for cell in kept('benchmark.json')['cells']:  # the spot checks come last
        cells.setdefault((cell['controller'], cell['regime'], cell['enforcement']), cell)
    return cells


def tracking():
    """Yield (file, how a page must put it) of every figure about tracking."""
    name = 'baseline_bullet.json'
    yield name, f'{", ".join(of_each(name, "rmse", ".4f"))} rad'
    shares = [
        record['memory_share_percent']
        for name in ('baseline_bullet.json', 'baseline_rk4.json')
        for record in kept(name)
    ]
    yield 'baseline_rk4.json', f'{min(shares):.0f} to {max(shares):.0f} %'
    name = 'train_robust_tau2.json'
    yield name, f'{", ".join(of_each(name, "delta_percent", ".1f"))} % against the baseline'
    yield name, f'{", ".join(of_each(name, "rmse", ".4f"))} rad'
    yield (
        name,
        f'at most {max(of_each(name, "shield_activation", ".1f", 100.0))} % of the proposals',
    )
    name = 'train_robust_beta0_tau2.json'
    (delta,), (moved,) = (
        of_each(name, 'delta_percent', '.1f'),
        of_each(name, 'shield_activation', '.1f', 100.0),
    )
    yield name, f'{delta} %, but the shield moved {moved} %'
    *moved, without = of_each('train_strict_tau2.json', 'shield_activation', '.1f', 100.0)
    yield (
        'train_strict_tau2.json',
        f'moved {", ".join(moved)} %; without the Lagrangian {without} %',
    )
    name = 'train_paper_tau2.json'
    (delta,), (rmse,) = of_each(name, 'delta_percent', '.1f'), of_each(name, 'rmse', '.4f')
    yield name, f'{delta} %, {rmse} rad'
    with (ROOT / 'results' / 'nightly_models.csv').open() as file:
        deltas = [float(row['delta_percent']) for row in csv.DictReader(file)]
    yield 'nightly_models.csv', f'{max(deltas):.0f} to {min(deltas):.0f} %'


def timing():
    """Yield the same about time over ROS."""
    found = kept('ros_timing.json')
    quiet, blind, crashes = found['quiet'], found['blind'], found['crashes']
    others = [f'{run["rate_hz"]:.2f}' for run in found['quiet_attempts'][1:]]
    stalls = blind['while_the_machine_stalled_ms']
    restarts = [crashes[name]['start_to_nominal_s']['max'] for name in ('controller', 'plant')]
    for text in (
        f'{quiet["rate_hz"]:.2f} Hz quiet',
        f'the others {" and ".join(others)}',
        f'{found["loaded"]["rate_hz"]:.2f} Hz with both cores busy',
        f'{quiet["tick_ms"]["p50"]:.1f} ms (p99 {quiet["tick_ms"]["p99"]:.1f})',
        f'{quiet["inference_ms"]["p50"]:.2f} ms of it (p99 {quiet["inference_ms"]["p99"]:.2f})',
        f'RMSE {1e3 * found["tracking"]["rmse_over_ros"]:.1f} mrad, in process '
        f'{1e3 * found["tracking"]["rmse_in_process"]:.1f}',
        f'at most {blind["last_state_to_blind_ms"]["max"]:.0f} ms after its last state, '
        f'{blind["number"]} times; {len(stalls)} times the machine itself stalled meanwhile, at '
        f'most {max(stalls):.0f} ms; none of {blind["injected"]} missed, '
        f'{blind["while_not_driving"]} fell on',
        f'brakes {crashes["controller"]["last_command_to_brake_ms"]["max"]:.0f} ms after the last',
        f'BLIND {crashes["plant"]["kill_to_blind_ms"]["max"]:.0f} ms after the kill',
        f'NOMINAL again within {max(restarts):.1f} s',
        f'exit within {crashes["sigterm"]["exit_s"]["max"]:.2f} s',
    ):
        yield 'ros_timing.json', text


def comparison():
    """Yield the same about the adaptive law, the paper's policy and classical controllers."""
    cells, name = contest(), 'benchmark.json'
    regimes = [regime['name'] for regime in kept(name)['regimes']]
    level = against_best = against_once = 0
    shares, moved = [], []
    for regime in regimes:
        table = {
            who: cell for (who, at, how), cell in cells.items() if (at, how) == (regime, 'enforce')
        }
        own = table['adaptive']
        rivals = {who: cell for who, cell in table.items() if who not in ('adaptive', 'oracle')}
        level += 'adaptive' in leaders_of(table)
        tuned = [c['rmse'] for who, c in rivals.items() if c['rmse'] and not who.endswith(ONCE)]
        blind = [c['rmse'] for who, c in rivals.items() if c['rmse'] and who.endswith(ONCE)]
        against_best += own['rmse'] is not None and own['rmse'] <= min(tuned)
        # Where every rival that was tuned once lost arms, any that did not is better.
        least = min(blind, default=math.inf)
        against_once += own['rmse'] is not None and own['rmse'] <= 0.8 * least
        if own['rmse'] is not None:
            shares.append(100.0 * (own['rmse'] / min(tuned) - 1.0))
        moved.append(100.0 * own['shield_activation'])
    lost = sum(cells['adaptive', regime, 'enforce']['num_failures'] for regime in regimes)
    total = len(regimes)
    yield name, f'best or level with the best in {level} of {total} regimes'
    yield (
        name,
        f'{min(shares):+.0f} to {max(shares):+.0f} % against the best rival tuned for the sensors',
    )
    yield name, f'at least 20 % better than every rival tuned once in {against_once}'
    yield name, f'{lost} of {60 * total:,} arms'
    yield name, f'moves {min(moved):.1f} to {max(moved):.1f} % of its proposals'


def certified():
    """Yield what the page of the adaptive law must say, from its calibration and training."""
    found, trained = kept('adaptive_calibration.json'), kept('adaptive_training.json')
    rows, best = {row['regime']: row for row in found['regimes']}, trained['best']
    four = [rows[name] for name in ('tau_1', 'tau_2', 'tau_5', 'tau_drift')]
    yield 'rho = ({:g}, {:g}) N m'.format(*found['rho_nm'])
    radius, other = (1e3 * found[name]['error_radius_rad'] for name in ('fitted', 'present'))
    yield f'{radius:.1f} mrad ({other:.0f} with the P and alpha of `controller.yaml`)'
    covered = ', '.join(f'{100 * row["coverage"]:.1f}' for row in four)
    yield f'{covered} % of the ticks'
    most = max(row['condition_broken'] for row in four)
    yield f'{100 * most:.2f} % at most at these four'
    beyond = sum(row['beyond_bound_while_covered'] for row in rows.values())
    yield f'{beyond} ticks in all {len(rows)} regimes'
    yield f'loses {best["num_lost"]} of {best["num_arms"]} held-out arms'
    yield f'{trained["cpu_minutes"]:.0f} minutes of one core'


@pytest.mark.parametrize('text', list(certified()))
def test_a_figure_of_the_adaptive_law_is_that_of_its_file(text):
    assert text in plain((ROOT / 'docs' / 'adaptive_law.md').read_text())


def plain(text):
    """Return a text without its line breaks."""
    return ' '.join(text.split())


@pytest.mark.parametrize(('name', 'text'), [*tracking(), *timing(), *comparison()])
def test_a_figure_of_the_results_is_that_of_its_file(name, text):
    assert f'results/{name}' in RESULTS
    assert plain(text) in plain(RESULTS)


@pytest.mark.parametrize(('name', 'text'), list(comparison()))
def test_a_figure_of_the_readme_is_that_of_its_file(name, text):
    assert f'results/{name}' in README
    assert plain(text) in plain(README)


@pytest.mark.parametrize('page', ['README.md', 'docs/architecture.md'])
def test_a_page_says_how_often_the_condition_fails_on_the_true_arm(page):
    share = kept('lyapunov.json')['violation_rate']['nominal']['fitted']
    text = plain((ROOT / page).read_text())
    assert f'{100.0 * share:.0f} % of the' in text
    assert '`results/lyapunov.json`' in text


def test_the_eleven_lines_of_the_readme_run(capsys):
    (block,) = re.findall(r'```python\n(.*?)```', README, re.DOTALL)
    assert len([line for line in block.splitlines() if line]) == 11
    exec(compile(block, 'README.md', 'exec'), {})
    assert re.fullmatch(r'mean error 0\.004\d rad\n', capsys.readouterr().out)


def test_the_readme_opens_with_a_picture_and_two_commands_and_is_short():
    opening = README.partition('\n## ')[0]
    assert [line.split()[:2] for line in opening.splitlines() if line.startswith('    ')] == [
        ['make', 'demo'],
        ['make', 'test'],
    ]
    assert '](docs/demo.png)' in opening
    assert len(README.split()) <= 800


@pytest.mark.parametrize('page', BY_HAND, ids=lambda page: page.name)
def test_every_file_that_a_page_names_is_there(page):
    text = page.read_text()
    linked = {page.parent / name for name in re.findall(r'\]\(([^):]+)\)', text)}
    folders = 'docs|results|config|examples|metactl_ros|training|test|launch'
    named = set(re.findall(rf'`((?:{folders})/[a-z\d_./]*)`', text)) - NOT_YET
    tests = set(re.findall(r'`(test_\w+\.py)`', text))
    found = linked | {ROOT / name for name in named}
    assert not [str(path) for path in found if not path.exists()]
    assert tests <= {path.name for path in (ROOT / 'test').rglob('test_*.py')}


@pytest.mark.parametrize('page', BY_HAND, ids=lambda page: page.name)
def test_every_verb_that_a_page_names_is_in_the_makefile(page):
    verbs = set(re.findall(r'^([a-z]+):.*##', (ROOT / 'Makefile').read_text(), re.MULTILINE))
    named = re.findall(r'(?:`|^ {4}|^)make (\w+)', page.read_text(), re.MULTILINE)
    assert set(named) <= verbs
