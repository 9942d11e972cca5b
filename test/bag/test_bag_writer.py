# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""The bag on the disk, read by two other implementations; also cut short, and without room."""

import errno
import os

import pytest

pytest.importorskip('mcap', reason='needs the extra `ros`')
pytest.importorskip('rosbags', reason='needs the extra `sim`')

from mcap.records import Chunk, ChunkIndex, Message
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

from metactl_ros.bag.writer import (
    BagExists,
    BagWriteError,
    BagWriter,
    MAX_CHUNK_BYTES,
    MAX_CHUNK_NS,
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
