# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""The messages of a bag as bytes, whoever wrote it and however it ended.

    a folder with metadata.yaml     rosbag2, MCAP or sqlite3
    a folder without                a recording that was not ended
    a file .mcap or .db3            without its folder

MCAP is read from the front with all checksums on, until it ends or breaks; sqlite3, which has
none, through `rosbags` after a check of its structure. What was lost, or may have been, is said.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
import sqlite3
import struct
from typing import Any, NamedTuple
import zlib

import yaml

from metactl_ros.errors import MetactlError, MissingDependency

try:
    from mcap.data_stream import ReadDataStream
    from mcap.opcode import Opcode
    from mcap.records import Channel, Chunk, DataEnd, Footer, Message, Schema, Statistics
    from mcap.stream_reader import get_chunk_data_stream, StreamReader
    from rosbags.rosbag2 import Reader
except ImportError as error:
    raise MissingDependency(
        "reading bags needs rosbags and mcap; run: pip install 'metactl_ros[sim]'"
    ) from error

SUFFIXES = ('.mcap', '.db3')
LOADER = getattr(yaml, 'CSafeLoader', yaml.SafeLoader)
"""The fast one, where PyYAML was built with it."""
MESSAGE_HEAD = 22
"""Bytes of a message record before its data."""
FOOTER_END = 12
"""Bytes at the end of a file that the checksum of the index does not cover: itself, and magic."""


class BagError(MetactlError, RuntimeError):
    """A bag cannot be used."""


class RawMessage(NamedTuple):
    """A message as it is in the bag."""

    topic: str
    type_name: str
    """Such as sensor_msgs/msg/JointState."""
    log_time_ns: int
    data: bytes
    """CDR."""


@dataclass(frozen=True, slots=True)
class BagContent:
    """What could be read."""

    messages: list[RawMessage]
    """The wanted ones, by log time; of equal times in the order of the file."""
    counts: Counter[str]
    """Messages per topic, wanted or not."""
    problems: tuple[str, ...]
    """Why it is not the whole recording; empty if it is."""


def read_bag(path: Path, is_wanted: Callable[[str], bool]) -> BagContent:
    """Return the messages of all topics that are wanted.

    Args:
        path: A folder or a file, see the module's text.
        is_wanted: Whether a topic is, by its full name.

    Raises:
        BagError: If there is nothing that could be a bag.
    """
    problems: list[str] = []
    information = _read_information(path, problems) if path.is_dir() else None
    messages: list[RawMessage] = []
    counts: Counter[str] = Counter()
    for file in _files(path, information, problems):
        read = _read_mcap if file.suffix == '.mcap' else _read_sqlite
        try:
            for message in read(file, problems):
                counts[message.topic] += 1
                if is_wanted(message.topic):
                    messages.append(message)
        except Exception as error:  # whatever a parser raises on broken bytes
            problems.append(
                f'{file.name}: breaks off after {counts.total()} messages '
                f'({type(error).__name__}: {error})'
            )
    if information is not None:
        expected = information.get('message_count')
        if expected != counts.total():
            problems.append(
                f'metadata.yaml: says {expected} messages, {counts.total()} were found'
            )
    messages.sort(key=lambda message: message.log_time_ns)
    return BagContent(messages, counts, tuple(problems))


def _read_information(folder: Path, problems: list[str]) -> dict[str, Any] | None:
    """Return what metadata.yaml says, or None with a problem."""
    file = folder / 'metadata.yaml'
    if not file.is_file():
        problems.append('metadata.yaml: is missing, the recording was not ended')
        return None
    try:
        information = yaml.load(file.read_bytes(), Loader=LOADER)['rosbag2_bagfile_information']
        stopped = (information.get('custom_data') or {}).get('stopped')
    except Exception as error:  # as of a file that is damaged anywhere
        problems.append(f'metadata.yaml: cannot be read ({type(error).__name__})')
        return None
    if information.get('compression_mode'):
        raise BagError(
            f'{folder}: is compressed by {information.get("compression_format")}; convert it '
            'with ros2 bag convert, or read its MCAP file compressed by chunks.'
        )
    if stopped:
        problems.append(f'metadata.yaml: the recording stopped early ({stopped})')
    return dict(information)


