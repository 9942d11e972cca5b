# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""Bags of a controller that never ran over ROS: the messages of its ticks, to doctor."""

import json

from mcap.writer import Writer
import numpy as np
from rosbags.typesys import get_typestore, Stores

from metactl_ros.bag.reader import BagMessage
from metactl_ros.bag.topics import FORWARD, SHIELD_NAMES, STAMPED
from metactl_ros.signals import NANOSECONDS_PER_SECOND
from support.tick_logs import ARM, Day, SETTINGS, shield_row

STORE = get_typestore(Stores.ROS2_JAZZY)
JOINT_STATE, MULTI_ARRAY = 'sensor_msgs/msg/JointState', 'std_msgs/msg/Float64MultiArray'
START_NS = 1_800_000_000 * NANOSECONDS_PER_SECOND
MS = 1_000_000
PERIOD_NS = 10 * MS
NUM_TICKS = 70
END_NS = START_NS + (NUM_TICKS - 1) * PERIOD_NS
"""The stamp of the last tick."""
BOTH = (STAMPED, FORWARD)
TELEMETRY = ('shield', 'reference', 'feedback', 'output', 'gains')


def a_day(num_ticks=NUM_TICKS, **options):
    """Return the ticks of the fixed gains on a simulated arm."""
    day = Day(None, **options)
    day.policy = lambda _: day.controller.loop.nominal_action
    day.go(num_ticks)
    return day.ticks


def fade_of(effort_nm, limits=ARM.limits):
    """Return the efforts that take the torque to zero, and a last zero."""
    step, efforts = 0.01 * np.array(limits.effort_rate_nmps), []
    while np.any(effort_nm):
        effort_nm = effort_nm - np.clip(effort_nm, -step, step)
        efforts.append(effort_nm)
    return [*efforts, np.zeros(len(step))]


def bag_of(ticks, *, begin_ns=START_NS, tail=(), num_before=0, stamp_ns=None, **parameters):
    """Return the messages of a run.

    Args:
        ticks: Of a controller.
        begin_ns: When the run began.
        tail: Efforts that were sent after the last tick, one per period, N m.
        num_before: How many commands the same process had sent before.
        stamp_ns: Of all messages, if they share one.
        parameters: What ~/bundle says of the node's.
    """
    facts = {'controller': 'ct', 'parameters': parameters}
    rows = [raw('/controller/bundle', 'std_msgs/msg/String', begin_ns, 1, data=json.dumps(facts))]
    for k, tick in enumerate(ticks):
        now_ns, number = begin_ns + tick.loop_ns, num_before + k + 1
        rows += commands_of(stamp_ns or now_ns, number, tick.step.effort_nm, now_ns)
        rows += telemetry_of(tick, stamp_ns or now_ns, number, now_ns)
    for k, effort_nm in enumerate(tail, 1):
        now_ns, number = begin_ns + ticks[-1].loop_ns + k * PERIOD_NS, num_before + len(ticks) + k
        rows += commands_of(stamp_ns or now_ns, number, effort_nm, now_ns)
    return rows


