# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""Every kind of fault at random, for minutes, and what must hold all the same.

    metactl hil --random --minutes 10 --seed 7

The timeline follows from the seed and is written as a scenario, which can be run again. A FAULT is
reset after a while, whether or not its cause is still there. Demanded is what `judge.py` demands
of every run: of every command, and of the speed and the position of the true arm. Besides, an arm
whose controller claims to follow the reference is within FOLLOWING_ERROR_RAD of it, and no FAULT
is left, reset or not, while a fault is on that can be detected even on an arm at rest.
"""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
import sys
from typing import Any

import numpy as np
import yaml

from metactl_ros.check.invariants import blind_share
from metactl_ros.control.modes import Mode
from metactl_ros.files import write_json
from metactl_ros.hil.judge import guarantee_of, Verdict
from metactl_ros.hil.run import run_once
from metactl_ros.hil.run_log import RunLog
from metactl_ros.hil.scenario import load_scenario, PROCESS_KINDS, Scenario
from metactl_ros.processes import best_controller
from metactl_ros.settings import load_settings, provenance, Settings
from metactl_ros.signals import NANOSECONDS_PER_SECOND
from metactl_ros.sim.faults import KINDS

AMOUNTS = {
    'drop': (0.05, 1.0),
    'burst': (0.02, 0.4),
    'delay': (0.01, 0.2),
    'jitter': (0.01, 0.1),
    'latency': (0.01, 0.3),
    'bias': (-0.5, 0.5),
    'quantise': (4.0, 14.0),
    'velocity_scale': (-60.0, 60.0),
    'effort_scale': (-1000.0, 1000.0),
    'torque_loss': (0.1, 1.0),
    'friction_step': (0.0, 4.0),
    'payload_drop': (-1.0, 0.75),
    'tau_z_drift': (-0.5, 1.0),
    'clock_jump': (-20.0, 20.0),
    'clock_rate': (0.01, 90.0),
    'cpu_load': (1.0, 3.0),
    'second_states': (-0.3, 0.3),
    'echoed_states': (-0.1, 0.1),
    'second_commands': (-0.4, 0.4),
    'flood_parameters': (1e3, 1e6),
    'flood_clear_context': (1.0, 100.0),
}
"""Between which the amounts are drawn, in the unit of the kind."""
LOG_SCALE = frozenset(('clock_rate', 'flood_parameters', 'flood_clear_context'))
"""Whose logarithm is drawn evenly."""
SHORT_S = (0.03, 1.5)
"""Between which faults last, most of them briefly; so some overlap."""
LONG_S = (2.5, 5.0)
"""Between which those of LONG last: a FAULT is reset while they are still on."""
LONG = {'freeze', 'velocity_zero', 'velocity_scale', 'clock_rate', 'clock_stick'}
LONG |= {'second_states', 'echoed_states', 'second_commands', 'second_controller'}
PAUSES_S = (0.3, 3.0)
"""Between which times processes stand still."""
DETECTABLE_AT_REST = {'nan', 'rename', 'silence', 'clock_rate', 'clock_stick'}
DETECTABLE_AT_REST |= {'second_states', 'echoed_states', 'second_commands'}
"""What a controller can detect on a robot that does not move."""
DETECTED_AFTER_S, UNTIL_BEFORE_END_S = 1.0, 0.2
"""From when after its begin on such a fault must be detected, and until when before its end."""
DETECTED_RATE = 0.1
"""By which share a clock must be wrong for that to be detected; see `StampClock`."""
NEEDS_TRAJECTORIES = frozenset(kind for kind in PROCESS_KINDS if 'trajector' in kind)
"""What a controller ignores that follows its built-in motion."""
INTRUDERS = ('second_commands', 'second_controller', 'second_states', 'echoed_states')
APART = tuple(('kill_controller', kind) for kind in INTRUDERS)
"""What never comes together: a robot whose controller is dead obeys any other node, and a
controller that finds another one, or two robots, does not begin."""
APART_S = 3.0
"""How long such faults are apart, s."""
EVERY_S = 2.0
"""Mean time from one fault to the next."""
FIRST_S = 1.0
RESET_AFTER_S = 1.0
START_S = 0.005
"""So much earlier than its first command a new controller may have published its first tick, s."""
FOLLOWING_ERROR_RAD = 1.0
"""The largest true error in WARMUP, NOMINAL and FALLBACK: an encoder may be off by half of it
undetected."""


def random_kinds() -> list[str]:
    """Return the kinds that are drawn from."""
    return [kind for kind in (*KINDS, *PROCESS_KINDS) if kind not in NEEDS_TRAJECTORIES]


def length_range_s(kind: str) -> tuple[float, float]:
    """Return how long a fault of a kind lasts at least and at most, s."""
    if kind.startswith('sigstop_'):
        return PAUSES_S
    return LONG_S if kind in LONG else SHORT_S


def _drawn(random: np.random.Generator, ends: tuple[float, float], *, is_log: bool) -> float:
    """Return a number between two, evenly drawn, or its logarithm."""
    return float(np.exp(random.uniform(*np.log(ends))) if is_log else random.uniform(*ends))


def may_overlap(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """Return whether two faults do not overlap, or may."""
    if not any({one['kind'], other['kind']} == set(pair) for pair in APART):
        return True
    first, last = sorted((one, other), key=lambda fault: float(fault['at_s']))
    return bool(last['at_s'] > first['at_s'] + first['for_s'] + APART_S)


def draw_faults(duration_s: float, seed: int, num_joints: int) -> Iterator[dict[str, Any]]:
    """Yield faults as a scenario file has them; all kinds come before any comes again."""
    random = np.random.default_rng(seed)
    deck: list[str] = []
    drawn: list[dict[str, Any]] = []
    now_s = FIRST_S
    while now_s < duration_s - LONG_S[1]:
        deck = deck or random.permutation(random_kinds()).tolist()
        kind = deck.pop()
        fault: dict[str, Any] = {'kind': kind, 'at_s': round(now_s, 2)}
        fault['for_s'] = round(_drawn(random, length_range_s(kind), is_log=True), 2)
        if not all(may_overlap(fault, other) for other in drawn):
            deck.insert(0, kind)  # later
            now_s += random.exponential(EVERY_S)
            continue
        drawn.append(fault)
        if kind in AMOUNTS:
            is_log = kind in LOG_SCALE
            fault['amount'] = round(_drawn(random, AMOUNTS[kind], is_log=is_log), 3)
        if kind in KINDS and KINDS[kind].is_per_joint and random.random() < 0.5:
            fault['joint'] = int(random.integers(num_joints))
        yield fault
        now_s += random.exponential(EVERY_S)


def random_scenario(duration_s: float, seed: int, arm: str = '') -> dict[str, Any]:
    """Return a scenario as its file has it, for the two-link arm or another one."""
    settings = load_settings(arm)
    setup: dict[str, Any] = {'plant': 'rk4'}
    if arm:
        setup = {'arm_file': arm, 'controller': best_controller(settings)}
    num_joints = len(settings.arm.joint_names)
    return {
        'title': f'{duration_s:g} s of random faults, seed {seed}',
        'duration_s': duration_s,
        'setup': setup | {'seed': seed},
        'reset_fault_after_s': RESET_AFTER_S,
        'faults': list(draw_faults(duration_s, seed, num_joints)),
        'protection': 'all of them',
    }


def following_error(log: RunLog) -> Verdict:
    """Judge the true error wherever the controller claims to follow its reference."""
    demand = f'an arm that follows its reference is within {FOLLOWING_ERROR_RAD} rad of it'
    follows = (log.tick_s >= 0.0) & (log.tick_s <= log.end_s) & (log.mode < Mode.STOP)
    rows = np.flatnonzero(follows & np.isfinite(log.error_rad))
    if not len(rows):
        return Verdict(demand, has_passed=False, found='it never did', is_always=True)
    errors = log.error_rad[rows]
    beyond = rows[errors > FOLLOWING_ERROR_RAD]
    found = f'{errors.max():.3f} rad'
    if len(beyond):
        first = f'first at {log.tick_s[beyond[0]]:.3f} s'
        found += f', beyond it on {len(beyond)} of {len(rows)} ticks, {first}'
    return Verdict(demand, not len(beyond), found, is_always=True)


def left_too_early(log: RunLog) -> Verdict:
    """Judge whether every FAULT lasted as long as a cause that is detectable even at rest."""
    demand = 'no FAULT is left while its cause can still be told'
    was_left = (log.mode[:-1] == Mode.FAULT) & (log.mode[1:] != Mode.FAULT)
    begun_s = (np.asarray(log.restarts_ns) - log.zero_ns) / NANOSECONDS_PER_SECOND
    lives = np.searchsorted(begun_s, log.tick_s + START_S, side='right')
    was_left &= lives[:-1] == lives[1:]  # another controller knows nothing of a FAULT before it
    early = [
        (float(left_s), span.fault.kind)
        for left_s in log.tick_s[1:][was_left]
        for span in log.spans
        if span.fault.kind in DETECTABLE_AT_REST
        and not (span.fault.kind == 'clock_rate' and abs(span.fault.size - 1.0) < DETECTED_RATE)
        and span.begin_s + DETECTED_AFTER_S < left_s < span.end_s - UNTIL_BEFORE_END_S
    ]
    found = f'none of {int(was_left.sum())} was'
    if early:
        found = f'{len(early)} were, the first at {early[0][0]:.3f} s in spite of {early[0][1]}'
    return Verdict(demand, not early, found, is_always=True)


def run_random_faults(folder: Path, duration_s: float, seed: int, arm: str = '') -> int:
    """Run a random scenario; write it, its bag and its figures; return 0 if nothing was wrong."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / 'scenario.yaml'
    text = yaml.safe_dump(random_scenario(duration_s, seed, arm), sort_keys=False)
    file.write_text(f'# metactl hil {file}\n{text}', encoding='utf-8')
    scenario, settings = load_scenario(file), load_settings(arm)
    sys.stdout.write(f'seed {seed}: {len(scenario.faults)} faults in {duration_s:g} s\n')
    sys.stdout.flush()
    log, judged = run_once(file, scenario, folder / 'run')
    verdicts = (*judged, following_error(log), left_too_early(log))
    figures = {'seed': seed, **summary(scenario, log, settings)}
    figures['verdicts'] = [verdict._asdict() for verdict in verdicts]
    write_json(folder / 'random_faults.json', figures | provenance(settings))
    for demand, has_passed, found, _ in verdicts:
        sys.stdout.write(f'{"ok    " if has_passed else "WRONG "} {demand}: {found}\n')
    sys.stdout.write(f'figures, bag and scenario are in {folder}\n')
    return 0 if all(verdict.has_passed for verdict in verdicts) else 1


