# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""Strict configuration: a mapping becomes a frozen dataclass, or an error that lists all mistakes.

Unknown keys are refused with the nearest valid name, missing keys by name, values by type, and
anything that is not finite. Where a field may be one of several dataclasses, the mapping has the
key that only one of these has. Ranges are checked by the dataclass itself in `__post_init__` with
the `require_*` helpers below: a value built in code is held to the same rules as one from YAML.

A setting of the type `PerJoint` is one number for every joint, or has one entry for each of them:

    viscous_nmsprad: 0.5                  of every joint
    viscous_nmsprad: [0.5, 0.3, 0.1]      of an arm with three joints

What was stated is kept as it was, so that files and hashes stay what they are. How many joints
there are is known where an arm is: there the number of entries is checked.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
import dataclasses
import difflib
from itertools import islice
import math
import reprlib
import sys
import types
from typing import (
    Any,
    cast,
    get_args,
    get_origin,
    get_type_hints,
    Literal,
    TypeAlias,
    TypeVar,
    Union,
)

import numpy as np

from metactl_ros.errors import ConfigError
from metactl_ros.signals import Array

T = TypeVar('T')
PerJoint: TypeAlias = float | tuple[float, ...]
"""The same number for every joint, or one entry per joint."""
MAX_PROBLEMS = 20
"""Lines of an error; further mistakes show when these are corrected."""
MAX_TEXT = 300
"""Characters of a value, or of what a dataclass says of it."""
MAX_ENTRIES = 10_000
"""Of a list."""
MAX_WHOLE = 2**63 - 1
"""Of a whole number: what NumPy and ROS hold."""
IN_WORDS: dict[object, str] = {float: 'a finite number', int: 'a whole number'}
IN_WORDS |= {bool: 'true or false', str: 'a text'}
LATER = types.MappingProxyType({'came later': True})
"""Metadata of a field that was added when files without it existed; see `stated`."""


def build(cls: type[T], mapping: object, where: str) -> T:
    """Return a dataclass made from a mapping of plain values, usually what a YAML file holds.

    Nested dataclasses are built from nested mappings. A ConfigError has one line per problem, each
    with `where`, for example the file name.
    """
    problems: list[str] = []
    value = _build(cls, mapping, where, problems)
    if problems:
        if len(problems) >= MAX_PROBLEMS:
            problems[MAX_PROBLEMS - 1 :] = [f'{where}: and perhaps more; correct these first.']
        raise ConfigError('\n'.join(problems))
    return cast(T, value)


def stated(value: Any) -> Any:
    """Return settings as plain values for a file, without what came later and was not given.

    So a key that is added changes neither the hash of older settings nor what is written of them.
    """
    if dataclasses.is_dataclass(value):
        return {
            field.name: stated(getattr(value, field.name))
            for field in dataclasses.fields(value)
            if field.metadata != LATER or getattr(value, field.name) != field.default
        }
    if isinstance(value, (list, tuple)):
        return type(value)(map(stated, value))
    if isinstance(value, dict):
        return {key: stated(entry) for key, entry in value.items()}
    return value


def shown(value: object) -> str:
    """Return a value as an error quotes it, in at most `MAX_TEXT` characters."""
    return _SHORT.repr(value)


class _Short(reprlib.Repr):
    """Looks only at the beginning of a value."""

    def __init__(self) -> None:
        super().__init__()
        self.maxlevel, self.maxstring, self.maxother = 3, 80, 80

    def repr(self, x: object) -> str:
        text = super().repr(x)
        return text if len(text) <= MAX_TEXT else f'{text[: MAX_TEXT - 3]}...'

    def repr_int(self, x: int, level: int) -> str:
        # Beyond some thousand digits Python refuses to write them.
        return repr(x) if x.bit_length() < MAX_TEXT else f'a number of {x.bit_length()} bits'


_SHORT = _Short()


def require_positive(owner: str, **values: float | Iterable[float]) -> None:
    """Refuse any value that is not finite and above zero."""
    _require(owner, 'above 0', lambda x: x > 0.0, values)


