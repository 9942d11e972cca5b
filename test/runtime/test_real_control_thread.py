# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""The control thread and its inbox on the clock of this machine."""

import gc
import hashlib
import queue
import threading
import time

import numpy as np
import pytest
from support.rides import BLIND, PERIOD_NS, WARMUP
from support.worlds import (
    arrival,
    assert_are_safe,
    BOOT_NS,
    breaks,
    each,
    make_thread,
    MS,
    SECOND_NS,
)

from metactl_ros.runtime import control_thread as module
from metactl_ros.runtime.joint_states import Inbox, INBOX_SIZE


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
    thread, controller = make_thread(inbox, sent.put, **timing)
    thread.start()
    commands = []
    for k in range(10):
        inbox.put(arrival(k * PERIOD_NS, time.monotonic_ns()))
        commands.append(sent.get(timeout=60.0))
    controller._policy = hang
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


def ride(inbox, sent, thread, num_states):
    """Start a thread, and let states come until each was answered; return the commands."""
    thread.start()
    commands = []
    for k in range(num_states):
        inbox.put(arrival(k * PERIOD_NS, time.monotonic_ns()))
        commands.append(sent.get(timeout=60.0))
    return commands


def wait_until_replaced(inbox, sent, hang, commands):
    """Let a state come on which a thread hangs, and wait for a command of another in its place."""
    inbox.put(arrival(10 * PERIOD_NS, time.monotonic_ns()))
    assert hang.has_begun.wait(60.0)
    while commands[-1].tick is not None:
        commands.append(sent.get(timeout=60.0))


def end_of(thread, sent):
    """Stop a thread, which had no error; return its last commands."""
    thread.stop()
    assert (thread.error, thread.output.num_checks_failed) == (None, 0)
    return [sent.get_nowait() for _ in range(sent.qsize())]


class Computes(Hang):
    """Computes without the lock of the interpreter until it may end."""

    def __call__(self, _):
        self.has_begun.set()
        while not self.may_end.is_set():
            hashlib.pbkdf2_hmac('sha256', b'a', b'b', 20_000)


@pytest.mark.parametrize('kind', [Hang, Computes])
@pytest.mark.parametrize('on_states', [False, True])
def test_a_tick_that_hangs_for_a_while_is_replaced_and_goes_on_as_a_blind_arm(on_states, kind):
    sent, inbox, hang = queue.Queue(), Inbox(), kind()
    timing = {'ticks_on_states': on_states, 'state_timeout_ns': 60 * SECOND_NS}
    thread, controller = make_thread(inbox, sent.put, **timing)
    commands = ride(inbox, sent, thread, 10)
    policy, controller._policy = controller._policy, hang
    inbox.put(arrival(10 * PERIOD_NS, time.monotonic_ns()))
    assert hang.has_begun.wait(60.0)
    controller._policy = policy
    while commands[-1].tick is not None or commands[-1].effort_nm.any():
        commands.append(sent.get(timeout=60.0))
    assert thread.error is None  # it has been replaced, not given up
    hang.may_end.set()
    while commands[-1].tick is None:
        inbox.put(arrival(11 * PERIOD_NS, time.monotonic_ns()))
        commands.append(sent.get(timeout=60.0))
    while commands[-1].tick.mode != WARMUP:
        inbox.put(arrival(12 * PERIOD_NS, time.monotonic_ns()))
        commands.append(sent.get(timeout=60.0))
    commands += end_of(thread, sent)
    assert_are_safe([c.effort_nm for c in commands])
    back = next(k for k, c in enumerate(commands) if c.tick is not None and c.tick.mode == BLIND)
    assert thread.output.num_stand_ins == sum(c.tick is None for c in commands[:back]) > 0
    np.testing.assert_array_equal(commands[back].tick.effort_before_nm, [0.0, 0.0])
    assert not commands[-1].effort_nm.any()
    gc.unfreeze()


def test_a_thread_that_hangs_in_telling_is_replaced_as_well():
    sent, inbox, hang = queue.Queue(), Inbox(), Hang()
    thread, _ = make_thread(inbox, sent.put, state_timeout_ns=60 * SECOND_NS)
    commands = ride(inbox, sent, thread, 10)
    thread.output.publish = hang
    wait_until_replaced(inbox, sent, hang, commands)
    thread.output.publish = lambda _: None
    hang.may_end.set()
    while commands[-1].tick is None:
        commands.append(sent.get(timeout=60.0))
    assert commands[-1].tick.mode == BLIND
    commands += end_of(thread, sent)
    assert_are_safe([c.effort_nm for c in commands])
    gc.unfreeze()


def test_a_thread_that_is_stopped_when_it_comes_back_ends_with_zero():
    sent, inbox, hang = queue.Queue(), Inbox(), Hang()
    thread, controller = make_thread(inbox, sent.put, state_timeout_ns=60 * SECOND_NS)
    commands = ride(inbox, sent, thread, 10)
    controller._policy = hang
    wait_until_replaced(inbox, sent, hang, commands)
    thread.exchange.must_stop.set()
    hang.may_end.set()
    commands += end_of(thread, sent)
    assert_are_safe([c.effort_nm for c in commands])
    assert not commands[-1].effort_nm.any()
    gc.unfreeze()


def test_an_error_in_standing_in_is_told_and_the_arm_is_taken_all_the_same(monkeypatch):
    monkeypatch.setattr(module, 'HANGS_AFTER', 20)
    sent, inbox, hang = queue.Queue(), Inbox(), Hang()
    thread, controller = make_thread(inbox, sent.put, state_timeout_ns=60 * SECOND_NS)
    ride(inbox, sent, thread, 10)
    controller._policy = hang
    inbox.put(arrival(10 * PERIOD_NS, time.monotonic_ns()))
    assert hang.has_begun.wait(60.0)
    thread.output.send = breaks('nobody listens')
    thread.stop()
    assert 'nobody listens' in thread.error or 'control hangs' in thread.error
    hang.may_end.set()
    thread.join(timeout=60.0)
    gc.unfreeze()


def test_nobody_stands_in_for_a_thread_that_overslept(monkeypatch):
    """The clock wakes it too late, again and again: no tick hangs."""
    sent, inbox = queue.Queue(), Inbox()
    thread, _ = make_thread(inbox, sent.put, state_timeout_ns=60 * SECOND_NS)
    real = module.sleep_until
    monkeypatch.setattr(module, 'sleep_until', lambda moment_ns: real(moment_ns + 100 * MS))
    commands = ride(inbox, sent, thread, 8)
    thread.stop()
    assert thread.output.num_stand_ins == 0
    assert all(c.tick is not None for c in commands)
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