def summary(scenario: Scenario, log: RunLog, settings: Settings) -> dict[str, Any]:
    """Return how much was checked, and how hard it was made."""
    gaps_s = np.diff(log.tick_s, append=log.tick_s[-1:])
    shares = {
        mode.name: round(float(np.sum(gaps_s[log.mode == mode]) / np.sum(gaps_s)), 4)
        for mode in Mode
    }
    driven, num_commands = log.is_driven, len(log.commands.received_ns)
    is_blind = blind_share(log.commands, log.states, guarantee_of(settings))
    return {
        'duration_s': scenario.duration_s,
        'commands_checked': num_commands,
        'commands_checked_blind': round(is_blind * num_commands),
        'commands_of_others': len(log.foreign_s),
        'steps_checked': int(np.sum(driven)),
        'largest_speed_radps': np.abs(log.true_qd_radps[driven]).max(axis=0).round(3).tolist(),
        'furthest_position_rad': np.abs(log.true_q_rad[driven]).max(axis=0).round(3).tolist(),
        'faults_by_kind': dict(sorted(Counter(s.fault.kind for s in log.spans).items())),
        'controllers': len(log.used_states),
        'resets_of_fault': log.num_resets,
        'share_of_time_by_mode': shares,
        'num_mode_changes': int(np.sum(np.diff(log.mode) != 0)),
    }
