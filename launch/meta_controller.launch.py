# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""Starts the controller, the simulated robot it is to drive, and on request a recorder.

For a real robot say plant:=none and remap `joint_states` and the command topic to its own.
`metactl up` does the same without the launch packages.
"""

import json

from launch import LaunchDescription, LaunchDescriptionEntity
from launch.actions import (
    DeclareLaunchArgument,
    OpaqueFunction,
    SetEnvironmentVariable,
    Shutdown,
    TimerAction,
)
from launch.launch_context import LaunchContext
from launch.substitutions import LaunchConfiguration
from launch_ros.actions import Node

from metactl_ros.nodes.fleet import parameters_of, Setup
from metactl_ros.nodes.middleware import loopback_environment
from metactl_ros.rivals import CLASSICAL

USUAL = Setup()
ARGUMENTS = {
    'policy': ('', 'path of a policy bundle NAME.metactl; empty: the shipped one'),
    'controller': (USUAL.controller, 'policy: the bundle; the others are classical'),
    'classical_file': ('', 'gains of the classical ones; empty: config/classical/nominal.yaml'),
    'plant': (USUAL.plant, 'bullet or rk4: the simulated robot; none: a real one'),
    'tau_z': (str(USUAL.tau_z_s), 'memory horizon of the simulated friction, s'),
    'payload': (str(USUAL.payload_kg), 'payload of the simulated robot, kg'),
    'seed': (str(USUAL.seed), 'of the simulated episode'),
    'duration': ('0.0', 'end after so many seconds; 0: never'),
    'namespace': ('', 'of all nodes and topics'),
    'params_file': ('', 'a YAML file of ROS parameters'),
    'record': ('', 'folder of a bag to write; empty: none'),
    'faults': ('', 'what the simulated robot suffers: a file, or a NAME of config/faults'),
    'use_sim_time': ('false', 'lockstep with the simulated robot: repeatable to the bit'),
    'loopback': ('true', 'keep all traffic on this machine; false: the DDS settings around'),
    'log_level': (USUAL.log_level, 'debug, info, warn or error'),
}
CHOICES = {'controller': ['policy', *CLASSICAL], 'plant': ['bullet', 'rk4', 'none']}

EXECUTABLES = {
    'controller_node': 'metactl_controller',
    'plant_node': 'metactl_plant',
    'recorder': 'metactl_recorder',
}


def start(context: LaunchContext) -> list[LaunchDescriptionEntity]:
    """Return the actions, now that the arguments have values."""
    text = {name: LaunchConfiguration(name).perform(context) for name in ARGUMENTS}
    setup = Setup(
        controller=text['controller'],
        policy=text['policy'],
        classical_file=text['classical_file'],
        plant=text['plant'],
        tau_z_s=float(text['tau_z']),
        payload_kg=float(text['payload']),
        seed=int(text['seed']),
        lockstep=json.loads(text['use_sim_time']),
        record=text['record'] or None,
        faults=text['faults'],
    )
    files = [text['params_file']] if text['params_file'] else []
    nodes: list[LaunchDescriptionEntity] = [
        Node(
            package='metactl_ros',
            executable=EXECUTABLES[module],
            namespace=text['namespace'],
            output='screen',
            parameters=[*files, values],
            ros_arguments=['--log-level', text['log_level']],
            on_exit=Shutdown(reason=f'{module} ended'),
        )
        for module, values in parameters_of(setup).items()
    ]
    if json.loads(text['loopback']):
        local = loopback_environment(None)
        nodes = [*(SetEnvironmentVariable(*pair) for pair in local.items()), *nodes]
    if float(text['duration']) > 0.0:
        over = Shutdown(reason='the duration is over')
        nodes.append(TimerAction(period=float(text['duration']), actions=[over]))
    return nodes


def generate_launch_description() -> LaunchDescription:
    """Return the arguments with their descriptions, and what they start."""
    declared = [
        DeclareLaunchArgument(
            name, default_value=default, description=description, choices=CHOICES.get(name)
        )
        for name, (default, description) in ARGUMENTS.items()
    ]
    return LaunchDescription([*declared, OpaqueFunction(function=start)])
