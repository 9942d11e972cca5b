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
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from metactl_ros.errors import ConfigError
from metactl_ros.files import write_json
from training import records
from training.commands import command_parser, refusing
from training.judge import presentation
from training.judge.analysis import cells_of, comparison_facts, facts_of, Report, report_of
from training.records import BASELINE, FAILURES, load_runs, PAPER_TABLE, PAPER_TESTS, Run

WIDTH = 140
"""Columns of the widest table: a number is never cut short."""


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


def write_report(report: Report, out: Path) -> None:
    """Write tables, figures and, when all else is there, the verdict."""
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f'--out {out}: {error.strerror}; name a folder to write to') from error
    tables = [
        presentation.markdown_table(rows)
        for rows in (presentation.main_rows(report), presentation.comparison_rows(report))
    ]
    notes = ''.join(f'- {note}\n' for note in notes_of(report))
    text = '\n'.join(part for part in (*tables, notes) if part)
    (out / 'main.md').write_text(text, encoding='utf-8')
    cells = [facts_of(report, row) for row in report.rows]
    comparisons = comparison_facts(report)
    presentation.write_csv(out / 'main.csv', cells)
    presentation.write_csv(out / 'comparisons.csv', comparisons)
    presentation.write_csv(out / 'runs.csv', run_facts(report))
    for draw in (
        presentation.forest_figure,
        presentation.payload_figure,
        presentation.ablation_figure,
        presentation.seeds_figure,
    ):
        presentation.save_figure(
            draw, report, out / f'{draw.__name__.removesuffix("_figure")}.png'
        )
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
    wide.print(
        presentation.terminal_table(
            'Change of tracking RMSE over seeds', presentation.main_rows(report)
        )
    )
    if report.comparisons:
        wide.print(
            presentation.terminal_table('Comparisons', presentation.comparison_rows(report))
        )
    for note in notes_of(report):
        console.print(note, highlight=False, markup=False)
    console.print(f'tables, figures and verdict.json in {args.out}', highlight=False)
    return 0


if __name__ == '__main__':
    raise SystemExit(main())
