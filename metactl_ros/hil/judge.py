# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""Whether a run was as its scenario demands: verdicts with what was measured, as text and picture.

There is one for each expectation. Besides, this is demanded of every run, from its first driven
step on. Of the commands: each finite, within limits and rate, safe while no state came; one for
each tick, named, and the same on both topics. Of the true arm: no joint faster or further than its
limit and a margin, and where it should be until the first fault comes. Of the processes: none ends
by itself.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple
from xml.etree import ElementTree

from matplotlib.figure import Figure
import numpy as np

from metactl_ros.bench.plots import mode_legend, shade_modes
from metactl_ros.check.invariants import check_commands, Guarantee
from metactl_ros.files import write_json
from metactl_ros.hil.run_log import RunLog
from metactl_ros.hil.scenario import PAUSING, Scenario
from metactl_ros.replay.figures import MODE_COLOURS
from metactl_ros.ros.parameters import defaults_of
from metactl_ros.runtime.state_gate import LATE_NS
from metactl_ros.settings import provenance, Settings
from metactl_ros.signals import Array, period_ns_of, seconds

LISTENER_SLACK_S = seconds(LATE_NS)
"""How much later than it was sent a state may reach the control thread, s: the gate sees to it."""
STALL_S = 0.03
"""A robot that pauses for longer than this, and was not made to, shows that the machine did."""
RESTART_S = 3.0
"""How long a process that was started again may take to be there."""
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

MAX_LABELS = 40
"""More faults than this are shaded without their names."""


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


def judge(scenario: Scenario, log: RunLog, guarantee: Guarantee) -> list[Verdict]:
    """Return a verdict per expectation, then those demanded of every run."""
    expected = [Verdict(str(entry), *entry.check(log)) for entry in scenario.expect]
    return [*expected, *_demanded_of_all(scenario, log, guarantee)]


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


