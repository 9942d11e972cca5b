# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""Refuses an ONNX graph unless the size of all it computes is known before it runs, and small.

Only the operators below may occur, with attributes that are listed here, too. Whatever decides the
shape of a result (the target of a Reshape, the ends of a Slice, the index of a Gather) must be a
constant of the file. Every shape then follows from that of the window, by the rules of this
module, and so do the memory and the work of a run: neither depends on what the arm does, and no
constant can be folded into gigabytes. Operators come after what they read, so there is no loop.
"""

from collections.abc import Callable, Mapping
import math
from pathlib import Path
from typing import NamedTuple

from metactl_ros.errors import BundleError
from metactl_ros.policy.onnx_file import (
    DOUBLE,
    End,
    FLOAT,
    Graph,
    INT64,
    MisfitError,
    needless,
    Node,
    read_graph,
    Tensor,
    Value,
)

Shape = tuple[int, ...]

OPSET = 20
"""Of ONNX, whose rules these are; the first with GELU."""
MAX_NODES = 1000
"""The largest network of `training.learn.networks` has about a hundred; none is deeper than it is
long."""
MAX_ELEMENTS, MAX_AXES = 2**20, 8
"""Of any tensor, for one window; the largest network has a hundredth, and five axes."""
MAX_OPERATIONS = 2**25
"""Multiplications, for one window: a few times what fits into the budget of a tick."""
OPERATIONS_PER_ELEMENT = 16
"""What an element of any result counts for: a copy costs less, a GELU about this."""
MAX_ENTRIES = 64
"""Of a constant that decides a shape."""


class Rule(NamedTuple):
    """What is known of an operator."""

    infer: Callable[['Call'], list[Shape]]
    num_inputs: tuple[int, int]
    attributes: Mapping[str, tuple[Value, ...] | type[Value]]
    """The values that an attribute may have, or their type."""


class Call:
    """A node in its place: the shapes of its inputs, and its constants."""

    def __init__(
        self, node: Node, shapes: Mapping[str, Shape], constants: Mapping[str, Tensor]
    ) -> None:
        self._node, self._constants = node, constants
        self.shapes = [shapes[name] for name in node.inputs]
        self.num_outputs = len(node.outputs)

    @property
    def first(self) -> Shape:
        """The shape of the first input."""
        return self.shapes[0]

    def attribute(self, name: str, default: int) -> int:
        """Return an attribute that is a whole number."""
        value = self._node.attributes.get(name, default)
        assert isinstance(value, int)  # its rule says so
        return value

    def integers(self, name: str) -> Shape:
        """Return an attribute that is a list of whole numbers."""
        value = self._node.attributes.get(name, ())
        assert isinstance(value, tuple)
        return value

    def constant(self, number: int) -> tuple[int, ...]:
        """Return the entries of an input that decides a shape."""
        tensor = self._constants.get(self._node.inputs[number])
        if tensor is None or tensor.kind != INT64 or math.prod(tensor.shape) > MAX_ENTRIES:
            raise MisfitError(f'decides a shape by {self._node.inputs[number]!r}, no constant')
        return tensor.whole_numbers()

    def axis(self, rank: int, default: int | None = None) -> int:
        """Return the attribute `axis`, from 0."""
        if default is None and 'axis' not in self._node.attributes:
            raise MisfitError('has no axis')
        return place(self.attribute('axis', default or 0), rank)


def check_graph(where: Path, data: bytes) -> dict[str, Shape]:
    """Return the shape of whatever an ONNX file holds or computes for one window, by name.

    Raises:
        BundleError: If it is anything but a plain network of known size; says what is wrong.
    """
    try:
        return _all_shapes(read_graph(data))
    except MisfitError as error:
        raise BundleError(
            f'{where}: {error}; export it again with python -m training.export.'
        ) from None


def _all_shapes(graph: Graph) -> dict[str, Shape]:
    if graph.opset != OPSET:
        raise MisfitError(f'expected version {OPSET} of the ONNX operators, found {graph.opset}')
    if len(graph.nodes) > MAX_NODES:
        raise needless(f'more than {MAX_NODES} operators')
    shapes = _given(graph)
    constants = {tensor.name: tensor for tensor in graph.tensors}
    num_operations = 0
    for node in graph.nodes:
        rule = OPERATORS.get(node.operator)
        if rule is None:
            raise needless(f'the operator {node.operator!r}')
        try:
            results, num_more = _infer(node, rule, shapes, constants)
        except MisfitError as error:
            raise MisfitError(f'its {node.operator} {node.outputs[:1]} {error}') from None
        num_operations += num_more
        if num_operations > MAX_OPERATIONS:
            raise needless(f'more than {MAX_OPERATIONS} operations')
        shapes |= results
    for end in graph.outputs:
        if end.name not in shapes:
            raise MisfitError(f'nothing computes its output {end.name!r}')
    return shapes


def _given(graph: Graph) -> dict[str, Shape]:
    """Return the shapes of inputs, for one window, and of constants, by name."""
    shapes: dict[str, Shape] = {}
    entries: list[End | Tensor] = [*graph.inputs, *graph.tensors]
    for entry in entries:
        shape = tuple(1 if isinstance(length, str) else length for length in entry.shape)
        if not is_small(shape):
            raise needless(f'{entry.name!r} of shape {shape[: MAX_AXES + 1]}')
        if entry.name in shapes or not entry.name:
            raise MisfitError(f'defines {entry.name!r} twice')
        shapes[entry.name] = shape
    return shapes


def _infer(
    node: Node, rule: Rule, shapes: Mapping[str, Shape], constants: Mapping[str, Tensor]
) -> tuple[dict[str, Shape], int]:
    """Return the shapes of a node's outputs, and how many operations they take."""
    least, most = rule.num_inputs
    if not least <= len(node.inputs) <= most:
        raise MisfitError(f'has {len(node.inputs)} inputs, expected {least} to {most}')
    for name in node.inputs:
        if name not in shapes:
            raise MisfitError(f'reads {name!r}, which nothing before it computes')
    for name, value in node.attributes.items():
        allowed = rule.attributes.get(name, ())
        kinds = {type(x) for x in allowed} if isinstance(allowed, tuple) else {allowed}
        if type(value) not in kinds or (isinstance(allowed, tuple) and value not in allowed):
            raise MisfitError(f'has {name} = {value!r}')
    call = Call(node, shapes, constants)
    results = rule.infer(call)
    if len(results) != len(node.outputs):
        raise MisfitError(f'has {len(node.outputs)} outputs, expected {len(results)}')
    found = dict(zip(node.outputs, results, strict=True))
    if len(found) < len(results) or not found.keys().isdisjoint(shapes) or '' in found:
        raise MisfitError('has an output whose name is taken')
    for shape in results:
        if not is_small(shape):
            raise MisfitError(
                f'makes a tensor of shape {shape}, expected 1 to {MAX_ELEMENTS} entries'
            )
    elements = sum(math.prod(shape) for shape in results)
    return found, elements * OPERATIONS_PER_ELEMENT + _multiplications(node, call, results)


