# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""Policy bundles: loaded only if sealed, harmless, made for this robot, and proven to run as made.

    bundle = load_bundle(path, settings.arm, settings.controller)
    loop = ControlLoop(settings.arm, bundle.controller)
    action = bundle.policy(loop.observe(state, reference, payload_estimate))

A bundle is a directory of five files and nothing else:

    NAME.metactl/
        card.md         what it is, for people
        contract.json   what it was made for
        golden.npz      inputs, and the actions they must give
        policy.onnx     the network
        SHA256SUMS      of the four above; `sha256sum -c SHA256SUMS` checks them, too

In this order: the files and their sums, the hash of the bundle if one is expected, the contract
against itself (`contract`) and against the robot's settings, and then graph and golden vectors on
this machine in a process of its own (`network`). Only what that process found sound is loaded
here. Nothing is unpickled: the contract is JSON, the golden vectors are arrays of plain numbers,
and the network is a graph of known operators.

Each file is opened once, relative to the open directory, and read to memory: what was hashed is
what is parsed, whatever happens on the disk meanwhile. Reading neither blocks nor follows a link.
The sums prove that nothing changed on the way; they do not prove who made the bundle.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
import errno
import hashlib
from itertools import islice
import os
from pathlib import Path
import shutil
import sys
from typing import TypeVar

from metactl_ros.control.gain_map import GainBox
from metactl_ros.control.lyapunov import LyapunovFunction
from metactl_ros.control.settings import ControllerSettings
from metactl_ros.dynamics.reduced_arm import ReducedArm
from metactl_ros.dynamics.rigid_body import ArmModel
from metactl_ros.dynamics.two_link import Arm
from metactl_ros.dynamics.urdf_arm import FromUrdf
from metactl_ros.errors import BundleError
from metactl_ros.files import open_regular, sync
from metactl_ros.policy.contract import (
    action_size,
    check_made_for,
    Contract,
    parse_contract,
)
from metactl_ros.policy.network import (
    GOLDEN_TOLERANCE,
    OnnxPolicy,
    PolicyFiles,
    PolicyShape,
    refusing,
    verify_confined,
)

T = TypeVar('T')

SUMS = 'SHA256SUMS'
MEBIBYTE = 2**20
MAX_BYTES: dict[str, int] = {
    'card.md': MEBIBYTE,
    'contract.json': MEBIBYTE // 4,
    'golden.npz': 4 * MEBIBYTE,
    'policy.onnx': 16 * MEBIBYTE,
    SUMS: 4096,
}
"""Every file of a bundle, and how large it may be."""


@dataclass(frozen=True, kw_only=True)
class Content:
    """A bundle that is sound in itself, whatever robot it is for."""

    policy: OnnxPolicy
    contract: Contract
    card: str
    sha256: str
    """Of SHA256SUMS: names this bundle and no other."""


@dataclass(frozen=True, kw_only=True)
class Bundle(Content):
    """A policy for this robot."""

    controller: ControllerSettings
    """The robot's settings, with the window of the policy."""


def load_bundle(
    path: Path,
    settings_arm: ArmModel,
    controller: ControllerSettings,
    *,
    bank_box: GainBox | None = None,
    sha256: str = '',
) -> Bundle:
    """Return the policy of a bundle for this robot.

    Args:
        path: Of a directory NAME.metactl/.
        settings_arm: The robot's arm; the contract must state the same.
        controller: The robot's settings; law, gain box and Lyapunov function must be the
            contract's, the context is replaced by the contract's, the modes stay.
        bank_box: The robot's gain box for policies that schedule a bank of observers: bank, rho
            and P are the contract's.
        sha256: The bundle must have this hash, as `metactl inspect` prints it; empty: any.

    Raises:
        BundleError: With path, reason and what to do.
    """
    files = read_sealed(path)
    check_hash(path, files, sha256)
    contract = parse_contract(path / 'contract.json', files['contract.json'])
    estimator = contract.estimator
    if estimator is not None and estimator.bank is not None and bank_box is not None:
        controller = _with_bank(path, contract, controller, bank_box)
    check_made_for(path, contract, _identity(path, contract, settings_arm), controller)
    inertias = settings_arm.sample_inertias(controller.payload_max_kg)
    with refusing(path / 'contract.json'):
        LyapunovFunction(controller.lyapunov, controller.law, inertias)  # P must certify
    content = _verified(path, files, contract)
    return Bundle(**vars(content), controller=replace(controller, context=contract.context))


def _identity(path: Path, contract: Contract, arm: ArmModel) -> Arm | ReducedArm:
    """Return what a contract would state of an arm."""
    if isinstance(arm, FromUrdf) and contract.chain is not None:
        return arm.reduced()
    if isinstance(arm, Arm) and contract.arm is not None:
        return arm
    if contract.chain is not None:
        raise BundleError(
            f'{path}: was made for an arm from a URDF, found the two-link arm; give the arm it '
            'was made for with --arm.'
        )
    raise BundleError(
        f'{path}: was made for the two-link arm, found an arm from a URDF; make a bundle for it '
        'with metactl adapt, or take a classical controller, for example momentum_observer.'
    )


