# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""Policy bundles: loaded only if sealed, harmless, made for this robot, and proven to run as made.

    bundle = load_bundle(path, settings.arm, settings.controller)
    loop = ControlLoop(settings.arm, bundle.controller)
    action = bundle.policy(loop.observe(state, reference, payload_estimate))

In this order: the files (`sealed`), the contract against itself (`contract`), the graph
(`onnx_graph`), the golden vectors on this machine, and the contract against the robot's settings.
Nothing is unpickled: the contract is JSON, the golden vectors are arrays of plain numbers, and the
network is a graph of known operators.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
import hashlib
import io
from pathlib import Path
from typing import NamedTuple
import zipfile

import numpy as np

from metactl_ros.arm import Arm, NUM_JOINTS
from metactl_ros.control.controller_settings import ControllerSettings
from metactl_ros.control.gain_map import GainMap
from metactl_ros.policy.contract import check_made_for, Contract, parse_contract
from metactl_ros.policy.onnx_graph import check_graph
from metactl_ros.policy.onnx_policy import INPUT, OnnxPolicy, OUTPUT, PolicyShape
from metactl_ros.policy.sealed import BundleError, read_sealed, SUMS
from metactl_ros.signals import Array

__all__ = ['Bundle', 'BundleError', 'Content', 'load_bundle', 'read_bundle']

GOLDEN_TOLERANCE = 1e-6
"""Largest difference of an action, of range 2, between this machine and the golden vectors."""


class Content(NamedTuple):
    """A bundle that is sound in itself, whatever robot it is for."""

    policy: OnnxPolicy
    contract: Contract
    card: str
    sha256: str
    """Of SHA256SUMS: names this bundle and no other."""


@dataclass(frozen=True, slots=True)
class Bundle:
    """A policy for this robot."""

    policy: OnnxPolicy
    contract: Contract
    controller: ControllerSettings
    """The robot's settings, with the window of the policy."""
    card: str
    sha256: str


def load_bundle(
    path: Path,
    settings_arm: Arm,
    controller: ControllerSettings,
    on_estimator: ControllerSettings | None = None,
) -> Bundle:
    """Return the policy of a bundle for this robot.

    Args:
        path: Of a directory NAME.metactl/.
        settings_arm: The robot's arm; the contract must state the same.
        controller: The robot's settings; law, gain box and Lyapunov function must be the
            contract's, the context is replaced by the contract's, the modes stay.
        on_estimator: The robot's settings for policies on top of an estimator, if it has any.

    Raises:
        BundleError: With path, reason and what to do.
    """
    content = read_bundle(path)
    if content.contract.estimator is not None and on_estimator is not None:
        controller = on_estimator
    check_made_for(path, content.contract, settings_arm, controller)
    return Bundle(
        policy=content.policy,
        contract=content.contract,
        controller=replace(controller, context=content.contract.context),
        card=content.card,
        sha256=content.sha256,
    )


def read_bundle(path: Path) -> Content:
    """Return what a bundle holds, verified without a robot at hand."""
    files = read_sealed(path)
    contract = parse_contract(path / 'contract.json', files['contract.json'])
    check_graph(path / 'policy.onnx', files['policy.onnx'])
    shape = PolicyShape(
        num_rows=contract.context.num_rows,
        num_features=len(contract.features),
        num_actions=GainMap(contract.gain_box, NUM_JOINTS).size,
    )
    with _refusing(path / 'policy.onnx'):
        policy = OnnxPolicy(files['policy.onnx'], shape)
    with _refusing(path / 'golden.npz'):
        window, action = read_golden(files['golden.npz'], shape)
    with _refusing(path / 'policy.onnx'):
        worst = float(np.abs(policy(window) - action).max())
    if not worst <= GOLDEN_TOLERANCE:  # NaN is refused, too
        raise BundleError(
            f'{path / "policy.onnx"}: expected the actions of golden.npz to {GOLDEN_TOLERANCE}, '
            f'found a difference of {worst:.3g}; export the policy again.'
        )
    with _refusing(path / 'card.md'):
        card = files['card.md'].decode()
    return Content(policy, contract, card, hashlib.sha256(files[SUMS]).hexdigest())


def read_golden(data: bytes, shape: PolicyShape) -> tuple[Array, Array]:
    """Return golden windows, shape (N, W, F), and their actions, shape (N, m), all finite.

    Raises:
        ValueError: If they are not; NumPy and zipfile raise their own errors.
    """
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        if any(entry.compress_type != zipfile.ZIP_STORED for entry in archive.infolist()):
            raise ValueError('expected arrays that are not compressed, which could be a bomb')
    with np.load(io.BytesIO(data), allow_pickle=False) as arrays:
        window, action = arrays[INPUT], arrays[OUTPUT]
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


@contextmanager
def _refusing(path: Path) -> Iterator[None]:
    """Whatever a parser raises on hostile bytes, refuse the bundle, and let the caller live on."""
    try:
        yield
    except Exception as error:
        raise BundleError(
            f'{path}: cannot be used ({type(error).__name__}: {error}); export the policy again.'
        ) from error
