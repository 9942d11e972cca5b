# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""YAML files that are hostile: no YAML, YAML that grows, or settings that no arm has.

Each function writes one file from a seeded generator, the text of a sound one and the values that
are in it, and returns nothing.
"""

from copy import deepcopy
import json

import yaml

from hostile.runs import alias_bomb, at, pick, places, STAND_INS


def replaced(rng, value, new, *, among=lambda _: True):
    """Return a copy in which one value is another."""
    value = deepcopy(value)
    paths = [path for path in places(value) if among(at(value, path))]
    *parents, last = pick(rng, paths)
    at(value, parents)[last] = new
    return value


def is_number(value):
    return isinstance(value, int | float) and not isinstance(value, bool)


def with_text(rng, base, text):
    """Return the sound file with a text in place of one value."""
    mark = 'value_to_be_replaced'
    dumped = json.dumps(replaced(rng, base.value, mark))
    return dumped.replace(f'"{mark}"', text)


def random_bytes(rng, base, file):
    file.write_bytes(rng.bytes(int(rng.integers(2000))))


def truncated(rng, base, file):
    file.write_text(base.text[: rng.integers(len(base.text))])


def flipped(rng, base, file):
    data = bytearray(base.text.encode())
    for place in rng.integers(0, len(data), 2 ** rng.integers(6)):
        data[place] = rng.integers(128)
    file.write_bytes(data)


def encodings(rng, base, file):
    text = base.text
    data = [
        *(text.encode(name) for name in ('utf-16', 'utf-32', 'utf-8-sig', 'utf-16-le')),
        *(
            text.encode() + more
            for more in (b'\0', b'\xff', b'\xed\xa0\x80', b'\x1b[31m', b'\x7f')
        ),
        text.replace('\n', '\r').encode(),
        text.replace('\n', '\u2028').encode(),
        text.replace(' ', '\t').encode(),
    ]
    file.write_bytes(pick(rng, data))


NESTS = ('[', '{a: ', '- ', '? ', '[[', '{? ', '- - ', '- ? ', '!!seq [', '&a [')


def deep(rng, base, file):
    """Thousands of levels, as the whole file or in place of a value."""
    levels = pick(rng, NESTS) * int(10 ** rng.uniform(1.0, 5.0))
    file.write_text(levels if rng.integers(2) else with_text(rng, base, levels))


def aliases(rng, base, file):
    """A billion laughs, aliases of themselves, towers, and merges."""
    lines = alias_bomb(int(rng.integers(2, 30)), int(rng.integers(2, 60)))
    match rng.integers(6):
        case 0:
            file.write_text(lines)
        case 1:
            file.write_text(f'{lines}{base.text}')
        case 2:
            file.write_text(with_text(rng, base, '&a [*a]'))
        case 3:
            file.write_text(with_text(rng, base, f'&{"a" * 10**5} 1'))
        case 4:
            tower = ''.join(f'- &{k} [[[[[*{k - 1}]]]]]\n' for k in range(1, 200))
            file.write_text(f'- &0 [1]\n{tower}')
        case _:
            file.write_text(f'<<: &a {{<<: *a}}\n{base.text}')


TAGS = (
    *('!!python/object/apply:os.getcwd []', '!!python/name:os.system', '!!binary aGVsbG8='),
    *('!!set {a, b}', '!!omap [a: 1]', '!!pairs [a: 1]', '!!timestamp 2026-01-01', '!!int "x"'),
    *('!!float [1]', '!!null {}', '!!map [1]', '!!seq {a: 1}', '! 1', '!!str 1', '!<tag:x> 1'),
    *('!!bool maybe', '!e!x 1', '!' + 'x' * 10**5 + ' 1', '!!merge {}', '!!value =', '!x 1'),
)


def tags(rng, base, file):
    file.write_text(with_text(rng, base, pick(rng, TAGS)))


KEYS = (
    *('1', '1.5', 'null', 'true', '[1, 2]', '{a: 1}', '0150', '.nan', '~', "''", '<<', '='),
    *('!!python/tuple [1]', '*a', '&a b', '2026-01-01', '[' * 30 + ']' * 30, 'x' * 2000),
    *('"\\0"', '!!set {}'),
)


def odd_keys(rng, base, file):
    key = pick(rng, KEYS)
    file.write_text(
        pick(
            rng,
            [
                f'{base.text}\n? {key}\n: 1\n',
                f'? {key}\n: 1\n',
                with_text(rng, base, f'{{? {key} : 1}}'),
                with_text(rng, base, f'{{{key}: 1, {key}: 1}}'),
                f'{base.text}\n{base.text}\n',
            ],
        )
    )


NUMBERS = (
    *('0150', '-017', '08', '1:30', '1:30:00.5', '1_000', '0x1F', '0b11', '0o17', '1e5', '1e999'),
    *('-1e999', '9' * 5000, '-' + '9' * 100_000, '1.' + '0' * 5000, '1e' + '9' * 50, '.inf'),
    *('.nan', '-0', '-0.0', '+1', '.5', '5.', '1.2.3', '1,5', '1e', '0x', '--1', '1/2', 'yes'),
    *('-.inf', '\u0665'),
)


def odd_numbers(rng, base, file):
    file.write_text(with_text(rng, base, pick(rng, NUMBERS)))


TYPES = (
    *(None, True, '', 'text', [], {}, [[]], [None], {'a': 1}, 0, -1, 1.5, [1, 2, 3], 'joint1'),
    *(['a', 'a'], [1.0], [1.0, 'x'], [[1.0, 2.0], [3.0, 4.0]], 'bullet', [{}], [{'kind': 'drop'}]),
)


def wrong_types(rng, base, file):
    value = base.value
    for _ in range(rng.integers(1, 4)):
        value = replaced(rng, value, deepcopy(pick(rng, TYPES)))
    file.write_text(yaml.safe_dump(value))


EXTREMES = (
    *(0, -1, 1, 2, 1e-308, 5e-324, 1e308, 1.7e308, -1e308, 1e154, 1e20, 1e9, 1e-9, 1e-20, 0.5),
    *(2**31, 2**62, 2**63 - 1, 2**63, -(2**63), 10**18, 10**30, 1_000_000, 99, 1e5),
)


def extremes(rng, base, file):
    """Numbers that are of the right type and of no arm."""
    value = base.value
    for _ in range(rng.integers(1, 4)):
        old = [at(value, path) for path in places(value) if is_number(at(value, path))]
        new = pick(rng, EXTREMES)
        new = int(new) if isinstance(pick(rng, old), int) and abs(new) < 2**64 else float(new)
        value = replaced(rng, value, new, among=is_number)
    file.write_text(yaml.safe_dump(value))


def longer_lists(rng, base, file):
    """Lists that are empty, a little or very much longer."""
    value = deepcopy(base.value)
    lists = [path for path in places(value) if isinstance(at(value, path), list)]
    if not lists:
        file.write_text('[' + '1,' * 10**5 + ']')
        return
    *parents, last = pick(rng, lists)
    times = int(pick(rng, [0, 2, 3, 100, 5_000, 40_000]))
    at(value, parents)[last] = at(value, parents)[last] * times
    file.write_text(json.dumps(value))


def huge(rng, base, file):
    """Megabytes of comments, texts, keys, lines or documents."""
    size = int(10 ** rng.uniform(4.0, 6.8))
    contents = [
        '#' * size,
        f'a: "{"x" * size}"',
        '\n' * size + base.text,
        ''.join(f'k{k}: 1\n' for k in range(size // 8)),
        base.text + ''.join(f'key{k}: 1\n' for k in range(size // 10)),
        '---\n' * (size // 4),
        with_text(rng, base, f'"{"x" * size}"'),
        with_text(rng, base, '[' + '0.5,' * (size // 4) + ']'),
        with_text(rng, base, '[' + '{kind: zzz, at_s: 1},' * (size // 20) + ']'),
        'faults: [' + '{kind: drup, at_s: 1},' * (size // 22) + ']',
        f'a: |{" " * 9}\n' + '  x\n' * (size // 4),
        'x' * size,
    ]
    file.write_text(pick(rng, contents))


def keys_lost(rng, base, file):
    """Keys that are missing, misspelt, moved or doubled."""
    value = deepcopy(base.value)
    for _ in range(rng.integers(1, 5)):
        tables = [(), *(p for p in places(value) if isinstance(at(value, p), dict))]
        table = at(value, pick(rng, tables))
        if table:
            key = pick(rng, list(table))
            kept = table.pop(key)
            if rng.integers(2):
                table[pick(rng, [key[:-1], key + 's', key.upper(), key[::-1], f'{key} '])] = kept
    file.write_text(yaml.safe_dump(value))


SYNTAX = (
    *('a: b: c', '{', ']', '"', "'", 'a: [1, 2', '{a: 1', '- a\nb: 1', '\ta: 1', '@a', '`a`'),
    *('%TAG ! tag:x,2000:\n---\na: 1', 'a: 1\n...\nb: 2', '--- a\n--- b', 'a: >-9\n x'),
    *('!!', '&', '*', '? ', ': ', ':', '-', '--', '---', '...', '~', '""', '"\\q"', '"\\ud800"'),
    *('%YAML 1.1\n---\na: 1', '%YAML 9.9\n---\na', '%TAG ! x\n' * 10**4, 'a:\n  - b\n c: d'),
    *('a: |0\n x', '%YAML', '"\\x"', '|', '>'),
)


def syntax(rng, base, file):
    text = pick(rng, SYNTAX)
    file.write_text(pick(rng, [text, f'{base.text}\n{text}\n', with_text(rng, base, text)]))


def no_files(rng, base, file):
    """Something that is no file in its place."""
    STAND_INS[pick(rng, list(STAND_INS))](file)


KINDS = {
    make.__name__: make
    for make in (
        random_bytes,
        truncated,
        flipped,
        encodings,
        deep,
        aliases,
        tags,
        odd_keys,
        odd_numbers,
        wrong_types,
        extremes,
        longer_lists,
        huge,
        keys_lost,
        syntax,
        no_files,
    )
}
