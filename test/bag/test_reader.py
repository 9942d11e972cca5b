# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""The reader of bags: what a bag may hold, and what is never trusted, inflated or waited for."""

from contextlib import closing
import os
import re
import sqlite3
import struct

import lz4.frame
from mcap.opcode import Opcode
import pytest
from support.bags import a_message, STRING, write_bag
import zstandard

pytest.importorskip('rclpy', reason="needs ROS: pip install 'metactl_ros[ros]'")
from hostile.mcap_files import bare, channel, chunk, lz4_of, mcap, message, record, schema, zstd_of
from support.recordings import write_sqlite

from metactl_ros.bag import reader, storage
from metactl_ros.bag.reader import (
    BagError,
    BagMessage,
    MOST_PROBLEMS,
    read_bag,
    read_messages,
)
from metactl_ros.bag.writer import BagTopic

TOPIC = '/controller/shield'
HEAD = schema() + channel()
DATA = b'\0\1\0\0' + bytes(40)


def read(path, wanted=TOPIC):
    return read_bag(path, lambda topic: topic == wanted)


def problem_of(path):
    """Return what is wrong with a bag that can be read in part."""
    (problem,) = read(path).problems
    return problem


@pytest.fixture
def written(tmp_path):
    """Return a function that writes records to an MCAP file that ends as it should."""
    return lambda *records: bare(tmp_path, mcap(*records))


def test_a_file_in_which_nothing_is_wrong_is_read(written):
    ending = ' has no index, the recording was not ended'
    content = read(written(HEAD, chunk(message(DATA)), message(DATA, log_time_ns=4)))
    assert content.problems == (f'bag.mcap:{ending}',)
    assert content.messages == [
        BagMessage(TOPIC, 'sensor_msgs/msg/JointState', log_time_ns, DATA, 5, 1)
        for log_time_ns in (4, 5)
    ]


@pytest.mark.parametrize(
    ('records', 'says'),
    [
        ([record(0, b'')], 'a record of kind 0 and 0 bytes'),
        ([record(0x80, b'abc', 2**63)], f'a record of kind 128 and {2**63} bytes, '),
        ([message(DATA)], 'a message of channel 1, which is not there'),
        ([HEAD, record(Opcode.MESSAGE, bytes(5))], 'a message is shorter than its head'),
        ([HEAD, schema(1, 'other')], 'schema 1 is there twice, and differs'),
        ([HEAD, channel(1, '/other')], 'channel 1 is there twice, and differs'),
        ([record(Opcode.SCHEMA, b'a')], 'a record is shorter than its kind'),
        ([record(Opcode.SCHEMA, struct.pack('<HI', 1, 99))], 'a text is longer than its record'),
        ([record(Opcode.SCHEMA, struct.pack('<HI', 1, 1) + b'\xff')], 'a text is not UTF-8'),
        ([HEAD, chunk(message(DATA)[:-1])], 'a record is longer than its chunk'),
        ([HEAD, chunk(message(DATA) + b'\5')], 'a chunk ends within a record'),
        ([HEAD, chunk(message(DATA), crc=1)], 'the checksum of a chunk is wrong'),
        ([HEAD, chunk(message(DATA), size=1)], 'says that it inflates to 1 bytes, and does not'),
        ([HEAD, chunk(message(DATA), 'gzip')], "a chunk is compressed by 'gzip'"),
        ([HEAD, chunk(b'nonsense', 'zstd')], 'a chunk cannot be inflated'),
        ([HEAD, chunk(b'nonsense', 'lz4')], 'a chunk cannot be inflated'),
        ([record(Opcode.DATA_END, b'\1\0\0\0')], 'the checksum of its messages is wrong'),
        ([HEAD, record(Opcode.DATA_END, bytes(4)), message(DATA)], 'has messages after their end'),
        ([record(Opcode.CHUNK, bytes(39))], 'a record is shorter than its kind'),
    ],
)
def test_a_file_breaks_off_where_a_record_is_wrong(written, records, says):
    assert says in problem_of(written(*records))


def test_a_chunk_that_says_another_length_than_it_has_is_not_read(written):
    good = chunk(message(DATA))
    place = len(good) - len(message(DATA)) - 8
    forged = good[:place] + struct.pack('<Q', 7) + good[place + 8 :]
    assert 'a chunk says 7 bytes and has' in problem_of(written(HEAD, forged))


@pytest.mark.parametrize('rest', [b'', b'\x89MCAP0\r\r', b'\x89MCAP0\r\n and more'])
def test_a_file_ends_with_its_magic(tmp_path, rest):
    file = bare(tmp_path, mcap(HEAD)[:-8] + rest)
    assert 'breaks off after 0 messages' in read(file).problems[-1]