def commands_of(stamp_ns, number, effort_nm, now_ns):
    """Return both commands of one moment."""
    names = list(ARM.joint_names)
    dimensions = [
        make('std_msgs/msg/MultiArrayDimension', label=','.join(names), size=2, stride=2)
    ]
    layout = make('std_msgs/msg/MultiArrayLayout', dim=dimensions, data_offset=0)
    data = np.array(effort_nm)
    return [
        joints(f'/{STAMPED}', stamp_ns, now_ns, number, names, effort=data),
        raw(f'/{FORWARD}', MULTI_ARRAY, now_ns + MS // 5, number, layout=layout, data=data),
    ]


def telemetry_of(tick, stamp_ns, number, now_ns):
    row, names = shield_row(tick), ARM.joint_names
    ends = SETTINGS.controller.gain_box.named_ends()
    gains = [f'{name}.{joint}' for name, _ in ends for joint in names]
    labels = [*SHIELD_NAMES, *(f'normal.{name}' for name in gains), 'constant']
    points = [
        make(
            'trajectory_msgs/msg/JointTrajectoryPoint',
            positions=np.array(reference.q_rad),
            velocities=np.array(reference.qd_radps),
            accelerations=np.array(reference.qdd_radps2),
            effort=np.zeros(0),
            time_from_start=time_of(state.stamp_ns, 'Duration'),
        )
        for state, reference in tick.seen or [(tick.state, tick.reference)]
    ]
    state, step = tick.state, tick.step
    published = {
        'shield': (labels, {'position': np.array([float(x) for x in row.values()])}),
        'feedback': (
            names,
            {
                'position': np.array(state.q_rad),
                'velocity': np.array(state.qd_radps),
                'effort': tick.effort_before_nm,
            },
        ),
        'output': (names, {'effort': step.effort_nm, 'velocity': step.wanted_nm}),
        'gains': (gains, {'position': step.decision.gains.theta, 'velocity': tick.action}),
    }
    when_ns = now_ns + MS // 2
    header = make('std_msgs/msg/Header', stamp=time_of(stamp_ns, 'Time'), frame_id='')
    return [
        *(
            joints(f'/controller/{kind}', stamp_ns, when_ns, number, list(what), **fields)
            for kind, (what, fields) in published.items()
        ),
        raw(
            '/controller/reference',
            'trajectory_msgs/msg/JointTrajectory',
            when_ns,
            number,
            header=header,
            joint_names=list(names),
            points=points,
        ),
    ]


def joints(topic, stamp_ns, publish_ns, number, names, **fields):
    arrays = {name: np.zeros(0) for name in ('position', 'velocity', 'effort')} | fields
    header = make('std_msgs/msg/Header', stamp=time_of(stamp_ns, 'Time'), frame_id='')
    return raw(topic, JOINT_STATE, publish_ns, number, header=header, name=names, **arrays)


def time_of(time_ns, kind):
    sec, nanosec = divmod(int(time_ns), NANOSECONDS_PER_SECOND)
    return make(f'builtin_interfaces/msg/{kind}', sec=sec, nanosec=nanosec)


def make(type_name, **fields):
    return STORE.types[type_name](**fields)


def raw(topic, type_name, publish_ns, number, **fields):
    """Return a message that a recorder receives a moment after it was published."""
    data = bytes(STORE.serialize_cdr(make(type_name, **fields), type_name))
    return BagMessage(topic, type_name, publish_ns + MS // 10, data, publish_ns, number)


def doctored(rows, topic, change, numbers):
    """Return the messages, with some of a topic changed by a function."""
    place, changed_rows = 0, []
    for row in rows:
        if row.topic == f'/{topic}':
            if place in numbers:
                content = STORE.deserialize_cdr(bytearray(row.data), row.type_name)
                change(content)
                row = row._replace(data=bytes(STORE.serialize_cdr(content, row.type_name)))
            place += 1
        changed_rows.append(row)
    return changed_rows


def without(rows, topic, numbers):
    """Return the messages but some of a topic."""
    place, kept = 0, []
    for row in rows:
        is_of_topic = row.topic == f'/{topic}'
        if not (is_of_topic and place in numbers):
            kept.append(row)
        place += is_of_topic
    return kept


def numbered_anew(rows):
    """Return the messages, each with its place in its topic: as if the others never were."""
    counts = {}
    for row in rows:
        counts[row.topic] = counts.get(row.topic, 0) + 1
        yield row._replace(sequence=counts[row.topic])


def write(path, rows):
    """Write a file with the times and numbers of the messages."""
    with path.open('wb') as stream:
        writer, channels = Writer(stream), {}
        writer.start('ros2', 'made')
        for row in sorted(rows, key=lambda row: row.log_time_ns):
            if row.topic not in channels:
                text = STORE.generate_msgdef(row.type_name, ros_version=2)[0].encode()
                schema = writer.register_schema(row.type_name, 'ros2msg', text)
                channels[row.topic] = writer.register_channel(row.topic, 'cdr', schema)
            when = row.publish_time_ns, row.sequence
            writer.add_message(channels[row.topic], row.log_time_ns, row.data, *when)
        writer.finish()
    return path


def extra(rows, topic, when_ns, effort_nm, *, stamp_ns=0):
    """Return the messages with another publisher's command on one topic."""
    stamped, forward = commands_of(stamp_ns, 1, effort_nm, when_ns)
    return [*rows, stamped if topic == STAMPED else forward]


def efforts_of(message):
    """Return the name of the field that has the efforts."""
    return 'effort' if hasattr(message, 'effort') else 'data'


def enormous(message):
    getattr(message, efforts_of(message))[0] = 1e9


def counts_of(result, topic):
    """Return what an answer counts beside the recorded and the compared commands."""
    counts = result.sent.counts[topic].items()
    return {kind: n for kind, n in counts if n and kind not in ('recorded', 'compared')}


def whats_of(result):
    """Return what is wrong with commands, and at which ticks."""
    return [(entry.tick, entry.what) for entry in result.sent.violations]
