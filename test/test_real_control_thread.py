# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""The control thread and its inbox on the clock of this machine."""

import gc
import queue
import threading
import time

import pytest
from test_control_thread import (
    arrival,
    assert_are_safe,
    BOOT_NS,
    each,
    make_thread,
    MS,
    SECOND_NS,
)
from test_driver import PERIOD_NS

from metactl_ros.nodes import control_thread as module
from metactl_ros.nodes.control_thread import Inbox, INBOX_SIZE


def waits_in_vain(inbox):
    begin_ns = time.monotonic_ns()
    return inbox.take(timeout_s=0.01) == [] and time.monotonic_ns() - begin_ns >= 9 * MS


def test_an_inbox_gives_all_that_came_oldest_first_and_only_once():
    inbox = Inbox()
    for k in range(INBOX_SIZE + 5):
        inbox.put(arrival(k))
    assert [a.received_ns for a in inbox.take()] == list(range(5, INBOX_SIZE + 5))
    assert waits_in_vain(inbox)


def test_an_inbox_waits_until_something_comes_or_somebody_wakes_it():
    inbox = Inbox()
    threading.Timer(0.01, inbox.put, [arrival(1)]).start()
    assert [a.received_ns for a in inbox.take(timeout_s=60.0)] == [1]
    threading.Timer(0.01, inbox.wake).start()
    assert inbox.take(timeout_s=60.0) == []
    inbox.wake()  # before the wait: it is not forgotten
    assert inbox.take(timeout_s=60.0) == []
    assert waits_in_vain(inbox)


@pytest.mark.parametrize('on_states', [False, True])
def test_a_real_thread_waits_ticks_and_ends_safely(on_states):
    sent, inbox = queue.Queue(), Inbox()
    timing = {'ticks_on_states': on_states, 'state_timeout_ns': 60 * SECOND_NS}
    thread, _ = make_thread(inbox, sent.put, **timing)
    thread.start()
    commands = []
    for k in range(30):
        assert sent.empty() or k
        inbox.put(arrival(k * PERIOD_NS, time.monotonic_ns()))
        commands.append(sent.get(timeout=60.0))
    thread.stop()
    assert (thread.is_alive(), thread.error) == (False, None)
    commands += [sent.get_nowait() for _ in range(sent.qsize())]
    assert_are_safe([c.effort_nm for c in commands])
    assert not commands[-1].effort_nm.any()
    if on_states:
        stamps = [c.state_stamp_ns - BOOT_NS for c in commands[:30]]
        assert stamps == list(each(PERIOD_NS, 30 * PERIOD_NS))
    gc.unfreeze()


class Hang:
    """Is called and does not return until it may."""

    def __init__(self):
        self.has_begun, self.may_end = threading.Event(), threading.Event()

    def __call__(self, _):
        self.has_begun.set()
        self.may_end.wait()


@pytest.mark.parametrize('on_states', [False, True])
def test_from_a_thread_that_hangs_the_arm_is_taken_and_brought_to_rest(on_states, monkeypatch):
    monkeypatch.setattr(module, 'HANGS_AFTER', 4)
    sent, inbox, hang = queue.Queue(), Inbox(), Hang()
    timing = {'ticks_on_states': on_states, 'state_timeout_ns': 60 * SECOND_NS}
    thread, driver = make_thread(inbox, sent.put, **timing)
    thread.start()
    commands = []
    for k in range(10):
        inbox.put(arrival(k * PERIOD_NS, time.monotonic_ns()))
        commands.append(sent.get(timeout=60.0))
    driver._policy = hang
    inbox.put(arrival(10 * PERIOD_NS, time.monotonic_ns()))
    assert hang.has_begun.wait(60.0)
    thread.stop()
    assert thread.is_alive()
    assert 'control hangs' in thread.error
    commands += [sent.get_nowait() for _ in range(sent.qsize())]
    assert_are_safe([c.effort_nm for c in commands])
    assert not commands[-1].effort_nm.any()
    hang.may_end.set()
    thread.join(timeout=60.0)
    assert not thread.is_alive()
    assert sent.empty()  # it came back and had nothing to say any more
    gc.unfreeze()


def test_a_thread_that_hangs_in_sending_can_be_stopped(monkeypatch):
    monkeypatch.setattr(module, 'HANGS_AFTER', 4)
    inbox, hang = Inbox(), Hang()
    thread, _ = make_thread(inbox, hang)
    thread.start()
    inbox.put(arrival(0, time.monotonic_ns()))
    assert hang.has_begun.wait(60.0)
    thread.stop()
    assert 'control hangs' in thread.error
    hang.may_end.set()
    thread.join(timeout=60.0)
    gc.unfreeze()


def test_a_real_thread_can_be_stopped_before_it_starts_and_while_it_waits():
    sent = queue.Queue()
    for starts_first in (False, True):
        thread, _ = make_thread(Inbox(), sent.put)
        for act in (thread.start, thread.stop)[:: 1 if starts_first else -1]:
            act()
        thread.join(timeout=60.0)
        assert not thread.is_alive()
    assert sent.empty()
    assert gc.get_freeze_count() > 0
    gc.unfreeze()
