# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""Hundreds of hostile policy bundles, each loaded as a robot would, in a process of its own.

    PYTHONPATH=test:. python -m hostile.bundles [--count 500] [--seed 7] [--only KIND...]

No bundle may end in a traceback, take longer than 5 s, or end the process; each must be refused
with a message that names it, or loaded if what was changed does no harm. Writes
results/hostile_bundles.json. Exit code 1: one was not. Here are the makers of hostile folders,
files, contracts and golden vectors; `bundle_graphs` damages the network. Each takes a copy of a
sound bundle and a generator of random numbers, and returns its path, which may be another.
"""

import io
from itertools import cycle, islice
import json
import os
from pathlib import Path
import shutil
import stat
import struct
import sys
import tempfile
import zipfile

import numpy as np
from support.bundles import files_of, golden_of, npy_claiming, npz, reseal, zip_of

from hostile.bundle_graphs import GRAPHS
from hostile.runs import (
    at,
    command_line,
    make_socket,
    pick,
    places,
    REFUSED,
    report,
    run_forked,
    say,
    say_nothing,
    Tally,
)
from metactl_ros.errors import MetactlError
from metactl_ros.policy.bundle import load_bundle, MAX_BYTES, SUMS
from metactl_ros.policy.network import GOLDEN_TOLERANCE
from metactl_ros.settings import load_settings, policy_file, provenance

NAMES = sorted(MAX_BYTES)
CONTENT = [name for name in NAMES if name != SUMS]


# The folder


def not_there(bundle, rng):
    return bundle.with_name(pick(rng, ['none.metactl', 'x' * 300, 'a\nb', 'a\x1b[2J', '\udcff']))


def not_a_folder(bundle, rng):
    other = bundle.with_name('other.metactl')
    kinds = [os.mkfifo, lambda path: path.write_bytes(b'PK'), lambda path: path.symlink_to(path)]
    pick(rng, kinds)(other)
    return other


def a_folder_in_a_folder(bundle, rng):
    for _ in range(int(rng.integers(1, 40))):
        bundle /= pick(rng, NAMES)
        if bundle.is_file():
            bundle.unlink()
        bundle.mkdir(exist_ok=True)
    return bundle


def missing_files(bundle, rng):
    for name in rng.choice(NAMES, int(rng.integers(1, 5)), replace=False):
        (bundle / name).unlink()
    return bundle


def more_files(bundle, rng):
    for _ in range(pick(rng, [1, 10, 3000])):
        (bundle / f'{rng.integers(2**40)}{pick(rng, ["", ".pkl", ".npy", " "])}').write_bytes(b'')
    return reseal(bundle) if rng.random() < 0.3 else bundle


def no_regular_file(bundle, rng):
    path = bundle / pick(rng, NAMES)
    path.rename(bundle.with_name('kept'))
    _to_something_else(path, pick(rng, ['fifo', 'folder', 'socket', 'device', 'full']))
    return bundle


def _to_something_else(path, kind):
    if kind == 'fifo':
        os.mkfifo(path)
    elif kind == 'folder':
        path.mkdir()
    elif kind == 'socket':
        make_socket(path)
    else:
        numbers = os.makedev(1, 5 if kind == 'device' else 7)  # /dev/zero, /dev/full
        try:
            os.mknod(path, stat.S_IFCHR | 0o666, numbers)
        except PermissionError:  # only root may
            path.mkdir()


def linked_file(bundle, rng):
    path = bundle / pick(rng, NAMES)
    path.rename(bundle.with_name('kept'))
    targets = ['../kept', path.name, '/dev/zero', '/dev/random', '/proc/self/mem', '/etc/passwd']
    path.symlink_to(pick(rng, [*targets, 'x' * 200, '/proc/self/fd/0']))
    return bundle


def wrong_size(bundle, rng):
    path = bundle / pick(rng, NAMES)
    sizes = [0, MAX_BYTES[path.name] + 1, 2**40, max(path.stat().st_size - 1, 0)]
    os.truncate(path, pick(rng, sizes))
    return bundle


def as_large_as_may_be(bundle, rng):
    """Let a file have the largest size, under a valid seal."""
    name = pick(rng, CONTENT[1:])  # a card is what it is
    os.truncate(bundle / name, MAX_BYTES[name])
    return reseal(bundle)


def broken_seal(bundle, rng):
    """Change any file, or the sums themselves, without sealing it again."""
    path = bundle / pick(rng, NAMES)
    data = bytearray(path.read_bytes())
    for _ in range(int(rng.integers(1, 9))):
        data[int(rng.integers(len(data)))] ^= 1 << int(rng.integers(8))
    path.write_bytes(data if data != path.read_bytes() else data + b' ')
    return bundle


def strange_sums(bundle, rng):
    lines = (bundle / SUMS).read_bytes().splitlines(keepends=True)
    changed = [
        b''.join(lines[::-1]),
        b''.join(lines * 2),
        b''.join(lines).replace(b'\n', b'\r\n'),
        b''.join(lines).rstrip(b'\n'),
        b''.join(lines).upper(),
        b''.join(lines).replace(b'  ', b' *'),
        b'\xff\xfe' + b''.join(lines),
        b'0' * 64 + b'  ../../etc/passwd\n' + b''.join(lines),
        b'\n' * 4096,
    ]
    (bundle / SUMS).write_bytes(pick(rng, changed))
    return bundle


# The contract


def _contract_of(bundle):
    return json.loads((bundle / 'contract.json').read_text())


ODD = [None, True, '', 'x', '9' * 50, -1, 0, 1e308, -1e308, 5e-324, 2**63, [], {}, [[]], {'': 0}]


def odd_value(bundle, rng):
    """Put something else in one place of the contract that counts."""
    contract = _contract_of(bundle)
    chosen = [path for path in places(contract) if path[0] != 'training']
    *way, last = pick(rng, chosen)
    part = at(contract, way)
    others = [value for value in ODD if value != part[last]]
    part[last] = pick(rng, others)
    return reseal(bundle, contract_json=json.dumps(contract).encode())


def odd_number(bundle, rng):
    """Write a number as JSON should not be able to."""
    text = (bundle / 'contract.json').read_text()
    long = ['9' * 5000, '1' + '0' * 400, '0.' + '1' * 99, '1e999']
    numbers = ['NaN', 'Infinity', '-Infinity', *long, '01', '+1', '0x10', '1_000', '\u0661']
    number = pick(rng, numbers)
    return reseal(bundle, contract_json=text.replace('100.0', number).encode())


def lost_or_found_key(bundle, rng):
    contract = _contract_of(bundle)
    chosen = [p for p in places(contract) if p[0] != 'training' and isinstance(p[-1], str)]
    *way, last = pick(rng, chosen)
    part = at(contract, way)
    value = part.pop(last)
    if rng.random() < 0.5:
        part[last + pick(rng, ['_', ' ', '\u0000', '\u202e', 'x' * 9999])] = value
    return reseal(bundle, contract_json=json.dumps(contract).encode())


def a_key_twice(bundle, rng):
    text = (bundle / 'contract.json').read_text()
    keys = ['"rate_hz"', '"schema_version"', '"effort_nm"', '"arm"', '"num_rows"', '"seed"']
    key = pick(rng, keys)
    assert key in text
    return reseal(bundle, contract_json=text.replace(key, f'{key}: 1, {key}', 1).encode())


def strange_json(bundle, rng):
    text = (bundle / 'contract.json').read_bytes()
    size = pick(rng, [1000, 20_000])
    texts = [
        b'[' * size,
        b'{"a":' * size + b'1' + b'}' * size,
        b'{"schema_version": 1, "arm": ' + b'[' * size + b']' * size + b'}',
        b'"' + b'\\u0000' * size,
        b'\xef\xbb\xbf' + text,
        text.decode().encode('utf-16'),
        text + text,
        text[: int(rng.integers(len(text) - 2))],
        b'{"schema_version": 1,' + b','.join(b'"%d": 0' % k for k in range(size)) + b'}',
        b'{"schema_version": 1, "features": [' + b','.join([b'"q"'] * size) + b']}',
        text.replace(b'"features": [', b'"features": [' + b'"x",' * size),
        text.replace(b'"p_matrix": [', b'"p_matrix": [' + b'[0.0],' * size),
        b'null',
        b'7',
        b'\x00' * size,
        rng.bytes(size),
        b'{"schema_version": 1e0}',
        b'{"schema_version": [1]}',
    ]
    return reseal(bundle, contract_json=pick(rng, texts))


# The golden vectors


def odd_golden(bundle, rng):
    window, action = golden_of(bundle)
    at = tuple(int(rng.integers(n)) for n in action.shape)
    other = action.copy()
    other[at] = pick(rng, [np.nan, np.inf, 2.0, other[at] + 1e-3])
    choices = [
        {'window': window, 'action': other},
        {'window': window},
        {'window': window, 'action': action, 'more': action},
        {'window': window[:, :, :-1], 'action': action},
        {'window': window[0], 'action': action[0]},
        {'window': window[:0], 'action': action[:0]},
        {'window': np.asfortranarray(window), 'action': action},
        {'window': window.astype(object), 'action': action},
        {'window': window.astype('U32'), 'action': action},
        {'window': window.astype('>f4'), 'action': action},
        {'window': window.astype(np.complex128), 'action': action},
        {'window': window.astype(np.longdouble), 'action': action},
        {'window': np.zeros(3, 'f4,f8'), 'action': action},
        {'window': np.full_like(window, 3e38), 'action': action},
    ]
    return reseal(bundle, golden_npz=npz(**pick(rng, choices)))


def golden_bomb(bundle, rng):
    """Claim or unfold to far more than the file has."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, 'w', zipfile.ZIP_DEFLATED) as archive:
        archive.writestr('window.npy', bytes(2 ** int(rng.integers(20, 28))))
        archive.writestr('action.npy', b'')
    sizes = [(10**12, 50, 11), (2**31, 2**31), (-1, 50, 11), (2**63,), (10**5, 10**5)]
    claims = npy_claiming(pick(rng, sizes))
    lying = bytearray(zip_of(window=claims, action=claims))
    at = lying.index(b'PK\x01\x02')
    struct.pack_into('<II', lying, at + 20, 2**32 - 2, 2**32 - 2)  # sizes in the directory
    choices = [stream.getvalue(), zip_of(window=claims, action=claims), bytes(lying)]
    return reseal(bundle, golden_npz=pick(rng, choices))


