# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""How robot and controller take the loss of each other over ROS: part of `metactl bench`.

The robot is stopped for a moment, or either process is killed and started again. Everything is
read from bags; times between two messages are those at which the recorder received them, unless
they are those of publishing.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
import operator
import os
from pathlib import Path
import signal
import sys
import threading
import time
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from rich.progress import track

from metactl_ros.bag.reader import read_messages
from metactl_ros.bag.tick_log import read_ticks, TickLog
from metactl_ros.bag.topics import read_joint_state
from metactl_ros.control.modes import Mode
from metactl_ros.metrics import percentiles
from metactl_ros.processes import commands, running, Setup
from metactl_ros.runtime.deadlines import become_realtime, Deadlines, sleep_until
from metactl_ros.runtime.joint_states import nanoseconds
from metactl_ros.settings import load_settings
from metactl_ros.signals import Array, NANOSECONDS_PER_SECOND, period_ns_of

LATE_MS = 5.0
"""Half a period of the controller."""
START_S = 3.0
"""Left out at the beginning: processes start."""
BAG_WITHIN_S, POLL_S = 5.0 * START_S, 0.1
"""How long the recorder may take to begin, and how often it is looked for."""
SILENCE_S = 0.1
NOTICED_WITHIN_S = 1.5 * SILENCE_S
"""From its begin on, a silence counts as noticed so long."""
BETWEEN_SILENCES_S, JITTER_S = 1.2, 0.01
"""From the end of a silence to the next, at random a little more; WARMUP lasts half a second."""
SILENCES_PER_ROUND, MAX_ROUNDS = 25, 12
SETTLE_S, SETTLE_JITTER_S = 4.0, 0.5
"""Given to a set-up before a process is killed, at random a little more: start, discovery, half a
second of WARMUP."""
DOWN_S = 0.5
"""How long a killed process stays away."""
RECOVER_S = 5.0
"""The guarantee: NOMINAL again within this time after a start."""
KILL_SEED = 5
"""Of the random moments."""


class LatencyProbe:
    """Measures how late the machine itself wakes threads, whatever runs on it.

    Threads on every core keep deadlines, with the node's priority, and do nothing else: what makes
    them late is the machine, not this package.
    """

    def __init__(self, priority: int, period_ns: int = 10_000_000) -> None:
        self._priority, self._period_ns = priority, period_ns
        self._late: list[tuple[int, int]] = []
        self._must_stop = False
        self._threads = [
            threading.Thread(target=self._run, args=(core,), daemon=True)
            for core in sorted(os.sched_getaffinity(0))
        ]

    def __enter__(self) -> 'LatencyProbe':
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._must_stop = True
        for thread in self._threads:
            thread.join()
        rows = np.array(self._late)
        self.time_ns = rows[:, 0]
        """When a thread woke, on the clock of the machine, shape (K,)."""
        self.late_ms: Array = rows[:, 1] / 1e6
        """How late that was, shape (K,)."""

    def _run(self, core: int) -> None:
        os.sched_setaffinity(threading.get_native_id(), {core})
        become_realtime(self._priority)
        deadlines = Deadlines(self._period_ns, time.monotonic_ns())
        while not self._must_stop:
            late_ns = deadlines.begin_tick(sleep_until(deadlines.next_ns))
            self._late.append((time.time_ns(), late_ns))


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
    """Silences while the controller did not drive: it was blind already, or had faulted."""


class PublishedStates(NamedTuple):
    """Joint states of a recording, by their stamps; shape (N,)."""

    stamp_ns: NDArray[np.int64]
    """On the clock of the robot."""
    published_ns: NDArray[np.int64]
    """On the clock of the machine."""


@dataclass(frozen=True, slots=True)
class Timeline:
    """Commands, modes and brake of a bag, with times of reception in s since the epoch."""

    commands: tuple[Array, Array]
    """Times, shape (N,), and efforts in N m, shape (N, n)."""
    efforts: tuple[Array, Array]
    """The same with what ticks report, if a busy recorder missed a command; times of stamps."""
    modes: tuple[Array, Array]
    """Times and modes, shape (T,)."""
    brakings: tuple[Array, Array]
    """Times and whether the brake is on, shape (B,)."""


def silences(setup: Setup, folder: Path, number: int) -> dict[str, Any]:
    """Stop the robot's process at random moments; return how old its last state got.

    Those in which the machine itself stood still are counted apart, by a latency probe. Each round
    has new processes: where a machine stalls often, the controller faults and stays so.
    """
    found = Silences([], [], 0, 0)
    for turn in _turns(MAX_ROUNDS, 'silences'):
        recorded = replace(setup, record=folder / f'blind_{turn}')
        more = one_round(recorded, min(number, SILENCES_PER_ROUND), seed=turn)
        found = Silences(*map(operator.add, found, more))
        if len(found.ages_ms) >= number:
            break
    return {
        'injected': len(found.ages_ms) + len(found.stalled_ms) + sum(found[2:]),
        'missed': found.num_missed,
        'while_not_driving': found.num_not_driving,
        'number': len(found.ages_ms),
        'last_state_to_blind_ms': percentiles(np.array(found.ages_ms)),
        'while_the_machine_stalled_ms': [round(age_ms, 3) for age_ms in found.stalled_ms],
    }


