# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""What Phase 1 shows a reader: a table beside the paper's, remarks, and the spectra."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

matplotlib.use('Agg')
from matplotlib import pyplot
from matplotlib.ticker import MaxNLocator

NAMES = {
    'v1': 'v1 features',
    'v2': 'v2 horizons',
    'v3_exact': 'v3 exact',
    'v3_centred': 'v3 centred',
    'v3_regression': 'v3 fitted',
    'v3_linear': 'v3 linear',
}


def print_table(records: Sequence[dict[str, Any]], console: Console) -> None:
    """Show one column per memory horizon: the paper's K*, then ours, then what is amiss.

    Ours come with the 95 % bootstrap interval. `printed` is K* of v3 exact under the growth signal
    that the paper prints.
    """
    table = Table(
        title='Phase 1: heads K* and effective rank, beside the paper',
        box=SIMPLE,
        padding=(0, 1, 0, 0),
        pad_edge=False,
    )
    table.add_column('tau_z', no_wrap=True)
    for record in records:
        table.add_column(f'{record["tau_z"]:g} s', justify='right', no_wrap=True)
    table.add_row('paper', *(_number(record['paper']['k_star']) for record in records))
    for name, text in NAMES.items():
        table.add_row(text, *(_with_interval(r['versions'][name]) for r in records))
    exact = [record['versions']['v3_exact'] for record in records]
    table.add_row('v3 exact, printed', *(str(v['k_star_residual_signal']) for v in exact))
    table.add_section()
    table.add_row('r_eff, paper', *(_number(record['paper']['r_eff']) for record in records))
    for name in ('v3_exact', 'v3_regression'):
        ranks = (r['versions'][name]['r_eff'] for r in records)
        table.add_row(f'r_eff, {NAMES[name]}', *(f'{rank:.2f}' for rank in ranks))
    console.print(table)
    for line in remarks(records):
        console.print(line, highlight=False, soft_wrap=True)


def _number(value: float | None) -> str:
    return '-' if value is None else f'{value:g}'


def _with_interval(version: dict[str, Any]) -> str:
    low, high = version['k_star_interval']
    return f'{version["k_star"]} ({low}-{high})'


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
