# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""Proves that a policy is harmless and runs as made: in a process of its own, before it is loaded.

Everything that reads the graph or the golden vectors is here: the walk through the file, the check
of its shapes, the session of onnxruntime, which folds all constants, and the runs. What hangs,
aborts or fills the memory does so in that process (`confined`), and the bundle is refused.
"""

from collections.abc import Iterator
from contextlib import contextmanager
import io
import json
import math
from pathlib import Path
from typing import NamedTuple
import zipfile

import numpy as np

from metactl_ros.policy.confined import ask, MEMORY_BYTES, NoAnswerError, NotStartedError, serve
from metactl_ros.policy.onnx_graph import check_graph
from metactl_ros.policy.onnx_policy import INPUT, OnnxPolicy, OUTPUT, PolicyShape
from metactl_ros.policy.sealed import BundleError
from metactl_ros.signals import Array

GOLDEN_TOLERANCE = 1e-6
"""Largest difference of an action, of range 2, between this machine and the golden vectors."""
MOST_LETTERS = 500
"""Of what a parser says about hostile bytes."""


SOUND, EXPORT_AGAIN = 'sound', 'export the policy again'


class Exhibit(NamedTuple):
    """What is to be verified."""

    path: Path
    """Of the bundle, for messages; nothing is read from there."""
    model: bytes
    """All of policy.onnx."""
    golden: bytes
    """All of golden.npz."""
    shape: PolicyShape


def verify_apart(exhibit: Exhibit) -> None:
    """Let another process verify a policy.

    Raises:
        BundleError: With what the other found, or what became of it.
    """
    head = {
        'path': str(exhibit.path),
        'shape': exhibit.shape,
        'sizes': [len(exhibit.model), len(exhibit.golden)],
    }
    request = json.dumps(head).encode() + b'\n' + exhibit.model + exhibit.golden
    try:
        answer = ask(__name__, request).decode()
    except NoAnswerError as error:
        is_busy = isinstance(error, NotStartedError)
        advice = 'load it again while this machine is less busy' if is_busy else EXPORT_AGAIN
        raise BundleError(
            f'{exhibit.path}: the process that verifies it {error}; {advice}.'
        ) from None
    if answer != SOUND:
        raise BundleError(answer)


def respond(request: bytes) -> bytes:
    """Return what is wrong with a policy, or that it is sound."""
    head, _, rest = request.partition(b'\n')
    told = json.loads(head)
    size, _ = told['sizes']
    shape = PolicyShape(*told['shape'])
    try:
        verify(Exhibit(Path(told['path']), rest[:size], rest[size:], shape))
    except BundleError as error:
        return str(error).encode(errors='replace')
    return SOUND.encode()


def verify(exhibit: Exhibit) -> None:
    """Refuse a policy unless its graph is harmless and it gives the golden actions.

    Windows are given at once, and one by one as on a robot.

    Raises:
        BundleError: With file, reason and what to do.
    """
    graph_file, golden_file = exhibit.path / 'policy.onnx', exhibit.path / 'golden.npz'
    check_graph(graph_file, exhibit.model)
    with refusing(graph_file):
        policy = OnnxPolicy(exhibit.model, exhibit.shape)
    with refusing(golden_file):
        window, action = read_golden(exhibit.golden, exhibit.shape)
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
    """Whatever a parser raises on hostile bytes, refuse the bundle, and let the caller live on."""
    try:
        yield
    except Exception as error:
        said = ''.join(sign if sign.isprintable() else ' ' for sign in str(error)[:MOST_LETTERS])
        reason = f'{type(error).__name__}: {said}'
        if isinstance(error, MemoryError) or 'alloc' in said:
            reason = f'it needs more than {MEMORY_BYTES // 2**20} MiB: {reason}'
        raise BundleError(f'{path}: cannot be used ({reason}); {EXPORT_AGAIN}.') from error


if __name__ == '__main__':
    serve(respond)
