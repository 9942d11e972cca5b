# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""Runs scenarios: robot, controller and recorder as processes, faults on time, then the verdicts.

The robot itself plays the faults that are its own (`sim/faults.py`); what happens to processes is
done here. A run leaves a bag, and `run.json`: when each of these faults really came.
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
import os
from pathlib import Path
import shutil
import signal
import sys
import time
from typing import Any, NamedTuple, TypeAlias
from xml.etree import ElementTree

from matplotlib.figure import Figure

from metactl_ros.bag.reader import BagError
from metactl_ros.bench.plots import mode_legend, shade_modes
from metactl_ros.control.modes import Mode
from metactl_ros.errors import MetactlError
from metactl_ros.files import write_json
from metactl_ros.hil.judge import guarantee_of, judge, Verdict
from metactl_ros.hil.run_log import read_run, RunLog
from metactl_ros.hil.scenario import (
    INTRUSIONS,
    load_scenario,
    PAUSING,
    Scenario,
    ScriptedFault,
)
from metactl_ros.processes import (
    commands,
    deferred_signals,
    loopback_environment,
    ProcessGroup,
    ros_arguments,
    Setup,
)
from metactl_ros.replay.page import MODE_COLOURS
from metactl_ros.settings import load_settings, provenance

CommandLines: TypeAlias = Callable[[Setup], dict[str, list[str]]]
"""From a set-up to the command line of each process, by module: `processes.commands`."""

TARGETS = {'controller': 'controller_node', 'plant': 'plant_node'}
"""Which processes can be killed or stopped, by the end of the fault's name."""
INTRUDER, SECOND = 'intruder', 'second_controller'
READY_WITHIN_S = 60.0
"""How long an intruder may take to prepare."""
START_WITHIN_S = 30.0
"""How long the processes may take until the first tick."""
SPIN_S = 0.01
CAN_BE_RUN = 'it can be run'
STALL_S = 0.03
"""A robot that pauses for longer than this, and was not made to, shows that the machine did."""
RESTART_S = 3.0
"""How long a process that was started again may take to be there."""
MAX_LABELS = 40
"""More faults than this are shaded without their names."""
ATTEMPTS = 3
"""Runs at most, while expectations fail on a machine that stalls: that says nothing.

What is demanded of every run must hold on any machine: if that fails, it has failed.
"""


class HilError(MetactlError, RuntimeError):
    """A scenario could not be run."""


class TimedAction(NamedTuple):
    """The beginning or the end of a fault of processes."""

    at_s: float
    fault: ScriptedFault
    is_begin: bool


def timed_actions(scenario: Scenario) -> list[TimedAction]:
    """Return the beginnings and ends of all faults of processes, in order."""
    mine = [fault for fault in scenario.faults if not fault.is_of_plant]
    actions = [TimedAction(fault.at_s, fault, is_begin=True) for fault in mine]
    actions += [TimedAction(fault.end_s, fault, is_begin=False) for fault in mine]
    return sorted(actions, key=lambda action: action.at_s)


