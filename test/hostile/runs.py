# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""Runs a command on hostile input, each time in a process of its own, and counts how that ends.

The process is a fork of this one, in which all modules are loaded: hundreds of runs take minutes,
and whatever one does, exit, hang, abort or fill the memory, the next does not notice. The commands
`python -m hostile.bags`, `hostile.bundles` and `hostile.yaml_files` share their options, their
exit code and much of what they make their input from.
"""

import argparse
from collections import Counter
from collections.abc import Callable
from itertools import pairwise
import os
from pathlib import Path
import resource
import signal
import socket
import sys
import tempfile
import time
import traceback
from typing import NamedTuple

from metactl_ros.files import write_json

HANG_S = 5.0
"""A run that takes longer hangs."""
POLL_S = 0.01
MAX_ADDRESSES = 16 * 2**30
"""Bytes a run may ask for, so that one that wants all of them does not take the machine down."""
UNFORESEEN = 70
"""Exit code of an exception that was not caught."""


REFUSED = (2,)
"""Exit codes of a command that refuses its input."""


class Ending(NamedTuple):
    """How a run ended."""

    outcome: str
    """exit N, traceback, hang, or killed by a signal; the last three must not be."""
    seconds: float
    """Without those in which it waited for a core."""
    peak_mb: float
    output: str
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
    with tempfile.TemporaryFile() as stream:
        begin_s = time.monotonic()
        pid = os.fork()
        if pid == 0:
            os._exit(_child(function, stream.fileno()))
        seconds = 0.0
        while os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is None:
            time.sleep(POLL_S)
            seconds = time.monotonic() - begin_s - _waited_for_a_core_s(pid)
            if seconds > HANG_S:
                os.kill(pid, signal.SIGKILL)
                break
        _, status, usage = os.wait4(pid, 0)
        stream.seek(0)
        output = stream.read().decode('utf-8', 'replace')
    code = os.waitstatus_to_exitcode(status)
    if code < 0:
        outcome = f'killed by {signal.Signals(-code).name}'
    elif code == UNFORESEEN or 'Traceback (most recent call last)' in output:
        outcome = 'traceback'
    else:
        outcome = f'exit {code}'
    return Ending(outcome, seconds, usage.ru_maxrss / 1024.0, output)


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
        resource.setrlimit(resource.RLIMIT_AS, (MAX_ADDRESSES, MAX_ADDRESSES))
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
        is_silent = ending.outcome != 'exit 0' and not ending.output.strip()
        if ending.outcome not in {f'exit {code}' for code in allowed} or is_silent:
            last = (ending.output.strip().splitlines() or ['in silence'])[-1]
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


def command_line(doc, kinds, *, count, seed, results):
    """Return a parser of the options that every command has; `doc` is that of its module."""
    parser = argparse.ArgumentParser(description=doc.splitlines()[0])
    parser.add_argument('--count', type=int, default=count)
    parser.add_argument('--seed', type=int, default=seed)
    parser.add_argument('--only', nargs='+', choices=sorted(kinds), metavar='KIND')
    parser.add_argument('--results', type=Path, default=Path('results') / results)
    parser.add_argument('--verbose', action='store_true', help='say how each ended')
    return parser


def say(name, ending):
    """Say how one run ended."""
    last = (ending.output.strip().splitlines() or [''])[-1]
    sys.stderr.write(f'{name}: {ending.outcome}, {ending.seconds:.2f} s, ')
    sys.stderr.write(f'{ending.peak_mb:.0f} MB: {last[:150]}\n')


def say_nothing(name, ending):
    """Stand in for `say`."""


def report(args, tally, before, after):
    """Write the result file, with facts around the figures; return the exit code."""
    write_json(args.results, {**before, **tally.figures(), **after})
    for line in tally.bad:
        sys.stdout.write(f'{line}\n')
    sys.stdout.write(f'{tally.figures()["num_cases"]} cases, {len(tally.bad)} bad; ')
    sys.stdout.write(f'slowest {tally.slowest}, largest {tally.largest}\n')
    return 1 if tally.bad else 0


# What hostile input is made of


def pick(rng, entries):
    """Return one of some things, as it is."""
    return entries[int(rng.integers(len(entries)))]


def nth(base, entries):
    """Return the entry whose turn it is: after as many inputs of a kind all have been used."""
    return entries[base.turn % len(entries)]


def places(value, path=()):
    """Yield the path of every value inside tables and lists."""
    entries = value.items() if isinstance(value, dict) else enumerate(value)
    for key, inner in entries:
        yield (*path, key)
        if isinstance(inner, dict | list):
            yield from places(inner, (*path, key))


def at(value, path):
    """Return the value at a path."""
    for key in path:
        value = value[key]
    return value


def alias_bomb(width, height):
    """Return YAML of few lines, `n0` to the last, that stand for width to the power of height."""
    names = [f'n{k}' for k in range(height)]
    first = f'{names[0]}: &{names[0]} [{", ".join(["x"] * width)}]\n'
    return first + ''.join(
        f'{b}: &{b} [{", ".join([f"*{a}"] * width)}]\n' for a, b in pairwise(names)
    )


def make_socket(path):
    """Leave a socket at a path, however long that is."""
    folder = os.open(path.parent, os.O_RDONLY)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(f'/proc/self/fd/{folder}/{path.name}')
    os.close(folder)


def make_sparse(path, num_bytes=2**40):
    """Leave a file that is large and takes no room on the disk."""
    with path.open('wb') as stream:
        stream.truncate(num_bytes)


STAND_INS = {
    'fifo': os.mkfifo,
    'socket': make_socket,
    'folder': Path.mkdir,
    'zero': lambda path: path.symlink_to('/dev/zero'),
    'tty': lambda path: path.symlink_to('/dev/tty'),
    'loop': lambda path: path.symlink_to(path.name),
    'dangling': lambda path: path.symlink_to('nowhere'),
    'kernel': lambda path: path.symlink_to('/proc/kmsg'),
    'memory': lambda path: path.symlink_to('/proc/self/mem'),
    'environment': lambda path: path.symlink_to('/proc/self/environ'),
    'sparse': make_sparse,
    'empty': Path.touch,
    'zip': lambda path: path.write_bytes(b'PK\3\4' + bytes(100)),
    'text': lambda path: path.write_text('something else'),
    'random': lambda path: path.write_bytes(bytes(range(256)) * 12),
}
"""What may stand where a file should be."""


def fresh_folder(parent: Path, name: str) -> Path:
    """Return a new folder for one case."""
    folder = parent / name.replace('/', '_')
    folder.mkdir(parents=True)
    return folder
