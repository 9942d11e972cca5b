# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""Asks a question of a process of its own, which may take so much time and memory and no more.

    answer = ask('metactl_ros.policy.verifier', request)          here
    serve(respond)                                                 there

Whatever becomes of the other process, hanging, aborting, growing, it is over soon and this one
goes on. The clock starts when the other has been started and has imported what it needs: how long
that takes says nothing about the question.
"""

from collections.abc import Callable
import math
import os
from pathlib import Path
import resource
import select
import signal
import subprocess
import sys
import time

from metactl_ros.errors import MetactlError

ANSWER_S = 3.0
"""How long an answer may take; a sound bundle takes 0.05 s."""
CPU_S = 4
"""Of processor time, should it have several threads."""
MEMORY_BYTES = 2**28
"""How much an answer may need beside what the modules need; a sound bundle needs a tenth."""
START_S = 30.0
"""How long the process may take to start, which is 0.2 s on a machine that does nothing else."""
SLACK_S = 1.0
"""How much later this side gives up than the other should have ended itself."""
READY = b'+'
MOST_LETTERS = 300
"""Of what a process that died said last."""


class NoAnswerError(MetactlError, RuntimeError):
    """The process did not answer; the text says what became of it."""


class NotStartedError(NoAnswerError):
    """The process did not even start, which says nothing about the question."""


def ask(module: str, request: bytes) -> bytes:
    """Return what a module of Python, run as a program that calls `serve`, answers.

    Raises:
        NoAnswerError: If it hangs, dies, fails or needs too much.
    """
    # The same modules as here, and nothing from the working directory unless it is here, too.
    environment = os.environ | {
        'PYTHONPATH': os.pathsep.join(entry or str(Path.cwd()) for entry in sys.path),
        'OMP_NUM_THREADS': '1',
        'OPENBLAS_NUM_THREADS': '1',
    }
    try:
        process = subprocess.Popen(
            [sys.executable, '-P', '-m', module],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
            env=environment,
            process_group=0,  # a Ctrl-C is for this process to answer
        )
    except OSError as error:
        raise NotStartedError(f'cannot be started ({error})') from None
    with process:
        try:
            return _converse(process, request)
        finally:
            process.kill()


def _converse(process: 'subprocess.Popen[bytes]', request: bytes) -> bytes:
    assert process.stdout is not None
    is_told, _, _ = select.select([process.stdout], [], [], START_S)
    if not is_told:
        raise NotStartedError(f'did not start within {START_S:g} s')
    is_ready = os.read(process.stdout.fileno(), 1) == READY
    try:
        answer, errors = process.communicate(request if is_ready else b'', ANSWER_S + SLACK_S)
    except subprocess.TimeoutExpired:
        raise NoAnswerError(f'took longer than {ANSWER_S:g} s') from None
    code = process.returncode
    if -code in (signal.SIGALRM, signal.SIGXCPU):
        raise NoAnswerError(f'took longer than {ANSWER_S:g} s')
    if code == OUT_OF_MEMORY:
        raise NoAnswerError(f'needed more than {MEMORY_BYTES // 2**20} MiB')
    if code or not is_ready:
        said = ''.join(sign for sign in errors.decode(errors='replace') if sign.isprintable())
        end = f'was ended by {signal.Signals(-code).name}' if code < 0 else f'ended with {code}'
        raise NoAnswerError(f'{end} ({said[-MOST_LETTERS:]})')
    return answer


OUT_OF_MEMORY = 77
"""Exit code of a process that could not go on for want of memory."""


def serve(respond: Callable[[bytes], bytes]) -> None:
    """Confine this process, read a request from stdin, write the answer to stdout, and end."""
    _confine()
    answers = os.fdopen(os.dup(1), 'wb', buffering=0)
    os.dup2(2, 1)  # whatever else is printed is no answer
    answers.write(READY)
    request = sys.stdin.buffer.read()
    try:
        answer = respond(request)
    except MemoryError:
        os._exit(OUT_OF_MEMORY)
    answers.write(answer)
    os._exit(0)  # at once: what was loaded is not trusted to end well


def _confine() -> None:
    """Limit time and memory from now on; a process that exceeds its time is ended by the system.

    Signals may be blocked or ignored by whoever started it.
    """
    ends = {signal.SIGALRM, signal.SIGXCPU}
    for name in ends:
        signal.signal(name, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, ends)
    signal.setitimer(signal.ITIMER_REAL, ANSWER_S)
    used_bytes = int(Path('/proc/self/statm').read_text().split()[0]) * resource.getpagesize()
    cpu_s = math.ceil(time.process_time()) + CPU_S
    for limit, most in (
        (resource.RLIMIT_AS, used_bytes + MEMORY_BYTES),
        (resource.RLIMIT_CPU, cpu_s),
        (resource.RLIMIT_CORE, 0),
    ):
        resource.setrlimit(limit, (most, most))
