# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""Result files: JSON that is complete or absent, with what is needed to repeat the run."""

import dataclasses
from importlib import metadata
import json
import os
from pathlib import Path
import platform
import sys
from typing import Any

from metactl_ros.settings import Settings


def write_json(path: Path, value: object) -> None:
    """Write JSON so that a crash leaves the old file or the new one, never a part.

    NaN and infinity are refused: they are not JSON, and a result that holds one is not a result.
    """
    text = json.dumps(value, indent=2, allow_nan=False) + '\n'
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f'.{path.name}.{os.getpid()}.partial')
    with partial.open('w', encoding='utf-8') as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)


def provenance(settings: Settings) -> dict[str, Any]:
    """Return the resolved settings, the versions and the command, for a result file."""
    packages = ('metactl_ros', 'numpy', 'pybullet', 'torch', 'stable-baselines3')
    return {
        'settings': dataclasses.asdict(settings),
        'versions': {'python': platform.python_version()}
        | {name: version for name in packages if (version := _version(name))},
        'command': [Path(sys.argv[0]).name, *sys.argv[1:]],
    }


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
