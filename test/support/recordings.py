# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""Recordings over real ROS to replay, and the same messages in other bags."""

from collections import Counter
from itertools import count

from mcap.writer import CompressionType
from mcap.writer import Writer as McapWriter
from rosbags.rosbag2 import StoragePlugin, Writer

from metactl_ros.bag.reader import BagError, read_bag
from metactl_ros.bag.tick_log import read_ticks
from metactl_ros.bag.topics import FORWARD, load_definition, STAMPED
from metactl_ros.bag.writer import BagTopic, BagWriter, ReceivedMessage
from metactl_ros.processes import loopback_environment, running, Setup
from support.made_bags import doctored, STORE
from support.ros_peer import wait_until


def num_ticks(bag):
    try:
        return len(read_ticks(bag).stamp_ns)
    except BagError:  # not yet there
        return 0


EACH_TICK = ('reference', 'feedback', 'error', 'output', 'gains', 'shield')


def has_caught_up(bag):
    """Return whether all messages of every tick are in a bag that is still recorded."""
    counts = Counter(message.topic for message in messages_of(bag))
    return len({counts[f'/controller/{name}'] for name in EACH_TICK}) == 1


def record_lockstep(bag, domain, least_ticks, **options):
    """Record some ticks; without a robot there are no more, and a slow recorder catches up."""
    setup = Setup(plant='rk4', lockstep=True, seed=5, record=bag, log_level='error', **options)
    with running(setup, loopback_environment(domain)) as processes:
        wait_until(lambda: num_ticks(bag) > least_ticks, timeout_s=60.0)
        processes.stop('plant_node')
        wait_until(lambda: has_caught_up(bag), timeout_s=60.0)
    return bag


def record_ticks(bag, domain, num_ticks, **options):
    """Record some ticks and return their messages, with every command."""
    return whole_ticks(record_lockstep(bag, domain, num_ticks, **options), num_ticks)


def assert_equal(result):
    """Assert that all that is in a bag is equal to the bit, and every command as decided.

    A busy machine loses commands on their way to the recorder: only that may be reported.
    """
    assert [p for p in result.problems if 'commands were sent, as their numbers' not in p] == []
    assert result.violations == []
    assert result.again.first_difference is None
    assert result.again.is_compared.all()
    assert result.exit_code == (3 if result.problems else 0)
    for counts in result.sent.counts.values():
        assert counts['compared'] > len(result.log.stamp_ns) // 2


def messages_of(bag):
    return read_bag(bag, lambda _: True).messages


def cut(messages, num_ticks):
    """Return what has come when a number of ticks is complete."""
    ends = [k for k, message in enumerate(messages) if message.topic.endswith('/gains')]
    last, stamps_ns = ends[num_ticks - 1], [stamp_ns(message) for message in messages]
    return [
        message
        for k, (message, own_ns) in enumerate(zip(messages, stamps_ns, strict=True))
        if own_ns <= stamps_ns[last] and (own_ns or k < last)
    ]


def whole_ticks(bag, num_ticks):
    """Return the messages of a bag until a number of ticks is complete, with every command."""
    return with_every_command(cut(messages_of(bag), num_ticks))


def with_every_command(messages):
    """Return the messages with the commands of each tick, and no others; some may be lost."""
    rows, kind = [], 'std_msgs/msg/Float64MultiArray'
    layout = STORE.types['std_msgs/msg/MultiArrayLayout']([], 0)
    for message in messages:
        namespace, _, end = message.topic.rpartition('/controller/')
        if end == 'output':
            forward = STORE.types[kind](layout, read(message).effort)
            data = bytes(STORE.serialize_cdr(forward, kind))
            rows.append(message._replace(topic=f'{namespace}/{STAMPED}'))
            forwarded = message._replace(topic=f'{namespace}/{FORWARD}', type_name=kind, data=data)
            rows.append(forwarded)
        if not message.topic.endswith((f'/{STAMPED}', f'/{FORWARD}')):
            rows.append(message)
    return rows


def stamp_ns(message):
    """Return the stamp of a message; those without one are of all times."""
    header = getattr(read(message), 'header', None)
    return header.stamp.sec * 10**9 + header.stamp.nanosec if header else 0


def read(message):
    # Not of bytes, whose arrays would be read-only.
    return STORE.deserialize_cdr(bytearray(message.data), message.type_name)


def changed(messages, topic, number, change):
    """Return the messages, with one of a topic changed by a function."""
    return doctored(messages, topic.removeprefix('/'), change, {number})


def write_own(bag, messages):
    """Write a bag as the recorder does."""
    writer, topics = BagWriter(bag), {}
    for topic, type_name, log_time_ns, data, *rest in messages:
        if topic not in topics:
            topics[topic] = BagTopic(topic, load_definition(type_name))
        writer.write(ReceivedMessage(topics[topic], data, log_time_ns, *rest))
    writer.close()
    return bag


def write_sqlite(bag, messages):
    with Writer(bag, version=9, storage_plugin=StoragePlugin.SQLITE3) as writer:
        connections = {}
        for topic, type_name, log_time_ns, data, *_ in messages:
            if topic not in connections:
                connections[topic] = writer.add_connection(topic, type_name, typestore=STORE)
            writer.write(connections[topic], log_time_ns, data)
    return bag


def write_raw_mcap(file, messages, compression=CompressionType.ZSTD):
    """Write a file as someone would who knows only MCAP."""
    with file.open('wb') as stream:
        writer = McapWriter(stream, compression=compression)
        schemas, channels, numbers = {}, {}, count()
        writer.start('ros2', 'another')
        for topic, type_name, log_time_ns, data, *_ in messages:
            if type_name not in schemas:
                text = STORE.generate_msgdef(type_name, ros_version=2)[0]
                schemas[type_name] = writer.register_schema(type_name, 'ros2msg', text.encode())
            if topic not in channels:
                channels[topic] = writer.register_channel(topic, 'cdr', schemas[type_name])
            writer.add_message(channels[topic], log_time_ns, data, log_time_ns, next(numbers))
        writer.finish()
    return file
