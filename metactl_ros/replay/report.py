# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""A replay for its readers: figures, lines for a terminal, and a page.

In open loop two controllers are in one table: of the recorded one what it did, and how well the
arm tracked; of the other one what it would have commanded at these states. The other never moved
the arm, so it has no tracking error.

The page is one HTML file that needs nothing else: no network, no script, no other file. Whatever
comes out of a bag is text, never markup: names in it may be anything.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from html import escape
import math
from pathlib import Path
from typing import Any, TYPE_CHECKING
from urllib.parse import quote

import numpy as np
from numpy.typing import NDArray

from metactl_ros.bag.tick_log import TickLog
from metactl_ros.check.certificates import Violation
from metactl_ros.control.modes import Mode
from metactl_ros.metrics import percentiles, tracking_rmse
from metactl_ros.signals import Array, NANOSECONDS_PER_SECOND

if TYPE_CHECKING:
    from metactl_ros.replay.figures import Plot
    from metactl_ros.replay.recompute import Reproduction
    from metactl_ros.replay.verdict import ReplayResult

WHO = ('controller', 'classical file', 'bundle', 'bundle sha256')
OPEN_LOOP = 'open loop: on the recorded states, which another controller led to'
RECORDED, WOULD = 'recorded run: ', 'open loop, would have: '
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


def who_recorded(log: TickLog) -> str:
    """Return what a bag says of its controller."""
    return ', '.join(log.facts[k] for k in WHO if k in log.facts) or 'unknown'


def summary(result: 'ReplayResult') -> list[tuple[str, str]]:
    """Return the lines of a replay."""
    facts, is_open_loop = result.facts, result.again.is_open_loop
    by = 'open loop, what would have commanded' if is_open_loop else 'computed again by'
    rows = [
        ('recorded by', who_recorded(result.log)),
        (by, facts['computed_by']),
        *_ticks(facts['ticks']),
        *_differences(result),
        *_commands(result),
        ('certificates violated', str(len(result.uncertified))),
    ]
    for entry in result.violations[:5]:
        rows.append(
            (f'  tick {entry.tick}', f'{entry.what}: {entry.found:.6g} > {entry.allowed:.6g}')
        )
    figures, prefix = facts['recording'], RECORDED if is_open_loop else ''
    rows += [
        (f'{prefix}tracking RMSE, {k}', _rounded('rad', v)) for k, v in figures['rmse_rad'].items()
    ]
    rows += _decisions(prefix, figures)
    if is_open_loop:
        rows.append((f'{WOULD}tracking RMSE', 'not known, its efforts moved nothing'))
        rows += _decisions(WOULD, facts['computed_again'])
    late, rate = figures['timing']['lateness_ms'], figures['timing']['rate_hz']
    missed = figures['timing']['missed_ticks']
    lateness = _rounded('ms', *(late[name] for name in ('p50', 'p99', 'max')))
    rows += [
        (f'{prefix}rate, missed ticks', f'{_rounded("Hz", rate)}, {missed}'),
        (f'{prefix}lateness p50, p99, max', lateness),
        ('speed', f'{facts["times_real_time"]:g} times real time'),
    ]
    return rows


def _ticks(counts: dict[str, Any]) -> Iterator[tuple[str, str]]:
    yield 'ticks, of these compared', f'{counts["recorded"]}, {counts["compared"]}'
    for why, count in counts['not_compared'].items():
        yield f'  not compared: {why}', str(count)
    for why, count in counts['not_certified'].items():
        if count:
            yield f'  not certified: {why}', str(count)


def _differences(result: 'ReplayResult') -> Iterator[tuple[str, str]]:
    again = result.again
    if again.is_open_loop:
        yield OPEN_LOOP, f'{result.facts["effort_rms_difference_nm"]:.4g} N m RMS apart'
    elif again.first_difference is not None:
        first = again.first_difference
        where = f'tick {first.tick}, {first.time_s:.2f} s, {first.quantity} {first.joint_or_gain}'
        yield 'first difference', where
        yield 'recorded, computed again', f'{first.recorded!r}, {first.recomputed!r}'
        yield 'largest, of an effort', f'{again.largest_difference_nm:.4g} N m'
    elif again.is_compared.any():
        yield ', '.join(again.quantities), 'equal to the bit'


