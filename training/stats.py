# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""Tests, effect sizes and intervals for two samples of a few numbers each.

What scipy.stats has is taken from there. Its own are Cohen's d with its interval, Holm's method,
and what scipy does not do with ties and with samples of one.
"""

from collections.abc import Sequence
import math
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from scipy import optimize, stats  # type: ignore[import-untyped]

from metactl_ros.signals import Array

Interval: TypeAlias = tuple[float, float]

LARGEST_EXACT = 200_000
"""Arrangements of two samples that are enumerated when there are ties: all of 10 against 10."""


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
    found = stats.mannwhitneyu(candidate, reference, alternative='less', method=method)
    p = float(found.pvalue)
    if has_ties and is_single:  # scipy permutes samples of two or more only
        p = float(np.mean(both <= both[0] if n == 1 else both >= both[-1]))
    return float(found.statistic), p


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
    if min(len(candidate), len(reference)) > 1:
        one, two = sample_of(candidate), sample_of(reference)
        shares = (one.std**2 / one.n, two.std**2 / two.n)
        rest = shares[0] ** 2 / (one.n - 1) + shares[1] ** 2 / (two.n - 1)
        square, freedom = sum(shares), sum(shares) ** 2 / rest if rest else 0.0
    else:
        larger = max(candidate, reference, key=len)
        freedom = len(larger) - 1
        square = sample_of(larger).std ** 2 * (1.0 + 1.0 / len(larger)) if freedom else 0.0
    if square == 0.0:
        return None
    half = float(stats.t.ppf(0.5 * (1.0 + confidence), freedom)) * math.sqrt(square)
    middle = float(np.mean(candidate) - np.mean(reference))
    return middle - half, middle + half


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
