# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""Reads an ONNX file without the package `onnx`, and refuses what a policy does not need.

A model that onnxruntime is given as bytes may still name files for its weights, and they are then
read, from the working directory or from anywhere, depending on the version. So the file is walked
here first, as protobuf, and only fields that the exporter writes may occur in it: no external
data, no sub-graphs (control flow), no functions, no domain but ONNX's own, no metadata; names in
ASCII. What is not known is refused, so that it does not matter how another parser would read it;
for the same reason a field that there can be only one of occurs once, and with its own wire type.
"""

from collections.abc import Iterator
import math
import struct
from typing import Any, NamedTuple, TypeAlias

INT64, FLOAT, DOUBLE = 7, 1, 11
"""Element types, as onnx.proto numbers them."""
ITEM_BYTES = {INT64: 8, FLOAT: 4, DOUBLE: 8}

Value = int | float | str | tuple[int, ...]
"""Of an attribute."""


class MisfitError(Exception):
    """A file is no graph that a policy needs; the text says what of it."""


class Node(NamedTuple):
    """An operator with its inputs, outputs and attributes."""

    operator: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: dict[str, Value]


class Tensor(NamedTuple):
    """A constant."""

    name: str
    kind: int
    """INT64, FLOAT or DOUBLE."""
    shape: tuple[int, ...]
    data: memoryview

    def whole_numbers(self) -> tuple[int, ...]:
        """Return the entries of a constant of INT64, row by row."""
        return struct.unpack(f'<{len(self.data) // ITEM_BYTES[INT64]}q', self.data)


class End(NamedTuple):
    """An input or output of the graph."""

    name: str
    shape: tuple[int | str, ...]
    """With the name of an axis whose length is free."""


class Graph(NamedTuple):
    """All of a file that matters."""

    opset: int
    nodes: tuple[Node, ...]
    tensors: tuple[Tensor, ...]
    inputs: tuple[End, ...]
    outputs: tuple[End, ...]


class Field(NamedTuple):
    """A field of a message, as onnx.proto has it."""

    name: str
    kind: str
    """One of the words below, or the message that the field holds."""
    is_repeated: bool = False


INTEGER, SINGLE, TEXT, DATA = 'a whole number', 'a number', 'a text', 'data'
MESSAGES: dict[str, dict[int, Field]] = {
    'model': {
        1: Field('ir_version', INTEGER),
        2: Field('producer_name', TEXT),
        3: Field('producer_version', TEXT),
        7: Field('graph', 'graph'),
        8: Field('opset', 'opset', is_repeated=True),
    },
    'opset': {2: Field('version', INTEGER)},
    'graph': {
        1: Field('nodes', 'node', is_repeated=True),
        2: Field('name', TEXT),
        5: Field('tensors', 'tensor', is_repeated=True),
        11: Field('inputs', 'end', is_repeated=True),
        12: Field('outputs', 'end', is_repeated=True),
    },
    'node': {
        1: Field('inputs', TEXT, is_repeated=True),
        2: Field('outputs', TEXT, is_repeated=True),
        3: Field('name', TEXT),
        4: Field('operator', TEXT),
        5: Field('attributes', 'attribute', is_repeated=True),
    },
    'attribute': {
        1: Field('name', TEXT),
        2: Field('single', SINGLE),
        3: Field('integer', INTEGER),
        4: Field('text', TEXT),
        8: Field('integers', INTEGER, is_repeated=True),
        20: Field('type', INTEGER),
    },
    'tensor': {
        1: Field('shape', INTEGER, is_repeated=True),
        2: Field('kind', INTEGER),
        8: Field('name', TEXT),
        9: Field('data', DATA),
    },
    'end': {1: Field('name', TEXT), 2: Field('type', 'type')},
    'type': {1: Field('tensor', 'tensor type')},
    'tensor type': {1: Field('kind', INTEGER), 2: Field('shape', 'shape')},
    'shape': {1: Field('axes', 'axis', is_repeated=True)},
    'axis': {1: Field('length', INTEGER), 2: Field('name', TEXT)},
}
"""Of onnx.proto, what the exporter writes."""
ATTRIBUTE_TYPES = {1: 'single', 2: 'integer', 3: 'text', 7: 'integers'}
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
"""Names for what is refused; any other field is named by its number."""

MAX_FIELDS = 100_000
"""A policy has a few thousand; a file with more is not walked to its end."""
MAX_CHARACTERS = 256
"""Of a name."""
VARINT, FIXED_64, LENGTH, FIXED_32 = 0, 1, 2, 5
"""Wire types of protobuf."""
WIRE_OF = {INTEGER: VARINT, SINGLE: FIXED_32}
"""Of the other kinds it is LENGTH."""
FIXED_BYTES = {FIXED_64: 8, FIXED_32: 4}
VARINT_BITS = 64


Message: TypeAlias = dict[str, list[Any]]
"""The values of the fields that occur, by their names, each as often as it occurs."""


def read_graph(data: bytes) -> Graph:
    """Return the graph of an ONNX file; MisfitError if it is not plain and self-contained."""
    model = read_model(data)
    graph: Message = model['graph'][0]
    return Graph(
        opset=_only(model['opset'][0], 'version', 0),
        nodes=tuple(map(_node, graph.get('nodes', ()))),
        tensors=tuple(map(_tensor, graph.get('tensors', ()))),
        inputs=tuple(map(_end, graph.get('inputs', ()))),
        outputs=tuple(map(_end, graph.get('outputs', ()))),
    )


def read_model(data: bytes) -> Message:
    """Return all of an ONNX file as messages; MisfitError as for `read_graph`."""
    model = _Reader().read('model', memoryview(data))
    if len(model.get('opset', ())) != 1 or 'graph' not in model:
        raise damaged()
    return model


def needless(thing: str) -> MisfitError:
    """Return the refusal of a file that holds something."""
    return MisfitError(f'holds {thing}, which no policy needs')


def damaged() -> MisfitError:
    """Return the refusal of a file that is not what it should be."""
    return MisfitError('is not an ONNX file, or a damaged one')


class _Reader:
    """Reads messages, and counts their fields."""

    def __init__(self) -> None:
        self._num_fields = 0

    def read(self, kind: str, data: memoryview) -> Message:
        """Return the fields of a message; MESSAGES is a tree, so this ends."""
        message: Message = {}
        for number, wire, part in _fields(data):
            self._count()
            field = MESSAGES[kind].get(number)
            if field is None:
                raise needless(REFUSED.get((kind, number), f'field {number} of its {kind}'))
            values = message.setdefault(field.name, [])
            if wire == LENGTH and field.kind == INTEGER and field.is_repeated:
                values += self._packed(part)
            elif wire != WIRE_OF.get(field.kind, LENGTH) or (values and not field.is_repeated):
                raise damaged()
            else:
                values.append(self._value(field.kind, part))
        return message

    def _count(self) -> None:
        self._num_fields += 1
        if self._num_fields > MAX_FIELDS:
            raise needless(f'more than {MAX_FIELDS} fields')

    def _packed(self, data: memoryview) -> Iterator[int]:
        """Yield whole numbers that lie side by side, each counted as a field."""
        at = 0
        while at < len(data):
            self._count()
            value, at = _varint(data, at)
            yield _signed(value)

    def _value(self, kind: str, part: memoryview) -> Any:
        """Return the value of a field of some kind."""
        if kind == INTEGER:
            return _signed(_varint(part, 0)[0])
        if kind == SINGLE:
            return struct.unpack('<f', part)[0]
        if kind == DATA:
            return part
        return _text(part) if kind == TEXT else self.read(kind, part)


def _text(part: memoryview) -> str:
    if len(part) > MAX_CHARACTERS:
        raise needless(f'a name of {len(part)} letters')
    text = bytes(part).decode('ascii', errors='replace')
    if not text.isprintable() or '\ufffd' in text:
        raise needless(f'the unprintable name {text!r}')
    return text


def _only(message: Message, name: str, default: Any) -> Any:
    """Return the value of a field that occurs at most once."""
    return message.get(name, [default])[0]


def _node(message: Message) -> Node:
    attributes: dict[str, Value] = {}
    for entry in message.get('attributes', ()):
        name, kind = _only(entry, 'name', ''), ATTRIBUTE_TYPES.get(_only(entry, 'type', 0))
        if kind is None or name in attributes or not entry.keys() <= {kind, 'name', 'type'}:
            raise damaged()
        # One that is left out is zero or empty.
        values = entry.get(kind, [] if kind == 'integers' else ['' if kind == 'text' else 0])
        attributes[name] = tuple(values) if kind == 'integers' else values[0]
    inputs, outputs = (tuple(message.get(end, ())) for end in ('inputs', 'outputs'))
    return Node(_only(message, 'operator', ''), inputs, outputs, attributes)


def _tensor(message: Message) -> Tensor:
    kind, shape = _only(message, 'kind', 0), tuple(message.get('shape', ()))
    name, data = _only(message, 'name', ''), _only(message, 'data', memoryview(b''))
    if kind not in ITEM_BYTES:
        raise needless(f'the constant {name!r} of element type {kind}')
    if min(shape, default=1) < 1 or math.prod(shape) * ITEM_BYTES[kind] != len(data):
        raise MisfitError(f'has the constant {name!r} of shape {shape} in {len(data)} bytes')
    return Tensor(name, kind, shape, data)


def _end(message: Message) -> End:
    tensor = _only(_only(message, 'type', {}), 'tensor', {})
    axes: list[Message] = _only(tensor, 'shape', {}).get('axes', [])
    if not axes or any(len(axis) != 1 for axis in axes):  # a length or a name
        raise damaged()
    shape = tuple(length for axis in axes for (length,) in axis.values())
    return End(_only(message, 'name', ''), shape)


def _fields(data: memoryview) -> Iterator[tuple[int, int, memoryview]]:
    """Yield number, wire type and value of every field; of a varint or fixed number, its bytes."""
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        number, wire = key >> 3, key & 7
        begin = at
        if wire == VARINT:
            _, at = _varint(data, at)
        elif wire == LENGTH:
            size, begin = _varint(data, at)
            at = begin + size
        elif wire in FIXED_BYTES:
            at += FIXED_BYTES[wire]
        else:
            at = len(data) + 1
        if at > len(data):
            raise damaged()
        yield number, wire, data[begin:at]


def _varint(data: memoryview, at: int) -> tuple[int, int]:
    """Return the number at an index, seven bits per byte, and the index behind it."""
    value = 0
    for shift in range(0, VARINT_BITS, 7):
        if at >= len(data):
            break
        byte, at = data[at], at + 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
    raise damaged()


def _signed(value: int) -> int:
    """Return a varint as the signed number of 64 bits that it stands for."""
    value %= 2**VARINT_BITS
    return value - 2**VARINT_BITS if value >= 2 ** (VARINT_BITS - 1) else value
