# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""Writes a bag of rosbag2: one MCAP file in small chunks, and metadata.yaml when it ends.

Whenever `sync` returns, the file holds whole chunks and an ending, so that it opens after a kill
and after a power cut; only its index and metadata.yaml are then missing. If the disk fails, the
file is cut back to that state.
"""

from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
import struct
from typing import Any, cast, IO, NamedTuple

from mcap.writer import CompressionType, MCAP0_MAGIC, Writer

from metactl_ros.bag.metadata import bag_information, BagTopic, to_yaml
from metactl_ros.bag.synced_file import sync_folder, SyncedFile, write_whole
from metactl_ros.errors import MetactlError

MAX_CHUNK_NS = 500_000_000
MAX_CHUNK_BYTES = 64 * 1024
MESSAGE_BYTES = 31
"""What MCAP adds to the data of a message."""
CHANNEL_BYTES = 512
"""More than a channel takes, and more than a QoS profile does."""
# DataEnd and a footer that names no index: readers then scan the file.
ENDING = struct.pack('<BQI', 0x0F, 4, 0) + struct.pack('<BQQQI', 0x02, 20, 0, 0, 0) + MCAP0_MAGIC


class BagExists(MetactlError, FileExistsError):  # noqa: N818 - reads as the fact it states
    """A bag is never written over something else."""


class BagWriteError(MetactlError, OSError):
    """The disk did not take the bag; what it took before is kept."""


class BagMessage(NamedTuple):
    """A message as it arrived."""

    topic: BagTopic
    data: bytes
    """CDR, with its four bytes of header."""
    log_time_ns: int
    """Does not decrease from one message to the next, of whatever topic."""
    publish_time_ns: int
    sequence: int = 0


class BagWriter:
    """A bag being written to a folder that it creates.

    Raises:
        BagExists: If there is something at the path of the folder.
        BagWriteError: If the disk fails, then and in `sync` and `close`; the bag has then ended.
    """

    def __init__(self, folder: Path) -> None:
        self.counts: Counter[str] = Counter()
        """Messages on the disk per topic."""
        self._folder = folder
        self._topics: dict[str, BagTopic] = {}
        self._channels: dict[str, int] = {}
        self._schemas: dict[str, int] = {}
        self._unsynced: list[BagMessage] = []
        self._span_ns: tuple[int, int] | None = None
        self._chunk_start_ns = 0
        self._chunk_bytes = 0
        try:
            folder.mkdir(parents=True)
            self._file = SyncedFile(folder / f'{folder.name}_0.mcap', ENDING)
            sync_folder(folder.parent)
        except FileExistsError:
            raise BagExists(f'{folder}: exists; record to a folder that does not.') from None
        except OSError as error:
            raise BagWriteError(f'{folder}: {error.strerror}; nothing is recorded.') from error
        # Any, as some of its methods have no types.
        self._mcap: Any = Writer(
            cast('IO[bytes]', self._file),
            compression=CompressionType.NONE,
            enable_data_crcs=True,  # of all before the index, what lies between chunks included
        )
        self._mcap.start('ros2', 'metactl_ros')
        self.sync()

    def write(self, message: BagMessage) -> None:
        """Add a message to the chunk, or to the next if this one is full; `sync` writes it."""
        topic = message.topic
        num_bytes = len(message.data) + MESSAGE_BYTES
        if topic.name not in self._channels:
            num_bytes += len(topic.definition.text.encode())
            num_bytes += CHANNEL_BYTES * (1 + len(topic.offered_qos))
        is_full = self._chunk_bytes + num_bytes > MAX_CHUNK_BYTES
        if is_full or message.log_time_ns - self._chunk_start_ns > MAX_CHUNK_NS:
            self._end_chunk()
        if not self._chunk_bytes:
            self._chunk_start_ns = message.log_time_ns
        self._chunk_bytes += num_bytes
        self._mcap.add_message(
            channel_id=self._channel(topic),
            log_time=message.log_time_ns,
            data=message.data,
            publish_time=message.publish_time_ns,
            sequence=message.sequence,
        )
        self._unsynced.append(message)

    def sync(self) -> None:
        """Bring all messages to the disk and wait until they are there."""
        self._end_chunk()
        self._reach_disk(self._file.commit)
        if self._unsynced:
            self.counts.update(message.topic.name for message in self._unsynced)
            first_ns = self._span_ns[0] if self._span_ns else self._unsynced[0].log_time_ns
            self._span_ns = first_ns, self._unsynced[-1].log_time_ns
            self._unsynced.clear()

    def close(self) -> None:
        """End the file with its index, and write metadata.yaml."""
        self.sync()
        information = self._information()
        self._mcap.add_metadata('rosbag2', {'serialized_metadata': to_yaml(information)})
        self._mcap.finish()
        self._reach_disk(self._file.finish)
        try:
            self._write_metadata(information)
        except OSError as error:
            raise BagWriteError(
                f'{self._folder}: {error.strerror}; it lacks metadata.yaml, its messages are safe.'
            ) from error

    def _channel(self, topic: BagTopic) -> int:
        if topic.name not in self._channels:
            name, text, type_hash = topic.definition
            if name not in self._schemas:
                self._schemas[name] = self._mcap.register_schema(name, 'ros2msg', text.encode())
            offered = [dict(profile) for profile in topic.offered_qos]
            facts = {'offered_qos_profiles': to_yaml(offered), 'topic_type_hash': type_hash}
            self._channels[topic.name] = self._mcap.register_channel(
                topic.name, 'cdr', self._schemas[name], facts
            )
            self._topics[topic.name] = topic
        return self._channels[topic.name]

    def _end_chunk(self) -> None:
        self._mcap.flush()
        self._chunk_bytes = 0

    def _reach_disk(self, write: Callable[[], None]) -> None:
        try:
            write()
        except OSError as error:
            self._file.cut_back()
            with suppress(OSError):
                self._write_metadata(self._information(stopped=str(error)))
            raise BagWriteError(
                f'{self._folder}: {error.strerror}; the recording ends here, '
                f'{sum(self.counts.values())} messages are kept.'
            ) from error

    def _write_metadata(self, information: dict[str, Any]) -> None:
        text = to_yaml({'rosbag2_bagfile_information': information})
        write_whole(self._folder / 'metadata.yaml', text)

    def _information(self, stopped: str | None = None) -> dict[str, Any]:
        topics = [topic for topic in self._topics.values() if self.counts[topic.name]]
        span_ns = self._span_ns or (0, 0)
        return bag_information(self._file.path.name, topics, self.counts, span_ns, stopped)