def is_small(shape: Shape) -> bool:
    """Return whether a tensor may have this shape."""
    size = math.prod(shape) if len(shape) <= MAX_AXES and min(shape, default=1) > 0 else 0
    return 0 < size <= MAX_ELEMENTS


def _multiplications(node: Node, call: Call, results: list[Shape]) -> int:
    """Return how many multiplications a product of matrices takes."""
    if node.operator == 'GRU':
        num_rows, num_windows, num_features = call.first
        width = results[1][-1]
        return 3 * num_rows * num_windows * width * (num_features + width)
    if node.operator == 'Gemm':
        return math.prod(call.first) * results[0][-1]
    if node.operator == 'MatMul':
        return math.prod(results[0]) * call.first[-1]
    return 0


# Rules, in the order of the table at the end; each returns the shapes of the outputs.


def place(axis: int, rank: int) -> int:
    """Return an axis, which may count from the end, from 0."""
    if not -rank <= axis < rank:
        raise MisfitError(f'has no axis {axis} in {rank} axes')
    return axis % rank


def broadcast(first: Shape, second: Shape) -> Shape:
    """Return the shape of an elementwise result."""
    rank = max(len(first), len(second))
    pairs = zip(*((1,) * (rank - len(shape)) + shape for shape in (first, second)), strict=True)
    result = []
    for one, other in pairs:
        if 1 not in (one, other) and one != other:
            raise MisfitError(f'joins shapes {first} and {second}')
        result.append(max(one, other))
    return tuple(result)


