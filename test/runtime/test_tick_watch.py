# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""A tick that hangs, and a machine that stands still, are not the same."""

import hashlib
import threading
import time
from types import SimpleNamespace

import pytest

from metactl_ros.runtime import deadlines as module
from metactl_ros.runtime.deadlines import TickWatch

MS = 1_000_000
PERIOD_S = 0.01


class Fake:
    """A thread of which the system says what a test says."""

    def __init__(self, monkeypatch):
        self.now_ns = self.used_ns = 0
        self.state = 'S'
        clock = SimpleNamespace(
            monotonic_ns=lambda: self.now_ns,
            clock_gettime_ns=lambda _: self.used_ns,
            pthread_getcpuclockid=lambda _: 0,
        )
        monkeypatch.setattr(module, 'time', clock)
        self.watch = TickWatch(threading.current_thread(), PERIOD_S)
        self.watch._about = self

    def read_text(self):
        return f'1 (a ) R thread) {self.state} 0 0'

    def poll(self, present_round, after_ms=10, used_ms=0.0):
        self.now_ns += round(after_ms * MS)
        self.used_ns += round(used_ms * MS)
        return self.watch.poll(present_round) / MS


@pytest.fixture
def fake(monkeypatch):
    return Fake(monkeypatch)


@pytest.mark.parametrize('state', 'SDtTZ')
def test_a_tick_that_waits_is_counted_by_the_time_that_passes(fake, state):
    fake.state = state
    assert [fake.poll(1, 8) for _ in range(5)] == [0, 8, 16, 24, 32]


def test_a_tick_that_computes_is_counted_by_what_it_computes(fake):
    fake.state = 'R'
    assert [fake.poll(1, used_ms=0.5) for _ in range(4)] == [0, 2, 4, 6]
    assert [fake.poll(2, used_ms=7) for _ in range(4)] == [0, 10, 20, 30]


def test_a_tick_that_is_kept_from_its_core_is_not_counted(fake):
    fake.state = 'R'
    assert [fake.poll(1) for _ in range(100)] == [0] * 100


def test_while_the_whole_process_stands_still_a_look_counts_for_its_period(fake):
    assert [fake.poll(1, after_ms=ms) for ms in (10, 500, 10, 3000)] == [0, 10, 20, 30]
    fake.state = 'R'
    assert fake.poll(1, after_ms=9000, used_ms=9000) == 40  # an idle hypervisor counts as use


def test_every_tick_is_counted_anew(fake):
    assert [fake.poll(k) for k in (1, 1, 2, 2, 0, 2, 2)] == [0, 10, 0, 10, 0, 0, 10]


def test_a_thread_that_has_ended_does_not_hang():
    thread = threading.Thread(target=time.sleep, args=(0.05,))
    thread.start()
    watch = TickWatch(thread, PERIOD_S)
    assert watch.poll(1) == 0
    thread.join()
    while watch._about.exists():
        time.sleep(0.001)  # Python is done with it before the system is
    assert watch.poll(1) == 0


def compute(may_end):
    while not may_end.is_set():
        hashlib.pbkdf2_hmac('sha256', b'a', b'b', 20_000)  # without the lock of the interpreter


def compute_in_python(may_end):
    while not may_end.is_set():
        pass


def wait(may_end):
    may_end.wait()


@pytest.mark.parametrize('hang', [compute, compute_in_python, wait])
def test_a_real_thread_is_counted_up_to_the_time_it_had(hang):
    may_end = threading.Event()
    thread = threading.Thread(target=hang, args=(may_end,))
    thread.start()
    watch, begin_ns, spent_ns = TickWatch(thread, PERIOD_S), time.monotonic_ns(), 0
    while spent_ns < 30 * MS:
        time.sleep(PERIOD_S)  # the period of the looks
        spent_ns = watch.poll(1)
    assert spent_ns <= time.monotonic_ns() - begin_ns
    may_end.set()
    thread.join()
