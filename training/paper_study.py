# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""The paper's experiments, as far as they were run: docs/paper_study.md and its figures.

    python -m training.paper_study

Read are the study (config/studies/paper.yaml) and every record in results/study/, however many
there are: none is left out, and what was not run is named. The fixed-gain controller (ct) may be
among them: the payload figure then has its profile.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from matplotlib import pyplot
from matplotlib.figure import Figure
import numpy as np
from rich.console import Console

from metactl_ros.errors import ConfigError
from metactl_ros.settings import load_file
from training import records
from training.commands import command_parser, refusing, text_of
from training.judge import analysis
from training.judge.analysis import Comparison, Comparisons, Report
from training.learn.run import RunConfig
from training.records import (
    ABLATION,
    BASELINE,
    DEPTHS,
    INCRT,
    PAPER_TABLE,
    PAPER_TESTS,
    Place,
    Run,
    WINDOWS,
)
from training.report import (
    comparison_rows,
    draw_heatmap,
    forest_figure,
    main_rows,
    markdown_table,
    NOT_RUN,
    payload_figure,
    probability,
    save_figure,
    seeds_figure,
)
from training.sweep import expand, Study

Group = TypeVar('Group')
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


def place_of(run: RunConfig) -> Place:
    """Return the row that a run of the study belongs to."""
    return Place(run.tau_z, run.model, run.heads, run.window)


def _key_of(run: RunConfig | Run) -> tuple[Place, int, str | None]:
    if isinstance(run, Run):
        return run.place, run.record['seed'], run.record.get('difference')
    return place_of(run), run.seed, run.difference


def require_of_study(study: Study, wanted: Sequence[RunConfig], run: Run) -> None:
    """Raise ConfigError unless a record is of a run of the study, with its budget and protocol."""
    record, key = run.record, _key_of(run)
    asked = next((other for other in wanted if _key_of(other) == key), None)
    if asked is None:
        changed = f', difference {key[-1]}' if key[-1] else ''
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


def missing_seeds(
    wanted: Sequence[RunConfig], runs: Sequence[Run], group_of: Callable[[RunConfig], Group]
) -> dict[Group, list[int]]:
    """Return the seeds that were not run, by the group of a run, in the order of the study."""
    done = set(map(_key_of, runs))
    found: dict[Group, list[int]] = {}
    for run in wanted:
        if _key_of(run) not in done:
            found.setdefault(group_of(run), []).append(run.seed)
    return found


@dataclass(frozen=True, kw_only=True, slots=True)
class PaperStudy:
    """What was to be run, and what was."""

    study: Study
    wanted: Sequence[RunConfig]
    report: Report
    """Rows: those of the main table, the rest of the study, the rest of the ablation, ct."""
    head_counts: Comparisons
    missing: Mapping[Place, list[int]]
    """The seeds that were not run, in the order of the study."""

    @property
    def num_missing(self) -> int:
        """How many runs of the study are not there."""
        return sum(map(len, self.missing.values()))

    def with_rows(self, rows: Sequence[Place]) -> Report:
        """Return the report with these rows only, for a figure or a table."""
        return replace(self.report, rows=rows)


def gather(study: Study, runs: Sequence[Run]) -> PaperStudy:
    """Return the study with what was run of it; refuse what is not of it."""
    wanted = expand(study)
    for run in trained(runs):
        require_of_study(study, wanted, run)
    cells = analysis.cells_of(runs)
    places = dict.fromkeys(map(place_of, wanted))
    rest = [place for place in places if place not in ABLATION]
    rows = list(dict.fromkeys([*PAPER_TABLE, *rest, *places, *cells]))
    return PaperStudy(
        study=study,
        wanted=wanted,
        report=analysis.report_of(rows, cells, list(PAPER_TESTS), ALPHA),
        head_counts=analysis.compare_places(cells, HEAD_COUNTS, ALPHA),
        missing=missing_seeds(wanted, runs, place_of),
    )


def trained(runs: Sequence[Run]) -> list[Run]:
    """Return all runs but those of the fixed gains."""
    return [run for run in runs if run.place.architecture != BASELINE]


