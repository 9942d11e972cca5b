# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""Requests and answers between two processes; here both ends are in one."""

import queue
import socket
import threading

from hypothesis import given
from hypothesis import strategies as st
import pytest

from metactl_ros.errors import ConfigError
from metactl_ros.runtime.process_link import (
    Link,
    LinkClient,
    LinkError,
    LinkServer,
    MAX_DATA,
    MAX_FIELDS,
    Packet,
    RateLimiter,
    SIZES,
)

plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=10,
)


@pytest.fixture
def ends():
    here, there = socket.socketpair()
    yield Link(here), Link(there)
    here.close()
    there.close()


@given(fields=st.dictionaries(st.text(), plain), data=st.binary(max_size=1000))
def test_what_goes_in_comes_out(fields, data):
    here, there = socket.socketpair()
    with here, there:
        Link(here).send(Packet(fields, data))
        assert Link(there).receive() == (fields, data)


def test_large_packets_are_put_together_and_larger_ones_refused(ends):
    here, there = ends
    packet = Packet({'text': 'x' * (MAX_FIELDS - 100)}, bytes(MAX_DATA))
    sender = threading.Thread(target=here.send, args=[packet])
    sender.start()
    assert there.receive() == packet
    sender.join()
    with pytest.raises(LinkError, match=f'at most {MAX_DATA} bytes of data, found 1048577'):
        here.send(Packet({}, bytes(MAX_DATA + 1)))
    with pytest.raises(LinkError, match='bytes of fields'):
        here.send(Packet({'text': 'x' * MAX_FIELDS}))


@pytest.mark.parametrize('sizes', [(MAX_FIELDS + 1, 0), (0, MAX_DATA + 1), (2**32 - 1, 2**32 - 1)])
def test_an_announcement_of_too_much_is_not_waited_for(ends, sizes):
    here, there = ends
    here._connection.sendall(SIZES.pack(*sizes))
    with pytest.raises(LinkError, match='expected at most'):
        there.receive()


@pytest.mark.parametrize('text', [b'{', b'[1]', b'7', b'\xff', b''])
def test_what_is_no_packet_is_refused(ends, text):
    here, there = ends
    here._connection.sendall(SIZES.pack(len(text), 0) + text)
    with pytest.raises(LinkError, match=r'link: expected (JSON|fields with names)'):
        there.receive()


@pytest.mark.parametrize('sent', [b'', b'\0', SIZES.pack(5, 0) + b'{"a', SIZES.pack(2, 9) + b'{}'])
def test_an_end_that_goes_away_in_the_middle_is_gone(ends, sent):
    here, there = ends
    here._connection.sendall(sent)
    here.close()
    assert there.receive() is None
    with pytest.raises(LinkError, match='the other process is gone'):
        there.send(Packet({}))
    here.close()  # twice does no harm


def test_who_waits_at_an_end_that_is_closed_is_woken(ends):
    here, _ = ends
    heard = queue.Queue()
    waiter = threading.Thread(target=lambda: heard.put(here.receive()))
    waiter.start()
    here.close()
    assert heard.get(timeout=20.0) is None


class Pair:
    """Both sides, with an answer for every request."""

    def __init__(self, ends, answer):
        self.gone = queue.Queue()
        self.here, self.there = ends
        self.asker = LinkClient(self.here, lambda: self.gone.put('answerer'))
        self.answerer = LinkServer(self.there, answer, lambda: self.gone.put('asker'))
        self.asker.start()
        self.answerer.start()


def test_each_request_has_its_answer_whoever_asks(ends):
    pair = Pair(ends, lambda what, fields, data: {'said': f'{what} {fields["k"]} {len(data)}'})
    answers = queue.Queue()

    def ask(k):
        answers.put(pair.asker.ask('add', 20.0, bytes(k), k=k)['said'] == f'add {k} {k}')

    threads = [threading.Thread(target=ask, args=[k]) for k in range(20)]
    for thread in threads:
        thread.start()
    assert all(answers.get(timeout=20.0) for _ in threads)


@pytest.mark.parametrize(
    ('error', 'says'),
    [
        (ConfigError('no such arm'), '^no such arm$'),
        (KeyError('policy'), r"^load: KeyError\('policy'\)$"),
    ],
)
def test_a_request_that_fails_is_answered_with_why_and_the_next_one_is_heard(ends, error, says):
    def answer(what, _fields, _data):
        if what == 'load':
            raise error
        return {}

    pair = Pair(ends, answer)
    with pytest.raises(LinkError, match=says):
        pair.asker.ask('load', 20.0)
    assert pair.asker.ask('go', 20.0)['number'] == 2


def test_an_answer_that_comes_too_late_is_not_taken_for_the_next(ends):
    may_go = threading.Event()

    def answer(what, _fields, _data):
        if what == 'slow':
            may_go.wait(20.0)
        return {'to': what}

    pair = Pair(ends, answer)
    with pytest.raises(LinkError, match=r'slow: no answer within 0\.01 s'):
        pair.asker.ask('slow', 0.01)
    may_go.set()
    assert pair.asker.ask('quick', 20.0)['to'] == 'quick'


def test_either_side_is_told_when_the_other_goes(ends):
    pair = Pair(ends, lambda *_: {})
    pair.there.close()
    assert {pair.gone.get(timeout=20.0), pair.gone.get(timeout=20.0)} == {'asker', 'answerer'}
    for _ in range(2):
        with pytest.raises(LinkError, match='gone'):
            pair.asker.ask('go', 20.0)


def test_a_request_on_its_way_when_the_other_goes_is_an_error_at_once(ends):
    here, there = ends
    asker = LinkClient(here, lambda: None)
    asker.start()
    threading.Thread(target=lambda: (there.receive(), there.close())).start()
    for _ in range(2):
        with pytest.raises(LinkError, match='gone'):
            asker.ask('go', 20.0)


def test_nonsense_ends_the_answers(ends):
    pair = Pair(ends, lambda *_: {})
    pair.here._connection.sendall(SIZES.pack(1, 0) + b'{')
    assert pair.gone.get(timeout=20.0) == 'asker'
    pair.answerer.join(timeout=20.0)
    assert not pair.answerer.is_alive()


SECOND_NS = 1_000_000_000
requests = st.lists(st.tuples(st.integers(0, SECOND_NS), st.integers(1, 100)), max_size=50)


@given(requests)
def test_within_any_span_no_more_is_taken_than_at_once_and_what_has_come_since(asked):
    limiter, now_ns, taken = RateLimiter(100, 200), 0, []
    for passed_ns, tokens in asked:
        now_ns += passed_ns
        if limiter.take(tokens, now_ns):
            taken.append((now_ns, tokens))
    for first in range(len(taken)):
        for last in range(first, len(taken)):
            span_s = (taken[last][0] - taken[first][0]) / SECOND_NS
            total = sum(tokens for _, tokens in taken[first : last + 1])
            assert total <= 100 + 200 * span_s + 1e-6


def test_who_asks_seldom_is_never_refused():
    limiter = RateLimiter(100, 200)
    assert all(limiter.take(100, k * SECOND_NS // 2) for k in range(100))


def test_what_was_refused_costs_nothing():
    limiter = RateLimiter(100, 200)
    assert limiter.take(60, 0)
    assert not limiter.take(60, 0)
    assert limiter.take(40, 0)
