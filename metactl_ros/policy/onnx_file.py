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
from dataclasses import dataclass, field
import math
from pathlib import Path
import struct
from typing import NamedTuple

from metactl_ros.errors import BundleError

INT64, FLOAT, DOUBLE = 7, 1, 11
"""Element types, as onnx.proto numbers them."""
ITEM_BYTES = {INT64: 8, FLOAT: 4, DOUBLE: 8}

Value = int | float | str | tuple[int, ...]
"""Of an attribute."""


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
    kind: int
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


@dataclass(slots=True)
class Message:
    """The fields of a message that occur, by type and name, each as often as it occurs."""

    integers: dict[str, list[int]] = field(default_factory=dict)
    singles: dict[str, list[float]] = field(default_factory=dict)
    texts: dict[str, list[str]] = field(default_factory=dict)
    data: dict[str, list[memoryview]] = field(default_factory=dict)
    messages: dict[str, list['Message']] = field(default_factory=dict)

    def names(self) -> set[str]:
        """Return the names of the fields that occur."""
        return {*self.integers, *self.singles, *self.texts, *self.data, *self.messages}

    def integer(self, name: str) -> int:
        """Return a number that occurs at most once; 0 where it does not, as in protobuf."""
        return self.integers.get(name, [0])[0]

    def text(self, name: str) -> str:
        """Return a text that occurs at most once; empty where it does not."""
        return self.texts.get(name, [''])[0]

    def message(self, name: str) -> 'Message':
        """Return a message that occurs at most once; an empty one where it does not."""
        return self.messages.get(name, [Message()])[0]

    def every(self, name: str) -> list['Message']:
        """Return all messages of a name."""
        return self.messages.get(name, [])


def read_graph(where: Path, data: bytes) -> Graph:
    """Return the graph of an ONNX file that is plain and self-contained.

    Raises:
        BundleError: If it is not.
    """
    model = _Reader(where).read('model', memoryview(data))
    if len(model.every('opset')) != 1 or 'graph' not in model.messages:
        raise damaged(where)
    graph = model.message('graph')
    return Graph(
        opset=model.message('opset').integer('version'),
        nodes=tuple(_node(where, message) for message in graph.every('nodes')),
        tensors=tuple(_tensor(where, message) for message in graph.every('tensors')),
        inputs=tuple(_end(where, message) for message in graph.every('inputs')),
        outputs=tuple(_end(where, message) for message in graph.every('outputs')),
    )


def needless(where: Path, thing: str) -> BundleError:
    """Return the refusal of a file that holds something."""
    return BundleError(
        f'{where}: holds {thing}, which no policy needs; export it again with '
        'python -m training.export.'
    )


def damaged(where: Path) -> BundleError:
    """Return the refusal of a file that is not what it should be."""
    return BundleError(f'{where}: not an ONNX file, or a damaged one; export it again.')


class _Reader:
    """Reads messages, and counts their fields."""

    def __init__(self, where: Path) -> None:
        self._where, self._num_fields = where, 0

    def read(self, kind: str, data: memoryview) -> Message:
        """Return the fields of a message; MESSAGES is a tree, so this ends."""
        known, message = MESSAGES[kind], Message()
        for number, wire, part in _fields(self._where, data):
            self._count()
            spec = known.get(number)
            if spec is None:
                thing = REFUSED.get((kind, number), f'field {number} of its {kind}')
                raise needless(self._where, thing)
            if wire == LENGTH and spec.kind == INTEGER and spec.is_repeated:
                for value in self._packed(part):
                    message.integers.setdefault(spec.name, []).append(value)
                continue
            is_again = not spec.is_repeated and spec.name in message.names()
            if is_again or wire != WIRE_OF.get(spec.kind, LENGTH):
                raise damaged(self._where)
            self._add(message, spec, part)
        return message

    def _count(self) -> None:
        self._num_fields += 1
        if self._num_fields > MAX_FIELDS:
            raise needless(self._where, f'more than {MAX_FIELDS} fields')

    def _packed(self, data: memoryview) -> list[int]:
        """Return whole numbers that lie side by side, each counted as a field."""
        values, at = [], 0
        while at < len(data):
            self._count()
            value, at = _varint(self._where, data, at)
            values.append(_signed(value))
        return values

    def _add(self, message: Message, spec: Field, part: memoryview) -> None:
        """Note one more value of a field."""
        name, kind = spec.name, spec.kind
        if kind == INTEGER:
            value = _signed(_varint(self._where, part, 0)[0])
            message.integers.setdefault(name, []).append(value)
        elif kind == SINGLE:
            message.singles.setdefault(name, []).append(struct.unpack('<f', part)[0])
        elif kind == DATA:
            message.data.setdefault(name, []).append(part)
        elif kind == TEXT:
            message.texts.setdefault(name, []).append(self._text(part))
        else:
            message.messages.setdefault(name, []).append(self.read(kind, part))

    def _text(self, part: memoryview) -> str:
        if len(part) > MAX_CHARACTERS:
            raise needless(self._where, f'a name of {len(part)} letters')
        text = bytes(part).decode('ascii', errors='replace')
        if not text.isprintable() or '\ufffd' in text:
            raise needless(self._where, f'the unprintable name {text!r}')
        return text


