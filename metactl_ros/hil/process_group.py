# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""The processes of a scenario, and what a scenario does to them: stop, kill, restart, load.

Others come on top where a scenario needs them: an intruder, who is there from the beginning and
does nothing until told, and a second controller.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
import os
from pathlib import Path
import signal
import subprocess
import sys
import time
from typing import TypeAlias

from metactl_ros.hil.scripted_fault import INTRUSIONS, ScriptedFault
from metactl_ros.processes import end, LAST_WORDS, ros_arguments, Setup, spin
from metactl_ros.runtime.deferred_signals import deferred_signals

Commands: TypeAlias = Callable[[Setup], dict[str, list[str]]]
"""From a set-up to the command line of each process, by module: `fleet.commands`."""
Process: TypeAlias = 'subprocess.Popen[bytes]'

VICTIMS = {'controller': 'controller_node', 'plant': 'plant_node'}
INTRUDER, SECOND = 'intruder', 'second_controller'
READY_WITHIN_S = 60.0
"""How long an intruder may take to prepare."""


class Crew:
    """Processes by name; each writes what it says into NAME.log of a folder."""

    def __init__(
        self, setup: Setup, folder: Path, commands_of: Commands, environment: Mapping[str, str]
    ) -> None:
        self._setup, self._folder, self._commands_of = setup, folder, commands_of
        self._environment = {**os.environ, **environment}
        self._processes: dict[str, Process] = {}
        self._spinning: dict[ScriptedFault, list[Process]] = {}

    def start(self, name: str, at_s: float = 0.0) -> None:
        """Start a process; a robot that comes back goes on in the faults' timeline at a time."""
        command = self._commands_of(replace(self._setup, faults_start_s=at_s))[name]
        self._begin(name, command)

    def start_all(self, faults: Sequence[ScriptedFault] = ()) -> None:
        """Start every process of the set-up, and an intruder if the faults need one."""
        for name in (*self._commands_of(self._setup), INTRUDER, SECOND):
            (self._folder / f'{name}.log').unlink(missing_ok=True)  # of an earlier run
        intrusions = [fault for fault in faults if fault.kind in INTRUSIONS]
        if intrusions:
            self._invite(intrusions)
        for name in self._commands_of(self._setup):
            self.start(name)

    def _invite(self, intrusions: Sequence[ScriptedFault]) -> None:
        """Start an intruder, and wait until it is ready for what it is to do."""
        arguments = ros_arguments(replace(self._setup, params_file=None), INTRUDER)
        command = [sys.executable, '-m', 'metactl_ros.hil.intruder', *arguments]
        process = self._begin(INTRUDER, command)
        for fault in intrusions:
            self._tell_intruder(f'prepare {fault.kind}={fault.size}')
        log, until_s = self._folder / f'{INTRUDER}.log', time.monotonic() + READY_WITHIN_S
        while log.read_bytes().count(b'ready\n') < len(intrusions) and process.poll() is None:
            if time.monotonic() > until_s:
                break  # it will come late, which is told by what it does
            time.sleep(0.02)

    def _begin(self, name: str, command: list[str]) -> Process:
        with (self._folder / f'{name}.log').open('ab') as log, deferred_signals():
            process = self._processes[name] = subprocess.Popen(
                command,
                env=self._environment,
                start_new_session=True,
                stdin=subprocess.PIPE if name == INTRUDER else subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        return process

    def ended(self) -> list[str]:
        """Return who has ended without being told to; a second controller may well refuse."""
        ended = [n for n, process in self._processes.items() if process.poll() is not None]
        return [name for name in ended if name != SECOND]

    def begin(self, fault: ScriptedFault) -> None:
        """Do what a fault of the processes says."""
        if fault.kind in INTRUSIONS:
            self._tell_intruder(f'{fault.kind}={fault.size}')
        elif fault.kind == 'cpu_load':
            number = round(fault.size) * (os.cpu_count() or 1)
            with deferred_signals():
                self._spinning[fault] = [spin() for _ in range(number)]
        elif fault.kind == SECOND:
            self._dismiss_second()
            command = self._commands_of(self._setup)['controller_node']
            self._begin(SECOND, [*command, '-r', f'__node:={SECOND}'])
        else:
            self._harm(fault.kind)

    def finish(self, fault: ScriptedFault, now_s: float) -> None:
        """Undo it: go on, start again, leave the cores alone."""
        if fault.kind in INTRUSIONS:
            self._tell_intruder(f'end {fault.kind}')
        elif fault.kind == 'cpu_load':
            for process in self._spinning.pop(fault, []):
                process.kill()
                process.wait()
        elif fault.kind == SECOND:
            self._dismiss_second()
        else:
            self._heal(fault.kind, now_s)

    def end(self) -> dict[str, int]:
        """End everything and return the exit codes of those that were alive."""
        codes = {}
        with deferred_signals():
            for fault in list(self._spinning):
                self.finish(fault, 0.0)
            self._dismiss_second()
            for name in (INTRUDER, *LAST_WORDS):
                if (process := self._processes.pop(name, None)) is not None:
                    _signal(process, signal.SIGCONT)
                    codes[name] = end(process)
                    if process.stdin is not None:
                        process.stdin.close()
        return codes

    def _tell_intruder(self, order: str) -> None:
        process = self._processes[INTRUDER]
        if process.poll() is None and process.stdin is not None:
            process.stdin.write(f'{order}\n'.encode())
            process.stdin.flush()

    def _dismiss_second(self) -> None:
        if (process := self._processes.pop(SECOND, None)) is not None:
            end(process)

    def _harm(self, kind: str) -> None:
        deed, victim = kind.split('_')
        process = self._processes.get(VICTIMS[victim])
        if process is None or process.poll() is not None:
            return  # another fault has killed it already
        if deed == 'kill':
            process.kill()
            process.wait()
            del self._processes[VICTIMS[victim]]
        else:
            _signal(process, signal.SIGSTOP)

    def _heal(self, kind: str, now_s: float) -> None:
        deed, victim = kind.split('_')
        name = VICTIMS[victim]
        if deed == 'kill' and name not in self._processes:
            self.start(name, now_s)
        elif deed == 'sigstop' and name in self._processes:
            _signal(self._processes[name], signal.SIGCONT)


def _signal(process: Process, number: int) -> None:
    """Send a signal to a process and to all it has started, as when a machine pauses."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, number)
