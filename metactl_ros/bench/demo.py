# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""The demonstration behind `make demo`: plant and controller as two processes over real Fast DDS.

The same episode is run twice in real time, with the fixed gains of the baseline and with the
shipped policy, or with the momentum observer on an arm which that is not for. Both are recorded,
and everything reported is read back from the two bags.
"""

from collections import Counter
import os
from pathlib import Path
import shutil
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from metactl_ros.bag.tick_log import read_ticks, TickLog
from metactl_ros.bench.plots import draw_tracking, track_of
from metactl_ros.control.modes import Mode
from metactl_ros.errors import MetactlError
from metactl_ros.files import write_json
from metactl_ros.metrics import delta_percent, percentiles, tracking_rmse
from metactl_ros.processes import best_controller, loopback_environment, running, Setup
from metactl_ros.settings import load_settings, provenance, Settings

LABELS = {
    'ct': 'fixed gains',
    'policy': 'learned gains, shielded',
    'momentum_observer': 'momentum observer',
}
SPARE_S = 0.2
"""Run longer than what is evaluated, so that no tick of it is missing, s."""


class DemoError(MetactlError, RuntimeError):
    """A process of the demo did not do its part."""


def run_demo(folder: Path, seed: int, payload_kg: float, duration_s: float, arm: str = '') -> None:
    """Run both controllers over ROS; write bags, a picture and a summary, and print a table."""
    settings, console = load_settings(arm), Console()
    labels = {name: LABELS[name] for name in ('ct', best_controller(settings))}
    os.environ.update(loopback_environment(None))
    logs = {}
    for controller, label in labels.items():
        bag = folder / f'bag_{controller}'
        shutil.rmtree(bag, ignore_errors=True)
        folder.mkdir(parents=True, exist_ok=True)
        setup = Setup(
            controller=controller,
            arm_file=arm,
            seed=seed,
            payload_kg=payload_kg,
            record=bag,
            log_level='warn',
        )
        follow(setup, label, duration_s + SPARE_S)
        num_ticks = round(duration_s * settings.controller.law.rate_hz)
        logs[label] = read_ticks(bag).first(num_ticks)
    summary = summarise(settings, logs) | {'seed': seed, 'payload_kg': payload_kg}
    summary['caveats'] = caveats(logs)
    write_json(folder / 'summary.json', summary | provenance(settings))
    title = f'over ROS in real time, payload {payload_kg:g} kg, tau_z '
    title += f'{settings.plant.task.tau_z_s:g} s'
    tracks = {label: track_of(log) for label, log in logs.items()}
    draw_tracking(title, tracks).savefig(folder / 'demo.png', dpi=110)
    console.print(table_of(summary, duration_s, *labels.values()))
    for caveat in summary['caveats']:
        console.print(caveat, style='yellow', highlight=False)
    console.print(f'picture, bags and summary.json are in {folder}', highlight=False)


def follow(setup: Setup, label: str, duration_s: float) -> None:
    """Run one controller for a while, under a status line; DemoError if a process ends before."""
    # Imported here, in the environment of the demo: rclpy reads it once.
    from metactl_ros.ros.monitor import StatusLine, watch

    with running(setup) as group:

        def is_over(line: StatusLine) -> bool:
            for name, code in group.ended().items():
                raise DemoError(f'{name}: ended with exit code {code}; see above.')
            return line.time_s > duration_s

        watch(label, is_over)


def summarise(settings: Settings, logs: dict[str, TickLog]) -> dict[str, Any]:
    """Return what summary.json says: errors of both, timing and shield of the policy's run."""
    baseline, policy = (
        float(tracking_rmse(logs[label].q_desired_rad, logs[label].q_rad)) for label in logs
    )
    *_, log = logs.values()  # of the second controller
    late_ms = log.shield['late_ms']
    joints = {
        name: [
            float(tracking_rmse(x.q_desired_rad[:, [k]], x.q_rad[:, [k]])) for x in logs.values()
        ]
        for k, name in enumerate(log.joint_names)
    }
    modes = Counter(Mode(int(mode)).name for mode in log.shield['mode'])
    return {
        'rmse_baseline': baseline,
        'rmse_policy': policy,
        'delta_percent': delta_percent(policy, baseline),
        'rmse_by_joint': joints,
        'rate_hz': float((len(log.time_s) - 1) / log.time_s[-1]),
        'late_ticks': int(np.sum(late_ms > 500.0 / settings.controller.law.rate_hz)),
        'lateness_ms': percentiles(late_ms),
        'shield_activation': float(np.mean(log.shield['was_moved'])),
        'modes': dict(modes),
        'num_incomplete_ticks': log.num_incomplete,
    }


def caveats(logs: dict[str, TickLog]) -> list[str]:
    """Return what a reader must know if a controller was not driving all the time."""
    found = []
    for label, log in logs.items():
        if share := float(np.mean(log.shield['mode'] >= Mode.BLIND)):
            late_ms = log.shield['late_ms'].max()
            found.append(
                f'{label}: {100.0 * share:.1f} % of the ticks BLIND or FAULT, ticks up to '
                f'{late_ms:.0f} ms late: processes of this machine stood still. The error '
                'is not that of an arm that was driven; run it again when it has time.'
            )
    return found


def table_of(summary: dict[str, Any], duration_s: float, baseline: str, other: str) -> Table:
    """Return the summary as a table."""
    table = Table(title=f'{duration_s:g} s over ROS 2, two processes, real time')
    table.add_column('')
    table.add_column('', justify='right')
    late = summary['lateness_ms']
    modes = ', '.join(f'{name} {count}' for name, count in summary['modes'].items())
    joints = summary['rmse_by_joint'].items()
    for name, value in (
        (f'tracking RMSE, {baseline}', f'{summary["rmse_baseline"]:.4f} rad'),
        (f'tracking RMSE, {other}', f'{summary["rmse_policy"]:.4f} rad'),
        ('change', f'{summary["delta_percent"]:+.1f} %'),
        *((f'  {name}, both', f'{a:.4f}, {b:.4f} rad') for name, (a, b) in joints),
        ('rate', f'{summary["rate_hz"]:.2f} Hz'),
        ('late ticks', f'{summary["late_ticks"]}'),
        ('lateness p50, p99, max', f'{late["p50"]:.2f}, {late["p99"]:.2f}, {late["max"]:.2f} ms'),
        ('proposals moved by the shield', f'{100.0 * summary["shield_activation"]:.1f} %'),
        ('ticks by mode', modes),
    ):
        table.add_row(name, value)
    return table
