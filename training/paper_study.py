# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""The paper's experiments, as far as they were run: docs/paper_study.md and its figures.

    python -m training.paper_study

Read are the study (config/studies/paper.yaml) and every record in results/study/, however many
there are: none is left out, and what was not run is named. The fixed-gain controller (ct) may be
among them: the payload figure then has its profile.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

from matplotlib import pyplot
from matplotlib.figure import Figure
from rich.console import Console

from metactl_ros.errors import ConfigError
from metactl_ros.settings import load_file
from training.arguments import command_parser, refusing
from training.judge.analysis import Report
from training.judge.paper_runs import gather, ONE_HEAD, PaperStudy
from training.judge.paper_study_page import page_of
from training.judge.report_figures import (
    draw_heatmap,
    forest_figure,
    payload_figure,
    save_figure,
    seeds_figure,
)
from training.judge.report_tables import NOT_RUN, text_of
from training.judge.study import Study
from training.paper_numbers import (
    ABLATION,
    ABLATION_DIVERGED,
    ABLATION_SEED,
    DEPTHS,
    INCRT,
    MAIN,
    WINDOWS,
)
from training.records import BASELINE, load_runs, Place


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
            mark = '†' if place in ABLATION_DIVERGED else ''
            printed[at] = (ABLATION[place], text_of(ABLATION[place], '+.1f', 'none') + mark)
        heads = INCRT[tau_z_s].heads
        for row, (whose, values) in enumerate((('here', ours), ('paper', printed))):
            names = [f'W = {window}' for window in WINDOWS]
            draw_heatmap(axes[row][column], list(DEPTHS.values()), names, values)
            title = f'{whose}: tau_z = {tau_z_s:g} s, K = {heads}, delta [%], † diverged'
            axes[row][column].set_title(title, fontsize='small')
    return figure


def _ours(report: Report, place: Place) -> tuple[float | None, str]:
    runs = report.cells[place].runs if place in report.cells else ()
    run = next((run for run in runs if run.record['seed'] == ABLATION_SEED), None)
    if run is None:
        return None, NOT_RUN
    mark = '†' if report.label(run)[0] == 'diverged' else ''
    delta = run.record['delta_percent']
    return delta, text_of(delta, '+.1f', 'no RMSE') + mark


def write_study(found: PaperStudy, page: Path) -> None:
    """Write the figures beside the page, and then the page."""
    baselines = [row for row in found.report.cells if row.architecture == BASELINE]
    short = [row for row in found.report.rows if row not in ABLATION or row in MAIN]
    compared = found.with_rows([*MAIN, *ONE_HEAD.values()])
    figures = {
        'forest': (forest_figure, found.with_rows([r for r in short if r not in baselines])),
        'payload': (payload_figure, found.with_rows([*compared.rows, *baselines])),
        'seeds': (seeds_figure, compared),
        'ablation': (depth_figure, found.report),
    }
    names = {name: f'{page.stem}_{name}.png' for name in figures}
    text = page_of(found, names)
    try:
        page.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f'--out {page}: {error.strerror}; name a file in a folder') from error
    for name, (draw, report) in figures.items():
        save_figure(draw, report, page.with_name(names[name]))
    page.write_text(text, encoding='utf-8')


def parse_args(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Return the command line as a namespace."""
    parser = command_parser('paper_study', __doc__)
    add = parser.add_argument
    add('--study', type=Path, default=Path('config/studies/paper.yaml'), help='(%(default)s)')
    add('--results', type=Path, default=Path('results/study'), help='folder (%(default)s)')
    add('--out', type=Path, default=Path('docs/paper_study.md'), help='page (%(default)s)')
    return parser.parse_args(arguments)


@refusing
def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
    args, console = parse_args(arguments), Console(stderr=True)
    study = load_file(Study, args.study, '')
    found = gather(study, load_runs(sorted(args.results.glob('*.json'))))
    write_study(found, args.out)
    count = len(found.wanted)
    console.print(f'{count - found.num_missing} of {count} runs: {args.out}', highlight=False)
    return 0


if __name__ == '__main__':
    raise SystemExit(main())
