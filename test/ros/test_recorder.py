# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""The recorder as a process, next to real publishers: what it hears, how it ends."""

from contextlib import contextmanager
import os
import resource
import signal
import subprocess
import sys
import time
import uuid

import pytest

pytest.importorskip('rclpy', reason='needs the extra `ros`')
pytest.importorskip('rosbags', reason='needs the extra `sim`')

from mcap.records import Chunk, Message
import rclpy
from rclpy.duration import Duration
from rclpy.qos import DurabilityPolicy, QoSProfile, ReliabilityPolicy
from rclpy.serialization import serialize_message
from rosbags.highlevel import AnyReader
from rosbags.typesys import get_types_from_msg, get_typestore, Stores
from rosgraph_msgs.msg import Clock
from sensor_msgs.msg import JointState
from std_msgs.msg import String
from support.bags import read_records

from metactl_ros.bag.topics import load_definition, parse_topics, TOPICS
from metactl_ros.errors import ConfigError, MissingDependency

pytestmark = [
    pytest.mark.ros,
    # The parser that rclpy imports with its first node has not heard of it.
    pytest.mark.filterwarnings("ignore:module 'sre_.*' is deprecated:DeprecationWarning"),
]

DEADLINE_S = 20.0
NAMESPACE = f'/test_{uuid.uuid4().hex}'
"""Others on this machine may use the same domain and the same topics."""
JOINT_TOPICS = [name for name, kind in TOPICS.items() if kind == 'sensor_msgs/msg/JointState']


def wait_for(condition, what):
    end_s = time.monotonic() + DEADLINE_S
    while not (found := condition()):
        assert time.monotonic() < end_s, f'waited in vain for {what}'
        time.sleep(0.01)
    return found


class Process:
    """A recorder under way, and what it has said."""

    def __init__(self, popen, log):
        self.popen = popen
        self.log = log

    def end(self, *signals):
        """Send signals; return the exit code and how long it took to end (s)."""
        start_s = time.monotonic()
        for number in signals:
            self.popen.send_signal(number)
        code = self.popen.wait(DEADLINE_S)
        return code, time.monotonic() - start_s


@pytest.fixture
def environment(tmp_path, monkeypatch):
    variables = {
        'ROS_DOMAIN_ID': f'{os.getpid() % 100 + 1}',
        'ROS_AUTOMATIC_DISCOVERY_RANGE': 'LOCALHOST',
        'ROS_LOG_DIR': str(tmp_path / 'log'),
        'PYTHONPATH': os.pathsep.join(sys.path),
    }
    for name, value in variables.items():
        monkeypatch.setenv(name, value)


@pytest.fixture
def node(environment):
    context = rclpy.Context()
    rclpy.init(context=context)
    node = rclpy.create_node('tester', context=context, namespace=NAMESPACE)
    yield node
    node.destroy_node()
    rclpy.shutdown(context=context)


@contextmanager
def recorder(folder, *arguments):
    log = folder.parent / f'{folder.name}.log'
    command = [sys.executable, '-m', 'metactl_ros.ros.recorder', '--ros-args']
    command += ['-r', f'__ns:={NAMESPACE}', '-p', f'out:={folder}']
    command += [part for argument in arguments for part in ('-p', argument)]
    with log.open('wb') as stderr, subprocess.Popen(command, stderr=stderr) as popen:
        try:
            yield Process(popen, log)
        finally:
            popen.kill()


@contextmanager
def recording(folder, *arguments):
    with recorder(folder, *arguments) as process:
        wait_for(lambda: f'recording to {folder}\n' in process.log.read_text(), 'the recorder')
        yield process


def publisher(node, kind, topic, **policies):
    """Return a publisher that the recorder listens to."""
    made = node.create_publisher(kind, topic, QoSProfile(**({'depth': 1000} | policies)))
    wait_for(made.get_subscription_count, f'a subscription to {topic}')
    return made


def joint_state(number):
    """Return a message without gaps between its fields: rclpy leaves old memory in those."""
    message = JointState(name=['joint_1', 'joint_2'])
    message.header.stamp.sec = number
    message.header.frame_id = 'abc'
    message.position = [float(number), float('nan')]
    message.effort = [-0.5 * number]
    return message


