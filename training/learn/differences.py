# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""What can be changed in a run, one thing at a time, to see what makes its result.

`config/differences.yaml` names them. Each is a part of the settings, of the preset, or of both,
that is laid over what is shipped; what it does not mention stays.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, TypeVar

from metactl_ros.config import build, shown
from metactl_ros.errors import ConfigError
from metactl_ros.settings import Settings, share_directory
from metactl_ros.strict_yaml import read_yaml

FILE = 'differences.yaml'
T = TypeVar('T')


@dataclass(frozen=True, kw_only=True, slots=True)
class Difference:
    """One thing that is changed."""

    here: str
    """How it is here."""
    changed: str
    """How it is in a run that names it."""
    settings: object = None
    """Laid over arm, plant and controller."""
    preset: object = None
    """Laid over the hyper-parameters."""


def load_differences() -> dict[str, Difference]:
    """Return all differences by name, in the order of the file."""
    found = read_yaml(share_directory() / 'config' / FILE)
    if not isinstance(found, Mapping):
        raise ConfigError(f'{FILE}: expected differences by name, found {shown(found)}.')
    return {str(n): build(Difference, entry, f'{FILE}: {n}') for n, entry in found.items()}


def with_difference(value: T, name: str | None) -> T:
    """Return settings or a preset with a difference; unchanged without a name.

    To settings that have it already nothing happens.
    """
    if name is None:
        return value
    known = load_differences()
    if name not in known:
        raise ConfigError(f'difference: expected one of {list(known)}, found {shown(name)}.')
    part = known[name].settings if isinstance(value, Settings) else known[name].preset
    plain: Any = asdict(value)  # type: ignore[call-overload]
    return build(type(value), _laid_over(plain, part), f'{FILE}: {name}')


def _laid_over(below: object, above: object) -> object:
    """Return a tree of plain values in which another one, where it says something, counts."""
    if above is None:
        return below
    if not (isinstance(below, Mapping) and isinstance(above, Mapping)):
        return above
    return {**below, **{key: _laid_over(below.get(key), inner) for key, inner in above.items()}}
