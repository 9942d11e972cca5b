# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""How soon a controller notices over ROS that its robot fell silent: part of `metactl bench`."""

from dataclasses import replace
import os
from pathlib import Path
import signal
import sys
import time
from typing import Any, NamedTuple

import numpy as np
from rich.progress import track

from metactl_ros.bag.tick_log import read_ticks
from metactl_ros.control.modes import Mode
from metactl_ros.evaluation.bare_threads import BareThreads, LATE_MS
from metactl_ros.nodes import parameters
from metactl_ros.nodes.fleet import running, Setup
from metactl_ros.signals import Array

START_S = 3.0
"""Left out at the beginning, and waited for in vain at most five times: processes start."""
LEAD_S = parameters.defaults_of('controller_node.yaml')['state_lead_s']
"""How old a state is when it is used: ticks creep to this distance from the states."""
SILENCE_S = 0.1
SILENCES_PER_ROUND, MOST_ROUNDS = 25, 12


def silences(setup: Setup, folder: Path, number: int) -> dict[str, Any]:
    """Stop the robot's process at random moments; return how old its last state got.

    Those in which the machine itself stood still are told apart, by the lateness of bare threads.
    Rounds with new processes: where a machine stalls often, the controller faults and stays so.
    """
    ages, stalled, injected, missed = list[float](), list[float](), 0, 0
    turns = track(range(MOST_ROUNDS), description='silences', disable=not sys.stderr.isatty())
    for turn in turns:
        recorded = replace(setup, record=folder / f'blind_{turn}')
        found = one_round(recorded, min(number, SILENCES_PER_ROUND), seed=turn)
        ages += found.ages_ms
        stalled += found.stalled_ms
        injected += min(number, SILENCES_PER_ROUND)
        missed += found.num_missed
        if len(ages) >= number:
            break
    return {
        'injected': injected,
        'missed': missed,
        'number': len(ages),
        'last_state_to_blind_ms': quantiles(np.array(ages)) if ages else None,
        'while_the_machine_stalled_ms': [round(age_ms, 3) for age_ms in stalled],
    }


class Silences(NamedTuple):
    """How old the last state was when the arm was called blind."""

    ages_ms: list[float]
    stalled_ms: list[float]
    """The same, while the machine itself stalled."""
    num_missed: int
    """Silences in which it was never called so, though the controller was driving."""


def one_round(setup: Setup, number: int, seed: int) -> Silences:
    """Stop the robot's process a number of times and say what the controller made of it."""
    assert setup.record is not None
    rng, stops_ns = np.random.default_rng(seed), list[int]()
    with running(setup) as processes:
        wait_for_bag(Path(setup.record))
        time.sleep(START_S)
        pid = processes['plant_node'].pid
        with BareThreads(priority=0, period_ns=2_000_000) as bare:
            for _ in range(number):
                stops_ns.append(time.time_ns())
                os.kill(pid, signal.SIGSTOP)
                time.sleep(SILENCE_S)
                os.kill(pid, signal.SIGCONT)
                time.sleep(1.2 + rng.uniform(0.0, 0.01))  # WARMUP lasts half a second
    log = read_ticks(Path(setup.record))
    mode = log.shield['mode']
    onsets = np.flatnonzero((mode[1:] == Mode.BLIND) & (mode[:-1] != Mode.BLIND)) + 1
    stamps = log.shield['state_stamp_sec'] * 1e9 + log.shield['state_stamp_nanosec']
    is_new = np.flatnonzero(np.diff(stamps, prepend=-1.0) > 0.0)
    stalls_ns = bare.time_ns[bare.late_ms > LATE_MS]
    found = Silences([], [], 0)
    for begin_ns in stops_ns:
        end_ns = begin_ns + round(1.5e9 * SILENCE_S)
        own = onsets[_are_within(log.stamp_ns[onsets], begin_ns, end_ns)]
        if len(own):
            used = is_new[np.searchsorted(is_new, own[0], side='right') - 1]
            age_ms = float(1e3 * (log.time_s[own[0]] - log.time_s[used] + LEAD_S))
            span = log.stamp_ns[used], log.stamp_ns[own[0]] + 10_000_000
            is_stalled = _are_within(stalls_ns, *span).any()
            (found.stalled_ms if is_stalled else found.ages_ms).append(age_ms)
        elif not _are_within(stalls_ns, begin_ns, end_ns).any():
            was_driving = mode[np.searchsorted(log.stamp_ns, begin_ns) - 1] < Mode.BLIND
            found = found._replace(num_missed=found.num_missed + int(was_driving))
    return found


def _are_within(moments_ns: Array, begin_ns: int, end_ns: int) -> Any:
    return (moments_ns > begin_ns) & (moments_ns < end_ns)


def wait_for_bag(folder: Path) -> None:
    """Wait until the recorder has begun."""
    for _ in range(150):
        if folder.exists():
            return
        time.sleep(5 * START_S / 150)


def quantiles(values: Array) -> dict[str, float]:
    """Return p50, p99 and the largest."""
    p50, p99, most = np.quantile(values, [0.5, 0.99, 1.0])
    return {'p50': float(p50), 'p99': float(p99), 'max': float(most)}
