# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""An opponent without a plan: every kind of fault at random, for minutes, and what may never be.

    metactl hil --random --minutes 10 --seed 7

The timeline follows from the seed and is written as a scenario, which can be run again. Nothing is
expected of it but what is demanded of every command: see `evaluation/invariants.py`.
"""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
import sys
from typing import Any

import numpy as np
import yaml

from metactl_ros.control.modes import Mode
from metactl_ros.evaluation.invariants import blind_share
from metactl_ros.evaluation.result_file import provenance, write_json
from metactl_ros.hil.command import promise_of, run_once
from metactl_ros.hil.run_log import RunLog
from metactl_ros.hil.scenario import load_scenario, Scenario
from metactl_ros.hil.scripted_fault import PROCESS_KINDS
from metactl_ros.plant.faults import KINDS
from metactl_ros.settings import load_settings, Settings

AMOUNTS = {
    'drop': (0.05, 1.0),
    'burst': (0.02, 0.4),
    'delay': (0.01, 0.2),
    'jitter': (0.01, 0.1),
    'bias': (-0.5, 0.5),
    'quantise': (4.0, 14.0),
    'torque_loss': (0.1, 1.0),
    'friction_step': (0.0, 4.0),
    'payload_drop': (-1.0, 0.75),
    'tau_z_drift': (-0.5, 1.0),
    'clock_jump': (-20.0, 20.0),
    'cpu_load': (1.0, 3.0),
}
"""Between which the amounts are drawn, in the unit of the kind."""
EVERY_S = 1.5
"""Mean time from one fault to the next."""
LENGTHS_S = (0.03, 1.5)
"""Between which they last, most of them briefly; so some overlap."""
FIRST_S = 1.0
RESET_AFTER_S = 2.0


def random_faults(duration_s: float, seed: int) -> Iterator[dict[str, Any]]:
    """Yield faults as a scenario file has them; all kinds come before any comes again."""
    random = np.random.default_rng(seed)
    deck: list[str] = []
    now_s = FIRST_S
    while now_s < duration_s - LENGTHS_S[1]:
        deck = deck or random.permutation([*KINDS, *PROCESS_KINDS]).tolist()
        kind = deck.pop()
        fault: dict[str, Any] = {'kind': kind, 'at_s': round(now_s, 2)}
        fault['for_s'] = round(float(np.exp(random.uniform(*np.log(LENGTHS_S)))), 2)
        if kind in AMOUNTS:
            fault['amount'] = round(float(random.uniform(*AMOUNTS[kind])), 3)
        if kind in KINDS and KINDS[kind].is_per_joint and random.random() < 0.5:
            fault['joint'] = int(random.integers(2))
        yield fault
        now_s += random.exponential(EVERY_S)


def random_scenario(duration_s: float, seed: int) -> dict[str, Any]:
    """Return a scenario as its file has it."""
    return {
        'title': f'{duration_s:g} s of random faults, seed {seed}',
        'duration_s': duration_s,
        'setup': {'plant': 'rk4', 'seed': seed},
        'reset_fault_after_s': RESET_AFTER_S,
        'faults': list(random_faults(duration_s, seed)),
        'protection': 'all of them',
    }


def run_nemesis(folder: Path, duration_s: float, seed: int) -> int:
    """Run a random scenario; write it, its bag and its figures; return 0 if nothing was wrong."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / 'scenario.yaml'
    text = yaml.safe_dump(random_scenario(duration_s, seed), sort_keys=False)
    file.write_text(f'# metactl hil {file}\n{text}', encoding='utf-8')
    scenario, settings = load_scenario(file), load_settings()
    sys.stdout.write(f'seed {seed}: {len(scenario.faults)} faults in {duration_s:g} s\n')
    sys.stdout.flush()
    log, verdicts = run_once(file, folder / 'run')
    told = [verdict._asdict() for verdict in verdicts]
    figures = {'seed': seed, **summary(scenario, log, settings), 'verdicts': told}
    write_json(folder / 'nemesis.json', figures | provenance(settings))
    for verdict in verdicts:
        sys.stdout.write(f'{"ok    " if verdict.has_passed else "WRONG "} {verdict.demand}')
        sys.stdout.write(f': {verdict.found}\n')
    sys.stdout.write(f'figures, bag and scenario are in {folder}\n')
    return 0 if all(verdict.has_passed for verdict in verdicts) else 1


def summary(scenario: Scenario, log: RunLog, settings: Settings) -> dict[str, Any]:
    """Return how much was checked, and how hard it was made."""
    gaps_s = np.diff(log.tick_s, append=log.tick_s[-1:])
    shares = {
        mode.name: round(float(np.sum(gaps_s[log.mode == mode]) / np.sum(gaps_s)), 4)
        for mode in Mode
    }
    return {
        'duration_s': scenario.duration_s,
        'commands_checked': len(log.commands.received_ns),
        'commands_checked_blind': round(
            blind_share(log.commands, log.states, promise_of(settings))
            * len(log.commands.received_ns)
        ),
        'faults_by_kind': dict(sorted(Counter(s.fault.kind for s in log.spans).items())),
        'controllers': len(log.lives),
        'resets_of_fault': log.num_resets,
        'share_of_time_by_mode': shares,
        'num_mode_changes': int(np.sum(np.diff(log.mode) != 0)),
    }
