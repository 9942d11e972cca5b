# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""MCAP files that are hostile: damaged, forged, or compressed beyond measure.

Each function makes one bag in a folder from a seeded generator and returns the path to replay.
"""

import struct
import zlib

import lz4.frame
from mcap.opcode import Opcode
from support.recordings import write_own
import zstandard

from hostile.runs import pick

MAGIC = b'\x89MCAP0\r\n'
BOMB = 2**30
HUGE = (0, 1, 2**16, 2**31, 2**32 - 1, 2**40, 2**63, 2**64 - 1)
OPCODES = (*range(0x11), 0x7F, 0x80, 0xFF)


def whole(base, folder):
    """Write the recording the others are made of; return folder and file."""
    bag = write_own(folder / 'bag', base.messages)
    (file,) = bag.glob('*.mcap')
    return bag, file


def record(opcode, content, length=None):
    return struct.pack('<BQ', opcode, len(content) if length is None else length) + content


def text(value):
    data = value if isinstance(value, bytes) else value.encode()
    return struct.pack('<I', len(data)) + data


def schema(number=1, name='sensor_msgs/msg/JointState'):
    return record(
        Opcode.SCHEMA, struct.pack('<H', number) + text(name) + text('ros2msg') + text('')
    )


def channel(number=1, topic='/controller/shield', schema_id=1):
    head = struct.pack('<HH', number, schema_id)
    return record(Opcode.CHANNEL, head + text(topic) + text('cdr') + text(''))


def message(data, number=1, log_time_ns=5):
    return record(Opcode.MESSAGE, struct.pack('<HIQQ', number, 1, log_time_ns, 5) + data)


def chunk(data, compression='', *, size=None, crc=None, inflated=None):
    """Return a chunk record of compressed data that was `inflated` bytes long."""
    size = (len(data) if inflated is None else inflated) if size is None else size
    head = struct.pack('<QQQI', 0, 9, size, 0 if crc is None else crc)
    body = text(compression) + struct.pack('<Q', len(data)) + data
    return record(Opcode.CHUNK, head + body)


def mcap(*records):
    """Return a file that ends as it should."""
    header = record(Opcode.HEADER, text('ros2') + text('hostile'))
    ending = record(Opcode.DATA_END, bytes(4)) + record(Opcode.FOOTER, bytes(20))
    return MAGIC + header + b''.join(records) + ending + MAGIC


def bare(folder, content):
    file = folder / 'bag.mcap'
    file.write_bytes(content)
    return file


def truncated(rng, base, folder):
    bag, file = whole(base, folder)
    data = file.read_bytes()
    file.write_bytes(data[: rng.integers(len(data))])
    return pick(rng, [bag, file])


def flipped(rng, base, folder):
    bag, file = whole(base, folder)
    data = bytearray(file.read_bytes())
    for place in rng.integers(0, len(data), 2 ** rng.integers(8)):
        data[place] ^= 1 << rng.integers(8)
    file.write_bytes(data)
    return pick(rng, [bag, file])


def spliced(rng, base, folder):
    """Parts are lost, doubled, zeroed, random, or swapped."""
    bag, file = whole(base, folder)
    data = file.read_bytes()
    a, b = sorted(rng.integers(0, len(data), 2))
    some = rng.bytes(int(rng.integers(1, 5000)))
    file.write_bytes(
        pick(
            rng,
            [
                data[:a] + data[b:],
                data[:b] + data[a:],
                data[:a] + bytes(b - a) + data[b:],
                data[:a] + some + data[a:],
                data[:a] + some + data[a + len(some) :],
                data[b:] + data[:b],
                data + data,
                data[::-1],
            ],
        )
    )
    return bag


def odd_records(rng, base, folder):
    """Records of any kind with any content and any length."""
    records = [schema(), channel()]
    for _ in range(rng.integers(1, 30)):
        content = rng.bytes(int(rng.integers(0, 100)))
        length = pick(rng, [None, None, len(content) // 2, *HUGE])
        records.append(record(pick(rng, OPCODES), content, length))
    return bare(folder, mcap(*records))


def odd_strings(rng, base, folder):
    """Records that are nearly right, with strings of impossible length or letters."""
    number = int(rng.integers(2**32))
    odd = pick(rng, [struct.pack('<I', number) + b'abc', text(b'\xff\xfe\xc0'), text('x' * 10**6)])
    records = [
        record(Opcode.SCHEMA, struct.pack('<H', 1) + odd + text('ros2msg') + text('')),
        record(Opcode.CHANNEL, struct.pack('<HH', 1, 1) + odd + text('cdr') + text('')),
        record(Opcode.CHANNEL, struct.pack('<HH', 1, 1) + text('/a') + text('cdr') + odd),
        record(Opcode.METADATA, odd + text('')),
        record(Opcode.ATTACHMENT, bytes(16) + odd + odd + struct.pack('<Q', number)),
        record(Opcode.HEADER, odd + odd),
        record(Opcode.STATISTICS, rng.bytes(60)),
        record(Opcode.FOOTER, struct.pack('<QQI', pick(rng, HUGE), 0, 1)),
    ]
    return bare(folder, mcap(schema(), channel(), pick(rng, records), message(b'')))


def odd_chunks(rng, base, folder):
    """Chunks with wrong sizes, checksums and names of compression."""
    inner = schema() + channel() + b''.join(message(rng.bytes(40)) for _ in range(20))
    packed = {
        '': inner,
        'zstd': zstandard.compress(inner),
        'lz4': lz4.frame.compress(inner),
        'gzip': zlib.compress(inner),
    }
    name = pick(rng, [*packed, 'zstd', 'lz4', 'x' * 1000, '\0'])
    data = packed.get(name, inner)
    match rng.integers(6):
        case 0:
            made = chunk(data, name, size=pick(rng, HUGE))
        case 1:
            made = chunk(data[: rng.integers(len(data))], name, inflated=len(inner))
        case 2:
            made = chunk(data, name, inflated=len(inner), crc=1)
        case 3:
            made = chunk(chunk(inner), name)
        case 4:
            made = chunk(rng.bytes(500), name, inflated=1000)
        case _:
            place = int(rng.integers(len(inner)))
            forged = inner[:place] + rng.bytes(9) + inner[place + 9 :]
            made = chunk(forged, '')
    return bare(folder, mcap(made, made))


def zstd_of(num_bytes, *, states_size):
    """Return zeros compressed: 32 kB for a gigabyte."""
    packer = zstandard.ZstdCompressor(level=1)
    maker = packer.compressobj(size=num_bytes if states_size else -1)
    piece = bytes(2**20)
    return b''.join(maker.compress(piece) for _ in range(num_bytes // 2**20)) + maker.flush()


def lz4_of(num_bytes):
    with lz4.frame.LZ4FrameCompressor() as maker:
        parts = [maker.begin()]
        parts += [maker.compress(bytes(2**20)) for _ in range(num_bytes // 2**20)]
        return b''.join([*parts, maker.flush()])


def bombs(rng, base, folder):
    """A chunk that inflates to a gigabyte, or many that do together; some state another size."""
    size = pick(rng, [BOMB, BOMB, 2**26, 2**24])
    lies = pick(rng, [size, 100, 0, 2**20, 2**40])
    if rng.integers(2):
        made = chunk(zstd_of(size, states_size=bool(rng.integers(2))), 'zstd', size=lies)
    else:
        made = chunk(lz4_of(min(size, 2**28)), 'lz4', size=lies)
    times = 1 if size == BOMB else 40
    return bare(folder, mcap(schema(), channel(), *[made] * times))


def many_messages(rng, base, folder):
    """Millions of messages in a few kilobytes, on a topic that is read or on another."""
    topic = pick(rng, ['/controller/shield', '/other', '/joint_commands', '/controller/bundle'])
    one = message(b'' if rng.integers(2) else b'\0\1\0\0' + bytes(40))
    inner = one * 500_000
    made = chunk(zstandard.compress(inner), 'zstd', inflated=len(inner))
    head = [schema(), channel(topic=topic), channel(2, '/controller/shield')]
    return bare(folder, mcap(*head, *[made] * int(rng.integers(1, 12))))


def odd_channels(rng, base, folder):
    """Messages of channels that are not there, of channels and types that change."""
    data = pick(rng, [m.data for m in base.messages[:50]])
    records = [message(data, int(rng.integers(4))) for _ in range(20)]
    for number in range(4):
        topic = pick(rng, ['/controller/shield', '/controller/bundle', '/joint_commands', '', '/'])
        records.append(channel(number, topic, int(rng.integers(4))))
        name = pick(rng, ['sensor_msgs/msg/JointState', 'std_msgs/msg/String', '', 'x' * 1000])
        records.append(schema(number, name))
    rng.shuffle(records)
    content = b''.join(records)
    return bare(folder, mcap(chunk(content) if rng.integers(2) else content))


def sparse(rng, base, folder):
    """Gigabytes that take no room on the disk."""
    file = bare(folder, mcap(schema(), channel()))
    size = 2 ** int(rng.integers(30, 38))
    opcode = pick(rng, [Opcode.CHUNK, Opcode.ATTACHMENT, Opcode.MESSAGE, 0x80, 0])
    with file.open('r+b') as stream:
        stream.seek(8)
        stream.write(record(opcode, b'', size - 100))
        stream.truncate(size)
    return file


MCAP = (
    truncated,
    flipped,
    spliced,
    odd_records,
    odd_strings,
    odd_chunks,
    bombs,
    many_messages,
    odd_channels,
    sparse,
)