ABOUT_NUMBERS = (
    'delta is the change of tracking RMSE against fixed gains, mean ± s.d. over seeds: more '
    "negative is better. d is Cohen's, with its interval from the non-central t distribution; p_U "
    "is Mann-Whitney's one-sided p that the candidate is better, Holm's column adjusts it for the "
    "comparisons of its table, p_W is Welch's two-sided one. The verdict is Holm's at "
    f'{ALPHA:g}; `too few seeds` means that p_U could not be below it even if every seed of the '
    'candidate beat every other. A seed without an RMSE ranks last, and its row has no mean. '
    'Parameters are in thousands, as the paper prints them.'
)
ABOUT_FAILURES = (
    'A run failed by its errors if it is *diverged* or *payload-invariant* '
    "(`training/records.py`). The paper's signature of the latter is a flat profile, "
    f'here an RMSE whose range over payloads is below {records.FLAT_BELOW_PERCENT:g} % of its '
    'mean; a run that is good at every payload may be flat, too, and is no failure. By its heads '
    'a run failed if one of them is *silent*: its gradient norm, as the median over the second '
    f'half of training, is below {100.0 * records.SILENT_BESIDE_LAYER:g} % of the mean of its '
    f'layer, or below {100.0 * records.SILENT_BESIDE_LARGEST:g} % of the largest mean that its '
    'layer ever had. An *idle* head has less than a tenth of an equal share of its '
    "layer's output at the end. The answer is the mean of |da / dp_hat| over gains and runs, at "
    'the end: a policy at zero is blind to the payload estimate.'
)


def page_of(found: PaperStudy, figures: Mapping[str, str]) -> str:
    """Return the page as Markdown; `figures` has the file names of its figures, by content."""
    report, by_heads = found.report, replace(found.report, comparisons=found.head_counts)
    others = [r for r in report.rows if r not in PAPER_TABLE and r not in ABLATION]
    counted = [
        row
        for row in report.rows
        if row in PAPER_TABLE or (row in report.cells and row.architecture != BASELINE)
    ]
    parts = [
        "# The paper's comparison, run here",
        '<!-- written by python -m training.paper_study; do not edit -->',
        what_was_run(found),
        '## The main table, beside the paper',
        markdown_table(main_rows(found.with_rows(list(PAPER_TABLE)))),
        markdown_table(comparison_rows(report)),
        ABOUT_NUMBERS,
        '## Does one layer of attention beat the Transformer here?',
        answer(report, 'INCRT-1L'),
        f'![mean delta of every row with its 95 % interval]({figures["forest"]})',
        'Thin: Student, thick: bootstrap over seeds. Grey: the paper, Student from its table.',
        '## Does the head count matter?',
        answer(by_heads, "INCRT with the paper's K"),
        markdown_table(comparison_rows(by_heads)),
        'The reference has one head, what Phase 1 finds here. At 2 s the windows of the retained '
        'size and of the reference differ; the row with W = 20 changes the heads alone.',
        '## Everything else that the study has',
        markdown_table(main_rows(found.with_rows(others))),
        '## Payload profile',
        f'![RMSE against payload]({figures["payload"]})',
        'Bars: s.d. between rollouts.',
        '## Every seed',
        f'![delta of every seed, the label as its marker]({figures["seeds"]})',
        '## Depth, feed-forward and window',
        f'![delta over depth, feed-forward and window]({figures["ablation"]})',
        'One seed each, as in the paper.',
        '## Failures',
        ABOUT_FAILURES,
        markdown_table([failure_row(report, row) for row in counted]),
        '## Runs',
        markdown_table([run_row(report, run) for run in report.runs]) or 'None yet.',
        '## What was not run',
        not_run(found),
    ]
    return '\n\n'.join(part.rstrip() for part in parts) + '\n'


def what_was_run(found: PaperStudy) -> str:
    """Return how much of the study is there, how it was made, and by which code."""
    study, runs = found.study, trained(found.report.runs)
    presets = ', '.join(f'`{name}`' for name in dict.fromkeys(run.preset for run in found.wanted))
    sentences = [
        f'{len(runs)} of {len(found.wanted)} runs are done; none of them is left out below. '
        f'Preset {presets}, {study.steps:,} steps of training on the {study.plant} plant (the '
        f'paper: RK4 at 10 ms), {study.rollouts} rollouts at each payload.'
    ]
    for verb, name in (('Trained', 'commit'), ('Evaluated', 'code')):
        codes = Counter(str(run.record.get(name)) for run in runs)
        said = ', '.join(f'`{code}` (n = {n})' for code, n in sorted(codes.items()))
        sentences += [f'{verb} by {said}.'] if said else []
        if any('+' in code for code in codes):
            sentences.append('A plus stands for changes that were not committed.')
    return '\n'.join(sentences)


