# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""Whether a run was as its scenario demands: a verdict with a measured value per expectation.

What is demanded of every run besides is in `always.py`.
"""

from collections.abc import Callable, Mapping
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from metactl_ros.check.invariants import Promise
from metactl_ros.control.modes import Mode
from metactl_ros.hil.always import demanded_of_all, Verdict
from metactl_ros.hil.run_log import RunLog
from metactl_ros.hil.scenario import Expectation, Scenario
from metactl_ros.hil.scripted_fault import PAUSING
from metactl_ros.signals import Array

STALL_S = 0.03
"""A robot that pauses for longer than this, and was not made to, shows that the machine did."""
RESTART_S = 3.0
"""How long a process that was started again may take to be there."""
SLACK = 1e-6
"""By which rounding may miss a bound."""
HOLDING_RADPS = 0.2
"""A torque under which no joint is faster than this holds the arm."""


def judge(scenario: Scenario, log: RunLog, promise: Promise) -> list[Verdict]:
    """Return a verdict per expectation, then those demanded of every run."""
    expected = [_VERDICTS[wish.subject](wish, log) for wish in scenario.expect]
    return [*expected, *demanded_of_all(scenario, log, promise)]


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


def _mode_in(expectation: Expectation, log: RunLog) -> Verdict:
    assert expectation.mode_in is not None
    is_so = np.isin(log.mode, [Mode[name] for name in expectation.mode_in])
    return _reached(expectation, log, log.tick_s, is_so, ' or '.join(expectation.mode_in))


def _leaves_nominal(expectation: Expectation, log: RunLog) -> Verdict:
    is_so = log.mode != Mode.NOMINAL
    return _reached(expectation, log, log.tick_s, is_so, 'another mode than NOMINAL')


def _zero_or_holding(expectation: Expectation, log: RunLog) -> Verdict:
    """Judge every command from then on: zero, or under it the arm is held, or the brake is on."""
    assert expectation.after_s is not None
    assert expectation.within_s is not None
    begin_s = log.when(expectation.after_s) + expectation.within_s
    rows = np.flatnonzero((log.command_s >= begin_s) & (log.command_s <= log.end_s))
    if not len(rows):
        return Verdict(str(expectation), False, 'no command after that')
    times_s = log.command_s[rows]
    step = np.maximum(np.searchsorted(log.step_s, times_s, side='right') - 1, 0)
    is_held = (np.abs(log.true_qd_radps[step]) <= HOLDING_RADPS).all(axis=1)
    change = np.searchsorted(log.braking_s, times_s, side='right') - 1
    is_braked = (change >= 0) & log.is_braking[np.maximum(change, 0)]
    is_zero = (np.abs(log.commands.effort_nm[rows]) <= SLACK).all(axis=1)
    bad = np.flatnonzero(~(is_zero | is_held | is_braked))
    found = f'all {len(rows)} commands are'
    if len(bad):
        most = np.abs(log.commands.effort_nm[rows[bad]]).max(axis=0).round(1).tolist()
        found = f'{len(bad)} of {len(rows)} commands move the arm, with up to {most} N m, '
        found += f'the last {times_s[bad[-1]] - log.when(expectation.after_s):.3f} s after'
    return Verdict(str(expectation), not len(bad), found)


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


def _only(expectation: Expectation, log: RunLog) -> Verdict:
    assert expectation.only is not None
    is_other = ~np.isin(log.mode, [Mode[name] for name in expectation.only])
    rows = np.flatnonzero(is_other & _within(expectation, log, log.tick_s))
    found = 'no other'
    if len(rows):
        found = f'{Mode(int(log.mode[rows[0]])).name} at {log.tick_s[rows[0]]:.3f} s'
    return Verdict(str(expectation), not len(rows), found)


def _speed(expectation: Expectation, log: RunLog) -> Verdict:
    assert expectation.speed_below_radps is not None
    speeds = np.abs(log.true_qd_radps[_within(expectation, log, log.step_s)])
    if not len(speeds):
        return Verdict(str(expectation), False, 'the robot took no step in that time')
    most = speeds.max(axis=0)
    is_below = bool((most < np.array(expectation.speed_below_radps)).all())
    return Verdict(str(expectation), is_below, f'{most.round(3).tolist()} rad/s')


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


def _gap(expectation: Expectation, log: RunLog) -> Verdict:
    assert expectation.gap_below_s is not None
    times_s = log.command_s[_within(expectation, log, log.command_s)]
    if not len(times_s):
        return Verdict(str(expectation), False, 'no command in that time')
    end_s = log.end_s if expectation.to_s is None else log.when(expectation.to_s)
    gaps_s = np.diff(times_s, append=end_s)  # who stops sending leaves a gap to the end
    most, when_s = float(gaps_s.max()), float(times_s[np.argmax(gaps_s)])
    found = f'{most:.4f} s, at {when_s:.3f} s'
    return Verdict(str(expectation), most < expectation.gap_below_s, found)


def _alone(expectation: Expectation, log: RunLog) -> Verdict:
    times_s = log.foreign_s[_within(expectation, log, log.foreign_s)]
    found = 'no command of others'
    if len(times_s):
        found = f'{len(times_s)} commands of others, the first at {times_s.min():.3f} s'
    return Verdict(str(expectation), not len(times_s), found)


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
    'mode_in': _mode_in,
    'leaves_nominal': _leaves_nominal,
    'braking': _braking,
    'zero_or_holding': _zero_or_holding,
    'never': _never,
    'only': _only,
    'error_below_rad': _error,
    'speed_below_radps': _speed,
    'effort_below_nm': _effort,
    'rate_above_hz': _rate,
    'gap_below_s': _gap,
    'alone': _alone,
    'in_order': _in_order,
    'certified': _certified,
}