def _with_bank(
    path: Path, contract: Contract, robot: ControllerSettings, box: GainBox
) -> ControllerSettings:
    """Return a robot's settings with bank, rho and P of a contract.

    Its alpha may be the contract's, too, unless that promises a slower decay than the robot asks.
    """
    certified = contract.lyapunov
    lyapunov = replace(
        robot.lyapunov,
        alpha_per_s=max(robot.lyapunov.alpha_per_s, certified.alpha_per_s),
        p_matrix=certified.p_matrix,
        rho_nm=certified.rho_nm,
    )
    with refusing(path / 'contract.json'):
        return replace(
            robot,
            gain_box=box,
            lyapunov=lyapunov,
            estimator=contract.estimator,
            context=contract.context,
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


def sha256_of(path: Path) -> str:
    """Return the hash that a bundle states of itself, unverified."""
    return hashlib.sha256((path / SUMS).read_bytes()).hexdigest()


def _verified(path: Path, files: Mapping[str, bytes], contract: Contract) -> Content:
    """Return a bundle whose policy was found sound by a process of its own."""
    shape = PolicyShape(
        num_rows=contract.context.num_rows,
        num_features=len(contract.features),
        num_actions=action_size(contract),
    )
    with refusing(path / 'card.md'):
        card = files['card.md'].decode()
    verify_confined(PolicyFiles(path, files['policy.onnx'], files['golden.npz'], shape))
    with refusing(path / 'policy.onnx'):
        policy = OnnxPolicy(files['policy.onnx'], shape)
    return Content(policy=policy, contract=contract, card=card, sha256=_hash_of(files))


def read_sealed(path: Path) -> dict[str, bytes]:
    """Return the content of every file of a bundle, by name.

    Raises:
        BundleError: If anything is missing, unlisted, no plain file, too large or changed.
    """
    try:
        folder = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_DIRECTORY)
    except (OSError, ValueError) as error:  # ValueError: a path with a null byte
        raise BundleError(
            f'{path}: not a bundle directory ({_reason(error)}); give the path of a '
            'NAME.metactl/, as python -m training.export writes it.'
        ) from None
    try:
        with os.scandir(folder) as entries:  # as many as say that there are too many
            found = {entry.name for entry in islice(entries, len(MAX_BYTES) + 1)}
        _check_names(path, found)
        files = {name: _read(path, folder, name) for name in MAX_BYTES}
    finally:
        os.close(folder)
    _check_sums(path, files)
    return files


def write_sealed(
    path: Path, files: Mapping[str, bytes], verify: Callable[[Path], T], *, may_replace: bool
) -> T:
    """Write a bundle that is complete or absent, and return what `verify` makes of it.

    It is written beside its place, verified there and then renamed. A bundle in its place is
    refused, or moved aside for the moment of the renaming; anything else is never replaced.
    """
    is_taken = os.path.lexists(path)
    if is_taken and not (may_replace and (path / SUMS).is_file()):
        raise BundleError(
            f'{path}: is there already; choose another name, or replace a bundle with --force.'
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    partial, old = (path.with_name(f'.{path.name}.{os.getpid()}.{end}') for end in ('new', 'old'))
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir()
    try:
        for name, data in {**files, SUMS: sums_of(files)}.items():
            (partial / name).write_bytes(data)
            sync(partial / name)
        verified = verify(partial)
        if is_taken:
            path.rename(old)
        partial.rename(path)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    shutil.rmtree(old, ignore_errors=True)
    return verified


def sums_of(files: Mapping[str, bytes]) -> bytes:
    """Return what SHA256SUMS must hold for these files, which may include itself."""
    lines = [
        f'{hashlib.sha256(data).hexdigest()}  {name}\n'
        for name, data in sorted(files.items())
        if name != SUMS
    ]
    return ''.join(lines).encode()


def _check_names(path: Path, found: set[str]) -> None:
    missing, unlisted = sorted(MAX_BYTES.keys() - found), sorted(found - MAX_BYTES.keys())
    if unlisted:
        raise BundleError(
            f'{path}: expected only {sorted(MAX_BYTES)}, found {unlisted[0]!r}, too; remove it.'
        )
    if missing:
        raise BundleError(f'{path}: {missing[0]} is missing; copy the whole bundle again.')


def _read(path: Path, folder: int, name: str) -> bytes:
    most = MAX_BYTES[name]
    try:
        with open_regular(Path(name), folder) as file:
            data = file.read(most + 1)
    except OSError as error:
        raise BundleError(
            f'{path / name}: cannot be read ({_reason(error)}); copy the bundle again.'
        ) from None
    if not 0 < len(data) <= most:
        found = 'more' if data else 'none'
        raise BundleError(
            f'{path / name}: expected 1 to {most} bytes, found {found}; copy the bundle again.'
        )
    return data


def _check_sums(path: Path, files: Mapping[str, bytes]) -> None:
    expected, found = sums_of(files), files[SUMS].splitlines()
    for line in expected.splitlines():
        if line not in found:
            name = line.split()[1].decode()
            raise BundleError(
                f'{path / name}: does not have the SHA-256 that {SUMS} states: it is damaged or '
                'was changed; copy the bundle again.'
            )
    if files[SUMS] != expected:
        raise BundleError(
            f'{path / SUMS}: expected one line per file, sorted, found more; copy the bundle '
            'again.'
        )


def _reason(error: OSError | ValueError) -> str:
    if isinstance(error, ValueError):
        return str(error)
    is_link = error.errno == errno.ELOOP  # of any link, where none is followed
    return 'it is a symbolic link, or a loop of them' if is_link else str(error.strerror)
