# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
from hypothesis import given
from hypothesis import strategies as st

from metactl_ros.runtime.process_link import Allowance

SECOND_NS = 1_000_000_000
requests = st.lists(st.tuples(st.integers(0, SECOND_NS), st.integers(1, 100)), max_size=50)


@given(requests)
def test_within_any_span_no_more_is_taken_than_at_once_and_what_has_come_since(asked):
    allowance, now_ns, taken = Allowance(100, 200), 0, []
    for passed_ns, tokens in asked:
        now_ns += passed_ns
        if allowance.take(tokens, now_ns):
            taken.append((now_ns, tokens))
    for first in range(len(taken)):
        for last in range(first, len(taken)):
            span_s = (taken[last][0] - taken[first][0]) / SECOND_NS
            total = sum(tokens for _, tokens in taken[first : last + 1])
            assert total <= 100 + 200 * span_s + 1e-6


def test_who_asks_seldom_is_never_refused():
    allowance = Allowance(100, 200)
    assert all(allowance.take(100, k * SECOND_NS // 2) for k in range(100))


def test_what_was_refused_costs_nothing():
    allowance = Allowance(100, 200)
    assert allowance.take(60, 0)
    assert not allowance.take(60, 0)
    assert allowance.take(40, 0)
