# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""What is known of a graph before it runs, against onnxruntime, and what is refused unknown.

`test_bundle_refusals.py` has what is no graph at all, and what no policy needs.
"""

from pathlib import Path

from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
import numpy as np
import onnx
from onnx import helper
import pytest
from support.graphs import computed_shapes, CONSTANTS, F, FIRST_ROW, onnx_model, policy_with, W

from metactl_ros.errors import BundleError
from metactl_ros.policy.onnx_file import MAX_CHARACTERS
from metactl_ros.policy.onnx_graph import (
    check_graph,
    MAX_ELEMENTS,
    MAX_NODES,
    MAX_OPERATIONS,
    OPERATORS,
)

WHERE = Path('policy.onnx')
node = helper.make_node


# One operator in a graph of its own. What the rules accept, onnxruntime computes, in that shape.

small = st.integers(1, 4)
shapes_of_any_rank = st.lists(small, max_size=4).map(tuple)
shapes_with_ones = st.lists(st.sampled_from([1, 1, 2]), min_size=1, max_size=4).map(tuple)
odd = st.integers(-6, 6) | st.sampled_from([2**63 - 1, -(2**63)])


@st.composite
def single_calls(draw, operator):
    """Return an operator with inputs, some of which are constants, that may or may not fit."""
    first = draw(shapes_of_any_rank if operator != 'Squeeze' else shapes_with_ones)
    inputs, constants, attributes = [np.ones(first, np.float32)], [], {}
    if operator in ('Add', 'Mul', 'MatMul', 'Concat'):
        inputs.append(np.ones(draw(shapes_of_any_rank | st.just(first)), np.float32))
    if operator == 'Gemm':
        sizes = draw(st.lists(st.lists(small, min_size=2, max_size=2), min_size=1, max_size=2))
        inputs += [np.ones(size, np.float32) for size in sizes]
        attributes['transB'] = draw(st.integers(0, 1))
    if operator == 'LayerNormalization':
        width = draw(small | st.just(first[-1] if first else 1))
        inputs += [np.ones(width, np.float32)] * draw(st.integers(1, 2))
    if operator in ('Concat', 'Gather', 'LpNormalization', 'Softmax', 'Split'):
        attributes['axis'] = draw(st.integers(-4, 4))
    if operator == 'Gather':
        constants.append(draw(odd | st.lists(odd, max_size=3)))
    if operator == 'Transpose':
        several = st.lists(odd, min_size=1, max_size=4)
        attributes['perm'] = draw(several | st.permutations(range(len(first) or 1)))
    if operator in ('Pad', 'Reshape', 'Squeeze', 'Slice'):
        count = 2 * len(first) if operator == 'Pad' else draw(st.integers(0, 4))
        several = st.lists(odd, min_size=count, max_size=count)
        constants += [draw(several) for _ in range(draw(st.integers(2, 4)))]
        constants = constants if operator == 'Slice' else constants[:1]
        if operator == 'Reshape' and draw(st.booleans()):
            constants = [draw(st.permutations([*first, 1]))]
        axes = draw(st.lists(st.integers(-4, 3), min_size=count, max_size=count))
        if operator == 'Slice' and draw(st.booleans()):
            constants = [*constants[:2], axes, [1] * count]
        if operator == 'Squeeze' and draw(st.booleans()):
            constants = [axes]
    num_outputs = 1
    if operator == 'Split':
        parts = draw(st.lists(st.integers(-1, 4), min_size=1, max_size=3))
        num_outputs, constants = len(parts), [parts]
    return operator, inputs, constants, attributes, num_outputs


def graph_of(call):
    """Return a graph whose nodes `out0` and so on are what the call computes."""
    operator, inputs, constants, attributes, num_outputs = call
    given_names = [f'in{k}' for k in range(len(inputs))]
    constant_names = [f'constant{k}' for k in range(len(constants))]
    nodes = [
        *(node('Mul', [f'x{name}', 'unit'], [name]) for name in given_names),  # not constants
        node('Gather', ['window', 'first'], ['row'], axis=0),
        node(
            operator,
            [*given_names, *constant_names],
            [f'out{k}' for k in range(num_outputs)],
            **attributes,
        ),
    ]
    values = {f'x{name}': value for name, value in zip(given_names, inputs, strict=True)}
    values |= {
        name: np.array(entries, dtype=np.int64)
        for name, entries in zip(constant_names, constants, strict=True)
    }
    values |= {'unit': np.float32(1.0), 'first': np.int64(0)}
    return onnx_model(nodes, values, output='row', shape=(W, F))


@pytest.mark.parametrize('operator', sorted(OPERATORS.keys() - {'GRU', 'Gelu', 'Cast'}))
def test_what_the_rules_accept_has_the_shape_that_onnxruntime_computes(operator):
    accepted, refused = [], []

    @hypothesis_settings(max_examples=100)
    @given(call=single_calls(operator))
    def law(call):
        data = graph_of(call)
        try:
            shapes = check_graph(WHERE, data)
        except BundleError:
            refused.append(call)
            return
        accepted.append(call)
        outputs = {f'out{k}' for k in range(call[-1])}
        assert computed_shapes(data, outputs) == {name: shapes[name] for name in outputs}

    law()
    assert accepted
    assert refused or operator in ('Relu', 'Tanh')


# What is refused


def add_of(*inputs):
    """Return the nodes of an action that has something added to it."""
    return node('Add', ['wide', *inputs], ['more'])


def changed(change, model=None):
    """Return the file of a sound policy, or another, after a change of its protobuf."""
    proto = onnx.load_from_string(model or policy_with())
    change(proto)
    return proto.SerializeToString()


def slow(num_products, size=1024):
    """Return so many products of a matrix of this size with itself, within all other limits."""
    products = [
        node('MatMul', [f'x{k}', 'x0'], [f'x{k + 1}' if k + 1 < num_products else 'more'])
        for k in range(num_products)
    ]
    return policy_with(*products, x0=np.ones((size, size), np.float32))


def reads(constant, **attributes):
    """Return a Reshape of the row to what a constant says."""
    return policy_with(node('Reshape', ['row', 'to what'], ['more'], **attributes), **constant)


WEIGHT, TALL = np.ones((3, 4), np.float32), np.ones((2048, 1))


@pytest.mark.parametrize(
    ('data', 'reason'),
    [
        # Shapes that are decided while it runs
        (reads({}), "reads 'to what', which nothing before it computes"),
        (
            policy_with(
                node('Mul', ['first', 'first'], ['index']),
                node('Gather', ['row', 'index'], ['more'], axis=1),
            ),
            "decides a shape by 'index', no constant",
        ),
        (
            policy_with(node('Gather', ['row', 'unit'], ['more'], axis=1), unit=np.float32(1)),
            "decides a shape by 'unit', no constant",
        ),
        (
            policy_with(node('Reshape', ['row', 'many'], ['more']), many=np.ones(65, np.int64)),
            "decides a shape by 'many', no constant",
        ),
        # Too much
        (slow(1), f'holds more than {MAX_OPERATIONS} operations'),
        (
            policy_with(node('Add', ['tall', 'flat'], ['more']), tall=TALL, flat=np.ones(1024)),
            f'makes a tensor of shape (2048, 1024), expected 1 to {MAX_ELEMENTS} entries',
        ),
        (
            policy_with(node('Pad', ['row', 'pads'], ['more']), pads=np.array([0, 0, 0, 2**62])),
            'makes a tensor of shape (1, 4611686018427387915)',
        ),
        (policy_with(big=np.ones(MAX_ELEMENTS + 1, np.float32)), "'big' of shape (1048577,)"),
        (policy_with(deep=np.ones((1,) * 9)), "'deep' of shape (1, 1, 1, 1, 1, 1, 1, 1, 1)"),
        (
            policy_with(node('Reshape', ['row', 'nine'], ['more']), nine=[1] * 8 + [11]),
            'makes a tensor of shape (1, 1, 1, 1, 1, 1, 1, 1, 11)',
        ),
        (
            policy_with(*(node('Relu', ['row'], [f'r{k}']) for k in range(MAX_NODES))),
            f'holds more than {MAX_NODES} operators',
        ),
        (
            changed(lambda m: setattr(m.graph, 'name', 'x' * (MAX_CHARACTERS + 1))),
            f'holds a name of {MAX_CHARACTERS + 1} letters',
        ),
        # Nothing at all
        (
            policy_with(node('Slice', ['row', 'to', 'to', 'along'], ['more'])),
            'makes a tensor of shape (1, 0)',
        ),
        (policy_with(none=np.ones(0, np.float32)), "the constant 'none' of shape (0,)"),
        # Names
        (policy_with(node('Relu', ['row'], ['wide']), add_of('wide')), 'whose name is taken'),
        (policy_with(node('Relu', ['row'], ['']), add_of('wide')), 'whose name is taken'),
        (
            policy_with(node('Split', ['window'], ['a', 'a'], axis=2, num_outputs=2)),
            'splits 11 into (5, 5)',
        ),
        (
            policy_with(node('Split', ['window'], ['a'] * 5, axis=1, num_outputs=5)),
            'whose name is taken',
        ),
        (policy_with(window=WEIGHT), "defines 'window' twice"),
        (changed(lambda m: m.graph.initializer[0].ClearField('name')), "defines '' twice"),
        # Constants
        (changed(lambda m: setattr(m.graph.initializer[0], 'data_type', 6)), 'of element type 6'),
        (changed(lambda m: m.graph.initializer[1].dims.append(2)), 'of shape (1, 2) in 8 bytes'),
        (
            changed(lambda m: m.graph.initializer[1].dims.extend([-1, -1])),
            '(1, -1, -1) in 8 bytes',
        ),
        # Operators
        (changed(lambda m: setattr(m.opset_import[0], 'version', 19)), 'found 19'),
        (policy_with(add_of()), 'has 1 inputs, expected 2 to 2'),
        (policy_with(add_of('wide', 'wide')), 'has 3 inputs, expected 2 to 2'),
        (policy_with(node('Relu', ['row'], ['a', 'more'])), 'has 2 outputs, expected 1'),
        (policy_with(node('Relu', ['later'], ['more'])), "reads 'later'"),
        (policy_with(node('Cast', ['wide'], ['more'], to=8)), 'has to = 8'),
        (policy_with(node('Gelu', ['wide'], ['more'], approximate='tanh')), "= 'tanh'"),
        (policy_with(node('Tanh', ['wide'], ['more'], axis=1)), 'has axis = 1'),
        (policy_with(node('Softmax', ['wide'], ['more'], axis=1.0)), 'has axis = 1.0'),
        (policy_with(node('Concat', ['wide'], ['more'])), 'has no axis'),
        (policy_with(node('Pad', ['row', 'to'], ['more'], mode='reflect')), "mode = 'reflect'"),
        (
            policy_with(
                node('GRU', ['window', 'x', 'x', 'x'], ['a', 'b'], hidden_size=4), x=WEIGHT
            ),
            'has weights of shapes',
        ),
        (
            policy_with(node('GRU', ['row', 'x', 'x', 'x'], ['a', 'b'], hidden_size=4), x=WEIGHT),
            'has an input of shape (1, 11)',
        ),
    ],
)
def test_a_graph_whose_size_is_unknown_or_large_is_refused(data, reason):
    with pytest.raises(BundleError) as caught:
        check_graph(WHERE, data)
    assert reason in str(caught.value)
    assert str(caught.value).startswith('policy.onnx: ')
    assert 'export it again' in str(caught.value)
    assert len(str(caught.value)) < 1000


def test_a_gru_has_the_shape_that_onnxruntime_computes():
    weights = {'k': (1, 12, F), 'r': (1, 12, 4), 'b': (1, 24)}
    values = {name: np.ones(shape, np.float32) for name, shape in weights.items()}
    gru = node('GRU', ['turned', 'k', 'r', 'b'], ['all', 'last'], hidden_size=4)
    turn = node('Transpose', ['window'], ['turned'], perm=[1, 0, 2])
    data = onnx_model([turn, gru, *FIRST_ROW], CONSTANTS | values, output='row', shape=(1, F))
    shapes = check_graph(WHERE, data)
    assert computed_shapes(data, {'all', 'last'}) == {n: shapes[n] for n in ('all', 'last')}


def test_the_least_that_is_too_much_is_refused_and_the_most_that_is_not_is_accepted():
    size = 256
    per_product = size**3 + 16 * size**2
    most = MAX_OPERATIONS // per_product
    with pytest.raises(BundleError, match='operations'):
        check_graph(WHERE, slow(most + 1, size))
    with pytest.raises(BundleError, match='joins shapes'):  # after its products
        check_graph(WHERE, slow(most, size))
