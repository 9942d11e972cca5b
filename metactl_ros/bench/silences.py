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
from numpy.typing import NDArray
from rich.progress import track

from metactl_ros.bag.cdr import read_joint_state
from metactl_ros.bag.reader import read_messages
from metactl_ros.bag.tick_log import read_ticks, TickLog
from metactl_ros.bench.latency_probe import BareThreads, LATE_MS
from metactl_ros.control.modes import Mode
from metactl_ros.processes import running, Setup
from metactl_ros.signals import Array, NANOSECONDS_PER_SECOND

START_S = 3.0
"""Left out at the beginning, and waited for in vain at most five times: processes start."""
SILENCE_S = 0.1
SILENCES_PER_ROUND, MOST_ROUNDS = 25, 12


def silences(setup: Setup, folder: Path, number: int) -> dict[str, Any]:
    """Stop the robot's process at random moments; return how old its last state got.

    Those in which the machine itself stood still are told apart, by the lateness of bare threads.
    Rounds with new processes: where a machine stalls often, the controller faults and stays so.
    """
    found = Silences([], [], 0, 0)
    turns = track(range(MOST_ROUNDS), description='silences', disable=not sys.stderr.isatty())
    for turn in turns:
        recorded = replace(setup, record=folder / f'blind_{turn}')
        more = one_round(recorded, min(number, SILENCES_PER_ROUND), seed=turn)
        found = found.and_then(more)
        if len(found.ages_ms) >= number:
            break
    return {
        'injected': len(found.ages_ms) + len(found.stalled_ms) + sum(found[2:]),
        'missed': found.num_missed,
        'while_not_driving': found.num_not_driving,
        'number': len(found.ages_ms),
        'last_state_to_blind_ms': quantiles(np.array(found.ages_ms)) if found.ages_ms else None,
        'while_the_machine_stalled_ms': [round(age_ms, 3) for age_ms in found.stalled_ms],
    }


class Silences(NamedTuple):
    """How old the last state was when the arm was called blind; each silence is in one place.

    From its publishing to the first command of a blind arm. The controller's own now_s cannot tell
    it: a robot that was stopped is behind from then on, but now_s never goes back.
    """

    ages_ms: list[float]
    stalled_ms: list[float]
    """The same, while the machine itself stalled."""
    num_missed: int
    """Silences in which it was never called so, though the controller was driving."""
    num_not_driving: int
    """Silences of an arm that nobody drove: the controller was blind already, or had faulted."""

    def and_then(self, more: 'Silences') -> 'Silences':
        """Return these and those of another round."""
        return Silences(
            self.ages_ms + more.ages_ms,
            self.stalled_ms + more.stalled_ms,
            self.num_missed + more.num_missed,
            self.num_not_driving + more.num_not_driving,
        )


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
    stalls_ns = bare.time_ns[bare.late_ms > LATE_MS]
    folder = Path(setup.record)
    return sorted_out(read_ticks(folder), published_states(folder), stops_ns, stalls_ns)


class PublishedStates(NamedTuple):
    """Joint states of a recording, by their stamps; shape (N,)."""

    stamp_ns: NDArray[np.int64]
    """On the clock of the robot."""
    published_ns: NDArray[np.int64]
    """On the clock of the machine."""


def published_states(folder: Path) -> PublishedStates:
    """Return when each joint state in a bag was published."""
    rows = [
        (read_joint_state(message.data).stamp_ns, message.publish_time_ns)
        for _, message in read_messages(folder, 'joint_states')
    ]
    return PublishedStates(*np.array(sorted(rows), dtype=np.int64).reshape(-1, 2).T)


def sorted_out(
    log: TickLog, states: PublishedStates, stops_ns: list[int], stalls_ns: Array
) -> Silences:
    """Say what a controller made of each silence.

    Args:
        log: Its ticks.
        states: What the robot said.
        stops_ns: When the robot fell silent.
        stalls_ns: When the machine itself was found to have stood still.
    """
    mode = log.shield['mode']
    onsets = np.flatnonzero((mode[1:] == Mode.BLIND) & (mode[:-1] != Mode.BLIND)) + 1
    seconds, rest_ns = (log.shield[f'state_stamp_{unit}'] for unit in ('sec', 'nanosec'))
    used_ns = seconds.astype(np.int64) * NANOSECONDS_PER_SECOND + rest_ns.astype(np.int64)
    # Of a state that the recorder missed, the time of the one before: none is made younger.
    places = np.searchsorted(states.stamp_ns, used_ns, side='right') - 1
    ages, stalled, num_missed, num_not_driving = list[float](), list[float](), 0, 0
    for begin_ns in stops_ns:
        end_ns = begin_ns + round(1.5e9 * SILENCE_S)
        own = onsets[_are_within(log.stamp_ns[onsets], begin_ns, end_ns)]
        if len(own):
            last_ns, blind_ns = states.published_ns[places[own[0]]], log.stamp_ns[own[0]]
            is_stalled = _are_within(stalls_ns, last_ns, blind_ns + 10_000_000).any()
            (stalled if is_stalled else ages).append(float(blind_ns - last_ns) / 1e6)
        elif mode[np.searchsorted(log.stamp_ns, begin_ns) - 1] < Mode.BLIND:
            num_missed += 1
        else:
            num_not_driving += 1
    return Silences(ages, stalled, num_missed, num_not_driving)


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
