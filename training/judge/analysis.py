# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""From runs to what tables and figures are made of: rows, their numbers, their comparisons.

The unit of replication is the seed: a run is one seed, its rollouts are averaged before it gets
here. The seeds of one architecture at one tau_z are a cell. A run so lost that it has no RMSE is
not left out: ranks count it as the worst, and a mean that would need its number is not given.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
import math
from pathlib import Path
from typing import Any, get_args, Literal, TypeAlias

import numpy as np

from metactl_ros.errors import ConfigError
from training import paper_numbers, stats
from training.records import (
    BASELINE,
    FAILURES,
    label_of,
    LabelName,
    Place,
    require_one_budget,
    require_one_making,
    require_one_protocol,
    Run,
)
from training.stats import Interval, Sample

Verdict: TypeAlias = Literal['better', 'not shown', 'too few seeds']


@dataclass(frozen=True, slots=True)
class Cell:
    """The runs of one architecture at one tau_z: one row of the main table."""

    runs: tuple[Run, ...]

    def __post_init__(self) -> None:
        require_one_protocol(self.runs)
        require_one_budget(self.runs)
        require_one_making(self.runs)
        sources: dict[int, str] = {}
        for record, source in self.runs:
            if record['seed'] in sources:
                raise ConfigError(
                    f'{self.place}, seed {record["seed"]} is both in '
                    f'{sources[record["seed"]]} and in {source}: a seed counts once, name one'
                )
            sources[record['seed']] = source

    @property
    def place(self) -> Place:
        """As of its runs."""
        return self.runs[0].place

    @property
    def label(self) -> str:
        """As of its runs."""
        return self.place.label

    @property
    def tau_z_s(self) -> float:
        """As of its runs."""
        return self.place.tau_z_s

    @property
    def deltas(self) -> list[float]:
        """delta_percent of every seed; infinity, worse than any number, where a run has none."""
        found = [run.record['delta_percent'] for run in self.runs]
        return [math.inf if delta is None else float(delta) for delta in found]

    @property
    def sample(self) -> Sample | None:
        """Mean, s.d. and n over seeds; None with fewer than two, or with a lost one among them."""
        is_whole = len(self.runs) > 1 and math.isfinite(sum(self.deltas))
        return stats.sample_of(self.deltas) if is_whole else None


def cells_of(runs: Sequence[Run]) -> dict[Place, Cell]:
    """Group runs of one protocol by their places, in order; and seeds in order."""
    require_one_protocol(runs)
    cells: dict[Place, list[Run]] = {}
    for run in sorted(runs, key=lambda run: int(run.record['seed'])):
        cells.setdefault(run.place, []).append(run)
    return {place: Cell(tuple(cells[place])) for place in sorted(cells, key=_order)}


def _order(place: Place) -> tuple[float, str, int, int]:
    return place.tau_z_s, place.architecture, place.heads or 0, place.window or 0


@dataclass(frozen=True, kw_only=True, slots=True)
class Comparison:
    """A candidate against a reference at one tau_z; a negative d favours the candidate."""

    d: float | None
    d_interval: Interval | None
    u: float
    p_u: float
    p_u_holm: float
    """p_u adjusted for the number of comparisons made together."""
    p_w: float | None
    verdict: Verdict


def compare(pairs: Sequence[tuple[Cell, Cell]], significance: float = 0.05) -> list[Comparison]:
    """Compare (candidate, reference) pairs as one family; the verdict follows from p_u_holm."""
    for candidate, reference in pairs:
        require_one_protocol([*candidate.runs, *reference.runs])
        require_one_budget([*candidate.runs, *reference.runs])
        if candidate.tau_z_s != reference.tau_z_s:
            raise ConfigError(
                f'tau_z is {candidate.tau_z_s:g} s in {candidate.runs[0].source} and '
                f'{reference.tau_z_s:g} s in {reference.runs[0].source}: compare within one tau_z'
            )
    tests = [stats.mann_whitney_less(a.deltas, b.deltas) for a, b in pairs]
    adjusted = stats.holm([p for _, p in tests])
    return [
        _comparison(a, b, u, p, p_holm, significance)
        for (a, b), (u, p), p_holm in zip(pairs, tests, adjusted, strict=True)
    ]


def _comparison(a: Cell, b: Cell, u: float, p: float, p_holm: float, alpha: float) -> Comparison:
    n, m = len(a.runs), len(b.runs)
    d = p_w = None
    if a.sample and b.sample:
        d, p_w = stats.cohens_d(a.sample, b.sample), stats.welch_p(a.sample, b.sample)
    verdict: Verdict = 'better' if p_holm < alpha else 'not shown'
    return Comparison(
        d=d,
        d_interval=None if d is None else stats.cohens_d_interval(d, n, m),
        u=u,
        p_u=p,
        p_u_holm=p_holm,
        p_w=p_w,
        # Even if every candidate beat every reference, p would be 1 / (n + m choose n).
        verdict=verdict if math.comb(n + m, n) * alpha > 1.0 else 'too few seeds',
    )


