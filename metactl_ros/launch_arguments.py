# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""The arguments of `launch/meta_controller.launch.py`, and what they ask for.

They are here, and not in that file, so that they work alike, and are tested, where the launch
packages are absent.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple, TypeVar

from metactl_ros.baselines import CLASSICAL
from metactl_ros.errors import ConfigError
from metactl_ros.processes import dated_bag, Setup

T = TypeVar('T')


class Argument(NamedTuple):
    """An argument of the launch file."""

    usual: str
    description: str
    choices: list[str] | None = None
    """None: any text."""


class Wish(NamedTuple):
    """What the arguments of the launch file ask for."""

    setup: Setup
    duration_s: float
    """Zero lasts for ever."""
    is_local: bool
    """All traffic stays on this machine."""


USUAL = Setup()
LAUNCH_ARGUMENTS = {
    'policy': Argument(
        USUAL.policy,
        'a policy bundle: its path, or the NAME of a shipped one; empty: robust_tau2',
    ),
    'policy_sha256': Argument(
        USUAL.policy_sha256, 'refuse any bundle but the one with this SHA-256; empty: none'
    ),
    'controller': Argument(
        USUAL.controller,
        'policy: the bundle; the others are classical',
        ['policy', *CLASSICAL],
    ),
    'classical_file': Argument(
        USUAL.classical_file, 'gains of the classical ones; empty: config/classical/nominal.yaml'
    ),
    'arm_file': Argument(USUAL.arm_file, 'arm.yaml: joints, masses, limits; empty: the shipped'),
    'controller_file': Argument(
        USUAL.controller_file, 'controller.yaml: law, gains, shield; empty: the shipped'
    ),
    'joint_prefix': Argument(
        USUAL.joint_prefix, 'put before the joint names of arm.yaml; only with plant:=none'
    ),
    'reference': Argument(
        USUAL.reference,
        'trajectory: hold, and follow ~/joint_trajectory; sinusoid: built in; empty: sinusoid for '
        'a simulated robot, for a real one what the parameter says (trajectory)',
        ['', 'sinusoid', 'trajectory'],
    ),
    'autostart': Argument(
        '',
        'whether control begins by itself; empty: true for a simulated robot, for a real one what '
        'the parameter says (false: configure and activate it)',
    ),
    'shadow': Argument(str(USUAL.shadow).lower(), 'true: publish all but the commands'),
    'plant': Argument(
        USUAL.plant,
        'bullet or rk4: the simulated robot; none: a real one',
        ['bullet', 'rk4', 'none'],
    ),
    'tau_z': Argument(str(USUAL.tau_z_s), 'memory horizon of the simulated friction, s'),
    'payload': Argument(
        '',
        f'kg; empty: {USUAL.payload_kg} for a simulated robot, for a real one what the parameter '
        'payload_kg says',
    ),
    'seed': Argument(str(USUAL.seed), 'of the simulated episode'),
    'duration': Argument('0.0', 'end after so many seconds; 0: never'),
    'namespace': Argument(USUAL.namespace, 'of all nodes and topics'),
    'params_file': Argument(
        '',
        'a YAML file of ROS parameters; the simulated episode, and arguments other than their '
        'defaults, overrule it',
    ),
    'record': Argument(
        'false', 'true: write a bag runs/bags/DATE_TIME; false: none; else the folder of the bag'
    ),
    'faults': Argument(
        str(USUAL.faults), 'what the simulated robot suffers: a file, or a NAME of config/faults'
    ),
    'use_sim_time': Argument(
        str(USUAL.lockstep).lower(),
        'simulated time; the simulated robot then runs in lockstep, repeatable to the bit',
    ),
    'loopback': Argument(
        'true', 'keep all traffic on this machine; false: the DDS settings around'
    ),
    'log_level': Argument(USUAL.log_level, 'debug, info, warn or error'),
}

EXAMPLES = {'payload': str(USUAL.payload_kg), 'autostart': 'true'}
"""Of arguments that are usually empty."""


def wish_of(text: Mapping[str, str]) -> Wish:
    """Return what the arguments of the launch file ask for, given the text of each.

    Raises:
        ConfigError: If a text is no number, or neither true nor false, where one is expected.
    """
    payload_kg = _read(text, 'payload', 'a number of kg', float) if text['payload'] else None
    setup = Setup(
        controller=text['controller'],
        policy=text['policy'],
        policy_sha256=text['policy_sha256'],
        classical_file=text['classical_file'],
        arm_file=text['arm_file'],
        controller_file=text['controller_file'],
        joint_prefix=text['joint_prefix'],
        reference=text['reference'],
        autostart=_read(text, 'autostart', 'true or false', _truth) if text['autostart'] else None,
        shadow=_read(text, 'shadow', 'true or false', _truth),
        plant=text['plant'],
        tau_z_s=_read(text, 'tau_z', 'a number of seconds', float),
        payload_kg=USUAL.payload_kg if payload_kg is None else payload_kg,
        payload_estimate_kg=payload_kg,
        seed=_read(text, 'seed', 'a whole number', int),
        lockstep=_read(text, 'use_sim_time', 'true or false', _truth),
        namespace=text['namespace'],
        params_file=Path(text['params_file']) if text['params_file'] else None,
        record=_bag(text['record']),
        faults=text['faults'],
        log_level=text['log_level'],
    )
    duration_s = _read(text, 'duration', 'a number of seconds', float)
    return Wish(setup, duration_s, _read(text, 'loopback', 'true or false', _truth))


def _read(text: Mapping[str, str], name: str, expected: str, convert: Callable[[str], T]) -> T:
    try:
        return convert(text[name])
    except ValueError:
        raise ConfigError(
            f'launch argument {name}: expected {expected}, found {text[name]!r}; '
            f'say {name}:={LAUNCH_ARGUMENTS[name].usual or EXAMPLES[name]}, or leave it out.'
        ) from None


def _truth(word: str) -> bool:
    """Return what a word says, in the capitals of YAML or of Python."""
    return ('false', 'true').index(word.lower()) == 1


def _bag(word: str) -> Path | None:
    """Return the folder that the argument `record` asks for."""
    if word.lower() in ('', 'false'):
        return None
    return dated_bag() if word.lower() == 'true' else Path(word)
