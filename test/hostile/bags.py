# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""Hundreds of hostile bags, each replayed by `metactl replay` in a process of its own.

    PYTHONPATH=test:. python -m hostile.bags [--count 868] [--seed 15] [--only KIND...]

No bag may end in a traceback, take longer than 5 s, or end the process; each must be answered with
a message and one of the documented exit codes. Writes results/hostile_bags.json. Exit code 1: one
was not. Here are the bags that are hostile around their messages: metadata, databases, and files
that are none; `mcap_files` and `bag_messages` have the others. Each maker writes one bag to a
folder from a seeded generator and returns the path to replay.
"""

from contextlib import suppress
from itertools import cycle, islice
import os
from pathlib import Path
import shutil
import sqlite3
import sys
import tempfile
from typing import NamedTuple

from mcap.writer import CompressionType
import numpy as np
from support.recordings import record_ticks, write_raw_mcap, write_sqlite

from hostile.bag_messages import MESSAGES
from hostile.mcap_files import MCAP, whole
from hostile.runs import (
    alias_bomb,
    command_line,
    fresh_folder,
    nth,
    pick,
    report,
    run_forked,
    say,
    say_nothing,
    STAND_INS,
    Tally,
)
from metactl_ros import cli
from metactl_ros.replay import page, verdict
from metactl_ros.settings import load_settings, provenance

DOCUMENTED = (0, 1, 2, 3)
"""Exit codes of metactl replay."""
LOADED = (page, verdict)
"""Modules that a run would import, and that a fork has."""
TICKS = 60
METADATA_VALUES = (
    *('null', '[]', '{}', '-1', '1e400', '9' * 5000, "''", 'true', '0150', '.nan', '2026-11-01'),
    *('*a', '&a [*a]', '!!python/object/apply:os.getcwd []', '"\\x00"', '[' * 3000, 'x' * 100_000),
    *('[[[[[[[[[1]]]]]]]]]', '{stopped: [1, 2]}', '{stopped: {a: b}}', '[/etc/passwd]', '[1, 2]'),
    *('["../../x.mcap"]', '[null]', '{? [1]: 2}', 'zstd', 'file', 'message', '7', '!!set {a, b}'),
)


def odd_metadata(rng, base, folder):
    """A sound recording whose metadata.yaml has an odd value somewhere."""
    bag, _ = whole(base, folder)
    file = bag / 'metadata.yaml'
    lines = file.read_text().splitlines()
    place = int(rng.integers(len(lines)))
    key, colon, _ = lines[place].partition(': ')
    lines[place] = f'{key.rstrip(":")}{colon or ": "}{pick(rng, METADATA_VALUES)}'
    file.write_text('\n'.join(lines))
    return bag


def bad_metadata(rng, base, folder):
    """A sound recording whose metadata.yaml is something else altogether."""
    bag, _ = whole(base, folder)
    file = bag / 'metadata.yaml'
    head = 'rosbag2_bagfile_information'
    bomb = alias_bomb(width=9, height=10)
    contents = [
        *(b'', b'\0' * 1000, rng.bytes(1000), b'- 1', b'1', b'%TAG ! x\n' * 10_000, b'\xff\xfe'),
        *(b'[' * 100_000, b'{a: ' * 100_000, b'? ' * 100_000, b'- ' * 100_000, b'#' * 10**7),
        *(f'{head}: {value}'.encode() for value in METADATA_VALUES),
        bomb.encode() + f'{head}: *n9\n'.encode(),
        f'{bomb}{head}: {{relative_file_paths: *n9, message_count: *n9}}\n'.encode(),
        f'{head}: &a {{compression_mode: *a, custom_data: *a}}\n'.encode(),
        f'{head}: {{message_count: {"9" * 5000}}}'.encode(),
        f'{head}: {{compression_mode: file, compression_format: {"x" * 10**5}}}'.encode(),
        f'{head}:\n'.encode() + b''.join(b'  k%d: 1\n' % k for k in range(50_000)),
    ]
    file.write_bytes(pick(rng, contents))
    return bag


def no_files(rng, base, folder):
    """Something that is no file in place of one: a pipe, a device, a folder."""
    bag, file = whole(base, folder)
    place = pick(rng, ['file', 'file', 'metadata', 'more', 'database', 'itself'])
    stand_in = STAND_INS[nth(base, list(STAND_INS))]
    if place == 'itself':
        path = folder / f'other{pick(rng, ["", ".mcap", ".db3"])}'
        stand_in(path)
        return path
    names = {'file': file, 'metadata': bag / 'metadata.yaml'}
    path = names.get(place, bag / f'more{".mcap" if place == "more" else ".db3"}')
    path.unlink(missing_ok=True)
    stand_in(path)
    return bag


def sqlite_damaged(rng, base, folder):
    bag = write_sqlite(folder / 'bag', base.messages)
    (file,) = bag.glob('*.db3')
    data = bytearray(file.read_bytes())
    if rng.integers(3):
        for place in rng.integers(0, len(data), 2 ** rng.integers(10)):
            data[place] = rng.integers(256)
    else:
        data = data[: rng.integers(len(data))]
    file.write_bytes(data)
    return pick(rng, [bag, file])


UNBOUND = ''.join(
    f'CREATE TABLE free AS SELECT * FROM {name}; DROP TABLE {name}; '
    f'ALTER TABLE free RENAME TO {name}; '
    for name in ('messages', 'topics')
)
"""Takes the conditions off the tables."""
ENDLESS = 'WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c)'
FORGERIES = (
    'DROP TABLE messages',
    'DROP TABLE topics',
    'ALTER TABLE messages DROP COLUMN data',
    'UPDATE messages SET data = NULL',
    "UPDATE messages SET data = 'text'",
    'UPDATE messages SET data = 7',
    'UPDATE messages SET data = zeroblob(100000000) WHERE id % 50 = 1',
    'UPDATE messages SET timestamp = NULL',
    "UPDATE messages SET timestamp = 'soon'",
    'UPDATE messages SET timestamp = 1e300',
    'UPDATE messages SET timestamp = -9223372036854775808',
    'UPDATE messages SET topic_id = topic_id + 1',
    'UPDATE messages SET topic_id = NULL',
    'UPDATE topics SET name = NULL',
    "UPDATE topics SET name = x'ff00'",
    'UPDATE topics SET type = 7',
    "UPDATE topics SET type = 'std_msgs/msg/String'",
    "UPDATE topics SET serialization_format = 'json'",
    'DELETE FROM topics',
    'DELETE FROM messages',
    f'DROP TABLE messages; CREATE VIEW messages AS {ENDLESS} SELECT x AS id, 1 AS topic_id, '
    "x AS timestamp, x'00' AS data FROM c",
    f'DROP TABLE topics; CREATE VIEW topics AS {ENDLESS} SELECT x AS id, x AS name, x AS type, '
    'x AS serialization_format, x AS offered_qos_profiles FROM c',
    'DROP TABLE messages; CREATE TABLE messages(id, topic_id, timestamp, data AS '
    '(zeroblob(900000000))); INSERT INTO messages(id, topic_id, timestamp) VALUES (1, 1, 1)',
    'DROP TABLE messages; CREATE TABLE messages(id, topic_id, timestamp, data AS '
    "(replace(hex(zeroblob(10000000)), '0', '0123456789'))); "
    'INSERT INTO messages(id, topic_id, timestamp) VALUES (1, 1, 1)',
    f'DROP TABLE messages; CREATE TABLE messages AS {ENDLESS} SELECT x AS id, 1 AS topic_id, x AS '
    "timestamp, x'00' AS data FROM c LIMIT 2000000",
    'PRAGMA journal_mode = WAL; UPDATE messages SET topic_id = 1',
    "PRAGMA writable_schema = ON; UPDATE sqlite_master SET sql = 'CREATE TABLE nonsense('",
    'PRAGMA writable_schema = ON; UPDATE sqlite_master SET rootpage = 1',
)


def sqlite_forged(rng, base, folder):
    """A database of another shape, or one that computes without end."""
    bag = write_sqlite(folder / 'bag', base.messages)
    (file,) = bag.glob('*.db3')
    connection = sqlite3.connect(file)
    with suppress(sqlite3.Error):  # what it has no more use for after a forged schema
        connection.executescript(UNBOUND + nth(base, FORGERIES))
        connection.commit()
    connection.close()
    return pick(rng, [bag, file])


def odd_places(rng, base, folder):
    """Folders and files with names that are no text, or steer a terminal; a path too long."""
    bag, file = whole(base, folder)
    name = nth(base, [b'\xff\xfe', b'a\x1b[31mb', b'a\nb', '\u202eä'.encode(), b'x' * 250, b'-h'])
    if rng.integers(2):
        (bag / 'metadata.yaml').unlink(missing_ok=bool(rng.integers(2)))
    if rng.integers(2):
        file.rename(os.fsdecode(os.fsencode(bag) + b'/' + name[:240] + b'.mcap'))
    if rng.integers(2):
        bag = bag.rename(os.fsdecode(os.fsencode(folder) + b'/' + name))
    return bag if rng.integers(8) else folder / ('x' * 5000)


def two_kinds(rng, base, folder):
    """Files of both kinds, numbers that are wrong, a thousand empty ones, no metadata."""
    bag, file = whole(base, folder)
    match rng.integers(4):
        case 0:
            write_raw_mcap(bag / 'again.mcap', base.messages, CompressionType.ZSTD)
        case 1:
            (other,) = write_sqlite(folder / 'other', base.messages).glob('*.db3')
            other.rename(bag / 'other.db3')
        case 2:
            for number in range(1000):
                (bag / f'{"x" * 100}{number}.mcap').touch()
        case _:
            file.rename(bag / f'{"y" * 200}.mcap')
    if rng.integers(2):
        (bag / 'metadata.yaml').unlink()
    return bag


FOLDERS = (
    odd_metadata,
    bad_metadata,
    no_files,
    sqlite_damaged,
    sqlite_forged,
    two_kinds,
    odd_places,
)
KINDS = {make.__name__: make for make in (*MCAP, *FOLDERS, *MESSAGES)}


class Base(NamedTuple):
    """What the bags are made of."""

    messages: list
    """Of a controller with fixed gains."""
    estimating: list
    """Of one that publishes its gains and its estimator."""
    turn: int = 0
    """How many bags of the kind were made before."""


def record(bag, domain, controller):
    """Record a controller over ROS; return the messages of its first ticks."""
    return record_ticks(bag, domain, TICKS, controller=controller)


def record_base(folder, domain):
    """Record what all bags are made of."""
    return Base(*(record(folder / name, domain, name) for name in ('ct', 'momentum_observer')))


def replay(bag, out):
    return cli.main(['replay', str(bag), '--out', str(out)])


def run_all(names, count, seed, base, folder, say):
    """Make and replay bags, the kinds in turn; return the tally."""
    tally = Tally()
    for number, kind in enumerate(islice(cycle(names), count)):
        name = f'{kind}/{number}'
        place = fresh_folder(folder, name)
        rng = np.random.default_rng([seed, number])
        bag = KINDS[kind](rng, base._replace(turn=number // len(names)), place)
        ending = run_forked(lambda bag=bag, place=place: replay(bag, place / 'out'))
        tally.add(kind, name, ending, DOCUMENTED)
        say(name, ending)
        shutil.rmtree(place)
    return tally


def main():
    parser = command_line(
        __doc__, KINDS, count=28 * len(KINDS), seed=15, results='hostile_bags.json'
    )
    parser.add_argument('--without-pages', action='store_true', help='draw nothing, which is slow')
    args = parser.parse_args()
    if args.without_pages:
        page.write_page = lambda *_: None
    with tempfile.TemporaryDirectory() as folder:
        base = record_base(Path(folder), os.getpid() % 50 * 2 + 1)
        names = args.only or list(KINDS)
        saying = say if args.verbose else say_nothing
        tally = run_all(names, args.count, args.seed, base, Path(folder), saying)
    return report(args, tally, {'seed': args.seed}, provenance(load_settings()))


if __name__ == '__main__':
    sys.exit(main())