def _broadcast(call: Call) -> list[Shape]:
    return [broadcast(*call.shapes)]


def _same(call: Call) -> list[Shape]:
    return [call.first]


def _along_axis(call: Call) -> list[Shape]:
    call.axis(len(call.first), default=-1)
    return [call.first]


def _concat(call: Call) -> list[Shape]:
    axis = call.axis(len(call.first))
    rest = {(*shape[:axis], *shape[axis + 1 :]) for shape in call.shapes}
    ranks = {len(shape) for shape in call.shapes}
    if len(rest) != 1 or len(ranks) != 1:
        raise MisfitError(f'joins shapes {call.shapes}')
    length = sum(shape[axis] for shape in call.shapes)
    return [(*call.first[:axis], length, *call.first[axis + 1 :])]


def _gru(call: Call) -> list[Shape]:
    width = call.attribute('hidden_size', 0)
    if len(call.first) != 3 or width < 1:
        raise MisfitError(f'has an input of shape {call.first} and a width of {width}')
    num_rows, num_windows, num_features = call.first
    expected = [(1, 3 * width, num_features), (1, 3 * width, width), (1, 6 * width)]
    if call.shapes[1:] != expected:
        raise MisfitError(f'has weights of shapes {call.shapes[1:]}, expected {expected}')
    return [(num_rows, 1, num_windows, width), (1, num_windows, width)]


def _gather(call: Call) -> list[Shape]:
    axis = call.axis(len(call.first), default=0)
    for index in call.constant(1):
        place(index, call.first[axis])
    return [(*call.first[:axis], *call.shapes[1], *call.first[axis + 1 :])]


def _gemm(call: Call) -> list[Shape]:
    first, second = call.shapes[:2]
    if len(first) != 2 or len(second) != 2:
        raise MisfitError(f'multiplies shapes {first} and {second}')
    if call.attribute('transB', 0):
        second = second[::-1]
    if first[1] != second[0]:
        raise MisfitError(f'multiplies shapes {first} and {second}')
    result = (first[0], second[1])
    for bias in call.shapes[2:]:
        if broadcast(result, bias) != result:
            raise MisfitError(f'adds shape {bias} to {result}')
    return [result]


def _layer_norm(call: Call) -> list[Shape]:
    if any(shape != call.first[-1:] for shape in call.shapes[1:]) or not call.first:
        raise MisfitError(f'scales shape {call.first} by {call.shapes[1:]}')
    return [call.first]


def _matmul(call: Call) -> list[Shape]:
    first, second = call.shapes
    if not first or len(second) < 2 or first[-1] != second[-2]:
        raise MisfitError(f'multiplies shapes {first} and {second}')
    return [(*broadcast(first[:-2], second[:-2]), *first[-2:-1], second[-1])]


def _pad(call: Call) -> list[Shape]:
    pads, rank = call.constant(1), len(call.first)
    if len(pads) != 2 * rank or min(pads, default=0) < 0:
        raise MisfitError(f'pads shape {call.first} by {pads}')
    return [tuple(a + n + b for a, n, b in zip(pads[:rank], call.first, pads[rank:], strict=True))]


