# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""Options, each declared once: a dataclass feeds command line, launch file and ROS parameters.

    @dataclass(frozen=True, kw_only=True)
    class Demo:
        seed: int = option(42, 'of the episode')

    add_arguments(parser, Demo)         --seed SEED
    from_arguments(Demo, args)          Demo(seed=...)
    launch_arguments(Demo)              seed:=42
    from_texts(Demo, {'seed': '7'})     Demo(seed=7)

The type of a field decides how its text is read; its default, whether it may be left out. A field
without `option` is for callers in Python only. Of the parameters of a node this says what each is
for; the defaults are in `config/NODE.yaml`.
"""

import argparse
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, Field, field, fields
from pathlib import Path
import re
from types import NoneType
from typing import Any, cast, get_args, get_type_hints, NamedTuple, TypeVar

import numpy as np

from metactl_ros.baselines import CONTROLLERS
from metactl_ros.errors import ConfigError
from metactl_ros.files import read_yaml
from metactl_ros.settings import PlantName, share_directory
from metactl_ros.sim.faults import KINDS, TAU_Z_RANGE_S

T = TypeVar('T')
LARGEST_PAYLOAD_KG = 100.0
UNITS = {'S': ' of seconds', 'KG': ' of kg'}
"""What a metavar says in a message."""


class Option(NamedTuple):
    """How a field is set from outside."""

    help: str
    default_help: str = ''
    """What holds if it is left out, where the default itself does not say it."""
    name: str = ''
    """On the command line and in the launch file; empty: that of the field."""
    metavar: str | None = None
    choices: tuple[str, ...] = ()
    """Empty: any text."""
    is_positional: bool = False
    group: str = ''
    """Of options with the same one, at most one may be given."""
    bounds: tuple[float, float] | None = None
    """As a ROS parameter."""
    is_fixed: bool = True
    """As a ROS parameter: read once; else it may be set while the node runs."""
    launch_default: str | None = None
    """Its text in the launch file; None: that of the default."""
    example: str = ''
    """A text to suggest where the default is empty."""
    read: Callable[[str], object] | None = None
    """Reads its text in the launch file; None: by the type of the field."""


class LaunchArgument(NamedTuple):
    """An argument of the launch file."""

    default: str
    description: str
    choices: list[str] | None
    """None: any text."""


def option(default: T, help: str, **more: Any) -> T:
    """Return a field of a dataclass that can be set from outside; see `Option`."""
    made: T = field(default=default, metadata={'option': Option(help, **more)})
    return made


def argument(help: str, **more: Any) -> Any:
    """Return a field of a dataclass that must be given; see `Option`."""
    return field(metadata={'option': Option(help, is_positional=True, **more)})


def shared(default: T, cls: type, name: str) -> T:
    """Return a field that is set from outside as that of another dataclass is."""
    made: T = field(default=default, metadata={'option': options_of(cls)[name]})
    return made


def options_of(cls: type) -> dict[str, Option]:
    """Return the options of a dataclass by the names of their fields."""
    return {f.name: f.metadata['option'] for f in fields(cls) if 'option' in f.metadata}


def add_arguments(parser: argparse.ArgumentParser, cls: type) -> None:
    """Add the options of a dataclass to a parser."""
    groups: dict[str, Any] = {'': parser}
    for f, one, kind, is_many in _each(cls):
        if one.group not in groups:
            groups[one.group] = parser.add_mutually_exclusive_group()
        flag = '--' + (one.name or f.name).replace('_', '-')
        about: dict[str, Any] = {'help': _help(one, f.default), 'default': f.default}
        if one.choices:
            about['choices'] = one.choices
        if not one.is_positional:
            about['dest'] = f.name
        if kind is bool and f.default is None:
            about['action'] = argparse.BooleanOptionalAction
        elif kind is bool:
            flag = flag.replace('--', '--no-', 1) if f.default else flag
            about['action'] = 'store_false' if f.default else 'store_true'
            about['help'] = f'do not {one.help}' if f.default else one.help
        else:
            about |= {'type': kind, 'metavar': one.metavar}
        if is_many:
            about['nargs'] = '*' if one.is_positional else '+'
        groups[one.group].add_argument(f.name if one.is_positional else flag, **about)


def from_arguments(cls: type[T], args: argparse.Namespace) -> T:
    """Return the options that were given on the command line."""
    values = {name: getattr(args, name) for name in options_of(cls)}
    return cls(**{k: tuple(v) if isinstance(v, list) else v for k, v in values.items()})


def launch_arguments(cls: type) -> dict[str, LaunchArgument]:
    """Return the options of a dataclass as arguments of a launch file."""
    made = {}
    for f, one, _, _ in _each(cls):
        default = one.launch_default
        if default is None:
            default = str('' if f.default is None else f.default)
        default = default.lower() if isinstance(f.default, bool) else default
        choices = [*(('',) if not default else ()), *one.choices] if one.choices else None
        about = f'{one.help}; empty: {one.default_help}' if one.default_help else one.help
        made[one.name or f.name] = LaunchArgument(default, about, choices)
    return made


def from_texts(cls: type[T], texts: Mapping[str, str]) -> T:
    """Return the options that the arguments of a launch file ask for, given the text of each.

    Raises:
        ConfigError: If a text is no number, or neither true nor false, where one is expected.
    """
    values: dict[str, object] = {}
    for f, one, kind, _ in _each(cls):
        name = one.name or f.name
        if f.default is None and not texts[name]:
            values[f.name] = None
            continue
        try:
            values[f.name] = (one.read or _READERS[kind])(texts[name])
        except ValueError:
            usual = launch_arguments(cls)[name].default or one.example
            raise ConfigError(
                f'launch argument {name}: expected {_EXPECTED[kind]}'
                f'{UNITS.get(one.metavar or "", "")}, found {texts[name]!r}; say {name}:={usual}, '
                'or leave it out.'
            ) from None
    return cls(**values)


def _each(cls: type) -> Iterator[tuple[Field[Any], Option, type, bool]]:
    """Yield each option with its field, the type of its text, and whether there may be several."""
    hints = get_type_hints(cls)
    for f in fields(cls):
        if 'option' in f.metadata:
            members = [t for t in get_args(hints[f.name]) if t not in (NoneType, Ellipsis)]
            kind = members[0] if members else hints[f.name]
            inner = get_args(kind)  # of a tuple that may be None
            is_many = hints[f.name] is not kind and 'tuple' in str(hints[f.name])
            yield f, f.metadata['option'], inner[0] if inner else kind, is_many


def _help(one: Option, default: object) -> str:
    if one.default_help:
        return f'{one.help} (default: {one.default_help})'
    if isinstance(default, (bool, NoneType)) or default in ('', ()) or one.is_positional:
        return one.help
    return f'{one.help} (%(default)s)'


def _truth(word: str) -> bool:
    """Return what a word says, in the capitals of YAML or of Python."""
    return ('false', 'true').index(word.lower()) == 1


_READERS: dict[type, Callable[[str], object]] = {
    bool: _truth,
    float: float,
    int: int,
    str: str,
    Path: Path,
}
_EXPECTED = {bool: 'true or false', float: 'a number', int: 'a whole number'}


@dataclass(frozen=True, kw_only=True)
class ControllerOptions:
    """What is asked of the controller; its node has parameters of the same names."""

    controller: str = option(
        'policy',
        'policy: the bundle; gravity_compensation: guided by hand; the others are classical',
        choices=('policy', *CONTROLLERS),
    )
    policy: str = option(
        '',
        'a policy bundle: its path, or the NAME of a shipped one',
        default_help='adaptive',
        metavar='NAME',
    )
    policy_sha256: str = option(
        '',
        'refuse any bundle but the one with this SHA-256, as metactl inspect prints it',
        default_help='none',
        metavar='HASH',
    )
    classical_file: str = option(
        '',
        'gains of the classical ones',
        default_help='config/classical/nominal.yaml, delayed.yaml if started for a URDF',
        metavar='FILE',
    )
    arm_file: str = option(
        '',
        'an arm: its file, or the NAME of a shipped one',
        default_help='two_link',
        name='arm',
        metavar='NAME',
    )
    controller_file: str = option(
        '',
        'controller.yaml: law, gains, shield',
        default_help='that of the arm',
        metavar='FILE',
    )
    joint_prefix: str = option(
        '', 'put before the joint names of arm.yaml, as in left_joint1', metavar='TEXT'
    )
    autostart: bool | None = option(
        None,
        'configure and activate by itself; false: wait for its lifecycle',
        default_help='true for a simulated robot, for a real one its parameter (false)',
        example='true',
    )
    shadow: bool = option(
        False, 'publish all but the commands; estimates then assume these were sent'
    )
    reference: str = option(
        '',
        'trajectory: hold, and follow ~/joint_trajectory; sinusoid: built in, moves at once',
        default_help='sinusoid for a simulated robot, for a real one its parameter (trajectory)',
        choices=('sinusoid', 'trajectory'),
    )
    payload_kg: float | None = option(
        None,
        'payload, kg: what a simulated robot carries; for a real one the estimate',
        default_help='0.75 for a simulated robot, for a real one its parameter payload_kg',
        name='payload',
        metavar='KG',
        bounds=(0.0, LARGEST_PAYLOAD_KG),
        is_fixed=False,
        example='0.75',
    )


@dataclass(frozen=True, kw_only=True)
class PlantOptions:
    """What is asked of the simulated robot; its node has parameters of the same names."""

    plant: str = option(
        '',
        'bullet, rk4 or pinocchio: the simulated robot; none: a real one',
        default_help='pinocchio for an arm from a URDF, else bullet, without PyBullet rk4',
        choices=('bullet', 'rk4', 'pinocchio', 'none'),
    )
    tau_z_s: float = option(
        2.0,
        'memory horizon of the simulated friction, s',
        name='tau_z',
        metavar='S',
        bounds=TAU_Z_RANGE_S,
        is_fixed=False,
    )
    seed: int = option(
        42, 'of the episode: phases, initial error, payload estimate', bounds=(0, 2**31 - 1)
    )
    lockstep: bool = option(
        False,
        'simulated time: the simulated robot waits for the command of every state, repeatable',
        name='use_sim_time',
    )
    faults: str | Path = option(
        '',
        'what happens to the simulated robot: a YAML file, or a NAME of config/faults',
        default_help='nothing',
        metavar='NAME',
    )
    faults_start_s: float = 0.0
    """Where on the timeline of the faults the simulated robot begins."""


SHA256 = re.compile('([0-9a-fA-F]{64})?')
"""Of a bundle, or none."""


class Parameter(NamedTuple):
    """What a parameter is for."""

    description: str
    bounds: tuple[float, float] | None = None
    is_fixed: bool = True
    """Read once and never again; otherwise it may be set while the node runs."""
    default: Any = None
    """None: it is in the file of the node."""


def specs_of(options: type, *names: str) -> dict[str, Parameter]:
    """Return the options of a dataclass, or some of them, as parameters of a node."""
    return {
        name: Parameter(
            # Others have a default of their own in the file of the node.
            f'{one.help}; empty: {one.default_help}'
            if one.default_help and getattr(options, name) == '' and not one.choices
            else one.help,
            one.bounds,
            one.is_fixed,
        )
        for name, one in options_of(options).items()
        if not names or name in names
    }


CONTROLLER_PARAMETERS = {
    **specs_of(ControllerOptions),
    'sinusoid.amplitude_rad': Parameter('rad, one per joint'),
    'sinusoid.omega_radps': Parameter('rad/s, one per joint'),
    'sinusoid.phase_rad': Parameter('rad, one per joint'),
    'sinusoid.centre_rad': Parameter('what it swings about, rad, one per joint'),
    'state_timeout_s': Parameter('a joint state older than this is stale: BLIND', (0.005, 10.0)),
    'inference_budget_s': Parameter('a slower policy is late: FALLBACK', (1e-4, 1.0)),
    'state_lead_s': Parameter('how long before a tick its joint state should come', (0.0, 0.005)),
    'realtime_priority': Parameter(
        'SCHED_FIFO priority, and no core sleeps, where permitted; 0: neither', (0, 99)
    ),
}
PLANT_PARAMETERS = {
    **specs_of(ControllerOptions, 'arm_file'),
    **specs_of(PlantOptions, 'tau_z_s', 'seed', 'lockstep', 'faults'),
    'plant_file': Parameter('plant.yaml: friction, task, sensing; empty: that of the arm'),
    'plant': Parameter(
        f'simulator, one of {", ".join(get_args(PlantName))}; empty: what fits the arm'
    ),
    'num_rollouts': Parameter('episodes drawn from the seed', (1, 10_000)),
    'rollout': Parameter('which of them is run, from 0', (0, 9_999)),
    'payload_kg': Parameter('point mass at the tip, kg', (0.0, 10.0), is_fixed=False),
    'command_timeout_s': Parameter('without a command for longer, brake', (0.001, 10.0)),
    'faults_start_s': Parameter('where on their timeline this process begins, s', (0.0, 1e6)),
    'realtime_priority': Parameter('SCHED_FIFO priority where permitted; 0: none', (0, 99)),
}
FAULT_PARAMETERS = {
    f'fault.{name}': Parameter(
        f'{kind.meaning}; {kind.unit}', kind.bounds, is_fixed=False, default=kind.usual
    )
    for name, kind in KINDS.items()
    if kind.unit
}
"""The amounts with which the services ~/fault/KIND of the plant switch faults on."""


def defaults_of(file: str) -> dict[str, Any]:
    """Return the defaults of a node from its shipped file, nested names joined by dots."""
    content = cast('dict[str, Any]', read_yaml(share_directory() / 'config' / file))
    return dict(_flat(content['/**']['ros__parameters']))


def require_sound_parameters(values: Mapping[str, Any], num_joints: int) -> None:
    """Refuse values of the controller's parameters, by name, that no range can express.

    Raises:
        ConfigError: With the name of the parameter.
    """
    for name, choices in (
        ('controller', ('policy', *CONTROLLERS)),
        ('reference', ('sinusoid', 'trajectory')),
    ):
        if values[name] not in choices:
            raise ConfigError(f'{name}: expected one of {choices}, found {values[name]!r}.')
    if not SHA256.fullmatch(values['policy_sha256']):
        raise ConfigError(
            'policy_sha256: expected 64 hexadecimal digits, as metactl inspect prints them, or '
            f'nothing, found {values["policy_sha256"]!r}.'
        )
    for name, value in values.items():
        # Whoever follows trajectories of an arm with more joints need not know of sinusoids.
        is_asked_for = name.startswith('sinusoid.') and values['reference'] == 'sinusoid'
        if is_asked_for and (len(value) != num_joints or not np.isfinite(value).all()):
            raise ConfigError(
                f'{name}: expected {num_joints} finite numbers, one per joint, '
                f'found {list(value)}.'
            )


def _flat(values: Mapping[str, Any], prefix: str = '') -> Iterator[tuple[str, Any]]:
    for name, value in values.items():
        if isinstance(value, dict):
            yield from _flat(value, f'{prefix}{name}.')
        else:
            yield prefix + name, value
