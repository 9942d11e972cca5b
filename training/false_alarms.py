# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""How often healthy sensors are taken for broken ones: an hour of every controller and regime.

    python -m training.false_alarms                       # results/false_alarms.json
    python -m training.false_alarms --seconds 5 --regime tau_2

Sixty arms run for a minute each, with the payloads and phases of the benchmark. Every tick that is
not NOMINAL is an alarm: nothing is broken. An arm that goes astray by itself, without any guard,
has a controller that does not control it, as ct_best does not with late states and no payload;
there an alarm is right. That is found out by running it again unguarded.
"""

import argparse
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
import multiprocessing
import os
from pathlib import Path
import sys
from typing import Any

import numpy as np

from metactl_ros.baselines import constant_policy
from metactl_ros.control.loop import ControlLoop
from metactl_ros.control.modes import Cause, Mode
from metactl_ros.plants import make_plant
from metactl_ros.result_file import provenance, write_json
from metactl_ros.settings import load_settings
from metactl_ros.sim.rollout import for_learning, run_episode, without_warmup
from training.arguments import positive_number
from training.benchmark import players
from training.judge.contest import Player, prepare
from training.judge.regimes import draw_cases, load_benchmark, Regime, settings_in

REGIMES = ('tau_2', 'velocity_noise', 'encoder_12bit', 'delay_20ms')
ASTRAY_RAD = 0.5
"""As in `hil/always.py`: even fixed gains keep within 0.36 rad."""
IDEAL_MOTORS_NM = (1e300, 1e300)
"""No regime here has weak motors."""


def run_cell(player: Player, regime: Regime, duration_s: float) -> dict[str, Any]:
    """Return how often, why and in how many arms a controller was not NOMINAL."""
    settings = settings_in(load_settings(), regime, IDEAL_MOTORS_NM)
    cases = load_benchmark().judging
    num_steps = round(duration_s * settings.controller.law.rate_hz)
    causes: Counter[str] = Counter()
    num_alarmed = num_astray = num_excused = 0
    batches: Sequence[tuple[float, ...]] = [cases.payloads_kg]
    if player.name == 'oracle':  # it is told the payload
        batches = [(payload_kg,) for payload_kg in cases.payloads_kg]
    for payloads_kg in batches:
        episodes = draw_cases(settings, regime, replace(cases, payloads_kg=payloads_kg))
        controller, policy = prepare(settings, player, episodes)
        logs = []
        for one in (without_warmup(controller), for_learning(controller)):
            loop = ControlLoop(settings.arm, one)
            chosen = policy or constant_policy(loop.nominal_action)
            plant = make_plant('rk4', settings)
            logs.append(run_episode(plant, episodes, chosen, loop, num_steps))
            if not logs[0].modes.any():
                break
        is_alarmed = (logs[0].modes != Mode.NOMINAL).any(axis=0)
        errors = np.abs(logs[-1].q_desired_rad - logs[-1].true_q_rad).max(axis=(0, -1))
        astray = ~(errors < ASTRAY_RAD)
        num_astray += int(astray.sum())
        num_excused += int((is_alarmed & astray).sum())
        num_alarmed += int(is_alarmed.sum())
        for arm in np.flatnonzero(is_alarmed & ~astray):
            first = np.flatnonzero(logs[0].modes[:, arm])[0]
            causes[Cause(int(logs[0].causes[first, arm])).name] += 1
    num_arms = len(cases.payloads_kg) * cases.rollouts
    return {
        'controller': player.name,
        'regime': regime.name,
        'hours': num_arms * duration_s / 3600.0,
        'num_arms': num_arms,
        'num_astray_without_guard': num_astray,
        'num_alarms_of_arms_astray': num_excused,
        'num_false_alarms': num_alarmed - num_excused,
        'first_causes': dict(causes),
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return 0 if no arm that was under control gave an alarm."""
    parser = argparse.ArgumentParser(
        prog='python -m training.false_alarms',
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add('--regime', nargs='+', default=REGIMES, help='of config/benchmark.yaml (%(default)s)')
    add('--seconds', type=positive_number, default=60.0, help='of each arm (%(default)s)')
    add('--out', type=Path, default=Path('results/false_alarms.json'), help='(%(default)s)')
    add('--jobs', type=int, default=os.cpu_count(), help='processes side by side (all cores)')
    args = parser.parse_args(arguments)
    regimes = [load_benchmark().regime(name) for name in args.regime]
    asked = [(p, regime, args.seconds) for regime in regimes for p in players(regime.tuned_for)]
    records = []
    with ProcessPoolExecutor(args.jobs, multiprocessing.get_context('spawn')) as pool:
        for record in pool.map(run_cell, *zip(*asked, strict=True)):
            records.append(record)
            sys.stdout.write(
                f'{record["regime"]:16} {record["controller"]:20} {record["hours"]:.2f} h  '
                f'{record["num_false_alarms"]} false alarms {record["first_causes"] or ""}  '
                f'{record["num_astray_without_guard"]} of {record["num_arms"]} astray by itself\n'
            )
            sys.stdout.flush()
    write_json(args.out, {'cells': records, **provenance(load_settings())})
    return int(any(record['num_false_alarms'] for record in records))


if __name__ == '__main__':
    raise SystemExit(main())
