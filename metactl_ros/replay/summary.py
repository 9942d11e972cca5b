# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""What a reader of a replay wants to know first, line by line: a name and what to say.

In open loop two controllers are in one table: of the recorded one what it did, and how well the
arm tracked; of the other one what it would have commanded at these states. The other never moved
the arm, so it has no tracking error.
"""

from collections.abc import Iterator
from typing import Any, TYPE_CHECKING

from metactl_ros.bag.tick_log import TickLog

if TYPE_CHECKING:
    from metactl_ros.replay.verdict import Answer

WHO = ('controller', 'classical file', 'bundle', 'bundle sha256')
OPEN_LOOP = 'open loop: on the recorded states, which another controller led to'
RECORDED, WOULD = 'recorded run: ', 'open loop, would have: '


def who_recorded(log: TickLog) -> str:
    """Return what a bag says of its controller."""
    return ', '.join(log.facts[k] for k in WHO if k in log.facts) or 'unknown'


def summary(result: 'Answer') -> list[tuple[str, str]]:
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
        (f'{prefix}tracking RMSE, {k}', _figures('rad', v)) for k, v in figures['rmse_rad'].items()
    ]
    rows += _decisions(prefix, figures)
    if is_open_loop:
        rows.append((f'{WOULD}tracking RMSE', 'not known, its efforts moved nothing'))
        rows += _decisions(WOULD, facts['computed_again'])
    late, rate = figures['timing']['lateness_ms'], figures['timing']['rate_hz']
    missed = figures['timing']['missed_ticks']
    lateness = _figures('ms', *(late[name] for name in ('p50', 'p99', 'max')))
    rows += [
        (f'{prefix}rate, missed ticks', f'{_figures("Hz", rate)}, {missed}'),
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


def _differences(result: 'Answer') -> Iterator[tuple[str, str]]:
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


def _commands(result: 'Answer') -> Iterator[tuple[str, str]]:
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
            (f'{prefix}effort {k}: RMS, peak', _figures('N m', v['rms_nm'], v['peak_nm']))
            for k, v in figures['effort'].items()
        ),
        (f'{prefix}moved by the shield', f'{100.0 * figures["shield_activation"]:.1f} %'),
        (f'{prefix}modes', ', '.join(shares)),
    ]


def _figures(unit: str, *values: float | None) -> str:
    """Return numbers with four digits; none for what was not measured, or is no number."""
    texts = ('none' if value is None else f'{value:.4g}' for value in values)
    return f'{", ".join(texts)} {unit}'
