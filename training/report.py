# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""Turn result files into tables, four figures and a verdict.

    python -m training.report runs/evaluate/*.json --out runs/report
    python -m training.report results/study/*.json --paper

Each file holds a record of training.evaluate, or a list of them: one record is one seed. Give the
fixed-gain controller (ct) too and the payload figure shows its profile. Written to --out:

  main.md               both tables below, and what a reader must know besides
  main.csv              one row per tau_z and architecture: n, W, parameters, delta, failures
  comparisons.csv       one row per pair: d with its 95 % interval, p_U, Holm, p_W
  runs.csv              every seed with its label; a failed one is never left out
  forest.png            mean delta with its 95 % interval, Student's thin and bootstrap thick
  payload.png           RMSE against payload, bars: s.d. between rollouts, dashed: the baseline
  ablation.png          delta over heads K and window W, or over architecture and tau_z
  seeds.png             delta of every seed, its label as its marker
  verdict.json          all of it for a program to read

delta is the change of tracking RMSE against fixed gains in percent: more negative is better.
p_U is Mann-Whitney's one-sided p that an architecture is better than a --reference at its tau_z,
Holm's column adjusts it for the number of comparisons, p_W is Welch's two-sided one and d
Cohen's. An architecture is called better if Holm's p is below --alpha. A seed without an RMSE
ranks last, and its row has no mean.

With --paper the rows of the paper's main table come first, run or not, and its five comparisons
are made, INCRT-1L with both Transformers. The paper's own numbers stand beside what was trained
for as many steps. Runs that differ in more than the seed are refused in one row: in commit,
protocol or budget.
"""

import argparse
from collections.abc import Callable, Mapping, Sequence
import csv
import math
from pathlib import Path
from typing import Any, get_args

import matplotlib
import numpy as np
from rich.console import Console

matplotlib.use('Agg')
from matplotlib import pyplot
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from metactl_ros.errors import ConfigError
from metactl_ros.files import write_json
from training import records
from training.commands import command_parser, refusing, terminal_table, text_of
from training.judge.analysis import (
    cells_of,
    comparison_facts,
    facts_of,
    Report,
    report_of,
    t_interval,
)
from training.records import (
    BASELINE,
    FAILURES,
    LabelName,
    load_runs,
    PAPER_TABLE,
    PAPER_TESTS,
    Place,
    Run,
)

WIDTH = 140
"""Columns of the widest table: a number is never cut short."""
NOT_RUN = 'not run'
MARKERS: dict[LabelName, str] = dict(zip(get_args(LabelName), 'ovDX', strict=True))
DELTA = 'change of tracking RMSE against fixed gains [%]'
COLOURS = tuple(f'C{number}' for number in (0, 1, 2, 3, 4, 5, 6, 8, 9))
"""All of matplotlib's but its grey, which is the paper's."""
HEAT_LIMIT_PERCENT = 100.0
"""delta at both ends of the colours."""


def analyse(runs: Sequence[Run], reference: str | None, alpha: float) -> Report:
    """Compare every cell with those of its tau_z whose labels have the words of `reference`.

    Without a reference these are the Transformers.
    """
    cells = cells_of(runs)
    words = set((reference or 'transformer').split())
    references = [place for place in cells if words <= set(place.label.split())]
    if reference and not references:
        names = ', '.join(sorted({repr(place.label) for place in cells}))
        raise ConfigError(f'no run is of the reference {reference!r}; there are {names}')
    pairs = [
        (place, other)
        for place in cells
        if place not in references and place.architecture != BASELINE
        for other in references
        if other.tau_z_s == place.tau_z_s
    ]
    return report_of(list(cells), cells, pairs, alpha)


def analyse_as_paper(runs: Sequence[Run], alpha: float) -> Report:
    """Compare as the paper's main table does; its rows come first, whether they were run or not.

    Every other run has its row below, and takes part in none of the five comparisons.
    """
    cells = cells_of(runs)
    rows = list(dict.fromkeys([*PAPER_TABLE, *cells]))
    return report_of(rows, cells, list(PAPER_TESTS), alpha)


def run_facts(report: Report) -> list[dict[str, Any]]:
    """Return one row per run, failed ones among them."""
    names = ('seed', 'rmse', 'baseline_rmse', 'delta_percent', 'num_lost')
    return [
        {'tau_z': run.place.tau_z_s, 'architecture': run.place.label}
        | {name: run.record[name] for name in names}
        | dict(zip(('label', 'reason'), report.label(run), strict=True))
        | {'file': Path(run.source).name}
        for run in report.runs
    ]


def notes_of(report: Report) -> list[str]:
    """Return what a reader of the table must know besides: every failed seed, and why."""
    notes = [
        f'{row["architecture"]}, tau_z = {row["tau_z"]:g} s, seed {row["seed"]}: '
        f'{row["label"]} ({row["reason"]})'
        for row in run_facts(report)
        if row['label'] in FAILURES
    ]
    unknown = sum(not run.record.get('commit') for run in report.runs)
    if unknown:
        notes.append(f'{unknown} of {len(report.runs)} runs do not say which commit made them')
    if not any(report.comparisons.values()):
        notes.append(
            'nothing to compare with: no --reference, or no transformer at the same tau_z'
        )
    return notes


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


def forest_figure(report: Report) -> Figure:
    """Draw the mean delta of every row with its 95 % intervals, the paper's below it."""
    figure, axis = pyplot.subplots(figsize=(8, 1.8 + 0.42 * len(report.rows)))
    has_printed = False
    for level, row in enumerate(report.rows):
        facts, printed, colour = facts_of(report, row), report.printed(row), _colour(report, row)
        if facts['delta_mean'] is None:
            said = 'no mean: a seed has no RMSE' if facts['n'] else NOT_RUN
            axis.text(0.0, level, f'{said} ', va='center', ha='right', fontsize='small')
        else:
            axis.plot(facts['delta_mean'], level, 'o', color=colour)
        for kind, width in (('t', 1.5), ('bootstrap', 4.0)):
            ends = [facts[f'delta_{kind}_{end}'] for end in ('low', 'high')]
            if ends[0] is not None:
                axis.plot(ends, [level, level], color=colour, linewidth=width, alpha=0.7)
        if printed:
            has_printed, below = True, level + 0.3
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
        for index, row in enumerate(own):
            _draw_profile(axis, report, row, index)
        if not own:
            axis.text(0.5, 0.5, NOT_RUN, ha='center', transform=axis.transAxes)
            continue
        bases = [r.record['baseline_rmse'] for row in own for r in report.cells[row].runs]
        if not report.baseline(tau_z_s) and None not in bases:
            axis.axhline(float(np.mean(bases)), color='black', ls='--', label='fixed gains, mean')
        axis.legend(fontsize='small')
    axes[0][0].set_ylim(bottom=0.0)
    return figure


def _draw_profile(axis: Axes, report: Report, row: Place, index: int) -> None:
    runs = report.cells[row].runs
    mean, variance = (
        np.mean([np.array(run.record[name], float) ** power for run in runs], axis=0)
        for name, power in (('rmse_by_payload', 1), ('rmse_std_by_payload', 2))
    )
    # Side by side, or the bars would hide one another.
    payload = np.array(runs[0].record['payload_levels_kg']) + 0.01 * index
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
    for column, row in enumerate(report.rows):
        cell = report.cells.get(row)
        if cell is None:
            axis.text(column, 0.5, NOT_RUN, ha='center', rotation=90, transform=upper)
            continue
        known = [delta for delta in cell.deltas if math.isfinite(delta)]
        axis.boxplot([known], positions=[column], widths=0.5, showfliers=False)
        for run, delta in zip(cell.runs, cell.deltas, strict=True):
            style: dict[str, Any] = {'marker': MARKERS[report.label(run)[0]], 'clip_on': False}
            if math.isfinite(delta):
                axis.scatter(column, delta, color=_colour(report, row), zorder=3, **style)
            else:
                axis.scatter(column, 1.0, color='red', transform=upper, zorder=3, **style)
    ticks = [tick.replace(' ', '\n', 1) for tick in _ticks(report)]
    axis.set_xticks(range(len(report.rows)), ticks, fontsize='small')
    axis.set_xlim(-0.6, len(report.rows) - 0.4)
    for label, marker in MARKERS.items():
        axis.scatter([], [], marker=marker, color='grey', label=label)
    axis.axhline(0.0, color='black', linestyle='--', linewidth=0.8)
    axis.set_ylabel(DELTA)
    axis.legend(fontsize='small')
    return figure


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


def write_report(report: Report, out: Path) -> None:
    """Write tables, figures and, when all else is there, the verdict."""
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f'--out {out}: {error.strerror}; name a folder to write to') from error
    tables = [markdown_table(main_rows(report)), markdown_table(comparison_rows(report))]
    notes = ''.join(f'- {note}\n' for note in notes_of(report))
    text = '\n'.join(part for part in (*tables, notes) if part)
    (out / 'main.md').write_text(text, encoding='utf-8')
    cells = [facts_of(report, row) for row in report.rows]
    comparisons = comparison_facts(report)
    write_csv(out / 'main.csv', cells)
    write_csv(out / 'comparisons.csv', comparisons)
    write_csv(out / 'runs.csv', run_facts(report))
    for draw in (forest_figure, payload_figure, ablation_figure, seeds_figure):
        save_figure(draw, report, out / f'{draw.__name__.removesuffix("_figure")}.png')
    verdict = {
        'alpha': report.alpha,
        'protocol': records.protocol_of(report.runs[0]),
        'cells': cells,
        'comparisons': comparisons,
        'runs': run_facts(report),
        'notes': notes_of(report),
    }
    write_json(out / 'verdict.json', verdict)


def parse_args(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Return the command line as a namespace."""
    parser = command_parser('report', __doc__)
    parser.add_argument('files', type=Path, nargs='+', metavar='FILE', help='a result file')
    parser.add_argument('--out', type=Path, default=Path('runs/report'), help='(%(default)s)')
    which = parser.add_mutually_exclusive_group()
    which.add_argument(
        '--reference', help="words of labels, as 'transformer W=20' (default: all transformers)"
    )
    which.add_argument('--paper', action='store_true', help="the paper's rows and comparisons")
    parser.add_argument('--alpha', type=float, default=0.05, help='significance (%(default)s)')
    return parser.parse_args(arguments)


@refusing
def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
    args, console = parse_args(arguments), Console(stderr=True)
    runs = load_runs(args.files)
    if args.paper:
        report = analyse_as_paper(runs, args.alpha)
    else:
        report = analyse(runs, args.reference, args.alpha)
    write_report(report, args.out)
    wide = Console(width=max(Console().width, WIDTH))
    wide.print(terminal_table('Change of tracking RMSE over seeds', main_rows(report)))
    if report.comparisons:
        wide.print(terminal_table('Comparisons', comparison_rows(report)))
    for note in notes_of(report):
        console.print(note, highlight=False, markup=False)
    console.print(f'tables, figures and verdict.json in {args.out}', highlight=False)
    return 0


if __name__ == '__main__':
    raise SystemExit(main())
