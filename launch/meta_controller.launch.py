# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""Starts the controller, the simulated robot it is to drive, and on request a recorder.

For a real robot say plant:=none and remap `joint_states` and the command topic to its own. The
controller is then told nothing that was not chosen: the rest is as params_file says, and unless
that says otherwise it waits to be configured and activated, holds the arm, and follows
`~/joint_trajectory`.
`metactl up` does the same without the launch packages.
"""

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

from metactl_ros.options import from_texts, launch_arguments
from metactl_ros.processes import (
    default_parameters,
    LaunchRequest,
    loopback_environment,
    parameters_of,
)
from metactl_ros.settings import require_files

ARGUMENTS = launch_arguments(LaunchRequest)
EXECUTABLES = {
    'controller_node': 'metactl_controller',
    'plant_node': 'metactl_plant',
    'recorder': 'metactl_recorder',
}


def start(context: LaunchContext) -> list[LaunchDescriptionEntity]:
    """Return the actions, now that the arguments have values."""
    texts = {name: LaunchConfiguration(name).perform(context) for name in ARGUMENTS}
    setup = from_texts(LaunchRequest, texts)
    require_files(vars(setup))
    assumed = {module: [values] for module, values in default_parameters(setup).items()}
    files = [] if setup.params_file is None else [str(setup.params_file)]
    nodes: list[LaunchDescriptionEntity] = [
        Node(
            package='metactl_ros',
            executable=EXECUTABLES[module],
            namespace=setup.namespace,
            output='screen',
            parameters=[*assumed.get(module, []), *files, values],
            ros_arguments=['--log-level', setup.log_level],
            on_exit=Shutdown(reason=f'{module} ended'),
        )
        for module, values in parameters_of(setup).items()
    ]
    if setup.loopback:
        local = loopback_environment(None)
        nodes = [*(SetEnvironmentVariable(*pair) for pair in local.items()), *nodes]
    if setup.duration_s > 0.0:
        over = Shutdown(reason='the duration is over')
        nodes.append(TimerAction(period=setup.duration_s, actions=[over]))
    return nodes


def generate_launch_description() -> LaunchDescription:
    """Return the arguments with their descriptions, and what they start."""
    declared = [
        DeclareLaunchArgument(
            name,
            default_value=argument.default,
            description=argument.description,
            choices=argument.choices,
        )
        for name, argument in ARGUMENTS.items()
    ]
    return LaunchDescription([*declared, OpaqueFunction(function=start)])
