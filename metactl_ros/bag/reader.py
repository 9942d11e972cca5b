# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""Reads the messages of a bag, whatever program wrote it and however its recording ended.

    a folder with metadata.yaml     rosbag2, MCAP or sqlite3
    a folder without                a recording that was not ended
    a file .mcap or .db3            without its folder

    for name, message in read_messages(bag, 'joint_states', 'controller/shield'):
        print(name, message.publish_time_ns, message.decode().position)

Whatever was lost, or may have been, is reported. Bags come from anywhere: no file is waited for,
and none may fill the memory. A few kilobytes can inflate to gigabytes, or to millions of messages,
so what a bag may hold grows with what it takes on the disk, several times above what recordings
have: those of an arm at rest have some twelve bytes per message when compressed, and a fiftieth of
the size.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
import stat
from typing import Any, NamedTuple

from metactl_ros.config import MAX_TEXT, shown
from metactl_ros.errors import ConfigError, MetactlError, MissingDependency
from metactl_ros.files import KINDS, MAX_BYTES, parse_yaml, read_at_most

try:
    from metactl_ros.bag.storage import read_mcap, read_sqlite
except ImportError as error:
    raise MissingDependency(
        "reading bags needs mcap; run: pip install 'metactl_ros[sim]'"
    ) from error

SUFFIXES = ('.mcap', '.db3')
NOT_COMPRESSED = ('', 'none', 'null', '~')
MOST_PROBLEMS = 20
"""Of the rest only the number is reported."""
FREE_BYTES, BYTES_PER_BYTE = 2**26, 100
"""What chunks may inflate to: this, and so many per byte on the disk."""
FREE_MESSAGES, BYTES_PER_MESSAGE = 500_000, 4
"""How many messages there may be: so many, and one per these bytes on the disk."""
FREE_WANTED, BYTES_PER_WANTED = 25_000, 8
"""How many of those that are wanted."""
FREE_KEPT, KEPT_PER_BYTE, MOST_KEPT = 2**26, 25, 2**29
"""Bytes of those that are wanted; at most those of three quarters of an hour."""
LARGEST_WANTED = 2**16
"""Bytes of a message that is wanted; the largest of a controller has some thousand."""


class BagError(MetactlError, RuntimeError):
    """A bag cannot be used."""


class BagMessage(NamedTuple):
    """A message as it is in the bag."""

    topic: str
    type_name: str
    """Such as sensor_msgs/msg/JointState."""
    log_time_ns: int
    data: bytes
    """CDR."""
    publish_time_ns: int
    """On the publisher's clock; the log time where the bag has none."""
    sequence: int
    """Counted by the publisher from 1; zero where the bag has none."""

    def decode(self) -> Any:
        """Return the message with the fields of its type; BagError if Jazzy knows none such."""
        try:
            return _typestore().deserialize_cdr(self.data, self.type_name)
        except Exception as error:  # whatever a general parser raises on broken bytes
            raise BagError(
                f'{self.topic}: not a {self.type_name} ({type(error).__name__}); record again.'
            ) from None


@lru_cache(maxsize=1)
def _typestore() -> Any:
    from rosbags.typesys import get_typestore, Stores

    return get_typestore(Stores.ROS2_JAZZY)


class Topic(NamedTuple):
    """A topic of a bag."""

    name: str
    type_name: str
    is_wanted: bool


@dataclass(frozen=True, slots=True)
class BagContent:
    """What could be read."""

    messages: list[BagMessage]
    """The wanted ones, by log time; of equal times in the order of the file."""
    counts: Counter[str]
    """Messages per topic, wanted or not."""
    problems: tuple[str, ...]
    """Why it is not the whole recording; empty if it is."""


def read_messages(bag: Path, *names: str) -> Iterator[tuple[str, BagMessage]]:
    """Yield the messages of some topics by log time, each with the name its topic was asked by.

    A topic may be in any namespace: 'controller/shield' is also /left/controller/shield. What is
    no bag, or not all of a recording, is refused by BagError.
    """
    endings = {f'/{name}': name for name in names}
    content = read_bag(bag, lambda topic: topic.endswith(tuple(endings)))
    if content.problems:
        raise BagError(f'{bag}: is damaged ({"; ".join(content.problems)}); record again.')
    for message in content.messages:
        ending = next(ending for ending in endings if message.topic.endswith(ending))
        yield endings[ending], message


