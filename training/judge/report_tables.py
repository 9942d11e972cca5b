# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""Tables of a report as they are printed, the paper's numbers beside ours where it has any."""

from collections.abc import Mapping, Sequence
import csv
from pathlib import Path
from typing import Any

from rich.box import SIMPLE
from rich.table import Table

from training.judge.analysis import comparison_facts, facts_of, Report
from training.paper_numbers import in_thousands

NOT_RUN = 'not run'


def main_rows(report: Report) -> list[dict[str, str]]:
    """Return the main table by heading; the paper's columns only if it has one of the rows."""
    facts = [facts_of(report, row) for row in report.rows]
    has_printed = any(row['paper_n'] is not None for row in facts)
    return [_main_text(row) | (_printed_text(row) if has_printed else {}) for row in facts]


def _main_text(facts: Mapping[str, Any]) -> dict[str, str]:
    was_run = facts['n'] > 0
    delta = text_of(facts['delta_mean'], '.2f', 'no mean') if was_run else NOT_RUN
    parameters = facts['num_parameters']
    return {
        'tau_z': f'{facts["tau_z"]:g} s',
        'architecture': facts['architecture'],
        'K': text_of(facts['heads'], 'g'),
        'W': text_of(facts['window'], 'g'),
        'n': str(facts['n']),
        'params': in_thousands(parameters) if parameters else '-',
        'delta %': with_spread(delta, facts['delta_std']),
        'failures': f'{facts["num_failures"]}/{facts["n"]}' if was_run else '-',
    }


def _printed_text(facts: Mapping[str, Any]) -> dict[str, str]:
    parameters = facts['paper_thousand_parameters']
    delta = text_of(facts['paper_delta_mean'], '.2f')
    return {
        'in the paper': facts['paper_name'] or '-',
        'paper n': text_of(facts['paper_n'], 'd'),
        'paper params': '-' if parameters is None else in_thousands(1000.0 * parameters),
        'paper delta %': with_spread(delta, facts['paper_delta_std']),
    }


def comparison_rows(report: Report) -> list[dict[str, str]]:
    """Return the comparisons by heading; the paper's columns only if it has one of them."""
    facts = comparison_facts(report)
    has_printed = any(row['paper_d'] is not None for row in facts)
    return [_tests_text(row) | (_printed_tests(row) if has_printed else {}) for row in facts]


def _tests_text(facts: Mapping[str, Any]) -> dict[str, str]:
    ends = [facts['d_low'], facts['d_high']]
    return {
        'tau_z': f'{facts["tau_z"]:g} s',
        'candidate': facts['candidate'],
        'reference': facts['reference'],
        'd': text_of(facts['d'], '.2f'),
        '95 % of d': '-' if None in ends else f'{ends[0]:.2f} to {ends[1]:.2f}',
        'p_U': probability(facts['p_u']),
        'Holm': probability(facts['p_u_holm']),
        'p_W': probability(facts['p_w']),
        'verdict': facts['verdict'] or NOT_RUN,
    }


def _printed_tests(facts: Mapping[str, Any]) -> dict[str, str]:
    return {
        'paper d': text_of(facts['paper_d'], '.2f'),
        'paper p_U': text_of(facts['paper_p_u'], '.3f'),
        'paper p_W': text_of(facts['paper_p_w'], '.3f'),
    }


def text_of(value: float | None, form: str, absent: str = '-') -> str:
    """Return a number in a form, or what stands where there is none."""
    return absent if value is None else f'{value:{form}}'


def probability(value: float | None) -> str:
    """Return a p with three digits; one that is too small for them says so."""
    return '< 0.001' if value is not None and value < 0.001 else text_of(value, '.3f')


def with_spread(mean: str, std: float | None) -> str:
    """Return mean and standard deviation, where there is one."""
    return mean if std is None else f'{mean} ± {std:.2f}'


def terminal_table(title: str, rows: Sequence[Mapping[str, str]]) -> Table:
    """Return rows for a terminal."""
    table = Table(title=title, box=SIMPLE, padding=(0, 1, 0, 0), pad_edge=False)
    for heading in rows[0]:
        table.add_column(heading, justify='right', no_wrap=True)
    for row in rows:
        table.add_row(*row.values())
    return table


def markdown_table(rows: Sequence[Mapping[str, str]]) -> str:
    """Return rows in Markdown; nothing if there are none."""
    if not rows:
        return ''
    lines = [list(rows[0]), ['---'] * len(rows[0]), *(list(row.values()) for row in rows)]
    return ''.join(f'| {" | ".join(line)} |\n' for line in lines)


def write_csv(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Write rows under their keys; what is None stays empty, and no rows make no file."""
    if not rows:
        path.unlink(missing_ok=True)
        return
    with path.open('w', encoding='utf-8', newline='') as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator='\n')
        writer.writeheader()
        writer.writerows(rows)
