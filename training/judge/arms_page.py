# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""The benchmark of arms from URDFs as a page; every number on it is from the result file."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use('Agg')
from matplotlib import pyplot as plt
import numpy as np

ADAPTIVE, ORACLE, BANK = 'adaptive', 'oracle', 'adaptive_bank'
OWN = (ADAPTIVE, ORACLE)
"""No classical law that `adaptive` is compared with."""


def write_page(path: Path, result: Mapping[str, Any]) -> None:
    """Write the page, and its picture beside it under the same name."""
    path.parent.mkdir(parents=True, exist_ok=True)
    picture = path.with_suffix('.png')
    draw(picture, result)
    path.write_text('\n'.join(page_of(result, picture.name)) + '\n', encoding='utf-8')


def page_of(result: Mapping[str, Any], picture: str) -> Iterator[str]:
    """Yield the lines of the page."""
    yield '# One network on arms it has never seen'
    yield ''
    yield '<!-- written by python -m training.arms_benchmark; do not edit -->'
    yield ''
    yield (
        '`adaptive` is the shipped bundle (SHA-256 '
        f'{result["bundle_sha256"][:16]}), trained on random two-link arms and put on these arms '
        'as it is: `metactl adapt` without its margin. It is told neither arm, sensors nor '
        'payload. `ct_integral` and `momentum_observer` are tuned for each arm and kind of '
        f'sensors, the best of {result["tuned"][0]["num_settings"]} settings on another seed, by '
        'the figure that is judged here. `ct`, `adaptive_bank` and `oracle` are as scaled from '
        'the two-link arm, untuned; the oracle alone is told payload, friction and memory. '
        'Plants are Pinocchio with friction of 2 % of the effort limits, not the arms themselves.'
    )
    yield ''
    yield f'![RMSE per controller and kind of sensors]({picture})'
    yield ''
    shares = ', '.join(f'{100 * share:g} %' for share in result['payload_shares'])
    yield (
        f'RMSE of |e| in mrad from 1.5 s to 5 s with {shares} of the rated payload, '
        f'{result["seeds"]} run(s) each; in brackets the mean variation of all efforts, N m/s. '
        'A run is lost if a joint is 1.5 rad off or the controller itself stops the arm; `lost` '
        'is in place of the figure where all were.'
    )
    for arm in result['arms']:
        yield ''
        yield f'## {arm}'
        yield ''
        yield from arm_table(result, arm)
    yield ''
    yield '## Against the best classical law'
    yield ''
    yield from verdicts(result)


def arm_table(result: Mapping[str, Any], arm: str) -> Iterator[str]:
    """Yield a row for every kind of sensors."""
    names = result['controllers']
    yield f'| sensors | {" | ".join(names)} |'
    yield f'|---|{"---|" * len(names)}'
    for condition in result['conditions']:
        cells = [_cell(_of(result, arm, condition['name'], name)) for name in names]
        yield f'| {condition["meaning"]} | {" | ".join(cells)} |'


def verdicts(result: Mapping[str, Any]) -> Iterator[str]:
    """Yield a table of `adaptive` and the classical law that loses least and tracks best."""
    yield '| arm | sensors | best classical | its RMSE | adaptive | lost, of | variation |'
    yield '|---|---|---|---|---|---|---|'
    for arm in result['arms']:
        for condition in result['conditions']:
            rivals = [name for name in result['controllers'] if name not in OWN]
            found = {
                name: _of(result, arm, condition['name'], name) for name in [*rivals, ADAPTIVE]
            }
            best = min(rivals, key=lambda name: (_lost(found[name]), _mean(found[name])))
            own, other = found[ADAPTIVE], found[best]
            runs = sum(record['num_runs'] for record in own)
            yield (
                f'| {arm} | {condition["name"]} | {best} | {_text(_mean(other))} | '
                f'{_text(_mean(own))} | {_lost(other)}, {_lost(own)} of {runs} | '
                f'{_text(_variation(other))}, {_text(_variation(own))} |'
            )
    yield ''
    yield 'RMSE are means over the payloads; pairs are first the classical law, then `adaptive`.'


def draw(path: Path, result: Mapping[str, Any]) -> None:
    """Draw the mean RMSE of every controller over the kinds of sensors, a panel per arm."""
    arms = list(result['arms'])
    figure, panels = plt.subplots(
        1, len(arms), figsize=(6.0 * len(arms), 4.2), sharey=True, squeeze=False
    )
    labels = [condition['name'] for condition in result['conditions']]
    for panel, arm in zip(panels[0], arms, strict=True):
        for name in result['controllers']:
            cells = [_of(result, arm, label, name) for label in labels]
            mean = [np.nan if _lost(cell) else _mean(cell) for cell in cells]
            width = 2.5 if name == ADAPTIVE else 1.2
            panel.plot(labels, mean, 'o-', label=name, linewidth=width)
        panel.set(title=arm, yscale='log')
        panel.tick_params(axis='x', rotation=40)
        panel.grid(visible=True, which='both', alpha=0.3)
    panels[0][0].set_ylabel('RMSE, mrad (no point: runs were lost)')
    panels[0][0].legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(path, dpi=110, metadata={'Software': None})
    plt.close(figure)


def _of(result: Mapping[str, Any], arm: str, condition: str, name: str) -> list[Any]:
    """Return the records of a controller, one per payload."""
    wanted = {'arm': arm, 'condition': condition, 'controller': name}
    return [record for record in result['cells'] if wanted.items() <= record.items()]


def _lost(records: Sequence[Mapping[str, Any]]) -> int:
    return sum(record['num_lost'] for record in records)


def _mean(records: Sequence[Mapping[str, Any]]) -> float:
    values = [record['rmse_mrad'] for record in records if record['rmse_mrad'] is not None]
    return float(np.mean(values)) if values else np.inf


def _variation(records: Sequence[Mapping[str, Any]]) -> float:
    values = [r['variation_nmps'] for r in records if r['variation_nmps'] is not None]
    return float(np.mean(values)) if values else np.inf


def _cell(records: Sequence[Mapping[str, Any]]) -> str:
    texts = [
        'lost' if record['rmse_mrad'] is None else _text(record['rmse_mrad']) for record in records
    ]
    lost, variation = _lost(records), _variation(records)
    more = f' ({_text(variation)})' if np.isfinite(variation) else ''
    return f'{" / ".join(texts)}{more}{f", {lost} lost" if lost else ""}'


def _text(value: float) -> str:
    if not np.isfinite(value):
        return '-'
    return f'{value:.2f}' if value < 10.0 else f'{value:.0f}'