def one_round(setup: Setup, number: int, seed: int) -> Silences:
    """Stop the robot's process a number of times; return how the controller took it."""
    rng, stops_ns = np.random.default_rng(seed), list[int]()
    with running(setup) as group:
        wait_for_bag(recorded_bag(setup))
        time.sleep(START_S)
        with LatencyProbe(priority=0, period_ns=2_000_000) as probe:
            for _ in range(number):
                stops_ns.append(time.time_ns())
                group.send_signal('plant_node', signal.SIGSTOP)
                time.sleep(SILENCE_S)
                group.send_signal('plant_node', signal.SIGCONT)
                time.sleep(BETWEEN_SILENCES_S + rng.uniform(0.0, JITTER_S))
    stalls_ns = probe.time_ns[probe.late_ms > LATE_MS]
    folder = recorded_bag(setup)
    return classify(read_ticks(folder), published_states(folder), stops_ns, stalls_ns)


def published_states(folder: Path) -> PublishedStates:
    """Return when each joint state in a bag was published."""
    rows = [
        (read_joint_state(message.data).stamp_ns, message.publish_time_ns)
        for _, message in read_messages(folder, 'joint_states')
    ]
    return PublishedStates(*np.array(sorted(rows), dtype=np.int64).reshape(-1, 2).T)


def classify(
    log: TickLog, states: PublishedStates, stops_ns: list[int], stalls_ns: Array
) -> Silences:
    """Return how a controller took each silence of a robot, from `stops_ns` on.

    At `stalls_ns` the machine itself was found to have stood still.
    """
    mode, period_ns = log.shield['mode'], period_ns_of(load_settings().controller.law.rate_hz)
    onsets = np.flatnonzero((mode[1:] == Mode.BLIND) & (mode[:-1] != Mode.BLIND)) + 1
    seconds, rest_ns = (log.shield[f'state_stamp_{unit}'] for unit in ('sec', 'nanosec'))
    used_ns = seconds.astype(np.int64) * NANOSECONDS_PER_SECOND + rest_ns.astype(np.int64)
    # Of a state that the recorder missed, the time of the one before: none is made younger.
    places = np.searchsorted(states.stamp_ns, used_ns, side='right') - 1
    ages, stalled, num_missed, num_not_driving = list[float](), list[float](), 0, 0
    for begin_ns in stops_ns:
        end_ns = begin_ns + round(NOTICED_WITHIN_S * NANOSECONDS_PER_SECOND)
        own = onsets[_are_within(log.stamp_ns[onsets], begin_ns, end_ns)]
        if len(own):
            last_ns, blind_ns = states.published_ns[places[own[0]]], log.stamp_ns[own[0]]
            is_stalled = _are_within(stalls_ns, last_ns, blind_ns + period_ns).any()
            (stalled if is_stalled else ages).append(float(blind_ns - last_ns) / 1e6)
        elif mode[np.searchsorted(log.stamp_ns, begin_ns) - 1] < Mode.BLIND:
            num_missed += 1
        else:
            num_not_driving += 1
    return Silences(ages, stalled, num_missed, num_not_driving)


def _are_within(moments_ns: NDArray[Any], begin_ns: int, end_ns: int) -> NDArray[np.bool_]:
    return np.asarray((moments_ns > begin_ns) & (moments_ns < end_ns))


def wait_for_bag(folder: Path) -> None:
    """Wait until the recorder has begun, or BAG_WITHIN_S are over."""
    until_s = time.monotonic() + BAG_WITHIN_S
    while not folder.exists() and time.monotonic() < until_s:
        time.sleep(POLL_S)


def controller_kills(setup: Setup, number: int) -> dict[str, Any]:
    """Kill the controller; return how soon the plant braked and a new one was NOMINAL again."""
    killed, started = kill_repeatedly(setup, 'controller_node', number)
    found = read_timeline(recorded_bag(setup))
    times_s = found.commands[0]
    last = [times_s[times_s < at + DOWN_S].max() for at in killed]
    return {
        'number': number,
        'last_command_to_brake_ms': _summary(_delays_ms(found.brakings, last, value=True)),
        'start_to_nominal_s': _summary(_delays_ms(found.modes, started, Mode.NOMINAL) / 1e3),
        'largest_effort_step_share': largest_effort_step(found, started),
    }