def publish_at_100_hz(publishers, num_messages):
    """Publish numbered joint states; return them and how long publishing one took at most (s)."""
    messages = [joint_state(number) for number in range(1, num_messages + 1)]
    longest_s, due_s = 0.0, time.monotonic()
    for message in messages:
        start_s = time.monotonic()
        for each in publishers:
            each.publish(message)
        longest_s = max(longest_s, time.monotonic() - start_s)
        due_s += 0.01
        time.sleep(max(0.0, due_s - time.monotonic()))
    return messages, longest_s


def test_two_seconds_of_nine_topics_are_recorded_completely(tmp_path, node):
    bag = tmp_path / 'bag'
    with recording(bag) as process:
        publishers = [publisher(node, JointState, topic) for topic in JOINT_TOPICS]
        messages, _ = publish_at_100_hz(publishers, 200)
        code, took_s = process.end(signal.SIGTERM)
    assert (code, len(publishers)) == (0, 9)
    assert took_s < 1.0
    for topic in JOINT_TOPICS:
        assert f'{NAMESPACE}/{topic} 200,' in process.log.read_text()

    names = {f'{NAMESPACE}/{topic}' for topic in JOINT_TOPICS}
    with AnyReader([bag]) as reader:
        found = {name: [] for name in names}
        for connection, _, data in reader.messages():
            if connection.topic in names:
                value = reader.deserialize(data, connection.msgtype)
                assert reader.typestore.serialize_cdr(value, connection.msgtype) == data
                found[connection.topic].append(value)
    for values in found.values():
        assert [v.header.stamp.sec for v in values] == list(range(1, 201))
        assert [v.position[0] for v in values] == [m.position[0] for m in messages]
        assert [list(v.effort) for v in values] == [list(m.effort) for m in messages]

    raw = {}
    for message in read_records(bag, Message):
        raw.setdefault(message.channel_id, []).append(message)
    joint_channels = [rows for rows in raw.values() if len(rows) == 200]
    assert len(joint_channels) == 9
    for rows in joint_channels:
        for row, message in zip(rows, messages, strict=True):
            # rclpy adds some bytes of old memory at the end.
            assert row.data == serialize_message(message)[: len(row.data)]
        assert [row.sequence for row in rows] == list(range(1, 201))
        assert all(0 <= row.log_time - row.publish_time < 1_000_000_000 for row in rows)
    times = [message.log_time for message in read_records(bag, Message)]
    assert times == sorted(times)
    for chunk in read_records(bag, Chunk, emit_chunks=True):
        assert chunk.message_end_time - chunk.message_start_time <= 500_000_000
        assert chunk.uncompressed_size <= 64 * 1024


def test_what_came_before_the_end_is_recorded_however_much_it_is(tmp_path, node):
    bag = tmp_path / 'bag'
    with recording(bag) as process:
        made = publisher(node, JointState, 'joint_states')
        for number in range(1, 901):
            made.publish(joint_state(number))
        assert made.wait_for_all_acked(Duration(seconds=DEADLINE_S))
        code, _ = process.end(signal.SIGTERM)
    assert code == 0
    assert f'{NAMESPACE}/joint_states 900,' in process.log.read_text()


def test_a_robot_that_goes_on_talking_does_not_keep_the_recorder_from_its_end(tmp_path, node):
    with recording(tmp_path / 'bag') as process:
        made = publisher(node, JointState, 'joint_states')

        def is_heard():
            made.publish(joint_state(1))
            return read_records(tmp_path / 'bag', Message)

        wait_for(is_heard, 'a message')
        process.popen.send_signal(signal.SIGTERM)
        end_s = time.monotonic() + DEADLINE_S
        while process.popen.poll() is None and time.monotonic() < end_s:
            publish_at_100_hz([made], 1)
        assert process.popen.wait(DEADLINE_S) == 0
        assert time.monotonic() < end_s


