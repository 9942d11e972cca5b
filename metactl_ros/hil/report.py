# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""What a scenario leaves for people and machines: lines, a picture, JUnit XML, JSON."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from matplotlib.figure import Figure

from metactl_ros.bench.plots import mode_legend, shade_modes
from metactl_ros.files import write_json
from metactl_ros.hil.judge import Verdict
from metactl_ros.hil.run_log import RunLog
from metactl_ros.replay.figures import MODE_COLOURS
from metactl_ros.settings import provenance, Settings

MAX_LABELS = 40
"""More faults than this are shaded without their names."""


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