def require_not_negative(owner: str, **values: float | Iterable[float]) -> None:
    """Refuse any value that is not finite or is below zero."""
    _require(owner, 'at least 0', lambda x: x >= 0.0, values)


def require_length(owner: str, length: int, **values: tuple[object, ...]) -> None:
    """Refuse a vector that does not have one entry per joint."""
    for name, vector in values.items():
        if len(vector) != length:
            raise ConfigError(
                f'{owner}.{name}: expected {length} entries, one per joint, '
                f'found {len(vector)}: {shown(list(vector))}.'
            )


def _require(
    owner: str,
    wanted: str,
    accepts: Callable[[float], bool],
    values: Mapping[str, float | Iterable[float]],
) -> None:
    for name, value in values.items():
        entries = [value] if isinstance(value, (int, float)) else list(value)
        bad = [x for x in entries if not (math.isfinite(x) and accepts(x))]
        if bad:
            raise ConfigError(
                f'{owner}.{name}: expected finite values {wanted}, found {shown(value)}.'
            )


def require_joints(settings: Any, num_joints: int | None = None) -> None:
    """Refuse a dataclass with a list that has not one entry for each joint, of as many as given.

    None: as many as its first list has.
    """
    for field in dataclasses.fields(settings):
        value = getattr(settings, field.name)
        if isinstance(value, tuple):
            num_joints = len(value) if num_joints is None else num_joints
            require_length(type(settings).__name__, num_joints, **{field.name: value})


def joint_array(value: PerJoint) -> float | Array:
    """Return what broadcasts against (..., n): the number, or an array of shape (n,)."""
    return np.array(value) if isinstance(value, tuple) else value


def for_joints(value: PerJoint, num_joints: int) -> Array:
    """Return a setting of each joint, shape (n,)."""
    return np.array(np.broadcast_to(value, num_joints), dtype=np.float64)


def one_for_all(name: str, value: PerJoint) -> float:
    """Return a setting that is the same for every joint; refuse one that is stated per joint."""
    if isinstance(value, tuple):
        raise ConfigError(
            f'{name}: expected one number for all joints, found {list(value)}; nothing here can '
            'use one per joint.'
        )
    return value


def scaled(factor: float, value: PerJoint) -> PerJoint:
    """Return a setting with each of its numbers multiplied."""
    return tuple(factor * x for x in value) if isinstance(value, tuple) else factor * value


def _build(cls: type[T], mapping: object, where: str, problems: list[str]) -> T | None:
    if not isinstance(mapping, Mapping):
        problems.append(
            f'{where}: expected a table of {cls.__name__} settings, found {shown(mapping)}.'
        )
        return None
    assert dataclasses.is_dataclass(cls)
    fields = {field.name: field for field in dataclasses.fields(cls)}
    hints = get_type_hints(cls)
    before = len(problems)
    problems += _unknown_keys(mapping, fields, where)
    values = {}
    for name, field in fields.items():
        if name in mapping:
            values[name] = _convert(hints[name], mapping[name], f'{where}: {name}', problems)
        elif field.default is field.default_factory is dataclasses.MISSING:
            problems.append(f'{where}: missing key {name!r}; add it ({_describe(hints[name])}).')
    if len(problems) > before:
        return None
    try:
        return cls(**values)
    except ConfigError as error:
        problems.append(f'{where}: {str(error)[:MAX_TEXT]}')
        return None


def _build_one_of(
    classes: Sequence[type[object]], mapping: object, where: str, problems: list[str]
) -> object:
    """Build the dataclass whose own key the mapping has: the field that no other one has."""
    if not isinstance(mapping, Mapping):
        problems.append(f'{where}: expected a table, found {shown(mapping)}.')
        return None
    names = {cls: list(get_type_hints(cls)) for cls in classes}
    uses = Counter(name for of_one in names.values() for name in of_one)
    own = {name: cls for cls in classes for name in names[cls] if uses[name] == 1}
    if unknown := _unknown_keys(mapping, uses, where):
        problems += unknown
        return None
    given = {key: value for key, value in mapping.items() if value is not None}
    found = [key for key in given if key in own]
    if len(found) != 1:
        problems.append(f'{where}: expected exactly one of {sorted(own)}, found {found}.')
        return None
    return _build(own[found[0]], given, where, problems)


