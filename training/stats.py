# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""Compare controllers over seeds: tests, effect sizes, intervals and failure labels.

The unit of replication is the seed: a run is one seed, its rollouts are averaged before it gets
here. A run so lost that it has no RMSE is not left out: ranks count it as the worst, and a mean
that would need its number is not given. Runs of unequal protocols are refused.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
import math
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
from scipy import optimize, stats  # type: ignore[import-untyped]

from metactl_ros.errors import ConfigError
from metactl_ros.signals import Array

Interval: TypeAlias = tuple[float, float]
Verdict: TypeAlias = Literal['better', 'not shown', 'too few seeds']
LabelName: TypeAlias = Literal['healthy', 'weak', 'payload-invariant', 'diverged']

BASELINE = 'ct'
"""The fixed-gain controller that delta_percent refers to."""
LARGEST_EXACT = 200_000
"""Arrangements of two samples that are enumerated when there are ties: all of 10 against 10."""

DIVERGED_ABOVE_PERCENT = 10.0
"""delta_percent of a run that made things worse, and is labelled diverged."""
WEAK_ABOVE_PERCENT = -40.0
"""delta_percent: between the runs the paper calls weak (-36 to -34) and its good ones (-51)."""
FLAT_BELOW_PERCENT = 10.0
"""Range of the RMSE over payloads, in percent of its mean, of a run that does not see them."""

TEXTS = ('controller', 'plant')
COUNTS = ('num_parameters', 'num_rollouts_per_payload', 'num_steps', 'num_lost')
NUMBERS = ('tau_z', 'seed', *COUNTS)
NULLABLE = ('rmse', 'baseline_rmse', 'delta_percent')
OPTIONAL = ('heads', 'window')
LISTS = ('payload_levels_kg', 'rmse_by_payload', 'rmse_std_by_payload')

PROTOCOL_FIELDS = ('plant', 'payload_levels_kg', 'num_rollouts_per_payload', 'num_steps')
PROTOCOL_SETTINGS = (
    'settings.arm.',
    'settings.plant.',
    'settings.controller.law.rate_hz',
    'settings.controller.law.nominal_',
)
"""Beginnings of the settings that must agree: the world, and the baseline of delta_percent."""
NOT_PROTOCOL = 'settings.plant.task.tau_z_s'
"""The default memory horizon; the one that was run is the record's tau_z."""


class Sample(NamedTuple):
    """What a test needs to know of a sample that it does not see."""

    mean: float
    std: float
    """With n - 1 in the denominator."""
    n: int


def sample_of(values: Sequence[float] | Array) -> Sample:
    """Return mean, s.d. and n of at least two values."""
    # Rounding gives equal values a tiny spread, and d would divide by it.
    std = float(np.std(values, ddof=1)) if np.ptp(values) > 0.0 else 0.0
    return Sample(float(np.mean(values)), std, len(values))


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
    has_ties = len(np.unique(both)) < n + m
    method = 'asymptotic' if has_ties else 'exact'
    found = stats.mannwhitneyu(candidate, reference, alternative='less', method=method)
    p, ranks = float(found.pvalue), stats.rankdata(both)
    if has_ties and min(n, m) == 1:  # scipy permutes samples of two or more only
        p = float(np.mean(ranks <= ranks[0] if n == 1 else ranks >= ranks[-1]))
    elif has_ties and math.comb(n + m, n) <= LARGEST_EXACT:
        p = float(
            stats.permutation_test(
                (ranks[:n], ranks[n:]),
                lambda x, _, axis: x.sum(axis=axis),
                vectorized=True,
                n_resamples=np.inf,
                alternative='less',
            ).pvalue
        )
    return float(found.statistic), p


def welch_p(candidate: Sample, reference: Sample) -> float | None:
    """Return the two-sided p of Welch's t test; None where neither sample varies."""
    if candidate.std == reference.std == 0.0:
        return None
    found = stats.ttest_ind_from_stats(*candidate, *reference, equal_var=False)
    return float(found.pvalue)


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
    rng = np.random.default_rng(seed)
    means = rng.choice(np.asarray(values, dtype=float), (num_resamples, len(values))).mean(axis=1)
    tail = 0.5 * (1.0 - confidence)
    low, high = np.quantile(means, [tail, 1.0 - tail])
    return float(low), float(high)


