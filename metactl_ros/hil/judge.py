# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""Whether a run was as its scenario demands: a verdict with a measured value per expectation.

Besides, this is demanded of every run, from its first driven step on. Of the commands: each
finite, within limits and rate, safe while no state came; one for each tick, named, and the same on
both topics. Of the true arm: no joint faster or further than its limit and a margin, and where it
should be until the first fault comes. Of the processes: none ends by itself.
"""

from functools import singledispatch
from itertools import pairwise
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from metactl_ros.check.invariants import check_commands, Promise
from metactl_ros.control.modes import Mode
from metactl_ros.hil import scenario as scenarios
from metactl_ros.hil.run_log import RunLog
from metactl_ros.hil.scenario import Expectation, Lasting, PAUSING, Reached, Scenario
from metactl_ros.ros.parameters import defaults_of
from metactl_ros.runtime.state_gate import LATE_NS
from metactl_ros.settings import Settings
from metactl_ros.signals import Array, period_ns_of, seconds

LISTENER_SLACK_S = seconds(LATE_NS)
"""How much later than it was sent a state may reach the control thread, s: the gate sees to it."""
STALL_S = 0.03
"""A robot that pauses for longer than this, and was not made to, shows that the machine did."""
RESTART_S = 3.0
"""How long a process that was started again may take to be there."""
SLACK = 1e-6
"""By which rounding may miss a bound."""
HOLDING_RADPS = 0.2
"""A torque under which no joint is faster than this holds the arm."""
EARLY_ERROR_RAD = 0.5
"""The true error until the first fault comes. Even fixed gains keep within 0.36 rad, with payloads
of 0 to 1.5 kg and five seeds; the shipped policy keeps within 0.1 rad."""
SAFETY = {
    'finite': 'every command is finite',
    'effort size': 'every command is within its limits',
    'effort rate': 'every command is within its rate',
    'blind': 'every command is safe while no state comes',
}
"""What is demanded of commands, by the name `check_commands` has for it."""

Finding: TypeAlias = tuple[bool, str]
"""Whether an expectation is met, and what was found."""


class Verdict(NamedTuple):
    """What was demanded, what was found."""

    demand: str
    has_passed: bool
    found: str
    is_always: bool = False
    """Whether it must hold on any machine, even one that stalls."""


def promise_of(settings: Settings) -> Promise:
    """Return what the controller promises of its commands."""
    return Promise(
        arm=settings.arm,
        period_s=seconds(period_ns_of(settings.controller.law.rate_hz)),
        state_timeout_s=defaults_of('controller_node.yaml')['state_timeout_s'],
        blind_ramp_s=settings.controller.modes.blind_ramp_s,
        slack_s=LISTENER_SLACK_S,
    )


def judge(scenario: Scenario, log: RunLog, promise: Promise) -> list[Verdict]:
    """Return a verdict per expectation, then those demanded of every run."""
    expected = [Verdict(str(wish), *check(wish, log)) for wish in scenario.expect]
    return [*expected, *_demanded_of_all(scenario, log, promise)]


def longest_stall_s(log: RunLog) -> float:
    """Return the longest pause of robot or controller, s, that no fault explains; else zero."""
    spans = [span for span in log.spans if span.fault.kind in PAUSING]
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


@singledispatch
def check(expectation: Expectation, log: RunLog) -> Finding:
    """Return whether an expectation is met, and what was found; one function for each kind."""
    raise NotImplementedError(type(expectation))


def _reached(
    expectation: Reached, log: RunLog, times_s: Array, is_so: NDArray[np.bool_], what: str
) -> Finding:
    after_s = log.when(expectation.after_s)
    rows = np.flatnonzero((times_s >= after_s) & (times_s <= log.end_s) & is_so)
    if not len(rows):
        return False, f'{what} never came'
    took_s = float(times_s[rows[0]]) - after_s
    return took_s <= expectation.within_s, f'{what} after {took_s:.3f} s'


@check.register
def _mode(expectation: scenarios.ModeReached, log: RunLog) -> Finding:
    is_so = log.mode == Mode[expectation.mode]
    return _reached(expectation, log, log.tick_s, is_so, expectation.mode)


@check.register
def _mode_in(expectation: scenarios.ModeInReached, log: RunLog) -> Finding:
    is_so = np.isin(log.mode, [Mode[name] for name in expectation.mode_in])
    return _reached(expectation, log, log.tick_s, is_so, ' or '.join(expectation.mode_in))


@check.register
def _nominal_left(expectation: scenarios.NominalLeft, log: RunLog) -> Finding:
    is_so = log.mode != Mode.NOMINAL
    return _reached(expectation, log, log.tick_s, is_so, 'another mode than NOMINAL')


@check.register
def _brake(expectation: scenarios.BrakeSet, log: RunLog) -> Finding:
    what = 'brake' if expectation.braking else 'release of the brake'
    before = np.flatnonzero(log.braking_s < log.when(expectation.after_s))
    if len(before) and log.is_braking[before[-1]] == expectation.braking:
        return True, f'{what} before'
    is_so = log.is_braking == expectation.braking
    return _reached(expectation, log, log.braking_s, is_so, what)


@check.register
def _zero_or_holding(expectation: scenarios.ZeroOrHolding, log: RunLog) -> Finding:
    """Judge every command from then on: zero, or under it the arm is held, or the brake is on."""
    after_s = log.when(expectation.after_s)
    begin_s = after_s + expectation.within_s
    rows = np.flatnonzero((log.command_s >= begin_s) & (log.command_s <= log.end_s))
    if not len(rows):
        return False, 'no command after that'
    times_s = log.command_s[rows]
    step = np.maximum(np.searchsorted(log.step_s, times_s, side='right') - 1, 0)
    is_held = (np.abs(log.true_qd_radps[step]) <= HOLDING_RADPS).all(axis=1)
    change = np.searchsorted(log.braking_s, times_s, side='right') - 1
    is_braked = (change >= 0) & log.is_braking[np.maximum(change, 0)]
    is_zero = (np.abs(log.commands.effort_nm[rows]) <= SLACK).all(axis=1)
    bad = np.flatnonzero(~(is_zero | is_held | is_braked))
    if not len(bad):
        return True, f'all {len(rows)} commands are'
    largest = np.abs(log.commands.effort_nm[rows[bad]]).max(axis=0).round(1).tolist()
    found = f'{len(bad)} of {len(rows)} commands move the arm, with up to {largest} N m, '
    return False, found + f'the last {times_s[bad[-1]] - after_s:.3f} s after'


def _ends_s(expectation: Lasting, log: RunLog) -> tuple[float, float]:
    begin_s = 0.0 if expectation.from_s is None else log.when(expectation.from_s)
    end_s = log.end_s if expectation.to_s is None else log.when(expectation.to_s)
    return begin_s, end_s


def _within(expectation: Lasting, log: RunLog, times_s: Array) -> NDArray[np.bool_]:
    """Return which times lie in the span of an expectation, shape (T,)."""
    begin_s, end_s = _ends_s(expectation, log)
    return np.asarray((times_s >= begin_s) & (times_s <= end_s))


@check.register
def _never(expectation: scenarios.Never, log: RunLog) -> Finding:
    is_so = (log.mode == Mode[expectation.never]) & _within(expectation, log, log.tick_s)
    rows = np.flatnonzero(is_so)
    found = f'{expectation.never} at {log.tick_s[rows[0]]:.3f} s' if len(rows) else 'never'
    return not len(rows), found


@check.register
def _only(expectation: scenarios.Only, log: RunLog) -> Finding:
    is_other = ~np.isin(log.mode, [Mode[name] for name in expectation.only])
    rows = np.flatnonzero(is_other & _within(expectation, log, log.tick_s))
    if not len(rows):
        return True, 'no other'
    return False, f'{Mode(int(log.mode[rows[0]])).name} at {log.tick_s[rows[0]]:.3f} s'


@check.register
def _error(expectation: scenarios.ErrorBelow, log: RunLog) -> Finding:
    errors = log.error_rad[_within(expectation, log, log.tick_s) & np.isfinite(log.error_rad)]
    if not len(errors):
        return False, 'no error is known in that time'
    largest = float(errors.max())
    return largest < expectation.error_below_rad, f'{largest:.4f} rad'


@check.register
def _speed(expectation: scenarios.SpeedBelow, log: RunLog) -> Finding:
    speeds = np.abs(log.true_qd_radps[_within(expectation, log, log.step_s)])
    if not len(speeds):
        return False, 'the robot took no step in that time'
    largest = speeds.max(axis=0)
    is_below = bool((largest < np.array(expectation.speed_below_radps)).all())
    return is_below, f'{largest.round(3).tolist()} rad/s'


@check.register
def _effort(expectation: scenarios.EffortBelow, log: RunLog) -> Finding:
    efforts = np.abs(log.commands.effort_nm[_within(expectation, log, log.command_s)])
    if not len(efforts):
        return False, 'no command in that time'
    largest = efforts.max(axis=0)
    is_below = bool((largest <= np.array(expectation.effort_below_nm) + SLACK).all())
    return is_below, f'{largest.round(2).tolist()} N m'


@check.register
def _rate(expectation: scenarios.RateAbove, log: RunLog) -> Finding:
    begin_s, end_s = _ends_s(expectation, log)
    number = int(np.sum(_within(expectation, log, log.command_s)))
    rate_hz = number / max(end_s - begin_s, SLACK)
    return rate_hz > expectation.rate_above_hz, f'{rate_hz:.1f} Hz'


@check.register
def _gap(expectation: scenarios.GapBelow, log: RunLog) -> Finding:
    times_s = log.command_s[_within(expectation, log, log.command_s)]
    if not len(times_s):
        return False, 'no command in that time'
    _, end_s = _ends_s(expectation, log)
    gaps_s = np.diff(times_s, append=end_s)  # a controller that stops leaves a gap to the end
    largest, when_s = float(gaps_s.max()), float(times_s[np.argmax(gaps_s)])
    return largest < expectation.gap_below_s, f'{largest:.4f} s, at {when_s:.3f} s'


@check.register
def _alone(expectation: scenarios.Alone, log: RunLog) -> Finding:
    times_s = log.foreign_s[_within(expectation, log, log.foreign_s)]
    if not len(times_s):
        return True, 'no command of others'
    return False, f'{len(times_s)} commands of others, the first at {times_s.min():.3f} s'


@check.register
def _in_order(expectation: scenarios.InOrder, log: RunLog) -> Finding:
    number = total = 0
    for seen_s, stamp_ns in log.used_states:
        meant = stamp_ns[_within(expectation, log, seen_s)]
        number, total = number + int(np.sum(np.diff(meant) < 0)), total + len(meant)
    return not number, f'{number} steps back among {total} states'


@check.register
def _certified(expectation: scenarios.Certified, log: RunLog) -> Finding:
    is_meant = _within(expectation, log, log.tick_s) & (log.mode == Mode.NOMINAL)
    excess = log.excess[is_meant]
    if not len(excess):
        return False, 'no tick in NOMINAL'
    number, largest = int(np.sum(excess > SLACK)), float(excess.max())
    return not number, f'{number} violations, largest excess {largest:.3g}'


def _demanded_of_all(scenario: Scenario, log: RunLog, promise: Promise) -> list[Verdict]:
    """Return the verdicts on what every run must meet."""
    margins, limits = scenario.margins, promise.arm.limits
    lost, problems = ', '.join(log.lost_processes), '; '.join(log.command_problems)
    speed = margins.speed * np.array(limits.velocity_radps)
    middle = 0.5 * (limits.upper_rad + limits.lower_rad)
    reach = margins.position_rad + (limits.upper_rad - middle)
    away = f' from {middle.round(3).tolist()}' if middle.any() else ''
    return [
        *_commands(log, promise),
        Verdict(
            'both topics carry the same named command for every tick',
            not problems,
            problems or f'all {len(log.commands.received_ns)} do',
            is_always=True,
        ),
        _at_most('no joint is faster than', log, log.true_qd_radps, speed, 'rad/s'),
        _at_most(
            'no joint is further out than', log, log.true_q_rad - middle, reach, f'rad{away}'
        ),
        early_error(log),
        Verdict('no process is lost', not lost, f'{lost or "none"} did', is_always=True),
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


def _at_most(demand: str, log: RunLog, values: Array, bound: Array, unit: str) -> Verdict:
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
    largest = float(errors.max())
    return Verdict(demand, largest < EARLY_ERROR_RAD, f'{largest:.4f} rad')
