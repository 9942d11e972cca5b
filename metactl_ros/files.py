# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""Files: opened without ever waiting, YAML without surprises, writing that leaves them whole.

A named pipe, a socket or a device may block a reader for ever, or never end. They are recognised
by what was opened, not by what had been at the path a moment before.

YAML has tables with names for keys, lists, texts, numbers, true, false and null. PyYAML splits it
into events; what they mean is decided here, after YAML 1.2. So nothing is built that was not asked
for, and whatever means one thing to one reader and another to the next is refused with its line:

    0150, 1:30, 1_000, 0x1F     104, 90, 1000 and 31 to YAML 1.1
    yes, on, off                true and false to YAML 1.1
    !tags, %directives, <<      whatever a reader makes of them
    a key that is no text, or is given twice; a second document

Size, depth and the digits of a number are bounded. An alias stands for what its anchor marks, and
counts as if that were written there once more: a few lines of them could make a gigabyte.
"""

from collections.abc import Iterator
import errno
import json
import os
from pathlib import Path
import re
import stat
from typing import BinaryIO, NamedTuple

import yaml

from metactl_ros.config import shown
from metactl_ros.errors import ConfigError

LARGEST_HOLE = 2**26
"""Bytes; what was written has none, what was copied may have those of its zeros."""
KINDS = {
    stat.S_IFDIR: 'a folder',
    stat.S_IFIFO: 'a named pipe',
    stat.S_IFSOCK: 'a socket',
    stat.S_IFCHR: 'a device',
    stat.S_IFBLK: 'a device',
}
MAX_BYTES = 2**20
MAX_DEPTH = 20
"""Tables and lists inside each other; our own files have at most six."""
MAX_VALUES = 100_000
"""Of a file, tables and lists among them."""
MAX_NUMBER = 40
"""Characters of a number; a double has at most 24."""
PARSER = getattr(yaml, 'CSafeLoader', yaml.SafeLoader)
"""The fast one, where PyYAML was built with it."""
WORDS: dict[str, bool | float | None] = {
    **dict.fromkeys(('', '~', 'null', 'Null', 'NULL')),
    **dict.fromkeys(('true', 'True', 'TRUE'), True),
    **dict.fromkeys(('false', 'False', 'FALSE'), False),
    **dict.fromkeys(('.inf', '.Inf', '.INF', '+.inf', '+.Inf', '+.INF'), float('inf')),
    **dict.fromkeys(('-.inf', '-.Inf', '-.INF'), float('-inf')),
    **dict.fromkeys(('.nan', '.NaN', '.NAN'), float('nan')),
}
WHOLE = re.compile(r'[-+]?(0|[1-9][0-9]*)')
DECIMAL = re.compile(r'[-+]?(\.[0-9]+|(0|[1-9][0-9]*)(\.[0-9]*)?)([eE][-+]?[0-9]+)?')
NUMERIC = re.compile(
    r'[-+]?(0[xob][0-9a-fA-F_]+|'
    r'([0-9][0-9_]*(:[0-5]?[0-9])*(\.[0-9_]*)?|\.[0-9][0-9_]*)([eE][-+]?[0-9]+)?)'
)
"""What is a number to any reader of YAML."""
OLD_WORDS = frozenset(('yes', 'no', 'on', 'off', 'y', 'n'))
DIRECTIVE = re.compile(r'^%', re.MULTILINE)


def open_regular(path: Path, folder: int | None = None) -> BinaryIO:
    """Return a regular file, open for reading; where it would wait, its `read` returns None.

    If it is relative to an open folder, no link is followed. What cannot be opened, or is of some
    other kind, is an OSError whose `strerror` names it.
    """
    try:
        # A pipe without a writer is then opened at once; on a regular file it means nothing.
        flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC
        flags |= 0 if folder is None else os.O_NOFOLLOW
        descriptor = os.open(path, flags, dir_fd=folder)
    except ValueError as error:  # a NUL in the name
        raise OSError(errno.EINVAL, str(error), repr(path)) from None
    except OSError as error:
        if error.errno == errno.ENXIO:  # a socket
            raise OSError(errno.EINVAL, 'is a socket, not a regular file', str(path)) from None
        raise
    kind = stat.S_IFMT(os.fstat(descriptor).st_mode)
    if kind != stat.S_IFREG:
        os.close(descriptor)
        found = KINDS.get(kind, 'something else')
        raise OSError(errno.EINVAL, f'is {found}, not a regular file', str(path))
    return os.fdopen(descriptor, 'rb')


def read_at_most(path: Path, num_bytes: int) -> bytes:
    """Return the content of a regular file; OSError if it is none, larger, or not readable."""
    with open_regular(path) as file:
        content = file.read(num_bytes + 1)  # not its size: files of /proc have size zero
    if content is None:  # one of /proc that would wait for more to come
        raise OSError(errno.EAGAIN, 'has nothing to read', str(path))
    if len(content) > num_bytes:
        raise OSError(errno.EFBIG, f'is larger than {num_bytes} bytes', str(path))
    return content


def require_no_hole(file: BinaryIO) -> None:
    """Refuse, by OSError, a file with large parts never written: it takes hours, but no room."""
    size = os.fstat(file.fileno()).st_size
    here, hole = file.tell(), 0
    while (hole := os.lseek(file.fileno(), hole, os.SEEK_HOLE)) < size:
        try:
            end = os.lseek(file.fileno(), hole, os.SEEK_DATA)
        except OSError:  # there are no data after it
            end = size
        if end - hole > LARGEST_HOLE:
            raise OSError(errno.EINVAL, f'has a hole of {end - hole} bytes', file.name)
        hole = end
    file.seek(here)


def write_atomically(path: Path, text: str) -> None:
    """Write a text file, and its folder, so that a crash leaves the old file or the new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f'.{path.name}.{os.getpid()}.partial')
    try:
        partial.write_text(text, encoding='utf-8')
        sync(partial)
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
    sync(path.parent)


