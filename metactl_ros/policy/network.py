# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""The network of a bundle, in onnxruntime: proven harmless and as made before it is loaded.

    verify_confined(files)                          in the process that loads
    python -m metactl_ros.policy.network            the process that verifies
    action = OnnxPolicy(model, shape)(window)       the policy of a loop

Everything that reads the graph or the golden vectors first runs in a process of its own: the walk
through the file, the check of its shapes, the session of onnxruntime, which folds all constants,
and the runs. That process is limited in time and memory. If it hangs, aborts or grows, the bundle
is refused, and the caller goes on. Its clock starts when it has imported what it needs: how long
that takes says nothing about the policy.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
import io
import json
import math
import os
from pathlib import Path
import resource
import select
import signal
import subprocess
import sys
import time
from typing import Any, NamedTuple
import zipfile

import numpy as np
import onnxruntime

from metactl_ros.errors import BundleError, MetactlError
from metactl_ros.policy.onnx_graph import check_graph
from metactl_ros.signals import Array

INPUT, OUTPUT = 'window', 'action'
GOLDEN_TOLERANCE = 1e-6
"""Largest difference of an action, of range 2, between this machine and the golden vectors."""
SOUND, EXPORT_AGAIN = 'sound', 'export the policy again'
ANSWER_S = 3.0
"""How long verification may take; a sound bundle takes 0.05 s."""
CPU_S = 4
"""Of processor time, should there be several threads."""
MEMORY_BYTES = 2**28
"""How much it may need beside what the modules need; a sound bundle needs a tenth."""
START_S = 30.0
"""How long the process may take to start, which is 0.2 s on an idle machine."""
SLACK_S = 1.0
"""How much later the caller gives up than the process should have ended itself."""
READY = b'+'
OUT_OF_MEMORY = 77
"""Exit code of a process that ran out of memory."""
MAX_PARSER_CHARACTERS, MAX_STDERR_CHARACTERS = 500, 300
"""Of what a parser says about hostile bytes, and a process that died wrote last."""


class PolicyShape(NamedTuple):
    """What goes in and comes out: (..., W, F) to (..., m)."""

    num_rows: int
    num_features: int
    num_actions: int


class OnnxPolicy:
    """From windows, raw and float64, to actions in [-1, 1]; on one thread of the CPU.

    The graph takes float32. A number too large for it becomes infinite and the action NaN, to
    which the shield answers with the nominal gains.
    """

    def __init__(self, model: bytes, shape: PolicyShape) -> None:
        """Create the session, which also folds all constants.

        Raises:
            ValueError: If the graph does not have this shape; onnxruntime raises its own errors.
        """
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        options.execution_mode = onnxruntime.ExecutionMode.ORT_SEQUENTIAL
        # Fusions beyond basic ones gain nothing here, and onnxruntime 1.20 makes some for float64
        # that it cannot run.
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
        # Not a guess from the bytes: only this format is looked into before.
        options.add_session_config_entry('session.load_model_format', 'ONNX')
        options.log_severity_level = 4  # only fatal: errors are raised
        self._session = onnxruntime.InferenceSession(
            model, options, providers=['CPUExecutionProvider']
        )
        ends = (*self._session.get_inputs(), *self._session.get_outputs())
        found = [(end.name, end.type, _without_batch(end.shape)) for end in ends]
        expected = [
            (INPUT, 'tensor(float)', [shape.num_rows, shape.num_features]),
            (OUTPUT, 'tensor(float)', [shape.num_actions]),
        ]
        if found != expected:
            raise ValueError(f'expected input and output {expected} behind a batch, found {found}')
        self._rows = (-1, shape.num_rows, shape.num_features)

    def __call__(self, window: Array) -> Array:
        """Return the actions, shape (..., m), of windows, shape (..., W, F)."""
        with np.errstate(over='ignore'):
            rows = window.reshape(self._rows).astype(np.float32)
        (actions,) = self._session.run([OUTPUT], {INPUT: rows})
        result: Array = actions.astype(np.float64).reshape(*window.shape[:-2], -1)
        return result


def _without_batch(shape: list[Any]) -> list[Any]:
    """Return a shape without the axis of free length in front, if it has one."""
    return shape[1:] if shape and not isinstance(shape[0], int) else shape


class NoAnswerError(MetactlError, RuntimeError):
    """The process did not answer; the text says how it ended."""


class NotStartedError(NoAnswerError):
    """The process did not even start, which says nothing about the policy."""


class PolicyFiles(NamedTuple):
    """What is to be verified."""

    path: Path
    """Of the bundle, for messages; nothing is read from there."""
    model: bytes
    """All of policy.onnx."""
    golden: bytes
    """All of golden.npz."""
    shape: PolicyShape


def verify_confined(files: PolicyFiles) -> None:
    """Verify a policy in a process of its own.

    Raises:
        BundleError: With what it found, or how it ended.
    """
    head = {'path': str(files.path), 'shape': files.shape, 'model_bytes': len(files.model)}
    request = json.dumps(head).encode() + b'\n' + files.model + files.golden
    try:
        answer = run_confined(__name__, request).decode()
    except NoAnswerError as error:
        is_busy = isinstance(error, NotStartedError)
        advice = 'load it again while this machine is less busy' if is_busy else EXPORT_AGAIN
        raise BundleError(
            f'{files.path}: the process that verifies it {error}; {advice}.'
        ) from None
    if answer != SOUND:
        raise BundleError(answer)


