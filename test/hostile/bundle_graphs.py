# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""Makers of hostile bundles whose network is spoilt: bytes, structure, operators, sizes, weights.

Each is like those of `bundles`; the seal is valid.
"""

import os

import numpy as np
import onnx
from onnx import AttributeProto, helper, numpy_helper, TensorProto
from support.bundles import reseal

from hostile.runs import pick, REFUSED

node = helper.make_node


def _changed(bundle, change):
    """Change the network of a bundle as protobuf, and seal it again."""
    model = onnx.load_from_string((bundle / 'policy.onnx').read_bytes())
    change(model)
    return reseal(bundle, policy_onnx=model.SerializeToString())


def _insert(bundle, nodes, constants):
    """Let nodes make a number `more`, which is added to the action."""

    def change(model):
        graph = model.graph
        last = graph.node[-1]
        last.output[0] = 'before'
        for one in nodes:
            one.ClearField('domain')
            graph.node.append(one)
        graph.node.append(node('Add', ['before', 'more'], ['action']))
        graph.node[-1].ClearField('domain')
        for name, value in constants.items():
            graph.initializer.append(numpy_helper.from_array(np.asarray(value), name))

    return _changed(bundle, change)


def broken_bytes(bundle, rng):
    data = (bundle / 'policy.onnx').read_bytes()
    at = int(rng.integers(1, len(data) - 1))
    choices = [
        data[:at],
        data[at:],
        data[at:] + data[:at],
        data + data,
        data + b'\x3a\x00',
        data[:100] + rng.bytes(int(rng.integers(1, 5000))) + data[100:],
        rng.bytes(int(rng.integers(1, 100_000))),
        b'\x0a\xff\xff\xff\xff\x0f' + data,
        b'\x3a' * 100_000,
        b'\x80' * 100_000,
        b'\x08' + b'\x80' * 9 + b'\x02',
        b'\x3a\x84\x80\x80\x80\x00' + data,
        b'\x0b' * 50_000 + b'\x0c' * 50_000,
        b'\x42\x00' * 200_000,
        b'\x3a\x7f' + b'\x0a\x7d' * 60,
    ]
    return reseal(bundle, policy_onnx=pick(rng, choices))


OTHERS = (
    'Loop If Scan NonZero Unique Compress Range Expand Tile ConstantOfShape Where Shape Trilu '
    'Equal Constant Identity RandomNormal RandomUniform Multinomial Bernoulli Einsum Conv MaxPool '
    'ConvTranspose Resize Upsample GridSample RoiAlign NonMaxSuppression TopK CumSum ScatterND '
    'ScatterElements GatherND GatherElements OneHot EyeLike LSTM RNN Dropout StringNormalizer '
    'TfIdfVectorizer RegexFullMatch StringSplit ImageDecoder Optional SequenceConstruct DFT STFT '
    'SplitToSequence ConcatFromSequence Det ReduceSum ReduceMax Exp Pow Sqrt Div Sub Max Clip Erf '
    'QuantizeLinear DynamicQuantizeLinear MatMulInteger Attention com.microsoft.Attention '
    'ai.onnx.ml.TreeEnsembleClassifier Nonsense'
)


def other_operator(bundle, rng):
    """Put an operator somewhere that no policy has."""
    kind = pick(rng, OTHERS.split())

    def change(model):
        one = pick(rng, model.graph.node)
        domain, _, one.op_type = kind.rpartition('.')
        if domain:
            one.domain = domain

    return _changed(bundle, change)


def _expanded(size, value=1.0):
    constants = {'unit': np.array([value], np.float32), 'size': np.array(size)}
    return node('Expand', ['unit', 'size'], ['big']), constants


def folded_with_other_operators(bundle, rng):
    """Let constants take gigabytes, minutes or less than nothing to fold, or the data decide."""
    least = node('ReduceMax', ['big'], ['more'], keepdims=0)
    kind = pick(rng, ['gigabytes', 'minutes', 'negative', 'range', 'nonzero', 'loop', 'tile'])
    if kind == 'gigabytes':
        expand, constants = _expanded([2 ** int(rng.integers(28, 40))])
        return _insert(bundle, [expand, least], constants)
    if kind == 'minutes':
        expand, constants = _expanded([2000, 2000], 1e-3)
        nodes = [node('MatMul', [f'big{k or ""}', 'big'], [f'big{k + 1}']) for k in range(300)]
        largest = node('ReduceMax', ['big300'], ['more'])
        return _insert(bundle, [expand, *nodes, largest], constants)
    if kind == 'negative':
        expand, constants = _expanded([-int(rng.integers(1, 2**40))])
        constants |= {'zero': np.array([0]), 'eight': np.array([8])}
        part = node('Slice', ['big', 'zero', 'eight', 'zero'], ['part'])
        return _insert(bundle, [expand, part, node('ReduceMax', ['part'], ['more'])], constants)
    if kind == 'range':
        nodes = [
            node('ReduceMax', ['window'], ['largest'], keepdims=0),
            node('Mul', ['largest', 'huge'], ['length']),
            node('Cast', ['length'], ['entries'], to=7),
            node('Range', ['none', 'entries', 'one'], ['numbers']),
            node('Cast', ['numbers'], ['big'], to=1),
        ]
        constants = {'huge': np.float32(1e9), 'none': np.int64(0), 'one': np.int64(1)}
        return _insert(bundle, [*nodes, least], constants)
    if kind == 'nonzero':
        nodes = [node('NonZero', ['window'], ['places']), node('Cast', ['places'], ['big'], to=1)]
        return _insert(bundle, [*nodes, least], {})
    if kind == 'tile':
        times = {'times': np.array([10**4] * 3)}
        return _insert(bundle, [node('Tile', ['window', 'times'], ['big']), least], times)
    return _insert(bundle, [_endless_loop()], {'many': np.int64(2**62), 'true': np.array(True)})


def _endless_loop():
    inner = helper.make_graph(
        [node('Identity', ['go_on'], ['goes_on']), node('Identity', ['x'], ['y'])],
        'body',
        [
            helper.make_tensor_value_info('k', TensorProto.INT64, []),
            helper.make_tensor_value_info('go_on', TensorProto.BOOL, []),
            helper.make_tensor_value_info('x', TensorProto.FLOAT, []),
        ],
        [
            helper.make_tensor_value_info('goes_on', TensorProto.BOOL, []),
            helper.make_tensor_value_info('y', TensorProto.FLOAT, []),
        ],
    )
    return node('Loop', ['many', 'true', 'many'], ['more'], body=inner)


def folded_with_known_operators(bundle, rng):
    """The same with what a policy may have: sizes that grow, products without end."""
    kind = pick(rng, ['doubling', 'padding', 'products', 'broadcast', 'gather', 'gru', 'chain'])
    row = np.ones((1, 1024), np.float32)
    if kind == 'doubling':
        nodes = [node('Concat', [f'x{k}'] * 2, [f'x{k + 1}'], axis=0) for k in range(40)]
        return _insert(bundle, [*nodes, node('Relu', ['x40'], ['more'])], {'x0': row})
    if kind == 'padding':
        pads = np.array([0, 0, pick(rng, [2**20, 2**40, 2**62, -1]), 0])
        return _insert(bundle, [node('Pad', ['x', 'pads'], ['more'])], {'x': row, 'pads': pads})
    if kind == 'products':
        size = pick(rng, [64, 256, 1000])
        count = pick(rng, [100, 900])
        nodes = [node('MatMul', [f'x{k}', 'x0'], [f'x{k + 1}']) for k in range(count)]
        last = node('Relu', [f'x{count}'], ['more'])
        square = np.full((size, size), 1.0 / size, np.float32)
        return _insert(bundle, [*nodes, last], {'x0': square})
    if kind == 'broadcast':
        nodes = [node('Add', ['x', 'y'], ['xy']), node('Add', ['xy', 'z'], ['more'])]
        ones = np.ones(1000, np.float32)
        shapes = {'x': (1000,), 'y': (1000, 1), 'z': (1000, 1, 1)}
        return _insert(bundle, nodes, {name: ones.reshape(s) for name, s in shapes.items()})
    if kind == 'gather':
        index = np.full(pick(rng, [1, 60, 10**5]), pick(rng, [0, 10**6, -(2**62)]))
        return _insert(bundle, [node('Gather', ['x', 'i'], ['more'])], {'x': row.T, 'i': index})
    if kind == 'gru':
        width = pick(rng, [0, 1, 10**6, 2**40])
        nodes = [node('GRU', ['x', 'x', 'x', 'x'], ['all', 'more'], hidden_size=width)]
        return _insert(bundle, nodes, {'x': row[np.newaxis]})
    count = pick(rng, [950, 5000])
    nodes = [node('Tanh', [f'x{k}'], [f'x{k + 1}']) for k in range(count)]
    wide = np.ones((1, 2**20 if count < 1000 else 8), np.float32)
    return _insert(bundle, [*nodes, node('Relu', [f'x{count}'], ['more'])], {'x0': wide})


def odd_attribute(bundle, rng):
    def change(model):
        one = pick(rng, [n for n in model.graph.node if n.attribute] or [model.graph.node[0]])
        attribute = pick(rng, one.attribute)
        name = attribute.name
        other = [-1 << 62, 1 << 62, 99, -99, 1.5, float('nan'), 'x', [1] * 50, [0.5], [], 7]
        value = pick(rng, other)
        kind = AttributeProto.INTS if value == [] else None
        attribute.CopyFrom(helper.make_attribute(name, value, attr_type=kind))
        if rng.random() < 0.3:
            one.attribute.append(helper.make_attribute(f'{name}_', 1))

    return _changed(bundle, change)


def odd_constant(bundle, rng):
    """Change type, shape or entries of a constant; golden vectors show a changed weight."""

    def change(model):
        tensor = pick(rng, model.graph.initializer)
        kinds = 'type shape short long strings values none float_data'
        kind = pick(rng, kinds.split())
        if kind == 'type':
            tensor.data_type = pick(rng, [0, 2, 6, 8, 9, 10, 14, 16, 17, 21, 99])
        elif kind == 'shape':
            tensor.dims.append(pick(rng, [0, -1, 2, 2**62, -(2**63)]))
        elif kind == 'short':
            tensor.raw_data = tensor.raw_data[:-1]
        elif kind == 'long':
            tensor.raw_data += bytes(8)
        elif kind == 'strings':
            tensor.string_data.append(b'x' * 1000)
        elif kind == 'none':
            tensor.ClearField('raw_data')
        elif kind == 'float_data':
            tensor.float_data.extend([1.0] * 10)
        else:
            raw = bytearray(tensor.raw_data)
            end = int(rng.integers(2**63)).to_bytes(8, 'little')
            raw[-8:] = end if len(raw) > 8 else b'\x7f' * 8
            tensor.raw_data = bytes(raw)

    return _changed(bundle, change)


def elsewhere(bundle, rng):
    """Let weights be in a file: of the system, of a device, of a pipe that never speaks."""
    pipe = bundle.with_name('pipe')
    os.mkfifo(pipe)
    target = pick(rng, ['/etc/passwd', '/dev/zero', str(pipe), '../policy.onnx', '', 'x' * 5000])

    def change(model):
        tensor = pick(rng, model.graph.initializer)
        onnx.external_data_helper.set_external_data(tensor, target, length=2**40)
        if rng.random() < 0.5:
            tensor.ClearField('raw_data')
        if rng.random() < 0.3:
            tensor.ClearField('data_location')

    return _changed(bundle, change)


def odd_structure(bundle, rng):
    def rename(model):
        pick(rng, model.graph.node).output[0] = pick(rng, ['', 'window', 'x' * 10**5, 'é', '\n'])

    def cycle(model):
        model.graph.node[0].input[0] = 'action'

    def functions(model):
        function = model.functions.add(name='f', domain='d')
        function.node.append(node('f', [], []))

    def versions(model):
        model.opset_import[0].version = pick(rng, [0, 1, 6, 19, 21, 2**40, -1])

    def inner_graph(model):
        model.graph.node[0].attribute.append(helper.make_attribute('body', model.graph))

    def many_inputs(model):
        pick(rng, model.graph.node).input.extend(['window'] * pick(rng, [1, 5000]))

    def ends(model):
        end = pick(rng, [model.graph.input[0], model.graph.output[0]])
        other = pick(rng, [[], [1, 50, 11], ['a', 'b', 'c'], [2**62, 50, 11], ['batch', -5, 0]])
        kind = pick(rng, [1, 7, 11, 8])
        end.CopyFrom(helper.make_tensor_value_info(end.name, kind, other))
        if not other:
            end.name = 'nothing'

    def twice(model):
        model.graph.node.extend(list(model.graph.node))

    def backwards(model):
        nodes = list(model.graph.node)[::-1]
        model.graph.ClearField('node')
        model.graph.node.extend(nodes)

    def sparse(model):
        model.graph.sparse_initializer.add().dims.append(2**62)

    def metadata(model):
        model.metadata_props.add(key='ort.config', value='{"session_options": {}}')

    def no_output(model):
        model.graph.node[-1].output[0] = 'elsewhere'

    def deep_type(model):
        kind = model.graph.output[0].type
        for _ in range(90):
            outer = onnx.TypeProto()
            outer.sequence_type.elem_type.CopyFrom(kind)
            kind = outer
        model.graph.output[0].type.CopyFrom(kind)

    choices = [rename, cycle, functions, versions, inner_graph, many_inputs, ends, twice]
    choices += [backwards, sparse, metadata, no_output, deep_type]
    return _changed(bundle, pick(rng, choices))


def other_weights(bundle, rng):
    """Change the network into one that acts otherwise, or not at all."""

    def change(model):
        weights = [t for t in model.graph.initializer if t.data_type == TensorProto.DOUBLE]
        tensor = max(weights, key=lambda one: len(one.raw_data))
        values = np.frombuffer(tensor.raw_data).copy()
        with np.errstate(all='ignore'):
            values[:] *= pick(rng, [np.nan, np.inf, 1e300, -1.0, 1.1, 5e-324])
        tensor.raw_data = values.tobytes()

    return _changed(bundle, change)


GRAPHS = dict.fromkeys(
    (
        broken_bytes,
        other_operator,
        folded_with_other_operators,
        folded_with_known_operators,
        odd_attribute,
        odd_constant,
        elsewhere,
        odd_structure,
        other_weights,
    ),
    REFUSED,
)
