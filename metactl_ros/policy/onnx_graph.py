# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""Looks into an ONNX file before onnxruntime does, and refuses what a policy does not need.

A model that onnxruntime is given as bytes may still name files for its weights, and they are then
read, from the working directory or from anywhere, depending on the version. So the file is walked
here first, as protobuf without a schema, and only fields that the exporter writes may occur in it:
no external data, no sub-graphs (control flow), no functions, no domain but ONNX's own, no
metadata; names in ASCII; and only the operators below. What is not known is refused, so that it
does not matter how another parser would read it.
"""

from collections.abc import Iterator
from pathlib import Path

from metactl_ros.policy.sealed import BundleError

# fmt: off
OPERATORS = frozenset({
    'Add', 'Cast', 'Concat', 'Equal', 'Expand', 'GRU', 'Gather', 'Gelu', 'Gemm',
    'LayerNormalization', 'LpNormalization', 'MatMul', 'Mul', 'Pad', 'Relu', 'Reshape', 'Shape',
    'Slice', 'Softmax', 'Split', 'Squeeze', 'Tanh', 'Transpose', 'Trilu', 'Where',
})
# fmt: on
"""What the exporter makes of the networks of `training.networks`."""

# Of onnx.proto: the fields a message may have, and the message that a field holds.
VALUE, TEXT, OPERATOR = 'a value', 'a text', 'an operator'
MESSAGES: dict[str, dict[int, str]] = {
    'model': {1: VALUE, 2: TEXT, 3: TEXT, 7: 'graph', 8: 'opset'},
    'opset': {2: VALUE},
    'graph': {1: 'node', 2: TEXT, 5: 'tensor', 11: 'end', 12: 'end'},
    'node': {1: TEXT, 2: TEXT, 3: TEXT, 4: OPERATOR, 5: 'attribute'},
    'attribute': {1: TEXT, 2: VALUE, 3: VALUE, 4: TEXT, 7: VALUE, 8: VALUE, 20: VALUE},
    'tensor': {1: VALUE, 2: VALUE, 8: TEXT, 9: VALUE},
    'end': {1: TEXT, 2: 'type'},
    'type': {1: 'tensor type'},
    'tensor type': {1: VALUE, 2: 'shape'},
    'shape': {1: 'axis'},
    'axis': {1: VALUE, 2: TEXT},
}
REFUSED: dict[tuple[str, int], str] = {
    ('model', 14): 'metadata',
    ('model', 25): 'functions',
    ('opset', 1): 'operators of another domain',
    ('graph', 15): 'sparse weights',
    ('node', 7): 'operators of another domain',
    ('attribute', 6): 'control flow',
    ('attribute', 11): 'control flow',
    ('tensor', 13): 'external data',
    ('tensor', 14): 'external data',
}
"""Names for what is refused; any other field is told by its number."""

MOST_FIELDS = 100_000
"""A policy has a few thousand; a file with more is not walked to its end."""
VARINT_BITS = 64
FIXED_BYTES = {1: 8, 5: 4}
"""Bytes of a value by wire type; 0 is a varint, 2 has its length in front."""


def check_graph(where: Path, data: bytes) -> None:
    """Refuse an ONNX file that is anything but a plain, self-contained network."""
    todo, num_fields = [('model', memoryview(data))], 0
    while todo:
        message, part = todo.pop()
        for number, value in _fields(where, part):
            num_fields += 1
            kind = MESSAGES[message].get(number)
            if num_fields > MOST_FIELDS:
                raise _needless(where, f'more than {MOST_FIELDS} fields')
            if kind is None:
                thing = REFUSED.get((message, number), f'field {number} of its {message}')
                raise _needless(where, thing)
            if kind in MESSAGES:
                todo.append((kind, value))
            elif kind != VALUE:
                text = bytes(value).decode('ascii', errors='replace')
                if not text.isprintable() or '\ufffd' in text:
                    raise _needless(where, f'the unprintable name {text!r}')
                if kind == OPERATOR and text not in OPERATORS:
                    raise _needless(where, f'the operator {text!r}')


def _fields(where: Path, data: memoryview) -> Iterator[tuple[int, memoryview]]:
    """Yield number and value of every field; of a varint or fixed number, its bytes."""
    at = 0
    while at < len(data):
        key, at = _varint(where, data, at)
        number, wire = key >> 3, key & 7
        begin = at
        if wire == 0:
            _, at = _varint(where, data, at)
        elif wire == 2:
            size, begin = _varint(where, data, at)
            at = begin + size
        elif wire in FIXED_BYTES:
            at += FIXED_BYTES[wire]
        else:
            at = len(data) + 1
        if at > len(data):
            raise _damaged(where)
        yield number, data[begin:at]


def _varint(where: Path, data: memoryview, at: int) -> tuple[int, int]:
    """Return the number at an index, seven bits per byte, and the index behind it."""
    value = 0
    for shift in range(0, VARINT_BITS, 7):
        if at >= len(data):
            break
        byte, at = data[at], at + 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
    raise _damaged(where)


def _needless(where: Path, thing: str) -> BundleError:
    return BundleError(
        f'{where}: holds {thing}, which no policy needs; export it again with '
        'python -m training.export.'
    )


def _damaged(where: Path) -> BundleError:
    return BundleError(f'{where}: not an ONNX file, or a damaged one; export it again.')
