# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""A replayed run as one HTML file that needs nothing else: no network, no script, no other file.

Whatever comes out of a bag is text, never markup: names in it may be anything.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

from metactl_ros.check.certificates import Violation
from metactl_ros.replay.figures import draw_plots, Plot

if TYPE_CHECKING:
    from metactl_ros.bag.tick_log import TickLog
    from metactl_ros.replay.recompute import Reproduction

MOST_LISTED = 200
"""Violations; of more only the number is reported."""
POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"
CSS = """
:root { color-scheme: light dark; --ink: #222; --paper: #fff; --line: #ccc; --shade: #f4f4f4; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #ddd; --paper: #16181b; --line: #444; --shade: #1f2226; }
}
body { background: var(--paper); color: var(--ink); font: 16px/1.45 system-ui, sans-serif;
  margin: 0 auto; max-width: 1400px; padding: 1rem; overflow-wrap: anywhere; }
h1 { font-size: 1.4rem; margin: 0 0 .8rem; }
h2 { font-size: 1.15rem; margin: 2rem 0 .6rem; border-bottom: 1px solid var(--line); }
.verdict { border-left: .6rem solid; background: var(--shade); font-size: 1.15rem;
  margin: 0 0 1rem; padding: .7rem 1rem; white-space: pre-line; }
.green { border-color: #009e73; } .amber { border-color: #e69f00; } .red { border-color: #d55e00; }
.grid { display: grid; gap: 1.2rem;
  grid-template-columns: repeat(auto-fit, minmax(min(100%, 520px), 1fr)); }
.facts { max-width: 760px; }
details { margin-top: 2rem; } summary { cursor: pointer; font-weight: 600; }
figure { margin: 0; } figcaption { font-weight: 600; font-size: .95rem; }
img { display: block; height: auto; width: 100%; }
table { border-collapse: collapse; font-size: .9rem; width: 100%; }
th, td { border-bottom: 1px solid var(--line); padding: .2rem .6rem .2rem 0; text-align: left;
  vertical-align: top; font-weight: normal; }
th[scope=row] { overflow-wrap: normal; width: 40%; }
.list { overflow-x: auto; } .list td, .list th { white-space: nowrap; }
td { font-variant-numeric: tabular-nums; }
"""


def write_page(
    path: Path,
    title: str,
    summary: Sequence[tuple[str, str]],
    facts: Mapping[str, object],
    log: 'TickLog',
    again: 'Reproduction | None',
    violations: Sequence[Violation],
) -> None:
    """Write the page of a run.

    Args:
        path: Of the HTML file; its folder is made.
        title: Above everything.
        summary: What a reader wants to know first, line by line: a name and a value.
        facts: `verdict` comes first of all; the rest, however nested, is in a folded table. With
            something in `partial` the page is not green.
        log: What was recorded.
        again: The same ticks computed again, if they were.
        violations: Of the certificates.
    """
    plots = draw_plots(log, again, violations)
    body = [
        f'<h1>{escape(title)}</h1>',
        f'<p class="verdict {_colour(facts, log, again, violations)}" role="status">'
        f'{escape(str(facts.get("verdict", "no verdict")))}</p>',
        _table(summary),
        *_difference(again),
        *_violations(violations),
    ]
    for section in dict.fromkeys(plot.section for plot in plots):
        body.append(f'<h2>{section}</h2>\n<div class="grid">')
        body += [_figure(plot) for plot in plots if plot.section == section]
        body.append('</div>')
    body += ['<details><summary>All figures</summary>', _table(_flat(facts)), '</details>']
    text = '\n'.join(
        [
            '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">',
            f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f'<title>{escape(title)}</title>\n<style>{CSS}</style>\n</head>\n<body>',
            *body,
            '</body>\n</html>\n',
        ]
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding='utf-8', errors='replace')


def _colour(
    facts: Mapping[str, object],
    log: 'TickLog',
    again: 'Reproduction | None',
    violations: Sequence[Violation],
) -> str:
    """Return red for what is wrong, amber for what is not all or was not compared."""
    if violations or (again is not None and again.first_difference is not None):
        return 'red'
    is_whole = not log.problems and not log.num_incomplete and not facts.get('partial')
    is_compared = again is not None and not again.is_open_loop and bool(again.is_compared.any())
    return 'green' if is_whole and is_compared else 'amber'


def _table(rows: Iterable[tuple[str, object]]) -> str:
    cells = '\n'.join(
        f'<tr><th scope="row">{escape(name)}</th><td>{escape(_said(value))}</td></tr>'
        for name, value in rows
    )
    return f'<table class="facts">\n{cells}</table>'


def _flat(facts: Mapping[str, object], prefix: str = '') -> Iterator[tuple[str, object]]:
    """Yield every figure with its path of names."""
    for name, value in facts.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f'{prefix}{name} / ')
        else:
            yield f'{prefix}{name}', value


def _said(value: object) -> str:
    """Return a value as a reader wants it: six digits, words for truth, lists in one line."""
    if isinstance(value, bool):
        return 'yes' if value else 'no'
    if isinstance(value, float):
        return f'{value:.6g}'
    if isinstance(value, list | tuple):
        return ', '.join(map(_said, value)) or 'none'
    return 'none' if value is None else str(value)


def _difference(again: 'Reproduction | None') -> Iterator[str]:
    if again is None or again.first_difference is None:
        return
    found = again.first_difference
    yield (
        f'<h2>First difference</h2>\n<p>Tick {found.tick}, at {found.time_s:.3f} s: '
        f'{escape(str(found.quantity))} of {escape(str(found.joint_or_gain))} was recorded as '
        f'{found.recorded!r} and computed as {found.recomputed!r}.</p>'
    )


def _violations(violations: Sequence[Violation]) -> Iterator[str]:
    if not violations:
        return
    yield f'<h2>Violations: {len(violations)}</h2>'
    head = ''.join(
        f'<th scope="col">{name}</th>' for name in ('tick', 'time [s]', 'what', 'found', 'allowed')
    )
    rows = '\n'.join(
        f'<tr><td>{v.tick}</td><td>{v.time_s:.3f}</td><td>{escape(v.what)}</td>'
        f'<td>{v.found:.4g}</td><td>{v.allowed:.4g}</td></tr>'
        for v in violations[:MOST_LISTED]
    )
    yield f'<div class="list"><table><tr>{head}</tr>\n{rows}</table></div>'
    if len(violations) > MOST_LISTED:
        yield f'<p>And {len(violations) - MOST_LISTED} more.</p>'


def _figure(plot: Plot) -> str:
    source = quote(plot.svg, safe=" =:/'(),;.-_!*[]{}")
    return (
        f'<figure><figcaption>{escape(plot.heading)}</figcaption>'
        f'<img src="data:image/svg+xml,{source}" alt="{escape(plot.alt)}"></figure>'
    )
