# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""Result files: JSON that is complete or absent, with what is needed to repeat the run."""

from importlib import metadata
import json
from pathlib import Path
import platform
import subprocess
import sys

from metactl_ros.config import stated
from metactl_ros.files import write_atomically
from metactl_ros.settings import Settings

SOURCES = ('metactl_ros', 'training', 'config')
"""What decides a result."""


def write_json(path: Path, value: object) -> None:
    """Write JSON so that a crash leaves the old file or the new one, never a part.

    NaN and infinity are refused: they are not JSON, and a result that holds one is not a result.
    """
    text = json.dumps(value, indent=2, allow_nan=False) + '\n'
    write_atomically(path, text)


def provenance(settings: Settings) -> dict[str, object]:
    """Return the resolved settings, the versions, the code and the command, for a result file."""
    packages = ('metactl_ros', 'numpy', 'pybullet', 'torch', 'stable-baselines3')
    return {
        'settings': stated(settings),
        'versions': {'python': platform.python_version()}
        | {name: version for name in packages if (version := _version(name))},
        'code': code_of_checkout(),
        'command': [Path(sys.argv[0]).name, *sys.argv[1:]],
    }


def code_of_checkout() -> str | None:
    """Return the commit that this very code belongs to, as `code_version` names it."""
    return code_version(Path(__file__).parents[1])


def code_version(root: Path) -> str | None:
    """Return the commit of a checkout, with a plus if its sources differ; None outside of one."""

    def git(*arguments: str) -> str:
        done = subprocess.run(
            ['git', '-C', root, *arguments], capture_output=True, check=True, text=True
        )
        return done.stdout.strip()

    try:
        if Path(git('rev-parse', '--show-toplevel')) != root.resolve():
            return None  # installed somewhere within a checkout of something else
        commit = git('rev-parse', '--short=12', 'HEAD')
        is_changed = git('status', '--porcelain', '--', *SOURCES)
    except (OSError, subprocess.CalledProcessError):
        return None
    return commit + '+' * bool(is_changed)


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