def _files(path: Path, information: dict[str, Any] | None, problems: list[str]) -> list[Path]:
    """Return the files of a bag, in their order.

    Raises:
        BagError: If there are none.
    """
    if path.is_file() and path.suffix in SUFFIXES:
        return [path]
    if not path.is_dir():
        found = 'another file' if path.exists() else 'nothing'
        raise BagError(
            f'{path}: expected a bag, a folder or a file {" or ".join(SUFFIXES)}; found {found}.'
        )
    present = sorted(
        (file for file in path.iterdir() if file.suffix in SUFFIXES),
        key=lambda file: (len(file.name), file.name),  # _10 is after _9
    )
    if not present:
        raise BagError(f'{path}: expected a bag, found no file {" or ".join(SUFFIXES)} in it.')
    if information is None:
        return present
    try:
        named = [Path(name).name for name in information['relative_file_paths']]
    except Exception:
        named = []
    if sorted(named) != sorted(file.name for file in present):
        problems.append(
            f'metadata.yaml: names the files {named}, found {[file.name for file in present]}'
        )
    return present


def _read_mcap(file: Path, problems: list[str]) -> Iterator[RawMessage]:
    types: dict[int, str] = {}
    channels: dict[int, tuple[str, str]] = {}
    is_ended, num_messages, num_expected = False, 0, None
    with file.open('rb') as stream:
        size = file.stat().st_size
        reader = StreamReader(stream, emit_chunks=True, validate_crcs=True, record_size_limit=size)
        for record in reader.records:
            match record:
                case Chunk():
                    for message in _in_chunk(record, types, channels):
                        num_messages += 1
                        yield message
                case Message():
                    num_messages += 1
                    yield RawMessage(*channels[record.channel_id], record.log_time, record.data)
                case Schema() | Channel():
                    _note(record, types, channels)
                case DataEnd():
                    is_ended = True
                case Statistics():
                    num_expected = record.message_count
                case Footer() if not record.summary_start:
                    problems.append(f'{file.name}: has no index, the recording was not ended')
                case Footer() if record.summary_crc:
                    # StreamReader checks all of the file but this.
                    index = file.read_bytes()[record.summary_start : -FOOTER_END]
                    if zlib.crc32(index) != record.summary_crc:
                        problems.append(f'{file.name}: its index is damaged')
    if not is_ended:
        problems.append(f'{file.name}: the end of its messages is not marked')
    if num_expected not in (None, num_messages):
        problems.append(f'{file.name}: says {num_expected} messages, {num_messages} were found')


def _in_chunk(
    chunk: Any, types: dict[int, str], channels: dict[int, tuple[str, str]]
) -> Iterator[RawMessage]:
    """Yield the messages of a chunk; mcap's own way to do so takes three times as long."""
    stream, size = get_chunk_data_stream(chunk, validate_crc=True)
    data, place = stream.read(size), 0
    while place < size:
        code, length = struct.unpack_from('<BQ', data, place)
        place += 9
        if code == Opcode.MESSAGE:
            channel, _, log_time_ns, _ = struct.unpack_from('<HIQQ', data, place)
            content = data[place + MESSAGE_HEAD : place + length]
            yield RawMessage(*channels[channel], log_time_ns, content)
        elif code in (Opcode.SCHEMA, Opcode.CHANNEL):
            kind = Schema if code == Opcode.SCHEMA else Channel
            _note(kind.read(ReadDataStream(BytesIO(data[place:]))), types, channels)
        place += length
    if place != size:
        raise ValueError('a record is longer than its chunk')


def _note(record: Any, types: dict[int, str], channels: dict[int, tuple[str, str]]) -> None:
    if isinstance(record, Schema):
        types[record.id] = record.name
    else:
        channels[record.id] = record.topic, types.get(record.schema_id, '')


def _read_sqlite(file: Path, problems: list[str]) -> Iterator[RawMessage]:
    for rest in ('-wal', '-journal'):
        if file.with_name(file.name + rest).exists():
            problems.append(f'{file.name}: was not closed, {file.name}{rest} is beside it')
    connection = sqlite3.connect(f'{file.resolve().as_uri()}?immutable=1', uri=True)
    try:
        (verdict,) = connection.execute('PRAGMA integrity_check').fetchone()
    finally:
        connection.close()
    if verdict != 'ok':
        problems.append(f'{file.name}: is damaged ({verdict.splitlines()[0]})')
    with Reader(file) as reader:
        for connected, log_time_ns, data in reader.messages():
            yield RawMessage(connected.topic, connected.msgtype, log_time_ns, bytes(data))
