# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""YAML of which every reader makes the same, and files that would keep a reader for ever."""

from contextlib import nullcontext
from itertools import pairwise
import math
import os
import socket

from hypothesis import given
from hypothesis import strategies as st
import pytest
import yaml

from metactl_ros import files
from metactl_ros.errors import ConfigError
from metactl_ros.files import MAX_BYTES, MAX_DEPTH, parse_yaml, read_yaml
from metactl_ros.settings import share_directory

SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(10**18), 10**18)
    | st.floats(allow_nan=False)
    | st.text(st.characters(codec='utf-8', exclude_categories=['Cc', 'Cs']))
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text('ab 1:#-'), inner),
    max_leaves=12,
)


@given(VALUES, st.booleans())
def test_what_is_written_is_read_back(value, is_flow):
    assert parse_yaml(yaml.safe_dump(value, default_flow_style=is_flow)) == value


@pytest.mark.parametrize('file', sorted((share_directory() / 'config').rglob('*.yaml')), ids=str)
def test_shipped_files_mean_the_same_to_every_reader(file):
    found = read_yaml(file)
    assert found == yaml.safe_load(file.read_text())


@pytest.mark.parametrize(
    ('text', 'value'),
    [
        ('', None),
        ('~', None),
        ('1e5', 1e5),
        ('-0', 0),
        ('5.', 5.0),
        ('+.5e-3', 0.0005),
        ('.inf', math.inf),
        ('-.INF', -math.inf),
        ('True', True),
        ('FALSE', False),
        ("'0150'", '0150'),
        ('"yes"', 'yes'),
        ('"<<": 1', {'<<': 1}),
        ('1.2.3', '1.2.3'),
        ('2026-11-01', '2026-11-01'),
        ('3 kg', '3 kg'),
        ('a: |\n  007\n', {'a': '007\n'}),
    ],
)
def test_a_scalar_means_what_yaml_1_2_says(text, value):
    found = parse_yaml(text)
    assert (type(found), found) == (type(value), value)


def test_not_a_number_is_read_as_such():
    assert math.isnan(parse_yaml('.nan'))


@pytest.mark.parametrize('number', ['0150', '-007', '08.5', '1:30', '1_0', '0x1F', '0o17', '0b1'])
def test_a_number_that_readers_disagree_about_is_refused(number):
    says = rf'{number} means different numbers to different readers \(line 2\); write it in dec'
    with pytest.raises(ConfigError, match=says):
        parse_yaml(f'a: 1\nb: {number}')


@pytest.mark.parametrize('word', ['yes', 'No', 'ON', 'off', 'y', 'N'])
def test_a_word_that_readers_disagree_about_is_refused(word):
    with pytest.raises(ConfigError, match=rf'{word} is true or false to some \(line 1\)'):
        parse_yaml(f'[{word}]')


@pytest.mark.parametrize(
    ('text', 'says'),
    [
        ('a: 1\nb: *x', r'nothing before has the anchor &x \(line 2\); write the value out'),
        ('a: &x [*x]', 'nothing before has the anchor &x'),
        ('*' + 'x' * 100_000, 'nothing before has the anchor &xxx'),
        ('a: !!str 1', r'the tag .*:str. \(line 1\); remove it'),
        ('a: !mine {}', "the tag '!mine'"),
        ('! a', "the tag '!'"),
        ('%YAML 1.1\n---\na: 1', r'found a directive, % \(line 1\)'),
        ('a: 1\n---\nb: 2', r'a second document \(line 2\)'),
        ('1: a', r'expected a name for a key, found 1 \(line 1\); put it in quotes'),
        ('null: a', 'expected a name for a key, found None'),
        ('? [1, 2]\n: a', r'expected a name for a key, found \[1, 2\]'),
        ('? {a: 1}\n: a', 'expected a name for a key'),
        ('<<: {a: 1}', "expected a name for a key, found '<<'"),
        ('- &x "<<"\n- {*x : 1}', "expected a name for a key, found '<<'"),
        ('{a: 1, b: {c: 1, c: 2}}', r"key 'c' is given twice \(line 1\); remove one"),
        ('9' * 41, 'expected a number of at most 40 characters, found 41'),
        ('[' * 500_000, rf'expected at most {MAX_DEPTH} levels'),
        ('{a: ' * 100_000, rf'expected at most {MAX_DEPTH} levels'),
        ('- ' * 400_000, rf'expected at most {MAX_DEPTH} levels'),
        ('? ' * 400_000, rf'expected at most {MAX_DEPTH} levels'),
        ('a: [', 'not valid YAML: '),
        ('a: \0', 'not valid YAML: '),
        ('"\\ud800"', 'not valid YAML: '),
    ],
)
def test_what_is_not_accepted_is_refused_with_its_line(text, says):
    with pytest.raises(ConfigError, match=says) as caught:
        parse_yaml(text)
    assert len(str(caught.value)) < 500