def test_a_publisher_that_offers_less_is_heard_as_well(tmp_path, node):
    """Best effort, and a bundle that its publisher does not keep."""
    best_effort = {'reliability': ReliabilityPolicy.BEST_EFFORT}
    with recording(tmp_path / 'bag') as process:
        states = publisher(node, JointState, 'joint_states', **best_effort)
        bundle = publisher(node, String, 'controller/bundle')
        bundle.publish(String(data='contract'))

        def are_heard():
            states.publish(joint_state(1))
            return len(read_records(tmp_path / 'bag', Message)) > 20

        wait_for(are_heard, 'messages')
        code, _ = process.end(signal.SIGINT, signal.SIGINT)
    assert code == 0
    assert f'{NAMESPACE}/joint_states is published as best effort' in process.log.read_text()
    assert f'{NAMESPACE}/controller/bundle is not kept by its publisher' in process.log.read_text()
    with AnyReader([tmp_path / 'bag']) as reader:
        offered = {c.topic: c.ext.offered_qos_profiles[0] for c in reader.connections}
        counts = {c.topic: c.msgcount for c in reader.connections}
    assert counts[f'{NAMESPACE}/joint_states'] >= 20
    assert counts[f'{NAMESPACE}/controller/bundle'] == 1
    assert offered[f'{NAMESPACE}/joint_states'].reliability.name == 'BEST_EFFORT'


def test_a_bundle_published_before_the_recording_is_in_it(tmp_path, node):
    kept = QoSProfile(depth=1, durability=DurabilityPolicy.TRANSIENT_LOCAL)
    node.create_publisher(String, 'controller/bundle', kept).publish(String(data='contract'))
    with recording(tmp_path / 'bag', 'topics:=[controller/bundle]') as process:
        (path,) = wait_for(lambda: list((tmp_path / 'bag').glob('*.mcap')), 'the file')
        wait_for(lambda: read_records(path.parent, Message), 'the bundle')
        assert process.end(signal.SIGTERM)[0] == 0
    with AnyReader([tmp_path / 'bag']) as reader:
        ((connection, _, data),) = reader.messages()
        assert reader.deserialize(data, connection.msgtype).data == 'contract'


def test_a_full_disk_ends_the_recorder_and_disturbs_nobody_else(tmp_path, node):
    heard = []
    node.create_subscription(JointState, 'joint_states', heard.append, 1000)
    with recording(tmp_path / 'bag', 'topics:=[joint_states]') as process:
        states = publisher(node, JointState, 'joint_states')
        wait_for(lambda: states.get_subscription_count() == 2, 'both subscriptions')
        room = resource.prlimit(process.popen.pid, resource.RLIMIT_FSIZE)
        resource.prlimit(process.popen.pid, resource.RLIMIT_FSIZE, (20_000, room[1]))
        messages, longest_s = publish_at_100_hz([states], 250)
        assert process.popen.wait(DEADLINE_S) == 1
    executor = rclpy.executors.SingleThreadedExecutor(context=node.context)
    executor.add_node(node)
    end_s = time.monotonic() + DEADLINE_S
    while len(heard) < len(messages) and time.monotonic() < end_s:
        executor.spin_once(timeout_sec=0.1)
    executor.shutdown()
    assert [m.header.stamp for m in heard] == [m.header.stamp for m in messages]
    assert longest_s < 0.1
    log = process.log.read_text()
    assert '[ERROR]' in log
    assert 'File too large; the recording ends here' in log
    with AnyReader([tmp_path / 'bag']) as reader:
        assert 0 < reader.message_count < 250
        assert f'{NAMESPACE}/joint_states {reader.message_count}' in log


def test_a_kill_leaves_a_bag_that_lacks_less_than_a_second(tmp_path, node):
    with recording(tmp_path / 'bag', 'topics:=[joint_states]') as process:
        publish_at_100_hz([publisher(node, JointState, 'joint_states')], 150)
        killed_ns = time.time_ns()
        process.end(signal.SIGKILL)
    found = read_records(tmp_path / 'bag', Message)
    assert killed_ns - found[-1].log_time < 1_000_000_000
    with AnyReader([tmp_path / 'bag/bag_0.mcap']) as reader:
        assert reader.message_count == len(found)


def test_a_recorder_to_whom_nobody_talks_says_so_and_leaves_no_bag(tmp_path, environment):
    bag = tmp_path / 'bag'
    with recording(bag) as process:
        wait_for(lambda: list(bag.glob('*.mcap')), 'the file')
        assert process.end(signal.SIGTERM)[0] == 3
    log = process.log.read_text()
    assert f'nothing came on {NAMESPACE}/joint_states, {NAMESPACE}/joint_commands, ' in log
    assert '/diagnostics, ' not in log.partition('nothing came')[2]
    assert 'no bag is left' in log
    assert f'ROS_DOMAIN_ID (here {os.environ["ROS_DOMAIN_ID"]})' in log
    assert not bag.exists()


