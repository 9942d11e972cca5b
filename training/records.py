# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""Records of training.evaluate: read, checked, labelled and compared; and what the paper prints.

One record is one seed of one controller at one tau_z: a `Run`. Runs that differ in nothing but
their seed belong to one `Place`, a row of a table. What must be equal in runs

    of one report       the protocol: plant, payloads, rollouts, episode, arm, task, fixed gains
    of one comparison   that, and the budget: preset and steps of training
    of one place        that, and the code that trained and that evaluated, and all of the rest

Every refusal names file, field, what was expected and found, and what to do.

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

The paper's numbers are as printed, contradictions included: "four of the ten runs" failed at 5 s,
while the list has three. delta is the change of tracking RMSE against fixed gains, %.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
import math
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np

from metactl_ros.errors import ConfigError
from metactl_ros.signals import Array
from training.commands import read_json

BASELINE = 'ct'
"""The fixed-gain controller that delta_percent refers to."""

TEXTS = ('controller', 'plant')
COUNTS = ('num_parameters', 'num_rollouts_per_payload', 'num_steps', 'num_lost')
NUMBERS = ('tau_z', 'seed', *COUNTS)
NULLABLE = ('rmse', 'baseline_rmse', 'delta_percent')
OPTIONAL = ('heads', 'window', 'steps')
LISTS = ('payload_levels_kg', 'rmse_by_payload', 'rmse_std_by_payload')

PROTOCOL_FIELDS = ('plant', 'payload_levels_kg', 'num_rollouts_per_payload', 'num_steps')
PROTOCOL_SETTINGS = (
    'settings.arm.',
    'settings.plant.',
    'settings.controller.law.rate_hz',
    'settings.controller.law.nominal_',
)
"""Beginnings of the settings that must agree: the world, and the baseline of delta_percent."""
NOT_PROTOCOL = 'settings.plant.task.tau_z_s'
"""The default memory horizon; the one that was run is the record's tau_z."""
MAKING = (
    *('commit', 'code', 'lagrangian_rate', 'learned_on'),
    *('difference', 'target_error_rad', 'num_parameters'),
)
"""What made and judged a policy: the code of its training, the code of its evaluation, the rest.

A record without one of them was made by another version than a record that has it.
"""


class Place(NamedTuple):
    """A row of a table, run or not."""

    tau_z_s: float
    architecture: str
    """The model of a trained controller, the name of any other."""
    heads: int | None = None
    window: int | None = None

    @property
    def label(self) -> str:
        """Architecture with its heads K and window W: unique among the places of one tau_z."""
        sizes = (('K', self.heads), ('W', self.window))
        return ' '.join([self.architecture, *(f'{k}={v}' for k, v in sizes if v is not None)])

    def __str__(self) -> str:
        return f'{self.label}, tau_z = {self.tau_z_s:g} s'


class Sample(NamedTuple):
    """What a test needs to know of a sample that it does not see."""

    mean: float
    std: float
    """With n - 1 in the denominator."""
    n: int


class Run(NamedTuple):
    """One seed of one controller: a record of training.evaluate, and the file it came from."""

    record: Mapping[str, Any]
    source: str

    @property
    def place(self) -> Place:
        """The row that it belongs to."""
        record = self.record
        architecture = str(record.get('model') or record['controller'])
        return Place(record['tau_z'], architecture, record.get('heads'), record.get('window'))


def load_runs(paths: Sequence[Path]) -> list[Run]:
    """Read result files: a record each, or a list of records."""
    runs = []
    for path in paths:
        remedy = 'name JSON files, such as `python -m training.evaluate` writes to its --out'
        found = read_json(path, remedy)
        records = found if isinstance(found, list) else [found]
        if not records:
            raise ConfigError(f'{path}: holds no records; evaluate a run first, or leave it out')
        runs += [run_from(record, str(path)) for record in records]
    return runs