class ScenarioProcesses:
    """The processes of a scenario, and the faults that befall them.

    An intruder is there from the beginning, where a scenario needs one; a second controller and
    busy processes come and go. The output of a process goes to NAME.log of a folder.
    """

    def __init__(
        self, setup: Setup, folder: Path, commands_of: CommandLines, environment: dict[str, str]
    ) -> None:
        self._setup, self._folder, self._commands_of = setup, folder, commands_of
        self._group = ProcessGroup(environment, folder)
        self._loads: dict[ScriptedFault, ProcessGroup] = {}

    def start_all(self, faults: Sequence[ScriptedFault] = ()) -> None:
        """Start every process of the set-up, and an intruder if the faults need one."""
        lines = self._commands_of(self._setup)
        for name in (*lines, INTRUDER, SECOND):
            (self._folder / f'{name}.log').unlink(missing_ok=True)  # of an earlier run
        intrusions = [fault for fault in faults if fault.kind in INTRUSIONS]
        if intrusions:
            self._start_intruder(intrusions)
        for name, line in lines.items():
            self._group.start(name, line)

    def _start_intruder(self, intrusions: Sequence[ScriptedFault]) -> None:
        """Start an intruder, and wait until it is ready for what it is to do."""
        arguments = ros_arguments(replace(self._setup, params_file=None), INTRUDER)
        line = [sys.executable, '-m', 'metactl_ros.hil.intruder']
        line += [f'--arm={self._setup.arm_file}', *arguments]
        process = self._group.start(INTRUDER, line, has_input=True)
        for fault in intrusions:
            self._order(f'prepare {fault.kind}={fault.size}')
        log, until_s = self._folder / f'{INTRUDER}.log', time.monotonic() + READY_WITHIN_S
        while log.read_bytes().count(b'ready\n') < len(intrusions) and process.poll() is None:
            if time.monotonic() > until_s:
                break  # it will begin late, which its messages show
            time.sleep(0.02)

    def ended(self) -> list[str]:
        """Return which processes ended by themselves; a second controller may well refuse."""
        return [name for name in self._group.ended() if name != SECOND]

    def begin(self, fault: ScriptedFault) -> None:
        """Do what a fault of the processes says."""
        action, _, target = fault.kind.partition('_')
        if fault.kind in INTRUSIONS:
            self._order(f'{fault.kind}={fault.size}')
        elif fault.kind == 'cpu_load':
            load = self._loads.setdefault(fault, ProcessGroup({}))
            load.start_busy(round(fault.size))
        elif fault.kind == SECOND:
            self._stop_second()
            line = self._commands_of(self._setup)['controller_node']
            self._group.start(SECOND, [*line, '-r', f'__node:={SECOND}'])
        elif (name := TARGETS[target]) not in self._group or name in self._group.ended():
            return  # another fault has killed it already
        elif action == 'kill':
            self._group.kill(name)
        else:
            self._group.send_signal(name, signal.SIGSTOP)

    def finish(self, fault: ScriptedFault, now_s: float) -> None:
        """Undo it: a robot that is started again goes on in the timeline of faults at a time."""
        action, _, target = fault.kind.partition('_')
        if fault.kind in INTRUSIONS:
            self._order(f'end {fault.kind}')
        elif fault.kind == 'cpu_load':
            self._loads[fault].stop_all()
        elif fault.kind == SECOND:
            self._stop_second()
        elif (name := TARGETS[target]) in self._group:
            if action == 'sigstop':
                self._group.send_signal(name, signal.SIGCONT)
        elif action == 'kill':
            setup = replace(self._setup, faults_start_s=now_s)
            self._group.start(name, self._commands_of(setup)[name])

    def stop_all(self) -> dict[str, int]:
        """Stop everything; return the exit codes of all but second controller and busy ones."""
        with deferred_signals():
            for load in self._loads.values():
                load.stop_all()
            self._stop_second()
            return self._group.stop_all()

    def _order(self, line: str) -> None:
        process = self._group[INTRUDER]
        if process.poll() is None and process.stdin is not None:
            process.stdin.write(f'{line}\n'.encode())
            process.stdin.flush()

    def _stop_second(self) -> None:
        if SECOND in self._group:
            self._group.stop(SECOND)


def run_scenario(
    file: Path,
    scenario: Scenario,
    folder: Path,
    usual: Setup | None = None,
    commands_of: CommandLines = commands,
) -> RunLog:
    """Run a scenario, leave `bag/`, `run.json` and logs in a folder, and return what happened.

    The robot reads its own faults from the file; `usual` is what the scenario does not choose.

    Raises:
        HilError: If no tick came.
        BagError: If the bag is damaged, or the robot was never driven.
    """
    shutil.rmtree(folder / 'bag', ignore_errors=True)
    folder.mkdir(parents=True, exist_ok=True)
    setup = scenario.setup.applied_to(Setup(log_level='error') if usual is None else usual)
    setup = replace(setup, record=folder / 'bag', faults=file.resolve())
    environment = loopback_environment(None)
    os.environ.update(environment)
    # Imported here, in that environment: rclpy reads it once.
    from metactl_ros.ros.monitor import ModeMonitor

    processes, monitor = ScenarioProcesses(setup, folder, commands_of, environment), ModeMonitor()
    events: list[dict[str, Any]] = []
    try:
        processes.start_all(scenario.faults)
        _wait_for_tick(processes, monitor, folder)
        _play(scenario, file.stem, processes, monitor, events)
        ended, end_ns = processes.ended(), time.time_ns()
    finally:
        try:
            codes = processes.stop_all()
        finally:
            monitor.close()
    facts = {'end_ns': end_ns, 'gone': ended, 'exit_codes': codes, 'events': events}
    write_json(folder / 'run.json', facts)
    return read_run(folder, scenario, load_settings(setup.arm_file))


def _wait_for_tick(processes: ScenarioProcesses, monitor: Any, folder: Path) -> None:
    until = time.monotonic() + START_WITHIN_S
    while monitor.began_s is None:
        monitor.spin_once(SPIN_S)
        if ended := processes.ended():
            log = f'{ended[0]}.log in {folder}'
            raise HilError(f'{ended[0]}: ended before the first tick; see {log}')
        if time.monotonic() > until:
            raise HilError(f'no tick came within {START_WITHIN_S} s; see the logs in {folder}.')