def read_bag(path: Path, is_wanted: Callable[[str], bool]) -> BagContent:
    """Return the messages of all topics that are wanted by their full names.

    Raises:
        BagError: If there is nothing that could be a bag, or it holds more than it can.
    """
    problems: list[str] = []
    kind, _ = _status(path)
    information = _read_information(path, problems) if kind == stat.S_IFDIR else None
    files = _files(path, kind, information, problems)
    collector = MessageCollector(path, sum(_status(file)[1] for file in files), is_wanted)
    for file in files:
        read = read_mcap if file.suffix == '.mcap' else read_sqlite
        try:
            read(file, collector, problems)
        except BagError:
            raise
        except Exception as error:  # whatever a parser raises on broken bytes
            why = error.strerror if isinstance(error, OSError) and error.strerror else error
            problems.append(
                f'{_cut(file.name)}: breaks off after {collector.num_messages} messages '
                f'({type(error).__name__}: {str(why)[:MAX_TEXT]})'
            )
    if information is not None:
        expected, found = information.get('message_count'), collector.num_messages
        if expected != str(found):
            problems.append(f'metadata.yaml: says {_cut(expected)} messages, {found} were found')
    for topic, count in collector.num_too_large.items():
        problems.append(f'{_cut(topic)}: {count} messages are too large, left out')
    if len(problems) > MOST_PROBLEMS:
        problems[MOST_PROBLEMS:] = [f'and {len(problems) - MOST_PROBLEMS} problems more']
    collector.messages.sort(key=lambda message: message.log_time_ns)
    return BagContent(collector.messages, collector.counts, tuple(problems))


def find_node(where: Path, content: BagContent, node: str) -> str:
    """Return what the topics of the only such controller node begin with: /left/controller/."""
    end = f'/{node.strip("/")}/'
    found = sorted(
        {topic[: -len('shield')] for topic in content.counts if topic.endswith(f'{end}shield')}
    )
    if len(found) > 1:
        raise BagError(
            f'{where}: has several nodes {node!r}, {", ".join(name[:-1] for name in found)}; name '
            'one of them with --node.'
        )
    if not found:
        topics = ', '.join(sorted(content.counts))[:MAX_TEXT] or 'no topics'
        why = f' ({"; ".join(content.problems)})' if content.problems else ''
        raise BagError(
            f'{where}: lacks the telemetry of a node {node!r}, such as {end}shield; states and '
            f'commands alone do not say what a controller knew. Found {topics}{why}; record with '
            'metactl record.'
        )
    return found[0]


class MessageCollector:
    """Takes messages as they are read; every method refuses, by BagError, a bag that is too large.

    Too large is what holds more than a bag of `num_bytes` on the disk can.
    """

    def __init__(self, where: Path, num_bytes: int, is_wanted: Callable[[str], bool]) -> None:
        self._where, self._num_bytes, self._is_wanted = where, num_bytes, is_wanted
        self._bytes_left = FREE_BYTES + BYTES_PER_BYTE * num_bytes
        self._most = FREE_MESSAGES + num_bytes // BYTES_PER_MESSAGE
        self._most_wanted = FREE_WANTED + num_bytes // BYTES_PER_WANTED
        self._kept_left = min(FREE_KEPT + KEPT_PER_BYTE * num_bytes, MOST_KEPT)
        self.messages: list[BagMessage] = []
        self.counts: Counter[str] = Counter()
        self.num_messages = 0
        self.num_too_large: Counter[str] = Counter()
        """Of the wanted ones, those that were left out."""

    def topic(self, name: str, type_name: str) -> Topic:
        """Return a topic, to be given back with each of its messages."""
        return Topic(name, type_name, self._is_wanted(name))

    def inflate(self, num_bytes: int) -> None:
        """Count bytes that are about to be inflated."""
        self._bytes_left -= num_bytes
        if self._bytes_left < 0:
            raise self._too_large(
                f'inflates to more than {FREE_BYTES + BYTES_PER_BYTE * self._num_bytes} bytes'
            )

    def add(
        self, topic: Topic, log_time_ns: int, data: bytes, publish_time_ns: int, sequence: int
    ) -> None:
        """Take a message; of a topic that is not wanted, its data may be anything."""
        self.counts[topic.name] += 1
        self.num_messages += 1
        if self.num_messages > self._most:
            raise self._too_large(f'holds more than {self._most} messages')
        if not topic.is_wanted:
            return
        if len(data) > LARGEST_WANTED:
            self.num_too_large[topic.name] += 1
            return
        self._kept_left -= len(data)
        if self._kept_left < 0 or len(self.messages) >= self._most_wanted:
            raise self._too_large(
                f'holds more than {len(self.messages)} messages of one controller'
            )
        self.messages.append(
            BagMessage(topic.name, topic.type_name, log_time_ns, data, publish_time_ns, sequence)
        )

    def _too_large(self, found: str) -> BagError:
        return BagError(
            f'{self._where}: {found}, but takes only {self._num_bytes} bytes on the disk, or is '
            'too long to be replayed at once; if it is a recording, split it by ros2 bag convert.'
        )


