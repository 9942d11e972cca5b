# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""The bag on the disk, read by two other implementations; kills, slow disks and full ones."""

import errno
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

from mcap.records import Chunk, ChunkIndex, Message
from mcap.writer import MCAP0_MAGIC
from rosbags.rosbag2 import Reader
from support.bags import (
    a_message,
    file_size_limit,
    KEPT,
    read_information,
    read_records,
    read_strings,
    SECOND,
    START_NS,
    TALK,
    write_bag,
)

from metactl_ros.bag import writer as module
from metactl_ros.bag.reader import read_bag
from metactl_ros.bag.writer import (
    BagExists,
    BagWriteError,
    BagWriter,
    LogClock,
    MAX_CHUNK_BYTES,
    MAX_CHUNK_NS,
    Recording,
)


def test_rosbags_reads_the_values_in_their_order(tmp_path):
    topics = [TALK, KEPT]
    messages = [a_message(number, topic=topics[number % 2]) for number in range(300)]
    write_bag(tmp_path / 'bag', messages)
    expected = [(m.topic.name, m.log_time_ns, f'{m.sequence}') for m in messages]
    assert read_strings(tmp_path / 'bag') == expected


def test_mcap_finds_bytes_publish_times_and_sequence_numbers_unchanged(tmp_path):
    messages = [a_message(number) for number in range(20)]
    write_bag(tmp_path / 'bag', messages)
    found = read_records(tmp_path / 'bag', Message)
    assert [(m.data, m.publish_time, m.sequence) for m in found] == [
        (m.data, m.publish_time_ns, m.sequence) for m in messages
    ]


def test_the_metadata_says_what_the_file_holds(tmp_path):
    messages = [a_message(number) for number in range(30)]
    write_bag(tmp_path / 'bag', [*messages, a_message(30, topic=KEPT)])
    information = read_information(tmp_path / 'bag')
    assert information['version'] == 9
    assert information['relative_file_paths'] == ['bag_0.mcap']
    assert information['starting_time'] == {'nanoseconds_since_epoch': START_NS}
    assert information['duration'] == {'nanoseconds': 300_000_000}
    assert information['custom_data'] is None
    with Reader(tmp_path / 'bag') as reader:
        assert reader.message_count == 31
        assert {c.topic: c.msgcount for c in reader.connections} == {'/talk': 30, '/kept': 1}
        (kept,) = (c.ext.offered_qos_profiles for c in reader.connections if c.topic == '/kept')
    assert [profile.durability.name for profile in kept] == ['TRANSIENT_LOCAL']


def test_a_bag_without_messages_opens(tmp_path):
    write_bag(tmp_path / 'bag', [])
    assert read_strings(tmp_path / 'bag') == []


@pytest.mark.parametrize('period_ns', [1_000_000, 10_000_000, 170_000_000, 2 * SECOND])
@pytest.mark.parametrize('num_bytes', [0, 900, 50_000])
def test_no_chunk_spans_more_than_half_a_second_or_64_kib(tmp_path, period_ns, num_bytes):
    numbers = range(60_000 // max(num_bytes, 50))
    topics = [TALK, KEPT]
    write_bag(
        tmp_path / 'bag',
        [
            a_message(n, topic=topics[n % 2], period_ns=period_ns, num_bytes=num_bytes)
            for n in [*numbers, numbers.stop, numbers.stop + 1]
        ],
    )
    chunks = read_records(tmp_path / 'bag', Chunk, emit_chunks=True)
    assert max(c.message_end_time - c.message_start_time for c in chunks) <= MAX_CHUNK_NS
    assert max(c.uncompressed_size for c in chunks) <= MAX_CHUNK_BYTES
    spans = [(c.message_start_time, c.message_end_time) for c in chunks]
    indexed = read_records(tmp_path / 'bag', ChunkIndex)
    assert [(c.message_start_time, c.message_end_time) for c in indexed] == spans


def test_a_message_larger_than_a_chunk_has_one_of_its_own(tmp_path):
    sizes = [10, 3 * MAX_CHUNK_BYTES, 10]
    write_bag(tmp_path / 'bag', [a_message(n, num_bytes=size) for n, size in enumerate(sizes)])
    chunks = read_records(tmp_path / 'bag', Chunk, emit_chunks=True)
    assert [c.uncompressed_size > MAX_CHUNK_BYTES for c in chunks] == [False, True, False]


def test_what_is_synced_can_be_read_while_recording(tmp_path):
    writer = BagWriter(tmp_path / 'bag')
    for number in range(10):
        writer.write(a_message(number))
    writer.sync()
    writer.write(a_message(10))
    assert len(read_records(tmp_path / 'bag', Message)) == 10
    assert len(read_strings(tmp_path / 'bag/bag_0.mcap')) == 10
    assert writer.counts == {'/talk': 10}
    assert not (tmp_path / 'bag/metadata.yaml').exists()
    writer.close()
    assert len(read_strings(tmp_path / 'bag')) == 11


@pytest.mark.parametrize('make', ['mkdir', 'touch'])
def test_nothing_is_written_over(tmp_path, make):
    getattr(tmp_path / 'bag', make)()
    with pytest.raises(BagExists, match='bag: exists; record to a folder that does not'):
        BagWriter(tmp_path / 'bag')
    assert not list(tmp_path.glob('bag/*'))


def test_a_folder_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / 'file').touch()
    with pytest.raises(BagWriteError, match='file/bag: Not a directory; nothing is recorded'):
        BagWriter(tmp_path / 'file/bag')


