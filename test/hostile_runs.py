# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""Runs a command on hostile input, each time in a process of its own, and sees how that ends.

The process is a fork of this one, in which all modules are loaded: hundreds of runs take minutes,
and whatever one does, exit, hang, abort or fill the memory, the next does not notice.
"""

from collections import Counter
from collections.abc import Callable
import os
from pathlib import Path
import resource
import signal
import sys
import tempfile
import time
import traceback
from typing import NamedTuple

HANG_S = 5.0
"""Whoever takes longer hangs."""
POLL_S = 0.01
MOST_ADDRESSES = 16 * 2**30
"""Bytes a run may ask for, so that one that wants all of them does not take the machine down."""
UNFORESEEN = 70
"""Exit code of an exception that nobody caught."""


class Ending(NamedTuple):
    """How a run ended."""

    outcome: str
    """exit N, traceback, hang, or killed by a signal; the last three must not be."""
    seconds: float
    """Without those in which it waited for a core."""
    peak_mb: float
    said: str
    """All that it wrote."""


def run_forked(function: Callable[[], int]) -> Ending:
    """Return how a function ends that returns an exit code."""
    ending = _run_once(function)
    if ending.seconds > HANG_S:  # perhaps it was the machine
        again = _run_once(function)
        ending = min(ending, again, key=lambda one: one.seconds)
    if ending.seconds > HANG_S:
        return ending._replace(outcome='hang')
    return ending


def _run_once(function: Callable[[], int]) -> Ending:
    with tempfile.TemporaryFile() as output:
        begin_s = time.monotonic()
        pid = os.fork()
        if pid == 0:
            os._exit(_child(function, output.fileno()))
        seconds = 0.0
        while os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is None:
            time.sleep(POLL_S)
            seconds = time.monotonic() - begin_s - _waited_for_a_core_s(pid)
            if seconds > HANG_S:
                os.kill(pid, signal.SIGKILL)
                break
        _, status, usage = os.wait4(pid, 0)
        output.seek(0)
        said = output.read().decode('utf-8', 'replace')
    code = os.waitstatus_to_exitcode(status)
    if code < 0:
        outcome = f'killed by {signal.Signals(-code).name}'
    elif code == UNFORESEEN or 'Traceback (most recent call last)' in said:
        outcome = 'traceback'
    else:
        outcome = f'exit {code}'
    return Ending(outcome, seconds, usage.ru_maxrss / 1024.0, said)


def _waited_for_a_core_s(pid: int) -> float:
    """Return how long a process would have run, had others not: that is not its own doing."""
    _, delay_ns, _ = Path(f'/proc/{pid}/schedstat').read_text().split()
    return int(delay_ns) / 1e9


def _child(function: Callable[[], int], output: int) -> int:
    """Run the function as a process of its own would; return its exit code."""
    code = UNFORESEEN
    try:
        for stream in (1, 2):
            os.dup2(output, stream)
        resource.setrlimit(resource.RLIMIT_AS, (MOST_ADDRESSES, MOST_ADDRESSES))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        # As a fresh process has them: pytest's write elsewhere.
        sys.stdout, sys.stderr = (os.fdopen(n, 'w', closefd=False) for n in (1, 2))
        code = function()
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
    return code


class Tally:
    """Counts endings by kind of input."""

    def __init__(self) -> None:
        self.by_kind: dict[str, Counter[str]] = {}
        self.slowest: tuple[float, str] = (0.0, '')
        self.largest: tuple[float, str] = (0.0, '')
        self.bad: list[str] = []
        """What must not be, in a line each."""

    def add(self, kind: str, name: str, ending: Ending, allowed: tuple[int, ...]) -> None:
        """Count one; `allowed` are the exit codes that are documented."""
        self.by_kind.setdefault(kind, Counter())[ending.outcome] += 1
        self.slowest = max(self.slowest, (round(ending.seconds, 2), name))
        self.largest = max(self.largest, (round(ending.peak_mb), name))
        is_silent = ending.outcome != 'exit 0' and not ending.said.strip()
        if ending.outcome not in {f'exit {code}' for code in allowed} or is_silent:
            last = (ending.said.strip().splitlines() or ['in silence'])[-1]
            self.bad.append(f'{name}: {ending.outcome}: {last[:200]}')

    def figures(self) -> dict[str, object]:
        """Return what a result file says."""
        outcomes: Counter[str] = sum(self.by_kind.values(), Counter())
        return {
            'num_cases': outcomes.total(),
            'num_bad': len(self.bad),
            'bad': self.bad,
            'outcomes': dict(sorted(outcomes.items())),
            'by_kind': {kind: dict(sorted(c.items())) for kind, c in self.by_kind.items()},
            'slowest_s': self.slowest[0],
            'slowest': self.slowest[1],
            'peak_memory_mb': self.largest[0],
            'largest': self.largest[1],
            'limit_s': HANG_S,
        }


def fresh_folder(parent: Path, name: str) -> Path:
    """Return a new folder for one case."""
    folder = parent / name.replace('/', '_')
    folder.mkdir(parents=True)
    return folder