def plant_kills(setup: Setup, number: int) -> dict[str, Any]:
    """Kill the plant; return how soon the controller was BLIND, and NOMINAL after a new start."""
    killed, started = kill_repeatedly(setup, 'plant_node', number)
    found = read_timeline(recorded_bag(setup))
    return {
        'number': number,
        'kill_to_blind_ms': _summary(_delays_ms(found.modes, killed, Mode.BLIND)),
        'start_to_nominal_s': _summary(_delays_ms(found.modes, started, Mode.NOMINAL) / 1e3),
        'largest_effort_step_share': largest_effort_step(found, []),
    }


def sigterms(setup: Setup, folder: Path, number: int) -> dict[str, Any]:
    """Ask controllers to end; return how long it took, and how often the last command was zero."""
    took_s, zeros, codes = [], 0, []
    for turn in _turns(number, 'SIGTERM'):
        recorded = replace(setup, record=folder / f'sigterm_{turn}')
        with running(recorded) as group:
            time.sleep(SETTLE_S)
            asked_s = time.monotonic()
            codes.append(group.stop('controller_node'))
            took_s.append(time.monotonic() - asked_s)
        zeros += not read_timeline(recorded_bag(recorded)).commands[1][-1].any()
    return {
        'number': number,
        'exit_s': _summary(np.array(took_s)),
        'last_command_zero': zeros,
        'exit_codes': sorted(set(codes)),
    }


def kill_repeatedly(setup: Setup, name: str, number: int) -> tuple[list[float], list[float]]:
    """Kill and start a process a number of times; return when, in s since the epoch."""
    rng = np.random.default_rng(KILL_SEED)
    killed, started = [], []
    with running(setup) as group:
        for _ in _turns(number, f'kills of {name}'):
            time.sleep(SETTLE_S + rng.uniform(0.0, SETTLE_JITTER_S))
            killed.append(time.time())
            group.kill(name)
            time.sleep(DOWN_S)
            started.append(time.time())
            group.start(name, commands(setup)[name])
        time.sleep(RECOVER_S)
    return killed, started


def read_timeline(folder: Path) -> Timeline:
    """Return what a bag holds of commands, modes and brake."""
    found: dict[str, list[tuple[float, Any]]] = {}
    efforts: dict[int, Array] = {}
    values: dict[str, Callable[[Any], Any]] = {
        'joint_commands': lambda message: message.effort,
        'controller/output': lambda message: message.effort,
        'controller/shield': lambda message: message.position[0],
        'plant/braking': lambda message: message.data,
    }
    for topic, entry in read_messages(folder, *values):
        message = entry.decode()
        value = values[topic](message)
        found.setdefault(topic, []).append((entry.log_time_ns / NANOSECONDS_PER_SECOND, value))
        if topic == 'joint_commands':
            efforts[nanoseconds(message.header.stamp)] = value
        elif topic == 'controller/output':  # has the stamp of its command
            efforts.setdefault(nanoseconds(message.header.stamp), value)

    def columns(rows: Iterable[tuple[float, Any]]) -> tuple[Array, Array]:
        times, values = zip(*rows, strict=True)
        return np.array(times), np.array(values)

    by_stamp = sorted(efforts.items())
    return Timeline(
        columns(found['joint_commands']),
        columns((stamp_ns / NANOSECONDS_PER_SECOND, effort) for stamp_ns, effort in by_stamp),
        columns(found['controller/shield']),
        columns(found['plant/braking']),
    )


def largest_effort_step(found: Timeline, started: list[float]) -> float:
    """Return the largest step between two commands as a share of what the rate limit allows.

    The first command of a new controller is left out: it goes on from what the motors give, and
    those have braked meanwhile.
    """
    settings = load_settings()
    limits, rate_hz = settings.arm.limits, settings.controller.law.rate_hz
    times, efforts = found.efforts
    share = np.abs(np.diff(efforts, axis=0)) / (np.array(limits.effort_rate_nmps) / rate_hz)
    is_first = np.zeros(len(share), dtype=bool)
    for at in started:
        is_first |= (times[:-1] < at) & (times[1:] >= at)
    return float(share[~is_first].max())


def _delays_ms(log: tuple[Array, Array], since_s: list[float], value: object) -> Array:
    """Return how long after each moment a value came up, ms; infinite if it never did."""
    times = log[0][log[1] == value]
    return np.array([1e3 * (times[times >= at].min(initial=np.inf) - at) for at in since_s])


def _summary(values: Array) -> dict[str, float]:
    # Not `percentiles`: values may be infinite, between which nothing can be interpolated.
    return {'p50': float(np.median(values)), 'max': float(values.max())}


def recorded_bag(setup: Setup) -> Path:
    """Return the folder of the bag that a set-up records."""
    assert setup.record is not None
    return Path(setup.record)


def _turns(number: int, description: str) -> Iterable[int]:
    return track(range(number), description=description, disable=not sys.stderr.isatty())
