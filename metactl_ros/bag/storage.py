# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""The files of a bag: MCAP, read from the front with all checksums on, and sqlite3 of rosbag2.

    MCAP: magic, records, magic; a record is an opcode (u8), a length (u64) and its content
    a chunk has records of its own, compressed or not

No length is trusted before it was compared with what is left of the file, and nothing is inflated
before its size is known and allowed. Of what is no message only the checksum is taken.

A database may compute: views, generated columns and checks are programs. None is run that reading
two plain tables does not need; values have a largest size, and all of it a longest time.
"""

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
import os
from pathlib import Path
import sqlite3
import struct
import time
from typing import BinaryIO, TYPE_CHECKING
import zlib

import lz4.frame
from mcap.opcode import Opcode
import zstandard

from metactl_ros.files import open_regular, require_no_hole

if TYPE_CHECKING:
    from metactl_ros.bag.reader import MessageCollector, Topic

MAGIC = b'\x89MCAP0\r\n'
MAX_RECORD = 2**27
"""Bytes of a record that is read at once."""
MAX_CHUNK = 2**26
"""Bytes of a chunk when inflated; writers make them of one to some megabytes."""
PIECE = 2**20
"""Bytes that are read at once of what is only checked."""
MESSAGE_HEAD = struct.Struct('<HIQQ')
CHUNK_HEAD = struct.Struct('<QQQI')
READ = {Opcode.SCHEMA, Opcode.CHANNEL, Opcode.MESSAGE, Opcode.CHUNK}
READ |= {Opcode.DATA_END, Opcode.STATISTICS, Opcode.FOOTER}
"""The records whose content matters here."""
MAX_VALUE = 2**24
"""Bytes of a value."""
FREE_S, BYTES_PER_S = 2.0, 5e6
"""Time that reading may take, on a core: this, and for these bytes one second more."""
STEPS = 100
"""Of sqlite's machine between two looks at the clock."""
TABLES = {'topics': ('id', 'name', 'type'), 'messages': ('topic_id', 'timestamp', 'data')}


class BrokenError(ValueError):
    """From here on a file cannot be read."""


def read_mcap(file: Path, collector: 'MessageCollector', problems: list[str]) -> None:
    """Take all messages of a file, up to where it ends or, with a BrokenError, breaks."""
    num_before, num_expected, is_ended = collector.num_messages, None, False
    tables = _Tables(collector)
    with open_regular(file) as stream:
        require_no_hole(stream)
        for opcode, content in _records(stream):
            if is_ended and opcode in (Opcode.MESSAGE, Opcode.CHUNK):
                raise BrokenError('has messages after their end')
            match opcode:
                case Opcode.CHUNK:
                    tables.read_all(_inflated(content, collector))
                case Opcode.MESSAGE | Opcode.SCHEMA | Opcode.CHANNEL:
                    tables.read(opcode, content, 0, len(content))
                case Opcode.DATA_END:
                    is_ended = True
                case Opcode.STATISTICS:
                    (num_expected,) = _unpacked('<Q', content)
                case Opcode.FOOTER:
                    _check_index(stream, content, file.name, problems)
    if not is_ended:
        problems.append(f'{file.name}: the end of its messages is not marked')
    num_messages = collector.num_messages - num_before
    if num_expected not in (None, num_messages):
        problems.append(f'{file.name}: says {num_expected} messages, {num_messages} were found')