def t_interval(sample: Sample, confidence: float = 0.95) -> Interval:
    """Return Student's interval of the mean: wider than the bootstrap's when seeds are few."""
    half = float(stats.t.ppf(0.5 * (1.0 + confidence), sample.n - 1))
    half *= sample.std / math.sqrt(sample.n)
    return sample.mean - half, sample.mean + half


class Run(NamedTuple):
    """One seed of one controller: a record of training.evaluate, and the file it came from."""

    record: Mapping[str, Any]
    source: str

    @property
    def architecture(self) -> str:
        """The model of a trained run, the name of any other controller."""
        return str(self.record.get('model') or self.record['controller'])

    @property
    def label(self) -> str:
        """Architecture with its heads K and window W: what tells cells of one tau_z apart."""
        sizes = (('K', self.record.get('heads')), ('W', self.record.get('window')))
        return ' '.join([self.architecture, *(f'{k}={v}' for k, v in sizes if v is not None)])


def run_from(record: object, source: str) -> Run:
    """Return a run from a record as training.evaluate writes it; refuse anything else."""
    if not isinstance(record, dict):
        raise ConfigError(f'{source}: expected records of training.evaluate, found {record!r}')
    if 'num_diverged' in record:  # its name in older files
        record = {'num_lost': record['num_diverged']} | record
    missing = [n for n in (*TEXTS, *NUMBERS, *NULLABLE, *LISTS, 'settings') if n not in record]
    if missing:
        raise ConfigError(
            f'{source}: a record lacks {", ".join(missing)}; '
            'expected what `python -m training.evaluate --json FILE` writes'
        )
    length = len(record[LISTS[0]]) if isinstance(record[LISTS[0]], list) else 0
    expectations: tuple[tuple[Sequence[str], str, Callable[[Any], bool]], ...] = (
        (TEXTS, 'a text', lambda v: isinstance(v, str)),
        (NUMBERS, 'a finite number', lambda v: v is not None and _is_number(v)),
        ((*NULLABLE, *OPTIONAL), 'a finite number or null', _is_number),
        (LISTS, 'one number per payload', lambda v: isinstance(v, list) and len(v) == length),
        (LISTS, 'finite numbers or null', lambda v: all(map(_is_number, v))),
        (('settings',), 'the resolved settings', lambda v: isinstance(v, dict)),
    )
    for names, expected, is_fine in expectations:
        for name in names:
            if not is_fine(record.get(name)):
                raise ConfigError(f'{source}: {name}: expected {expected}, found {record[name]!r}')
    return Run(record, source)


def _is_number(value: Any) -> bool:
    """Whether a value is a finite number, or null."""
    is_real = isinstance(value, int | float) and not isinstance(value, bool)
    return value is None or (is_real and math.isfinite(value))


def protocol_of(run: Run) -> dict[str, Any]:
    """Return what must be equal in runs that are compared, by dotted name."""
    fields = {name: run.record[name] for name in PROTOCOL_FIELDS}
    settings = dict(_leaves('settings', run.record['settings']))
    settings.pop(NOT_PROTOCOL, None)
    return fields | {n: v for n, v in settings.items() if n.startswith(PROTOCOL_SETTINGS)}


def _leaves(name: str, value: object) -> Iterator[tuple[str, object]]:
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _leaves(f'{name}.{key}', inner)
    else:
        yield name, value


def require_one_protocol(runs: Sequence[Run]) -> None:
    """Raise ConfigError naming fields and files if runs were not made under one protocol.

    tau_z may differ from cell to cell: runs are compared within one tau_z only.
    """
    first, expected = runs[0], protocol_of(runs[0])
    for run in runs[1:]:
        found = protocol_of(run)
        differing = [n for n in expected | found if expected.get(n) != found.get(n)]
        if differing:
            facts = '; '.join(
                f'{n} is {expected.get(n)} in {first.source} and {found.get(n)} in {run.source}'
                for n in differing
            )
            raise ConfigError(
                f'runs of different protocols cannot be compared: {facts}. '
                'Evaluate them again under one protocol, or report them separately'
            )


