# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""What the paper prints of its experiments: the main table, the ablation, the failures at 5 s.

As printed, contradictions included: "four of the ten runs" failed, while the list has three.
delta is the change of tracking RMSE against fixed gains, %.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

from training.records import Place, Sample

STEPS = 50_000
"""Of training, in every run."""
BASELINE_RAD = {1.0: 0.1317, 2.0: 0.1317, 5.0: 0.1311}
"""Tracking RMSE of the fixed gains, by tau_z in s."""


class Row(NamedTuple):
    """A row of the main table."""

    name: str
    thousand_parameters: int
    delta: Sample
    failures: str
    """Diverged and collapsed runs, as the text counts them; empty where it does not."""


class Tests(NamedTuple):
    """How INCRT-1L compares with a Transformer in the main table."""

    d: float
    p_u: float
    """Mann-Whitney, one-sided."""
    p_w: float
    """Welch, two-sided."""


INCRT = {
    1.0: Place(1.0, 'incrt', 4, 20),
    2.0: Place(2.0, 'incrt', 7, 50),
    5.0: Place(5.0, 'incrt', 8, 20),
}
"""The sizes that the paper retained, by tau_z in s."""
TRANSFORMER = {tau_z_s: Place(tau_z_s, 'transformer', 4, 20) for tau_z_s in (1.0, 2.0, 5.0)}
TUNED = {tau_z_s: Place(tau_z_s, 'transformer', 4, 50) for tau_z_s in (2.0, 5.0)}

MAIN: dict[Place, Row] = {
    INCRT[1.0]: Row('INCRT-1L', 114, Sample(-51.34, 8.11, 10), ''),
    TRANSFORMER[1.0]: Row('Transformer', 265, Sample(-39.27, 13.29, 10), ''),
    INCRT[2.0]: Row('INCRT-1L', 241, Sample(-54.82, 7.94, 5), ''),
    TRANSFORMER[2.0]: Row('Transformer', 265, Sample(-36.29, 9.93, 5), ''),
    TUNED[2.0]: Row('Transformer-tuned', 271, Sample(-35.73, 10.71, 5), ''),
    INCRT[5.0]: Row('INCRT-1L', 282, Sample(-32.19, 31.83, 10), '4/10, 3 of them listed'),
    TRANSFORMER[5.0]: Row('Transformer', 265, Sample(-29.30, 20.47, 10), '1/10'),
    TUNED[5.0]: Row('Transformer-tuned', 271, Sample(-30.29, 15.86, 5), '0/5'),
}
COMPARISONS: dict[tuple[Place, Place], Tests] = {
    (INCRT[1.0], TRANSFORMER[1.0]): Tests(-1.10, 0.013, 0.027),
    (INCRT[2.0], TRANSFORMER[2.0]): Tests(-2.06, 0.008, 0.012),
    (INCRT[2.0], TUNED[2.0]): Tests(-2.02, 0.008, 0.014),
    (INCRT[5.0], TRANSFORMER[5.0]): Tests(-0.11, 0.214, 0.813),
    (INCRT[5.0], TUNED[5.0]): Tests(-0.07, 0.257, 0.880),
}
"""By candidate and reference."""

DEPTHS = {
    'incrt': 'L = 1',
    'attention_l2': 'L = 2',
    'attention_l2_ffn': 'L = 2, FFN',
    'attention_l3': 'L = 3',
}
"""Rows of the ablation, from the model's name."""
WINDOWS = (20, 50, 100)
ABLATION_SEED = 42
_PRINTED_DELTAS: dict[float, tuple[tuple[float | None, ...], ...]] = {
    2.0: ((-35.5, -62.3, -40.6), (37.9, -57.6, -43.5), (-22.9, -51.5, -46.8), (-44.9, 1.4, 79.8)),
    5.0: (
        (-61.9, -45.6, -39.9),
        (-24.1, -29.0, -25.4),
        (-53.2, -19.2, None),
        (-39.3, -49.3, None),
    ),
}
ABLATION: dict[Place, float | None] = {
    Place(tau_z_s, model, INCRT[tau_z_s].heads, window): delta
    for tau_z_s, rows in _PRINTED_DELTAS.items()
    for model, row in zip(DEPTHS, rows, strict=True)
    for window, delta in zip(WINDOWS, row, strict=True)
}
"""delta of one seed; None where the paper has none."""
ABLATION_DIVERGED = (
    Place(2.0, 'attention_l2', 7, 20),
    Place(2.0, 'attention_l3', 7, 50),
    Place(2.0, 'attention_l3', 7, 100),
)
"""Those that the paper marks as diverged in training."""


def printed_beside(place: Place, record: Mapping[str, Any]) -> Row | None:
    """Return the paper's row for a place, if the run had the paper's number of steps."""
    return MAIN.get(place) if record.get('steps') == STEPS else None


def in_thousands(num_parameters: float) -> str:
    """Return a number of parameters as the paper prints it: 240,692 as 241k."""
    return f'{num_parameters / 1000.0:.0f}k'
