# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""What is demanded of every run, whatever its scenario expects, from the first driven step on.

Of the commands: each finite, within limits and rate, safe while no state came; one for each tick,
named, and the same on both topics. Of the true arm: no joint faster or further than its limit and
a margin, and where it should be until the first fault comes. Of the processes: none ends by
itself.
"""

from typing import NamedTuple

import numpy as np

from metactl_ros.check.invariants import check_commands, Promise
from metactl_ros.hil.run_log import RunLog
from metactl_ros.hil.scenario import Scenario
from metactl_ros.signals import Array

SAFETY = {
    'finite': 'every command is finite',
    'effort size': 'every command is within its limits',
    'effort rate': 'every command is within its rate',
    'blind': 'every command is safe while no state comes',
}
"""What is demanded of commands, by the name `check_commands` has for it."""
EARLY_ERROR_RAD = 0.5
"""The true error until the first fault comes. Even fixed gains keep within 0.36 rad, with payloads
of 0 to 1.5 kg and five seeds; the shipped policy keeps within 0.1 rad."""


class Verdict(NamedTuple):
    """What was demanded, what was found."""

    demand: str
    has_passed: bool
    found: str
    is_always: bool = False
    """Whether it must hold on any machine, even one that stalls."""


def demanded_of_all(scenario: Scenario, log: RunLog, promise: Promise) -> list[Verdict]:
    """Return the verdicts on a run that no scenario need ask for."""
    margins, limits = scenario.margins, promise.arm.limits
    who, problems = ', '.join(log.gone) or 'none', '; '.join(log.command_problems)
    speed = margins.speed * np.array(limits.velocity_radps)
    reach = margins.position_rad + np.array(limits.position_rad)
    return [
        *_commands(log, promise),
        Verdict(
            'both topics carry the same named command for every tick',
            not problems,
            problems or f'all {len(log.commands.received_ns)} do',
            is_always=True,
        ),
        _most('no joint is faster than', log, log.true_qd_radps, speed, 'rad/s'),
        _most('no joint is further out than', log, log.true_q_rad, reach, 'rad'),
        early_error(log),
        Verdict('no process is lost', not log.gone, f'{who} did', is_always=True),
    ]


def _commands(log: RunLog, promise: Promise) -> list[Verdict]:
    violations = check_commands(log.commands, log.states, promise, log.restarts_ns)
    total = len(log.commands.received_ns)
    verdicts = []
    for what, demand in SAFETY.items():
        mine = [violation for violation in violations if violation.what == what]
        found = f'all {total} are'
        if mine:
            worst = max(mine, key=lambda violation: violation.found - violation.allowed)
            found = (
                f'{len(mine)} of {total} are not, the first after {mine[0].time_s:.3f} s, the '
                f'worst {worst.found:.3f} instead of {worst.allowed:.3f} N m'
            )
        verdicts.append(Verdict(demand, not mine, found, is_always=True))
    return verdicts


def _most(demand: str, log: RunLog, values: Array, bound: Array, unit: str) -> Verdict:
    """Judge the true motion, shape (S, n), against what each joint may reach, shape (n,)."""
    sizes, times_s = np.abs(values[log.is_driven]), log.step_s[log.is_driven]
    demand = f'{demand} {bound.round(3).tolist()} {unit}'
    if not len(sizes):
        return Verdict(demand, False, 'the robot took no step', is_always=True)
    found = f'{sizes.max(axis=0).round(3).tolist()} {unit}'
    beyond = np.flatnonzero((sizes > bound).any(axis=1))
    if len(beyond):
        found += f', beyond it from {times_s[beyond[0]]:.3f} s on'
    return Verdict(demand, not len(beyond), found, is_always=True)


def early_error(log: RunLog) -> Verdict:
    """Judge whether the arm was where it should be until the first fault came."""
    demand = f'until the first fault the arm is within {EARLY_ERROR_RAD} rad of its reference'
    is_meant = (log.tick_s >= 0.0) & (log.tick_s < min(log.first_fault_s, log.end_s))
    errors = log.error_rad[is_meant & np.isfinite(log.error_rad)]
    if not len(errors):
        return Verdict(demand, True, 'a fault was there from the beginning')
    most = float(errors.max())
    return Verdict(demand, most < EARLY_ERROR_RAD, f'{most:.4f} rad')