def _commands(result: 'ReplayResult') -> Iterator[tuple[str, str]]:
    """Yield how many commands of each topic were compared, and every number that is not zero."""
    for topic, counts in result.sent.counts.items():
        if result.sent.is_shadow:
            yield f'{topic}, in shadow: not judged', f"{counts['recorded']}, somebody else's"
            continue
        others = {k: n for k, n in counts.items() if n and k not in ('recorded', 'compared')}
        yield f'{topic}, of these compared', f'{counts["recorded"]}, {counts["compared"]}'
        for kind, count in others.items():
            yield f'  {kind.replace("_", " ")}', str(count)


def _decisions(prefix: str, figures: dict[str, Any]) -> list[tuple[str, str]]:
    """Return what a controller decided, or would have."""
    shares = (f'{name} {100.0 * share:.1f} %' for name, share in figures['mode_share'].items())
    return [
        *(
            (f'{prefix}effort {k}: RMS, peak', _rounded('N m', v['rms_nm'], v['peak_nm']))
            for k, v in figures['effort'].items()
        ),
        (f'{prefix}moved by the shield', f'{100.0 * figures["shield_activation"]:.1f} %'),
        (f'{prefix}modes', ', '.join(shares)),
    ]


def _rounded(unit: str, *values: float | None) -> str:
    """Return numbers with four digits; none for what was not measured, or is no number."""
    texts = ('none' if value is None else f'{value:.4g}' for value in values)
    return f'{", ".join(texts)} {unit}'


def summarise(log: TickLog) -> dict[str, Any]:
    """Return the figures of a recording; those that nothing was measured for are None."""
    return {
        'num_ticks': len(log.stamp_ns),
        'duration_s': float(log.time_s[-1]),
        'rmse_rad': rmse(log),
        'effort': effort_figures(log.effort_nm, log.joint_names),
        'gains': gain_figures(log.gains, log.gain_names),
        'shield_activation': float(np.mean(log.shield['was_moved'])),
        'mode_share': mode_share(log.shield['mode']),
        'timing': timing(log),
    }


def tick_counts(
    log: TickLog, again: 'Reproduction', is_uncertified: NDArray[np.bool_]
) -> dict[str, Any]:
    """Return how many ticks were compared and certified, and why the others were not.

    Args:
        log: What was recorded.
        again: The same computed again.
        is_uncertified: Which ticks no certificate could be checked of, shape (T,).
    """
    num_ticks = len(log.stamp_ns)
    rows = np.flatnonzero(~again.is_compared)
    last_break = np.maximum.accumulate(np.where(log.is_break, np.arange(num_ticks), 0))[rows]
    is_first = last_break == 0
    reasons = {
        'a message of the tick is missing': log.num_incomplete,
        'impossible values': log.num_impossible,
        'open loop': num_ticks if again.is_open_loop else 0,
        'the recording begins in the middle of a run': np.sum(is_first),
        'what the loop knew is missing after a gap': np.sum(~is_first),
    }
    if again.is_open_loop:  # which is reason enough
        reasons |= dict.fromkeys([*reasons][-2:], 0)
    return {
        'recorded': num_ticks + log.num_incomplete + log.num_impossible,
        'compared': int(again.is_compared.sum()),
        'not_compared': {why: int(count) for why, count in reasons.items() if count},
        'quantities_compared': list(again.quantities),
        'certified': int(np.sum(~is_uncertified)),
        'not_certified': {'a hold begun in a gap': int(np.sum(is_uncertified))},
    }


def rmse(log: TickLog) -> dict[str, float | None]:
    """Return the tracking error of each joint and of all, rad, over the ticks that had a goal."""
    rows = (log.num_states > 0) & (log.shield['reference_is_valid'] != 0.0)
    wanted, found = log.q_desired_rad[rows], log.q_rad[rows]
    if len(found) < 2:  # the first one does not count
        return dict.fromkeys((*log.joint_names, 'total'))
    one = {
        name: float(tracking_rmse(wanted[:, [j]], found[:, [j]]))
        for j, name in enumerate(log.joint_names)
    }
    return {**one, 'total': float(tracking_rmse(wanted, found))}


