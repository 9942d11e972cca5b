# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""Defers SIGINT and SIGTERM during critical sections.

As an exception Ctrl-C may come between any two instructions. Between the start of a process and
writing it down, it would leave that process running; within rclpy's native code the exception is
lost or turned into another. Python's handlers are exchanged rather than the signals blocked,
because a process started meanwhile would inherit the blocking.
"""

from collections.abc import Iterator
from contextlib import contextmanager
import signal
from types import FrameType


@contextmanager
def deferred_signals() -> Iterator[None]:
    """Let SIGINT and SIGTERM wait until the block is left, and then do what they do, once."""
    with _deferred(signal.SIGINT), _deferred(signal.SIGTERM):
        yield


@contextmanager
def _deferred(number: signal.Signals) -> Iterator[None]:
    has_come = False

    def note(_number: int, _frame: FrameType | None) -> None:
        nonlocal has_come
        has_come = True

    usual = signal.signal(number, note)
    try:
        yield
    finally:
        signal.signal(number, usual)
        if has_come:
            signal.raise_signal(number)
