# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""Messages on their way to the disk: a slow disk, a full one, clocks that jump, and kills."""

import os
import random
import signal
import subprocess
import sys
import threading
import time

import pytest

pytest.importorskip('mcap', reason='needs the extra `ros`')
pytest.importorskip('rosbags', reason='needs the extra `sim`')

from mcap.records import Message
from support.bags import a_message, file_size_limit, read_records, read_strings, SECOND, START_NS

from metactl_ros.bag import writer
from metactl_ros.bag.writer import BagWriteError, BagWriter, LogClock, Recording


def test_a_recording_writes_all_that_was_put(tmp_path):
    bag = Recording(BagWriter(tmp_path / 'bag'))
    for number in range(500):
        bag.put(a_message(number))
    bag.close()
    assert bag.failure is None
    assert bag.counts == {'/talk': 500}
    assert len(read_strings(tmp_path / 'bag')) == 500


def test_putting_does_not_wait_for_the_disk(tmp_path, monkeypatch):
    writer = BagWriter(tmp_path / 'bag')
    is_waiting, may_go_on = threading.Event(), threading.Event()

    def stall(_):
        is_waiting.set()
        assert may_go_on.wait(10.0)

    monkeypatch.setattr('os.fsync', stall)
    bag = Recording(writer)
    bag.put(a_message(0))
    assert is_waiting.wait(10.0)
    for number in range(1, 1000):
        bag.put(a_message(number))
    bag.close(timeout_s=0.01)
    assert 'has not answered for 0.01 s' in str(bag.failure)
    may_go_on.set()
    bag.close()
    assert len(read_strings(tmp_path / 'bag')) == 1000


def test_a_recording_says_why_it_stopped(tmp_path):
    bag = Recording(BagWriter(tmp_path / 'bag'))
    with file_size_limit(1000):
        for number in range(100):
            bag.put(a_message(number))
        bag.close()
    assert isinstance(bag.failure, BagWriteError)
    bag.put(a_message(0))  # is dropped


def test_a_message_that_cannot_be_written_does_not_stop_the_recording_unseen(tmp_path):
    bag = Recording(BagWriter(tmp_path / 'bag'))
    bag.put(a_message(0)._replace(publish_time_ns=-1))
    bag.close()
    assert bag.failure is not None


def test_a_disk_too_slow_does_not_fill_the_memory(tmp_path, monkeypatch):
    monkeypatch.setattr(writer, 'MAX_WAITING_BYTES', 10_000)
    bag = Recording(BagWriter(tmp_path / 'bag'))
    for number in range(20):
        bag.put(a_message(number, num_bytes=1000))
    assert 'the disk is too slow' in str(bag.failure)
    bag.close()
    assert len(read_strings(tmp_path / 'bag')) == 10


class FakeTime:
    def __init__(self):
        self.wall_ns = START_NS
        self.steady_ns = 5 * SECOND
        self.clock = LogClock(lambda: self.wall_ns, lambda: self.steady_ns)

    def pass_by(self, duration_ns):
        self.wall_ns += duration_ns
        self.steady_ns += duration_ns


def test_the_log_time_is_when_the_middleware_received_the_message():
    fake = FakeTime()
    fake.pass_by(SECOND)
    received_ns = fake.wall_ns
    fake.pass_by(3_000_000)
    assert fake.clock.log_time_ns(received_ns) == received_ns


@pytest.mark.parametrize('jump_s', [-10 * 365 * 86400, -30, -1, 1, 30, 10 * 365 * 86400])
def test_log_times_go_on_when_the_wall_clock_jumps(jump_s):
    fake = FakeTime()
    times = []
    for number in range(100):
        fake.pass_by(10_000_000)
        received_ns = fake.wall_ns
        fake.wall_ns += jump_s * SECOND if number == 50 else 0
        times.append(fake.clock.log_time_ns(received_ns))
    assert times == [START_NS + (number + 1) * 10_000_000 for number in range(100)]


def test_log_times_do_not_decrease_when_messages_are_taken_out_of_order():
    fake = FakeTime()
    fake.pass_by(SECOND)
    assert fake.clock.log_time_ns(fake.wall_ns) == START_NS + SECOND
    assert fake.clock.log_time_ns(fake.wall_ns - 1000) == START_NS + SECOND


# Forks before there are threads, so that one interpreter starts them all.
WRITERS = """
import os, sys, time
from pathlib import Path
from metactl_ros.bag.writer import BagWriter
from metactl_ros.bag.writer import LogClock, Recording
from support.bags import a_message

for index in range(int(sys.argv[2])):
    if os.fork() == 0:
        recording = Recording(BagWriter(Path(sys.argv[1]) / f'bag{index}'))
        clock = LogClock()
        for number in range(1000):
            message = a_message(number, num_bytes=200)
            recording.put(message._replace(log_time_ns=clock.log_time_ns(time.time_ns())))
            if number == 0:
                os.write(1, f'{index} {os.getpid()} {time.time_ns()}\\n'.encode())
            time.sleep(0.01)
        os._exit(0)
for index in range(int(sys.argv[2])):
    os.wait()
"""


def test_a_kill_at_any_moment_costs_less_than_a_second(tmp_path):
    num_kills, rng = 20, random.Random(0)
    with subprocess.Popen(
        [sys.executable, '-c', WRITERS, str(tmp_path), f'{num_kills}'],
        env=os.environ | {'PYTHONPATH': os.pathsep.join(sys.path)},
        stdout=subprocess.PIPE,
    ) as writers:
        started = [[int(x) for x in writers.stdout.readline().split()] for _ in range(num_kills)]
        due = sorted(
            (start_ns + int(rng.uniform(0.0, 2.5) * SECOND), row) for *row, start_ns in started
        )
        killed_ns = {}
        for due_ns, (index, pid) in due:
            time.sleep(max(0.0, (due_ns - time.time_ns()) / SECOND))
            killed_ns[index] = time.time_ns()
            os.kill(pid, signal.SIGKILL)
    lost_s = []
    for index, _, start_ns in started:
        found = read_records(tmp_path / f'bag{index}', Message)
        assert [m.sequence for m in found] == list(range(len(found)))
        last_ns = found[-1].log_time if found else start_ns
        lost_s.append((killed_ns[index] - last_ns) / SECOND)
        assert len(read_strings(tmp_path / f'bag{index}/bag{index}_0.mcap')) == len(found)
    assert max(lost_s) < 1.0, sorted(lost_s)
