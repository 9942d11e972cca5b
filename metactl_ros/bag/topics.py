# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""The topics that are recorded, the definitions of their messages, and what some of them hold.

A bag carries the .msg texts of its messages, so that it can be read without ROS. Every message
package installs `share/<package>/msg/<Type>.msg` and, next to it, a .json that names all types the
message is made of and their hashes. This holds for the wheels, apt and colcon.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from importlib.util import find_spec
import json
from pathlib import Path
from typing import NamedTuple, Self

from metactl_ros.config import build, stated
from metactl_ros.control.estimators.choice import EstimatorSettings
from metactl_ros.control.gain_map import GainBox
from metactl_ros.control.settings import ControllerSettings
from metactl_ros.errors import ConfigError, MissingDependency
from metactl_ros.signals import Array

JOINT_STATE = 'sensor_msgs/msg/JointState'
STAMPED = 'joint_commands'
"""The commands, with stamp and names."""
FORWARD = 'forward_effort_controller/commands'
"""The same as a robot of ros2_control applies them, without a stamp."""
TOPICS = {
    'joint_states': JOINT_STATE,
    STAMPED: JOINT_STATE,
    FORWARD: 'std_msgs/msg/Float64MultiArray',
    'stop_request': 'std_msgs/msg/Bool',
    'controller/reference': 'trajectory_msgs/msg/JointTrajectory',
    'controller/feedback': JOINT_STATE,
    'controller/error': JOINT_STATE,
    'controller/output': JOINT_STATE,
    'controller/gains': JOINT_STATE,
    'controller/shield': JOINT_STATE,
    'controller/bundle': 'std_msgs/msg/String',
    'controller/transition_event': 'lifecycle_msgs/msg/TransitionEvent',
    'plant/truth': JOINT_STATE,
    'plant/faults': JOINT_STATE,
    'plant/braking': 'std_msgs/msg/Bool',
    '/diagnostics': 'diagnostic_msgs/msg/DiagnosticArray',
    '/clock': 'rosgraph_msgs/msg/Clock',
    '/parameter_events': 'rcl_interfaces/msg/ParameterEvent',
}
"""What is recorded unless the parameter `topics` says otherwise; others need `name=type` there."""
SHARED_TOPICS = ('/diagnostics', '/clock', '/parameter_events')
"""Every node of the network may publish here: a bag of these alone is of no robot."""
LATCHED = (
    'stop_request',
    'controller/bundle',
    'controller/reference',
    'controller/feedback',
    'controller/error',
    'controller/output',
    'controller/gains',
    'controller/shield',
    'plant/faults',
    'plant/braking',
)
"""Kept by the publisher for late subscribers: a bag has the first tick, however early it came."""
SHIELD_NAMES = (
    'mode',
    'reason',
    'was_moved',
    'is_feasible',
    'distance',
    'excess',
    'excess_after_limits',
    'lyapunov_value',
    'state_is_fresh',
    'reference_is_valid',
    'policy_is_on_time',
    'error',
    'reset_requested',
    'payload_estimate_kg',
    'was_restarted',
    'num_states',
    'now_s',
    'late_ms',
    'inference_ms',
    'state_stamp_sec',
    'state_stamp_nanosec',
    'cause',
    'cause_joint',
    'was_resumed',
)
"""Then follow normal.NAME for each gain and constant: normal . theta + constant <= 0 was asked;
then, of a controller with an estimator, estimate.JOINT for each joint, N m.

distance is -1 where the proposal was replaced; mode is a `Mode`, error and cause are
a `Cause`, reason is a `Reason`; cause_joint counts from 0, -1 is none in
particular.
"""
SETTINGS = 'settings'
"""The key of a `RecordedController` in the table of ~/bundle."""
SEPARATOR = '=' * 80


class MessageDefinition(NamedTuple):
    """A message type as a bag describes it."""

    type_name: str
    """Such as sensor_msgs/msg/JointState."""
    text: str
    """The .msg file, followed by those of all types it is made of."""
    type_hash: str
    """RIHS01, as ROS computes it."""


