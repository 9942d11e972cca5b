# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""Where the .msg texts come from that a bag carries, so that it can be read without ROS.

Every message package installs `share/<package>/msg/<Type>.msg` and, next to it, a .json that names
all types the message is made of and their hashes. This holds for the wheels, apt and colcon.
"""

from importlib.util import find_spec
import json
from pathlib import Path
from typing import NamedTuple

from metactl_ros.errors import ConfigError, MissingDependency

SEPARATOR = '=' * 80


class MessageDefinition(NamedTuple):
    """A message type as a bag describes it."""

    type_name: str
    """Such as sensor_msgs/msg/JointState."""
    text: str
    """The .msg file, followed by those of all types it is made of."""
    type_hash: str
    """RIHS01, as ROS computes it."""


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
