# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""Which message answers which of the expected ones, where only order and content can tell.

Messages and what is expected of them are given as bytes. Some of either may be missing, there
twice or altered; none changes its place. What is equal pairs off in order. Where it is not, the
nearest places that are equal again are looked for, and what lies before them is paired in order:
so one altered message is one altered message, and not the end of all equality.
"""

from bisect import bisect_right
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

NEAR = 6
"""Altered, missing and additional messages in a row among which the next equal ones are sought;
beyond, only a mere gap or mere additions are."""


def align(
    expected: Sequence[bytes],
    expected_ns: NDArray[np.int64],
    found: Sequence[bytes],
    found_ns: NDArray[np.int64],
) -> NDArray[np.int64]:
    """Return what each found message answers, shape (F,): its place in `expected`, else -1.

    Args:
        expected: What should have come, in order.
        expected_ns: Each no later than the time of its answer; they only tell where among equal
            ones the first found message belongs.
        found: What came, in order.
        found_ns: When that was.
    """
    places = np.full(len(found), -1, dtype=np.int64)
    if not expected or not found:
        return places
    i, p = _anchor(expected, expected_ns, found, found_ns)
    after = _walk(expected[i:], found[p:])
    places[p:][after >= 0] = i + after[after >= 0]
    before = _walk(expected[:i][::-1], found[:p][::-1])[::-1]
    places[:p][before >= 0] = i - 1 - before[before >= 0]
    return places


def _anchor(
    expected: Sequence[bytes],
    expected_ns: NDArray[np.int64],
    found: Sequence[bytes],
    found_ns: NDArray[np.int64],
) -> tuple[int, int]:
    """Return the first places from which on both are equal; by the times if they nowhere are."""
    of_expected = _places(expected)
    for num_equal in (2, 1):
        for p in range(len(found) - num_equal + 1):
            wanted, places = found[p : p + num_equal], of_expected.get(found[p], [])
            latest = bisect_right(places, found_ns[p], key=expected_ns.__getitem__) - 1
            # Of many equal ones only those of about that time: a bag may hold an hour of zeros.
            near = range(max(latest - NEAR, 0), min(latest + NEAR, len(places)))
            for n in sorted(near, key=lambda n: abs(n - latest)):
                if expected[places[n] : places[n] + num_equal] == wanted:
                    return places[n], p
    return max(int(np.searchsorted(expected_ns, found_ns[0], side='right')) - 1, 0), 0


def _walk(expected: Sequence[bytes], found: Sequence[bytes]) -> NDArray[np.int64]:
    """Return what each found message answers if both begin at the same place."""
    places = np.full(len(found), -1, dtype=np.int64)
    of_expected, of_found = _places(expected), _places(found)
    i = p = num_hopeless = 0
    while i < len(expected) and p < len(found):
        num_skipped = num_added = 1
        if expected[i] == found[p]:
            num_hopeless = 0
        elif num_hopeless:
            num_hopeless -= 1
        else:
            next_i, next_p = _next_equal(expected, found, i, p, of_expected, of_found)
            num_skipped, num_added = next_i - i, next_p - p
            if not (num_skipped or num_added):  # nowhere: not asked again for each of many
                num_skipped, num_added, num_hopeless = 1, 1, NEAR
        num_pairs = min(num_skipped, num_added)
        places[p : p + num_pairs] = np.arange(i, i + num_pairs)
        i, p = i + num_skipped, p + num_added
    return places


def _next_equal(
    expected: Sequence[bytes],
    found: Sequence[bytes],
    i: int,
    p: int,
    of_expected: Mapping[bytes, Sequence[int]],
    of_found: Mapping[bytes, Sequence[int]],
) -> tuple[int, int]:
    """Return the nearest places after (i, p) that are equal; (i, p) if none are."""
    for num_both in range(1, NEAR + 1):
        # Altered ones first: as many of either are left out.
        for ahead in sorted(range(num_both + 1), key=lambda a: abs(2 * a - num_both)):
            next_i, next_p = i + ahead, p + num_both - ahead
            if expected[next_i : next_i + 1] == found[next_p : next_p + 1] != []:
                return next_i, next_p
    # Farther away one equal message may be a chance, two in a row are none.
    for place in _after(of_expected.get(found[p], ()), i):
        if expected[place : place + 2] == found[p : p + 2]:
            return place, p
    for place in _after(of_found.get(expected[i], ()), p):
        if expected[i : i + 2] == found[place : place + 2]:
            return i, place
    return i, p


def _places(contents: Sequence[bytes]) -> dict[bytes, list[int]]:
    places: dict[bytes, list[int]] = {}
    for place, content in enumerate(contents):
        places.setdefault(content, []).append(place)
    return places


def _after(places: Sequence[int], place: int) -> Sequence[int]:
    """Return the next few of these places."""
    begin = bisect_right(places, place)
    return places[begin : begin + NEAR]