def _reshape(call: Call) -> list[Shape]:
    target, size = list(call.constant(1)), math.prod(call.first)
    if target.count(-1) > 1 or any(length < 1 and length != -1 for length in target):
        raise MisfitError(f'reshapes {call.first} to {target}')
    if -1 in target:
        target[target.index(-1)] = size // math.prod(n for n in target if n != -1)
    if math.prod(target) != size:
        raise MisfitError(f'reshapes {call.first} to {target}')
    return [tuple(target)]


def _slice(call: Call) -> list[Shape]:
    lists = [call.constant(number) for number in range(1, len(call.shapes))]
    begins, ends = lists[:2]
    axes = lists[2] if len(lists) > 2 else tuple(range(len(begins)))
    steps = lists[3] if len(lists) > 3 else (1,) * len(begins)
    if len({len(entries) for entries in (begins, ends, axes, steps)}) != 1 or set(steps) != {1}:
        raise MisfitError(f'slices {call.first} from {begins} to {ends} by {steps}')
    result = list(call.first)
    for begin, end, axis in zip(begins, ends, axes, strict=True):
        at = place(axis, len(result))
        result[at] = len(range(call.first[at])[begin:end])
    return [tuple(result)]


def _split(call: Call) -> list[Shape]:
    axis = call.axis(len(call.first), default=0)
    length, count = call.first[axis], call.num_outputs
    parts = call.constant(1) if len(call.shapes) > 1 else (length // max(count, 1),) * count
    if sum(parts) != length or min(parts, default=0) < 1:
        raise MisfitError(f'splits {length} into {parts}')
    return [(*call.first[:axis], part, *call.first[axis + 1 :]) for part in parts]


def _squeeze(call: Call) -> list[Shape]:
    axes = {place(axis, len(call.first)) for axis in call.constant(1)}
    if any(call.first[axis] != 1 for axis in axes):
        raise MisfitError(f'squeezes {call.first} at {sorted(axes)}')
    return [tuple(length for axis, length in enumerate(call.first) if axis not in axes)]


def _transpose(call: Call) -> list[Shape]:
    order = call.integers('perm')
    if sorted(order) != list(range(len(call.first))):
        raise MisfitError(f'orders {len(call.first)} axes by {order}')
    return [tuple(call.first[axis] for axis in order)]


OPERATORS: dict[str, Rule] = {
    'Add': Rule(_broadcast, (2, 2), {}),
    'Cast': Rule(_same, (1, 1), {'to': (FLOAT, DOUBLE)}),
    'Concat': Rule(_concat, (1, 16), {'axis': int}),
    'GRU': Rule(_gru, (4, 4), {'hidden_size': int, 'linear_before_reset': (0, 1)}),
    'Gather': Rule(_gather, (2, 2), {'axis': int}),
    'Gelu': Rule(_same, (1, 1), {'approximate': ('none',)}),
    'Gemm': Rule(_gemm, (2, 3), {'alpha': float, 'beta': float, 'transA': (0,), 'transB': (0, 1)}),
    'LayerNormalization': Rule(
        _layer_norm, (2, 3), {'axis': (-1,), 'epsilon': float, 'stash_type': (1,)}
    ),
    'LpNormalization': Rule(_along_axis, (1, 1), {'axis': int, 'p': (2,)}),
    'MatMul': Rule(_matmul, (2, 2), {}),
    'Mul': Rule(_broadcast, (2, 2), {}),
    'Pad': Rule(_pad, (2, 2), {'mode': ('constant',)}),
    'Relu': Rule(_same, (1, 1), {}),
    'Reshape': Rule(_reshape, (2, 2), {'allowzero': (0, 1)}),
    'Slice': Rule(_slice, (3, 5), {}),
    'Softmax': Rule(_along_axis, (1, 1), {'axis': int}),
    'Split': Rule(_split, (1, 2), {'axis': int, 'num_outputs': int}),
    'Squeeze': Rule(_squeeze, (2, 2), {}),
    'Tanh': Rule(_same, (1, 1), {}),
    'Transpose': Rule(_transpose, (1, 1), {'perm': tuple}),
}
"""What the exporter makes of the networks of `training.learn.networks`."""
