# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""YAML without surprises: tables with names for keys, lists, texts, numbers, true, false, null.

PyYAML splits the text into events; what they mean is decided here, after YAML 1.2. So nothing is
built that was not asked for, and whatever means one thing to one reader and another to the next is
refused with its line:

    0150, 1:30, 1_000, 0x1F     104, 90, 1000 and 31 to YAML 1.1
    yes, on, off                true and false to YAML 1.1
    !tags, %directives, <<      whatever a reader makes of them
    a key that is no text, or is given twice; a second document

Size, depth and the digits of a number are bounded. An alias stands for what its anchor marks, and
counts as if that were written there once more: a few lines of them could make a gigabyte.
"""

from collections.abc import Iterator
from pathlib import Path
import re
from typing import NamedTuple

import yaml

from metactl_ros.config import shown
from metactl_ros.errors import ConfigError
from metactl_ros.files import read_at_most

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


def read_yaml(source: Path) -> object:
    """Return what a YAML file holds.

    Raises:
        ConfigError: If it cannot be read, is no YAML, or is none that is accepted.
    """
    try:
        text = read_at_most(source, MAX_BYTES).decode('utf-8')
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise ConfigError(
            f'{source}: cannot be read ({why}); give the path of a YAML file.'
        ) from None
    try:
        return parse_yaml(text)
    except ConfigError as error:
        raise ConfigError(f'{source}: {error}') from None


def parse_yaml(text: str, *, is_all_text: bool = False) -> object:
    """Return what a YAML text holds.

    Args:
        text: The text; its size is bounded by the caller.
        is_all_text: Leave everything that is neither table nor list a text, as it is written.

    Raises:
        ConfigError: With the line.
    """
    if directive := DIRECTIVE.search(text):
        line = text.count('\n', 0, directive.start()) + 1
        raise ConfigError(f'found a directive, % (line {line}); remove it.')
    events = yaml.parse(text, Loader=PARSER)
    try:
        return _Builder(events, is_all_text=is_all_text).document()
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
        self._num_values = 0
        self._deepest = 0

    def document(self) -> object:
        value: object = None
        num_documents = 0
        for event in self._events:
            if isinstance(event, yaml.DocumentStartEvent):
                num_documents += 1
                if num_documents > 1:
                    raise _refusal(event, 'found a second document', 'keep one in a file')
                value = self._value(next(self._events), 0)
        return value

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
        elif isinstance(event, yaml.SequenceStartEvent):
            self._count(event, 0, depth + 1)
            value = list(self._entries(yaml.SequenceEndEvent, depth + 1))
        else:
            self._count(event, 0, depth + 1)
            value = self._table(depth + 1)
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

    def _entries(self, end: type[yaml.Event], depth: int) -> Iterator[object]:
        while not isinstance(event := next(self._events), end):
            yield self._value(event, depth)

    def _table(self, depth: int) -> dict[str, object]:
        table: dict[str, object] = {}
        while not isinstance(event := next(self._events), yaml.MappingEndEvent):
            key = self._value(event, depth)
            is_quoted = isinstance(event, yaml.ScalarEvent) and event.style
            if not isinstance(key, str) or (key == '<<' and not is_quoted):
                raise _refusal(
                    event, f'expected a name for a key, found {shown(key)}', 'put it in quotes'
                )
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
            raise _refusal(
                event,
                f'{text} is true or false to some',
                'write true or false, or put it in quotes',
            )
        if not NUMERIC.fullmatch(text):
            return text
        if len(text) > MAX_NUMBER:
            found = f'expected a number of at most {MAX_NUMBER} characters, found {len(text)}'
            raise _refusal(event, found, 'shorten it, or put a text in quotes')
        if WHOLE.fullmatch(text):
            return int(text)
        if DECIMAL.fullmatch(text):
            return float(text)
        raise _refusal(
            event,
            f'{text} means different numbers to different readers',
            'write it in decimal, or put a text in quotes',
        )


def _refusal(event: yaml.Event, problem: str, remedy: str) -> ConfigError:
    assert event.start_mark is not None  # the parser marks every event
    return ConfigError(f'{problem} (line {event.start_mark.line + 1}); {remedy}.')
