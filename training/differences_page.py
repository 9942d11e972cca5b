# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""What each difference to the paper is worth: docs/paper_differences_measured.md.

    python -m training.sweep config/studies/differences.yaml --collect results/study_differences
    python -m training.differences_page

Read are the study and every record in results/study_differences/, however many there are. The
figures and the verdict come from them, and what was not run is named.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from training import records
from training.commands import refusing, text_of
from training.judge.analysis import Cell, Interval, mean_of, shift_interval
from training.learn.run import Difference, load_differences, RunConfig
from training.paper_study import missing_seeds, page_command, require_of_study
from training.records import INCRT, PAPER_TABLE, Run
from training.report import markdown_table, NOT_RUN, with_spread
from training.sweep import expand, Study

UNCHANGED = 'unchanged'

ABOUT_NUMBERS = (
    'delta is the change of tracking RMSE against fixed gains *in the same setting*, mean ± s.d. '
    'over seeds: more negative is better. The shift is its mean minus that of the unchanged '
    "runs, with Welch's 95 % interval, each for itself: wide with so few seeds. A single seed is "
    'taken to vary as the unchanged runs do. The baseline is the RMSE of the fixed gains. The '
    'growth is by how much the RMSE varies over payloads, mean over seeds; the paper tells of 40 '
    'to 100 mrad in runs that trained well. The last column is by how much delta changed in the '
    'second half of training, on the few rollouts of a judgement: where it is far below zero the '
    'run was still learning.'
)
NOT_VARIED = """\
- **The law.** The paper prints none; the product of K_d and Lambda that its text suggests is not
  affine in the gains, so the shield here could not hold it (`docs/paper_differences.md`).
- **Friction as printed**, without a sign on the Coulomb level: it pushes a resting arm.
- **The plant.** The long run of this preset (`results/train_paper_tau2.json`) was on PyBullet,
  these are on RK4 at 10 ms, as the paper's. Fixed gains do alike on both (`docs/calibration.md`).
- **Episodes, payloads and rollouts** are the paper's already, and so are discount, learning rate,
  batch, buffer and target smoothing.
- **Size and budget.** These runs are short and have one head; the long run has seven, a window of
  50 and 50,000 steps. What a difference is worth at the end of such a run may be another thing,
  above all where a run here was still learning."""


