# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""How a run ended, by its errors and by its heads: the rules, each with its bound.

By its errors a run is

    diverged            a rollout was lost, there is no RMSE, or delta is above +10 %
    healthy             else, delta is -40 % or better
    payload-invariant   else, its RMSE has the paper's signature, a flat profile over payloads,
                        and that of the fixed gains, if known, has not
    weak                else

and the first and the third are failures. By its heads, which the paper holds responsible for a
flat profile, it failed if any of them is silent: if the norm of its gradient, as the median over
the second half of the judgements, is below a tenth of the mean of its layer, or below a hundredth
of the largest mean that its layer ever had. The first finds a head that its neighbours leave
behind, the second a layer that stopped learning as a whole, which for K = 1 is the only way.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np

from metactl_ros.signals import Array
from training.records import Run

LabelName: TypeAlias = Literal['healthy', 'weak', 'payload-invariant', 'diverged']
FAILURES: tuple[LabelName, ...] = ('diverged', 'payload-invariant')

DIVERGED_ABOVE_PERCENT = 10.0
"""delta_percent of a run that made things worse, and is labelled diverged."""
WEAK_ABOVE_PERCENT = -40.0
"""delta_percent: between the runs the paper calls weak (-36 to -34) and its good ones (-51)."""
FLAT_BELOW_PERCENT = 10.0
"""Range of the RMSE over payloads, in percent of its mean, of a run that does not see them."""
SILENT_BESIDE_LAYER = 0.1
SILENT_BESIDE_LARGEST = 0.01


def label_of(
    run: Run, baseline_by_payload: Sequence[float | None] | None
) -> tuple[LabelName, str]:
    """Return the label of a run and the reason for it.

    A flat profile is a failure only of a run that is weak: the policy does not see the payload. A
    run that is good at every payload has adapted to it. A baseline whose profile is flat itself
    excuses a flat run; one that is not known does not.
    """
    record, delta = run.record, run.record['delta_percent']
    if record['num_lost']:
        return 'diverged', f'{record["num_lost"]:g} rollouts lost'
    if delta is None or delta > DIVERGED_ABOVE_PERCENT:
        return 'diverged', 'no RMSE' if delta is None else f'delta {delta:+.1f} %'
    if delta <= WEAK_ABOVE_PERCENT:
        return 'healthy', f'delta {delta:+.1f} %'
    own, base = record['rmse_by_payload'], baseline_by_payload or ()
    if is_flat(own) and not is_flat(base):
        known, found = range_percent(base), range_percent(own)
        of_baseline = 'an unknown range' if known is None else f'{known:.1f} %'
        return (
            'payload-invariant',
            f'RMSE varies by {found:.1f} %, of the baseline by {of_baseline}',
        )
    return 'weak', f'delta {delta:+.1f} %'


def range_percent(values: Sequence[float | None]) -> float | None:
    """Return (max - min) / mean in percent; None if a value is missing or there is none."""
    known = [value for value in values if value is not None]
    if not known or len(known) < len(values):
        return None
    return 100.0 * (max(known) - min(known)) / float(np.mean(known))


def is_flat(values: Sequence[float | None]) -> bool:
    """Return whether errors by payload have the paper's signature of a policy blind to it."""
    found = range_percent(values)
    return found is not None and found < FLAT_BELOW_PERCENT


class HeadVerdict(NamedTuple):
    """What the heads of a trained run came to, all layers together."""

    num_heads: int
    num_silent: int
    num_idle: int
    """At the end: with less than a tenth of an equal share of their layer's output."""


def head_verdict(run: Run) -> HeadVerdict | None:
    """Return what the judgements of a run say of its heads; None if they say nothing of any."""
    judged = [entry for entry in run.record.get('judgements') or () if entry['layers']]
    by_layer = (
        [_norms(judged, index) for index in range(len(judged[-1]['layers']))] if judged else []
    )
    if not by_layer or any(len(norms) == 0 for norms in by_layer):
        return None
    return HeadVerdict(
        num_heads=sum(norms.shape[1] for norms in by_layer),
        num_silent=sum(num_silent(norms) for norms in by_layer),
        num_idle=sum(layer['num_idle'] for layer in judged[-1]['layers']),
    )


def num_silent(norms: Array) -> int:
    """Return how many heads of a layer are silent.

    Args:
        norms: of the gradient, shape (judgements, K), the oldest first.
    """
    late = np.median(norms[len(norms) // 2 :], axis=0)  # (K,)
    beside_layer = late < SILENT_BESIDE_LAYER * late.mean()
    beside_largest = late < SILENT_BESIDE_LARGEST * norms.mean(axis=1).max()
    return int(np.sum(beside_layer | beside_largest))


def _norms(judged: Sequence[Mapping[str, Any]], layer: int) -> Array:
    """Return the gradient norms of a layer, (judgements, K), from the first update on."""
    rows = [entry['layers'][layer]['gradient_norm'] for entry in judged]
    return np.array([row for row in rows if None not in row], dtype=float)
