# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""Lets Ctrl-C wait where it must not strike.

As an exception it may come between any two instructions. Between the start of a process and
writing it down, nobody would end that process; within rclpy's native code the exception is lost or
turned into another. Python's handlers are exchanged rather than the signals blocked, because a
process started meanwhile would inherit the blocking.
"""

from collections.abc import Iterator
from contextlib import contextmanager
import signal
from types import FrameType


@contextmanager
def undisturbed() -> Iterator[None]:
    """Let SIGINT and SIGTERM wait until the block is left, and then do what they do, once."""
    came: list[int] = []

    def note(number: int, _frame: FrameType | None) -> None:
        came.append(number)

    usual = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in usual.items():
            signal.signal(number, handler)
        for first in came[:1]:
            signal.raise_signal(first)
