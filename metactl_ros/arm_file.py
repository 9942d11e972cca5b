# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""Reads an arm from an arm file of YAML and the URDF that it names."""

from pathlib import Path
from typing import TYPE_CHECKING

from metactl_ros.config import build
from metactl_ros.dynamics.urdf_arm import ArmFile, check_arm, CheckedArm
from metactl_ros.errors import ConfigError
from metactl_ros.files import read_at_most, read_yaml

if TYPE_CHECKING:
    from metactl_ros.dynamics.urdf_body import UrdfArm

MAX_URDF_BYTES = 2**24


def read_arm_file(path: Path) -> CheckedArm:
    """Return what an arm file and its URDF state, once they fit together; needs no library.

    Raises:
        ConfigError: If one of them cannot be read, or is refused.
    """
    arm = build(ArmFile, read_yaml(path), path.name)
    urdf = path.parent / arm.urdf
    try:
        text = read_at_most(urdf, MAX_URDF_BYTES).decode('utf-8')
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise ConfigError(
            f'{path.name}: urdf: {urdf} cannot be read ({why}); give its path from the folder of '
            'the arm file.'
        ) from None
    return check_arm(arm, text, f'{path.name}, {urdf.name}')._replace(path=path)


def load_urdf_arm(path: Path) -> 'UrdfArm':
    """Return the model of the arm that an arm file describes.

    Raises:
        ConfigError: If the file or its URDF cannot be read, or is refused.
        MissingDependency: If Pinocchio is not installed.
    """
    # Imported here: reading and checking a file needs no Pinocchio.
    from metactl_ros.dynamics.urdf_body import UrdfArm

    return UrdfArm(read_arm_file(path))
