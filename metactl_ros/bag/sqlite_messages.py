# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""Reads the messages of an sqlite3 file of rosbag2, after a check of its structure.

A database may compute: views, generated columns and checks are programs. None is run that reading
two plain tables does not need, values have a most of bytes, and all of it a most of time.
"""

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
import os
from pathlib import Path
import sqlite3
import time
from typing import Any

from metactl_ros.bag.raw_messages import Gathered, Topic
from metactl_ros.regular_file import open_regular, require_no_hole

MAX_VALUE = 2**24
"""Bytes of a value."""
FREE_S, BYTES_PER_S = 2.0, 5e6
"""Time that reading may take, on a core: this, and for these bytes one second more."""
STEPS = 100
"""Of sqlite's machine between two looks at the clock."""
TABLES = {'topics': ('id', 'name', 'type'), 'messages': ('topic_id', 'timestamp', 'data')}


def read_sqlite(file: Path, gathered: Gathered, problems: list[str]) -> None:
    """Take all messages of a file, up to where it breaks.

    Raises:
        sqlite3.Error, ValueError: If it breaks.
        BagError: If it holds too much.
        OSError: If it cannot be opened.
    """
    for rest in ('-wal', '-journal'):
        if file.with_name(file.name + rest).exists():
            problems.append(f'{file.name}: was not closed, {file.name}{rest} is beside it')
    with open_regular(file) as stream:
        require_no_hole(stream)
        most_s = FREE_S + os.fstat(stream.fileno()).st_size / BYTES_PER_S
    address = f'{file.resolve().as_uri()}?mode=ro&immutable=1'
    with closing(sqlite3.connect(address, uri=True)) as database, _within(database, most_s):
        database.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, MAX_VALUE)
        for setting in ('trusted_schema = OFF', 'ignore_check_constraints = ON'):
            database.execute(f'PRAGMA {setting}')
        (verdict,) = database.execute('PRAGMA integrity_check(1)').fetchone()
        if verdict != 'ok':
            problems.append(f'{file.name}: is damaged ({verdict.splitlines()[0][:200]})')
        for table, columns in TABLES.items():
            _require_plain(database, table, columns)
        topics = dict(_topics(database, gathered))
        for number, log_time_ns, data in _rows(database, topics):
            if number not in topics or not isinstance(log_time_ns, int):
                raise ValueError(f'a message of topic {number!r:.20} at {log_time_ns!r:.20}')
            if topics[number].is_wanted and not isinstance(data, bytes):
                raise ValueError(f'a message that is a {type(data).__name__}')
            gathered.add(topics[number], log_time_ns, data, log_time_ns, 0)


@contextmanager
def _within(database: sqlite3.Connection, most_s: float) -> Iterator[None]:
    """Interrupt whatever a database computes when its time is over."""
    end_s = time.thread_time() + most_s
    is_over: Callable[[], bool] = lambda: time.thread_time() > end_s  # noqa: E731
    database.set_progress_handler(is_over, STEPS)
    try:
        yield
    except sqlite3.OperationalError as error:
        if is_over():
            raise ValueError(f'takes longer than {most_s:.1f} s to read') from error
        raise


def _require_plain(database: sqlite3.Connection, table: str, columns: tuple[str, ...]) -> None:
    """Refuse what is no table, has other columns, or computes some of them."""
    entries = database.execute(
        "SELECT sql FROM sqlite_master WHERE type = 'table' AND name = ?", (table,)
    ).fetchall()
    if len(entries) != 1 or not str(entries[0][0]).upper().startswith('CREATE TABLE'):
        raise ValueError(f'expected a table {table!r}, found none; it is no bag')
    rows = database.execute(f'PRAGMA table_xinfo({table})').fetchall()
    hidden = {row[1]: row[6] for row in rows}
    if missing := [name for name in columns if hidden.get(name) != 0]:
        raise ValueError(f'table {table!r} lacks {", ".join(missing)}; it is no bag')


def _topics(database: sqlite3.Connection, gathered: Gathered) -> Iterator[tuple[int, Topic]]:
    for number, name, type_name in database.execute('SELECT id, name, type FROM topics'):
        if not (isinstance(number, int) and isinstance(name, str) and isinstance(type_name, str)):
            raise ValueError(f'topic {number!r:.20} has no name or no type')
        yield number, gathered.topic(name, type_name)


def _rows(database: sqlite3.Connection, topics: dict[int, Topic]) -> Iterator[tuple[Any, ...]]:
    """Yield topic, time and data; the data of what is not wanted are not read from the disk."""
    wanted = ', '.join(str(number) for number, topic in topics.items() if topic.is_wanted)
    data = f'CASE WHEN topic_id IN ({wanted}) THEN data END' if wanted else 'NULL'
    yield from database.execute(f'SELECT topic_id, timestamp, {data} FROM messages')