def write_json(path: Path, value: object) -> None:
    """Write JSON so that a crash leaves the old file or the new one, never a part.

    NaN and infinity are refused: they are not JSON, and a result that holds one is not a result.
    """
    write_atomically(path, json.dumps(value, indent=2, allow_nan=False) + '\n')


def sync(path: Path) -> None:
    """Make a file, or the names in a folder, survive a power cut."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read_yaml(source: Path) -> object:
    """Return what a YAML file holds; ConfigError if it is not readable, or not acceptable YAML."""
    try:
        text = read_at_most(source, MAX_BYTES).decode('utf-8')
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        what_to_do = 'give the path of a YAML file'
        raise ConfigError(f'{source}: cannot be read ({why}); {what_to_do}.') from None
    try:
        return parse_yaml(text)
    except ConfigError as error:
        raise ConfigError(f'{source}: {error}') from None


def parse_yaml(text: str, *, is_all_text: bool = False) -> object:
    """Return what a YAML text holds, of a size that the caller bounds; a refusal names the line.

    With `is_all_text` everything that is neither table nor list stays a text, as it is written.
    """
    if directive := DIRECTIVE.search(text):
        line = text.count('\n', 0, directive.start()) + 1
        raise ConfigError(f'found a directive, % (line {line}); remove it.')
    try:
        return _Builder(yaml.parse(text, Loader=PARSER), is_all_text=is_all_text).document()
    except (yaml.YAMLError, UnicodeError) as error:
        raise ConfigError(f'not valid YAML: {str(error)[:300]}') from None


class _Anchored(NamedTuple):
    """What an anchor marks, and what it counts for."""

    value: object
    num_values: int
    height: int
    """Of tables and lists inside each other."""


class _Builder:
    """Makes values of events, one after the other."""

    def __init__(self, events: Iterator[yaml.Event], *, is_all_text: bool) -> None:
        self._events, self._is_all_text = events, is_all_text
        self._anchored: dict[str, _Anchored] = {}
        self._num_values = self._deepest = 0

    def document(self) -> object:
        values: list[object] = []
        for event in self._events:
            if isinstance(event, yaml.DocumentStartEvent):
                if values:
                    raise _refusal(event, 'found a second document', 'keep one in a file')
                values.append(self._value(next(self._events), 0))
        return values[0] if values else None

    def _value(self, event: yaml.Event, depth: int) -> object:
        """Return the value that begins with an event, inside so many tables and lists."""
        if isinstance(event, yaml.AliasEvent):
            return self._alias(event, depth)
        assert isinstance(event, yaml.ScalarEvent | yaml.CollectionStartEvent)
        if event.tag is not None:
            raise _refusal(event, f'found the tag {shown(event.tag)}', 'remove it')
        num_before, deepest = self._num_values, self._deepest
        self._deepest = depth
        self._count(event, 1, depth)
        value: object
        if isinstance(event, yaml.ScalarEvent):
            value = self._scalar(event)
        else:
            self._count(event, 0, depth + 1)
            is_list = isinstance(event, yaml.SequenceStartEvent)
            value = [*self._entries(depth + 1)] if is_list else self._table(depth + 1)
        if event.anchor is not None:
            size, height = self._num_values - num_before, self._deepest - depth
            self._anchored[event.anchor] = _Anchored(value, size, height)
        self._deepest = max(self._deepest, deepest)
        return value

    def _alias(self, event: yaml.AliasEvent, depth: int) -> object:
        anchor = event.anchor or ''
        if anchor not in self._anchored:
            name = anchor[:MAX_NUMBER]
            raise _refusal(event, f'nothing before has the anchor &{name}', 'write the value out')
        value, num_values, height = self._anchored[anchor]
        self._count(event, num_values, depth + height)
        return value

    def _count(self, event: yaml.Event, num_values: int, depth: int) -> None:
        self._num_values += num_values
        self._deepest = max(self._deepest, depth)
        if self._num_values > MAX_VALUES:
            raise _refusal(event, f'expected at most {MAX_VALUES} values', 'write less')
        if depth > MAX_DEPTH:
            raise _refusal(event, f'expected at most {MAX_DEPTH} levels', 'nest less deeply')

    def _entries(self, depth: int) -> Iterator[object]:
        while not isinstance(event := next(self._events), yaml.SequenceEndEvent):
            yield self._value(event, depth)

    def _table(self, depth: int) -> dict[str, object]:
        table: dict[str, object] = {}
        while not isinstance(event := next(self._events), yaml.MappingEndEvent):
            key = self._value(event, depth)
            is_quoted = isinstance(event, yaml.ScalarEvent) and event.style
            if not isinstance(key, str) or (key == '<<' and not is_quoted):
                problem = f'expected a name for a key, found {shown(key)}'
                raise _refusal(event, problem, 'put it in quotes')
            if key in table:
                raise _refusal(event, f'key {shown(key)} is given twice', 'remove one')
            table[key] = self._value(next(self._events), depth)
        return table

    def _scalar(self, event: yaml.ScalarEvent) -> object:
        text = event.value
        if event.style or self._is_all_text:  # in quotes, or a block
            return text
        if text in WORDS:
            return WORDS[text]
        if text.lower() in OLD_WORDS:
            remedy = 'write true or false, or put it in quotes'
            raise _refusal(event, f'{text} is true or false to some', remedy)
        if not NUMERIC.fullmatch(text):
            return text
        if len(text) > MAX_NUMBER:
            found = f'expected a number of at most {MAX_NUMBER} characters, found {len(text)}'
            raise _refusal(event, found, 'shorten it, or put a text in quotes')
        if WHOLE.fullmatch(text):
            return int(text)
        if DECIMAL.fullmatch(text):
            return float(text)
        problem = f'{text} means different numbers to different readers'
        raise _refusal(event, problem, 'write it in decimal, or put a text in quotes')


def _refusal(event: yaml.Event, problem: str, remedy: str) -> ConfigError:
    assert event.start_mark is not None  # the parser marks every event
    return ConfigError(f'{problem} (line {event.start_mark.line + 1}); {remedy}.')
