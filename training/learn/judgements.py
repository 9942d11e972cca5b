# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""What a run was like on its way: one judgement every few thousand steps and one at the end.

    RUN/judgements.json    a list, the oldest first; complete or absent, as every result file

    step                   of training: what follows is of the networks after that many steps
    delta_percent          against fixed gains, on the few RK4 rollouts of policy.mean_rmse
    shield_moved_percent   of the steps since the judgement before
    beta, entropy_weight   of the actor's loss
    payload_sensitivity    of each action, 1 / kg (head_monitor)
    layers                 of each attention layer: one number per head, and for the way past them

What is not known, or not finite, is null. Numbers have six digits. A judgement is written before
the checkpoint of its step, and a run that goes on from a checkpoint drops the later ones, so that
each step is judged once, with the gradient of its own update.
"""

import json
import math
from pathlib import Path
from typing import Any

from metactl_ros.result_file import write_json
from training.learn.head_monitor import ActorReport, BY_HEAD, HeadReport
from training.learn.run import RunError

FILE = 'judgements.json'


def read_judgements(folder: Path) -> list[dict[str, Any]]:
    """Return the judgements of a run directory; none if it has none yet."""
    path = folder / FILE
    if not path.exists():
        return []
    try:
        found = json.loads(path.read_text(encoding='utf-8'))
    except ValueError as error:
        raise RunError(f'{path}: not valid JSON ({error}); remove it to go on without.') from None
    if not isinstance(found, list):
        raise RunError(f'{path}: expected a list of judgements; remove it to go on without.')
    return found


class Judgements:
    """The file of a run under way."""

    def __init__(self, folder: Path, step: int) -> None:
        """Go on with what a run had been judged up to a step, that one included."""
        self._folder = folder
        self._entries = [entry for entry in read_judgements(folder) if entry['step'] <= step]

    def has(self, step: int) -> bool:
        """Return whether a step is judged already."""
        return any(entry['step'] == step for entry in self._entries)

    def add(self, entry: dict[str, Any]) -> None:
        """Append a judgement and write the file."""
        self._entries.append(entry)
        write_json(self._folder / FILE, self._entries)


def judgement_of(
    *,
    step: int,
    delta_percent: float,
    shield_moved_percent: float,
    beta: float,
    entropy_weight: float,
    actor: ActorReport,
) -> dict[str, Any]:
    """Return one entry of the file."""
    return {
        'step': step,
        'delta_percent': _number(delta_percent),
        'shield_moved_percent': _number(shield_moved_percent),
        'beta': _number(beta),
        'entropy_weight': _number(entropy_weight),
        'payload_sensitivity': [_number(value) for value in actor.sensitivity],
        'layers': [_layer(report) for report in actor.layers],
    }


def head_report_of(judgements: list[dict[str, Any]]) -> dict[str, Any] | None:
    """Return what the heads did at the last judgement; None without one."""
    names = ('step', 'payload_sensitivity', 'layers')
    return {name: judgements[-1][name] for name in names} if judgements else None


def _layer(report: HeadReport) -> dict[str, Any]:
    by_head = {name: [_number(value) for value in getattr(report, name)] for name in BY_HEAD}
    residual = _number(report.residual_sensitivity)
    return {**by_head, 'residual_sensitivity': residual, 'num_idle': report.num_idle}


def _number(value: float) -> float | None:
    return float(f'{value:.6g}') if math.isfinite(value) else None
