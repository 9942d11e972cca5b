# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""The contract of a bundle: the robot, law, shield and window that its policy was made for.

The robot's own YAML files decide. Whatever of them the contract states must be equal there, to the
last bit; only the window (`context`) is taken from the bundle, because it is part of the network,
and of an adaptive law also the bank that it schedules and what was certified for it: rho and P.
"""

from dataclasses import dataclass, field, fields, is_dataclass
import hashlib
import json
from pathlib import Path

from metactl_ros.config import build, LATER, shown, stated
from metactl_ros.control.estimators.bank_estimation import schedule_size
from metactl_ros.control.estimators.choice import EstimatorSettings
from metactl_ros.control.gain_map import GainBox, GainMap
from metactl_ros.control.law import LawSettings
from metactl_ros.control.lyapunov import LyapunovSettings
from metactl_ros.control.settings import ControllerSettings
from metactl_ros.control.window import (
    ContextSettings,
    feature_names,
    TOKEN_UNITS,
    Tokens,
)
from metactl_ros.dynamics.reduced_arm import ReducedArm
from metactl_ros.dynamics.two_link import Arm
from metactl_ros.errors import BundleError, ConfigError
from metactl_ros.files import parse_yaml

SCHEMA_VERSION, CHAIN_SCHEMA = 1, 2
"""Of the two-link arm, and of arms from URDFs."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenScales:
    """The first map of the network, which is inside its graph; stated here for people."""

    kind: Tokens
    error_rad: float
    error_rate_radps: float
    payload_kg: float
    friction_regime: float
    estimate_nm: float = 1.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Contract:
    """All of `contract.json`."""

    schema_version: int
    arm: Arm | None
    """The two-link arm, with the joint names in order, and the effort limits; or null."""
    arm_sha256: str
    """Of the arm; see `hash_of`."""
    law: LawSettings
    """With the rate."""
    gain_box: GainBox
    lyapunov: LyapunovSettings
    """P, alpha, and the target error that v_0 follows from."""
    context: ContextSettings
    """With the length of the window, W."""
    features: tuple[str, ...]
    """Names of the F features of a row, in order."""
    tokens: TokenScales
    training: object
    """Run, plant, command and versions; a record for people, which no code reads."""
    estimator: EstimatorSettings | None = None
    """Whose estimate the policy sees and weighs, if there is one."""
    chain: ReducedArm | None = field(default=None, metadata=LATER)
    """An arm from a URDF, in place of `arm`."""

    def __post_init__(self) -> None:
        expected = SCHEMA_VERSION if self.chain is None else CHAIN_SCHEMA
        if (self.arm is None) == (self.chain is None) or self.schema_version != expected:
            raise ConfigError(
                f'schema_version: {SCHEMA_VERSION} has an arm and {CHAIN_SCHEMA} a chain, neither '
                f'has both; found {self.schema_version}.'
            )

    @property
    def made_for(self) -> Arm | ReducedArm:
        """The arm, whatever it is from."""
        made_for = self.chain if self.arm is None else self.arm
        assert made_for is not None
        return made_for


def action_size(made_for: Contract | ControllerSettings) -> int:
    """Return how many entries an action has: gains, and the schedule of a bank behind them."""
    num_joints = len(made_for.lyapunov.p_matrix) // 2
    bank = None if made_for.estimator is None else made_for.estimator.bank
    scheduled = schedule_size(bank.num_delays, num_joints) if bank and bank.is_scheduled else 0
    return GainMap(made_for.gain_box, num_joints).size + scheduled


def hash_of(arm: Arm | ReducedArm) -> str:
    """Return the SHA-256 of an arm, the same on every machine: of its JSON with sorted keys."""
    text = json.dumps(stated(arm), sort_keys=True, separators=(',', ':'))
    return hashlib.sha256(text.encode()).hexdigest()


def token_scales(kind: Tokens) -> TokenScales:
    """Return the scales of a token map; raw tokens have none, which is 1."""
    return TokenScales(kind=kind, **TOKEN_UNITS[kind]._asdict())


def parse_contract(where: Path, data: bytes) -> Contract:
    """Return the contract in a file's bytes; it must know its schema and agree with itself."""
    try:
        mapping = _read_json(data)
    except (ValueError, RecursionError) as error:
        raise BundleError(f'{where}: not JSON ({error}); export the policy again.') from None
    found = mapping.get('schema_version') if isinstance(mapping, dict) else None
    if found not in (SCHEMA_VERSION, CHAIN_SCHEMA):
        raise BundleError(
            f'{where}: schema_version: expected {SCHEMA_VERSION} or {CHAIN_SCHEMA}, found '
            f'{shown(found)}; export the policy again with this version of metactl_ros.'
        )
    try:
        contract = build(Contract, mapping, 'contract')
    except ConfigError as error:
        raise BundleError(f'{where}: {error}\nExport the policy again.') from None
    # No more names than the file has: a hostile count must not fill the memory.
    num_extra = min(contract.context.num_extra, len(contract.features))
    expected = {
        'arm_sha256': hash_of(contract.made_for),
        'features': feature_names(contract.made_for.joint_names, num_extra),
    }
    for key, value in expected.items():
        if getattr(contract, key) != value:
            raise BundleError(
                f'{where}: {key}: expected {shown(value)} from the rest of the contract, found '
                f'{shown(getattr(contract, key))}; export the policy again.'
            )
    return contract


def _read_json(data: bytes) -> object:
    """Return what strict JSON says: ValueError or RecursionError if it is none.

    JSON is YAML, too: the same bounds hold of depth, size and digits, and no key is there twice,
    with which two readers could take it for two contracts.
    """
    text = data.decode()
    value: object = json.loads(text)
    parse_yaml(text)
    return value


def check_made_for(
    where: Path, contract: Contract, arm: Arm | ReducedArm, controller: ControllerSettings
) -> None:
    """Refuse a contract that differs from the robot's settings, and name the first difference."""
    robot = {
        'arm': arm,
        'law': controller.law,
        'gain_box': controller.gain_box,
        'lyapunov': controller.lyapunov,
        'estimator': controller.estimator,
    }
    for section, settings in robot.items():
        made_for = contract.made_for if section == 'arm' else getattr(contract, section)
        if made_for != settings:
            key, expected, found = first_difference(section, settings, made_for)
            raise BundleError(
                f'{where}: {key}: this robot has {shown(expected)}, the policy was made for '
                f'{shown(found)}; load a policy made for this robot, or the settings it was made '
                'for.'
            )


def first_difference(key: str, expected: object, found: object) -> tuple[str, object, object]:
    """Return the dotted key, and the values there, of the first field in which two values differ.

    They must differ.
    """
    while is_dataclass(expected) and is_dataclass(found):
        pairs = (
            (f.name, getattr(expected, f.name), getattr(found, f.name)) for f in fields(expected)
        )
        name, expected, found = next(pair for pair in pairs if pair[1] != pair[2])
        key = f'{key}.{name}'
    return key, expected, found
