# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""What the study of the paper's experiments asks for, and what was run of it.

A record that the study does not list, that had another budget or protocol, or that does not say
which commit made it, is refused.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from metactl_ros.errors import ConfigError
from training.judge.analysis import compare_places, Comparisons, Report, report_of
from training.judge.cells import cells_of
from training.judge.study import expand, Study
from training.learn.run import RunConfig
from training.paper_numbers import ABLATION, COMPARISONS, INCRT, MAIN
from training.records import BASELINE, Place, Run

ALPHA = 0.05
"""The paper's."""
ONE_HEAD = {tau_z_s: Place(tau_z_s, 'incrt', 1, 20) for tau_z_s in INCRT}
"""What Phase 1 finds here, by tau_z in s."""
HEAD_COUNTS = (
    (INCRT[1.0], ONE_HEAD[1.0]),
    (INCRT[2.0], ONE_HEAD[2.0]),
    (Place(2.0, 'incrt', 7, 20), ONE_HEAD[2.0]),
    (INCRT[5.0], ONE_HEAD[5.0]),
)
"""Candidates with the paper's K, references with one head; the third has the same window, too."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PaperStudy:
    """What was to be run, and what was."""

    study: Study
    wanted: Sequence[RunConfig]
    report: Report
    """Rows: those of the main table, the rest of the study, the rest of the ablation, ct."""
    head_counts: Comparisons

    def missing(self) -> dict[Place, list[int]]:
        """Return the seeds that were not run, by place, in the order of the study."""
        done = {(run.place, run.record['seed']) for run in self.report.runs}
        found: dict[Place, list[int]] = {}
        for run in self.wanted:
            if (place_of(run), run.seed) not in done:
                found.setdefault(place_of(run), []).append(run.seed)
        return found

    @property
    def num_missing(self) -> int:
        """How many runs of the study are not there."""
        return sum(map(len, self.missing().values()))

    def with_rows(self, rows: Sequence[Place]) -> Report:
        """Return the report with these rows only, for a figure or a table."""
        return replace(self.report, rows=rows)


def place_of(run: RunConfig) -> Place:
    """Return the row that a run of the study belongs to."""
    return Place(run.tau_z, run.model, run.heads, run.window)


def gather(study: Study, runs: Sequence[Run]) -> PaperStudy:
    """Return the study with what was run of it; refuse what is not of it."""
    wanted = expand(study)
    trained = [run for run in runs if run.place.architecture != BASELINE]
    for run in trained:
        require_of_study(study, wanted, run)
    cells = cells_of(runs)
    places = dict.fromkeys(map(place_of, wanted))
    rest = [place for place in places if place not in ABLATION]
    rows = list(dict.fromkeys([*MAIN, *rest, *places, *cells]))
    return PaperStudy(
        study=study,
        wanted=wanted,
        report=report_of(rows, cells, list(COMPARISONS), ALPHA),
        head_counts=compare_places(cells, HEAD_COUNTS, ALPHA),
    )


def require_of_study(study: Study, wanted: Sequence[RunConfig], run: Run) -> None:
    """Raise ConfigError unless a record is of a run of the study, with its budget and protocol."""
    record, difference = run.record, run.record.get('difference')
    key = (run.place, record['seed'], difference)
    listed = ((other, (place_of(other), other.seed, other.difference)) for other in wanted)
    asked = next((other for other, its_key in listed if its_key == key), None)
    if asked is None:
        changed = f', difference {difference}' if difference else ''
        raise ConfigError(
            f'{run.source}: expected a run that the study lists, found {run.place}, seed '
            f'{record["seed"]}{changed}; add it to the study, or move the file elsewhere'
        )
    expected: dict[str, object] = {
        'preset': asked.preset,
        'steps': study.steps,
        'plant': study.plant,
        'num_rollouts_per_payload': study.rollouts,
        'lagrangian_rate': asked.hyper.lagrangian_rate,
        'learned_on': asked.controller,
    }
    wrong = [
        f'{name}: expected {value!r}, found {record.get(name)!r}'
        for name, value in expected.items()
        if record.get(name) != value
    ]
    if not record.get('commit'):
        wrong.append(f'commit: expected that of its training, found {record.get("commit")!r}')
    if wrong:
        raise ConfigError(
            f'{run.source}: {"; ".join(wrong)}; run it as the study says, in a git checkout, or '
            'move the file elsewhere'
        )
