# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""A network in onnxruntime as the policy of a loop, on one thread of the CPU."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray
import onnxruntime

from metactl_ros.signals import Array

INPUT, OUTPUT = 'window', 'action'


class PolicyShape(NamedTuple):
    """What goes in and comes out: (..., W, F) to (..., m)."""

    num_rows: int
    num_features: int
    num_actions: int


class SessionEnd(Protocol):
    """An input or output of a session."""

    name: str
    type: str
    shape: list[int | str | None]


class Session(Protocol):
    """What is used of onnxruntime's InferenceSession, which has no types."""

    def run(
        self, output_names: Sequence[str], input_feed: Mapping[str, NDArray[np.float32]]
    ) -> Sequence[NDArray[np.float32]]:
        """Return the outputs of these names."""

    def get_inputs(self) -> Sequence[SessionEnd]:
        """Return the inputs."""

    def get_outputs(self) -> Sequence[SessionEnd]:
        """Return the outputs."""


class OnnxPolicy:
    """From windows, raw and float64, to actions in [-1, 1].

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
        self._session: Session = onnxruntime.InferenceSession(
            model, options, providers=['CPUExecutionProvider']
        )
        found = _ends(self._session)
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


def _ends(session: Session) -> list[tuple[str, str, list[int | str | None]]]:
    """Return name, type and shape of inputs and outputs, without the free batch in front."""
    return [
        (end.name, end.type, end.shape[1:] if _has_batch(end.shape) else end.shape)
        for end in (*session.get_inputs(), *session.get_outputs())
    ]


def _has_batch(shape: list[int | str | None]) -> bool:
    return bool(shape) and not isinstance(shape[0], int)