def _play(
    scenario: Scenario,
    name: str,
    processes: ScenarioProcesses,
    monitor: Any,
    events: list[dict[str, Any]],
) -> None:
    """Begin and end the faults of processes until the end of the scenario."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn

    columns = (TextColumn('{task.description}'), BarColumn(), TextColumn('{task.fields[now]}'))
    actions = timed_actions(scenario)
    asked_s = 0.0
    with Progress(
        *columns, console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty()
    ) as progress:
        task = progress.add_task(name, total=scenario.duration_s, now='')
        while (now_s := time.monotonic() - monitor.began_s) < scenario.duration_s:
            while actions and actions[0].at_s <= now_s:
                _, fault, is_begin = actions.pop(0)
                processes.begin(fault) if is_begin else processes.finish(fault, now_s)
                events.append({'time_ns': time.time_ns(), 'is_begin': is_begin, **asdict(fault)})
            wait_s = scenario.reset_fault_after_s
            lasted_s = time.monotonic() - max(monitor.mode_since_s, asked_s)
            if wait_s is not None and monitor.mode == Mode.FAULT and lasted_s > wait_s:
                monitor.reset_fault()
                asked_s = time.monotonic()
                events.append({'time_ns': time.time_ns(), 'kind': 'reset_fault'})
            status = f'{now_s:5.1f} of {scenario.duration_s:g} s  {monitor.mode.name}'
            progress.update(task, completed=now_s, now=status)
            monitor.spin_once(SPIN_S)


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


def run_once(
    file: Path, scenario: Scenario, folder: Path, commands_of: CommandLines = commands
) -> tuple[RunLog, tuple[Verdict, ...]]:
    """Run a scenario, draw it, and return what happened with the verdicts on it."""
    log = run_scenario(file, scenario, folder, commands_of=commands_of)
    title = f'{file.stem}: {scenario.title}'
    draw_timeline(title, log).savefig(folder / 'timeline.png', dpi=100)
    return log, tuple(judge(scenario, log, guarantee_of(load_settings(scenario.setup.arm_file))))


def run_judged(
    file: Path,
    scenario: Scenario,
    folder: Path,
    commands_of: CommandLines = commands,
    attempts: int = ATTEMPTS,
) -> Outcome:
    """Run a scenario until it passes, or fails on a machine that did not stall."""
    began_s = time.monotonic()
    stalls_s: list[float] = []
    verdicts: tuple[Verdict, ...] = ()
    for _ in range(attempts):
        try:
            log, verdicts = run_once(file, scenario, folder, commands_of)
        except (HilError, BagError) as error:  # the others can still be run
            verdicts = (Verdict(CAN_BE_RUN, has_passed=False, found=str(error), is_always=True),)
            break
        stalls_s.append(longest_stall_s(log))
        failed = [verdict for verdict in verdicts if not verdict.has_passed]
        if not failed or not stalls_s[-1] or any(verdict.is_always for verdict in failed):
            break
    facts = (file.stem, scenario.title, scenario.protection, verdicts)
    return Outcome(*facts, time.monotonic() - began_s, tuple(stalls_s))


def run_hil(files: Sequence[Path], out: Path, arm: str = '') -> int:
    """Run scenarios, which is `metactl hil`; return 0 if all passed, 1 if not."""
    origin = provenance(load_settings(arm))
    pairs = [(file, load_scenario(file, arm)) for file in files]  # mistakes show before any runs
    outcomes = []
    for file, scenario in pairs:
        outcome = run_judged(file, scenario, out / file.stem)
        outcomes.append(outcome)
        sys.stdout.write(in_lines(outcome) + '\n')
        sys.stdout.flush()
        write_junit(out / 'junit.xml', outcomes)
        scenarios = [outcome.as_dict() for outcome in outcomes]
        write_json(out / 'results.json', {'scenarios': scenarios} | origin)
    failed = sum(not outcome.has_passed for outcome in outcomes)
    sys.stdout.write(f'{len(outcomes) - failed} of {len(outcomes)} passed; see {out}\n')
    return 1 if failed else 0


def write_junit(path: Path, outcomes: Sequence[Outcome]) -> None:
    """Write JUnit XML: a suite per scenario, a case per expectation."""
    root = ElementTree.Element('testsuites', name='hil')
    for outcome in outcomes:
        failed = sum(not verdict.has_passed for verdict in outcome.verdicts)
        suite = ElementTree.SubElement(root, 'testsuite', name=outcome.name)
        suite.attrib |= {'tests': str(len(outcome.verdicts)), 'failures': str(failed)}
        suite.attrib |= {'errors': '0', 'skipped': '0', 'time': f'{outcome.took_s:.3f}'}
        share_s = outcome.took_s / max(len(outcome.verdicts), 1)
        for verdict in outcome.verdicts:
            of = {'classname': f'hil.{outcome.name}', 'name': verdict.demand}
            case = ElementTree.SubElement(suite, 'testcase', of, time=f'{share_s:.3f}')
            if verdict.has_passed:
                ElementTree.SubElement(case, 'system-out').text = verdict.found
            else:
                failure = ElementTree.SubElement(case, 'failure', message=verdict.found)
                failure.text = f'{outcome.title}: expected {verdict.demand}, found {verdict.found}'
    ElementTree.indent(root)
    path.parent.mkdir(parents=True, exist_ok=True)
    ElementTree.ElementTree(root).write(path, encoding='utf-8', xml_declaration=True)


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
            at = {'xy': (span.begin_s, 1.0), 'xycoords': ('data', 'axes fraction')}
            error.annotate(span.fault.kind, **at, rotation=90, va='top', fontsize='x-small')
    for axis in (error, speed, effort):
        axis.grid(alpha=0.3)
    figure.suptitle(title)
    return figure
