# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""The benchmark as a page: who wins where, a picture, and every figure with its interval.

Everything on it comes from the result file; no number is written by hand.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib as mpl

mpl.use('Agg')
from matplotlib import pyplot as plt
from matplotlib.colors import LogNorm
import numpy as np

from metactl_ros.baselines import ORACLE
from metactl_ros.metrics import delta_percent
from metactl_ros.signals import Array

RESAMPLES, FEW_RESAMPLES = 10_000, 1_000
ONCE = '_once'
"""Ends the name of a controller that was tuned once for all sensors."""
ADAPTIVE = ('adaptive',)
"""Bundles of the adaptive law."""
CONFIDENCE = 0.95


def write_page(path: Path, result: Mapping[str, Any]) -> None:
    """Write the page, and its picture beside it under the same name."""
    path.parent.mkdir(parents=True, exist_ok=True)
    picture, second = path.with_suffix('.png'), path.with_name(f'{path.stem}_variation.png')
    draw_heatmap(picture, result, RMSE)
    draw_heatmap(second, result, VARIATION)
    path.write_text(page_of(result, picture.name, second.name), encoding='utf-8')


def page_of(result: Mapping[str, Any], picture: str, second: str) -> str:
    """Return the page as Markdown."""
    judging = result['judging']
    num_rollouts = len(judging['payloads_kg']) * judging['rollouts']
    lines = [
        '# Learned and classical controllers, side by side',
        '',
        '<!-- written by python -m training.benchmark; do not edit -->',
        '',
        verdict(result),
        '',
        f'![RMSE per controller and regime]({picture})',
        '',
        f'![variation of efforts per controller and regime]({second})',
        '',
        *over_all_regimes(result),
        '',
        f'Each figure is over {num_rollouts} rollouts: {judging["rollouts"]} pairs of phases at '
        f'each of the payloads {", ".join(f"{p:g}" for p in judging["payloads_kg"])} kg, the same '
        'for every controller. Intervals (95 %) come from resampling the pairs of phases. '
        '`against ct` and `against ct_best` compare the same rollouts. Errors are those of the '
        'arm itself, not of what its sensors say. Rivals are tuned on other seeds, payloads and '
        'references (`results/tuning.json`), for three kinds of sensors: ideal ones, 12-bit '
        'encoders (also used under velocity noise) and a delay of 20 ms (also used at others). '
        f'Those whose name ends in `{ONCE}` are tuned once for all three kinds, as by a user who '
        'does not know which he has. The adaptive law is one bundle in all regimes, and told of '
        'none; `paper_sac` is as trained, with ideal sensors. `lugre_observer` is given the '
        "plant's friction constants but not its memory, Slotine and Li's law the payload estimate "
        'that the learned policy sees, too. `oracle` is told payload, friction '
        'and memory: not a rival. `moved` is the share of steps in which the shield '
        'moved the proposal, `variation` the total variation of both efforts, `lost` the rollouts '
        'in which the arm lost its reference, `counting` the RMSE with a shield that only counts.',
    ]
    for regime in result['regimes']:
        lines += ['', *regime_table(result, regime)]
    lines += ['', *spot_checks(result), '']
    return '\n'.join(lines)


def over_all_regimes(result: Mapping[str, Any]) -> Iterator[str]:
    """Yield a table over all regimes: how each controller fares beside the adaptive law.

    An RMSE is taken as a share of that of `ct` in the regime, so that regimes weigh alike; a lost
    cell counts as 1. The interquartile mean leaves out the best and the worst quarter of all pairs
    of regime and phases.
    """
    cells = [
        cells_of(result, regime=regime['name'], enforcement='enforce')
        for regime in result['regimes']
    ]
    num_rollouts = result['judging']['rollouts']
    shares = {
        name: np.array([_shares(table[name], table['ct'], num_rollouts) for table in cells])
        for name in cells[0]
    }
    own = next((name for name in result['learned'] if name in ADAPTIVE), result['learned'][0])
    yield f'| controller | IQM of RMSE / that of ct | `{own}` better with probability | lost |'
    yield '|---|---|---|---|'
    for name, values in sorted(shares.items(), key=lambda row: float(iqm(row[1]))):
        better = (shares[own] < values) + 0.5 * (shares[own] == values)
        lost = sum(table[name]['num_failures'] for table in cells)
        iqms = _resampled(values, iqm)
        chance = '-' if name == own else _figure(1.0, _resampled(better, np.mean), digits=2)
        yield f'| `{name}` | {_figure(1.0, iqms, digits=3)} | {chance} | {lost} |'


