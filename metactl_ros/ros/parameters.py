# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""The parameters of the nodes: what each is for here, its default in `config/NODE.yaml`."""

from collections.abc import Iterator, Mapping
import difflib
import re
from typing import Any, cast, get_args, NamedTuple

import numpy as np

from metactl_ros.baselines import CLASSICAL
from metactl_ros.errors import ConfigError
from metactl_ros.files import read_yaml
from metactl_ros.options import ControllerOptions, options_of, PlantOptions
from metactl_ros.settings import PlantName, share_directory
from metactl_ros.sim.faults import KINDS

SHA256 = re.compile('([0-9a-fA-F]{64})?')
"""Of a bundle, or none."""


class Meaning(NamedTuple):
    """What a parameter is for."""

    description: str
    bounds: tuple[float, float] | None = None
    is_fixed: bool = True
    """Read once and never again; otherwise it may be set while the node runs."""
    default: Any = None
    """None: it is in the file of the node."""


def meanings_of(options: type, *names: str) -> dict[str, Meaning]:
    """Return the options of a dataclass, or some of them, as parameters of a node."""
    return {
        name: Meaning(
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


CONTROLLER = {
    **meanings_of(ControllerOptions),
    'sinusoid.amplitude_rad': Meaning('rad, one per joint'),
    'sinusoid.omega_radps': Meaning('rad/s, one per joint'),
    'sinusoid.phase_rad': Meaning('rad, one per joint'),
    'sinusoid.centre_rad': Meaning('what it swings about, rad, one per joint'),
    'state_timeout_s': Meaning('a joint state older than this is stale: BLIND', (0.005, 10.0)),
    'inference_budget_s': Meaning('a slower policy is late: FALLBACK', (1e-4, 1.0)),
    'state_lead_s': Meaning('how long before a tick its joint state should come', (0.0, 0.005)),
    'realtime_priority': Meaning(
        'SCHED_FIFO priority, and no core sleeps, where permitted; 0: neither', (0, 99)
    ),
}
PLANT = {
    **meanings_of(ControllerOptions, 'arm_file'),
    **meanings_of(PlantOptions, 'tau_z_s', 'seed', 'lockstep', 'faults'),
    'plant_file': Meaning('plant.yaml: friction, task, sensing; empty: that of the arm'),
    'plant': Meaning(
        f'simulator, one of {", ".join(get_args(PlantName))}; empty: what fits the arm'
    ),
    'num_rollouts': Meaning('episodes drawn from the seed', (1, 10_000)),
    'rollout': Meaning('which of them is run, from 0', (0, 9_999)),
    'payload_kg': Meaning('point mass at the tip, kg', (0.0, 10.0), is_fixed=False),
    'command_timeout_s': Meaning('without a command for longer, brake', (0.001, 10.0)),
    'faults_start_s': Meaning('where on their timeline this process begins, s', (0.0, 1e6)),
    'realtime_priority': Meaning('SCHED_FIFO priority where permitted; 0: none', (0, 99)),
}
FAULTS = {
    f'fault.{name}': Meaning(
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


def declare(node: Any, meanings: Mapping[str, Meaning], file: str) -> None:
    """Declare every parameter of a node, with description and range.

    Raises:
        ConfigError: If a value does not fit, or a name is nearly that of a parameter.
    """
    from rcl_interfaces.msg import FloatingPointRange, IntegerRange, ParameterDescriptor
    from rclpy.exceptions import ParameterException

    from metactl_ros.ros.spin import parameter_overrides

    defaults = defaults_of(file)
    for name, (description, bounds, is_fixed, default) in meanings.items():
        about = ParameterDescriptor(description=description, read_only=is_fixed)
        if bounds is not None and isinstance(bounds[0], float):
            limits = FloatingPointRange(from_value=bounds[0], to_value=bounds[1])
            about.floating_point_range = [limits]
        elif bounds is not None:
            about.integer_range = [IntegerRange(from_value=bounds[0], to_value=bounds[1])]
        try:
            node.declare_parameter(name, defaults[name] if default is None else default, about)
        except ParameterException as error:
            raise ConfigError(f'parameter {name}: {error}') from None
    for name in parameter_overrides(node) - set(meanings):
        near = difflib.get_close_matches(name, meanings, n=1, cutoff=0.8)
        if near:
            raise ConfigError(f'parameter {name}: unknown; did you mean {near[0]!r}?')


def require_sound(values: Mapping[str, Any], num_joints: int) -> None:
    """Refuse values of the controller's parameters, by name, that no range can express.

    Raises:
        ConfigError: With the name of the parameter.
    """
    for name, choices in (
        ('controller', ('policy', *CLASSICAL)),
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