def test_a_bag_of_what_every_node_says_is_of_no_robot(tmp_path, node):
    bag = tmp_path / 'bag'
    with recording(bag) as process:
        publisher(node, Clock, '/clock').publish(Clock())
        wait_for(lambda: read_records(bag, Message), 'the clock')
        assert process.end(signal.SIGTERM)[0] == 3
    assert 'messages of others' in process.log.read_text()
    assert read_records(bag, Message)
    with recording(tmp_path / 'clock', 'topics:=[/clock]') as process:
        publisher(node, Clock, '/clock').publish(Clock())
        wait_for(lambda: read_records(tmp_path / 'clock', Message), 'the clock')
        assert process.end(signal.SIGTERM)[0] == 0


def test_what_somebody_else_put_into_an_empty_bag_stays(tmp_path, environment):
    bag = tmp_path / 'bag'
    with recording(bag) as process:
        wait_for(lambda: list(bag.glob('*.mcap')), 'the file')
        (bag / 'notes.txt').write_text('mine')
        assert process.end(signal.SIGTERM)[0] == 3
    assert 'the bag is empty' in process.log.read_text()
    assert [path.name for path in bag.iterdir()] == ['notes.txt']


@pytest.mark.parametrize(
    ('arguments', 'complaint'),
    [
        ((), 'exists; record to a folder that does not.'),
        (('out:=3',), "expecting type 'STRING'"),
        (('out:=""',), 'out: expected a folder to record to'),
        (('topics:=[]',), 'topics: names none'),
        (('topics:=[a//b=std_msgs/msg/String]',), 'must not contain repeated'),
        (('topics:=[',), 'error:'),
    ],
)
def test_what_makes_no_sense_is_refused_with_code_2(tmp_path, environment, arguments, complaint):
    (tmp_path / 'bag').mkdir()
    with recorder(tmp_path / 'bag', *arguments) as process:
        assert process.popen.wait(DEADLINE_S) == 2
    assert complaint in process.log.read_text()
    assert 'Traceback' not in process.log.read_text()
    assert not list((tmp_path / 'bag').iterdir())


@pytest.mark.parametrize('type_name', sorted(set(TOPICS.values())))
def test_definitions_have_the_hash_that_rosbags_computes(type_name):
    """Over the fields of all nested types; so the text is complete, and parsed alike."""
    definition = load_definition(type_name)
    store = get_typestore(Stores.EMPTY)
    store.register(get_types_from_msg(definition.text, type_name))
    assert store.hash_rihs01(type_name) == definition.type_hash


@pytest.mark.parametrize('name', ['JointState', 'sensor_msgs/JointState', 'a/srv/B', '../msg/B'])
def test_a_type_that_is_not_written_as_one_is_refused(name):
    with pytest.raises(ConfigError, match='expected package/msg/Type'):
        load_definition(name)


def test_a_type_that_is_not_installed_names_its_package():
    with pytest.raises(MissingDependency, match='pip install ros-jazzy-no-such-msgs'):
        load_definition('no_such_msgs/msg/Path')
    with pytest.raises(MissingDependency, match='not installed'):
        load_definition('std_msgs/msg/Nothing')


def test_topics_are_named_alone_or_with_their_type():
    assert parse_topics(['joint_states', '/talk=std_msgs/msg/String']) == [
        ('joint_states', 'sensor_msgs/msg/JointState'),
        ('/talk', 'std_msgs/msg/String'),
    ]


@pytest.mark.parametrize(
    ('entries', 'complaint'),
    [
        (['joint_states', 'joint_states'], "topics: 'joint_states' is there twice"),
        (['talk'], "topics: 'talk' needs its type, as in talk=std_msgs/msg/String"),
        ([], 'topics: names none'),
    ],
)
def test_topics_that_cannot_be_recorded_are_refused(entries, complaint):
    with pytest.raises(ConfigError, match=complaint):
        parse_topics(entries)
