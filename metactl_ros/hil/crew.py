# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""The processes of a scenario, and what a scenario does to them: stop, kill, restart, load."""

from collections.abc import Callable, Mapping
from dataclasses import replace
import os
from pathlib import Path
import signal
import subprocess
from typing import TypeAlias

from metactl_ros.hil.scripted_fault import ScriptedFault
from metactl_ros.nodes.fleet import end, LAST_WORDS, Setup, spin
from metactl_ros.nodes.undisturbed import undisturbed

Commands: TypeAlias = Callable[[Setup], dict[str, list[str]]]
"""From a set-up to the command line of each process, by module: `fleet.commands`."""

VICTIMS = {'controller': 'controller_node', 'plant': 'plant_node'}


class Crew:
    """Processes by name; each writes what it says into NAME.log of a folder."""

    def __init__(
        self, setup: Setup, folder: Path, commands_of: Commands, environment: Mapping[str, str]
    ) -> None:
        self._setup, self._folder, self._commands_of = setup, folder, commands_of
        self._environment = {**os.environ, **environment}
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._spinning: dict[ScriptedFault, list[subprocess.Popen[bytes]]] = {}

    def start(self, name: str, at_s: float = 0.0) -> None:
        """Start a process; a robot that comes back goes on in the faults' timeline at a time."""
        command = self._commands_of(replace(self._setup, faults_start_s=at_s))[name]
        with (self._folder / f'{name}.log').open('ab') as log, undisturbed():
            self._processes[name] = subprocess.Popen(
                command,
                env=self._environment,
                start_new_session=True,
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    def start_all(self) -> None:
        """Start every process of the set-up."""
        for name in self._commands_of(self._setup):
            (self._folder / f'{name}.log').unlink(missing_ok=True)  # of an earlier run
            self.start(name)

    def ended(self) -> list[str]:
        """Return who has ended without being told to."""
        return [n for n, process in self._processes.items() if process.poll() is not None]

    def begin(self, fault: ScriptedFault) -> None:
        """Do what a fault of the processes says."""
        if fault.kind == 'cpu_load':
            number = round(fault.load) * (os.cpu_count() or 1)
            with undisturbed():
                self._spinning[fault] = [spin() for _ in range(number)]
            return
        deed, victim = fault.kind.split('_')
        process = self._processes.get(VICTIMS[victim])
        if process is None or process.poll() is not None:
            return  # another fault has killed it already
        if deed == 'kill':
            process.kill()
            process.wait()
            del self._processes[VICTIMS[victim]]
        else:
            process.send_signal(signal.SIGSTOP)

    def finish(self, fault: ScriptedFault, now_s: float) -> None:
        """Undo it: go on, start again, leave the cores alone."""
        if fault.kind == 'cpu_load':
            for process in self._spinning.pop(fault, []):
                process.kill()
                process.wait()
            return
        deed, victim = fault.kind.split('_')
        name = VICTIMS[victim]
        if deed == 'kill' and name not in self._processes:
            self.start(name, now_s)
        elif deed == 'sigstop' and name in self._processes:
            self._processes[name].send_signal(signal.SIGCONT)

    def end(self) -> dict[str, int]:
        """End everything and return the exit codes of those that were alive."""
        codes = {}
        with undisturbed():
            for fault in list(self._spinning):
                self.finish(fault, 0.0)
            for name in LAST_WORDS:
                if (process := self._processes.pop(name, None)) is not None:
                    process.send_signal(signal.SIGCONT)
                    codes[name] = end(process)
        return codes
