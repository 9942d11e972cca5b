# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""Messages without stamps, found again by order and content."""

import time

from hypothesis import given
from hypothesis import strategies as st
import numpy as np

from metactl_ros.bag.command_log import align

COUNT = 60
NUMBERS = st.sets(st.integers(0, COUNT - 1), max_size=8)


def aligned(expected, found, expected_s=None, found_s=None):
    """Align texts; by default their times say nothing."""
    times = [
        np.zeros(len(texts), dtype=np.int64) if s is None else np.array(s)
        for texts, s in ((expected, expected_s), (found, found_s))
    ]
    first, second = ([text.encode() for text in texts] for texts in (expected, found))
    return align(first, times[0], second, times[1]).tolist()


@given(st.integers(0, COUNT), st.integers(0, COUNT))
def test_a_part_is_found_in_its_place(begin, end):
    expected = [str(k) for k in range(COUNT)]
    assert aligned(expected, expected[begin:end]) == list(range(COUNT))[begin:end]


@given(NUMBERS)
def test_what_is_missing_leaves_all_others_in_place(missing):
    kept = [k for k in range(COUNT) if k not in missing]
    assert aligned([str(k) for k in range(COUNT)], [str(k) for k in kept]) == kept


@given(NUMBERS)
def test_what_is_altered_keeps_its_place(altered):
    expected = [str(k) for k in range(COUNT)]
    found = [f'other {k}' if k in altered else text for k, text in enumerate(expected)]
    assert aligned(expected, found) == list(range(COUNT))


@given(NUMBERS)
def test_what_is_added_answers_nothing(places):
    expected, found, own = [str(k) for k in range(COUNT)], [], []
    for k, text in enumerate(expected):
        found += [text, f'added {k}'] if k in places else [text]
        own += [k, -1] if k in places else [k]
    assert aligned(expected, found) == own


def test_a_long_gap_and_long_additions_are_passed():
    expected = [str(k) for k in range(300)]
    assert aligned(expected, expected[:50] + expected[250:]) == [*range(50), *range(250, 300)]
    found = expected[:50] + [f'added {k}' for k in range(100)] + expected[50:]
    assert aligned(expected, found) == [*range(50), *[-1] * 100, *range(50, 300)]


def test_an_added_one_at_the_front_does_not_shift_the_others():
    assert aligned('abcd', 'xabcd') == [-1, 0, 1, 2, 3]
    assert aligned('abcd', 'axbcd') == [0, -1, 1, 2, 3]
    assert aligned('abcz', 'zabcz') == [-1, 0, 1, 2, 3]  # the last is no place to begin


def test_among_equal_ones_the_time_tells_where_to_begin():
    expected_s = [0, 10, 20, 30, 40, 50]
    assert aligned('aaaaab', 'aab', expected_s, [31, 41, 51]) == [3, 4, 5]
    assert aligned('aaaaab', 'aa', expected_s, [11, 21]) == [1, 2]


def test_without_anything_equal_the_time_tells_where_to_begin():
    assert aligned('abcdef', 'xyz', [0, 10, 20, 30, 40, 50], [21, 31, 41]) == [2, 3, 4]
    assert aligned('abc', 'x', [10, 20, 30], [5]) == [0]
    assert aligned('abc', 'b') == [1]


def test_nothing_answers_nothing():
    assert aligned('', 'abc') == [-1, -1, -1]
    assert aligned('abc', '') == []


def test_an_hour_of_equal_ones_is_aligned_in_seconds():
    begin_s = time.monotonic()
    count = 100_000
    times = np.arange(count)
    zeros = [b'0'] * count
    assert (align(zeros, times, zeros, times) == times).all()
    broken = [b'0', b''] * (count // 2)
    assert (align(zeros, times, broken, times) >= 0).sum() > 0
    assert (align(zeros, times, [b''] * count, times) == times).all()
    assert time.monotonic() - begin_s < 30.0
