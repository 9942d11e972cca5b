# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""Tables and figures of a report, the paper's numbers beside ours where it has any.

A row that was not run says so in them; in figures the paper's numbers are grey.
"""

from collections.abc import Callable, Mapping, Sequence
import csv
import math
from pathlib import Path
from typing import Any, get_args

import matplotlib
import numpy as np
from rich.box import SIMPLE
from rich.table import Table

matplotlib.use('Agg')
from matplotlib import pyplot
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from training import records
from training.commands import text_of
from training.judge.analysis import comparison_facts, facts_of, Report, t_interval
from training.records import (
    ABLATION,
    BASELINE,
    DEPTHS,
    INCRT,
    LabelName,
    PAPER_TABLE,
    Place,
    WINDOWS,
)

NOT_RUN = 'not run'


def main_rows(report: Report) -> list[dict[str, str]]:
    """Return the main table by heading; the paper's columns only if it has one of the rows."""
    rows = [_main_row(facts_of(report, row)) for row in report.rows]
    has_printed = any(report.printed(row) for row in report.rows)
    return [own | (paper if has_printed else {}) for own, paper in rows]


def _main_row(facts: Mapping[str, Any]) -> tuple[dict[str, str], dict[str, str]]:
    """Return the columns of a row: ours, and the paper's."""
    was_run = facts['n'] > 0
    delta = text_of(facts['delta_mean'], '.2f', 'no mean') if was_run else NOT_RUN
    parameters, printed = facts['num_parameters'], facts['paper_thousand_parameters']
    paper_delta = text_of(facts['paper_delta_mean'], '.2f')
    return {
        'tau_z': f'{facts["tau_z"]:g} s',
        'architecture': facts['architecture'],
        'K': text_of(facts['heads'], 'g'),
        'W': text_of(facts['window'], 'g'),
        'n': str(facts['n']),
        'params': f'{parameters / 1000.0:.0f}k' if parameters else '-',
        'delta %': with_spread(delta, facts['delta_std']),
        'failures': f'{facts["num_failures"]}/{facts["n"]}' if was_run else '-',
    }, {
        'in the paper': facts['paper_name'] or '-',
        'paper n': text_of(facts['paper_n'], 'd'),
        'paper params': '-' if printed is None else f'{printed}k',
        'paper delta %': with_spread(paper_delta, facts['paper_delta_std']),
    }


def comparison_rows(report: Report) -> list[dict[str, str]]:
    """Return the comparisons by heading; the paper's columns only if it has one of them."""
    rows = comparison_facts(report)
    has_printed = any(row['paper_d'] is not None for row in rows)
    return [_comparison_row(row, has_printed=has_printed) for row in rows]


def _comparison_row(facts: Mapping[str, Any], *, has_printed: bool) -> dict[str, str]:
    ends = [facts['d_low'], facts['d_high']]
    row = {
        'tau_z': f'{facts["tau_z"]:g} s',
        'candidate': facts['candidate'],
        'reference': facts['reference'],
        'd': text_of(facts['d'], '.2f'),
        '95 % of d': '-' if None in ends else f'{ends[0]:.2f} to {ends[1]:.2f}',
        'p_U': probability(facts['p_u']),
        'Holm': probability(facts['p_u_holm']),
        'p_W': probability(facts['p_w']),
        'verdict': facts['verdict'] or NOT_RUN,
    }
    printed = (('d', '.2f'), ('p_U', '.3f'), ('p_W', '.3f')) if has_printed else ()
    return row | {f'paper {n}': text_of(facts[f'paper_{n.lower()}'], form) for n, form in printed}


def probability(value: float | None) -> str:
    """Return a p with three digits; one that is too small for them says so."""
    return '< 0.001' if value is not None and value < 0.001 else text_of(value, '.3f')


def with_spread(mean: str, std: float | None) -> str:
    """Return mean and standard deviation, where there is one."""
    return mean if std is None else f'{mean} ± {std:.2f}'


