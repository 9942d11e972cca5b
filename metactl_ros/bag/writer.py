# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""Writes a bag of rosbag2: one MCAP file in small chunks, and metadata.yaml when it ends.

    recording = Recording(BagWriter(folder))      a thread writes and syncs every 0.25 s
    recording.put(message)                        never waits for the disk
    recording.close()

Whenever `BagWriter.sync` returns, the file holds whole chunks and an ending, so that it opens
after a kill and after a power cut; only its index and metadata.yaml are then missing. A kill costs
0.25 s of messages and what the last write took. A kill within a write of several pages may leave
whole chunks without an ending: `metactl replay` reads them, other readers may not. If the disk
fails, the file is cut back to the state of the last sync.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
import os
from pathlib import Path
import struct
import threading
import time
from typing import Any, cast, IO, NamedTuple

from mcap.writer import CompressionType, MCAP0_MAGIC, Writer
import yaml

from metactl_ros.bag.topics import MessageDefinition
from metactl_ros.errors import MetactlError
from metactl_ros.files import sync, write_atomically
from metactl_ros.signals import NANOSECONDS_PER_SECOND

MAX_CHUNK_NS = 500_000_000
MAX_CHUNK_BYTES = 64 * 1024
MESSAGE_BYTES = 31
"""What MCAP adds to the data of a message."""
CHANNEL_BYTES = 512
"""More than a channel takes, and more than a QoS profile does."""
PERIOD_S = 0.25
MAX_WAITING_BYTES = 64 * 1024 * 1024
"""Some minutes of a controller's messages: a disk that takes longer counts as failed."""
# DataEnd and a footer that names no index: readers then scan the file.
ENDING = struct.pack('<BQI', 0x0F, 4, 0) + struct.pack('<BQQQI', 0x02, 20, 0, 0, 0) + MCAP0_MAGIC


class BagExists(MetactlError, FileExistsError):  # noqa: N818 - reads as the fact it states
    """A bag is never written over something else."""


class BagWriteError(MetactlError, OSError):
    """The disk did not take the bag; what it took before is kept."""


class BagTopic(NamedTuple):
    """A topic as a bag describes it."""

    name: str
    definition: MessageDefinition
    offered_qos: tuple[Mapping[str, Any], ...] = ()
    """The profiles its publishers offer, in the words of rosbag2."""


class ReceivedMessage(NamedTuple):
    """A message as it arrived."""

    topic: BagTopic
    data: bytes
    """CDR, with its four bytes of header."""
    log_time_ns: int
    """Does not decrease from one message to the next, of whatever topic."""
    publish_time_ns: int
    sequence: int = 0


class _SyncedFile:
    """A new file that takes what is written to it with `commit`, all of it or nothing.

    commit:  | committed before | what waited | ending |      the next one writes over the ending

    Raises:
        OSError: If the file exists or cannot be made; from `commit`, if the disk fails.
    """

    def __init__(self, path: Path, ending: bytes) -> None:
        self.path = path
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
        self._ending, self._size, self._waiting = ending, 0, bytearray()
        sync(path.parent)

    def write(self, data: bytes) -> int:
        """Keep data for the next commit."""
        self._waiting += data
        return len(data)

    def tell(self) -> int:
        """Return where the next byte will be in the file."""
        return self._size + len(self._waiting)

    def flush(self) -> None:
        """Do nothing: an MCAP writer calls it, but only `commit` reaches the disk."""

    def commit(self) -> None:
        """Write what waits and the ending, and return when both are on the disk."""
        self._write_and_sync(bytes(self._waiting) + self._ending)
        self._size += len(self._waiting)
        self._waiting.clear()

    def finish(self) -> None:
        """Write what waits, which has an ending of its own, and close the file."""
        self._write_and_sync(bytes(self._waiting))
        os.close(self._descriptor)

    def cut_back(self) -> None:
        """Undo a commit or a finish that failed, and close the file.

        This needs no room on the disk: the ending was there before.
        """
        ending = self._ending if self._size else b''
        with suppress(OSError):
            os.ftruncate(self._descriptor, self._size + len(ending))
            self._write_and_sync(ending)
        with suppress(OSError):
            os.close(self._descriptor)

    def _write_and_sync(self, data: bytes) -> None:
        done = 0
        while done < len(data):
            done += os.pwrite(self._descriptor, data[done:], self._size + done)
        os.fsync(self._descriptor)


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
        self._unsynced: list[ReceivedMessage] = []
        self._span_ns: tuple[int, int] | None = None
        self._chunk_start_ns = self._chunk_bytes = 0
        try:
            folder.mkdir(parents=True)
            self._file = _SyncedFile(folder / f'{folder.name}_0.mcap', ENDING)
            sync(folder.parent)
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

    def write(self, message: ReceivedMessage) -> None:
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
        write_atomically(self._folder / 'metadata.yaml', text)

    def _information(self, stopped: str | None = None) -> dict[str, Any]:
        """Return what rosbag2 keeps of a bag; custom_data has why it ended before its time."""
        name, (start_ns, end_ns) = self._file.path.name, self._span_ns or (0, 0)
        extent = {
            'starting_time': {'nanoseconds_since_epoch': start_ns},
            'duration': {'nanoseconds': end_ns - start_ns},
            'message_count': sum(self.counts.values()),
        }
        rows = [
            {
                'topic_metadata': {
                    'name': topic.name,
                    'type': topic.definition.type_name,
                    'serialization_format': 'cdr',
                    'offered_qos_profiles': [dict(profile) for profile in topic.offered_qos],
                    'type_description_hash': topic.definition.type_hash,
                },
                'message_count': self.counts[topic.name],
            }
            for topic in self._topics.values()
            if self.counts[topic.name]
        ]
        return {
            'version': 9,
            'storage_identifier': 'mcap',
            **extent,
            'topics_with_message_count': rows,
            'compression_format': '',
            'compression_mode': '',
            'relative_file_paths': [name],
            'files': [{'path': name, **extent}],
            'custom_data': None if stopped is None else {'stopped': stopped},
            'ros_distro': 'jazzy',
        }


