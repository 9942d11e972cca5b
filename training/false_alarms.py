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

from collections import Counter
from collections.abc import Sequence
import os
from pathlib import Path
import sys
from typing import Any

import numpy as np
from rich.console import Console

from metactl_ros.baselines import ControllerSpec
from metactl_ros.control.modes import Cause, Mode
from metactl_ros.files import write_json
from metactl_ros.settings import load_settings, provenance
from training.benchmark import controllers, draw_cases, load_benchmark, Regime, settings_in
from training.commands import command_parser, positive_number, run_jobs
from training.judge.rollouts import batches_of, Conditions, run_controller

REGIMES = ('tau_2', 'velocity_noise', 'encoder_12bit', 'delay_20ms')
ASTRAY_RAD = 0.5
"""As in `hil/judge.py`: even fixed gains keep within 0.36 rad."""
IDEAL_MOTOR_NM = 1e300
"""No regime here has weak motors."""


def run_cell(spec: ControllerSpec, regime: Regime, duration_s: float) -> dict[str, Any]:
    """Return how often, why and in how many arms a controller was not NOMINAL."""
    settings = load_settings()
    settings = settings_in(settings, regime, (IDEAL_MOTOR_NM,) * settings.controller.num_joints)
    cases = load_benchmark().judging
    episodes = draw_cases(settings, regime, cases)
    num_steps = round(duration_s * settings.controller.law.rate_hz)
    causes: Counter[str] = Counter()
    num_alarmed = num_astray = num_excused = 0
    for batch in batches_of(spec, episodes):
        (guarded,) = run_controller(spec, settings, batch, num_steps)
        free = guarded
        if guarded.modes.any():
            without_guard = Conditions(is_guarded=False)
            (free,) = run_controller(spec, settings, batch, num_steps, without_guard)
        is_alarmed = (guarded.modes != Mode.NOMINAL).any(axis=0)
        errors = np.abs(free.q_desired_rad - free.true_q_rad).max(axis=(0, -1))
        is_astray = ~(errors < ASTRAY_RAD)
        num_astray += int(is_astray.sum())
        num_excused += int((is_alarmed & is_astray).sum())
        num_alarmed += int(is_alarmed.sum())
        for arm in np.flatnonzero(is_alarmed & ~is_astray):
            first = np.flatnonzero(guarded.modes[:, arm])[0]
            causes[Cause(int(guarded.causes[first, arm])).name] += 1
    num_arms = len(cases.payloads_kg) * cases.rollouts
    return {
        'controller': spec.name,
        'regime': regime.name,
        'hours': num_arms * duration_s / 3600.0,
        'num_arms': num_arms,
        'num_astray_without_guard': num_astray,
        'num_alarms_of_arms_astray': num_excused,
        'num_false_alarms': num_alarmed - num_excused,
        'first_causes': dict(causes),
    }


def say(_: int, record: dict[str, Any]) -> None:
    """Print the line of a cell."""
    sys.stdout.write(
        f'{record["regime"]:16} {record["controller"]:20} {record["hours"]:.2f} h  '
        f'{record["num_false_alarms"]} false alarms {record["first_causes"] or ""}  '
        f'{record["num_astray_without_guard"]} of {record["num_arms"]} astray by itself\n'
    )
    sys.stdout.flush()


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return 0 if no arm that was under control gave an alarm."""
    parser = command_parser('false_alarms', __doc__)
    add = parser.add_argument
    add('--regime', nargs='+', default=REGIMES, help='of config/benchmark.yaml (%(default)s)')
    add('--seconds', type=positive_number, default=60.0, help='of each arm (%(default)s)')
    add('--out', type=Path, default=Path('results/false_alarms.json'), help='(%(default)s)')
    add('--jobs', type=int, default=os.cpu_count(), help='processes side by side (all cores)')
    args = parser.parse_args(arguments)
    regimes = [load_benchmark().regime(name) for name in args.regime]
    jobs = [(s, regime, args.seconds) for regime in regimes for s in controllers(regime.tuned_for)]
    console = Console(stderr=True)
    records = run_jobs(run_cell, jobs, args.jobs, console, title='cells', on_result=say)
    write_json(args.out, {'cells': records, **provenance(load_settings())})
    return int(any(record['num_false_alarms'] for record in records))


if __name__ == '__main__':
    raise SystemExit(main())
