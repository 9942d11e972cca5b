# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""A recording under way: messages are taken at once, and a thread brings them to the disk.

The thread writes and waits for the disk every 0.25 s. Who receives never waits for the disk, and a
kill costs 0.25 s of messages and what the last write took.
"""

from collections.abc import Callable, Mapping
import threading
import time

from metactl_ros.bag.writer import BagMessage, BagWriteError, BagWriter
from metactl_ros.signals import NANOSECONDS_PER_SECOND

PERIOD_S = 0.25
MAX_WAITING_BYTES = 64 * 1024 * 1024
"""Some minutes of a controller's messages: a disk that takes longer counts as failed."""


class Recording:
    """A bag that takes messages from one thread and writes them in another."""

    def __init__(self, writer: BagWriter) -> None:
        self.failure: Exception | None = None
        """Why it stopped; messages are then dropped."""
        self._writer = writer
        self._waiting: list[BagMessage] = []
        self._waiting_bytes = 0
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name='bag', daemon=True)
        self._thread.start()

    @property
    def counts(self) -> Mapping[str, int]:
        """Messages on the disk per topic; complete after `close`."""
        return self._writer.counts

    def put(self, message: BagMessage) -> None:
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
            # A thread that dies unseen would record nothing and say nothing.
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
        self._wall_ns = wall_ns
        self._steady_ns = steady_ns
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