def _shares(cell: Mapping[str, Any], base: Mapping[str, Any], num_rollouts: int) -> Array:
    """Return the RMSE of each rollout as a share of that of ct, 1 where an arm was lost."""
    if cell['rmse'] is None or base['rmse'] is None:
        return np.ones(num_rollouts)
    return np.asarray(np.array(cell['rmse_by_rollout']) / np.array(base['rmse_by_rollout']))


def iqm(values: Array) -> float:
    """Return the mean of the middle half."""
    ordered = np.sort(values, axis=None)
    quarter = len(ordered) // 4
    return float(ordered[quarter : len(ordered) - quarter].mean())


def _resampled(values: Array, figure: Callable[[Array], Any]) -> tuple[float, float, float]:
    """Return a figure of (regimes, rollouts) and its interval over pairs of phases."""
    rng = np.random.default_rng(0)
    num = values.shape[1]
    found = [float(figure(values[:, rng.integers(num, size=num)])) for _ in range(FEW_RESAMPLES)]
    tail = 0.5 * (1.0 - CONFIDENCE)
    low, high = np.quantile(found, [tail, 1.0 - tail])
    return float(figure(values)), float(low), float(high)


def cells_of(result: Mapping[str, Any], **wanted: str) -> dict[str, dict[str, Any]]:
    """Return the full cells of the RK4 plant that match, by controller."""
    full = len(result['judging']['payloads_kg']) * result['judging']['rollouts']
    wanted = {'plant': 'rk4', **wanted}
    return {
        cell['controller']: cell
        for cell in result['cells']
        if cell['num_rollouts'] == full and wanted.items() <= cell.items()
    }


def regime_table(result: Mapping[str, Any], regime: Mapping[str, Any]) -> Iterator[str]:
    """Yield the table of one regime."""
    cells = cells_of(result, regime=regime['name'], enforcement='enforce')
    counting = cells_of(result, regime=regime['name'], enforcement='count')
    yield f'## {regime["name"]}: {regime["meaning"]}'
    yield ''
    yield (
        '| controller | RMSE, mrad | against ct, % | against ct_best, % | peak, N m '
        '| variation, N m/s | moved, % | lost | counting, mrad |'
    )
    yield '|---|---|---|---|---|---|---|---|---|'
    for name, cell in cells.items():
        row = [
            f'`{name}`',
            _figure(1e3, interval(cell['rmse_by_rollout'])),
            _change(cell, cells['ct']),
            _change(cell, cells['ct_best']),
            ', '.join(f'{peak:.0f}' for peak in cell['peak_effort_nm']),
            f'{cell["variation_nmps"]:.0f}',
            f'{100.0 * cell["shield_activation"]:.1f}',
            str(cell['num_failures']),
            _counted(counting.get(name)),
        ]
        yield f'| {" | ".join(row)} |'


def _counted(cell: Mapping[str, Any] | None) -> str:
    return '-' if cell is None or cell['rmse'] is None else f'{1e3 * cell["rmse"]:.1f}'


def interval(
    values: Sequence[float] | None, reference: Sequence[float] | None = None
) -> tuple[float, float, float] | None:
    """Return mean and interval over rollouts, or of the ratio of two means less 1, paired.

    None if either has lost arms.
    """
    if values is None:
        return None
    own, base = (
        np.array(values),
        np.ones(len(values)) if reference is None else np.array(reference),
    )
    picks = np.random.default_rng(0).integers(len(own), size=(RESAMPLES, len(own)))
    means = own[picks].mean(axis=1) / base[picks].mean(axis=1)
    tail = 0.5 * (1.0 - CONFIDENCE)
    low, high = np.quantile(means, [tail, 1.0 - tail])
    less = 0.0 if reference is None else 1.0
    return float(own.mean() / base.mean()) - less, float(low) - less, float(high) - less