@pytest.mark.parametrize('room', [*range(900, 6000, 300), 20_000, 30_001])
def test_a_full_disk_leaves_a_bag_that_opens(tmp_path, room):
    writer = BagWriter(tmp_path / 'bag')

    def write_on():
        for number in range(1000):
            writer.write(a_message(number))
            if number % 7 == 6:
                writer.sync()

    with file_size_limit(room), pytest.raises(BagWriteError, match='File too large') as caught:
        write_on()
    kept = sum(writer.counts.values())
    assert f'{kept} messages are kept' in str(caught.value)
    assert [text for _, _, text in read_strings(tmp_path / 'bag')] == [f'{n}' for n in range(kept)]
    information = read_information(tmp_path / 'bag')
    assert information['message_count'] == kept
    assert 'File too large' in information['custom_data']['stopped']
    (size,) = (path.stat().st_size for path in (tmp_path / 'bag').glob('*.mcap'))
    assert size > room - 1500, 'what there was room for is not there'


def test_a_disk_without_any_room_leaves_an_empty_file(tmp_path):
    with file_size_limit(10), pytest.raises(BagWriteError, match='0 messages are kept'):
        BagWriter(tmp_path / 'bag')
    assert (tmp_path / 'bag/bag_0.mcap').read_bytes() == b''


def test_no_room_for_the_metadata_costs_no_message(tmp_path, monkeypatch):
    def fail(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr('pathlib.Path.replace', fail)
    match = 'No space left on device; it lacks metadata.yaml, its messages are safe'
    with pytest.raises(BagWriteError, match=match):
        write_bag(tmp_path / 'bag', [a_message(0)])
    assert len(read_strings(tmp_path / 'bag/bag_0.mcap')) == 1
    assert [path.name for path in (tmp_path / 'bag').iterdir()] == ['bag_0.mcap']


def test_no_room_for_the_index_costs_no_message(tmp_path):
    writer = BagWriter(tmp_path / 'bag')
    for number in range(50):
        writer.write(a_message(number))
    writer.sync()
    (path,) = (tmp_path / 'bag').glob('*.mcap')
    room = path.stat().st_size + 200
    with file_size_limit(room), pytest.raises(BagWriteError, match='50 messages are kept'):
        writer.close()
    assert len(read_strings(tmp_path / 'bag')) == 50


def test_a_disk_that_reports_an_error_late_is_believed(tmp_path, monkeypatch):
    writer = BagWriter(tmp_path / 'bag')
    writer.write(a_message(0))
    writer.sync()
    writer.write(a_message(1))

    def fail(_):
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr('os.fsync', fail)
    with pytest.raises(BagWriteError, match='Input/output error'):
        writer.sync()
    monkeypatch.undo()
    assert [text for _, _, text in read_strings(tmp_path / 'bag/bag_0.mcap')] == ['0']


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
    monkeypatch.setattr(module, 'MAX_WAITING_BYTES', 10_000)
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
from metactl_ros.bag.writer import BagWriter, LogClock, Recording
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
    lost_s, num_cut = [], 0
    for index, _, start_ns in started:
        path = tmp_path / f'bag{index}/bag{index}_0.mcap'
        found = read_records(tmp_path / f'bag{index}', Message)
        assert [m.sequence for m in found] == list(range(len(found)))
        last_ns = found[-1].log_time if found else start_ns
        lost_s.append((killed_ns[index] - last_ns) / SECOND)
        if path.read_bytes().endswith(MCAP0_MAGIC):
            assert len(read_strings(path)) == len(found)
        else:  # the kill fell into a write, between two pages
            num_cut += 1
            assert len(read_bag(path, lambda _: True).messages) == len(found)
    assert num_cut <= 2  # of twenty
    assert max(lost_s) < 1.0, sorted(lost_s)


@pytest.mark.parametrize(('num_bytes', 'num_whole'), [(1, 40), (30, 40), (300, 30)])
def test_of_a_file_whose_last_write_was_cut_all_whole_chunks_are_read(
    tmp_path, num_bytes, num_whole
):
    writer = BagWriter(tmp_path / 'bag')
    for number in range(40):
        writer.write(a_message(number, num_bytes=200))
        if number % 10 == 9:
            writer.sync()
    (path,) = (tmp_path / 'bag').glob('*.mcap')
    path.write_bytes(path.read_bytes()[:-num_bytes])
    assert len(read_bag(path, lambda _: True).messages) == num_whole