def test_damage_to_the_index_is_told(tmp_path):
    write_bag(tmp_path / 'bag', [a_message(number) for number in range(9)])
    (file,) = (tmp_path / 'bag').glob('*.mcap')
    data = bytearray(file.read_bytes())
    assert read(file).problems == ()
    data[-38] ^= 1  # where a part of the index is, just before the footer
    file.write_bytes(data)
    assert problem_of(file) == 'bag_0.mcap: its index is damaged'


@pytest.fixture
def never_inflates(monkeypatch):
    """Fail whoever inflates more than a megabyte."""
    original = zstandard.ZstdDecompressor

    class Careful:
        def __init__(self, **options):
            self._original = original(**options)

        def decompress(self, data, max_output_size=0):
            declared = zstandard.frame_content_size(data)
            assert max(declared, max_output_size) <= 2**20
            return self._original.decompress(data, max_output_size=max_output_size)

    monkeypatch.setattr(storage.zstandard, 'ZstdDecompressor', Careful)


GIGABYTE = 2**30


@pytest.mark.usefixtures('never_inflates')
@pytest.mark.parametrize('states_size', [True, False])
@pytest.mark.parametrize(
    ('size', 'says'),
    [
        (GIGABYTE, 'a chunk inflates to 1073741824 bytes, at most 67108864 are read'),
        (2**20, 'inflates to 1048576 bytes|cannot be inflated'),
        (0, 'inflates to 0 bytes|cannot be inflated'),
    ],
)
def test_no_gigabyte_is_inflated_by_zstd(written, states_size, size, says):
    bomb = zstd_of(GIGABYTE, states_size=states_size)
    found = problem_of(written(HEAD, chunk(bomb, 'zstd', size=size)))
    assert re.search(says, found), found


def test_no_gigabyte_is_inflated_by_lz4(written, monkeypatch):
    original, lengths = lz4.frame.LZ4FrameDecompressor, []

    class Noted(original):
        def decompress(self, data, max_length=-1):
            found = super().decompress(data, max_length)
            lengths.append(len(found))
            return found

    monkeypatch.setattr(storage.lz4.frame, 'LZ4FrameDecompressor', Noted)
    bomb = chunk(lz4_of(2**28), 'lz4', size=100)
    assert 'inflates to 100 bytes, and does not' in problem_of(written(HEAD, bomb))
    assert lengths == [101]


def test_many_chunks_that_inflate_to_much_are_refused(written):
    one = chunk(zstd_of(2**24, states_size=True), 'zstd', size=2**24)
    inflated = record(0x80, bytes(2**24 - 9))
    packed = chunk(zstandard.compress(inflated), 'zstd', inflated=2**24)
    assert 'a record' in str(read(written(HEAD, one)).problems)
    with pytest.raises(BagError, match=r'inflates to more than \d+ bytes, but takes only'):
        read(written(HEAD, *[packed] * 6))


def test_more_messages_than_fit_on_the_disk_are_refused(written):
    inner = message(b'') * 600_000
    packed = chunk(zstandard.compress(inner), 'zstd', inflated=len(inner))
    with pytest.raises(BagError, match=r'holds more than 50\d\d\d\d messages, but takes only'):
        read(written(HEAD, packed), wanted='/other')


def test_more_wanted_messages_than_fit_on_the_disk_are_refused(written):
    inner = message(b'') * 30_000
    packed = chunk(zstandard.compress(inner), 'zstd', inflated=len(inner))
    assert len(read(written(HEAD, packed), wanted='/other').messages) == 0
    with pytest.raises(BagError, match=r'holds more than 25\d\d\d messages of one controller'):
        read(written(HEAD, packed))


def test_more_bytes_than_can_be_kept_are_refused(written, monkeypatch):
    monkeypatch.setattr(reader, 'MOST_KEPT', 2**20)
    big = message(bytes(reader.LARGEST_WANTED))
    assert len(read(written(HEAD, *[big] * 16)).messages) == 16
    with pytest.raises(BagError, match='holds more than 16 messages of one controller'):
        read(written(HEAD, *[big] * 17))


def test_a_message_larger_than_any_of_a_controller_is_left_out_and_told(written):
    large = message(bytes(reader.LARGEST_WANTED + 1))
    content = read(written(HEAD, message(DATA), large, large))
    assert len(content.messages) == 1
    assert content.counts[TOPIC] == 3
    assert content.problems[-1] == f'{TOPIC}: 2 messages are too large, left out'


