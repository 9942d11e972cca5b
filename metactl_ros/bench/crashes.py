# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""Kills either process at random moments and reads from the bag how the other took it.

Times between two messages are those at which the recorder received them.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
import signal
import sys
import time
from typing import Any

import numpy as np
from rich.progress import track

from metactl_ros.bag.reader import read_messages
from metactl_ros.control.modes import Mode
from metactl_ros.processes import begin, running, Setup
from metactl_ros.runtime.deferred_signals import deferred_signals
from metactl_ros.runtime.joint_samples import nanoseconds
from metactl_ros.settings import load_settings
from metactl_ros.signals import Array

SETTLE_S = 4.0
"""Given to a set-up before a process is killed: start, discovery, half a second of WARMUP."""
DOWN_S = 0.5
"""How long a killed process stays away."""
RECOVER_S = 5.0
"""The promise: NOMINAL again within this time after a start."""


@dataclass(frozen=True, slots=True)
class Heard:
    """What a bag holds of one run, with times of reception in s since the epoch."""

    commands: tuple[Array, Array]
    """Times, shape (N,), and efforts in N m, shape (N, n)."""
    efforts: tuple[Array, Array]
    """The same from all that the controller said, if a busy recorder missed a command."""
    modes: tuple[Array, Array]
    """Times and modes, shape (T,)."""
    brakings: tuple[Array, Array]
    """Times and whether the brake is on, shape (B,)."""


def controller_kills(setup: Setup, number: int) -> dict[str, Any]:
    """Kill the controller; return how soon the plant braked and a new one was NOMINAL again."""
    killed, started = crash(setup, 'controller_node', number)
    heard = hear(_folder(setup))
    last = [heard.commands[0][heard.commands[0] < at + DOWN_S].max() for at in killed]
    return {
        'number': number,
        'last_command_to_brake_ms': _summary(_delays_ms(heard.brakings, last, True)),
        'start_to_nominal_s': _summary(_delays_ms(heard.modes, started, Mode.NOMINAL) / 1e3),
        'largest_effort_step_share': effort_steps(heard, started),
    }


def plant_kills(setup: Setup, number: int) -> dict[str, Any]:
    """Kill the plant; return how soon the controller was BLIND, and NOMINAL after a new start."""
    killed, started = crash(setup, 'plant_node', number)
    heard = hear(_folder(setup))
    return {
        'number': number,
        'kill_to_blind_ms': _summary(_delays_ms(heard.modes, killed, Mode.BLIND)),
        'start_to_nominal_s': _summary(_delays_ms(heard.modes, started, Mode.NOMINAL) / 1e3),
        'largest_effort_step_share': effort_steps(heard, []),
    }


def sigterms(setup: Setup, folder: Path, number: int) -> dict[str, Any]:
    """Ask controllers to end; return how long it took, and how often zero was the last word."""
    took_s, zeros, codes = [], 0, []
    for turn in _turns(number, 'SIGTERM'):
        recorded = replace(setup, record=folder / f'sigterm_{turn}')
        with running(recorded) as processes:
            time.sleep(SETTLE_S)
            asked_s = time.monotonic()
            processes['controller_node'].send_signal(signal.SIGTERM)
            codes.append(processes['controller_node'].wait())
            took_s.append(time.monotonic() - asked_s)
        zeros += not hear(_folder(recorded)).commands[1][-1].any()
    return {
        'number': number,
        'exit_s': _summary(np.array(took_s)),
        'last_command_zero': zeros,
        'exit_codes': sorted(set(codes)),
    }


def crash(setup: Setup, name: str, number: int) -> tuple[list[float], list[float]]:
    """Kill and start a process a number of times; return when, in s since the epoch."""
    rng = np.random.default_rng(5)
    killed, started = [], []
    with running(setup) as processes:
        for _ in _turns(number, f'kills of {name}'):
            time.sleep(SETTLE_S + rng.uniform(0.0, 0.5))
            killed.append(time.time())
            processes[name].kill()
            processes[name].wait()
            time.sleep(DOWN_S)
            started.append(time.time())
            with deferred_signals():
                processes[name] = begin(setup, name)
        time.sleep(RECOVER_S)
    return killed, started


def hear(folder: Path) -> Heard:
    """Return what a bag holds of commands, modes and brake."""
    heard: dict[str, list[tuple[float, Any]]] = {}
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
        heard.setdefault(topic, []).append((entry.log_time_ns / 1e9, value))
        if topic == 'joint_commands':
            efforts[nanoseconds(message.header.stamp)] = value
        elif topic == 'controller/output':  # has the stamp of its command
            efforts.setdefault(nanoseconds(message.header.stamp), value)

    def columns(rows: Iterable[tuple[float, Any]]) -> tuple[Array, Array]:
        times, values = zip(*rows, strict=True)
        return np.array(times), np.array(values)

    return Heard(
        columns(heard['joint_commands']),
        columns((stamp_ns / 1e9, effort) for stamp_ns, effort in sorted(efforts.items())),
        columns(heard['controller/shield']),
        columns(heard['plant/braking']),
    )


def effort_steps(heard: Heard, started: list[float]) -> float:
    """Return the largest step between two commands as a share of what the rate limit allows.

    The first command of a new controller is left out: it goes on from what the motors give, and
    those have braked meanwhile.
    """
    arm = load_settings().arm
    times, efforts = heard.efforts
    share = np.abs(np.diff(efforts, axis=0)) / (np.array(arm.limits.effort_rate_nmps) * 0.01)
    is_first = np.zeros(len(share), dtype=bool)
    for at in started:
        is_first |= (times[:-1] < at) & (times[1:] >= at)
    return float(share[~is_first].max())


def _delays_ms(log: tuple[Array, Array], since_s: list[float], value: object) -> Array:
    """Return how long after each moment a value came up, ms; infinite if it never did."""
    times, values = log
    return np.array(
        [
            1e3 * (times[(times >= at) & (values == value)].min(initial=np.inf) - at)
            for at in since_s
        ]
    )


def _summary(values: Array) -> dict[str, float]:
    return {'p50': float(np.median(values)), 'max': float(values.max())}


def _folder(setup: Setup) -> Path:
    assert setup.record is not None
    return Path(setup.record)


def _turns(number: int, description: str) -> Any:
    return track(range(number), description=description, disable=not sys.stderr.isatty())