def _status(path: Path) -> tuple[int, int]:
    """Return what is at a path, as stat has it, and its size; zeros if nothing is."""
    try:
        found = path.stat()
    except (OSError, ValueError):  # nothing, a loop of links, a name that none can have
        return 0, 0
    return stat.S_IFMT(found.st_mode), found.st_size


def _cut(text: object) -> str:
    """Return a text of a bag for a message: not too long, and nothing that steers a terminal."""
    is_harmless = isinstance(text, str) and len(text) < MAX_TEXT and text.isprintable()
    return str(text) if is_harmless else shown(text)


def _read_information(folder: Path, problems: list[str]) -> dict[str, Any] | None:
    """Return what metadata.yaml says, all in texts, or None with a problem."""
    file = folder / 'metadata.yaml'
    if not _status(file)[0]:
        problems.append('metadata.yaml: is missing, the recording was not ended')
        return None
    try:
        content: Any = parse_yaml(read_at_most(file, MAX_BYTES).decode('utf-8'), is_all_text=True)
        information = content['rosbag2_bagfile_information']
        compression = information.get('compression_mode', '')
        custom = information.get('custom_data')
    except (OSError, UnicodeDecodeError, ConfigError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        problems.append(f'metadata.yaml: cannot be read ({str(why)[:MAX_TEXT]})')
        return None
    except (LookupError, TypeError, AttributeError):  # a list or a text in place of a table
        problems.append('metadata.yaml: cannot be read (it is not that of a bag)')
        return None
    if not isinstance(compression, str) or compression.lower() not in NOT_COMPRESSED:
        raise BagError(
            f'{folder}: is compressed by {_cut(information.get("compression_format"))}; convert '
            'it with ros2 bag convert, or read its MCAP file compressed by chunks.'
        )
    if isinstance(custom, dict) and 'stopped' in custom:
        problems.append(f'metadata.yaml: the recording stopped early ({_cut(custom["stopped"])})')
    return dict(information)


def _files(
    path: Path, kind: int, information: dict[str, Any] | None, problems: list[str]
) -> list[Path]:
    """Return the files of a bag, in their order; BagError if there are none."""
    if kind == stat.S_IFREG and path.suffix in SUFFIXES:
        return [path]
    if kind != stat.S_IFDIR:
        found = KINDS.get(kind, 'another file') if kind else 'nothing'
        raise BagError(
            f'{path}: expected a bag, a folder or a file {" or ".join(SUFFIXES)}; found {found}.'
        )
    try:
        present = sorted(
            (file for file in path.iterdir() if file.suffix in SUFFIXES),
            key=lambda file: (len(file.name), file.name),  # _10 is after _9
        )
    except OSError as error:
        raise BagError(f'{path}: cannot be read ({error.strerror}); give another.') from None
    if not present:
        raise BagError(f'{path}: expected a bag, found no file {" or ".join(SUFFIXES)} in it.')
    if information is None:
        return present
    paths = information.get('relative_file_paths')
    entries = paths if isinstance(paths, list) else []
    named = sorted(Path(entry).name for entry in entries if isinstance(entry, str))
    names = sorted(file.name for file in present)
    if named != names:
        problems.append(f'metadata.yaml: names the files {shown(named)}, found {shown(names)}')
    return present