def run_from(record: object, source: str) -> Run:
    """Return a run from a record as training.evaluate writes it; refuse anything else."""
    if not isinstance(record, dict):
        raise ConfigError(f'{source}: expected records of training.evaluate, found {record!r}')
    if 'num_diverged' in record:  # its name in older files
        record = {'num_lost': record['num_diverged']} | record
    missing = [n for n in (*TEXTS, *NUMBERS, *NULLABLE, *LISTS, 'settings') if n not in record]
    if missing:
        raise ConfigError(
            f'{source}: a record lacks {", ".join(missing)}; '
            'expected what `python -m training.evaluate --json FILE` writes'
        )
    length = len(record[LISTS[0]]) if isinstance(record[LISTS[0]], list) else 0
    expectations: tuple[tuple[Sequence[str], str, Callable[[Any], bool]], ...] = (
        (TEXTS, 'a text', lambda v: isinstance(v, str)),
        (NUMBERS, 'a finite number', lambda v: v is not None and _is_number(v)),
        ((*NULLABLE, *OPTIONAL), 'a finite number or null', _is_number),
        (LISTS, 'one number per payload', lambda v: isinstance(v, list) and len(v) == length),
        (LISTS, 'finite numbers or null', lambda v: all(map(_is_number, v))),
        (('settings',), 'the resolved settings', lambda v: isinstance(v, dict)),
        (('judgements',), 'a list or nothing', lambda v: v is None or isinstance(v, list)),
    )
    for names, expected, is_fine in expectations:
        for name in names:
            if not is_fine(record.get(name)):
                raise ConfigError(f'{source}: {name}: expected {expected}, found {record[name]!r}')
    return Run(record, source)


def _is_number(value: Any) -> bool:
    """Whether a value is a finite number, or null."""
    is_real = isinstance(value, int | float) and not isinstance(value, bool)
    return value is None or (is_real and math.isfinite(value))


def protocol_of(run: Run) -> dict[str, Any]:
    """Return what must be equal in all runs of a report, by dotted name."""
    settings = dict(leaves(run.record['settings'], 'settings'))
    settings.pop(NOT_PROTOCOL, None)
    world = {n: v for n, v in settings.items() if n.startswith(PROTOCOL_SETTINGS)}
    return fields_of(run, *PROTOCOL_FIELDS) | world


def fields_of(run: Run, *names: str) -> dict[str, Any]:
    """Return what a record says under some names, None where it says nothing."""
    return {name: run.record.get(name) for name in names}


