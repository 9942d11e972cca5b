# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""The page of a replayed run, and its plots: one HTML file that needs nothing else.

It needs no network, no script and no other file. Whatever comes out of a bag is text, never
markup: names in it may be anything. A plot is a small SVG with its heading and an alternative
text. Colours are those of Okabe and Ito, which colour-blind people can distinguish; lines differ
in style as well. Text and axes take their colour from the reader's light or dark scheme.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from html import escape
import io
from pathlib import Path
import re
from typing import Any, NamedTuple
from urllib.parse import quote
import warnings

import matplotlib
from matplotlib.figure import Figure
import numpy as np
from numpy.typing import NDArray

from metactl_ros.bag.tick_log import TickLog
from metactl_ros.check.certificates import Violation
from metactl_ros.control.modes import Mode
from metactl_ros.replay.recompute import Reproduction
from metactl_ros.signals import Array

BLUE, ORANGE, GREEN, PURPLE, SKY, YELLOW = (
    *('#0072B2', '#D55E00', '#009E73', '#CC79A7', '#56B4E9', '#E69F00'),
)
MODE_COLOURS = dict(zip(Mode, (GREEN, SKY, YELLOW, PURPLE, BLUE, ORANGE), strict=True))
INK = '#010203'
"""Stands for the colour of text until the reader's scheme is known."""
SCHEME = (
    f'<style>:root{{--ink:#333;--main:{BLUE}}}'
    f'@media (prefers-color-scheme:dark){{:root{{--ink:#ccc;--main:{SKY}}}}}</style>'
)
DRAWING: dict[Any, Any] = {
    'svg.fonttype': 'none',
    'svg.hashsalt': 'metactl',
    'text.parse_math': False,  # a name of the bag may hold a dollar sign
    'font.family': 'sans-serif',
    'font.size': 9.5,
    'lines.linewidth': 1.1,
    **dict.fromkeys(
        ('text.color', 'axes.edgecolor', 'axes.labelcolor', 'xtick.color', 'ytick.color'), INK
    ),
}
GAIN_UNITS = {
    'kd_per_s': 'K_d [1/s]',
    'lambda_per_s': 'Lambda [1/s]',
    'kp_per_s2': 'K_p [1/s^2]',
    'bias': 'bias [N m]',
    'coulomb': 'Coulomb [N m]',
    'estimate': 'estimate [1]',
}
NUM_BUCKETS = 600
"""A line has at most two points in each: the least and the largest."""
LARGEST = 1e9
"""Beyond it a number is not drawn."""
MOST_MARKS = 300
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


class Plot(NamedTuple):
    """One figure of the page."""

    heading: str
    svg: str
    alt: str


class _Line(NamedTuple):
    label: str
    values: Array
    colour: str
    style: Any = '-'


def printable(name: object) -> str:
    """Return a name as a drawing can show it: one line of visible characters, not too long."""
    text = ''.join(letter if letter.isprintable() else '?' for letter in str(name))
    return text if len(text) <= 40 else f'{text[:39]}…'


