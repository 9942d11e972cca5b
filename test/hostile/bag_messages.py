# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""Bags whose files are sound and whose messages are hostile: every checksum is right.

Each function makes one bag in a folder from a seeded generator and returns the path to replay.
"""

import json
import struct

import numpy as np
from support.recordings import read, STORE, write_own, write_raw_mcap

from hostile.runs import nth, pick
from metactl_ros.bag.topics import SHIELD_NAMES

TELEMETRY = tuple(
    f'/controller/{n}' for n in ('shield', 'reference', 'feedback', 'output', 'gains')
)
JOINT_STATES = tuple(topic for topic in TELEMETRY if topic != '/controller/reference')
FLOATS = (
    *(np.nan, np.inf, -np.inf, 0.0, -0.0, 5e-324, 1e-300, 1e30, 1e154, 1e155, 1e300, -1.7e308),
    *(0.5, 2.0, 3.0, 6.0, 255.0, 2.0**31, 2.0**53, 2.0**63, -1.0, 1e8, 1e9, 1e18),
)
COUNTS = (0, 1, 3, 2**16, 2**28, 2**31 - 1, 2**31, 2**32 - 1)
NAMES = (
    *(
        '',
        'x' * 50_000,
        '\0',
        'a\0b',
        '<script>alert(1)</script>',
        '[red]rich[/red]',
        '$\\frac{a}$',
    ),
    *('{0}', '%s', 'ä' * 100, '\u202e', '\ufffd', 'mode', 'estimate.joint1', '../../etc', '\n\n'),
    *('$x^{y_', '_hidden', '\U0001f600' * 50, '\ud7ff'),
)


def altered(rng, base, topics, alter, *, share=None):
    """Return the messages with some of these topics altered, by a function of each content."""
    share = pick(rng, [0.02, 0.3, 1.0]) if share is None else share
    rows = []
    for message in base.messages:
        if message.topic in topics and rng.random() < share:
            content = read(message)
            alter(content)
            data = bytes(STORE.serialize_cdr(content, message.type_name))
            message = message._replace(data=data)
        rows.append(message)
    return rows


def random_bytes(rng, base, folder):
    """Messages with flipped bytes, cut short, or made up."""
    rows = []
    for message in base.messages:
        data = bytearray(message.data)
        if rng.random() < 0.1:
            match rng.integers(4):
                case 0:
                    data[rng.integers(len(data))] = rng.integers(256)
                case 1:
                    data = data[: rng.integers(len(data))]
                case 2:
                    data = bytearray(data[:4] + rng.bytes(int(rng.integers(300))))
                case _:
                    data = bytearray(rng.bytes(int(rng.integers(300))))
        rows.append(message._replace(data=bytes(data)))
    return write_own(folder / 'bag', rows)


def odd_counts(rng, base, folder):
    """Some length of a sequence or a string is another."""
    topic = pick(rng, [*TELEMETRY, '/controller/bundle', '/joint_commands'])
    place, count = 4 * int(rng.integers(1, 20)), pick(rng, COUNTS)
    rows = []
    for message in base.messages:
        if message.topic == topic and rng.random() < 0.5 and len(message.data) >= place + 4:
            data = bytearray(message.data)
            struct.pack_into('<I', data, place, count)
            message = message._replace(data=bytes(data))
        rows.append(message)
    return write_own(folder / 'bag', rows)


def byte_orders(rng, base, folder):
    """Big-endian, parameter lists, and encodings that are none."""
    start = pick(rng, [b'\0\0', b'\0\2', b'\0\3', b'\0\6', b'\0\7', b'\xff\xff'])
    rows = [m._replace(data=start + m.data[2:]) for m in base.messages]
    return write_own(folder / 'bag', rows)


def odd_values(rng, base, folder):
    """Numbers that no arm has, somewhere or everywhere."""
    topic, value = pick(rng, JOINT_STATES), pick(rng, FLOATS)
    field = pick(rng, ['position', 'velocity', 'effort'])

    def alter(content):
        numbers = getattr(content, field)
        if len(numbers):
            where = slice(None) if rng.integers(2) else int(rng.integers(len(numbers)))
            numbers[where] = value

    return write_own(folder / 'bag', altered(rng, base, [topic], alter))


def odd_goals(rng, base, folder):
    """References without points, with many, or with impossible ones."""
    which, value = int(rng.integers(5)), pick(rng, FLOATS)

    def alter(content):
        point = content.points[0]
        match which:
            case 0:
                content.points = []
            case 1:
                content.points = content.points * int(rng.integers(2, 2000))
            case 2:
                point.time_from_start.sec = int(rng.choice([-(2**31), 2**31 - 1]))
            case 3:
                point.positions[:] = value
            case _:
                point.accelerations = np.full(int(rng.integers(5)), value)

    return write_own(folder / 'bag', altered(rng, base, ['/controller/reference'], alter))


def odd_shield(rng, base, folder):
    """One value of ~/shield is impossible: the mode, a flag, a time, a number of states."""
    column, value = base.turn, pick(rng, FLOATS)

    def alter(content):
        content.position[column % len(content.position)] = value

    return write_own(folder / 'bag', altered(rng, base, ['/controller/shield'], alter))


def odd_layout(rng, base, folder):
    """~/shield has its first values, and of the rest only some, more, or others, in every tick."""
    which = int(rng.integers(5))
    keep = len(SHIELD_NAMES) + int(rng.integers(-1, 12))

    def alter(content):
        names, values = list(content.name), content.position
        match which:
            case 0:
                names, values = names[:keep], values[:keep]
            case 1:
                names, values = names + names, np.append(values, values)
            case 2:
                names = [n.replace('normal.', 'other.') for n in names]
            case 3:
                names = [*names[: len(SHIELD_NAMES)], *names[: len(SHIELD_NAMES) - 1 : -1]]
            case _:
                extra = ['estimate.joint1', 'estimate.joint2', *map(str, range(500))]
                names, values = names + extra, np.append(values, np.zeros(len(extra)))
        content.name, content.position = names, values

    return write_own(folder / 'bag', altered(rng, base, ['/controller/shield'], alter, share=1.0))


def odd_stamps(rng, base, folder):
    """Stamps at the ends of time, all the same, or shuffled; log times likewise."""
    which = int(rng.integers(5))
    seconds = int(rng.choice([-(2**31), -1, 0, 2**31 - 1]))
    nanoseconds = int(rng.choice([0, 999_999_999, 2**32 - 1]))

    def alter(content):
        stamp = content.header.stamp
        if which == 0:
            stamp.sec = seconds
        elif which == 1:
            stamp.sec, stamp.nanosec = seconds, nanoseconds
        elif which == 2:
            stamp.sec = int(rng.integers(-(2**31), 2**31))

    topics = [*TELEMETRY, '/joint_commands'] if rng.integers(2) else [pick(rng, TELEMETRY)]
    rows = altered(rng, base, topics, alter)
    if which == 3:
        times = rng.integers(0, 2**64, len(rows), dtype=np.uint64)
        rows = [m._replace(log_time_ns=int(t)) for m, t in zip(rows, times, strict=True)]
    if which == 4:
        rows = [m._replace(log_time_ns=0) for m in reversed(rows)]
    return write_raw_mcap(folder / 'bag.mcap', rows)


def odd_names(rng, base, folder):
    """Names of joints, gains or values that are too long, empty, twice there, or markup."""
    name, topic = pick(rng, NAMES), pick(rng, JOINT_STATES)
    which = int(rng.integers(5))

    def alter(content):
        names = list(content.name)
        match which:
            case 0:
                names = [name] * len(names)
            case 1:
                names[rng.integers(len(names))] = name
            case 2:
                names = [f'{name}{entry}' for entry in names]
            case 3:
                names = names * int(rng.integers(2, 100))
            case _:
                names = names[: rng.integers(len(names))]
        content.name = names

    topics = JOINT_STATES if rng.integers(2) else [topic]
    return write_own(folder / 'bag', altered(rng, base, topics, alter, share=1.0))


def odd_sizes(rng, base, folder):
    """Arms of none, one, three or a hundred joints; arrays that do not fit their names."""
    size = int(rng.choice([0, 1, 3, 5, 100, 5000]))
    field = pick(rng, ['position', 'velocity', 'effort', 'all'])

    def alter(content):
        if field == 'all':
            content.name = [f'joint{k}' for k in range(size)]
        for one in ('position', 'velocity', 'effort') if field == 'all' else (field,):
            setattr(content, one, np.resize(np.append(getattr(content, one), 0.0), size))

    topics = JOINT_STATES if rng.integers(2) else [pick(rng, JOINT_STATES)]
    return write_own(folder / 'bag', altered(rng, base, topics, alter))


DEEP = '[' * 100_000
FACTS = (
    *('', 'null', '[]', '7', '"text"', '{', DEEP, '{"a":' * 100_000, '{"controller": 7}', '{}'),
    *('{"controller": "nobody"}', '{"controller": "policy"}', '{"controller": null}'),
    '{"controller": "policy", "bundle sha256": ["x"], "bundle": {"a": 1}}',
    '{"controller": "oracle"}',
    '{"controller": "momentum_observer"}',
    '{"controller": "momentum_observer", "settings": "{}"}',
    '{"controller": "momentum_observer", "settings": ' + json.dumps(DEEP) + '}',
    '{"controller": "momentum_observer", "settings": "null"}',
    '{"controller": "ct", "controller": "policy"}',
    '{"controller": "ct", "parameters": ' + '9' * 4000 + '}',
    '{"controller": "ct", "parameters": ' + '9' * 5000 + '}',
    '{"controller": "ct", "parameters": {"joint_prefix": 7}}',
    '{"controller": "ct", "parameters": {"joint_prefix": "left_"}}',
    '{"controller": "ct", "parameters": [' + '[' * 300 + ']' * 300 + ']}',
    '{"controller": "ct", "parameters": NaN}',
    '{"controller": "' + 'x' * 10**6 + '"}',
    '{"controller": "\\ud800"}',
    '{"\\ud800": 1, "controller": "ct"}',
)


def odd_facts(rng, base, folder):
    """~/bundle says something else than JSON, or JSON of another kind."""
    text = nth(base, FACTS)

    def alter(content):
        content.data = text

    return write_own(folder / 'bag', altered(rng, base, ['/controller/bundle'], alter, share=1.0))


SETTINGS_VALUES = (
    *(None, True, 'x', [], {}, 0, -1, 1e308, -1e308, 1e-308, 5e-324, 10**400, [1e308, 1e308]),
    *([None], [[1.0]], [1.0] * 100, {'a': 1}, float('nan'), float('inf'), [5.0, -5.0], 2**63),
)


def odd_recorded_settings(rng, base, folder):
    """What a baseline's gains and estimator were is impossible."""
    bundle = next(m for m in base.estimating if m.topic == '/controller/bundle')
    facts = json.loads(read(bundle).data)
    settings = json.loads(facts['settings'])
    table = settings
    for _ in range(rng.integers(4)):
        inner = [value for value in table.values() if isinstance(value, dict) and value]
        table = pick(rng, inner) if inner else table
    key = pick(rng, list(table))
    table[key] = pick(rng, SETTINGS_VALUES)
    facts['settings'] = json.dumps(settings)

    def alter(content):
        content.data = json.dumps(facts)

    other = base._replace(messages=base.estimating)
    return write_own(folder / 'bag', altered(rng, other, ['/controller/bundle'], alter, share=1.0))


