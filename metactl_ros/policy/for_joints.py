# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""The network of an adaptive law for an arm with another number of joints; nothing is trained.

The network has one set of weights, shared by all joints, and they meet in means over joints alone.
So n is in a few constants of its graph, and these are all that changes:

    mean            the n x n matrix of 1 / n
    Slice           of a window: where tokens begin, 4 n + 3; of gains: the first n
    Reshape         of tokens and hidden values to joints, and of 9 n entries of a schedule

Whether a graph is of this kind shows in what it does: joints that see the same do the same, and as
many as there may be of them, they do what those of the first arm do (`like_windows`). A graph that
does not is refused; so no constant can be mistaken for another.
"""

from collections.abc import Mapping
import struct
from typing import Any

import numpy as np

from metactl_ros.control.estimators.bank_estimation import PER_JOINT, schedule_size, token_size
from metactl_ros.policy.onnx_file import (
    DOUBLE,
    INT64,
    INTEGER,
    Message,
    MESSAGES,
    MisfitError,
    read_model,
    SINGLE,
    TEXT,
    VARINT_BITS,
    WIRE_OF,
)
from metactl_ros.signals import Array

MEAN = 'exact.mean'
"""Name of the matrix that takes means over joints, as `training.export` writes it."""
PAPER_PER_JOINT, PAPER_OTHERS = 4, 3
"""Features in front of the tokens: those of the paper's row, 4 n + 3."""
GAINS_PER_JOINT = 4
"""K_d, Lambda, K_p and the weight of the estimate."""
LENGTH = 2
"""Wire type of protobuf for whatever is no number."""


def network_for(model: bytes, before: int, num_joints: int, num_delays: int) -> bytes:
    """Return the ONNX file of a network that was made for `before` joints, for another number.

    Raises:
        MisfitError: If it is no network of an adaptive law.
    """
    file = read_model(model)
    graph: Message = file['graph'][0]
    constants = {tensor['name'][0]: tensor for tensor in graph['tensors']}
    if MEAN not in constants:
        raise MisfitError(f'has no constant {MEAN!r}, with which joints meet')
    constants[MEAN].update(_tensor(MEAN, np.full((num_joints, num_joints), 1.0 / num_joints)))
    lengths = {before: num_joints, PER_JOINT * before: PER_JOINT * num_joints}
    first_token = {head(before): head(num_joints)}
    for number, node in enumerate(graph['nodes']):
        kind, inputs = node['operator'][0], node['inputs']
        if kind == 'Reshape':
            changes = {1: lengths}
        elif kind == 'Slice' and _numbers(constants, inputs[3]) == (1,):  # gains, all joints' K_d
            changes = {2: {before: num_joints}}
        elif kind == 'Slice':
            changes = {1: first_token}
        else:
            continue
        for place, renamed in changes.items():
            old = _numbers(constants, inputs[place])
            new = tuple(renamed.get(entry, entry) for entry in old)
            if new != old:
                # Of its own: the old constant may serve other nodes, too.
                name = f'joints_{number}_{place}'
                graph['tensors'].append(_tensor(name, np.array(new, dtype=np.int64)))
                inputs[place] = name
    used = {name for node in graph['nodes'] for name in node['inputs']}
    graph['tensors'] = [tensor for tensor in graph['tensors'] if tensor['name'][0] in used]
    widths = (
        ('inputs', head(num_joints) + num_joints * token_size(num_delays)),
        ('outputs', GAINS_PER_JOINT * num_joints + schedule_size(num_delays, num_joints)),
    )
    for end, width in widths:
        shape = graph[end][0]['type'][0]['tensor'][0]['shape'][0]
        shape['axes'][-1] = {'length': [width]}
    return _written('model', file)


def head(num_joints: int) -> int:
    """Return how many features are in front of the tokens."""
    return PAPER_PER_JOINT * num_joints + PAPER_OTHERS


def like_windows(window: Array, before: int, num_joints: int) -> tuple[Array, Array]:
    """Return windows in which all joints see the same, for both arms.

    Args:
        window: Of the first arm, shape (N, W, F); its joints take turns to be seen by all.
        before: How many joints the first arm has.
        num_joints: How many the other one has.
    """
    size = (window.shape[-1] - head(before)) // before
    chosen = np.arange(len(window)) % before
    token = np.stack(
        [
            row[:, head(before) + joint * size : head(before) + (joint + 1) * size]
            for row, joint in zip(window, chosen, strict=True)
        ]
    )

    def seen_by(joints: int) -> Array:
        paper = np.zeros((*window.shape[:-1], head(joints)))
        return np.concatenate((paper, np.tile(token, joints)), axis=-1)

    return seen_by(before), seen_by(num_joints)


def like_action(action: Array, before: int, num_joints: int, num_delays: int) -> Array:
    """Return the action of joints that do the same, shape (N, m), for another number of them."""
    split = GAINS_PER_JOINT * before
    gains = action[:, :split].reshape(-1, GAINS_PER_JOINT, before)[..., :1]
    delays = action[:, split : split + num_delays]
    bank = action[:, split + num_delays : -1].reshape(-1, before, PER_JOINT)[:, :1]
    return np.concatenate(
        (
            np.repeat(gains, num_joints, axis=-1).reshape(len(action), -1),
            delays,
            np.repeat(bank, num_joints, axis=1).reshape(len(action), -1),
            action[:, -1:],
        ),
        axis=-1,
    )


def _numbers(constants: Mapping[str, Message], name: str) -> tuple[int, ...]:
    """Return the whole numbers of a constant."""
    tensor = constants.get(name)
    if tensor is None or tensor['kind'] != [INT64]:
        raise MisfitError(f'decides a shape by {name!r}, no constant')
    data = bytes(tensor['data'][0])
    return struct.unpack(f'<{len(data) // 8}q', data)


def _tensor(name: str, value: Array | np.ndarray[Any, Any]) -> Message:
    """Return a constant as a message."""
    kind = INT64 if value.dtype == np.int64 else DOUBLE
    return {
        'shape': list(value.shape),
        'kind': [kind],
        'name': [name],
        'data': [value.astype(value.dtype.newbyteorder('<')).tobytes()],
    }


# The way back from messages to bytes, by the table that they are read by


def _written(kind: str, message: Message) -> bytes:
    """Return the bytes of a message; its fields by their numbers."""
    parts = []
    for number, field in MESSAGES[kind].items():
        for value in message.get(field.name, ()):
            wire = WIRE_OF.get(field.kind, LENGTH)
            parts += [_varint(number << 3 | wire), _value(field.kind, value)]
    return b''.join(parts)


def _value(kind: str, value: Any) -> bytes:
    if kind == INTEGER:
        return _varint(value % 2**VARINT_BITS)
    if kind == SINGLE:
        return struct.pack('<f', value)
    data: bytes
    if isinstance(value, dict):
        data = _written(kind, value)
    else:
        data = value.encode('ascii') if kind == TEXT else bytes(value)
    return _varint(len(data)) + data


def _varint(value: int) -> bytes:
    """Return a number, seven bits per byte, the lowest first."""
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes((*out, value))
