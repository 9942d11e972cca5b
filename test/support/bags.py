# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""Bags to test with: made of strings, and read by two other implementations."""

from contextlib import contextmanager
import resource
import struct

from mcap.exceptions import EndOfFile, InvalidMagic
from mcap.stream_reader import StreamReader
from rosbags.highlevel import AnyReader
import yaml

from metactl_ros.bag.topics import MessageDefinition
from metactl_ros.bag.writer import BagTopic, BagWriter, ReceivedMessage

SECOND = 1_000_000_000
START_NS = 1_800_000_000 * SECOND
STRING = MessageDefinition(
    'std_msgs/msg/String',
    'string data\n',
    'RIHS01_df668c740482bbd48fb39d76a70dfd4bd59db1288021743503259e948f6b1a18',
)
OFFERED = {
    'depth': 0,
    'history': 'unknown',
    'reliability': 'reliable',
    'durability': 'transient_local',
    'liveliness': 'automatic',
    'deadline': {'sec': 9223372036, 'nsec': 854775807},
    'lifespan': {'sec': 9223372036, 'nsec': 854775807},
    'liveliness_lease_duration': {'sec': 9223372036, 'nsec': 854775807},
    'avoid_ros_namespace_conventions': False,
}
TALK = BagTopic('/talk', STRING)
KEPT = BagTopic('/kept', STRING, (OFFERED,))


def a_message(number, *, topic=TALK, period_ns=10_000_000, num_bytes=0):
    text = f'{number}'.ljust(num_bytes, '.').encode() + b'\0'
    data = b'\0\1\0\0' + len(text).to_bytes(4, 'little') + text
    log_time_ns = START_NS + number * period_ns
    return ReceivedMessage(topic, data, log_time_ns, log_time_ns - 1000, number)


def write_bag(folder, messages):
    writer = BagWriter(folder)
    for message in messages:
        writer.write(message)
    writer.close()


def read_strings(folder):
    with AnyReader([folder]) as reader:
        return [
            (connection.topic, log_time_ns, reader.deserialize(data, connection.msgtype).data)
            for connection, log_time_ns, data in reader.messages()
        ]


def read_information(folder):
    text = (folder / 'metadata.yaml').read_text()
    return yaml.safe_load(text)['rosbag2_bagfile_information']


def read_records(folder, kind, **options):
    """Return the records of a kind from the start of the file to where it ends or breaks off."""
    (path,) = folder.glob('*.mcap')
    found = []
    with path.open('rb') as file:
        try:
            for record in StreamReader(file, validate_crcs=True, **options).records:
                found += [record] if isinstance(record, kind) else []
        except (EndOfFile, InvalidMagic, struct.error):  # where it is being written, or was cut
            return found
    return found


@contextmanager
def file_size_limit(num_bytes):
    """Let no file of this process grow beyond a size: the disk is full for it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
