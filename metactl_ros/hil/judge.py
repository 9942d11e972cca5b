# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""Whether a run was as its scenario demands: a verdict with a measured value per expectation.

In addition to what a scenario expects, of every run it is demanded that each command was finite,
within limits and rate, and safe while no state came, and that no process ended by itself.
"""

from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from metactl_ros.control.modes import Mode
from metactl_ros.evaluation.invariants import check_commands, Promise
from metactl_ros.hil.run_log import RunLog
from metactl_ros.hil.scenario import Expectation, Scenario
from metactl_ros.signals import Array

STALL_S = 0.03
"""A robot that pauses for longer than this, and was not made to, shows that the machine did."""
RESTART_S = 3.0
"""How long a process that was started again may take to be there."""
SLACK = 1e-6
"""By which rounding may miss a bound."""
SAFETY = {
    'finite': 'every command is finite',
    'effort size': 'every command is within its limits',
    'effort rate': 'every command is within its rate',
    'blind': 'every command is safe while no state comes',
}
"""What is demanded of every run, by the name `check_commands` has for it."""


class Verdict(NamedTuple):
    """What was demanded, what was found."""

    demand: str
    has_passed: bool
    found: str
    is_always: bool = False
    """Whether it is demanded of every run, on any machine."""


def judge(scenario: Scenario, log: RunLog, promise: Promise) -> list[Verdict]:
    """Return a verdict per expectation, then those demanded of every run."""
    expected = [_VERDICTS[wish.subject](wish, log) for wish in scenario.expect]
    return [*expected, *_always(log, promise)]


def longest_stall_s(log: RunLog) -> float:
    """Return the longest pause of robot or controller, s, that no fault explains; else zero."""
    spans = [span for span in log.spans if not span.fault.is_of_plant]
    longest = 0.0
    for times_s in (log.step_s, log.tick_s):
        for before_s, after_s in pairwise(times_s[times_s <= log.end_s].tolist()):
            is_meant = any(
                span.begin_s - STALL_S <= after_s and before_s <= span.end_s + RESTART_S
                for span in spans
            )
            if after_s - before_s > STALL_S and not is_meant:
                longest = max(longest, after_s - before_s)
    return longest


def _reached(
    expectation: Expectation, log: RunLog, times_s: Array, is_so: NDArray[np.bool_], what: str
) -> Verdict:
    assert expectation.after_s is not None
    assert expectation.within_s is not None
    after_s = log.when(expectation.after_s)
    rows = np.flatnonzero((times_s >= after_s) & (times_s <= log.end_s) & is_so)
    if not len(rows):
        return Verdict(str(expectation), False, f'{what} never came')
    took_s = float(times_s[rows[0]]) - after_s
    return Verdict(
        str(expectation), took_s <= expectation.within_s, f'{what} after {took_s:.3f} s'
    )


def _mode(expectation: Expectation, log: RunLog) -> Verdict:
    assert expectation.mode is not None
    is_so = log.mode == Mode[expectation.mode]
    return _reached(expectation, log, log.tick_s, is_so, expectation.mode)


def _braking(expectation: Expectation, log: RunLog) -> Verdict:
    assert expectation.after_s is not None
    what = 'brake' if expectation.braking else 'release of the brake'
    after_s = log.when(expectation.after_s)
    before = np.flatnonzero(log.braking_s < after_s)
    if len(before) and log.is_braking[before[-1]] == expectation.braking:
        return Verdict(str(expectation), True, f'{what} before')
    is_so = log.is_braking == expectation.braking
    return _reached(expectation, log, log.braking_s, is_so, what)


def _within(expectation: Expectation, log: RunLog, times_s: Array) -> NDArray[np.bool_]:
    """Return which times lie in the span of an expectation, shape (T,)."""
    begin_s = 0.0 if expectation.from_s is None else log.when(expectation.from_s)
    end_s = log.end_s if expectation.to_s is None else log.when(expectation.to_s)
    return np.asarray((times_s >= begin_s) & (times_s <= end_s))


def _never(expectation: Expectation, log: RunLog) -> Verdict:
    assert expectation.never is not None
    is_so = (log.mode == Mode[expectation.never]) & _within(expectation, log, log.tick_s)
    rows = np.flatnonzero(is_so)
    found = f'{expectation.never} at {log.tick_s[rows[0]]:.3f} s' if len(rows) else 'never'
    return Verdict(str(expectation), not len(rows), found)


def _error(expectation: Expectation, log: RunLog) -> Verdict:
    assert expectation.error_below_rad is not None
    errors = log.error_rad[_within(expectation, log, log.tick_s) & np.isfinite(log.error_rad)]
    if not len(errors):
        return Verdict(str(expectation), False, 'no error is known in that time')
    most = float(errors.max())
    return Verdict(str(expectation), most < expectation.error_below_rad, f'{most:.4f} rad')


def _effort(expectation: Expectation, log: RunLog) -> Verdict:
    assert expectation.effort_below_nm is not None
    efforts = np.abs(log.commands.effort_nm[_within(expectation, log, log.command_s)])
    if not len(efforts):
        return Verdict(str(expectation), False, 'no command in that time')
    most = efforts.max(axis=0)
    is_below = bool((most <= np.array(expectation.effort_below_nm) + SLACK).all())
    return Verdict(str(expectation), is_below, f'{most.round(2).tolist()} N m')


def _rate(expectation: Expectation, log: RunLog) -> Verdict:
    assert expectation.rate_above_hz is not None
    begin_s = 0.0 if expectation.from_s is None else log.when(expectation.from_s)
    end_s = log.end_s if expectation.to_s is None else log.when(expectation.to_s)
    number = int(np.sum(_within(expectation, log, log.command_s)))
    rate_hz = number / max(end_s - begin_s, SLACK)
    return Verdict(str(expectation), rate_hz > expectation.rate_above_hz, f'{rate_hz:.1f} Hz')


def _in_order(expectation: Expectation, log: RunLog) -> Verdict:
    number = total = 0
    for seen_s, stamp_ns in log.lives:
        meant = stamp_ns[_within(expectation, log, seen_s)]
        number, total = number + int(np.sum(np.diff(meant) < 0)), total + len(meant)
    return Verdict(str(expectation), not number, f'{number} steps back among {total} states')


def _certified(expectation: Expectation, log: RunLog) -> Verdict:
    is_meant = _within(expectation, log, log.tick_s) & (log.mode == Mode.NOMINAL)
    excess = log.excess[is_meant]
    if not len(excess):
        return Verdict(str(expectation), False, 'no tick in NOMINAL')
    number, most = int(np.sum(excess > SLACK)), float(excess.max())
    return Verdict(str(expectation), not number, f'{number} violations, largest excess {most:.3g}')


_VERDICTS: Mapping[str, Callable[[Expectation, RunLog], Verdict]] = {
    'mode': _mode,
    'braking': _braking,
    'never': _never,
    'error_below_rad': _error,
    'effort_below_nm': _effort,
    'rate_above_hz': _rate,
    'in_order': _in_order,
    'certified': _certified,
}


def _always(log: RunLog, promise: Promise) -> list[Verdict]:
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
    who = ', '.join(log.gone) or 'none'
    return [
        *verdicts,
        Verdict('no process is lost', not log.gone, f'{who} did', True),
    ]
