# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""How well the controller keeps time over ROS, and how it takes the loss of the robot.

    metactl bench --out results/ros_timing.json

    quiet     plant and controller alone, in real time; tried again if the machine itself stalled
    loaded    the same while every core is kept busy
    blind     the robot falls silent at random moments: how old was its last state when the
              controller, here without real-time priority, took it for stale?
    crashes   either process is killed and started again (`outages.py`)
    replay    whether the quiet run can be computed again from its bag, and how fast
    tracking  the error over ROS against that of the same episode in process

Everything is read back from bags. Timing depends on the machine; compare within one file: beside
the node a probe of bare threads keeps the same deadlines: its lateness is the machine's own.
"""

from collections.abc import Sequence
from dataclasses import replace
import json
from pathlib import Path
import tempfile
import time
from typing import Any

import numpy as np
from rich.console import Console

from metactl_ros.bag.reader import read_messages
from metactl_ros.bag.tick_log import read_ticks, TickLog
from metactl_ros.baselines import load_learned
from metactl_ros.bench.outages import (
    controller_kills,
    LATE_MS,
    LatencyProbe,
    plant_kills,
    recorded_bag,
    sigterms,
    silences,
    START_S,
    wait_for_bag,
)
from metactl_ros.control.loop import ControlLoop
from metactl_ros.control.modes import Mode
from metactl_ros.files import write_json
from metactl_ros.metrics import percentiles, tracking_rmse
from metactl_ros.motion.joining import join
from metactl_ros.motion.reference import motion_limits, Sinusoid
from metactl_ros.options import defaults_of
from metactl_ros.processes import ProcessGroup, running, Setup
from metactl_ros.replay.verdict import replay_bag, ReplayRequest
from metactl_ros.settings import load_settings, make_plant, provenance, Settings
from metactl_ros.signals import ROUNDING_NM
from metactl_ros.sim.rollout import run_episode

USUAL_PRIORITY = defaults_of('controller_node.yaml')['realtime_priority']
SECTIONS = ('quiet', 'loaded', 'blind', 'crashes')
"""What can be measured by itself; replay and tracking come with quiet."""
ATTEMPTS = 3
"""Quiet runs at most, until one in which the machine itself was never late; all are reported."""
MISSED_PERIODS = 1.5
"""Ticks that are further apart than so many periods have missed one between them."""


def run_bench(
    out: Path,
    duration_s: float,
    num_silences: int,
    num_kills: int,
    policy: Path,
    headlines: Path | None = None,
    only: Sequence[str] = SECTIONS,
) -> None:
    """Measure some sections, or all, and write the file, over what it held of them.

    Put what a tick costs also among the headlines.
    """
    settings, console = load_settings(), Console()
    setup = Setup(policy=str(policy), plant='rk4', log_level='error')
    figures = json.loads(out.read_text()) if out.is_file() and set(only) < set(SECTIONS) else {}
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        if 'quiet' in only:
            figures |= quiet_figures(settings, setup, folder, duration_s, policy, console)
        if 'loaded' in only:
            console.print(f'every core busy, {duration_s:g} s')
            with ProcessGroup({}) as load:
                load.start_busy()
                figures['loaded'], _ = timed(replace(setup, record=folder / 'loaded'), duration_s)
        if 'blind' in only:
            ordinary = folder / 'ordinary.yaml'
            ordinary.write_text('/**: {ros__parameters: {realtime_priority: 0}}\n')
            figures['blind'] = silences(replace(setup, params_file=ordinary), folder, num_silences)
        if 'crashes' in only:
            figures['crashes'] = {
                'controller': controller_kills(replace(setup, record=folder / 'kills'), num_kills),
                'plant': plant_kills(replace(setup, record=folder / 'losses'), num_kills),
                'sigterm': sigterms(setup, folder, num_kills),
            }
    origin = provenance(settings)
    measured = {
        'at': time.strftime('%Y-%m-%dT%H:%MZ', time.gmtime()),
        'code': origin['code'],
        'command': origin['command'],
    }
    figures['measured'] = figures.get('measured', {}) | dict.fromkeys(only, measured)
    write_json(out, figures | origin)
    if headlines is not None and 'quiet' in only:
        kept = json.loads(headlines.read_text()) if headlines.is_file() else {}
        quiet = figures['quiet']
        cost = {
            'tick_p99_ms': quiet['tick_ms']['p99'],
            'inference_p99_ms_w50': quiet['inference_ms']['p99'],
            'node_rss_mb': quiet['controller_rss_mb'],
        }
        write_json(headlines, kept | cost)
    console.print_json(data={name: figures[name] for name in only})


def quiet_figures(
    settings: Settings,
    setup: Setup,
    folder: Path,
    duration_s: float,
    policy: Path,
    console: Console,
) -> dict[str, Any]:
    """Return the figures of a quiet run, of its replay and of its tracking."""
    attempts = []
    for number in range(ATTEMPTS):
        console.print(f'quiet, {duration_s:g} s')
        bag = folder / f'quiet_{number}'
        attempts.append((*timed(replace(setup, record=bag), duration_s), bag))
        if not attempts[-1][0]['bare_thread_late_ticks']:
            break
    quiet, log, bag = min(attempts, key=lambda run: run[0]['bare_thread_late_ticks'])
    again = replay_bag(ReplayRequest(bag=bag, bundle=policy)).facts
    kept = ('rate_hz', 'late_ticks', 'bare_thread_late_ticks')
    return {
        'quiet': quiet,
        'quiet_attempts': [{name: run[name] for name in kept} for run, _, _ in attempts],
        'replay': {name: again[name] for name in ('verdict', 'times_real_time')},
        'tracking': tracking(settings, setup, policy, log),
    }


def last_diagnostics(folder: Path) -> dict[str, float]:
    """Return the figures of the last report of the controller's timing in a bag, by name."""
    found: dict[str, float] = {}
    for _, message in read_messages(folder, 'diagnostics'):
        for status in message.decode().status:
            if status.name.endswith('controller: timing'):
                found = {v.key: float(v.value) for v in status.values if v.key.endswith(' ms')}
    return found