def odd_header(bundle, rng):
    """Write what stands before an array in ways that a parser may not expect."""
    headers = [
        b"{'descr': '<f4', 'fortran_order': False, 'shape': " + b'(' * 3000 + b'}',
        b"{'descr': '|O', 'fortran_order': False, 'shape': (1,), }",
        b"{'descr': '<f4', 'fortran_order': False, 'shape': (1,), 'shape': (2,), }",
        b"__import__('os').abort()",
        b"{'descr': " + b'[' * 900 + b']' * 900 + b", 'fortran_order': False, 'shape': ()}",
        b"{'descr': '<f4', 'fortran_order': 7, 'shape': (True,), }",
        b"{'descr': '<f999999999', 'fortran_order': False, 'shape': (1,), }",
        b"{'descr': '<f4', 'fortran_order': False, 'shape': (1" + b'0' * 5000 + b',), }',
        b'\xff' * 50,
        b'',
    ]
    header = pick(rng, headers)
    version = bytes([pick(rng, [1, 2, 3, 9]), 0])
    size = struct.pack('<H' if version[0] == 1 else '<I', len(header) % 2**16)
    data = b'\x93NUMPY' + version + size + header + bytes(64)
    return reseal(bundle, golden_npz=zip_of(window=data, action=data))


def odd_zip(bundle, rng):
    window, action = golden_of(bundle)
    data = npz(window=window, action=action)
    members = files_of(bundle)
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, 'w') as archive:
        for name in ('window.npy', '../action.npy', '/etc/passwd', 'action.npy\x00.npy'):
            archive.writestr(zipfile.ZipInfo(name), data)
    encrypted = bytearray(data)
    encrypted[6] |= 1
    encrypted[data.index(b'PK\x01\x02') + 8] |= 1
    choices = [
        stream.getvalue(),
        bytes(encrypted),
        data[: int(rng.integers(1, len(data) - 1))],
        data.replace(b'PK\x01\x02', b'PK\x01\x03'),
        members['policy.onnx'],
        b'PK\x05\x06' + bytes(18),
        b'PK\x05\x06' + b'\xff' * 18,
        npz(window=window, action=action)[:-22] + b'PK\x05\x06' + b'\xff' * 18,
        rng.bytes(5000),
    ]
    return reseal(bundle, golden_npz=pick(rng, choices))