def _demanded_of_all(scenario: Scenario, log: RunLog, guarantee: Guarantee) -> list[Verdict]:
    """Return the verdicts on what every run must meet."""
    margins, limits = scenario.margins, guarantee.arm.limits
    lost, problems = ', '.join(log.lost_processes), '; '.join(log.command_problems)
    speed = margins.speed * np.array(limits.velocity_radps)
    middle = 0.5 * (limits.upper_rad + limits.lower_rad)
    reach = margins.position_rad + (limits.upper_rad - middle)
    away = f' from {middle.round(3).tolist()}' if middle.any() else ''
    return [
        *_commands(log, guarantee),
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


def _commands(log: RunLog, guarantee: Guarantee) -> list[Verdict]:
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


def _at_most(demand: str, log: RunLog, values: Array, bound: Array, unit: str) -> Verdict:
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


def early_error(log: RunLog) -> Verdict:
    """Judge whether the arm was where it should be until the first fault came."""
    demand = f'until the first fault the arm is within {EARLY_ERROR_RAD} rad of its reference'
    is_meant = (log.tick_s >= 0.0) & (log.tick_s < min(log.first_fault_s, log.end_s))
    errors = log.error_rad[is_meant & np.isfinite(log.error_rad)]
    if not len(errors):
        return Verdict(demand, has_passed=True, found='a fault was there from the beginning')
    largest = float(errors.max())
    return Verdict(demand, largest < EARLY_ERROR_RAD, f'{largest:.4f} rad')


@dataclass(frozen=True, slots=True)
class Outcome:
    """A scenario that was run."""

    name: str
    title: str
    protection: str
    verdicts: tuple[Verdict, ...]
    took_s: float
    stalls_s: tuple[float, ...]
    """The longest stall of the machine in each attempt, s; the last attempt is the one judged."""

    @property
    def has_passed(self) -> bool:
        """Whether all verdicts are good."""
        return all(verdict.has_passed for verdict in self.verdicts)

    def as_dict(self) -> dict[str, Any]:
        """Return it as JSON has it."""
        return {
            'name': self.name,
            'title': self.title,
            'protection': self.protection,
            'has_passed': self.has_passed,
            'took_s': round(self.took_s, 3),
            'longest_stall_s_by_attempt': list(self.stalls_s),
            'verdicts': [verdict._asdict() for verdict in self.verdicts],
        }


def write_junit(path: Path, outcomes: Sequence[Outcome]) -> None:
    """Write JUnit XML: a suite per scenario, a case per expectation."""
    root = ElementTree.Element('testsuites', name='hil')
    for outcome in outcomes:
        failed = sum(not verdict.has_passed for verdict in outcome.verdicts)
        suite = ElementTree.SubElement(
            root,
            'testsuite',
            name=outcome.name,
            tests=str(len(outcome.verdicts)),
            failures=str(failed),
            errors='0',
            skipped='0',
            time=f'{outcome.took_s:.3f}',
        )
        share_s = outcome.took_s / max(len(outcome.verdicts), 1)
        for verdict in outcome.verdicts:
            case = ElementTree.SubElement(
                suite,
                'testcase',
                classname=f'hil.{outcome.name}',
                name=verdict.demand,
                time=f'{share_s:.3f}',
            )
            if verdict.has_passed:
                ElementTree.SubElement(case, 'system-out').text = verdict.found
            else:
                failure = ElementTree.SubElement(case, 'failure', message=verdict.found)
                failure.text = f'{outcome.title}: expected {verdict.demand}, found {verdict.found}'
    ElementTree.indent(root)
    path.parent.mkdir(parents=True, exist_ok=True)
    ElementTree.ElementTree(root).write(path, encoding='utf-8', xml_declaration=True)


def write_results(path: Path, outcomes: Sequence[Outcome], settings: Settings) -> None:
    """Write all verdicts as JSON."""
    scenarios = [outcome.as_dict() for outcome in outcomes]
    write_json(path, {'scenarios': scenarios} | provenance(settings))


def in_lines(outcome: Outcome) -> str:
    """Return an outcome for a terminal: one line, and one for each failed expectation."""
    verdicts = outcome.verdicts
    good = sum(verdict.has_passed for verdict in verdicts)
    word = 'passed' if outcome.has_passed else 'FAILED'
    lines = [f'{word}  {outcome.name:24} {good:2} of {len(verdicts):2}  {outcome.title}']
    lines += [f'        {v.demand}: found {v.found}' for v in verdicts if not v.has_passed]
    return '\n'.join(lines)


def draw_timeline(title: str, log: RunLog) -> Figure:
    """Draw a run: modes as a band, true error and speed, efforts, faults as shades."""
    figure = Figure(figsize=(11.0, 9.0), layout='tight')
    axes = figure.subplots(4, 1, sharex=True, height_ratios=(1, 3, 3, 3), squeeze=False)
    band, error, speed, effort = axes[:, 0]
    shade_modes([band], log.tick_s, log.mode, MODE_COLOURS)
    band.set_yticks([])
    band.set_ylabel('mode')
    seen = mode_legend(log.mode, MODE_COLOURS)
    band.legend(handles=seen, loc='upper left', ncols=len(seen), fontsize='small')
    error.plot(log.tick_s, log.error_rad, linewidth=0.8)
    error.set_ylabel('true error [rad]')
    speed.plot(log.step_s[log.is_driven], log.true_qd_radps[log.is_driven], linewidth=0.8)
    speed.set_ylabel('true speed [rad/s]')
    labels = [f'joint {joint + 1}' for joint in range(log.commands.effort_nm.shape[1])]
    effort.plot(log.command_s, log.commands.effort_nm, linewidth=0.7, label=labels)
    effort.set_ylabel('effort [N m]')
    effort.set_xlabel('time since the first driven step [s]')
    effort.legend(loc='upper left', fontsize='small')
    for span in log.spans:
        end_s = min(span.end_s, float(log.tick_s[-1]))
        for axis in (error, speed, effort):
            axis.axvspan(span.begin_s, end_s, color='0.5', alpha=0.2, linewidth=0)
        if len(log.spans) <= MAX_LABELS:
            error.annotate(
                span.fault.kind,
                (span.begin_s, 1.0),
                xycoords=('data', 'axes fraction'),
                rotation=90,
                va='top',
                fontsize='x-small',
            )
    for axis in (error, speed, effort):
        axis.grid(alpha=0.3)
    figure.suptitle(title)
    return figure