def respond(request: bytes) -> bytes:
    """Return what is wrong with a policy, or that it is sound."""
    head, _, rest = request.partition(b'\n')
    about = json.loads(head)
    size, shape = about['model_bytes'], PolicyShape(*about['shape'])
    try:
        verify(PolicyFiles(Path(about['path']), rest[:size], rest[size:], shape))
    except BundleError as error:
        return str(error).encode(errors='replace')
    return SOUND.encode()


def verify(files: PolicyFiles) -> None:
    """Refuse a policy unless its graph is harmless and it gives the golden actions.

    Windows are given at once, and one by one as on a robot.

    Raises:
        BundleError: With file, reason and what to do.
    """
    graph_file, golden_file = files.path / 'policy.onnx', files.path / 'golden.npz'
    check_graph(graph_file, files.model)
    with refusing(graph_file):
        policy = OnnxPolicy(files.model, files.shape)
    with refusing(golden_file):
        window, action = read_golden(files.golden, files.shape)
    with refusing(graph_file):
        found = policy(window), np.stack([policy(one) for one in window])
        worst = max(float(np.abs(actions - action).max()) for actions in found)
    if not worst <= GOLDEN_TOLERANCE:  # NaN is refused, too
        raise BundleError(
            f'{graph_file}: expected the actions of golden.npz to {GOLDEN_TOLERANCE}, found a '
            f'difference of {worst:.3g}; {EXPORT_AGAIN}.'
        )


def read_golden(data: bytes, shape: PolicyShape) -> tuple[Array, Array]:
    """Return golden windows, shape (N, W, F), and their actions, shape (N, m), all finite.

    Raises:
        ValueError: If they are not; NumPy and zipfile raise their own errors.
    """
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        entries = {entry.filename: entry for entry in archive.infolist()}
        expected_names = {f'{INPUT}.npy', f'{OUTPUT}.npy'}
        if entries.keys() != expected_names or len(archive.infolist()) != len(entries):
            raise ValueError(
                f'expected {sorted(expected_names)}, found {archive.namelist()[:5]!r}'
            )
        for entry in entries.values():
            is_stored = entry.compress_type == zipfile.ZIP_STORED
            if not is_stored or entry.file_size > len(data):
                raise ValueError('expected arrays that are not compressed, which could be a bomb')
        window, action = (_read_array(archive.read(f'{name}.npy')) for name in (INPUT, OUTPUT))
    expected = (
        (len(window), shape.num_rows, shape.num_features),
        (len(window), shape.num_actions),
    )
    if (window.shape, action.shape) != expected or not window.size:
        raise ValueError(
            f'expected {INPUT} and {OUTPUT} of shapes {expected} and at least one of them, found '
            f'{window.shape} and {action.shape}'
        )
    if not (np.isfinite(window).all() and np.isfinite(action).all()):
        raise ValueError('expected finite windows and actions')
    return window, action


def _read_array(data: bytes) -> Array:
    """Return the array of a .npy file, which holds as many plain numbers as its header says."""
    stream = io.BytesIO(data)
    if np.lib.format.read_magic(stream) != (1, 0):
        raise ValueError('expected version 1.0 of the array format')
    shape, is_by_column, kind = np.lib.format.read_array_header_1_0(stream)
    rest = data[stream.tell() :]
    if kind not in (np.float32, np.float64) or is_by_column or not shape or min(shape) < 0:
        raise ValueError(f'expected plain numbers by rows, found {kind} of shape {shape}')
    if math.prod(shape) * kind.itemsize != len(rest):
        raise ValueError(f'expected an array of shape {shape}, found {len(rest)} bytes')
    return np.frombuffer(rest, dtype=kind).reshape(shape)


@contextmanager
def refusing(path: Path) -> Iterator[None]:
    """Turn whatever a parser raises on hostile bytes into a refusal of the bundle."""
    try:
        yield
    except Exception as error:
        text = str(error)[:MAX_PARSER_CHARACTERS]
        text = ''.join(c if c.isprintable() else ' ' for c in text)
        reason = f'{type(error).__name__}: {text}'
        if isinstance(error, MemoryError) or 'alloc' in text:
            reason = f'it needs more than {MEMORY_BYTES // 2**20} MiB: {reason}'
        raise BundleError(f'{path}: cannot be used ({reason}); {EXPORT_AGAIN}.') from error


# The process: how it is called, and how it is limited


def run_confined(module: str, request: bytes) -> bytes:
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
            return _exchange(process, request)
        finally:
            process.kill()


def _exchange(process: 'subprocess.Popen[bytes]', request: bytes) -> bytes:
    assert process.stdout is not None
    has_output, _, _ = select.select([process.stdout], [], [], START_S)
    if not has_output:
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
        text = ''.join(c for c in errors.decode(errors='replace') if c.isprintable())
        end = f'was ended by {signal.Signals(-code).name}' if code < 0 else f'ended with {code}'
        raise NoAnswerError(f'{end} ({text[-MAX_STDERR_CHARACTERS:]})')
    return answer


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

    The parent may have blocked or ignored the signals.
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


if __name__ == '__main__':
    serve(respond)