# Damage that may be harmless


def damaged(bundle, rng):
    """Flip bits of one file under a valid seal; of a card or a comment it does no harm."""
    name = pick(rng, CONTENT)
    data = bytearray((bundle / name).read_bytes())
    for _ in range(pick(rng, [1, 1, 3, 30])):
        data[int(rng.integers(len(data)))] ^= 1 << int(rng.integers(8))
    return reseal(bundle, **{name.replace('.', '_'): bytes(data)})


def untouched(bundle, rng):
    """Change what does not count: the card, its size, the time of the files."""
    os.utime(bundle / 'policy.onnx', (0, 0))
    card = pick(rng, ['', '# \x1b[2J\u202e\n', 'x' * 2**19]) + 'card'
    return reseal(bundle, card_md=card.encode())


FILES = dict.fromkeys(
    (
        not_there,
        not_a_folder,
        a_folder_in_a_folder,
        missing_files,
        more_files,
        no_regular_file,
        linked_file,
        wrong_size,
        as_large_as_may_be,
        broken_seal,
        strange_sums,
        odd_value,
        odd_number,
        lost_or_found_key,
        a_key_twice,
        strange_json,
        odd_golden,
        golden_bomb,
        odd_header,
        odd_zip,
    ),
    REFUSED,
) | {damaged: (0, *REFUSED), untouched: (0,)}
"""Makers, and the exit codes that loading what they made may have."""
KINDS = {make.__name__: (make, allowed) for make, allowed in (FILES | GRAPHS).items()}
MAX_CHARACTERS = 20_000
"""Of a message."""
ACTS_OTHERWISE, SAYS_TOO_MUCH, NAMES_NOTHING = 91, 92, 93
"""Exit codes of what must not be either."""