@pytest.mark.parametrize('name', ['bag.mcap', 'bag.db3'])
def test_a_file_of_holes_is_not_read(tmp_path, name):
    file = tmp_path / name
    with file.open('wb') as stream:
        stream.write(mcap(HEAD)[:-8])
        stream.truncate(2**40)
    assert 'has a hole of 10995' in problem_of(file)


def test_small_holes_are_read_as_zeros(tmp_path):
    inside = bytes(2**16)
    data = mcap(HEAD, record(0x80, inside), message(DATA))
    place = data.index(inside)
    file = bare(tmp_path, data)
    with file.open('r+b') as stream:
        stream.truncate(place)
        stream.seek(place + len(inside))
        stream.write(data[place + len(inside) :])
    assert file.read_bytes() == data
    assert len(read(file).messages) == 1


@pytest.mark.parametrize('name', ['metadata.yaml', 'more.mcap', 'more.db3'])
@pytest.mark.parametrize(
    ('make', 'says'),
    [
        (os.mkfifo, 'is a named pipe, not a regular file'),
        (lambda path: path.mkdir(), 'is a folder, not a regular file'),
        (lambda path: path.symlink_to('/dev/zero'), 'is a device, not a regular file'),
    ],
)
def test_nothing_in_a_bag_is_waited_for(tmp_path, name, make, says):
    bag = tmp_path / 'bag'
    write_bag(bag, [a_message(number) for number in range(9)])
    (bag / name).unlink(missing_ok=True)
    make(bag / name)
    content = read(bag, '/talk')
    assert len(content.messages) == 9
    assert any(problem.startswith(name) and says in problem for problem in content.problems)


@pytest.mark.parametrize(
    ('make', 'found'),
    [
        (os.mkfifo, 'a named pipe'),
        (lambda path: path.symlink_to('/dev/zero'), 'a device'),
        (lambda path: path.symlink_to(path), 'nothing'),
    ],
)
def test_what_is_no_bag_is_named(tmp_path, make, found):
    make(tmp_path / 'bag.mcap')
    with pytest.raises(BagError, match=f'found {found}'):
        read(tmp_path / 'bag.mcap')


@pytest.mark.parametrize('name', ['x' * 5000, 'a\0b'])
def test_a_path_that_cannot_be_is_nothing(tmp_path, name):
    with pytest.raises(BagError, match='found nothing'):
        read(tmp_path / name)


@pytest.mark.parametrize(
    ('text', 'says'),
    [
        ('', 'it is not that of a bag'),
        ('- 1', 'it is not that of a bag'),
        ('rosbag2_bagfile_information: 7', 'it is not that of a bag'),
        ('{a: ' * 100_000, 'expected at most 20 levels'),
        ('a: &a [*a]', 'nothing before has the anchor &a'),
        ('#' * 2_000_000, 'is larger than'),
        ('rosbag2_bagfile_information: {message_count: [1]}', r"says \['1'\] messages, 9 were"),
        ('rosbag2_bagfile_information: {message_count: 007}', 'says 007 messages, 9 were found'),
    ],
)
def test_odd_metadata_are_told_of_and_the_messages_are_read(tmp_path, text, says):
    bag = tmp_path / 'bag'
    write_bag(bag, [a_message(number) for number in range(9)])
    (bag / 'metadata.yaml').write_text(text)
    content = read(bag, '/talk')
    assert len(content.messages) == 9
    problems = '\n'.join(content.problems)
    assert re.search(says, problems), problems


@pytest.mark.parametrize('mode', ['FILE', '[a]', '{a: b}'])
def test_a_compressed_bag_is_refused(tmp_path, mode):
    write_bag(tmp_path / 'bag', [a_message(0)])
    text = f'rosbag2_bagfile_information: {{compression_mode: {mode}, compression_format: zstd}}'
    (tmp_path / 'bag' / 'metadata.yaml').write_text(text)
    with pytest.raises(BagError, match='is compressed by zstd; convert it'):
        read(tmp_path / 'bag')


@pytest.mark.parametrize('mode', ['""', 'none', 'null', '~'])
def test_a_bag_that_is_not_compressed_is_read(tmp_path, mode):
    write_bag(tmp_path / 'bag', [a_message(0)])
    text = f'rosbag2_bagfile_information: {{compression_mode: {mode}}}'
    (tmp_path / 'bag' / 'metadata.yaml').write_text(text)
    assert len(read(tmp_path / 'bag', '/talk').messages) == 1


def test_of_very_many_problems_the_first_are_told(tmp_path):
    for number in range(100):
        (tmp_path / f'{number}.mcap').touch()
    problems = read(tmp_path).problems
    assert len(problems) == MOST_PROBLEMS + 1
    assert problems[-1] == 'and 81 problems more'  # one of metadata.yaml


