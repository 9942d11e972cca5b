# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""What faults do to the arm, in figures: each scenario is run, and measured rather than judged.

    python -m metactl_ros.hil.fault_table --out results/faults_after.json [NAME...]

What a file says of other scenarios stays there. `comparison` makes one table of two such files.
Times count from when the first fault really came. Speeds and errors are the true ones; errors are
those of ticks on which the controller meant to follow its reference: WARMUP, NOMINAL and FALLBACK.
A run on a machine that stalled, or whose arm was lost before its fault came, says nothing of the
fault, and the scenario is run again; likewise if the fault did not come upon NOMINAL.
"""

import argparse
from collections.abc import Mapping, Sequence
import json
from pathlib import Path
import sys
from typing import Any

import numpy as np

from metactl_ros.control.modes import Cause, Mode
from metactl_ros.errors import MetactlError
from metactl_ros.files import write_json
from metactl_ros.hil.judge import early_error
from metactl_ros.hil.run import longest_stall_s, run_once
from metactl_ros.hil.run_log import RunLog
from metactl_ros.hil.scenario import chosen_scenarios, load_scenario
from metactl_ros.settings import load_settings, provenance

ATTEMPTS = 8
GUARDED = (
    *('frozen_for_good', 'frozen_joint', 'frozen_while_held', 'position_leap'),
    *('clock_sticks', 'clock_slow', 'clock_fast', 'clock_ninety'),
    *('second_states', 'echoed_states'),
    *('sigstop_controller', 'sigstop_controller_1s', 'sigstop_controller_3s'),
    *('brake_engages', 'velocity_zero', 'velocity_sign', 'velocity_degrees'),
    *('effort_milliamperes', 'trajectory_leap', 'trajectory_far', 'trajectory_fast'),
    *('drives_off', 'jammed_joint', 'second_commands', 'second_controller'),
    *('flood_parameters', 'flood_trajectories', 'flood_clear_context', 'latency'),
)
"""The scenarios in which not the commands are at stake but the arm."""
SIZES = {'speed_radps': 1, 'error_rad': 2, 'effort_nm': 0, 'gap_s': 2}
"""Digits behind the point."""


def measure(log: RunLog) -> dict[str, Any]:
    """Return what a fault did, from when it came to the end of the run."""
    begin_s = log.first_fault_s
    ticks, steps, commands = (
        (times_s >= begin_s) & (times_s <= log.end_s)
        for times_s in (log.tick_s, log.step_s, log.command_s)
    )
    gaps_s = np.diff(log.command_s)  # the first of them may begin before the fault
    modes = log.mode[ticks]
    left = np.flatnonzero(modes != Mode.NOMINAL)
    follows = ticks & (log.mode < Mode.STOP) & np.isfinite(log.error_rad)
    visited = [Mode(int(mode)).name for mode in dict.fromkeys(modes.tolist())]
    return {
        'left_nominal_s': _rounded(log.tick_s[ticks][left[:1]] - begin_s),
        'largest_speed_radps': _largest(log.true_qd_radps[steps]),
        'largest_error_rad': _rounded(np.sort(log.error_rad[follows])[-1:]),
        'largest_effort_nm': _largest(log.commands.effort_nm[commands]),
        'largest_gap_s': _rounded(np.sort(gaps_s[commands[1:]])[-1:]),
        'modes': visited,
        'causes': [Cause(int(cause)).name for cause in dict.fromkeys(log.cause[ticks].tolist())],
        'final_mode': Mode(int(modes[-1])).name if len(modes) else None,
    }


def was_nominal(log: RunLog) -> bool:
    """Return whether the fault came upon NOMINAL, or before there was any tick."""
    before = log.mode[log.tick_s < log.first_fault_s]
    return not len(before) or int(before[-1]) == Mode.NOMINAL


def _rounded(values: Any) -> float | None:
    """Return the only entry, None if there is none."""
    return round(float(values[0]), 4) if len(values) else None


def _largest(rows: Any) -> list[float] | None:
    sizes = np.abs(rows[np.isfinite(rows).all(axis=1)])
    return sizes.max(axis=0).round(3).tolist() if len(sizes) else None


def run(name: str, folder: Path) -> dict[str, Any]:
    """Run a scenario until a run says something of its fault; return what is kept of it."""
    (file,) = chosen_scenarios([name])
    scenario = load_scenario(file)
    stalls_s, is_meant = list[float](), False
    while not is_meant and len(stalls_s) < ATTEMPTS:
        log, verdicts = run_once(file, scenario, folder)
        stalls_s.append(round(longest_stall_s(log), 4))
        is_meant = not stalls_s[-1] and early_error(log).has_passed and was_nominal(log)
    failed = [verdict for verdict in verdicts if not verdict.has_passed]
    return {
        'scenario': name,
        'title': scenario.title,
        **measure(log),
        'failed_demands': [f'{verdict.demand}: found {verdict.found}' for verdict in failed],
        'longest_stall_s_by_attempt': stalls_s,
        'is_undisturbed': is_meant,
    }


def comparison(
    before: Sequence[Mapping[str, Any]], after: Sequence[Mapping[str, Any]]
) -> list[str]:
    """Return the lines of a table in Markdown, from two lists of scenarios; a dash is unknown."""
    then, now = ({row['scenario']: row for row in rows} for rows in (before, after))
    lines = [
        '| fault | leaves NOMINAL after, s | | largest speed, rad/s | | largest error, rad | '
        '| largest effort, N m | | longest pause, s | |',
        f'|---|{2 * (1 + len(SIZES)) * "---|"}',
        f'| |{(1 + len(SIZES)) * " before | now |"}',
    ]
    keys = ('left_nominal_s', *(f'largest_{what}' for what in SIZES))
    for name, row in (then | now).items():
        cells = [_cell(rows.get(name), key) for key in keys for rows in (then, now)]
        lines.append(f'| {" | ".join((row["title"], *cells))} |')
    return lines


def _cell(row: Mapping[str, Any] | None, key: str) -> str:
    if row is None or row[key] is None:
        return '-' if row is None or key != 'left_nominal_s' else 'never'
    digits = SIZES.get(key.removeprefix('largest_'), 2)
    entries = row[key] if isinstance(row[key], list) else [row[key]]
    return ', '.join(f'{entry:.{digits}f}' for entry in entries)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure scenarios; return 0, or 2 if one could not be run."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('names', nargs='*', default=GUARDED, metavar='NAME')
    parser.add_argument('--out', type=Path, required=True, metavar='FILE')
    parser.add_argument('--runs', type=Path, default=Path('runs/fault_table'), metavar='FOLDER')
    args = parser.parse_args(arguments)
    kept = json.loads(args.out.read_text())['scenarios'] if args.out.is_file() else []
    rows = {row['scenario']: row for row in kept}
    try:
        for name in args.names:
            row = rows[name] = run(name, args.runs / name)
            left, speed = row['left_nominal_s'], row['largest_speed_radps']
            sys.stdout.write(
                f'{name:24} left {left} s, {speed} rad/s, {row["largest_error_rad"]} rad, '
                f'{row["largest_effort_nm"]} N m, {row["modes"]} {row["causes"]}\n'
            )
            sys.stdout.flush()
            order = [*GUARDED, *(other for other in rows if other not in GUARDED)]
            ordered = [rows[known] for known in order if known in rows]
            write_json(args.out, {'scenarios': ordered} | provenance(load_settings()))
    except MetactlError as error:
        sys.stderr.write(f'error: {error}\n')
        return 2
    return 0


if __name__ == '__main__':
    sys.exit(main())