def kept_rows(values: Array) -> NDArray[np.int64]:
    """Return the rows of a line, shape (T,), that show all its peaks: at most two per bucket."""
    size = -(-len(values) // NUM_BUCKETS)
    if size <= 2:
        return np.arange(len(values))
    padded = np.concatenate([values, np.full(-len(values) % size, np.nan)]).reshape(-1, size)
    begin = np.arange(len(padded)) * size
    low = begin + np.argmin(np.where(np.isnan(padded), np.inf, padded), axis=1)
    high = begin + np.argmax(np.where(np.isnan(padded), -np.inf, padded), axis=1)
    return np.unique(np.concatenate([[0, len(values) - 1], low, high]))


def draw_plots(
    log: TickLog, again: Reproduction, violations: Sequence[Violation]
) -> dict[str, list[Plot]]:
    """Return every plot of a run by the heading of its section, in the order of the page."""
    with warnings.catch_warnings(), matplotlib.rc_context(DRAWING):
        warnings.simplefilter('ignore')  # a letter may be missing from the font
        marks = _Marks(log, again, violations)
        sections = {
            'Tracking': [*_tracking(log, marks)],
            'Effort': [*_efforts(log, again, marks)],
            'Gains': [*_gains(log, again, marks)],
            'Estimate': [*_estimates(log, again, marks)],
            'Shield': [*_shield(log, marks)],
            'Timing': [*_timing(log, marks)],
        }
    # What another controller would have done moved nothing: these are the recorded one's.
    for section in ('Tracking', 'Shield', 'Timing') if again.is_open_loop else ():
        for number, plot in enumerate(sections[section]):
            whose = f'{plot.heading}, of the recorded run'
            sections[section][number] = plot._replace(heading=whose)
    return {section: plots for section, plots in sections.items() if plots}


class _Marks:
    """Draws figures over the time of one run, with what is wrong marked in each."""

    def __init__(self, log: TickLog, again: Reproduction, violations: Sequence[Violation]) -> None:
        self.time_s = log.time_s
        times = sorted({violation.time_s for violation in violations})
        self._violations = times[:: -(-len(times) // MOST_MARKS) or 1]
        difference = again.first_difference
        self._difference_s = difference and difference.time_s

    def lines(
        self, heading: str, label: str, alt: str, *lines: _Line, is_wide: bool = False
    ) -> Plot:
        """Return a plot of lines over time; one of a wide range bends its axis."""
        figure, axes = _figure()
        for line in lines:
            label_of, values, colour, style = line
            values = np.where(np.abs(values) <= LARGEST, values, np.nan)  # NaN is not
            rows = kept_rows(values)
            axes.plot(self.time_s[rows], values[rows], style, color=colour, label=label_of)
        if is_wide:
            axes.set_yscale('symlog', linthresh=0.1)
            axes.yaxis.set_major_formatter('{x:g}')
        return self.finish(figure, heading, label, alt, has_legend=len(lines) > 1)

    def finish(
        self, figure: Figure, heading: str, label: str, alt: str, *, has_legend: bool = False
    ) -> Plot:
        """Return a plot with axes over time, once the marks are on it."""
        (axes,) = figure.axes
        at_s, difference_s = self._violations, self._difference_s
        if at_s:
            low, ground = np.full(len(at_s), 0.03), axes.get_xaxis_transform()
            (marks,) = axes.plot(at_s, low, '^', color=ORANGE, ms=5, transform=ground)
            marks.set(label='violation', clip_on=False)
        if difference_s is not None:
            axes.axvline(difference_s, color=ORANGE, ls='--', lw=1.2, label='first difference')
        axes.set_xlabel('time [s]')
        axes.set_ylabel(label)
        axes.grid(alpha=0.25)
        if has_legend or at_s or difference_s is not None:
            figure.legend(loc='upper left', ncols=3, frameon=False, fontsize=8.5)
        return Plot(heading, _svg_of(figure), alt)


def _figure() -> tuple[Figure, Any]:
    figure = Figure(figsize=(5.2, 2.7))
    axes = figure.add_axes((0.17, 0.17, 0.81, 0.66))
    axes.spines[['top', 'right']].set_visible(False)
    for artist in (figure.patch, axes.patch):
        artist.set_visible(False)
    return figure, axes


def _svg_of(figure: Figure) -> str:
    """Return a figure as SVG without what a page does not need."""
    buffer = io.StringIO()
    figure.savefig(buffer, format='svg', metadata={'Date': None, 'Creator': None})
    text = buffer.getvalue()
    text = text[text.index('<svg') :].replace(INK, 'var(--ink)')
    text = text.replace(BLUE.lower(), 'var(--main)')
    text = re.sub(r'<metadata>.*?</metadata>', '', text, flags=re.DOTALL)
    head, body = text.split('>', 1)

    def shorter(match: re.Match[str]) -> str:
        numbers = re.sub(r'-?\d+\.\d+', lambda n: f'{float(n[0]):.1f}', match[0])
        return ' '.join(numbers.split())

    return f'{head}>{SCHEME}' + re.sub(r'\bd="[^"]*"', shorter, body)


def _tracking(log: TickLog, marks: _Marks) -> Iterator[Plot]:
    span = f'over {log.time_s[-1]:.1f} s'
    names = [printable(name) for name in log.joint_names]
    for joint, name in enumerate(names):
        q, wanted = log.q_rad[:, joint], log.q_desired_rad[:, joint]
        yield marks.lines(
            f'Position of {name}',
            'position [rad]',
            f'Position of {name} and its reference {span}, {q.min():.3g} to {q.max():.3g} rad.',
            _Line('reference', wanted, YELLOW, '--'),
            _Line('measured', q, BLUE),
        )
    for joint, name in enumerate(names):
        miss = log.q_desired_rad[:, joint] - log.q_rad[:, joint]
        rms = float(np.sqrt(np.mean(miss**2)))
        yield marks.lines(
            f'Tracking error of {name}: {rms:.4g} rad rms',
            'error [rad]',
            f'Tracking error of {name} {span}; root mean square {rms:.4g} rad.',
            _Line('error', miss, BLUE),
        )


def _efforts(log: TickLog, again: Reproduction, marks: _Marks) -> Iterator[Plot]:
    how = 'in open loop' if again.is_open_loop else 'again'
    names, both = [printable(name) for name in log.joint_names], f', recorded and computed {how}'
    for joint, name in enumerate(names):
        recorded = log.effort_nm[:, joint]
        yield marks.lines(
            f'Effort of {name}{both}',
            'effort [N m]',
            f'Effort of {name}, at most {abs(recorded).max():.3g} N m{both}.',
            _Line('recorded', recorded, BLUE),
            _Line(f'computed {how}', again.effort_nm[:, joint], YELLOW, ':'),
        )
    for joint, name in enumerate(names):
        apart = again.effort_nm[:, joint] - log.effort_nm[:, joint]
        largest = float(np.nanmax(np.abs(apart), initial=0.0))
        yield marks.lines(
            f'Effort of {name} computed {how}, less the recorded one',
            'difference [N m]',
            f'Difference of the two efforts of {name}; the largest is {largest:.3g} N m.',
            _Line('difference', apart, BLUE),
        )


def _gains(log: TickLog, again: Reproduction, marks: _Marks) -> Iterator[Plot]:
    for k, name in enumerate(map(printable, log.gain_names)):
        values = log.gains[:, k]
        heading, lines = f'Gain {name}', [_Line('recorded', values, BLUE)]
        if again.is_open_loop and log.gain_names[k] in again.gain_names:
            heading += ', recorded and computed in open loop'
            other = again.gains[:, again.gain_names.index(log.gain_names[k])]
            lines.append(_Line('computed in open loop', other, YELLOW, ':'))
        alt = f'{heading}; recorded values {values.min():.3g} to {values.max():.3g}.'
        unit = GAIN_UNITS.get(name.removeprefix('feed_forward.').split('.')[0], 'gain')
        yield marks.lines(heading, unit, alt, *lines)


def _estimates(log: TickLog, again: Reproduction, marks: _Marks) -> Iterator[Plot]:
    """Yield what the model was estimated to lack; nothing without an estimator."""
    known = [('recorded', log.estimate_nm, BLUE, '-')]
    if again.is_open_loop:
        known.append(('computed in open loop', again.estimate_nm, YELLOW, ':'))
    known = [entry for entry in known if entry[1] is not None]
    for joint, name in enumerate(map(printable, log.joint_names if known else ())):
        lines = [_Line(label, x[:, joint], *look) for label, x, *look in known if x is not None]
        heading = f'What the model of {name} lacks, {" and ".join(x.label for x in lines)}'
        most = max(float(np.nanmax(np.abs(x.values), initial=0.0)) for x in lines)
        alt = f'{heading}; at most {most:.3g} N m.'
        yield marks.lines(heading, 'estimate [N m]', alt, *lines)


def _shield(log: TickLog, marks: _Marks) -> Iterator[Plot]:
    shield = log.shield
    figure, axes = _figure()
    modes = np.nan_to_num(shield['mode'], nan=-1.0)
    begins = np.flatnonzero(np.diff(modes, prepend=np.nan) != 0.0)
    period_s = float(np.median(np.diff(marks.time_s))) if len(modes) > 1 else 0.0
    ends = np.append(begins[1:], len(modes))
    stop_s = np.append(marks.time_s, marks.time_s[-1] + period_s)
    for mode, colour in MODE_COLOURS.items():
        spans = [
            (marks.time_s[a], max(stop_s[b] - marks.time_s[a], 0.0))
            for a, b in zip(begins, ends, strict=True)
            if modes[a] == mode
        ]
        axes.broken_barh(spans, (mode - 0.4, 0.8), facecolors=colour)
    axes.set_yticks([*Mode], [mode.name for mode in Mode])
    axes.set_ylim(5.6, -0.6)
    axes.set_xlim(marks.time_s[0], stop_s[-1])
    shares = ', '.join(
        f'{mode.name} {100.0 * np.mean(modes == mode):.3g} %' for mode in Mode if mode in modes
    )
    yield marks.finish(figure, 'Modes', '', f'Modes over time: {shares}.')
    distance, was_moved = shield['distance'], shield['was_moved'] > 0.0
    share = 100.0 * float(np.mean(was_moved))
    yield marks.lines(
        f'How far the shield moved the proposal; {share:.3g} % of the ticks',
        'distance [1]',
        f'Distance by which the shield moved proposals; it was active at {share:.3g} % of ticks.',
        _Line('moved by', np.where(distance < 0.0, np.nan, distance), BLUE),
        _Line('replaced', np.where(distance < 0.0, 0.0, np.nan), PURPLE, 'x'),
    )
    yield marks.lines(
        'Lyapunov condition: at most zero is admissible',
        'V_dot + alpha (V - v_0) [1/s]',
        'Excess over the Lyapunov condition, of the gains and of the effort after limits; of the '
        f'gains it is at most {np.nanmax(shield["excess"]):.3g}.',
        _Line('after limits', shield['excess_after_limits'], YELLOW, ':'),
        _Line('of the gains', shield['excess'], BLUE),
        is_wide=True,
    )


def _timing(log: TickLog, marks: _Marks) -> Iterator[Plot]:
    late, took = log.shield['late_ms'], log.shield['inference_ms']
    yield marks.lines(
        'Lateness of each tick',
        'late [ms]',
        f'Lateness of each tick over time, at most {np.nanmax(late):.3g} ms.',
        _Line('late', late, BLUE),
    )
    asked = took[took > 0.0]
    for heading, values in (('Lateness', late), ('Inference time', asked)):
        figure, axes = _figure()
        numbers = values[np.abs(values) <= LARGEST]
        axes.hist(numbers, bins=40, color=BLUE)
        axes.set_yscale('symlog')
        axes.yaxis.set_major_formatter('{x:g}')
        axes.set_ylim(bottom=0.0)
        axes.set_xlabel(f'{heading.lower()} [ms]')
        axes.set_ylabel('ticks')
        axes.grid(alpha=0.25)
        median, most = (np.median(numbers), numbers.max()) if len(numbers) else (0.0, 0.0)
        alt = f'Histogram of {heading.lower()}: median {median:.3g} ms, at most {most:.3g} ms.'
        yield Plot(f'{heading}, how often', _svg_of(figure), alt)


def write_page(
    path: Path,
    title: str,
    summary: Sequence[tuple[str, str]],
    facts: Mapping[str, object],
    log: TickLog,
    again: Reproduction,
    violations: Sequence[Violation],
) -> None:
    """Write the page of a run, and its folder.

    The summary is what a reader wants to know first, line by line: a name and a value. Of the
    facts `verdict` comes before it; the rest, however nested, is in a folded table. With something
    in `partial` the page is not green.
    """
    is_whole = not log.problems and not log.num_incomplete and not facts.get('partial')
    is_compared = not again.is_open_loop and bool(again.is_compared.any())
    colour = 'green' if is_whole and is_compared else 'amber'
    colour = 'red' if violations or again.first_difference is not None else colour
    body = [
        f'<h1>{escape(title)}</h1>',
        f'<p class="verdict {colour}" role="status">'
        f'{escape(str(facts.get("verdict", "no verdict")))}</p>',
        _table(summary),
    ]
    if (found := again.first_difference) is not None:
        body.append(
            f'<h2>First difference</h2>\n<p>Tick {found.tick}, at {found.time_s:.3f} s: '
            f'{escape(str(found.quantity))} of {escape(str(found.joint_or_gain))} was recorded as '
            f'{found.recorded!r} and computed as {found.recomputed!r}.</p>'
        )
    body += _listed(violations)
    for section, plots in draw_plots(log, again, violations).items():
        body += [f'<h2>{section}</h2>\n<div class="grid">', *map(_in_html, plots), '</div>']
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


def _table(rows: Iterable[tuple[str, object]]) -> str:
    cells = '\n'.join(
        f'<tr><th scope="row">{escape(name)}</th><td>{escape(_in_words(value))}</td></tr>'
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


def _in_words(value: object) -> str:
    """Return a value as a reader wants it: six digits, words for truth, lists in one line."""
    if isinstance(value, bool):
        return 'yes' if value else 'no'
    if isinstance(value, float):
        return f'{value:.6g}'
    if isinstance(value, list | tuple):
        return ', '.join(map(_in_words, value)) or 'none'
    return 'none' if value is None else str(value)


def _listed(violations: Sequence[Violation]) -> Iterator[str]:
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


def _in_html(plot: Plot) -> str:
    source = quote(plot.svg, safe=" =:/'(),;.-_!*[]{}")
    return (
        f'<figure><figcaption>{escape(plot.heading)}</figcaption>'
        f'<img src="data:image/svg+xml,{source}" alt="{escape(plot.alt)}"></figure>'
    )
