# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""Publishes the arm's description, and its frames as joint states arrive, for RViz."""

from launch import LaunchDescription
from launch.actions import DeclareLaunchArgument
from launch.substitutions import FileContent, LaunchConfiguration, PathJoinSubstitution
from launch_ros.actions import Node
from launch_ros.parameter_descriptions import ParameterValue
from launch_ros.substitutions import FindPackageShare


def generate_launch_description() -> LaunchDescription:
    """Return robot_state_publisher, holding the URDF file of the argument `urdf`."""
    shipped = PathJoinSubstitution([FindPackageShare('metactl_ros'), 'config', 'arm.urdf'])
    description = ParameterValue(FileContent(LaunchConfiguration('urdf')), value_type=str)
    return LaunchDescription(
        [
            DeclareLaunchArgument(
                'urdf', default_value=shipped, description='URDF file of the arm to show.'
            ),
            Node(
                package='robot_state_publisher',
                executable='robot_state_publisher',
                parameters=[{'robot_description': description}],
            ),
        ]
    )
