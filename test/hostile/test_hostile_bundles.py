# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""A hostile bundle of every kind, and what became of the hundreds of `hostile.bundles`."""

import json
from pathlib import Path

import pytest

from hostile import bundles
from hostile.bundles import cases, judge, KINDS

RESULTS = Path(__file__).resolve().parents[2] / 'results' / 'hostile_bundles.json'


@pytest.mark.slow
def test_no_hostile_bundle_ends_in_a_traceback_a_hang_or_an_abort():
    tally = judge(count=40, seed=1)
    assert tally.by_kind.keys() == KINDS.keys()
    assert not tally.bad


@pytest.mark.parametrize(
    ('allowed', 'made', 'is_bad'), [((2,), True, True), ((0,), True, False), ((0,), False, True)]
)
def test_what_ends_otherwise_than_it_may_is_noticed(monkeypatch, allowed, made, is_bad):
    def make(bundle, rng):
        return bundle if made else bundle / 'none'

    monkeypatch.setattr(bundles, 'KINDS', {'make': (make, allowed)})
    assert bool(judge(count=1, seed=0).bad) is is_bad


def test_the_same_seed_gives_the_same_bundles():
    once, again = ([(name, rng.random()) for _, name, rng in cases(50, 3, ())] for _ in range(2))
    assert once == again


def test_all_of_five_hundred_were_answered():
    found = json.loads(RESULTS.read_text())
    assert found['num_cases'] == 500
    assert found['bad'] == []
    assert found['by_kind'].keys() == KINDS.keys()
    assert found['slowest_s'] < found['limit_s'] == 5.0