def _unknown_keys(mapping: Mapping[object, object], names: Iterable[str], where: str) -> list[str]:
    """Return a problem for each key that is none of some names."""
    valid, problems = sorted(names), []
    for key in islice((key for key in mapping if key not in valid), MAX_PROBLEMS):
        near = difflib.get_close_matches(str(key)[:MAX_TEXT], valid, n=1)
        hint = f'did you mean {near[0]!r}?' if near else f'valid keys are {valid}.'
        problems.append(f'{where}: unknown key {shown(key)}; {hint}')
    return problems


def _convert(hint: object, value: object, where: str, problems: list[str]) -> object:
    """Return `value` as the annotated type `hint`, or note a problem and return None."""
    origin = get_origin(hint)
    if len(problems) >= MAX_PROBLEMS:
        return None
    if dataclasses.is_dataclass(hint):
        return _build(cast('type[object]', hint), value, where, problems)
    if origin in (Union, types.UnionType):
        choices = [arm for arm in get_args(hint) if arm is not type(None)]
        if value is None and len(choices) < len(get_args(hint)):
            return None
        if len(choices) == 1:
            return _convert(choices[0], value, where, problems)
        if dataclasses.is_dataclass(choices[0]):
            return _build_one_of(choices, value, where, problems)
        return _convert_to_first(choices, value, where, problems)
    if origin is tuple:
        if isinstance(value, (list, tuple)) and len(value) > MAX_ENTRIES:
            found = f'expected at most {MAX_ENTRIES} entries, found {len(value)}'
            problems.append(f'{where}: {found}; leave some out.')
            return None
        if isinstance(value, (list, tuple)):
            of, inner = enumerate(value), get_args(hint)[0]
            return tuple(_convert(inner, x, f'{where}[{i}]', problems) for i, x in of)
    elif _fits(hint, value):
        return float(cast(float, value)) if hint is float else value
    problems.append(f'{where}: expected {_describe(hint)}, found {shown(value)}.')
    return None


def _convert_to_first(
    choices: Sequence[object], value: object, where: str, problems: list[str]
) -> object:
    """Return `value` as the first of several plain types that it fits, or note a problem."""
    for choice in choices:
        unfit: list[str] = []
        converted = _convert(choice, value, where, unfit)
        if not unfit:
            return converted
    wanted = ', or '.join(map(_describe, choices))
    problems.append(f'{where}: expected {wanted}, found {shown(value)}.')
    return None


def _fits(hint: object, value: object) -> bool:
    if get_origin(hint) is Literal:
        return value in get_args(hint)
    if hint is float:
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
        # Compared, not converted: a whole number may be too long for a float.
        return is_number and abs(cast(float, value)) <= sys.float_info.max
    if hint is int:
        is_whole = isinstance(value, int) and not isinstance(value, bool)
        return is_whole and abs(cast(int, value)) <= MAX_WHOLE
    return isinstance(hint, type) and isinstance(value, hint)


def _describe(hint: object) -> str:
    if get_origin(hint) is Literal:
        return 'one of ' + ', '.join(repr(choice) for choice in get_args(hint))
    if get_origin(hint) is tuple:
        return f'a list, each entry {_describe(get_args(hint)[0])}'
    if get_origin(hint) in (Union, types.UnionType):
        given = [arm for arm in get_args(hint) if arm is not type(None)]
        described = ', or '.join(map(_describe, given))
        return described if len(given) == len(get_args(hint)) else f'{described} or null'
    return IN_WORDS.get(hint, f'a table of {getattr(hint, "__name__", hint)} settings')
