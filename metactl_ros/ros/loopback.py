# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""Keeps ROS on this machine: the environment of a node that no network can reach.

Fast DDS as pip installs it has no DDS-Security, so any program that reaches a socket of a node may
drive the arm. What was measured of the ways to close it (rmw_fastrtps_cpp 8.4.3, Fast DDS 2.14.5):

    config/loopback.xml, as set up here          sockets on 127.0.0.1 only
    ROS_AUTOMATIC_DISCOVERY_RANGE=LOCALHOST      sockets on 0.0.0.0
    ROS_LOCALHOST_ONLY=1 beside loopback.xml     one on 0.0.0.0, one on every network address
    DEFAULT_FASTRTPS_PROFILES.xml beside it      whatever that file says: it replaces the profile
"""

from collections.abc import Mapping
import os

from metactl_ros.errors import ConfigError
from metactl_ros.settings import share_directory

MAX_DOMAIN_ID = 101
"""Above it the ports of DDS run into those Linux gives out by itself."""


def loopback_environment(domain_id: int | None) -> dict[str, str]:
    """Return the variables to start a node with, to be laid over `os.environ`.

    Args:
        domain_id: Nodes of different domains do not see each other, 0 to 101; None keeps what the
            environment says.

    Raises:
        ConfigError: If there is no such domain.
    """
    profile = str(share_directory() / 'config' / 'loopback.xml')
    environment = {
        'RMW_IMPLEMENTATION': 'rmw_fastrtps_cpp',
        'FASTRTPS_DEFAULT_PROFILES_FILE': profile,
        'FASTDDS_DEFAULT_PROFILES_FILE': profile,  # its name from Fast DDS 3 on
        'SKIP_DEFAULT_XML_FILE': '1',  # of the working directory
        'RMW_FASTRTPS_USE_QOS_FROM_XML': '0',
        'ROS_AUTOMATIC_DISCOVERY_RANGE': 'SUBNET',  # any other adds sockets to the profile's
        'ROS_LOCALHOST_ONLY': '',
        'ROS_STATIC_PEERS': '',
        'ROS_DISCOVERY_SERVER': '',
    }
    if domain_id is not None:
        if not 0 <= domain_id <= MAX_DOMAIN_ID:
            raise ConfigError(
                f'domain_id: expected 0 to {MAX_DOMAIN_ID}, found {domain_id}; take another.'
            )
        environment['ROS_DOMAIN_ID'] = str(domain_id)
    return environment


def require_secure_or_local(environment: Mapping[str, str] = os.environ) -> None:
    """Refuse to start unsecured where security was asked for.

    With any strategy but Enforce, a node that cannot be secured comes up in the open all the same,
    and ROS takes every value of ROS_SECURITY_ENABLE but `true` for no.

    Raises:
        ConfigError: Unless security is off, or on and enforced.
    """
    wanted = environment.get('ROS_SECURITY_ENABLE', '')
    if wanted.lower() in ('', '0', 'false'):
        return
    strategy = environment.get('ROS_SECURITY_STRATEGY', '')
    if (wanted, strategy) != ('true', 'Enforce'):
        raise ConfigError(
            'security: expected ROS_SECURITY_ENABLE=true with ROS_SECURITY_STRATEGY=Enforce, '
            f'found {wanted!r} with {strategy!r}, which may run without any; set both, or unset '
            'them and keep to this machine with loopback_environment.'
        )
