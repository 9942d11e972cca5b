# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""From runs to what tables and figures are made of: rows, their numbers, their comparisons.

What scipy.stats has is taken from there. Its own are Cohen's d with its interval, Holm's method,
and what scipy does not do with ties and with samples of one.

The unit of replication is the seed: a run is one seed, its rollouts are averaged before it gets
here. The seeds of one architecture at one tau_z are a cell. A run so lost that it has no RMSE is
not left out: ranks count it as the worst, and a mean that would need its number is not given.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
import math
from typing import Any, get_args, Literal, NamedTuple, TypeAlias

import numpy as np
from scipy import optimize, stats  # type: ignore[import-untyped]

from metactl_ros.errors import ConfigError
from metactl_ros.signals import Array
from training import records
from training.records import (
    PAPER_TABLE,
    PAPER_TESTS,
    Place,
    require_one_budget,
    require_one_protocol,
    Run,
    Sample,
)

Interval: TypeAlias = tuple[float, float]
Verdict: TypeAlias = Literal['better', 'not shown', 'too few seeds']
LARGEST_EXACT = 200_000
"""Arrangements of two samples that are enumerated when there are ties: all of 10 against 10."""


def sample_of(values: Sequence[float] | Array) -> Sample:
    """Return mean, s.d. and n of at least two values."""
    # Rounding gives equal values a tiny spread, and d would divide by it.
    std = float(np.std(values, ddof=1)) if np.ptp(values) > 0.0 else 0.0
    return Sample(float(np.mean(values)), std, len(values))


def mean_of(values: Sequence[float | None] | Array) -> float | None:
    """Return the mean; None without values, or if one is missing or infinite."""
    known = [value for value in values if value is not None and np.isfinite(value)]
    return float(np.mean(known)) if known and len(known) == len(values) else None


def mann_whitney_less(
    candidate: Sequence[float], reference: Sequence[float]
) -> tuple[float, float]:
    """Return U and the one-sided p that the candidate is smaller; infinities have ranks.

    U counts the pairs in which the candidate is the larger, ties one half. p is exact, with ties
    as far as all arrangements can be enumerated. (By default scipy turns to the normal
    approximation above eight a side.)
    """
    both = np.concatenate([candidate, reference])
    n, m = len(candidate), len(reference)
    has_ties, is_single = len(np.unique(both)) < n + m, min(n, m) == 1
    method: Any = 'exact'
    if has_ties:
        is_small = not is_single and math.comb(n + m, n) <= LARGEST_EXACT
        method = stats.PermutationMethod(n_resamples=LARGEST_EXACT) if is_small else 'asymptotic'
    u, p = map(float, stats.mannwhitneyu(candidate, reference, alternative='less', method=method))
    if has_ties and is_single:  # scipy permutes samples of two or more only
        p = float(np.mean(both <= both[0] if n == 1 else both >= both[-1]))
    return u, p


def welch_p(candidate: Sample, reference: Sample) -> float | None:
    """Return the two-sided p of Welch's t test; None where neither sample varies."""
    if candidate.std == reference.std == 0.0:
        return None
    found = stats.ttest_ind_from_stats(*candidate, *reference, equal_var=False)
    return float(found.pvalue)


def shift_interval(
    candidate: Sequence[float], reference: Sequence[float], confidence: float = 0.95
) -> Interval | None:
    """Return Welch's interval of m_1 - m_2; None where nothing is known of the spread.

    A single value is taken to vary as the other sample does.
    """
    if np.ptp(candidate) == np.ptp(reference) == 0.0:
        return None
    is_single = min(len(candidate), len(reference)) == 1
    found = stats.ttest_ind(candidate, reference, equal_var=is_single)
    low, high = found.confidence_interval(confidence)
    return float(low), float(high)


def cohens_d(candidate: Sample, reference: Sample) -> float | None:
    """Return (m_1 - m_2) / s with s^2 = ((n_1-1) s_1^2 + (n_2-1) s_2^2) / (n_1+n_2-2).

    Negative: the candidate has the smaller mean. None where neither sample varies.
    """
    freedom = candidate.n + reference.n - 2
    squares = sum((sample.n - 1) * sample.std**2 for sample in (candidate, reference))
    if squares == 0.0:
        return None
    return (candidate.mean - reference.mean) / math.sqrt(squares / freedom)


def cohens_d_interval(d: float, n: int, m: int, confidence: float = 0.95) -> Interval:
    """Return the interval of d from the non-central t distribution.

    t = d / sqrt(1/n + 1/m) has noncentrality delta / sqrt(1/n + 1/m); its ends are those under
    which a t as far out as the one found has probability (1 - confidence) / 2.
    """
    scale, freedom = math.sqrt(1.0 / n + 1.0 / m), n + m - 2
    t = abs(d) / scale
    reach = 10.0 * math.sqrt(1.0 + t**2 / freedom)

    def end(probability: float) -> float:
        def excess(noncentrality: float) -> float:
            below = float(stats.nct.cdf(t, freedom, noncentrality))
            # Far out scipy returns NaN where the probability is 0 or 1.
            return (float(noncentrality < t) if math.isnan(below) else below) - probability

        return scale * float(optimize.brentq(excess, t - reach, t + reach))

    tail = 0.5 * (1.0 - confidence)
    low, high = end(1.0 - tail), end(tail)
    return (low, high) if d >= 0.0 else (-high, -low)


