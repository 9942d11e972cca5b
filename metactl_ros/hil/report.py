# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""What scenarios leave for people and machines: a table, JUnit XML, JSON."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from metactl_ros.hil.always import Verdict
from metactl_ros.result_file import provenance, write_json
from metactl_ros.settings import Settings


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