def odd_topics(rng, base, folder):
    """Topics that are missing, renamed, doubled under another name, or of another type."""
    topic, other = pick(rng, TELEMETRY), pick(rng, [*TELEMETRY, '/joint_commands'])
    rows = list(base.messages)
    name = pick(rng, ['/' + 'x' * 5000, '/ä/controller/shield', '/a b', '//', 'shield'])
    match rng.integers(6):
        case 0:
            rows = [m for m in rows if m.topic != topic]
        case 1:
            rows = [m._replace(topic=other) if m.topic == topic else m for m in rows]
        case 2:
            rows = [m._replace(topic=name) if m.topic == topic else m for m in rows]
        case 3:
            rows += [m._replace(topic=f'/other{m.topic}') for m in rows]
        case 4:
            kind = pick(rng, ['std_msgs/msg/String', 'trajectory_msgs/msg/JointTrajectory'])
            rows = [m._replace(type_name=kind) if m.topic == topic else m for m in rows]
        case _:
            rows += [m._replace(topic=f'{m.topic}/{k}') for k, m in enumerate(rows)]
    return write_raw_mcap(folder / 'bag.mcap', rows)


def odd_order(rng, base, folder):
    """Messages shuffled, doubled, or only some of them."""
    rows = list(base.messages)
    match rng.integers(4):
        case 0:
            rng.shuffle(rows)
            rows = [type(base.messages[0])(*row) for row in rows]
        case 1:
            rows = rows * int(rng.integers(2, 20))
        case 2:
            rows = [m for m in rows if rng.random() < 0.5]
        case _:
            keep = {pick(rng, TELEMETRY) for _ in range(3)}
            rows = [m for m in rows if m.topic in keep]
    return write_raw_mcap(folder / 'bag.mcap', rows)


MESSAGES = (
    random_bytes,
    odd_counts,
    byte_orders,
    odd_values,
    odd_goals,
    odd_shield,
    odd_layout,
    odd_stamps,
    odd_names,
    odd_sizes,
    odd_facts,
    odd_recorded_settings,
    odd_topics,
    odd_order,
)