def parse_topics(entries: Iterable[str]) -> list[tuple[str, str]]:
    """Return the names and types of entries `name` (of TOPICS) or `name=type`.

    Raises:
        ConfigError: If there are none, one lacks its type, or one is there twice.
    """
    parsed: dict[str, str] = {}
    for entry in entries:
        name, _, type_name = entry.partition('=')
        type_name = type_name or TOPICS.get(name, '')
        if not type_name:
            raise ConfigError(
                f'topics: {entry!r} needs its type, as in {name}=std_msgs/msg/String; without it '
                f'go {", ".join(TOPICS)}.'
            )
        if name in parsed:
            raise ConfigError(f'topics: {name!r} is there twice; name it once.')
        parsed[name] = type_name
    if not parsed:
        raise ConfigError('topics: names none; leave it out to record the usual ones.')
    return list(parsed.items())


def load_definition(type_name: str) -> MessageDefinition:
    """Return the definition of an installed message type, such as sensor_msgs/msg/JointState.

    Raises:
        ConfigError: If the name is not of that form.
        MissingDependency: If no such type is installed.
    """
    source = _definition_file(type_name)
    description = json.loads(source.with_suffix('.json').read_text(encoding='utf-8'))
    texts = [source.read_text(encoding='utf-8')]
    for part in description['type_description_msg']['referenced_type_descriptions']:
        package, _, name = part['type_name'].split('/')
        texts.append(f'{SEPARATOR}\nMSG: {package}/{name}\n')
        texts[-1] += _definition_file(part['type_name']).read_text(encoding='utf-8')
    hashes = {row['type_name']: row['hash_string'] for row in description['type_hashes']}
    return MessageDefinition(type_name, '\n'.join(texts), hashes[type_name])


def _definition_file(type_name: str) -> Path:
    match type_name.split('/'):
        case [package, 'msg', name] if package.isidentifier() and name.isidentifier():
            pass
        case _:
            raise ConfigError(
                f'message type {type_name!r}: expected package/msg/Type, such as '
                'sensor_msgs/msg/JointState.'
            )
    spec = find_spec(package)
    if spec is not None and spec.origin is not None:
        # lib/python3.x/site-packages/<package> and share/<package> have one prefix in common.
        for prefix in Path(spec.origin).parents:
            if (path := prefix / 'share' / package / 'msg' / f'{name}.msg').is_file():
                return path
    raise MissingDependency(
        f'message type {type_name!r}: not installed; install its package with pip install '
        f'ros-jazzy-{package.replace("_", "-")}, or source the workspace that has it.'
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class RecordedController:
    """What of a controller is not in the robot's `controller.yaml`, as ~/bundle carries it.

    Gains and estimator of a baseline come from a file that may be another one when its bag is
    replayed. So the node publishes them as JSON, which keeps every bit of a number.
    """

    gain_box: GainBox
    estimator: EstimatorSettings | None = None
    action: tuple[float, ...] | None = None
    """What a constant policy proposes, shape (m,); None if it depends on the window."""

    def __post_init__(self) -> None:
        kinds = len(self.gain_box.named_ends())
        if self.action is not None and (not self.action or len(self.action) % kinds):
            raise ConfigError(
                f'RecordedController.action: expected {kinds} entries per joint, one per gain, '
                f'found {len(self.action)}.'
            )

    @classmethod
    def of(cls, controller: ControllerSettings, action: Array | None) -> Self:
        """Return what is recorded of a controller, and of the action of a constant policy."""
        return cls(
            gain_box=controller.gain_box,
            estimator=controller.estimator,
            action=None if action is None else tuple(action.tolist()),
        )

    @classmethod
    def from_json(cls, text: str, where: str) -> Self:
        """Return what `to_json` wrote.

        Raises:
            ConfigError: If it is something else; `where` begins the message.
        """
        try:
            return build(cls, json.loads(text), where)
        except (ValueError, RecursionError) as error:  # not JSON, other settings, nested forever
            raise ConfigError(f'{where}: cannot be read ({error}); record again.') from None

    def to_json(self) -> str:
        """Return the text that ~/bundle carries."""
        return json.dumps(stated(self))

    def applied_to(self, robot: ControllerSettings) -> ControllerSettings:
        """Return the settings of the controller on a robot."""
        return replace(robot, gain_box=self.gain_box, estimator=self.estimator)