def timed(setup: Setup, duration_s: float) -> tuple[dict[str, Any], TickLog]:
    """Run for a while and return the figures of its ticks, and the ticks."""
    bag = recorded_bag(setup)
    with running(setup) as group:
        wait_for_bag(bag)
        with LatencyProbe(USUAL_PRIORITY) as probe:
            time.sleep(duration_s + START_S)
        memory = resident_mb(group['controller_node'].pid)
    log, reported = read_ticks(bag), last_diagnostics(bag)
    last = np.flatnonzero(log.shield['state_is_fresh'] == 1.0)[-1]
    first = np.searchsorted(log.time_s, log.time_s[last] - duration_s)  # however long it began
    rows, times = slice(first, last + 1), log.time_s[first : last + 1]
    late, took, modes = (log.shield[name][rows] for name in ('late_ms', 'inference_ms', 'mode'))
    missed_s = MISSED_PERIODS / load_settings().controller.law.rate_hz
    return {
        'duration_s': float(times[-1] - times[0]),
        'rate_hz': float((len(times) - 1) / (times[-1] - times[0])),
        'lateness_ms': percentiles(late),
        'late_ticks': int(np.sum(late > LATE_MS)),
        'missed_ticks': int(np.sum(np.diff(times) > missed_s)),
        'inference_ms': percentiles(took),
        'tick_ms': {name: reported.get(f'tick {name} ms') for name in ('p50', 'p99', 'max')},
        'num_ticks': len(times),
        'ticks_by_mode': {mode.name: int(np.sum(modes == mode)) for mode in Mode},
        'unsafe_efforts': num_unsafe(log),
        'controller_rss_mb': memory,
        'bare_thread_lateness_ms': percentiles(probe.late_ms),
        'bare_thread_late_ticks': int(np.sum(probe.late_ms > LATE_MS)),
    }, log


def num_unsafe(log: TickLog) -> int:
    """Return how many efforts were not finite, too large, or too far from the one before.

    Both what a tick decided and, where it was recorded, what was sent.
    """
    settings = load_settings()
    limits = settings.arm.limits
    step = np.array(limits.effort_rate_nmps) / settings.controller.law.rate_hz + ROUNDING_NM
    sent_nm = np.where(np.isnan(log.sent_nm), log.effort_nm, log.sent_nm)
    is_safe = np.full(len(sent_nm), True)
    for effort_nm in (log.effort_nm, sent_nm):  # NaN is not safe
        is_safe &= (np.abs(effort_nm) <= np.array(limits.effort_nm) + ROUNDING_NM).all(axis=-1)
        is_safe &= (np.abs(effort_nm - log.effort_before_nm) <= step).all(axis=-1)
    return int(np.sum(~is_safe))


def tracking(settings: Settings, setup: Setup, policy: Path, log: TickLog) -> dict[str, float]:
    """Return the RMSE over ROS, its first 5 s and all of it, and those in process, rad."""
    bundle = load_learned(policy, settings.arm, settings.controller)
    loop = ControlLoop(settings.arm, bundle.controller)
    plant, episode = make_plant('rk4', settings), setup.episode()
    assert isinstance(episode.reference, Sinusoid)
    start, limits = episode.start, motion_limits(settings.arm)
    way = join(episode.reference, limits, 0.0, start.q_rad, start.qd_radps)  # as the node does
    inside = run_episode(plant, episode, bundle.policy, loop, len(log.time_s), way)
    first = settings.episode_steps

    errors = {
        'rmse_over_ros_5s': tracking_rmse(log.q_desired_rad[:first], log.q_rad[:first]),
        'rmse_in_process_5s': tracking_rmse(inside.q_desired_rad[:first], inside.q_rad[:first]),
        'rmse_over_ros': tracking_rmse(log.q_desired_rad, log.q_rad),
        'rmse_in_process': tracking_rmse(inside.q_desired_rad[:-1], inside.q_rad[:-1]),
    }
    return {name: float(error) for name, error in errors.items()}


def resident_mb(pid: int) -> float:
    """Return the resident memory of a process, MB."""
    lines = Path(f'/proc/{pid}/status').read_text(encoding='ascii').splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith('VmRSS')) / 1e3
