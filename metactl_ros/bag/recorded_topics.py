# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""What is recorded: the topics of this package, and any others with their types."""

from collections.abc import Iterable

from metactl_ros.errors import ConfigError

JOINT_STATE = 'sensor_msgs/msg/JointState'
TOPICS = {
    'joint_states': JOINT_STATE,
    'joint_commands': JOINT_STATE,
    'forward_effort_controller/commands': 'std_msgs/msg/Float64MultiArray',
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
ANYBODYS = ('/diagnostics', '/clock', '/parameter_events')
"""On these every node of the network may talk: a bag of them alone is of no robot."""
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
"""Kept by the publisher for who comes later: a bag has the first tick, however fast it came."""


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