@dataclass(frozen=True, slots=True)
class Cell:
    """The runs of one architecture at one tau_z: one row of the main table."""

    runs: tuple[Run, ...]

    def __post_init__(self) -> None:
        first = self.runs[0]
        sources: dict[int, str] = {}
        for record, source in self.runs:
            for name in ('model', 'controller', 'heads', 'window', 'tau_z', 'num_parameters'):
                if record.get(name) != first.record.get(name):
                    raise ConfigError(
                        f'one cell cannot hold two values of {name}: {first.record.get(name)} in '
                        f'{first.source} and {record.get(name)} in {source}'
                    )
            if record['seed'] in sources:
                raise ConfigError(
                    f'{self.label}, tau_z = {self.tau_z_s:g} s, seed {record["seed"]} is both in '
                    f'{sources[record["seed"]]} and in {source}: a seed counts once, name one'
                )
            sources[record['seed']] = source

    @property
    def label(self) -> str:
        """As of its runs."""
        return self.runs[0].label

    @property
    def tau_z_s(self) -> float:
        """As of its runs."""
        return float(self.runs[0].record['tau_z'])

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


def cells_of(runs: Sequence[Run]) -> list[Cell]:
    """Group runs of one protocol by tau_z and architecture, seeds in order."""
    require_one_protocol(runs)
    cells: dict[tuple[float, str], list[Run]] = {}
    for run in sorted(runs, key=lambda run: int(run.record['seed'])):
        cells.setdefault((run.record['tau_z'], run.label), []).append(run)
    return [Cell(tuple(cells[key])) for key in sorted(cells)]


@dataclass(frozen=True, kw_only=True, slots=True)
class Comparison:
    """A candidate against a reference at one tau_z; a negative d favours the candidate."""

    tau_z_s: float
    candidate: str
    reference: str
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
        if candidate.tau_z_s != reference.tau_z_s:
            raise ConfigError(
                f'tau_z is {candidate.tau_z_s:g} s in {candidate.runs[0].source} and '
                f'{reference.tau_z_s:g} s in {reference.runs[0].source}: compare within one tau_z'
            )
    tests = [mann_whitney_less(a.deltas, b.deltas) for a, b in pairs]
    adjusted = holm([p for _, p in tests])
    return [
        _comparison(a, b, u, p, p_holm, significance)
        for (a, b), (u, p), p_holm in zip(pairs, tests, adjusted, strict=True)
    ]


def _comparison(a: Cell, b: Cell, u: float, p: float, p_holm: float, alpha: float) -> Comparison:
    n, m = len(a.runs), len(b.runs)
    d = p_w = None
    if a.sample and b.sample:
        d, p_w = cohens_d(a.sample, b.sample), welch_p(a.sample, b.sample)
    verdict: Verdict = 'better' if p_holm < alpha else 'not shown'
    return Comparison(
        tau_z_s=a.tau_z_s,
        candidate=a.label,
        reference=b.label,
        d=d,
        d_interval=None if d is None else cohens_d_interval(d, n, m),
        u=u,
        p_u=p,
        p_u_holm=p_holm,
        p_w=p_w,
        # Even if every candidate beat every reference, p would be 1 / (n + m choose n).
        verdict=verdict if math.comb(n + m, n) * alpha > 1.0 else 'too few seeds',
    )


def label_of(
    run: Run, baseline_by_payload: Sequence[float | None] | None
) -> tuple[LabelName, str]:
    """Return the label of a run and the reason for it.

    A flat profile is a failure only of a run that is weak: the policy does not see the payload. A
    run that is good at every payload has adapted to it. A baseline whose profile is flat itself
    excuses a flat run; one that is not known does not.
    """
    record, delta = run.record, run.record['delta_percent']
    if record['num_lost']:
        return 'diverged', f'{record["num_lost"]:g} rollouts lost'
    if delta is None or delta > DIVERGED_ABOVE_PERCENT:
        return 'diverged', 'no RMSE' if delta is None else f'delta {delta:+.1f} %'
    if delta <= WEAK_ABOVE_PERCENT:
        return 'healthy', f'delta {delta:+.1f} %'
    own, base = range_percent(record['rmse_by_payload']), range_percent(baseline_by_payload or ())
    is_flat = own is not None and own < FLAT_BELOW_PERCENT
    if is_flat and (base is None or base >= FLAT_BELOW_PERCENT):
        known = 'an unknown range' if base is None else f'{base:.1f} %'
        return 'payload-invariant', f'RMSE varies by {own:.1f} %, of the baseline by {known}'
    return 'weak', f'delta {delta:+.1f} %'


def range_percent(values: Sequence[float | None]) -> float | None:
    """Return (max - min) / mean in percent; None if a value is missing or there is none."""
    known = [value for value in values if value is not None]
    if not known or len(known) < len(values):
        return None
    return 100.0 * (max(known) - min(known)) / float(np.mean(known))
