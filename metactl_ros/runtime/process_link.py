# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""The link between the process that answers the network and the one that controls.

    length of the fields, of the data    two unsigned 32-bit integers, big-endian
    the fields                           JSON
    the data                             bytes as they came, of a trajectory

One side asks, the other answers each request in turn. Nothing but plain data crosses: no request
of the network can make the process that controls do more than read a few kilobytes.
"""

from collections.abc import Callable
from contextlib import suppress
import json
from queue import Empty, Queue
import socket
import struct
import threading
from typing import Any, NamedTuple, TypeAlias

from metactl_ros.errors import MetactlError
from metactl_ros.signals import seconds

SIZES = struct.Struct('>II')
MAX_FIELDS = 2**16
"""Bytes of fields; parameters and their names are the most that is ever sent."""
MAX_DATA = 2**20
Fields: TypeAlias = dict[str, Any]


class LinkError(MetactlError, RuntimeError):
    """The other process cannot be asked."""


class Packet(NamedTuple):
    """What is sent in one piece."""

    fields: Fields
    data: bytes = b''


class Link:
    """One end: packets go in, and come out at the other."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection

    def send(self, packet: Packet) -> None:
        """Send a packet.

        Raises:
            LinkError: If it is too large, or the other side is gone.
        """
        text = json.dumps(packet.fields, default=list).encode()
        _require_small(len(text), len(packet.data))
        try:
            self._connection.sendall(SIZES.pack(len(text), len(packet.data)) + text + packet.data)
        except OSError as error:
            raise LinkError(f'link: the other process is gone ({error}).') from None

    def receive(self) -> Packet | None:
        """Return the next packet, waiting for it; None if the other side is gone.

        Raises:
            LinkError: If something else came than a packet.
        """
        head = self._read(SIZES.size)
        if head is None:
            return None
        sizes = SIZES.unpack(head)
        _require_small(*sizes)
        text, data = (self._read(size) for size in sizes)
        if text is None or data is None:
            return None
        try:
            fields = json.loads(text)
        except ValueError as error:
            raise LinkError(f'link: expected JSON, found {text[:80]!r}: {error}.') from None
        if not isinstance(fields, dict):
            raise LinkError(f'link: expected fields with names, found {text[:80]!r}.')
        return Packet(fields, data)

    def close(self) -> None:
        """Close: the other side receives None, and so does a thread that waits here."""
        with suppress(OSError):  # the other side was first
            self._connection.shutdown(socket.SHUT_RDWR)
        self._connection.close()

    def _read(self, size: int) -> bytes | None:
        parts = bytearray()
        while len(parts) < size:
            try:
                part = self._connection.recv(size - len(parts))
            except OSError:  # closed by another thread, or reset
                return None
            if not part:
                return None
            parts += part
        return bytes(parts)


def _require_small(num_fields: int, num_data: int) -> None:
    for found, most, what in ((num_fields, MAX_FIELDS, 'fields'), (num_data, MAX_DATA, 'data')):
        if found > most:
            raise LinkError(f'link: expected at most {most} bytes of {what}, found {found}.')


class LinkClient(threading.Thread):
    """The side that asks. Several threads may; one after the other is answered."""

    def __init__(self, link: Link, on_disconnect: Callable[[], None]) -> None:
        super().__init__(name='link', daemon=True)
        self._link, self._on_disconnect = link, on_disconnect
        self._answers: Queue[Fields | None] = Queue()
        self._asking = threading.Lock()
        self._number = 0

    def run(self) -> None:
        """Receive answers until the other side is gone."""
        try:
            while (packet := self._link.receive()) is not None:
                self._answers.put(packet.fields)
        finally:
            self._answers.put(None)
            self._on_disconnect()

    def ask(self, what: str, timeout_s: float, data: bytes = b'', **fields: object) -> Fields:
        """Send a request and return the fields of its answer.

        Raises:
            LinkError: If there is none in time, or the request was refused; the text says why.
        """
        with self._asking:
            self._number += 1
            self._link.send(Packet({'number': self._number, 'what': what, **fields}, data))
            answer: Fields | None = {}
            while answer is not None and answer.get('number') != self._number:  # of one before
                try:
                    answer = self._answers.get(timeout=timeout_s)
                except Empty:
                    raise LinkError(f'{what}: no answer within {timeout_s:g} s.') from None
            if answer is None:
                self._answers.put(None)  # for the next request
                raise LinkError(f'{what}: the process that controls is gone.')
        if (error := answer.get('error')) is not None:
            raise LinkError(str(error))
        return answer


class LinkServer(threading.Thread):
    """The side that answers, until the other is gone."""

    def __init__(
        self,
        link: Link,
        answer: Callable[[str, Fields, bytes], Fields],
        on_disconnect: Callable[[], None],
    ) -> None:
        super().__init__(name='answers', daemon=True)
        self._link, self._answer, self._on_disconnect = link, answer, on_disconnect

    def run(self) -> None:
        """Answer one request after the other."""
        try:
            while (packet := self._link.receive()) is not None:
                fields = packet.fields
                number, what = fields.pop('number'), fields.pop('what')
                try:
                    answer = self._answer(what, fields, packet.data)
                except MetactlError as error:
                    answer = {'error': str(error)}
                except Exception as error:  # whatever it is, the other side gets it
                    answer = {'error': f'{what}: {error!r}'}
                self._link.send(Packet({**answer, 'number': number}))
        except LinkError:
            pass  # of a side that sends nonsense, or is gone
        finally:
            self._on_disconnect()


class RateLimiter:
    """So many tokens at once, and so many a second."""

    def __init__(self, burst: float, per_s: float) -> None:
        self._burst, self._per_s = burst, per_s
        self._left = burst
        self._then_ns: int | None = None

    def take(self, tokens: float, now_ns: int) -> bool:
        """Return whether so many are there at a time of the steady clock, and take them if so."""
        if self._then_ns is not None:
            gained = seconds(now_ns - self._then_ns) * self._per_s
            self._left = min(self._left + gained, self._burst)
        self._then_ns = now_ns
        if tokens > self._left:
            return False
        self._left -= tokens
        return True
