# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""Turn result files into the main table, four figures and a verdict.

    python -m training.report runs/evaluate/*.json --out runs/report

Each file holds a record of training.evaluate, or a list of them: one record is one seed. Give the
fixed-gain controller (ct) too and the payload figure shows its profile. Written to --out:

  main.md, main.csv   one row per tau_z and architecture: n, W, parameters, delta, d, p_U, p_W
  runs.csv            every seed with its label; a failed one is never left out
  forest.png          mean delta with its 95 % interval, Student's thin and bootstrap thick
  payload.png         RMSE against payload, bars: s.d. between rollouts, dashed: the baseline
  ablation.png        delta over heads K and window W, or over architecture and tau_z
  seeds.png           delta of every seed, its label as its marker
  verdict.json        all of it for a program to read

delta is the change of tracking RMSE against fixed gains in percent: more negative is better.
p_U is Mann-Whitney's one-sided p that an architecture is better than --reference at its tau_z,
Holm's column adjusts it for the number of comparisons, p_W is Welch's two-sided one and d
Cohen's. An architecture is called better if Holm's p is below --alpha. A seed without an RMSE
ranks last, and its row has no mean.
"""

import argparse
from collections import Counter
from collections.abc import Mapping, Sequence
import csv
from dataclasses import asdict, dataclass
import json
import math
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

from metactl_ros.errors import ConfigError, MetactlError
from metactl_ros.evaluation.result_file import write_json
from training import stats
from training.arguments import complain
from training.stats import BASELINE, Cell, Comparison, LabelName, Run

matplotlib.use('Agg')
from matplotlib import pyplot
from matplotlib.figure import Figure

FAILURES: tuple[LabelName, ...] = ('diverged', 'payload-invariant')
MARKERS: dict[LabelName, str] = {
    'healthy': 'o',
    'weak': 'v',
    'payload-invariant': 'D',
    'diverged': 'X',
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Report:
    """Everything that tables, figures and verdict are made from."""

    cells: list[Cell]
    comparisons: list[Comparison]
    alpha: float
    baselines: Mapping[float, Cell]
    """The fixed-gain controller by tau_z, where it was given."""

    def label(self, run: Run) -> tuple[LabelName, str]:
        """Return label and reason of a run, beside the baseline of its tau_z."""
        baseline = self.baselines.get(run.record['tau_z'])
        return stats.label_of(run, baseline.runs[0].record['rmse_by_payload'] if baseline else ())

    def colour(self, cell: Cell) -> str:
        """Return the colour of a cell in every figure, by its place among those of its tau_z."""
        own = [other for other in self.cells if other.tau_z_s == cell.tau_z_s]
        return f'C{own.index(cell) % 10}'

    def ticks(self) -> list[str]:
        """Return what stands beside each cell in a figure."""
        return [f'{c.label}\n{c.tau_z_s:g} s, n = {len(c.runs)}' for c in self.cells]


def load_runs(paths: Sequence[Path]) -> list[Run]:
    """Read result files: a record each, or a list of records."""
    runs = []
    for path in paths:
        try:
            found = json.loads(path.read_text(encoding='utf-8'))
        except OSError as error:
            raise ConfigError(
                f'{path}: cannot be read ({error.strerror}); name JSON files, such as '
                '`python -m training.evaluate` writes to its --out'
            ) from error
        except ValueError as error:
            raise ConfigError(
                f'{path}: not valid JSON ({error}); if a run was cut short, evaluate it again'
            ) from error
        records = found if isinstance(found, list) else [found]
        if not records:
            raise ConfigError(f'{path}: holds no records; evaluate a run first, or leave it out')
        runs += [stats.run_from(record, str(path)) for record in records]
    return runs


def analyse(runs: Sequence[Run], reference: str | None, alpha: float) -> Report:
    """Compare every cell with the one of its tau_z whose label has the words of `reference`."""
    cells = stats.cells_of(runs)
    words = set((reference or 'transformer').split())
    pairs, is_known = [], False
    for tau_z in sorted({cell.tau_z_s for cell in cells}):
        own = [cell for cell in cells if cell.tau_z_s == tau_z]
        matching = [cell for cell in own if words <= set(cell.label.split())]
        if len(matching) > 1:
            names = ', '.join(repr(cell.label) for cell in matching)
            raise ConfigError(f'tau_z = {tau_z:g} s: --reference must name one of {names}')
        is_known = is_known or bool(matching)
        others = [c for c in own if c not in matching and c.runs[0].architecture != BASELINE]
        pairs += [(cell, other) for other in matching for cell in others]
    if reference and not is_known:
        names = ', '.join(sorted({repr(cell.label) for cell in cells}))
        raise ConfigError(f'no run is of the reference {reference!r}; there are {names}')
    if not 0.0 < alpha < 1.0:
        raise ConfigError(f'--alpha: expected a number between 0 and 1, found {alpha}')
    return Report(
        cells=cells,
        comparisons=stats.compare(pairs, alpha),
        alpha=alpha,
        baselines={c.tau_z_s: c for c in cells if c.runs[0].architecture == BASELINE},
    )


def facts_of(report: Report, cell: Cell) -> dict[str, Any]:
    """Return the numbers of a row of the main table; None where there is none."""
    first, sample, n = cell.runs[0].record, cell.sample, len(cell.runs)
    labels = Counter(report.label(run)[0] for run in cell.runs)
    median = float(np.median(cell.deltas))
    key = (cell.tau_z_s, cell.label)
    tests = next((asdict(c) for c in report.comparisons if (c.tau_z_s, c.candidate) == key), {})
    return {
        'tau_z': cell.tau_z_s,
        'architecture': cell.runs[0].architecture,
        'heads': first.get('heads'),
        'n': n,
        'window': first.get('window'),
        'num_parameters': first['num_parameters'],
        'delta_mean': sample.mean if sample else first['delta_percent'] if n == 1 else None,
        'delta_std': sample.std if sample else None,
        'delta_median': median if math.isfinite(median) else None,
        **_ends('delta_t', stats.t_interval(sample) if sample else None),
        **_ends('delta_bootstrap', stats.bootstrap_interval(cell.deltas) if sample else None),
        **_ends('d', tests.get('d_interval')),
        **{name: tests.get(name) for name in ('d', 'p_u', 'p_u_holm', 'p_w')},
        **{name: tests.get(name) for name in ('reference', 'verdict')},
        'num_failures': sum(labels[name] for name in FAILURES),
        **{f'num_{name.replace("-", "_")}': labels[name] for name in MARKERS},
    }


def _ends(name: str, interval: stats.Interval | None) -> dict[str, float | None]:
    low, high = interval or (None, None)
    return {f'{name}_low': low, f'{name}_high': high}


def text_of(facts: Mapping[str, Any]) -> dict[str, str]:
    """Return a row of the main table as it is printed, by heading."""
    mean, std = _text(facts['delta_mean'], '.2f', 'no mean'), facts['delta_std']
    return {
        'tau_z': f'{facts["tau_z"]:g} s',
        'architecture': facts['architecture'],
        'K': _text(facts['heads'], 'g'),
        'n': str(facts['n']),
        'W': _text(facts['window'], 'g'),
        'params': f'{facts["num_parameters"]:,}',
        'delta %': mean if std is None else f'{mean} ± {std:.2f}',
        'd': _text(facts['d'], '.2f'),
        'p_U': _text(facts['p_u'], '.3f'),
        'Holm': _text(facts['p_u_holm'], '.3f'),
        'p_W': _text(facts['p_w'], '.3f'),
        'failures': f'{facts["num_failures"]}/{facts["n"]}',
    }


def _text(value: float | None, form: str, absent: str = '-') -> str:
    return absent if value is None else f'{value:{form}}'


def run_facts(report: Report) -> list[dict[str, Any]]:
    """Return one row per run, failed ones among them."""
    names = ('seed', 'rmse', 'baseline_rmse', 'delta_percent', 'num_lost')
    return [
        {'tau_z': run.record['tau_z'], 'architecture': run.label}
        | {name: run.record[name] for name in names}
        | dict(zip(('label', 'reason'), report.label(run), strict=True))
        | {'file': Path(run.source).name}
        for cell in report.cells
        for run in cell.runs
    ]


def notes_of(report: Report) -> list[str]:
    """Return what a reader of the table must know besides: every failed seed, and why."""
    notes = [
        f'{row["architecture"]}, tau_z = {row["tau_z"]:g} s, seed {row["seed"]}: '
        f'{row["label"]} ({row["reason"]})'
        for row in run_facts(report)
        if row['label'] in FAILURES
    ]
    if not report.comparisons:
        notes.append(
            'nothing to compare with: no --reference, or no transformer at the same tau_z'
        )
    return notes


def main_table(rows: Sequence[Mapping[str, str]]) -> Table:
    """Return the main table for a terminal."""
    table = Table(title='Change of tracking RMSE, mean ± s.d. over seeds', box=SIMPLE)
    for heading in rows[0]:
        table.add_column(heading, justify='right', no_wrap=True)
    for row in rows:
        table.add_row(*row.values())
    return table


def markdown(rows: Sequence[Mapping[str, str]], notes: Sequence[str]) -> str:
    """Return the main table in Markdown, notes below."""
    lines = [list(rows[0]), ['---'] * len(rows[0]), *(list(row.values()) for row in rows)]
    table = ''.join(f'| {" | ".join(line)} |\n' for line in lines)
    return table + '\n' + ''.join(f'- {note}\n' for note in notes)


def write_csv(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Write rows under their keys; what is None stays empty."""
    with path.open('w', encoding='utf-8', newline='') as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator='\n')
        writer.writeheader()
        writer.writerows(rows)


def forest_figure(report: Report) -> Figure:
    """Draw the mean delta of every cell with its 95 % intervals."""
    figure, axis = pyplot.subplots(figsize=(8, 1.5 + 0.45 * len(report.cells)))
    for place, cell in enumerate(report.cells):
        facts, colour = facts_of(report, cell), report.colour(cell)
        if facts['delta_mean'] is None:
            axis.text(0.0, place, 'no mean: a seed has no RMSE', va='center', ha='right')
        else:
            axis.plot(facts['delta_mean'], place, 'o', color=colour)
        for kind, width in (('t', 1.5), ('bootstrap', 4.0)):
            ends = [facts[f'delta_{kind}_{end}'] for end in ('low', 'high')]
            if ends[0] is not None:
                axis.plot(ends, [place, place], color=colour, linewidth=width, alpha=0.7)
    axis.set_yticks(range(len(report.cells)), report.ticks())
    axis.invert_yaxis()
    axis.axvline(0.0, color='black', linestyle='--', linewidth=0.8)
    axis.set_xlabel('change of tracking RMSE against fixed gains [%]')
    return figure


def payload_figure(report: Report) -> Figure:
    """Draw RMSE against payload, bars: s.d. between rollouts; a lost payload is a gap."""
    horizons = sorted({cell.tau_z_s for cell in report.cells})
    size = (1.0 + 4.0 * len(horizons), 4.0)
    figure, axes = pyplot.subplots(1, len(horizons), figsize=size, sharey=True, squeeze=False)
    for axis, tau_z in zip(axes[0], horizons, strict=True):
        own = [cell for cell in report.cells if cell.tau_z_s == tau_z]
        for place, cell in enumerate(own):
            mean, variance = (
                np.mean([np.array(r.record[name], float) ** power for r in cell.runs], axis=0)
                for name, power in (('rmse_by_payload', 1), ('rmse_std_by_payload', 2))
            )
            # Side by side, or the bars would hide one another.
            payload = np.array(cell.runs[0].record['payload_levels_kg']) + 0.01 * place
            line = '--o' if cell in report.baselines.values() else '-o'
            style: dict[str, Any] = {'color': report.colour(cell), 'label': cell.label}
            axis.errorbar(payload, mean, np.sqrt(variance), fmt=line, capsize=3, **style)
        bases = [run.record['baseline_rmse'] for cell in own for run in cell.runs]
        if tau_z not in report.baselines and None not in bases:
            axis.axhline(float(np.mean(bases)), color='black', ls='--', label='fixed gains, mean')
        axis.set(title=f'tau_z = {tau_z:g} s', xlabel='payload [kg]', ylabel='RMSE [rad]')
        axis.legend(fontsize='small')
    return figure


def ablation_figure(report: Report) -> Figure:
    """Draw mean delta over K and W where three or more of these were tried, else over tau_z."""
    grids: dict[str, list[tuple[Any, float, Cell]]] = {}
    for cell in report.cells:
        heads, window = (cell.runs[0].record.get(name) or 0 for name in ('heads', 'window'))
        name = f'{cell.runs[0].architecture}, tau_z = {cell.tau_z_s:g} s: K over W'
        grids.setdefault(name, []).append((heads, window, cell))
    is_plain = all(len(grid) == 1 for grid in grids.values())
    names = [c.runs[0].architecture if is_plain else c.label for c in report.cells]
    grids = {name: grid for name, grid in grids.items() if len(grid) >= 3} or {
        'over tau_z [s]': [(n, c.tau_z_s, c) for n, c in zip(names, report.cells, strict=True)]
    }
    figure, axes = pyplot.subplots(1, len(grids), figsize=(1 + 5 * len(grids), 4), squeeze=False)
    for axis, (name, grid) in zip(axes[0], grids.items(), strict=True):
        rows, columns = sorted({row for row, _, _ in grid}), sorted({c for _, c, _ in grid})
        values = np.full((len(rows), len(columns)), np.nan)
        for row, column, cell in grid:
            i, j, facts = rows.index(row), columns.index(column), facts_of(report, cell)
            values[i, j] = np.nan if facts['delta_mean'] is None else facts['delta_mean']
            mark = '†' if facts['num_diverged'] else ''
            text = _text(facts['delta_mean'], '+.1f', 'no mean') + mark
            axis.text(j, i, text, ha='center', va='center')
        axis.imshow(values, cmap='RdYlGn_r', vmin=-100.0, vmax=100.0, aspect='auto')
        axis.set_xticks(range(len(columns)), [f'{column:g}' for column in columns])
        axis.set_yticks(range(len(rows)), [str(row) for row in rows])
        axis.set_title(f'{name}, delta [%], † a seed diverged', fontsize='small')
    return figure


def seeds_figure(report: Report) -> Figure:
    """Draw delta of every seed, the label as its marker; one without RMSE is at the upper edge."""
    figure, axis = pyplot.subplots(figsize=(2.0 + 1.2 * len(report.cells), 5.0))
    for place, cell in enumerate(report.cells):
        known = [delta for delta in cell.deltas if math.isfinite(delta)]
        axis.boxplot([known], positions=[place], widths=0.5, showfliers=False)
        for run, delta in zip(cell.runs, cell.deltas, strict=True):
            style: dict[str, Any] = {'marker': MARKERS[report.label(run)[0]], 'clip_on': False}
            if math.isfinite(delta):
                axis.scatter(place, delta, color=report.colour(cell), zorder=3, **style)
            else:
                upper = axis.get_xaxis_transform()
                axis.scatter(place, 1.0, color='red', transform=upper, zorder=3, **style)
    axis.set_xticks(range(len(report.cells)), report.ticks(), fontsize='small')
    for label, marker in MARKERS.items():
        axis.scatter([], [], marker=marker, color='grey', label=label)
    axis.axhline(0.0, color='black', linestyle='--', linewidth=0.8)
    axis.set_ylabel('change of tracking RMSE [%]')
    axis.legend(fontsize='small')
    return figure


def write_report(report: Report, out: Path) -> None:
    """Write tables, figures and, when all else is there, the verdict."""
    facts = [facts_of(report, cell) for cell in report.cells]
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f'--out {out}: {error.strerror}; name a folder to write to') from error
    table = markdown([text_of(row) for row in facts], notes_of(report))
    (out / 'main.md').write_text(table, encoding='utf-8')
    write_csv(out / 'main.csv', facts)
    write_csv(out / 'runs.csv', run_facts(report))
    for draw in (forest_figure, payload_figure, ablation_figure, seeds_figure):
        figure = draw(report)
        figure.tight_layout()
        figure.savefig(out / f'{draw.__name__.removesuffix("_figure")}.png', dpi=110)
        pyplot.close(figure)
    verdict = {
        'alpha': report.alpha,
        'protocol': stats.protocol_of(report.cells[0].runs[0]),
        'cells': facts,
        'comparisons': [asdict(comparison) for comparison in report.comparisons],
        'runs': run_facts(report),
        'notes': notes_of(report),
    }
    write_json(out / 'verdict.json', verdict)


def parse_args(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Return the command line as a namespace."""
    parser = argparse.ArgumentParser(
        prog='python -m training.report',
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument('files', type=Path, nargs='+', metavar='FILE', help='a result file')
    parser.add_argument('--out', type=Path, default=Path('runs/report'), help='(%(default)s)')
    parser.add_argument(
        '--reference', help="words of its label, as 'transformer W=20' (transformer, if present)"
    )
    parser.add_argument('--alpha', type=float, default=0.05, help='significance (%(default)s)')
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
    args, console = parse_args(arguments), Console(stderr=True)
    try:
        report = analyse(load_runs(args.files), args.reference, args.alpha)
        write_report(report, args.out)
    except MetactlError as error:
        complain(console, error)
        return 2
    table = main_table([text_of(facts_of(report, cell)) for cell in report.cells])
    Console(width=max(Console().width, 110)).print(table)  # never cut a number short
    for note in notes_of(report):
        console.print(note, highlight=False, markup=False)
    console.print(f'tables, figures and verdict.json in {args.out}', highlight=False)
    return 0


if __name__ == '__main__':
    raise SystemExit(main())