def _records(stream: BinaryIO) -> Iterator[tuple[int, bytes]]:
    """Yield opcode and content of every record to the footer; of those not read no content."""
    size = os.fstat(stream.fileno()).st_size
    start = stream.read(len(MAGIC)) or b''
    if start != MAGIC:
        raise BrokenError(f'expected {MAGIC!r} at its begin, found {start!r}')
    place, checksum = len(MAGIC), zlib.crc32(start)
    opcode = 0
    while opcode != Opcode.FOOTER:
        head = stream.read(9) or b''
        if len(head) < 9:
            raise BrokenError('it ends within a record, or without a footer')
        opcode, length = struct.unpack('<BQ', head)
        place += 9
        if not opcode or length > size - place:
            raise BrokenError(
                f'a record of kind {opcode} and {length} bytes, {size - place} are left'
            )
        if length > MAX_RECORD:
            raise BrokenError(f'a record of {length} bytes, at most {MAX_RECORD} are read')
        before, checksum = checksum, zlib.crc32(head, checksum)
        content, size_at_once = b'', length if opcode in READ else PIECE
        for begin in range(0, length, size_at_once or 1):
            piece = _exactly(stream, min(size_at_once, length - begin))
            checksum = zlib.crc32(piece, checksum)
            content = piece if opcode in READ else b''
        place += length
        if opcode == Opcode.DATA_END:
            (expected,) = _unpacked('<I', content)
            if expected not in (0, before):
                raise BrokenError('the checksum of its messages is wrong')
        yield opcode, content
    if _exactly(stream, len(MAGIC)) != MAGIC:
        raise BrokenError(f'expected {MAGIC!r} at its end')
    if stream.read(1):
        raise BrokenError('goes on after its end')


class _Tables:
    """Types and topics of a file by their numbers, and what is done with its messages."""

    def __init__(self, collector: 'MessageCollector') -> None:
        self._collector = collector
        self._types: dict[int, str] = {}
        self._topics: dict[int, Topic] = {}

    def read_all(self, data: bytes) -> None:
        """Read the records of a chunk; mcap's own way to do so takes three times as long."""
        place, size, head = 0, len(data), struct.Struct('<BQ')
        while place < size:
            if size - place < head.size:
                raise BrokenError('a chunk ends within a record')
            opcode, length = head.unpack_from(data, place)
            place += head.size
            if length > size - place:
                raise BrokenError('a record is longer than its chunk')
            self.read(opcode, data, place, place + length)
            place += length

    def read(self, opcode: int, data: bytes, begin: int, end: int) -> None:
        """Read one record, data[begin:end]."""
        if opcode == Opcode.MESSAGE:
            place = begin + MESSAGE_HEAD.size
            if place > end:
                raise BrokenError('a message is shorter than its head')
            number, sequence, log_ns, publish_ns = MESSAGE_HEAD.unpack_from(data, begin)
            if (topic := self._topics.get(number)) is None:
                raise BrokenError(f'a message of channel {number}, which is not there')
            content = data[place:end] if topic.is_wanted else b''
            self._collector.add(topic, log_ns, content, publish_ns, sequence)
        elif opcode == Opcode.SCHEMA:
            content = data[begin:end]
            (number,) = _unpacked('<H', content)
            name, _ = _text(content, 2)
            if self._types.setdefault(number, name) != name:
                raise BrokenError(f'schema {number} is there twice, and differs')
        elif opcode == Opcode.CHANNEL:
            content = data[begin:end]
            number, schema = _unpacked('<HH', content)
            name, _ = _text(content, 4)
            topic = self._collector.topic(name, self._types.get(schema, ''))
            if self._topics.setdefault(number, topic) != topic:
                raise BrokenError(f'channel {number} is there twice, and differs')


def _inflated(content: bytes, collector: 'MessageCollector') -> bytes:
    """Return the records of a chunk."""
    _, _, size, checksum = _unpacked(CHUNK_HEAD.format, content)
    compression, place = _text(content, CHUNK_HEAD.size)
    (length,) = _unpacked('<Q', content, place)
    data = memoryview(content)[place + 8 :]
    if length != len(data):
        raise BrokenError(f'a chunk says {length} bytes and has {len(data)}')
    if size > MAX_CHUNK:
        raise BrokenError(f'a chunk inflates to {size} bytes, at most {MAX_CHUNK} are read')
    collector.inflate(size)
    try:
        match compression:
            case '':
                records = bytes(data)
            case 'zstd':
                records = _from_zstd(data, size)
            case 'lz4':
                records = lz4.frame.LZ4FrameDecompressor().decompress(data, max_length=size + 1)
            case other:
                raise BrokenError(f'a chunk is compressed by {other[:20]!r}, not zstd or lz4')
    except (zstandard.ZstdError, RuntimeError) as error:  # the latter of lz4
        raise BrokenError(f'a chunk cannot be inflated ({error})') from None
    if len(records) != size:
        raise BrokenError(f'a chunk says that it inflates to {size} bytes, and does not')
    if checksum and zlib.crc32(records) != checksum:
        raise BrokenError('the checksum of a chunk is wrong')
    return records


