# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""Phase 1: how many attention heads does the memory ask for?

    python -m training.phase1 --tau-z 1 2 3 4 5 --json results/phase1.json

Rolls the baseline out on the RK4 plant, forms the paper's operators from one window per episode,
and counts heads with the corrected algorithm (`training.rank`):

    v1              second moment of the observation features
    v2              second moment of the stacked observations 1..W steps ahead
    v3 exact        history gradient of a perturbed memory, in closed form; its K* feeds Phase 2
    v3 centred      its covariance instead: the formula of the paper has no mean, its words do
    v3 regression   the same gradient, fitted to noisy velocities
    v3 linear       the plant's own memory: the gradient is the same in every window, so K* = 1

Thresholds and perturbation were fixed before the first run. What differs from the paper's table is
printed beside it; docs/phase1.md says why.
"""

import argparse
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
import math
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib
import numpy as np
from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

from metactl_ros.config import one_for_all, require_not_negative, require_positive
from metactl_ros.errors import ConfigError
from metactl_ros.files import write_json
from metactl_ros.settings import load_settings, provenance, Settings
from metactl_ros.signals import Array

matplotlib.use('Agg')
from matplotlib import pyplot
from matplotlib.ticker import MaxNLocator

from training import rank
from training.commands import command_parser, positive_number, progress_bar, refusing, text_of

NAMES = {
    'v1': 'v1 features',
    'v2': 'v2 horizons',
    'v3_exact': 'v3 exact',
    'v3_centred': 'v3 centred',
    'v3_regression': 'v3 fitted',
    'v3_linear': 'v3 linear',
}
VERSIONS = tuple(NAMES)
# The paper's tab:kstar, printed beside ours: tau_z in s to K* and r_eff.
PAPER = {1.0: (8, 9.3), 2.0: (14, 14.8), 3.0: (8, 10.1), 4.0: (9, 11.4), 5.0: (11, 12.0)}


@dataclass(frozen=True, kw_only=True, slots=True)
class Search:
    """Everything that fixes a run of Phase 1, beside the plant."""

    num_windows: int = 2048
    """N, one window from each of as many episodes."""
    window: int = 20
    """W, in control periods."""
    v_p_radps: float = 1.0
    """Of the perturbed memory: about the top speed of the task, so the perturbation is strong."""
    velocity_noise_radps: float = 0.01
    """Of the regression: one count of a 16-bit encoder per 10 ms is 0.0096 rad / s."""
    num_bootstrap: int = 200
    seed: int = 42
    thresholds: rank.Thresholds = field(default_factory=rank.Thresholds)

    def __post_init__(self) -> None:
        require_positive(
            'Search',
            window=self.window,
            v_p_radps=self.v_p_radps,
            velocity_noise_radps=self.velocity_noise_radps,
            num_bootstrap=self.num_bootstrap,
        )
        require_not_negative('Search', seed=self.seed)
        least = rank.rows_per_fit(self.window)
        if self.num_windows < least:
            raise ConfigError(
                f'Search.num_windows: expected at least 4 (W + 1) = {least} windows for '
                f'W = {self.window}, which one local regression needs, found '
                f'{self.num_windows}; raise --windows or lower --window.'
            )


class Evidence(NamedTuple):
    """Samples of one version of the operator, and what noise would look like in them."""

    samples: Array
    """Shape (S, m, d)."""
    noise: rank.NullDraw | None
    """None where the question does not arise: v1 and v2 say nothing about lags."""


def gather(settings: Settings, search: Search, tau_z_s: float) -> dict[str, Evidence]:
    """Return the samples of every version, all from the same windows.

    All tau_z share payloads, phases and instants, so that their K* differ by the memory alone.
    """
    num, window = search.num_windows, search.window
    episodes, instant, noise = np.random.default_rng(search.seed).spawn(3)
    motion = rank.simulate(settings, num, tau_z_s, episodes)
    instants = rank.draw_instants(settings.episode_steps, num, window, instant)
    memory = rank.PerturbedMemory(
        tau_z_s=tau_z_s,
        gain_nmprad=one_for_all(
            'friction.memory_gain_nmprad', settings.plant.friction.memory_gain_nmprad
        ),
        v_p_radps=search.v_p_radps,
        dt_s=1.0 / settings.controller.law.rate_hz,
    )
    linear = replace(memory, v_p_radps=math.inf)
    lags = -np.arange(1, window + 1)
    future = rank.at_offsets(motion.tokens, instants, -lags)
    qd = np.moveaxis(rank.at_offsets(motion.qd_radps, instants, lags), 1, -1)  # (N, n, W)
    measured = qd + search.velocity_noise_radps * noise.standard_normal(qd.shape)
    z = rank.at_offsets(memory.along(motion.qd_radps), instants, np.array([0]))[:, 0]  # (N, n)
    fits = rank.fit_gradients(measured, z)
    exact, constant = (
        rank.gradient_samples(m, motion, instants, window) for m in (memory, linear)
    )
    return {
        # All rows of all windows, (N, W, F); the rows 1..W steps ahead as one stack, (N, 1, W F).
        'v1': Evidence(rank.at_offsets(motion.tokens, instants, np.arange(1 - window, 1)), None),
        'v2': Evidence(future.reshape(num, 1, -1), None),
        'v3_exact': Evidence(exact, rank.isotropic_noise),
        'v3_centred': Evidence(exact - exact.mean(axis=0), rank.isotropic_noise),
        'v3_regression': Evidence(fits.gradient, rank.regression_noise(fits.covariance)),
        'v3_linear': Evidence(constant, rank.isotropic_noise),
    }


def judge(evidence: Evidence, search: Search) -> dict[str, Any]:
    """Return K*, its bootstrap interval, the spectrum and whether noise sets the rank."""
    samples, thresholds = evidence.samples, search.thresholds
    operator = rank.operator_of(samples)
    values, _ = rank.spectrum(operator)
    heads = rank.count_heads(operator, thresholds)
    printed = rank.count_heads(operator, thresholds, signal='residual')
    draws, null = np.random.default_rng([search.seed, 1]).spawn(2)
    drawn = rank.bootstrap_k_star(samples, thresholds, search.num_bootstrap, draws)
    low, high = np.percentile(drawn, [2.5, 97.5], method='nearest').tolist()
    above = None
    if evidence.noise is not None:
        above = rank.count_above_noise(samples, heads, null, evidence.noise)
    return {
        'k_star': heads.k_star,
        'k_star_interval': [low, high],
        'k_star_bootstrap': {str(k): n for k, n in sorted(Counter(drawn.tolist()).items())},
        'r_eff': rank.participation_ratio(values),
        'spectrum': values.tolist(),
        'growth': list(heads.growth),
        'num_iterations': heads.num_iterations,
        'num_samples': len(samples),
        'k_star_residual_signal': printed.k_star,
        'growth_residual_signal': list(printed.growth),
        'num_above_noise': above,
        'noise_sets_the_rank': above is not None and above < heads.k_star,
    }


def search_heads(
    settings: Settings, search: Search, tau_z_s: float, advance: Callable[[], None]
) -> dict[str, Any]:
    """Return the record of one memory horizon; `advance` is called once per version."""
    gathered = gather(settings, search, tau_z_s)
    versions = {}
    for version in VERSIONS:
        versions[version] = judge(gathered[version], search)
        advance()
    k_star = versions['v3_exact']['k_star']
    k_paper, r_paper = PAPER.get(tau_z_s, (None, None))
    return {
        'tau_z': tau_z_s,
        'k_star': k_star,
        'phase2_heads': [max(1, math.ceil(k_star / 2)), max(1, k_star)],
        'paper': {'k_star': k_paper, 'r_eff': r_paper},
        'versions': versions,
    }


def run(
    settings: Settings, search: Search, tau_z_s: Sequence[float], console: Console
) -> dict[str, Any]:
    """Search the heads of every memory horizon under a progress bar; return the report."""
    steps = settings.episode_steps
    if 2 * search.window > steps:
        raise ConfigError(
            f'Search.window: expected at most {steps // 2}, half an episode of {steps} steps, '
            f'found {search.window}; lower --window.'
        )
    records = []
    with progress_bar(console) as progress:
        bar = progress.add_task('operators', total=len(tau_z_s) * len(VERSIONS))
        for tau_z in tau_z_s:
            progress.update(bar, description=f'tau_z = {tau_z:g} s')
            advance = partial(progress.advance, bar)
            records.append(search_heads(settings, search, tau_z, advance))
    return {'search': asdict(search), 'records': records, **provenance(settings)}


def print_table(records: Sequence[dict[str, Any]], console: Console) -> None:
    """Show one column per memory horizon: the paper's K*, then ours, then what is amiss.

    Ours come with the 95 % bootstrap interval. `printed` is K* of v3 exact under the growth signal
    that the paper prints.
    """
    title = 'Phase 1: heads K* and effective rank, beside the paper'
    table = Table(title=title, box=SIMPLE, padding=(0, 1, 0, 0), pad_edge=False)
    table.add_column('tau_z', no_wrap=True)
    for record in records:
        table.add_column(f'{record["tau_z"]:g} s', justify='right', no_wrap=True)
    table.add_row('paper', *(text_of(record['paper']['k_star'], 'g') for record in records))
    for name, text in NAMES.items():
        found = [r['versions'][name] for r in records]
        ends = [f'{low}-{high}' for low, high in (v['k_star_interval'] for v in found)]
        table.add_row(text, *(f'{v["k_star"]} ({e})' for v, e in zip(found, ends, strict=True)))
    exact = [record['versions']['v3_exact'] for record in records]
    table.add_row('v3 exact, printed', *(str(v['k_star_residual_signal']) for v in exact))
    table.add_section()
    table.add_row('r_eff, paper', *(text_of(record['paper']['r_eff'], 'g') for record in records))
    for name in ('v3_exact', 'v3_regression'):
        ranks = (r['versions'][name]['r_eff'] for r in records)
        table.add_row(f'r_eff, {NAMES[name]}', *(f'{r_eff:.2f}' for r_eff in ranks))
    console.print(table)
    for line in remarks(records):
        console.print(line, highlight=False, soft_wrap=True)


def remarks(records: Sequence[dict[str, Any]]) -> list[str]:
    """Return what a reader must know before using the numbers."""
    lines = []
    for record in records:
        at = f'tau_z = {record["tau_z"]:g} s'
        for name, version in record['versions'].items():
            if version['noise_sets_the_rank']:
                lines.append(
                    f'[yellow]warning:[/yellow] {at}, {name}: noise, not memory, sets the rank: '
                    f'{version["num_above_noise"]} of K* = {version["k_star"]} directions rise '
                    'above noise.'
                )
        paper, own = record['paper']['k_star'], record['versions']['v3_exact']
        low, high = own['k_star_interval']
        if paper is not None and not low <= paper <= high:
            lines.append(
                f"{at}: the paper's K* = {paper} is not reproduced; found {own['k_star']}, "
                f'interval {low} to {high}.'
            )
    return lines


def plot_spectra(path: Path, records: Sequence[dict[str, Any]]) -> None:
    """Draw the spectra of v3, exact and fitted, relative to the leading eigenvalue."""
    figure, axes = pyplot.subplots(1, 2, figsize=(11, 4.5), sharey=True)
    titles = {'v3_exact': 'v3, exact sensitivities', 'v3_regression': 'v3, regression'}
    for axis, (name, title) in zip(axes, titles.items(), strict=True):
        for record in records:
            version = record['versions'][name]
            values = np.array(version['spectrum'])
            label = f'tau_z = {record["tau_z"]:g} s, K* = {version["k_star"]}'
            axis.semilogy(np.arange(1, len(values) + 1), values / values[0], '.-', label=label)
        axis.set_title(title)
        axis.set_xlabel('index')
        axis.set_ylim(1e-6, 2.0)
        axis.xaxis.set_major_locator(MaxNLocator(integer=True))
        axis.grid(alpha=0.3)
        axis.legend(fontsize='small', framealpha=0.5)
    axes[0].set_ylabel('eigenvalue / leading eigenvalue')
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def parse_args(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Return the command line as a namespace."""
    parser = command_parser('phase1', __doc__)
    usual = Search()
    text = 'memory horizons in seconds (default: 1 2 3 4 5)'
    horizons: dict[str, Any] = {'type': positive_number, 'nargs': '+', 'default': list(PAPER)}
    parser.add_argument('--tau-z', metavar='S', help=text, **horizons)
    options: tuple[tuple[str, type, float, str], ...] = (
        ('--windows', int, usual.num_windows, 'N, one per episode'),
        ('--window', int, usual.window, 'W, in control periods'),
        ('--v-p', float, usual.v_p_radps, 'of the perturbed memory, rad/s'),
        ('--bootstrap', int, usual.num_bootstrap, 'draws for the interval of K*'),
        ('--seed', int, usual.seed, 'of everything random'),
    )
    for name, kind, default, text in options:
        parser.add_argument(name, type=kind, default=default, help=f'{text} (%(default)s)')
    text = 'folder for phase1.json and spectrum.png (default: %(default)s)'
    parser.add_argument('--out', type=Path, default=Path('runs/phase1'), help=text)
    parser.add_argument('--json', type=Path, metavar='FILE', help='also write the report here')
    return parser.parse_args(arguments)


@refusing
def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
    args = parse_args(arguments)
    console = Console(stderr=True)
    search = Search(
        num_windows=args.windows,
        window=args.window,
        v_p_radps=args.v_p,
        num_bootstrap=args.bootstrap,
        seed=args.seed,
    )
    report = run(load_settings(), search, args.tau_z, console)
    for path in filter(None, (args.out / 'phase1.json', args.json)):
        write_json(path, report)
    plot_spectra(args.out / 'spectrum.png', report['records'])
    print_table(report['records'], Console())
    console.print(f'report and spectrum in {args.out}', highlight=False)
    return 0


if __name__ == '__main__':
    raise SystemExit(main())