def holm(p_values: Sequence[float]) -> list[float]:
    """Return p values adjusted for their number by Holm's step-down method, in the order given."""
    order = np.argsort(p_values)
    factors = np.arange(len(p_values), 0, -1)
    stepped = np.maximum.accumulate(np.asarray(p_values)[order] * factors)
    adjusted = np.empty(len(p_values))
    adjusted[order] = np.minimum(stepped, 1.0)
    return [float(p) for p in adjusted]


def bootstrap_interval(
    values: Sequence[float], seed: int = 0, confidence: float = 0.95, num_resamples: int = 10_000
) -> Interval:
    """Return the percentile interval of the mean, resampling seeds; the same for the same seed."""
    found = stats.bootstrap(
        (values,),
        np.mean,
        n_resamples=num_resamples,
        confidence_level=confidence,
        method='percentile',
        rng=seed,
    ).confidence_interval
    return float(found.low), float(found.high)


def t_interval(sample: Sample, confidence: float = 0.95) -> Interval:
    """Return Student's interval of the mean: wider than the bootstrap's when seeds are few."""
    half = float(stats.t.ppf(0.5 * (1.0 + confidence), sample.n - 1))
    half *= sample.std / math.sqrt(sample.n)
    return sample.mean - half, sample.mean + half


@dataclass(frozen=True, slots=True)
class Cell:
    """The runs of one architecture at one tau_z: one row of the main table."""

    runs: tuple[Run, ...]

    def __post_init__(self) -> None:
        require_one_protocol(self.runs)
        require_one_budget(self.runs)
        records.require_one_making(self.runs)
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
        return sample_of(self.deltas) if is_whole else None


def cells_of(runs: Sequence[Run]) -> dict[Place, Cell]:
    """Group runs of one protocol by their places, in order; and seeds in order."""
    require_one_protocol(runs)
    cells: dict[Place, list[Run]] = {}
    for run in sorted(runs, key=lambda run: int(run.record['seed'])):
        cells.setdefault(run.place, []).append(run)
    order = sorted(cells, key=lambda p: (p.tau_z_s, p.architecture, p.heads or 0, p.window or 0))
    return {place: Cell(tuple(cells[place])) for place in order}


class Comparison(NamedTuple):
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
    tests = [mann_whitney_less(a.deltas, b.deltas) for a, b in pairs]
    adjusted = holm([p for _, p in tests])
    found = []
    for (a, b), (u, p), p_holm in zip(pairs, tests, adjusted, strict=True):
        n, m, d, p_w = len(a.runs), len(b.runs), None, None
        if a.sample and b.sample:
            d, p_w = cohens_d(a.sample, b.sample), welch_p(a.sample, b.sample)
        d_interval = None if d is None else cohens_d_interval(d, n, m)
        verdict: Verdict = 'better' if p_holm < significance else 'not shown'
        # Even if every candidate beat every reference, p would be 1 / (n + m choose n).
        if math.comb(n + m, n) * significance <= 1.0:
            verdict = 'too few seeds'
        found.append(Comparison(d, d_interval, u, p, p_holm, p_w, verdict))
    return found


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
        return self.cells.get(Place(tau_z_s, records.BASELINE))

    def label(self, run: Run) -> tuple[records.LabelName, str]:
        """Return label and reason of a run, beside the baseline of its tau_z."""
        baseline = self.baseline(run.place.tau_z_s)
        return records.label_of(
            run, baseline.runs[0].record['rmse_by_payload'] if baseline else ()
        )

    def printed(self, row: Place) -> records.PaperRow | None:
        """Return what the paper has for a row, unless it was run with another budget."""
        cell = self.cells.get(row)
        is_alike = cell is None or cell.runs[0].record.get('steps') == records.PAPER_STEPS
        return PAPER_TABLE.get(row) if is_alike else None


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
        **_ends('delta_t', t_interval(sample) if sample else None),
        **_ends('delta_bootstrap', bootstrap_interval(cell.deltas) if cell and sample else None),
        'num_failures': sum(labels[name] for name in records.FAILURES),
        **{f'num_{name.replace("-", "_")}': labels[name] for name in get_args(records.LabelName)},
        'commit': runs[0].record.get('commit') if runs else None,
        'paper_name': printed.name if printed else None,
        'paper_n': printed.delta.n if printed else None,
        'paper_thousand_parameters': printed.thousand_parameters if printed else None,
        'paper_delta_mean': printed.delta.mean if printed else None,
        'paper_delta_std': printed.delta.std if printed else None,
    }


def _ends(name: str, interval: Interval | None) -> dict[str, float | None]:
    low, high = interval or (None, None)
    return {f'{name}_low': low, f'{name}_high': high}


def comparison_facts(report: Report) -> list[dict[str, Any]]:
    """Return the numbers of every comparison, and the paper's for the same one."""
    rows = []
    for (one, two), found in report.comparisons.items():
        has_both = report.printed(one) and report.printed(two)
        printed = PAPER_TESTS.get((one, two)) if has_both else None
        rows.append(
            {
                'tau_z': one.tau_z_s,
                'candidate': one.label,
                'reference': two.label,
                'd': found.d if found else None,
                **_ends('d', found.d_interval if found else None),
                **{n: getattr(found, n, None) for n in ('u', 'p_u', 'p_u_holm', 'p_w', 'verdict')},
                **{f'paper_{n}': getattr(printed, n, None) for n in ('d', 'p_u', 'p_w')},
            }
        )
    return rows
