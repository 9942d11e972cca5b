# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""Small ONNX graphs for tests: a sound policy, and whatever else is put between its ends."""

import numpy as np
import onnx
from onnx import helper, numpy_helper, TensorProto
import onnxruntime

W, F, M = 5, 11, 8
"""Of the bundle that `bundles.made_bundle` makes."""
FIRST_ROW = [  # the first m features of the first row, shape (B, m)
    helper.make_node('Gather', ['window', 'first'], ['row'], axis=1),
    helper.make_node('Slice', ['row', 'from', 'to', 'along'], ['wide']),
]
CONSTANTS = {
    'first': np.int64(0),
    'from': np.array([0]),
    'to': np.array([M]),
    'along': np.array([1]),
}


def onnx_model(nodes, constants, output='action', shape=('batch', M)):
    """Return the file of a graph from `window`, shape (B, W, F)."""
    graph = helper.make_graph(
        nodes,
        'graph',
        [helper.make_tensor_value_info('window', TensorProto.FLOAT, ['batch', W, F])],
        [helper.make_tensor_value_info(output, TensorProto.FLOAT, shape)],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()],
    )
    model = helper.make_model(graph, ir_version=10)
    model.opset_import[0].version = 20
    for part in (*model.graph.node, *model.opset_import):
        part.ClearField('domain')
    return model.SerializeToString()


def policy_with(*nodes, **constants):
    """Return a policy that adds the number `more`, which the nodes compute, to its action.

    Without nodes there is none: the action is the tanh of some features.
    """
    last = [helper.make_node('Tanh', ['wide'], ['tanh' if nodes else 'action'])]
    if nodes:
        last.append(helper.make_node('Add', ['tanh', 'more'], ['action']))
    return onnx_model([*FIRST_ROW, *nodes, *last], CONSTANTS | constants)


def golden_of_policy(rng, num=4):
    """Return windows, shape (num, W, F), and what the policy without nodes makes of them."""
    window = rng.standard_normal((num, W, F)).astype(np.float32)
    return window, np.tanh(window[:, 0, :M]).astype(np.float64)


def computed_shapes(data, names):
    """Return the shapes of what onnxruntime computes under some names, for one window."""
    model = onnx.load_from_string(data)
    known = {one.name for one in model.graph.output}
    model.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names - known)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL  # else not all of it is computed
    options.graph_optimization_level = level
    session = onnxruntime.InferenceSession(model.SerializeToString(), options)
    window = np.zeros((1, W, F), dtype=np.float32)
    found = session.run(sorted(names), {'window': window})
    return {name: value.shape for name, value in zip(sorted(names), found, strict=True)}