def _node(where: Path, message: Message) -> Node:
    attributes: dict[str, Value] = {}
    for entry in message.every('attributes'):
        name, kind = entry.text('name'), ATTRIBUTE_TYPES.get(entry.integer('type'))
        if kind is None or name in attributes or not entry.names() <= {kind, 'name', 'type'}:
            raise damaged(where)
        attributes[name] = _attribute(kind, entry)
    inputs, outputs = (tuple(message.texts.get(end, ())) for end in ('inputs', 'outputs'))
    return Node(message.text('operator'), inputs, outputs, attributes)


def _attribute(kind: str, entry: Message) -> Value:
    """Return the value of an attribute; one that is left out is zero or empty."""
    if kind == 'integers':
        return tuple(entry.integers.get(kind, ()))
    if kind == 'text':
        return entry.text(kind)
    return entry.singles[kind][0] if kind in entry.singles else entry.integer(kind)


def _tensor(where: Path, message: Message) -> Tensor:
    kind, shape = message.integer('kind'), tuple(message.integers.get('shape', ()))
    name, data = message.text('name'), message.data.get('data', [memoryview(b'')])[0]
    if kind not in ITEM_BYTES:
        raise needless(where, f'the constant {name!r} of element type {kind}')
    if min(shape, default=1) < 1 or math.prod(shape) * ITEM_BYTES[kind] != len(data):
        raise BundleError(
            f'{where}: the constant {name!r} of shape {shape} has {len(data)} bytes; export it '
            'again.'
        )
    return Tensor(name, kind, shape, data)


def _end(where: Path, message: Message) -> End:
    tensor = message.message('type').message('tensor')
    axes = tensor.message('shape').every('axes')
    if not axes or any(len(axis.names()) != 1 for axis in axes):  # a length or a name
        raise damaged(where)
    shape = tuple(axis.text('name') if axis.texts else axis.integer('length') for axis in axes)
    return End(message.text('name'), tensor.integer('kind'), shape)


def _fields(where: Path, data: memoryview) -> Iterator[tuple[int, int, memoryview]]:
    """Yield number, wire type and value of every field; of a varint or fixed number, its bytes."""
    at = 0
    while at < len(data):
        key, at = _varint(where, data, at)
        number, wire = key >> 3, key & 7
        begin = at
        if wire == VARINT:
            _, at = _varint(where, data, at)
        elif wire == LENGTH:
            size, begin = _varint(where, data, at)
            at = begin + size
        elif wire in FIXED_BYTES:
            at += FIXED_BYTES[wire]
        else:
            at = len(data) + 1
        if at > len(data):
            raise damaged(where)
        yield number, wire, data[begin:at]


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
    raise damaged(where)


def _signed(value: int) -> int:
    """Return a varint as the signed number of 64 bits that it stands for."""
    value %= 2**VARINT_BITS
    return value - 2**VARINT_BITS if value >= 2 ** (VARINT_BITS - 1) else value
