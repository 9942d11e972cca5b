# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""Runs a scenario: robot, controller and recorder as processes, and faults on time.

The robot does to itself what is its own to do (`sim/faults.py`); what happens to processes is
done here. A bag is left behind, and `run.json`: when each of these faults really came.
"""

from dataclasses import asdict, replace
import os
from pathlib import Path
import shutil
import sys
import time
from typing import Any, NamedTuple

from metactl_ros.control.modes import Mode
from metactl_ros.errors import MetactlError
from metactl_ros.hil.process_group import Commands, Crew
from metactl_ros.hil.scenario import load_scenario, Scenario
from metactl_ros.hil.scripted_fault import ScriptedFault
from metactl_ros.processes import commands, Setup
from metactl_ros.result_file import write_json
from metactl_ros.ros.loopback import loopback_environment

START_WITHIN_S = 30.0
"""How long the processes may take until the first tick."""
LOOK_S = 0.01


class HilError(MetactlError, RuntimeError):
    """A scenario could not be run."""


class Deed(NamedTuple):
    """Something to do to a process at a time."""

    at_s: float
    is_begin: bool
    fault: ScriptedFault


def deeds_of(scenario: Scenario) -> list[Deed]:
    """Return the beginnings and ends of all faults of processes, in order."""
    mine = [fault for fault in scenario.faults if not fault.is_of_plant]
    begins = [Deed(fault.at_s, True, fault) for fault in mine]
    ends = [Deed(fault.end_s, False, fault) for fault in mine]
    return sorted([*begins, *ends], key=lambda deed: deed.at_s)


def run_scenario(
    file: Path, folder: Path, usual: Setup | None = None, commands_of: Commands = commands
) -> None:
    """Run a scenario and leave `bag/`, `run.json` and logs in a folder.

    Args:
        file: Of the scenario; the robot reads it as well.
        folder: Where everything goes.
        usual: What the scenario does not choose.
        commands_of: How processes are started.

    Raises:
        HilError: If no tick came.
    """
    scenario = load_scenario(file)
    shutil.rmtree(folder / 'bag', ignore_errors=True)
    folder.mkdir(parents=True, exist_ok=True)
    setup = scenario.setup.applied_to(Setup(log_level='error') if usual is None else usual)
    setup = replace(setup, record=folder / 'bag', faults=file.resolve())
    environment = loopback_environment(None)
    os.environ.update(environment)
    # Imported here, in that environment: rclpy reads it once.
    from metactl_ros.ros.monitor import ModeMonitor

    crew, onlooker = Crew(setup, folder, commands_of, environment), ModeMonitor()
    events: list[dict[str, Any]] = []
    try:
        crew.start_all(scenario.faults)
        _wait_for_tick(crew, onlooker, folder)
        _play(scenario, file.stem, crew, onlooker, events)
        gone, end_ns = crew.ended(), time.time_ns()
    finally:
        try:
            codes = crew.end()
        finally:
            onlooker.close()
    facts = {'end_ns': end_ns, 'gone': gone, 'exit_codes': codes, 'events': events}
    write_json(folder / 'run.json', facts)


def _wait_for_tick(crew: Crew, onlooker: Any, folder: Path) -> None:
    until = time.monotonic() + START_WITHIN_S
    while onlooker.began_s is None:
        onlooker.spin_once(LOOK_S)
        if gone := crew.ended():
            raise HilError(
                f'{gone[0]}: ended before the first tick; see {gone[0]}.log in {folder}'
            )
        if time.monotonic() > until:
            raise HilError(f'no tick came within {START_WITHIN_S} s; see the logs in {folder}.')


def _play(
    scenario: Scenario, name: str, crew: Crew, onlooker: Any, events: list[dict[str, Any]]
) -> None:
    """Do the deeds until the end of the scenario."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn

    columns = (TextColumn('{task.description}'), BarColumn(), TextColumn('{task.fields[now]}'))
    deeds = deeds_of(scenario)
    asked_s = 0.0
    with Progress(
        *columns, console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty()
    ) as progress:
        task = progress.add_task(name, total=scenario.duration_s, now='')
        while (now_s := time.monotonic() - onlooker.began_s) < scenario.duration_s:
            while deeds and deeds[0].at_s <= now_s:
                deed = deeds.pop(0)
                (crew.begin(deed.fault) if deed.is_begin else crew.finish(deed.fault, now_s))
                events.append(
                    {'time_ns': time.time_ns(), 'is_begin': deed.is_begin, **asdict(deed.fault)}
                )
            wait_s = scenario.reset_fault_after_s
            lasted_s = time.monotonic() - max(onlooker.mode_since_s, asked_s)
            if wait_s is not None and onlooker.mode == Mode.FAULT and lasted_s > wait_s:
                onlooker.reset_fault()
                asked_s = time.monotonic()
                events.append({'time_ns': time.time_ns(), 'kind': 'reset_fault'})
            said = f'{now_s:5.1f} of {scenario.duration_s:g} s  {onlooker.mode.name}'
            progress.update(task, completed=now_s, now=said)
            onlooker.spin_once(LOOK_S)
