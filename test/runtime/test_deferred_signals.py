# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""Signals wait while a block runs, and come after it."""

import os
import signal

import pytest

from metactl_ros.runtime.deferred_signals import deferred_signals


@pytest.mark.parametrize('number', [signal.SIGINT, signal.SIGTERM])
def test_a_signal_waits_until_the_block_is_left_and_comes_once(number):
    came = []
    usual = signal.signal(number, lambda *_: came.append(number))
    try:
        with deferred_signals():
            os.kill(os.getpid(), number)
            os.kill(os.getpid(), number)
            assert not came
        assert came == [number]
        os.kill(os.getpid(), number)
        assert came == [number, number]
    finally:
        signal.signal(number, usual)


def test_a_block_that_fails_gives_the_signals_back():
    usual = signal.getsignal(signal.SIGINT)
    with pytest.raises(ZeroDivisionError), deferred_signals():
        raise ZeroDivisionError
    assert signal.getsignal(signal.SIGINT) is usual