def terminal_table(title: str, rows: Sequence[Mapping[str, str]]) -> Table:
    """Return rows for a terminal."""
    table = Table(title=title, box=SIMPLE, padding=(0, 1, 0, 0), pad_edge=False)
    for heading in rows[0]:
        table.add_column(heading, justify='right', no_wrap=True)
    for row in rows:
        table.add_row(*row.values())
    return table


def markdown_table(rows: Sequence[Mapping[str, str]]) -> str:
    """Return rows in Markdown; nothing if there are none."""
    if not rows:
        return ''
    lines = [list(rows[0]), ['---'] * len(rows[0]), *(list(row.values()) for row in rows)]
    return ''.join(f'| {" | ".join(line)} |\n' for line in lines)


def write_csv(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Write rows under their keys; what is None stays empty, and no rows make no file."""
    if not rows:
        path.unlink(missing_ok=True)
        return
    with path.open('w', encoding='utf-8', newline='') as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator='\n')
        writer.writeheader()
        writer.writerows(rows)


MARKERS: dict[LabelName, str] = dict(zip(get_args(LabelName), 'ovDX', strict=True))
DELTA = 'change of tracking RMSE against fixed gains [%]'
COLOURS = tuple(f'C{number}' for number in (0, 1, 2, 3, 4, 5, 6, 8, 9))
"""All of matplotlib's but its grey, which is the paper's."""
HEAT_LIMIT_PERCENT = 100.0
"""delta at both ends of the colours."""


def forest_figure(report: Report) -> Figure:
    """Draw the mean delta of every row with its 95 % intervals, the paper's below it."""
    figure, axis = pyplot.subplots(figsize=(8, 1.8 + 0.42 * len(report.rows)))
    has_printed = False
    for place, row in enumerate(report.rows):
        facts, printed, colour = facts_of(report, row), report.printed(row), _colour(report, row)
        if facts['delta_mean'] is None:
            said = 'no mean: a seed has no RMSE' if facts['n'] else NOT_RUN
            axis.text(0.0, place, f'{said} ', va='center', ha='right', fontsize='small')
        else:
            axis.plot(facts['delta_mean'], place, 'o', color=colour)
        for kind, width in (('t', 1.5), ('bootstrap', 4.0)):
            ends = [facts[f'delta_{kind}_{end}'] for end in ('low', 'high')]
            if ends[0] is not None:
                axis.plot(ends, [place, place], color=colour, linewidth=width, alpha=0.7)
        if printed:
            has_printed, below = True, place + 0.3
            axis.plot(t_interval(printed.delta), [below, below], color='grey', linewidth=1.0)
            axis.plot(printed.delta.mean, below, 'D', color='grey', markersize=4)
    axis.set_yticks(range(len(report.rows)), _ticks(report), fontsize='small')
    axis.set_ylim(len(report.rows) - 0.4, -0.6)
    axis.axvline(0.0, color='black', linestyle='--', linewidth=0.8)
    axis.set_xlabel(f'{DELTA}{"; grey: the paper" if has_printed else ""}')
    return figure


def payload_figure(report: Report) -> Figure:
    """Draw RMSE against payload, bars: s.d. between rollouts; a lost payload is a gap."""
    horizons = sorted({row.tau_z_s for row in report.rows})
    size = (1.0 + 4.0 * len(horizons), 4.0)
    figure, axes = pyplot.subplots(1, len(horizons), figsize=size, sharey=True, squeeze=False)
    for axis, tau_z_s in zip(axes[0], horizons, strict=True):
        axis.set(title=f'tau_z = {tau_z_s:g} s', xlabel='payload [kg]', ylabel='RMSE [rad]')
        own = [row for row in report.rows if row.tau_z_s == tau_z_s and row in report.cells]
        for place, row in enumerate(own):
            _draw_profile(axis, report, row, place)
        if not own:
            axis.text(0.5, 0.5, NOT_RUN, ha='center', transform=axis.transAxes)
            continue
        bases = [r.record['baseline_rmse'] for row in own for r in report.cells[row].runs]
        if not report.baseline(tau_z_s) and None not in bases:
            axis.axhline(float(np.mean(bases)), color='black', ls='--', label='fixed gains, mean')
        axis.legend(fontsize='small')
    axes[0][0].set_ylim(bottom=0.0)
    return figure


def _draw_profile(axis: Axes, report: Report, row: Place, place: int) -> None:
    runs = report.cells[row].runs
    mean, variance = (
        np.mean([np.array(run.record[name], float) ** power for run in runs], axis=0)
        for name, power in (('rmse_by_payload', 1), ('rmse_std_by_payload', 2))
    )
    # Side by side, or the bars would hide one another.
    payload = np.array(runs[0].record['payload_levels_kg']) + 0.01 * place
    line = '--o' if row.architecture == BASELINE else '-o'
    style: dict[str, Any] = {'color': _colour(report, row), 'label': row.label}
    axis.errorbar(payload, mean, np.sqrt(variance), fmt=line, capsize=3, **style)


def ablation_figure(report: Report) -> Figure:
    """Draw mean delta over K and W where three or more of these were tried, else over tau_z."""
    grids: dict[str, dict[tuple[Any, float], Place]] = {}
    for row in report.cells:
        name = f'{row.architecture}, tau_z = {row.tau_z_s:g} s: K over W'
        grids.setdefault(name, {})[row.heads or 0, row.window or 0] = row
    is_plain = all(len(grid) == 1 for grid in grids.values())
    by_tau_z: dict[tuple[Any, float], Place] = {
        (row.architecture if is_plain else row.label, row.tau_z_s): row for row in report.cells
    }
    grids = {name: grid for name, grid in grids.items() if len(grid) >= 3} or {
        'over tau_z [s]': by_tau_z
    }
    figure, axes = pyplot.subplots(1, len(grids), figsize=(1 + 5 * len(grids), 4), squeeze=False)
    for axis, (name, grid) in zip(axes[0], grids.items(), strict=True):
        lines, columns = sorted({line for line, _ in grid}), sorted({c for _, c in grid})
        values = {}
        for (line, column), row in grid.items():
            facts = facts_of(report, row)
            text = text_of(facts['delta_mean'], '+.1f', 'no mean')
            mark = '†' if facts['num_diverged'] else ''
            cell = (lines.index(line), columns.index(column))
            values[cell] = (facts['delta_mean'], text + mark)
        draw_heatmap(axis, [str(line) for line in lines], [f'{c:g}' for c in columns], values)
        axis.set_title(f'{name}, delta [%], † a seed diverged', fontsize='small')
    return figure


def draw_heatmap(
    axis: Axes,
    lines: Sequence[str],
    columns: Sequence[str],
    values: dict[tuple[int, int], tuple[float | None, str]],
) -> None:
    """Draw delta, %, and its text by line and column: green if better than fixed gains, or red."""
    shades = np.full((len(lines), len(columns)), np.nan)
    for (line, column), (value, text) in values.items():
        shades[line, column] = np.nan if value is None else value
        axis.text(column, line, text, ha='center', va='center')
    axis.imshow(
        shades, cmap='RdYlGn_r', vmin=-HEAT_LIMIT_PERCENT, vmax=HEAT_LIMIT_PERCENT, aspect='auto'
    )
    axis.set_xticks(range(len(columns)), columns)
    axis.set_yticks(range(len(lines)), lines)


def seeds_figure(report: Report) -> Figure:
    """Draw delta of every seed, the label as its marker; one without RMSE is at the upper edge."""
    figure, axis = pyplot.subplots(figsize=(2.0 + 1.2 * len(report.rows), 5.0))
    upper = axis.get_xaxis_transform()
    for place, row in enumerate(report.rows):
        cell = report.cells.get(row)
        if cell is None:
            axis.text(place, 0.5, NOT_RUN, ha='center', rotation=90, transform=upper)
            continue
        known = [delta for delta in cell.deltas if math.isfinite(delta)]
        axis.boxplot([known], positions=[place], widths=0.5, showfliers=False)
        for run, delta in zip(cell.runs, cell.deltas, strict=True):
            style: dict[str, Any] = {'marker': MARKERS[report.label(run)[0]], 'clip_on': False}
            if math.isfinite(delta):
                axis.scatter(place, delta, color=_colour(report, row), zorder=3, **style)
            else:
                axis.scatter(place, 1.0, color='red', transform=upper, zorder=3, **style)
    ticks = [tick.replace(' ', '\n', 1) for tick in _ticks(report)]
    axis.set_xticks(range(len(report.rows)), ticks, fontsize='small')
    axis.set_xlim(-0.6, len(report.rows) - 0.4)
    for label, marker in MARKERS.items():
        axis.scatter([], [], marker=marker, color='grey', label=label)
    axis.axhline(0.0, color='black', linestyle='--', linewidth=0.8)
    axis.set_ylabel(DELTA)
    axis.legend(fontsize='small')
    return figure


def depth_figure(report: Report) -> Figure:
    """Draw delta of one seed over depth, feed-forward and window, ours above the paper's."""
    horizons = sorted({place.tau_z_s for place in ABLATION})
    figure, axes = pyplot.subplots(2, len(horizons), figsize=(10.0, 5.5), squeeze=False)
    for column, tau_z_s in enumerate(horizons):
        own = [place for place in ABLATION if place.tau_z_s == tau_z_s]
        ours, printed = {}, {}
        for place in own:
            at = (list(DEPTHS).index(place.architecture), WINDOWS.index(place.window or 0))
            ours[at] = _ours(report, place)
            mark = '†' if place in records.ABLATION_DIVERGED else ''
            printed[at] = (ABLATION[place], text_of(ABLATION[place], '+.1f', 'none') + mark)
        names, what = [f'W = {window}' for window in WINDOWS], f'K = {INCRT[tau_z_s].heads}, delta'
        for axis, whose, values in zip(
            axes[:, column], ('here', 'paper'), (ours, printed), strict=True
        ):
            draw_heatmap(axis, list(DEPTHS.values()), names, values)
            title = f'{whose}: tau_z = {tau_z_s:g} s, {what} [%], † diverged'
            axis.set_title(title, fontsize='small')
    return figure


def _ours(report: Report, place: Place) -> tuple[float | None, str]:
    for run in report.cells[place].runs if place in report.cells else ():
        if run.record['seed'] == records.ABLATION_SEED:
            mark = '†' if report.label(run)[0] == 'diverged' else ''
            delta = run.record['delta_percent']
            return delta, text_of(delta, '+.1f', 'no RMSE') + mark
    return None, NOT_RUN


def _colour(report: Report, row: Place) -> str:
    """Return a colour that means the same at every horizon: by the paper's name, or the label."""
    names = [
        PAPER_TABLE[other].name if other in PAPER_TABLE else other.label for other in report.rows
    ]
    own = names[list(report.rows).index(row)]
    return COLOURS[list(dict.fromkeys(names)).index(own) % len(COLOURS)]


def _ticks(report: Report) -> list[str]:
    sizes = {row: len(cell.runs) for row, cell in report.cells.items()}
    return [f'{r.label}\n{r.tau_z_s:g} s, n = {sizes.get(r, 0)}' for r in report.rows]


def save_figure(draw: Callable[[Report], Figure], report: Report, path: Path) -> None:
    """Draw a figure and write it, the same bytes for the same report."""
    figure = draw(report)
    figure.tight_layout()
    figure.savefig(path, dpi=80, metadata={'Software': None})
    pyplot.close(figure)
