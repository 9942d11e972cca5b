# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""Behind `metactl hil`: runs scenarios one after the other, judges them and writes the reports."""

from collections.abc import Sequence
from pathlib import Path
import sys
import time

from metactl_ros.bag.tick_log import BagError
from metactl_ros.errors import ConfigError
from metactl_ros.evaluation.invariants import Promise
from metactl_ros.hil.always import Verdict
from metactl_ros.hil.crew import Commands
from metactl_ros.hil.judge import judge, longest_stall_s
from metactl_ros.hil.read_run import read_run
from metactl_ros.hil.report import in_lines, Outcome, write_junit, write_results
from metactl_ros.hil.run import HilError, run_scenario
from metactl_ros.hil.run_log import RunLog
from metactl_ros.hil.scenario import load_scenario, shipped_scenarios
from metactl_ros.hil.timeline_plot import plot_timeline
from metactl_ros.nodes.fleet import commands, Setup
from metactl_ros.nodes.parameters import defaults_of
from metactl_ros.nodes.stamp_clock import LATE_NS
from metactl_ros.settings import faults_file, load_settings, Settings
from metactl_ros.signals import period_ns_of, seconds

SLACK_S = seconds(LATE_NS)
"""How much later than it was sent a state may reach the control thread, s: the gate sees to it."""
CAN_BE_RUN = 'it can be run'
ATTEMPTS = 3
"""A wish that failed while the machine itself stalled says nothing, and the scenario is run again.

What is demanded of every run must hold on any machine: if that fails, it has failed.
"""


def chosen_scenarios(names: Sequence[str], is_all: bool) -> list[Path]:
    """Return the files of scenarios given by name or path; all shipped ones if so asked.

    Raises:
        ConfigError: If there is no such scenario, none is named, or names go with all.
    """
    if bool(names) == is_all:
        raise ConfigError(
            'hil: expected names of scenarios or --all, found '
            f'{"both" if is_all else "neither"}; there are '
            f'{", ".join(path.stem for path in shipped_scenarios())}.'
        )
    return shipped_scenarios() if is_all else [faults_file(name) for name in names]


def run_hil(files: Sequence[Path], out: Path) -> int:
    """Run scenarios; return 0 if all passed, 1 if not."""
    settings = load_settings()
    for file in files:
        load_scenario(file)  # mistakes are found before anything runs
    outcomes = []
    for file in files:
        outcome = run_judged(file, out / file.stem)
        outcomes.append(outcome)
        sys.stdout.write(in_lines(outcome) + '\n')
        sys.stdout.flush()
        write_junit(out / 'junit.xml', outcomes)
        write_results(out / 'results.json', outcomes, settings)
    failed = sum(not outcome.has_passed for outcome in outcomes)
    sys.stdout.write(f'{len(outcomes) - failed} of {len(outcomes)} passed; see {out}\n')
    return 1 if failed else 0


def promise_of(settings: Settings) -> Promise:
    """Return what the controller promises of its commands."""
    return Promise(
        arm=settings.arm,
        period_s=seconds(period_ns_of(settings.controller.law.rate_hz)),
        state_timeout_s=defaults_of('controller_node.yaml')['state_timeout_s'],
        blind_ramp_s=settings.controller.modes.blind_ramp_s,
        slack_s=SLACK_S,
    )


def run_once(
    file: Path, folder: Path, usual: Setup | None = None, commands_of: Commands = commands
) -> tuple[RunLog, tuple[Verdict, ...]]:
    """Run a scenario, draw it, and return what happened with the verdicts on it."""
    scenario = load_scenario(file)
    run_scenario(file, folder, usual, commands_of)
    log = read_run(folder, scenario)
    plot_timeline(folder / 'timeline.png', f'{file.stem}: {scenario.title}', log)
    return log, tuple(judge(scenario, log, promise_of(load_settings())))


def run_judged(
    file: Path, folder: Path, commands_of: Commands = commands, attempts: int = ATTEMPTS
) -> Outcome:
    """Run a scenario until it passes, or fails on a machine that did not stall."""
    scenario, began_s = load_scenario(file), time.monotonic()
    stalls: list[float] = []
    verdicts: tuple[Verdict, ...] = ()
    for _ in range(attempts):
        try:
            log, verdicts = run_once(file, folder, commands_of=commands_of)
        except (HilError, BagError) as error:  # the others can still be run
            verdicts = (Verdict(CAN_BE_RUN, False, str(error), True),)
            break
        stalls.append(longest_stall_s(log))
        failed = [verdict for verdict in verdicts if not verdict.has_passed]
        if not failed or not stalls[-1] or any(verdict.is_always for verdict in failed):
            break
    took_s = time.monotonic() - began_s
    facts = (file.stem, scenario.title, scenario.protection, verdicts)
    return Outcome(*facts, took_s, tuple(stalls))
