# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""Policy bundles: loaded only if sealed, harmless, made for this robot, and proven to run as made.

    bundle = load_bundle(path, settings.arm, settings.controller)
    loop = ControlLoop(settings.arm, bundle.controller)
    action = bundle.policy(loop.observe(state, reference, payload_estimate))

In this order: the files (`sealed`), their hash if one is expected, the contract against itself
(`contract`) and against the robot's settings, and then graph and golden vectors on this machine in
a process of its own (`verifier`). Only what that process found sound is loaded here. Nothing is
unpickled: the contract is JSON, the golden vectors are arrays of plain numbers, and the network is
a graph of known operators.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
import hashlib
from pathlib import Path
import sys
from typing import NamedTuple

from metactl_ros.control.gain_map import GainMap
from metactl_ros.control.settings import ControllerSettings
from metactl_ros.dynamics.two_link import Arm
from metactl_ros.policy.contract import check_made_for, Contract, parse_contract
from metactl_ros.policy.onnx_policy import OnnxPolicy, PolicyShape
from metactl_ros.policy.sealed import BundleError, read_sealed, SUMS
from metactl_ros.policy.verifier import (
    GOLDEN_TOLERANCE,
    PolicyFiles,
    refusing,
    verify_confined,
)

__all__ = ['Bundle', 'BundleError', 'Content', 'inspect_bundle', 'load_bundle', 'read_bundle']


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
    *,
    sha256: str = '',
) -> Bundle:
    """Return the policy of a bundle for this robot.

    Args:
        path: Of a directory NAME.metactl/.
        settings_arm: The robot's arm; the contract must state the same.
        controller: The robot's settings; law, gain box and Lyapunov function must be the
            contract's, the context is replaced by the contract's, the modes stay.
        on_estimator: The robot's settings for policies on top of an estimator, if it has any.
        sha256: The bundle must have this hash, as `metactl inspect` prints it; empty: any.

    Raises:
        BundleError: With path, reason and what to do.
    """
    files = read_sealed(path)
    check_hash(path, files, sha256)
    contract = parse_contract(path / 'contract.json', files['contract.json'])
    if contract.estimator is not None and on_estimator is not None:
        controller = on_estimator
    check_made_for(path, contract, settings_arm, controller)
    content = _verified(path, files, contract)
    return Bundle(
        policy=content.policy,
        contract=contract,
        controller=replace(controller, context=contract.context),
        card=content.card,
        sha256=content.sha256,
    )


def read_bundle(path: Path) -> Content:
    """Return what a bundle holds, verified without a robot at hand."""
    files = read_sealed(path)
    return _verified(path, files, parse_contract(path / 'contract.json', files['contract.json']))


def inspect_bundle(path: Path) -> int:
    """Verify a bundle and print its card, for `metactl inspect`; return 0.

    Control characters are left out: a card must not steer a terminal.

    Raises:
        BundleError: If the bundle is not sound.
    """
    content = read_bundle(path)
    card = ''.join(c for c in content.card if c.isprintable() or c == '\n')
    sys.stdout.write(
        f'{card}\n'
        f'verified: complete, unchanged, golden vectors met to {GOLDEN_TOLERANCE}\n'
        f'SHA-256: {content.sha256}\n'
    )
    return 0


def check_hash(path: Path, files: Mapping[str, bytes], expected: str) -> None:
    """Refuse a bundle that is not the one expected; an empty text expects none in particular."""
    found = _hash_of(files)
    if expected and expected.lower() != found:
        raise BundleError(
            f'{path}: expected the bundle with SHA-256 {expected}, found {found}; give the path '
            'of that bundle, or the hash of this one if you trust it (metactl inspect).'
        )


def _hash_of(files: Mapping[str, bytes]) -> str:
    return hashlib.sha256(files[SUMS]).hexdigest()


def _verified(path: Path, files: Mapping[str, bytes], contract: Contract) -> Content:
    """Return a bundle whose policy was found sound by a process of its own."""
    shape = PolicyShape(
        num_rows=contract.context.num_rows,
        num_features=len(contract.features),
        num_actions=GainMap(contract.gain_box, len(contract.arm.joint_names)).size,
    )
    with refusing(path / 'card.md'):
        card = files['card.md'].decode()
    verify_confined(PolicyFiles(path, files['policy.onnx'], files['golden.npz'], shape))
    with refusing(path / 'policy.onnx'):
        policy = OnnxPolicy(files['policy.onnx'], shape)
    return Content(policy, contract, card, _hash_of(files))