def answer(report: Report, candidate: str) -> str:
    """Return in words what the comparisons of a report say, with the figures behind it."""
    made = [found for found in report.comparisons.values() if found]
    total = len(report.comparisons)
    if not made:
        return f'That cannot be said yet: of {total} comparisons both sides were run in none.'
    verdicts = Counter(found.verdict for found in made)
    known = [found.d for found in made if found.d is not None]
    lead = (
        f'Of {total} comparisons {len(made)} could be made. {candidate} is better in '
        f'{verdicts["better"]} of them, in {verdicts["not shown"]} that is not shown, and in '
        f'{verdicts["too few seeds"]} there are too few seeds to show it. Its mean error is the '
        f'smaller one in {sum(d < 0.0 for d in known)} of the {len(known)} that have means.'
    )
    sentences = [_sentence(report, *pair, f) for pair, f in report.comparisons.items() if f]
    return '\n'.join([lead, '', *sentences])


def _sentence(report: Report, one: Place, two: Place, found: Comparison) -> str:
    sides = []
    for cell in (report.cells[one], report.cells[two]):
        n = len(cell.runs)
        mean = cell.sample.mean if cell.sample else cell.deltas[0] if n == 1 else None
        sides.append(f'{text_of(mean, "+.1f", "no mean")} %, n = {n}')
    d, outcome = 'no d', str(found.verdict)
    if found.d is not None and found.d_interval:
        low, high = found.d_interval
        d = f'd = {found.d:.2f}, {low:.2f} to {high:.2f}'
        if found.verdict != 'better':
            outcome += ', ahead' if found.d < 0.0 else ', behind'
    paper = ''
    if printed := PAPER_TESTS.get((one, two)):
        verdict = 'better' if printed.p_u < ALPHA else 'not shown'
        paper = f' The paper: {verdict}, d = {printed.d:.2f}.'
    return (
        f'- {one.tau_z_s:g} s, {one.label} against {two.label}: {outcome} '
        f'({" against ".join(sides)}; {d}; p_U {probability(found.p_u)}, '
        f'after Holm {probability(found.p_u_holm)}, p_W {probability(found.p_w)}).{paper}'
    )


def failure_row(report: Report, row: Place) -> dict[str, str]:
    """Return how many runs of a row failed, by their errors and by their heads."""
    cell = report.cells.get(row)
    runs = cell.runs if cell else ()
    labels = Counter(report.label(run)[0] for run in runs)
    heads = [verdict for run in runs if (verdict := records.head_verdict(run))]
    spans = [1e3 * span for run in runs if (span := records.span_rad(run)) is not None]
    ends = sorted({min(spans), max(spans)}) if spans else []
    answers = [value for run in runs if (value := payload_answer(run)) is not None]
    silent, total = sum(h.num_silent for h in heads), sum(h.num_heads for h in heads)
    counts = {
        'diverged': labels['diverged'],
        'payload-invariant': labels['payload-invariant'],
        'flat profile': sum(records.is_flat(run.record['rmse_by_payload']) for run in runs),
    }
    return {
        'tau_z': f'{row.tau_z_s:g} s',
        'architecture': row.label,
        'n': str(len(runs)) if runs else NOT_RUN,
        **{name: str(count) if runs else '-' for name, count in counts.items()},
        'range over payloads, mrad': ' to '.join(f'{s:.0f}' for s in ends) or '-',
        'runs with a silent head': f'{sum(h.num_silent > 0 for h in heads)}' if heads else '-',
        'silent heads': f'{silent} of {total}' if heads else '-',
        'idle heads': f'{sum(h.num_idle for h in heads)} of {total}' if heads else '-',
        'answer to payload, 1/kg': f'{np.mean(answers):.3f}' if answers else '-',
        'failures of the paper': PAPER_TABLE[row].failures or '-' if row in PAPER_TABLE else '-',
    }


def payload_answer(run: Run) -> float | None:
    """Return the mean of |da / dp_hat| over gains at the end of training, 1/kg, if known."""
    report = run.record.get('head_report') or {}
    found = [value for value in report.get('payload_sensitivity', ()) if value is not None]
    return float(np.mean(found)) if found else None


def run_row(report: Report, run: Run) -> dict[str, str]:
    """Return what came of one run."""
    heads, span, (label, reason) = (
        records.head_verdict(run),
        records.span_rad(run),
        report.label(run),
    )
    return {
        'tau_z': f'{run.place.tau_z_s:g} s',
        'architecture': run.place.label,
        'seed': str(run.record['seed']),
        'delta %': text_of(run.record['delta_percent'], '+.1f', 'no RMSE'),
        'range, mrad': text_of(None if span is None else 1e3 * span, '.0f'),
        'label': label,
        'reason': reason,
        'silent heads': f'{heads.num_silent} of {heads.num_heads}' if heads else '-',
    }