Comparisons: TypeAlias = Mapping[tuple[Place, Place], Comparison | None]
"""By candidate and reference; None if either was not run."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Report:
    """Everything that tables, figures and verdict are made from."""

    rows: Sequence[Place]
    """In order; one without a cell was not run."""
    cells: Mapping[Place, Cell]
    comparisons: Comparisons
    alpha: float

    @property
    def runs(self) -> list[Run]:
        """Every run of every row."""
        return [run for row in self.rows if row in self.cells for run in self.cells[row].runs]

    def baseline(self, tau_z_s: float) -> Cell | None:
        """Return the fixed-gain controller at a horizon, if it was given."""
        return self.cells.get(Place(tau_z_s, BASELINE))

    def label(self, run: Run) -> tuple[LabelName, str]:
        """Return label and reason of a run, beside the baseline of its tau_z."""
        baseline = self.baseline(run.place.tau_z_s)
        return label_of(run, baseline.runs[0].record['rmse_by_payload'] if baseline else ())

    def printed(self, row: Place) -> paper_numbers.Row | None:
        """Return what the paper has for a row, unless it was run with another budget."""
        if row not in self.cells:
            return paper_numbers.MAIN.get(row)
        return paper_numbers.printed_beside(row, self.cells[row].runs[0].record)


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
    rows = list(dict.fromkeys([*paper_numbers.MAIN, *cells]))
    return report_of(rows, cells, list(paper_numbers.COMPARISONS), alpha)


def report_of(
    rows: Sequence[Place],
    cells: Mapping[Place, Cell],
    pairs: Sequence[tuple[Place, Place]],
    alpha: float,
) -> Report:
    """Return a report that compares pairs of (candidate, reference)."""
    if not 0.0 < alpha < 1.0:
        raise ConfigError(f'--alpha: expected a number between 0 and 1, found {alpha}')
    comparisons = compare_places(cells, pairs, alpha)
    return Report(rows=rows, cells=cells, comparisons=comparisons, alpha=alpha)


def compare_places(
    cells: Mapping[Place, Cell], pairs: Sequence[tuple[Place, Place]], alpha: float
) -> Comparisons:
    """Compare the pairs of which both were run, as one family."""
    run = [(a, b) for a, b in pairs if a in cells and b in cells]
    found = compare([(cells[a], cells[b]) for a, b in run], alpha)
    made = dict(zip(run, found, strict=True))
    return {pair: made.get(pair) for pair in pairs}


def facts_of(report: Report, row: Place) -> dict[str, Any]:
    """Return the numbers of a row of the main table; None where there is none."""
    printed, cell = report.printed(row), report.cells.get(row)
    runs = cell.runs if cell else ()
    sample, n = cell.sample if cell else None, len(runs)
    labels = Counter(report.label(run)[0] for run in runs)
    median = float(np.median(cell.deltas)) if cell else math.inf
    only = runs[0].record['delta_percent'] if n == 1 else None
    return {
        'tau_z': row.tau_z_s,
        'architecture': row.architecture,
        'heads': row.heads,
        'window': row.window,
        'n': n,
        'num_parameters': runs[0].record['num_parameters'] if runs else None,
        'delta_mean': sample.mean if sample else only,
        'delta_std': sample.std if sample else None,
        'delta_median': median if math.isfinite(median) else None,
        **_ends('delta_t', stats.t_interval(sample) if sample else None),
        **_ends(
            'delta_bootstrap', stats.bootstrap_interval(cell.deltas) if cell and sample else None
        ),
        'num_failures': sum(labels[name] for name in FAILURES),
        **{f'num_{name.replace("-", "_")}': labels[name] for name in get_args(LabelName)},
        'commit': runs[0].record.get('commit') if runs else None,
        'paper_name': printed.name if printed else None,
        'paper_n': printed.delta.n if printed else None,
        'paper_thousand_parameters': printed.thousand_parameters if printed else None,
        'paper_delta_mean': printed.delta.mean if printed else None,
        'paper_delta_std': printed.delta.std if printed else None,
    }


def _ends(name: str, interval: stats.Interval | None) -> dict[str, float | None]:
    low, high = interval or (None, None)
    return {f'{name}_low': low, f'{name}_high': high}


def comparison_facts(report: Report) -> list[dict[str, Any]]:
    """Return the numbers of every comparison, and the paper's for the same one."""
    names = ('u', 'p_u', 'p_u_holm', 'p_w')
    rows = []
    for (one, two), found in report.comparisons.items():
        has_both = report.printed(one) and report.printed(two)
        printed = paper_numbers.COMPARISONS.get((one, two)) if has_both else None
        rows.append(
            {
                'tau_z': one.tau_z_s,
                'candidate': one.label,
                'reference': two.label,
                'd': found.d if found else None,
                **_ends('d', found.d_interval if found else None),
                **{name: getattr(found, name, None) for name in names},
                'verdict': found.verdict if found else None,
                **{f'paper_{name}': getattr(printed, name, None) for name in ('d', 'p_u', 'p_w')},
            }
        )
    return rows


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