class Effect(NamedTuple):
    """What came of one difference, or of none; everything is None that is not known."""

    name: str
    cell: Cell
    delta: float | None
    """Mean over seeds, %."""
    shift: float | None
    """Mean minus that of the unchanged runs, percentage points."""
    interval: Interval | None
    """Of the shift."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DifferenceStudy:
    """What was to be run, and what was."""

    study: Study
    wanted: Sequence[RunConfig]
    cells: Mapping[str, Cell]
    """By the name of the difference."""

    @property
    def runs(self) -> list[Run]:
        """Every run, difference by difference."""
        return [run for cell in self.cells.values() for run in cell.runs]

    def effect(self, name: str) -> Effect | None:
        """Return what came of a difference; None if it was not run."""
        cell, reference = self.cells.get(name), self.cells.get(UNCHANGED)
        if cell is None:
            return None
        delta, shift, interval = mean_of(cell.deltas), None, None
        base = mean_of(reference.deltas) if reference and name != UNCHANGED else None
        if reference and delta is not None and base is not None:
            shift, interval = delta - base, shift_interval(cell.deltas, reference.deltas)
        return Effect(name, cell, delta, shift, interval)


def second_half(run: Run) -> float | None:
    """Return by how much delta changed between the last two judgements, percentage points."""
    found = [entry.get('delta_percent') for entry in run.record.get('judgements') or ()]
    if len(found) < 2 or None in found[-2:]:
        return None
    return float(found[-1] - found[-2])


def gather(study: Study, runs: Sequence[Run]) -> DifferenceStudy:
    """Return the study with what was run of it; refuse what is not of it, and mixed code."""
    wanted = expand(study)
    for run in runs:
        require_of_study(study, wanted, run)
    records.require_equal(
        runs,
        lambda run: records.fields_of(run, 'commit', 'code'),
        'One commit must have made all runs that are compared: run the others again',
    )
    by_name: dict[str, list[Run]] = {}
    for run in sorted(runs, key=lambda run: int(run.record['seed'])):
        by_name.setdefault(run.record.get('difference') or UNCHANGED, []).append(run)
    cells = {name: Cell(tuple(own)) for name, own in by_name.items()}
    return DifferenceStudy(study=study, wanted=wanted, cells=cells)


def page_of(found: DifferenceStudy, differences: Mapping[str, Difference]) -> str:
    """Return the page as Markdown."""
    names = dict.fromkeys(run.difference or UNCHANGED for run in found.wanted)
    effects = {name: found.effect(name) for name in names}
    parts = [
        '# Why the preset `paper` is better than the paper',
        '<!-- written by python -m training.differences_page; do not edit -->',
        what_was_run(found),
        verdict([effect for effect in effects.values() if effect], len(effects) - 1),
        '## What each difference is worth',
        markdown_table([paper_row(), *(row_of(n, effect) for n, effect in effects.items())]),
        ABOUT_NUMBERS,
        '## What was changed',
        markdown_table(
            [
                {'setting': f'`{name}`', 'here': it.here, 'changed': it.changed}
                for name in effects
                if (it := differences.get(name))
            ]
        ),
        '## What was not varied',
        NOT_VARIED,
        '## What was not run',
        not_run(found),
    ]
    return '\n\n'.join(part.rstrip() for part in parts) + '\n'


def what_was_run(found: DifferenceStudy) -> str:
    """Return how much of the study is there, how it was made, and by which code."""
    runs, first = found.runs, found.wanted[0]
    made_by = f' Trained and evaluated by `{runs[0].record["commit"]}`.' if runs else ''
    return (
        f'{len(runs)} of {len(found.wanted)} runs are done; none of them is left out below. Each '
        f'changes one setting of the preset `{first.preset}`: {first.model} with '
        f'K = {first.heads} and W = {first.window} at tau_z = {first.tau_z:g} s, '
        f'{found.study.steps:,} steps on the {found.study.plant} plant, '
        f'{found.study.rollouts} rollouts at each payload.{made_by}'
    )


def verdict(effects: Sequence[Effect], num_differences: int) -> str:
    """Return in words what the figures say: which difference matters most, and what is shown."""
    unchanged = next((effect for effect in effects if effect.name == UNCHANGED), None)
    moved = [effect for effect in effects if effect.shift is not None]
    if unchanged is None or unchanged.delta is None or not moved:
        return 'Which difference matters cannot be said yet: there is nothing to compare.'
    paper = PAPER_TABLE[INCRT[2.0]].delta.mean
    gap = paper - unchanged.delta
    moved.sort(key=lambda effect: -abs(effect.shift or 0.0))
    nearest = min(moved, key=lambda effect: abs((effect.delta or 0.0) - paper))
    shown = [e for e in moved if e.interval and (e.interval[0] > 0.0 or e.interval[1] < 0.0)]
    open_ones = [effect for effect in moved if effect.interval and effect not in shown]
    single = [effect for effect in moved if effect.interval is None]
    is_shown, sure = moved[0] in shown, moved[0].interval
    ends = f' ({sure[0]:+.1f} to {sure[1]:+.1f})' if sure else ''
    share = f', {100.0 * (moved[0].shift or 0.0) / gap:.0f} % of that gap' if gap > 0.0 else ''
    sentences = [
        f'Unchanged, such a run reaches {unchanged.delta:+.1f} %; the paper has {paper:+.1f} %, '
        f'{gap:+.1f} points from it.',
        f'Of {num_differences} differences {len(moved)} were run.',
        f'`{moved[0].name}` {"matters most" if is_shown else "moved delta furthest"}: '
        f'{moved[0].shift:+.1f} points{ends}{share}'
        f'{"" if is_shown else "; that it matters is not shown"}.',
        f'Nearest to the paper comes `{nearest.name}` with {nearest.delta:+.1f} %.',
        f'The interval excludes zero for {_listed(shown)}; it does not for {_listed(open_ones)}.',
        f'Without an interval: {_listed(single)}.' if single else '',
    ]
    return ' '.join(sentence for sentence in sentences if sentence)


def _listed(effects: Sequence[Effect]) -> str:
    return ', '.join(f'`{effect.name}` ({effect.shift:+.1f})' for effect in effects) or 'none'


def paper_row() -> dict[str, str]:
    """Return what the paper has at 2 s, under the headings of the table."""
    row = PAPER_TABLE[INCRT[2.0]]
    return {
        'setting': f'the paper, {records.PAPER_STEPS:,} steps',
        'n': str(row.delta.n),
        'delta %': with_spread(f'{row.delta.mean:+.1f}', row.delta.std),
        'shift, points': '-',
        '95 % of it': '-',
        'baseline, mrad': f'{1e3 * records.PAPER_BASELINE_RAD[2.0]:.0f}',
        'growth over payloads, mrad': '40 to 100',
        'rollouts lost': '-',
        'second half, points': '-',
    }


def row_of(name: str, effect: Effect | None) -> dict[str, str]:
    """Return one line of the table."""
    label = name if name == UNCHANGED else f'`{name}`'
    if effect is None:
        return dict.fromkeys(paper_row(), '-') | {'setting': label, 'n': '0', 'delta %': NOT_RUN}
    runs, sample, ends = effect.cell.runs, effect.cell.sample, effect.interval
    means_rad = (
        mean_of([run.record['baseline_rmse'] for run in runs]),
        mean_of([records.span_rad(run) for run in runs]),
    )
    values = (
        label,
        str(len(runs)),
        with_spread(text_of(effect.delta, '+.1f', 'no RMSE'), sample.std if sample else None),
        text_of(effect.shift, '+.1f'),
        f'{ends[0]:+.1f} to {ends[1]:+.1f}' if ends else '-',
        *(text_of(None if mean is None else 1e3 * mean, '.0f') for mean in means_rad),
        str(sum(run.record['num_lost'] for run in runs)),
        text_of(mean_of([second_half(run) for run in runs]), '+.1f'),
    )
    return dict(zip(paper_row(), values, strict=True))


def not_run(found: DifferenceStudy) -> str:
    """Return what the study lists and was not run, in its order."""
    missing = missing_seeds(found.wanted, found.runs, lambda run: run.difference or UNCHANGED)
    if not missing:
        return 'Nothing: every run of the study is there.'
    return '\n'.join(f'- {name}: seed {", ".join(map(str, s))}' for name, s in missing.items())


def write_page(study: Study, runs: Sequence[Run], page: Path) -> tuple[int, int]:
    """Write the page; return how many runs are done, of how many."""
    found = gather(study, runs)
    text = page_of(found, load_differences())
    page.parent.mkdir(parents=True, exist_ok=True)
    page.write_text(text, encoding='utf-8')
    return len(found.runs), len(found.wanted)


@refusing
def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
    return page_command(
        'differences_page',
        __doc__,
        arguments,
        write_page,
        study='config/studies/differences.yaml',
        results='results/study_differences',
        out='docs/paper_differences_measured.md',
    )


if __name__ == '__main__':
    raise SystemExit(main())