def effort_figures(effort_nm: Array, names: Sequence[str]) -> dict[str, dict[str, float]]:
    """Return size, peak and total variation of the effort of each joint, N m."""
    return {
        name: {
            'rms_nm': float(np.sqrt(np.mean(np.square(column)))),
            'peak_nm': float(np.abs(column).max()),
            'total_variation_nm': float(np.abs(np.diff(column)).sum()),
        }
        for name, column in zip(names, effort_nm.T, strict=True)
    }


def gain_figures(gains: Array, names: Sequence[str]) -> dict[str, dict[str, float]]:
    """Return mean and ends of each gain in force."""
    return {
        name: {'mean': float(x.mean()), 'min': float(x.min()), 'max': float(x.max())}
        for name, x in zip(names, gains.T, strict=True)
    }


def mode_share(modes: NDArray[Any]) -> dict[str, float]:
    """Return the share of ticks in each mode."""
    counts = Counter(Mode(int(mode)).name for mode in modes)
    return {name: count / len(modes) for name, count in counts.items()}


def timing(log: TickLog) -> dict[str, Any]:
    """Return rate, missed ticks, lateness and inference time."""
    steps_ns = np.diff(log.now_ns)[~log.is_restart[1:]]
    steps_ns = steps_ns[steps_ns > 0]
    period_ns = float(np.median(steps_ns)) if len(steps_ns) else math.inf
    missed = np.maximum(np.rint(steps_ns / period_ns) - 1.0, 0.0).sum()
    inference_ms = log.shield['inference_ms']
    return {
        'rate_hz': NANOSECONDS_PER_SECOND / float(steps_ns.mean()) if len(steps_ns) else None,
        'missed_ticks': int(missed),
        'lateness_ms': percentiles(log.shield['late_ms']),
        'inference_ms': percentiles(inference_ms[inference_ms > 0.0]),
    }


def write_page(
    path: Path,
    title: str,
    summary: Sequence[tuple[str, str]],
    facts: Mapping[str, object],
    log: TickLog,
    again: 'Reproduction',
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
        again: The same ticks computed again.
        violations: Of the certificates.
    """
    from metactl_ros.replay.figures import (
        draw_plots,  # needs matplotlib, as nothing else here does
    )

    plots = draw_plots(log, again, violations)
    body = [
        f'<h1>{escape(title)}</h1>',
        f'<p class="verdict {_colour(facts, log, again, violations)}" role="status">'
        f'{escape(str(facts.get("verdict", "no verdict")))}</p>',
        _table(summary),
        *_described(again),
        *_listed(violations),
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
    log: TickLog,
    again: 'Reproduction',
    violations: Sequence[Violation],
) -> str:
    """Return red for what is wrong, amber for what is not all or was not compared."""
    if violations or again.first_difference is not None:
        return 'red'
    is_whole = not log.problems and not log.num_incomplete and not facts.get('partial')
    is_compared = not again.is_open_loop and bool(again.is_compared.any())
    return 'green' if is_whole and is_compared else 'amber'


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


def _described(again: 'Reproduction') -> Iterator[str]:
    if (found := again.first_difference) is None:
        return
    yield (
        f'<h2>First difference</h2>\n<p>Tick {found.tick}, at {found.time_s:.3f} s: '
        f'{escape(str(found.quantity))} of {escape(str(found.joint_or_gain))} was recorded as '
        f'{found.recorded!r} and computed as {found.recomputed!r}.</p>'
    )


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


def _figure(plot: 'Plot') -> str:
    source = quote(plot.svg, safe=" =:/'(),;.-_!*[]{}")
    return (
        f'<figure><figcaption>{escape(plot.heading)}</figcaption>'
        f'<img src="data:image/svg+xml,{source}" alt="{escape(plot.alt)}"></figure>'
    )
