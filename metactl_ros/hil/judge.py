# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""Whether a run was as its scenario demands: verdicts, each with what was measured.

There is one for each expectation, which is a class with its check for each key in a file. Besides,
this is demanded of every run, from its first driven step on. Of the commands: each finite, within
limits and rate, safe while no state came; one for each tick, named, and the same on both topics.
Of the true arm: no joint faster or further than its limit and a margin, and where it should be
until the first fault comes. Of the processes: none ends by itself.
"""

from dataclasses import dataclass, fields
from typing import Any, Literal, NamedTuple, TYPE_CHECKING, TypeAlias

import numpy as np
from numpy.typing import NDArray

from metactl_ros.check.invariants import check_commands, Guarantee
from metactl_ros.config import require_not_negative
from metactl_ros.control.modes import Mode
from metactl_ros.errors import ConfigError
from metactl_ros.options import defaults_of
from metactl_ros.runtime.joint_states import LATE_NS
from metactl_ros.settings import Settings
from metactl_ros.signals import Array, period_ns_of, seconds

if TYPE_CHECKING:
    from metactl_ros.hil.run_log import RunLog
    from metactl_ros.hil.scenario import Scenario

ModeName: TypeAlias = Literal['NOMINAL', 'WARMUP', 'FALLBACK', 'STOP', 'BLIND', 'FAULT']
Finding: TypeAlias = tuple[bool, str]
"""Whether an expectation is met, and what was found."""
SLACK = 1e-6
"""By which rounding may miss a bound."""
HOLDING_RADPS = 0.2
"""A torque under which no joint is faster than this holds the arm."""
LISTENER_SLACK_S = seconds(LATE_NS)
"""How much later than it was sent a state may reach the control thread, s: the gate sees to it."""
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


@dataclass(frozen=True, kw_only=True, slots=True)
class _Expected:
    """What expectations have in common: how they are written, and which times are refused."""

    def __post_init__(self) -> None:
        for name, value in self._given():
            if name in _TIMES:
                require_not_negative('Expectation', **{name: value})
            elif value is False and name != 'braking':
                raise ConfigError(f'Expectation.{name}: expected true, found false; leave it out.')

    def __str__(self) -> str:
        # The times last, though a base class declares them.
        given = sorted(self._given(), key=lambda pair: pair[0] in _TIMES)
        return ', '.join(f'{name} {[*x] if isinstance(x, tuple) else x}' for name, x in given)

    def _check(self, log: 'RunLog') -> Finding:
        """Return whether it is met, and what was found."""
        raise NotImplementedError

    def _given(self) -> list[tuple[str, Any]]:
        pairs = ((field.name, getattr(self, field.name)) for field in fields(self))
        return [(name, value) for name, value in pairs if value is not None]


@dataclass(frozen=True, kw_only=True, slots=True)
class Reached(_Expected):
    """Something comes about within `within_s` after `after_s`."""

    after_s: float
    within_s: float

    def _reached(
        self, log: 'RunLog', times_s: Array, is_so: NDArray[np.bool_], what: str
    ) -> Finding:
        after_s = log.when(self.after_s)
        rows = np.flatnonzero((times_s >= after_s) & (times_s <= log.end_s) & is_so)
        if not len(rows):
            return False, f'{what} never came'
        took_s = float(times_s[rows[0]]) - after_s
        return took_s <= self.within_s, f'{what} after {took_s:.3f} s'


@dataclass(frozen=True, kw_only=True, slots=True)
class Lasting(_Expected):
    """Something holds from `from_s`, or the beginning, to `to_s`, or the end."""

    from_s: float | None = None
    to_s: float | None = None

    def _ends_s(self, log: 'RunLog') -> tuple[float, float]:
        begin_s = 0.0 if self.from_s is None else log.when(self.from_s)
        return begin_s, log.end_s if self.to_s is None else log.when(self.to_s)

    def _within(self, log: 'RunLog', times_s: Array) -> NDArray[np.bool_]:
        """Return which times it is about, shape (T,)."""
        begin_s, end_s = self._ends_s(log)
        return np.asarray((times_s >= begin_s) & (times_s <= end_s))

    def _on_no_tick(self, log: 'RunLog', is_bad: NDArray[np.bool_], good: str) -> Finding:
        """Return whether no tick is bad, shape (T,), with the first mode that is, or `good`."""
        rows = np.flatnonzero(is_bad & self._within(log, log.tick_s))
        if not len(rows):
            return True, good
        return False, f'{Mode(int(log.mode[rows[0]])).name} at {log.tick_s[rows[0]]:.3f} s'


_TIMES = frozenset(field.name for base in (Reached, Lasting) for field in fields(base))


@dataclass(frozen=True, kw_only=True, slots=True)
class ModeReached(Reached):
    """A mode is reached."""

    mode: ModeName

    def _check(self, log: 'RunLog') -> Finding:
        return self._reached(log, log.tick_s, log.mode == Mode[self.mode], self.mode)


@dataclass(frozen=True, kw_only=True, slots=True)
class ModeInReached(Reached):
    """One of several modes is reached."""

    mode_in: tuple[ModeName, ...]

    def _check(self, log: 'RunLog') -> Finding:
        is_so = np.isin(log.mode, [Mode[name] for name in self.mode_in])
        return self._reached(log, log.tick_s, is_so, ' or '.join(self.mode_in))


@dataclass(frozen=True, kw_only=True, slots=True)
class NominalLeft(Reached):
    """Any mode but NOMINAL is reached."""

    leaves_nominal: bool

    def _check(self, log: 'RunLog') -> Finding:
        is_so = log.mode != Mode.NOMINAL
        return self._reached(log, log.tick_s, is_so, 'another mode than NOMINAL')


@dataclass(frozen=True, kw_only=True, slots=True)
class BrakeSet(Reached):
    """The robot brakes, or has released its brake."""

    braking: bool

    def _check(self, log: 'RunLog') -> Finding:
        what = 'brake' if self.braking else 'release of the brake'
        before = np.flatnonzero(log.braking_s < log.when(self.after_s))
        if len(before) and log.is_braking[before[-1]] == self.braking:
            return True, f'{what} before'
        return self._reached(log, log.braking_s, log.is_braking == self.braking, what)


@dataclass(frozen=True, kw_only=True, slots=True)
class ZeroOrHolding(Reached):
    """From then on every command is zero, or holds the arm, or the brake is on."""

    zero_or_holding: bool

    def _check(self, log: 'RunLog') -> Finding:
        after_s = log.when(self.after_s)
        begin_s = after_s + self.within_s
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


@dataclass(frozen=True, kw_only=True, slots=True)
class Never(Lasting):
    """No tick is in a mode."""

    never: ModeName

    def _check(self, log: 'RunLog') -> Finding:
        return self._on_no_tick(log, log.mode == Mode[self.never], 'never')


@dataclass(frozen=True, kw_only=True, slots=True)
class Only(Lasting):
    """No tick is in any other mode."""

    only: tuple[ModeName, ...]

    def _check(self, log: 'RunLog') -> Finding:
        is_other = ~np.isin(log.mode, [Mode[name] for name in self.only])
        return self._on_no_tick(log, is_other, 'no other')


@dataclass(frozen=True, kw_only=True, slots=True)
class ErrorBelow(Lasting):
    """The true tracking error is smaller, on every tick."""

    error_below_rad: float

    def _check(self, log: 'RunLog') -> Finding:
        errors = log.error_rad[self._within(log, log.tick_s) & np.isfinite(log.error_rad)]
        if not len(errors):
            return False, 'no error is known in that time'
        return bool(errors.max() < self.error_below_rad), f'{errors.max():.4f} rad'


@dataclass(frozen=True, kw_only=True, slots=True)
class SpeedBelow(Lasting):
    """The true joints are slower; one entry: all of them."""

    speed_below_radps: tuple[float, ...]

    def _check(self, log: 'RunLog') -> Finding:
        speeds = np.abs(log.true_qd_radps[self._within(log, log.step_s)])
        if not len(speeds):
            return False, 'the robot took no step in that time'
        largest = speeds.max(axis=0)
        is_below = bool((largest < self.speed_below_radps).all())
        return is_below, f'{largest.round(3).tolist()} rad/s'


@dataclass(frozen=True, kw_only=True, slots=True)
class EffortBelow(Lasting):
    """No command is larger; one entry: of no joint."""

    effort_below_nm: tuple[float, ...]

    def _check(self, log: 'RunLog') -> Finding:
        efforts = np.abs(log.commands.effort_nm[self._within(log, log.command_s)])
        if not len(efforts):
            return False, 'no command in that time'
        largest = efforts.max(axis=0)
        is_below = bool((largest <= np.array(self.effort_below_nm) + SLACK).all())
        return is_below, f'{largest.round(2).tolist()} N m'


@dataclass(frozen=True, kw_only=True, slots=True)
class RateAbove(Lasting):
    """Commands come more often, in the mean."""

    rate_above_hz: float

    def _check(self, log: 'RunLog') -> Finding:
        begin_s, end_s = self._ends_s(log)
        number = int(np.sum(self._within(log, log.command_s)))
        rate_hz = number / max(end_s - begin_s, SLACK)
        return rate_hz > self.rate_above_hz, f'{rate_hz:.1f} Hz'


@dataclass(frozen=True, kw_only=True, slots=True)
class GapBelow(Lasting):
    """No two commands are further apart."""

    gap_below_s: float

    def _check(self, log: 'RunLog') -> Finding:
        times_s = log.command_s[self._within(log, log.command_s)]
        if not len(times_s):
            return False, 'no command in that time'
        _, end_s = self._ends_s(log)
        gaps_s = np.diff(times_s, append=end_s)  # a controller that stops leaves a gap to the end
        largest, when_s = float(gaps_s.max()), float(times_s[np.argmax(gaps_s)])
        return largest < self.gap_below_s, f'{largest:.4f} s, at {when_s:.3f} s'


@dataclass(frozen=True, kw_only=True, slots=True)
class Alone(Lasting):
    """No other node sends commands."""

    alone: bool

    def _check(self, log: 'RunLog') -> Finding:
        times_s = log.foreign_s[self._within(log, log.foreign_s)]
        if not len(times_s):
            return True, 'no command of others'
        return False, f'{len(times_s)} commands of others, the first at {times_s.min():.3f} s'


@dataclass(frozen=True, kw_only=True, slots=True)
class InOrder(Lasting):
    """No accepted state is older than the one before."""

    in_order: bool

    def _check(self, log: 'RunLog') -> Finding:
        number = total = 0
        for seen_s, stamp_ns in log.used_states:
            meant = stamp_ns[self._within(log, seen_s)]
            number, total = number + int(np.sum(np.diff(meant) < 0)), total + len(meant)
        return not number, f'{number} steps back among {total} states'


@dataclass(frozen=True, kw_only=True, slots=True)
class Certified(Lasting):
    """The Lyapunov condition held on every tick in NOMINAL."""

    certified: bool

    def _check(self, log: 'RunLog') -> Finding:
        excess = log.excess[self._within(log, log.tick_s) & (log.mode == Mode.NOMINAL)]
        if not len(excess):
            return False, 'no tick in NOMINAL'
        number, largest = int(np.sum(excess > SLACK)), float(excess.max())
        return not number, f'{number} violations, largest excess {largest:.3g}'


_Comes: TypeAlias = ModeReached | ModeInReached | NominalLeft | BrakeSet | ZeroOrHolding
_Lasts: TypeAlias = Never | Only | ErrorBelow | SpeedBelow | EffortBelow | RateAbove | GapBelow
Expectation: TypeAlias = _Comes | _Lasts | Alone | InOrder | Certified
"""One thing that must be true of a run; in a file, its own key says which."""


class Verdict(NamedTuple):
    """What was demanded, what was found."""

    demand: str
    has_passed: bool
    found: str
    is_always: bool = False
    """Whether it must hold on any machine, even one that stalls."""


def guarantee_of(settings: Settings) -> Guarantee:
    """Return what the controller guarantees of its commands."""
    return Guarantee(
        arm=settings.arm,
        period_s=seconds(period_ns_of(settings.controller.law.rate_hz)),
        state_timeout_s=defaults_of('controller_node.yaml')['state_timeout_s'],
        blind_ramp_s=settings.controller.modes.blind_ramp_s,
        slack_s=LISTENER_SLACK_S,
    )


def judge(scenario: 'Scenario', log: 'RunLog', guarantee: Guarantee) -> list[Verdict]:
    """Return a verdict per expectation, then those demanded of every run."""
    expected = [Verdict(str(entry), *entry._check(log)) for entry in scenario.expect]
    return [*expected, *_demanded_of_all(scenario, log, guarantee)]


def _demanded_of_all(scenario: 'Scenario', log: 'RunLog', guarantee: Guarantee) -> list[Verdict]:
    """Return the verdicts on what every run must meet."""
    margins, limits = scenario.margins, guarantee.arm.limits
    lost, problems = ', '.join(log.lost_processes), '; '.join(log.command_problems)
    speed = margins.speed * np.array(limits.velocity_radps)
    middle = 0.5 * (limits.upper_rad + limits.lower_rad)
    reach = margins.position_rad + (limits.upper_rad - middle)
    away = f' from {middle.round(3).tolist()}' if middle.any() else ''
    both = 'both topics carry the same named command for every tick'
    found, out_rad = problems or f'all {len(log.commands.received_ns)} do', log.true_q_rad - middle
    return [
        *_commands(log, guarantee),
        Verdict(both, not problems, found, is_always=True),
        _at_most('no joint is faster than', log, log.true_qd_radps, speed, 'rad/s'),
        _at_most('no joint is further out than', log, out_rad, reach, f'rad{away}'),
        early_error(log),
        Verdict('no process is lost', not lost, f'{lost or "none"} did', is_always=True),
    ]


def _commands(log: 'RunLog', guarantee: Guarantee) -> list[Verdict]:
    violations = check_commands(log.commands, log.states, guarantee, log.restarts_ns)
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


def _at_most(demand: str, log: 'RunLog', values: Array, bound: Array, unit: str) -> Verdict:
    """Judge the true motion, shape (S, n), against what each joint may reach, shape (n,)."""
    sizes, times_s = np.abs(values[log.is_driven]), log.step_s[log.is_driven]
    demand = f'{demand} {bound.round(3).tolist()} {unit}'
    if not len(sizes):
        return Verdict(demand, has_passed=False, found='the robot took no step', is_always=True)
    found = f'{sizes.max(axis=0).round(3).tolist()} {unit}'
    beyond = np.flatnonzero((sizes > bound).any(axis=1))
    if len(beyond):
        found += f', beyond it from {times_s[beyond[0]]:.3f} s on'
    return Verdict(demand, not len(beyond), found, is_always=True)


def early_error(log: 'RunLog') -> Verdict:
    """Judge whether the arm was where it should be until the first fault came."""
    demand = f'until the first fault the arm is within {EARLY_ERROR_RAD} rad of its reference'
    is_meant = (log.tick_s >= 0.0) & (log.tick_s < min(log.first_fault_s, log.end_s))
    errors = log.error_rad[is_meant & np.isfinite(log.error_rad)]
    if not len(errors):
        return Verdict(demand, has_passed=True, found='a fault was there from the beginning')
    return Verdict(demand, bool(errors.max() < EARLY_ERROR_RAD), f'{errors.max():.4f} rad')