def load(path, settings):
    """Load a bundle and let it act; return the exit code of a command that does."""
    try:
        bundle = load_bundle(path, settings.arm, settings.controller)
    except MetactlError as error:
        text = str(error)
        sys.stderr.write(f'error: {text.encode(errors="replace").decode()}\n')
        if len(text) > MAX_CHARACTERS:
            return SAYS_TOO_MUCH
        return 2 if str(path) in text else NAMES_NOTHING
    with np.load(policy_file('paper_sac') / 'golden.npz') as arrays:
        pairs = zip(arrays['window'], arrays['action'], strict=True)
        worst = max(np.abs(bundle.policy(window) - action).max() for window, action in pairs)
    return 0 if worst <= 2 * GOLDEN_TOLERANCE else ACTS_OTHERWISE


def cases(count, seed, only):
    """Yield number, kind and generator of each bundle; kinds take turns."""
    names = [name for name in KINDS if not only or name in only]
    for number, name in enumerate(islice(cycle(names), count)):
        yield number, name, np.random.default_rng([seed, number])


def judge(count, seed, only=(), say=say_nothing):
    """Make and load bundles; return a tally of how that ended."""
    tally, settings = Tally(), load_settings()
    for number, name, rng in cases(count, seed, only):
        make, allowed = KINDS[name]
        with tempfile.TemporaryDirectory() as folder:
            copy = Path(folder) / 'bundle.metactl'
            shutil.copytree(policy_file('paper_sac'), copy)
            path = make(copy, rng)
            ending = run_forked(lambda path=path: load(path, settings))
            tally.add(name, f'{name} {number}', ending, allowed)
        say(f'{name} {number}', ending)
    return tally


def main():
    parser = command_line(__doc__, KINDS, count=500, seed=7, results='hostile_bundles.json')
    args = parser.parse_args()
    tally = judge(args.count, args.seed, args.only or (), say if args.verbose else say_nothing)
    facts = provenance(load_settings())
    del facts['settings']
    return report(args, tally, {'seed': args.seed}, facts)


if __name__ == '__main__':
    sys.exit(main())