def leaves(value: Any, name: str = '') -> Iterator[tuple[str, Any]]:
    """Yield the values of nested tables under dotted names."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from leaves(inner, f'{name}.{key}' if name else key)
    else:
        yield name, value


def require_one_protocol(runs: Sequence[Run]) -> None:
    """Raise ConfigError if runs were not made under one protocol.

    tau_z may differ from place to place: runs are compared within one tau_z only.
    """
    way_out = 'evaluate them again under one protocol, or report them separately'
    require_equal(runs, protocol_of, f'Runs of different protocols cannot be compared: {way_out}')


def require_one_budget(runs: Sequence[Run]) -> None:
    """Raise ConfigError if trained runs, the others aside, had different presets or steps."""
    trained = [run for run in runs if 'model' in run.record]
    way_out = 'train them alike, or report them separately'
    require_equal(
        trained,
        lambda run: fields_of(run, 'preset', 'steps'),
        f'Runs of different budgets cannot be compared: {way_out}',
    )


def require_one_making(runs: Sequence[Run]) -> None:
    """Raise ConfigError if runs of one place differ in more than their seed."""

    def making_of(run: Run) -> dict[str, Any]:
        # Of the fixed gains, and of all that was not trained, the seed is that of the evaluation.
        judged = ('evaluation_seed',) if 'model' in run.record else ()
        return run.place._asdict() | fields_of(run, *MAKING, *judged)

    way_out = 'make them again with one commit, or report them separately'
    require_equal(runs, making_of, f'Only the seed may differ in a row of the table: {way_out}')


def require_equal(
    runs: Sequence[Run], facts_of: Callable[[Run], Mapping[str, Any]], what_to_do: str
) -> None:
    """Raise ConfigError naming file, fields and values if a run has other facts than the first."""
    expected = facts_of(runs[0]) if runs else {}
    for run in runs[1:]:
        found = facts_of(run)
        differing = [
            f'{name}: expected {expected.get(name)!r}, as in {runs[0].source}, '
            f'found {found.get(name)!r}'
            for name in {**expected, **found}
            if expected.get(name) != found.get(name)
        ]
        if differing:
            raise ConfigError(f'{run.source}: {"; ".join(differing)}. {what_to_do}')


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
        said = f'RMSE varies by {found:.1f} %, of the baseline by {of_baseline}'
        return 'payload-invariant', said
    return 'weak', f'delta {delta:+.1f} %'


def range_percent(values: Sequence[float | None]) -> float | None:
    """Return (max - min) / mean in percent; None if a value is missing or there is none."""
    known = [value for value in values if value is not None]
    if not known or len(known) < len(values):
        return None
    return 100.0 * (max(known) - min(known)) / float(np.mean(known))


def span_rad(run: Run) -> float | None:
    """Return by how much the RMSE varies over payloads, rad; None where a payload has none."""
    values = run.record['rmse_by_payload']
    return None if None in values else max(values) - min(values)


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
    by_layer = []
    for index in range(len(judged[-1]['layers']) if judged else 0):
        rows = [entry['layers'][index]['gradient_norm'] for entry in judged]
        # From the first update on, (judgements, K).
        by_layer.append(np.array([row for row in rows if None not in row], dtype=float))
    if not by_layer or any(len(norms) == 0 for norms in by_layer):
        return None
    return HeadVerdict(
        num_heads=sum(norms.shape[1] for norms in by_layer),
        num_silent=sum(num_silent(norms) for norms in by_layer),
        num_idle=sum(layer['num_idle'] for layer in judged[-1]['layers']),
    )


def num_silent(norms: Array) -> int:
    """Return how many heads of a layer are silent, from (judgements, K) norms, oldest first."""
    late = np.median(norms[len(norms) // 2 :], axis=0)  # (K,)
    beside_layer = late < SILENT_BESIDE_LAYER * late.mean()
    beside_largest = late < SILENT_BESIDE_LARGEST * norms.mean(axis=1).max()
    return int(np.sum(beside_layer | beside_largest))


PAPER_STEPS = 50_000
"""Of training, in every run."""
PAPER_BASELINE_RAD = {1.0: 0.1317, 2.0: 0.1317, 5.0: 0.1311}
"""Tracking RMSE of the fixed gains, by tau_z in s."""


class PaperRow(NamedTuple):
    """A row of the main table."""

    name: str
    thousand_parameters: int
    delta: Sample
    failures: str
    """Diverged and collapsed runs, as the text counts them; empty where it does not."""


class PaperTests(NamedTuple):
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

PAPER_TABLE: dict[Place, PaperRow] = {
    INCRT[1.0]: PaperRow('INCRT-1L', 114, Sample(-51.34, 8.11, 10), ''),
    TRANSFORMER[1.0]: PaperRow('Transformer', 265, Sample(-39.27, 13.29, 10), ''),
    INCRT[2.0]: PaperRow('INCRT-1L', 241, Sample(-54.82, 7.94, 5), ''),
    TRANSFORMER[2.0]: PaperRow('Transformer', 265, Sample(-36.29, 9.93, 5), ''),
    TUNED[2.0]: PaperRow('Transformer-tuned', 271, Sample(-35.73, 10.71, 5), ''),
    INCRT[5.0]: PaperRow('INCRT-1L', 282, Sample(-32.19, 31.83, 10), '4/10, 3 of them listed'),
    TRANSFORMER[5.0]: PaperRow('Transformer', 265, Sample(-29.30, 20.47, 10), '1/10'),
    TUNED[5.0]: PaperRow('Transformer-tuned', 271, Sample(-30.29, 15.86, 5), '0/5'),
}
PAPER_TESTS: dict[tuple[Place, Place], PaperTests] = {
    (INCRT[1.0], TRANSFORMER[1.0]): PaperTests(-1.10, 0.013, 0.027),
    (INCRT[2.0], TRANSFORMER[2.0]): PaperTests(-2.06, 0.008, 0.012),
    (INCRT[2.0], TUNED[2.0]): PaperTests(-2.02, 0.008, 0.014),
    (INCRT[5.0], TRANSFORMER[5.0]): PaperTests(-0.11, 0.214, 0.813),
    (INCRT[5.0], TUNED[5.0]): PaperTests(-0.07, 0.257, 0.880),
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