def test_an_alias_is_what_its_anchor_marks():
    text = 'a: &x [1, {b: 2}]\nc: *x\nd: [*x, &x 3, *x]\n&k e: *k\n'
    first = [1, {'b': 2}]
    assert parse_yaml(text) == {'a': first, 'c': first, 'd': [first, 3, 3], 'e': 'e'}


BOMB = '- &a [x, x, x, x, x, x, x, x, x]\n' + ''.join(
    f'- &{b} [{", ".join([f"*{a}"] * 9)}]\n' for a, b in pairwise('abcdefghi')
)
TOWER = '- &a [[[[[1]]]]]\n' + ''.join(f'- &{b} [[[[[*{a}]]]]]\n' for a, b in pairwise('abcdefg'))


@pytest.mark.parametrize(
    ('text', 'says'),
    [
        (BOMB, r'expected at most 100000 values \(line 6\)'),
        (TOWER, r'expected at most 20 levels \(line 4\)'),
        ('[' + '1,' * 100_000 + ']', 'expected at most 100000 values'),
    ],
)
def test_an_alias_counts_as_what_it_stands_for(text, says):
    with pytest.raises(ConfigError, match=says):
        parse_yaml(text)


def test_as_many_values_as_allowed_are_read():
    ones = '- &x [1, 1, 1, 1, 1, 1, 1, 1, 1]\n' + '- *x\n' * 9_998
    assert len(parse_yaml(ones)) == 9_999
    assert len(parse_yaml(ones + '- 1\n' * 9)) == 10_008
    with pytest.raises(ConfigError, match='expected at most 100000 values'):
        parse_yaml(ones + '- 1\n' * 10)


def test_as_deep_as_allowed_is_read():
    assert parse_yaml('[' * MAX_DEPTH + ']' * MAX_DEPTH) is not None


def test_all_may_be_left_a_text():
    text = 'a: 0150\nb: [yes, 1_0, ~]\nc: ""\n7: x\n'
    found = parse_yaml(text, is_all_text=True)
    assert found == {'a': '0150', 'b': ['yes', '1_0', '~'], 'c': '', '7': 'x'}


def make_socket(path):
    with socket.socket(socket.AF_UNIX) as one:
        one.bind(str(path))


@pytest.mark.parametrize(
    ('make', 'says'),
    [
        (lambda path: None, 'No such file'),
        (lambda path: path.mkdir(), 'is a folder, not a regular file'),
        (os.mkfifo, 'is a named pipe, not a regular file'),
        (make_socket, 'is a socket, not a regular file'),
        (lambda path: path.symlink_to('/dev/zero'), 'is a device, not a regular file'),
        (lambda path: path.symlink_to(path), 'symbolic link'),
        (lambda path: path.symlink_to('/proc/self/mem'), 'Input/output error'),
        (lambda path: path.write_bytes(b'\xff\xfe'), 'utf-8'),
        (lambda path: path.write_bytes(b'#' * (MAX_BYTES + 1)), f'is larger than {MAX_BYTES}'),
    ],
)
def test_what_is_no_file_of_text_is_refused_at_once(tmp_path, monkeypatch, make, says):
    monkeypatch.chdir(tmp_path)  # the name of a socket must be short
    path = tmp_path / 'a.yaml'
    make(path.relative_to(tmp_path) if make is make_socket else path)
    with pytest.raises(ConfigError, match=rf'a.yaml: cannot be read \(.*{says}.*; give the path'):
        read_yaml(path)


def test_a_file_that_would_wait_for_more_is_refused(tmp_path, monkeypatch):
    """As /proc/kmsg, which only root may read."""
    path = tmp_path / 'a.yaml'
    path.touch()
    monkeypatch.setattr(files.os, 'fdopen', lambda *_: nullcontext(Waiting()))
    with pytest.raises(ConfigError, match='has nothing to read'):
        read_yaml(path)


class Waiting:
    def read(self, _):
        return None


def test_a_name_that_no_file_can_have_is_refused(tmp_path):
    with pytest.raises(ConfigError, match='cannot be read'):
        read_yaml(tmp_path / 'a\0b.yaml')


def test_a_file_as_large_as_allowed_is_read(tmp_path):
    path = tmp_path / 'a.yaml'
    path.write_bytes(b'#' * MAX_BYTES)
    assert read_yaml(path) is None