def _from_zstd(data: memoryview, size: int) -> bytes:
    """Return at most `size` bytes; zstandard allocates what the frame declares."""
    declared = zstandard.frame_content_size(data)  # -1: none
    if declared not in (-1, size):
        raise BrokenError(f'a chunk says that it inflates to {size} bytes, its frame {declared}')
    inflater = zstandard.ZstdDecompressor(max_window_size=MAX_RECORD)
    return inflater.decompress(data, max_output_size=max(size, 1))  # zero would be no limit


def _check_index(stream: BinaryIO, footer: bytes, name: str, problems: list[str]) -> None:
    """Note a problem if a file has no index, or its checksum is wrong."""
    begin, _, expected = _unpacked('<QQI', footer)
    here = stream.tell()
    if not begin:
        problems.append(f'{name}: has no index, the recording was not ended')
    elif expected:
        stream.seek(begin)
        checksum, left = 0, max(here - 4 - begin, 0)  # all but the checksum itself
        while piece := stream.read(min(PIECE, left)):
            checksum, left = zlib.crc32(piece, checksum), left - len(piece)
        stream.seek(here)
        if checksum != expected:
            problems.append(f'{name}: its index is damaged')


def _unpacked(layout: str, content: bytes, place: int = 0) -> tuple[int, ...]:
    try:
        return struct.unpack_from(layout, content, place)
    except struct.error:
        raise BrokenError('a record is shorter than its kind') from None


def _text(content: bytes, place: int) -> tuple[str, int]:
    """Return a text that begins at a place, and where it ends."""
    (size,) = _unpacked('<I', content, place)
    begin = place + 4
    if size > len(content) - begin:
        raise BrokenError('a text is longer than its record')
    try:
        return str(content[begin : begin + size], 'utf-8'), begin + size
    except UnicodeDecodeError as error:
        raise BrokenError(f'a text is not UTF-8 ({error.reason})') from None


def _exactly(stream: BinaryIO, num_bytes: int) -> bytes:
    data = stream.read(num_bytes) or b''
    if len(data) != num_bytes:  # it was cut while it is read
        raise BrokenError('it ends within a record')
    return data


def read_sqlite(file: Path, collector: 'MessageCollector', problems: list[str]) -> None:
    """Take all messages of a file, up to where it breaks, with a ValueError or one of sqlite3."""
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
        topics: dict[int, Topic] = {}
        for number, name, kind in database.execute('SELECT id, name, type FROM topics'):
            if not (isinstance(number, int) and isinstance(name, str) and isinstance(kind, str)):
                raise ValueError(f'topic {number!r:.20} has no name or no type')
            topics[number] = collector.topic(name, kind)
        # The data of what is not wanted are not read from the disk.
        wanted = ', '.join(str(number) for number, topic in topics.items() if topic.is_wanted)
        column = f'CASE WHEN topic_id IN ({wanted}) THEN data END' if wanted else 'NULL'
        rows = database.execute(f'SELECT topic_id, timestamp, {column} FROM messages')
        for number, log_time_ns, data in rows:
            if number not in topics or not isinstance(log_time_ns, int):
                raise ValueError(f'a message of topic {number!r:.20} at {log_time_ns!r:.20}')
            if topics[number].is_wanted and not isinstance(data, bytes):
                raise ValueError(f'a message that is a {type(data).__name__}')
            collector.add(topics[number], log_time_ns, data, log_time_ns, 0)


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
