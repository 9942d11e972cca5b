# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""Cells: the seeds of one architecture at one tau_z, and how one cell compares with another.

The unit of replication is the seed: a run is one seed, its rollouts are averaged before it gets
here. A run so lost that it has no RMSE is not left out: ranks count it as the worst, and a mean
that would need its number is not given.
"""

from collections.abc import Sequence
from dataclasses import dataclass
import math
from typing import Literal, TypeAlias

from metactl_ros.errors import ConfigError
from training import stats
from training.records import (
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
