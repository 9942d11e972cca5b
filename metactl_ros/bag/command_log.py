# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""What was commanded, as a bag holds it: both command topics, message by message, as arrays.

    log = commands_of(read_bag(bag, is_wanted).messages, '/joint_commands', arm.joint_names)

Every message has its row, whatever node sent it and whatever is in it. Its efforts are numbers
only if it has exactly one for each joint and names exactly these joints, in their order; else they
are NaN, so that a check for finite efforts finds it.

`answering_rows` finds the command of each tick by its stamp; `align` does where only order and
content decide.
"""

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from metactl_ros.bag.reader import BagMessage
from metactl_ros.bag.topics import (
    CdrError,
    FORWARD,
    read_joint_state,
    read_multi_array,
    STAMPED,
    TOPICS,
)
from metactl_ros.signals import Array

TYPES = {topic: TOPICS[topic] for topic in (STAMPED, FORWARD)}
LARGEST = 2**63 - 1
"""ns; what a bag calls a time has 64 bits without a sign, and may be anything."""
NEAR = 6
"""Altered, missing and additional messages in a row among which the next equal ones are sought;
beyond, only a mere gap or mere additions are."""
_T = TypeVar('_T')


class CommandLog(NamedTuple):
    """The messages of one command topic, in the order of the bag."""

    topic: str
    """Its full name."""
    stamp_ns: NDArray[np.int64]
    """Of the header, shape (N,); zero on the topic that has none."""
    publish_time_ns: NDArray[np.int64]
    """On the publisher's clock, shape (N,)."""
    log_time_ns: NDArray[np.int64]
    """On the recorder's, which does not step back, shape (N,)."""
    sequence: NDArray[np.int64]
    """Counted by the publisher from 1, shape (N,); zero where the bag has none."""
    names: tuple[tuple[str, ...], ...]
    """The joints that each message names; none where a Float64MultiArray has no label."""
    is_for_arm: NDArray[np.bool_]
    """Whether it has one effort for each joint of the arm, in their order, shape (N,)."""
    effort_nm: Array
    """Shape (N, n); NaN where it has not."""
    num_unreadable: int
    """Messages of another type or broken ones; they have no row."""


def command_topics(namespace: str) -> tuple[str, str]:
    """Return the full names of both command topics."""
    return f'{namespace}/{STAMPED}', f'{namespace}/{FORWARD}'


def commands_of(
    messages: Iterable[BagMessage], topic: str, joint_names: Sequence[str]
) -> CommandLog:
    """Return the messages of one command topic."""
    kind = next(kind for kind in TYPES if topic.endswith(f'/{kind}'))
    joints = tuple(joint_names)
    times, names, efforts = [], [], []
    num_unreadable = 0
    for message in messages:
        if message.topic != topic:
            continue
        try:
            if message.type_name != TYPES[kind]:
                raise CdrError(f'expected {TYPES[kind]}, found {message.type_name}')
            at_ns, named, effort = _read(message.data, kind)
        except CdrError:
            num_unreadable += 1
            continue
        row = (at_ns, message.publish_time_ns, message.log_time_ns, message.sequence)
        times.append([min(value, LARGEST) for value in row])
        names.append(named)
        is_named = named == joints or (kind == FORWARD and not named)
        efforts.append(effort if is_named and len(effort) == len(joints) else None)
    nothing = (np.nan,) * len(joints)
    effort_nm = [nothing if effort is None else effort for effort in efforts]
    stamp_ns, publish_ns, log_ns, sequence = np.array(times, np.int64).reshape(-1, 4).T.copy()
    return CommandLog(
        topic=topic,
        stamp_ns=stamp_ns,
        publish_time_ns=publish_ns,
        log_time_ns=log_ns,
        sequence=sequence,
        names=tuple(names),
        is_for_arm=np.array([effort is not None for effort in efforts], dtype=bool),
        effort_nm=np.array(effort_nm, dtype=np.float64).reshape(len(times), len(joints)),
        num_unreadable=num_unreadable,
    )


def _read(data: bytes, kind: str) -> tuple[int, tuple[str, ...], tuple[float, ...]]:
    """Return stamp, names and efforts; the label of the only dimension names the joints."""
    if kind == STAMPED:
        message = read_joint_state(data)
        return message.stamp_ns, message.names, message.effort
    labels, efforts = read_multi_array(data)
    return 0, tuple(','.join(labels).split(',')) if any(labels) else (), efforts


def answering_rows(
    stamp_ns: NDArray[np.int64],
    effort_nm: Array,
    publish_time_ns: NDArray[np.int64],
    stamped: CommandLog,
) -> NDArray[np.int64]:
    """Return the row in joint_commands of each tick's command; -1 where none has its stamp, (T,).

    The first three are of the ticks, shapes (T,), (T, n) and (T,). Of several that share a stamp,
    order and content decide. The zeros that end a run have the stamp of its last state in
    simulated time, and belong to no tick.
    """
    rows_of, ticks_of = _places(stamped.stamp_ns.tolist()), _places(stamp_ns.tolist())
    found = np.full(len(stamp_ns), -1, dtype=np.int64)
    for stamp, ticks in ticks_of.items():
        own = np.array(rows_of.get(stamp, []), dtype=np.int64)
        if len(ticks) == len(own) == 1:
            found[ticks[0]] = own[0]
            continue
        answers = align(
            [effort.tobytes() for effort in effort_nm[ticks]],
            np.array([publish_time_ns[k - 1] if k else 0 for k in ticks]),
            [effort.tobytes() for effort in stamped.effort_nm[own]],
            stamped.publish_time_ns[own],
        )
        is_answer = answers >= 0
        if len(ticks) > 1:
            is_other = (stamped.effort_nm[own] != effort_nm[ticks][answers]).any(axis=1)
            is_answer &= stamped.effort_nm[own].any(axis=1) | ~is_other
        found[np.array(ticks)[answers[is_answer]]] = own[is_answer]
    return found


def align(
    expected: Sequence[bytes],
    expected_ns: NDArray[np.int64],
    found: Sequence[bytes],
    found_ns: NDArray[np.int64],
) -> NDArray[np.int64]:
    """Return what each found message answers, shape (F,): its place in `expected`, else -1.

    Some of either may be missing, there twice or altered; none changes its place. What is equal
    pairs off in order. Where it is not, the nearest places that are equal again are looked for,
    and what lies before them is paired in order: so one altered message is one altered message,
    and not the end of all equality.

    Args:
        expected: What should have come, in order.
        expected_ns: Each no later than the time of its answer; they only decide where among equal
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
    later_i, later_p = of_expected.get(found[p], ()), of_found.get(expected[i], ())
    ends = [(place, p) for place in _next_few(later_i, i)]
    ends += [(i, place) for place in _next_few(later_p, p)]
    pairs = ((a, b) for a, b in ends if expected[a : a + 2] == found[b : b + 2])
    return next(pairs, (i, p))


def _places(contents: Sequence[_T]) -> dict[_T, list[int]]:
    """Return where each content is, in order."""
    places: dict[_T, list[int]] = {}
    for place, content in enumerate(contents):
        places.setdefault(content, []).append(place)
    return places


def _next_few(places: Sequence[int], place: int) -> Sequence[int]:
    begin = bisect_right(places, place)
    return places[begin : begin + NEAR]