def _change(cell: Mapping[str, Any], base: Mapping[str, Any]) -> str:
    if base['rmse_by_rollout'] is None:
        return '-'
    return _figure(100.0, interval(cell['rmse_by_rollout'], base['rmse_by_rollout']), sign='+')


def _figure(
    scale: float, found: tuple[float, float, float] | None, sign: str = '', digits: int = 1
) -> str:
    if found is None:
        return '-'
    mean, low, high = (f'{scale * value:{sign}.{digits}f}' for value in found)
    return f'{mean} ({low} to {high})'


def verdict(result: Mapping[str, Any]) -> str:
    """Return one paragraph that says who wins where, from the figures."""
    wins: dict[str, list[str]] = defaultdict(list)
    level: list[str] = []
    lost: dict[str, list[str]] = defaultdict(list)
    ratios = []
    for regime in result['regimes']:
        cells = cells_of(result, regime=regime['name'], enforcement='enforce')
        leaders = leaders_of(cells)
        if len(leaders) == 1:
            wins[leaders[0]].append(regime['name'])
        else:
            level.append(f'{regime["name"]} ({", ".join(f"`{name}`" for name in leaders)})')
        for name, cell in cells.items():
            if cell['num_failures']:
                lost[name].append(f'{regime["name"]} ({cell["num_failures"]})')
        if cells[ORACLE]['rmse'] is not None:
            ratios.append(cells[leaders[0]]['rmse'] / cells[ORACLE]['rmse'])
    total = len(result['regimes'])
    said = [
        f'`{name}` is best in {len(wins[name])} of {total} regimes ({", ".join(wins[name])})'
        for name in sorted(wins, key=lambda name: -len(wins[name]))
    ]
    sentences = ['; '.join(said) + '.'] if said else []
    if level:
        sentences.append(
            f'In {len(level)} the interval of the difference to the next holds zero: '
            f'{", ".join(level)}.'
        )
    sentences += [_against(result, name) for name in result['learned']]
    arms = '; '.join(f'`{name}` in {", ".join(names)}' for name, names in lost.items())
    sentences.append(f'Arms were lost by {arms}.' if arms else 'No arm was lost.')
    if ratios:
        sentences.append(
            f'The RMSE of the best is {min(ratios):.1f} to {max(ratios):.1f} times that of the '
            'oracle, whose gains suffer noise and delay like any others.'
        )
    return ' '.join(sentences)


