# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""The messages of a bag as they are gathered, and how many a bag may hold.

A few kilobytes can inflate to gigabytes, or to millions of messages. What a bag may hold grows
with what it takes on the disk, several times above what recordings have: whoever stands still for
an hour has some twelve bytes per message left when compressed, and a fiftieth of the size.
"""

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from metactl_ros.errors import MetactlError

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


class RawMessage(NamedTuple):
    """A message as it is in the bag."""

    topic: str
    type_name: str
    """Such as sensor_msgs/msg/JointState."""
    log_time_ns: int
    data: bytes
    """CDR."""
    publish_time_ns: int
    """On the publisher's clock; the log time where the bag does not say."""
    sequence: int
    """Counted by the publisher from 1; zero where the bag does not say."""


class Topic(NamedTuple):
    """A topic of a bag."""

    name: str
    type_name: str
    is_wanted: bool


class Gathered:
    """Takes messages as they are read, and refuses a bag that holds more than it can.

    Args:
        where: The bag, for the messages.
        num_bytes: What it takes on the disk.
        is_wanted: Whether the messages of a topic are, by its full name.

    Raises:
        BagError: By every method, if the bag is too large.
    """

    def __init__(self, where: Path, num_bytes: int, is_wanted: Callable[[str], bool]) -> None:
        self._where, self._num_bytes, self._is_wanted = where, num_bytes, is_wanted
        self._bytes_left = FREE_BYTES + BYTES_PER_BYTE * num_bytes
        self._most = FREE_MESSAGES + num_bytes // BYTES_PER_MESSAGE
        self._most_wanted = FREE_WANTED + num_bytes // BYTES_PER_WANTED
        self._kept_left = min(FREE_KEPT + KEPT_PER_BYTE * num_bytes, MOST_KEPT)
        self.messages: list[RawMessage] = []
        self.counts: Counter[str] = Counter()
        self.num_messages = 0
        self.num_too_large: Counter[str] = Counter()
        """Of the wanted ones, those that were left out."""

    def topic(self, name: str, type_name: str) -> Topic:
        """Return a topic, to be given back with each of its messages."""
        return Topic(name, type_name, self._is_wanted(name))

    def inflate(self, num_bytes: int) -> None:
        """Tell that so many bytes are about to be inflated."""
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
            RawMessage(topic.name, topic.type_name, log_time_ns, data, publish_time_ns, sequence)
        )

    def _too_large(self, found: str) -> BagError:
        return BagError(
            f'{self._where}: {found}, but takes only {self._num_bytes} bytes on the disk, or is '
            'too long to be replayed at once; if it is a recording, split it by ros2 bag convert.'
        )