def test_a_name_that_would_steer_a_terminal_is_told_in_quotes(tmp_path):
    (tmp_path / 'a\x1b[31m.mcap').touch()
    assert any(r"'a\x1b[31m.mcap': breaks off" in problem for problem in read(tmp_path).problems)


@pytest.fixture
def database(tmp_path):
    """Return a function that makes an sqlite3 bag of ten messages and runs a script on it."""

    def make(script=''):
        rows = [BagMessage(TOPIC, 'std_msgs/msg/String', n, DATA, n, n) for n in range(10)]
        (file,) = write_sqlite(tmp_path / 'bag', rows).glob('*.db3')
        with closing(sqlite3.connect(file)) as connection:
            connection.executescript(script)
        return file

    return make


def test_a_database_is_read(database):
    file = database()
    content = read(file)
    assert content.problems == ()
    assert [(m.log_time_ns, m.data) for m in content.messages] == [(n, DATA) for n in range(10)]
    assert read(file, '/other').counts == {TOPIC: 10}


ENDLESS = 'WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c)'


@pytest.mark.parametrize(
    ('script', 'says'),
    [
        ('DROP TABLE messages', "expected a table 'messages', found none"),
        ('DROP TABLE topics', "expected a table 'topics', found none"),
        (
            f'DROP TABLE messages; CREATE VIEW messages AS {ENDLESS} SELECT x AS topic_id FROM c',
            "expected a table 'messages', found none",
        ),
        ('ALTER TABLE messages DROP COLUMN data', "table 'messages' lacks data"),
        (
            'ALTER TABLE messages DROP COLUMN data; ALTER TABLE messages ADD COLUMN data AS '
            '(zeroblob(900000000))',
            "table 'messages' lacks data",
        ),
        ("UPDATE messages SET data = 'x'", 'a message that is a str'),
        ("UPDATE messages SET timestamp = 'soon'", "a message of topic 1 at 'soon'"),
        ('UPDATE messages SET topic_id = 7', 'a message of topic 7 at 0'),
        ("UPDATE topics SET name = x'00'", 'topic 1 has no name or no type'),
        ('UPDATE messages SET data = zeroblob(20000000)', 'too big'),
    ],
)
def test_a_database_of_another_shape_breaks_off(database, script, says):
    content = read(database(script))
    assert not content.messages
    assert says in content.problems[-1]


def test_a_database_that_computes_for_too_long_is_interrupted(database, monkeypatch):
    monkeypatch.setattr(storage, 'FREE_S', 0.01)
    value = "length(replace(hex(zeroblob(2000000 + id)), '0', '00'))"
    file = database(f'CREATE INDEX slow ON messages({value})')
    assert 'takes longer than 0.0 s to read' in read(file).problems[-1]


def test_a_database_that_was_not_closed_is_told_of(database):
    file = database()
    file.with_name(f'{file.name}-wal').touch()
    assert read(file).problems[0].startswith(f'{file.name}: was not closed')


def test_messages_are_read_by_the_names_of_their_topics_in_any_namespace(tmp_path):
    sides = [BagTopic(name, STRING) for name in ('/left/talk', '/right/talk', '/small_talk')]
    rows = [a_message(number, topic=sides[number % 3]) for number in range(9)]
    write_bag(tmp_path / 'bag', rows)
    found = list(read_messages(tmp_path / 'bag', 'talk', 'never'))
    assert [name for name, _ in found] == ['talk'] * 6
    assert [message.topic for _, message in found] == ['/left/talk', '/right/talk'] * 3
    assert [message.decode().data for _, message in found] == ['0', '1', '3', '4', '6', '7']
    assert [m.publish_time_ns for _, m in found] == [
        row.publish_time_ns for row in rows if row.topic != sides[2]
    ]


def test_messages_of_a_bag_that_is_not_whole_are_refused(tmp_path):
    write_bag(tmp_path / 'bag', [a_message(number) for number in range(9)])
    (tmp_path / 'bag' / 'metadata.yaml').unlink()
    with pytest.raises(BagError, match=r'bag: is damaged .*the recording was not ended'):
        list(read_messages(tmp_path / 'bag', 'talk'))


@pytest.mark.parametrize('type_name', ['std_msgs/msg/String', 'no_msgs/msg/None'])
def test_a_message_that_cannot_be_decoded_names_its_topic(type_name):
    with pytest.raises(BagError, match=f'/talk: not a {type_name}'):
        BagMessage('/talk', type_name, 0, b'\0\1\0\0\xff\xff', 0, 0).decode()