def not_run(found: PaperStudy) -> str:
    """Return what the study lists and was not run, in its order."""
    if not found.missing:
        return 'Nothing: every run of the study is there.'
    total = Counter(place_of(run) for run in found.wanted)
    rows = [
        {
            'tau_z': f'{place.tau_z_s:g} s',
            'architecture': place.label,
            'done': f'{total[place] - len(seeds)} of {total[place]}',
            'seeds not run': ', '.join(map(str, seeds)),
        }
        for place, seeds in found.missing.items()
    ]
    lead = f'{found.num_missing} of {len(found.wanted)} runs, in the order of the study.'
    return f'{lead}\n\n{markdown_table(rows)}'


def depth_figure(report: Report) -> Figure:
    """Draw delta of one seed over depth, feed-forward and window, ours above the paper's."""
    horizons = sorted({place.tau_z_s for place in ABLATION})
    figure, axes = pyplot.subplots(2, len(horizons), figsize=(10.0, 5.5), squeeze=False)
    for column, tau_z_s in enumerate(horizons):
        own = [place for place in ABLATION if place.tau_z_s == tau_z_s]
        ours, printed = {}, {}
        for place in own:
            at = (list(DEPTHS).index(place.architecture), WINDOWS.index(place.window or 0))
            ours[at] = _ours(report, place)
            mark = '†' if place in records.ABLATION_DIVERGED else ''
            printed[at] = (ABLATION[place], text_of(ABLATION[place], '+.1f', 'none') + mark)
        names, what = [f'W = {window}' for window in WINDOWS], f'K = {INCRT[tau_z_s].heads}, delta'
        for axis, whose, values in zip(
            axes[:, column], ('here', 'paper'), (ours, printed), strict=True
        ):
            draw_heatmap(axis, list(DEPTHS.values()), names, values)
            title = f'{whose}: tau_z = {tau_z_s:g} s, {what} [%], † diverged'
            axis.set_title(title, fontsize='small')
    return figure


def _ours(report: Report, place: Place) -> tuple[float | None, str]:
    for run in report.cells[place].runs if place in report.cells else ():
        if run.record['seed'] == records.ABLATION_SEED:
            mark = '†' if report.label(run)[0] == 'diverged' else ''
            delta = run.record['delta_percent']
            return delta, text_of(delta, '+.1f', 'no RMSE') + mark
    return None, NOT_RUN


def write_study(study: Study, runs: Sequence[Run], page: Path) -> tuple[int, int]:
    """Write the figures beside the page, and then the page; return how many runs of how many."""
    found = gather(study, runs)
    baselines = [row for row in found.report.cells if row.architecture == BASELINE]
    short = [row for row in found.report.rows if row not in ABLATION or row in PAPER_TABLE]
    compared = found.with_rows([*PAPER_TABLE, *ONE_HEAD.values()])
    figures = {
        'forest': (
            forest_figure,
            found.with_rows([r for r in short if r not in baselines]),
        ),
        'payload': (payload_figure, found.with_rows([*compared.rows, *baselines])),
        'seeds': (seeds_figure, compared),
        'ablation': (depth_figure, found.report),
    }
    names = {name: f'{page.stem}_{name}.png' for name in figures}
    text = page_of(found, names)
    page.parent.mkdir(parents=True, exist_ok=True)
    for name, (draw, report) in figures.items():
        save_figure(draw, report, page.with_name(names[name]))
    page.write_text(text, encoding='utf-8')
    return len(found.wanted) - found.num_missing, len(found.wanted)


def page_command(
    name: str,
    description: str | None,
    arguments: Sequence[str] | None,
    write: Callable[[Study, list[Run], Path], tuple[int, int]],
    **files: str,
) -> int:
    """Run the command that writes the page of a study; return its exit code.

    `write` returns how many runs are done, of how many. `files` are read and written by default:
    `study`, the folder `results`, and `out`, the page.
    """
    parser = command_parser(name, description)
    for option, text in (('study', ''), ('results', 'folder '), ('out', 'page ')):
        default = Path(files[option])
        parser.add_argument(f'--{option}', type=Path, default=default, help=f'{text}(%(default)s)')
    args = parser.parse_args(arguments)
    runs = records.load_runs(sorted(args.results.glob('*.json')))
    try:
        done, count = write(load_file(Study, args.study, ''), runs, args.out)
    except OSError as error:
        raise ConfigError(
            f'--out {args.out}: {error.strerror}; name a file in a folder'
        ) from error
    Console(stderr=True).print(f'{done} of {count} runs: {args.out}', highlight=False)
    return 0


@refusing
def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
    return page_command(
        'paper_study',
        __doc__,
        arguments,
        write_study,
        study='config/studies/paper.yaml',
        results='results/study',
        out='docs/paper_study.md',
    )


if __name__ == '__main__':
    raise SystemExit(main())