class Recording:
    """A bag that takes messages from one thread and writes them in another."""

    def __init__(self, writer: BagWriter) -> None:
        self.failure: Exception | None = None
        """Why it stopped; messages are then dropped."""
        self._writer = writer
        self._waiting: list[ReceivedMessage] = []
        self._waiting_bytes = 0
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name='bag', daemon=True)
        self._thread.start()

    @property
    def counts(self) -> Mapping[str, int]:
        """Messages on the disk per topic; complete after `close`."""
        return self._writer.counts

    def put(self, message: ReceivedMessage) -> None:
        """Take a message; log times must not decrease."""
        if self.failure is not None:
            return
        with self._lock:
            self._waiting.append(message)
            self._waiting_bytes += len(message.data)
            waiting_bytes = self._waiting_bytes
        if waiting_bytes > MAX_WAITING_BYTES:
            self.failure = BagWriteError(
                f'the disk is too slow: {waiting_bytes} bytes wait for it; recording ends here.'
            )

    def close(self, timeout_s: float = 5.0) -> None:
        """Write what was put, and end the bag; see `failure` for whether that went well."""
        self._closing.set()
        self._thread.join(timeout_s)
        if self._thread.is_alive():
            self.failure = BagWriteError(
                f'the disk has not answered for {timeout_s} s; the bag lacks its end.'
            )

    def _run(self) -> None:
        try:
            while not self._closing.wait(PERIOD_S):
                self._write_waiting()
            self._write_waiting()
            self._writer.close()
        except Exception as error:
            # A thread that died unnoticed would record nothing, and report nothing.
            self.failure = error

    def _write_waiting(self) -> None:
        with self._lock:
            messages, self._waiting = self._waiting, []
            self._waiting_bytes = 0
        for message in messages:
            self._writer.write(message)
        if messages:
            self._writer.sync()


class LogClock:
    """Log times: when messages arrived, in wall time, and in order even if that clock is set.

    Wall time is read once; from then on the steady clock counts.
    """

    def __init__(
        self,
        wall_ns: Callable[[], int] = time.time_ns,
        steady_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self._wall_ns, self._steady_ns = wall_ns, steady_ns
        self._offset_ns = wall_ns() - steady_ns()
        self._latest_ns = 0

    def log_time_ns(self, received_ns: int) -> int:
        """Return the log time of a message that the middleware received at a wall time."""
        waited_ns = self._wall_ns() - received_ns
        if not 0 <= waited_ns < NANOSECONDS_PER_SECOND:
            waited_ns = 0  # the wall clock was set in between, or the middleware has none
        now_ns = self._steady_ns() + self._offset_ns
        self._latest_ns = max(self._latest_ns, now_ns - waited_ns)
        return self._latest_ns


def qos_in_words(profile: Any) -> dict[str, Any]:
    """Return a QoSProfile of rclpy as metadata.yaml spells it."""
    words: dict[str, Any] = {'depth': profile.depth}
    for policy in ('history', 'reliability', 'durability', 'liveliness'):
        words[policy] = getattr(profile, policy).short_key
    for duration in ('deadline', 'lifespan', 'liveliness_lease_duration'):
        seconds, rest = divmod(getattr(profile, duration).nanoseconds, NANOSECONDS_PER_SECOND)
        words[duration] = {'sec': seconds, 'nsec': rest}
    return words | {'avoid_ros_namespace_conventions': profile.avoid_ros_namespace_conventions}


def to_yaml(value: object) -> str:
    """Return YAML in the order given; without anchors, which rosbag2 does not write either."""
    return yaml.dump(value, Dumper=_NoAnchors, sort_keys=False)


class _NoAnchors(yaml.SafeDumper):
    def ignore_aliases(self, data: Any) -> bool:
        """Return true: a repeated value is written again."""
        return True