def leaders_of(cells: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Return the best controller, then those whose paired difference to it may be none.

    The oracle does not take part.
    """
    known = {n: c for n, c in cells.items() if c['rmse'] is not None and n != ORACLE}
    best = min(known, key=lambda name: known[name]['rmse'])
    leaders = [best]
    for name, cell in known.items():
        found = interval(cell['rmse_by_rollout'], known[best]['rmse_by_rollout'])
        if name != best and found is not None and found[1] <= 0.0:
            leaders.append(name)
    return leaders


def _against(result: Mapping[str, Any], name: str) -> str:
    """Return how a learned controller compares; one that loses an arm does not win."""
    parts = []
    for baseline in ('ct', 'ct_best', 'momentum_observer'):
        better, changes = 0, []
        for regime in result['regimes']:
            cells = cells_of(result, regime=regime['name'], enforcement='enforce')
            own, other = cells[name]['rmse'], cells[baseline]['rmse']
            if own is not None and other is not None:
                changes.append(delta_percent(own, other))
            better += own is not None and (other is None or own < other)
        span = f' ({min(changes):+.0f} to {max(changes):+.0f} %)' if changes else ''
        parts.append(f'`{baseline}` in {better}{span}')
    total = len(result['regimes'])
    return (
        f'The learned `{name}` beats {", ".join(parts)} of {total} regimes; the changes are of '
        'those in which no arm was lost.'
    )


def spot_pairs(result: Mapping[str, Any]) -> dict[tuple[str, str], dict[str, float | None]]:
    """Return the RMSE of the same episodes on both plants, by regime and controller."""
    pairs: dict[tuple[str, str], dict[str, float | None]] = defaultdict(dict)
    full = len(result['judging']['payloads_kg']) * result['judging']['rollouts']
    for cell in result['cells']:
        if cell['num_rollouts'] != full:
            pairs[cell['regime'], cell['controller']][cell['plant']] = cell['rmse']
    return pairs


def spot_change(pairs: Mapping[tuple[str, str], Any], regime: str, name: str) -> float | None:
    """Return by how much PyBullet differs, %; None unless the arm tracks better than with ct.

    What swings from limit to limit, or is lost, has no figure that two plants could share.
    """
    rk4, bullet = (pairs[regime, name][plant] for plant in ('rk4', 'bullet'))
    most = max(rmse or 0.0 for rmse in pairs[regime, 'ct'].values())
    if rk4 is None or bullet is None or max(rk4, bullet) > most:
        return None
    return delta_percent(bullet, rk4)


def spot_checks(result: Mapping[str, Any]) -> Iterator[str]:
    """Yield the comparison of the two plants on the same episodes."""
    pairs = spot_pairs(result)
    changes = {place: spot_change(pairs, *place) for place in pairs}
    largest = max(abs(change) for change in changes.values() if change is not None)
    yield '## The same episodes in PyBullet'
    yield ''
    yield (
        f'Wherever the arm tracks at least as well as with `ct`, the plants differ by at most '
        f'{largest:.1f} % of an RMSE; one that swings from limit to limit is not compared.'
    )
    yield ''
    yield '| regime | controller | RK4, mrad | PyBullet, mrad | change, % |'
    yield '|---|---|---|---|---|'
    for (regime, name), rmse in pairs.items():
        found = (rmse['rk4'], rmse['bullet'])
        shown = ['lost' if value is None else f'{1e3 * value:.2f}' for value in found]
        change = changes[regime, name]
        difference = '-' if change is None else f'{change:+.1f}'
        yield f'| {regime} | `{name}` | {shown[0]} | {shown[1]} | {difference} |'


class Heatmap(NamedTuple):
    """What a picture shows of each cell."""

    title: str
    key: str
    scale: float
    form: str


RMSE = Heatmap('RMSE, mrad', 'rmse', 1e3, '.1f')
VARIATION = Heatmap('variation of efforts, N m/s', 'variation_nmps', 1.0, '.0f')


def draw_heatmap(path: Path, result: Mapping[str, Any], what: Heatmap) -> None:
    """Draw one figure of each cell, controllers by regimes, under the shield.

    The colour is how many times it is that of the best in the regime, the oracle included.
    """
    regimes = [regime['name'] for regime in result['regimes']]
    by_regime = [cells_of(result, regime=name, enforcement='enforce') for name in regimes]
    names = list(by_regime[0])
    values = np.full((len(names), len(regimes)), np.nan)
    for column, cells in enumerate(by_regime):
        for row, name in enumerate(names):
            if cells[name]['rmse'] is not None:
                values[row, column] = what.scale * cells[name][what.key]
    figure, axes = plt.subplots(
        figsize=(2.6 + 0.62 * len(regimes), 1.9 + 0.36 * len(names)), layout='constrained'
    )
    times = values / np.nanmin(values, axis=0)
    colours = plt.get_cmap('RdYlGn_r').with_extremes(bad='#bbbbbb')
    image = axes.imshow(times, cmap=colours, norm=LogNorm(1.0, 16.0), aspect='auto')
    for row, column in np.ndindex(values.shape):
        value = values[row, column]
        text = 'lost' if np.isnan(value) else f'{value:{what.form}}'
        axes.text(column, row, text, ha='center', va='center', fontsize=7)
    axes.set_xticks(range(len(regimes)), regimes, rotation=40, ha='right')
    axes.set_yticks(range(len(names)), names)
    axes.set_title(what.title)
    bar = figure.colorbar(image, ax=axes, label='times the best', ticks=[1, 2, 4, 8, 16])
    bar.ax.set_yticklabels(['1', '2', '4', '8', '16'])
    bar.ax.minorticks_off()
    figure.savefig(path, dpi=110, metadata={'Software': None})
    plt.close(figure)
