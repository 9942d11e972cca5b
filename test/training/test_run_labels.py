# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
import numpy as np
import pytest
from support.made_records import judgements

from training.judge.run_labels import head_verdict, is_flat, label_of, num_silent
from training.records import Run

VARIED, FLAT = [0.10, 0.12, 0.15], [0.10, 0.102, 0.105]


def run(delta, *, by_payload=VARIED, num_lost=0):
    return Run({'delta_percent': delta, 'num_lost': num_lost, 'rmse_by_payload': by_payload}, '')


@pytest.mark.parametrize(
    ('candidate', 'label'),
    [
        (run(10.01), 'diverged'),
        (run(10.0), 'weak'),
        (run(-90.0, num_lost=1), 'diverged'),
        (run(None, by_payload=[0.1, None, None], num_lost=40), 'diverged'),
        (run(None), 'diverged'),
        (run(-39.99), 'weak'),
        (run(-40.0), 'healthy'),
        (run(-6.5, by_payload=FLAT), 'payload-invariant'),
        # 9.99 and 10 percent of a mean of 1.
        (run(-6.5, by_payload=[0.95005, 1.0, 1.04995]), 'payload-invariant'),
        (run(-6.5, by_payload=[0.95, 1.0, 1.05001]), 'weak'),
        # Good at every payload is adaptation, not blindness.
        (run(-85.0, by_payload=FLAT), 'healthy'),
    ],
)
def test_labels_follow_the_stated_bounds(candidate, label):
    found, reason = label_of(candidate, VARIED)
    assert found == label
    assert reason


def test_a_flat_run_is_excused_only_by_a_baseline_known_to_be_flat():
    flat = run(-6.5, by_payload=FLAT)
    assert label_of(flat, FLAT)[0] == 'weak'
    assert label_of(flat, None)[0] == 'payload-invariant'


def test_a_flat_profile_is_the_papers_signature_whatever_the_error():
    assert is_flat(FLAT)
    assert not is_flat(VARIED)
    assert not is_flat([0.1, None, 0.1])


@pytest.mark.parametrize(
    ('norms', 'expected'),
    [
        ([[1.0, 1.0, 1.0]] * 4, 0),
        # The mean is 0.7 with a head of 0.1, and 0.6767 with one of 0.03.
        ([[1.0, 1.0, 0.1]] * 4, 0),
        ([[1.0, 1.0, 0.03]] * 4, 1),
        # One that falls silent half way is; one that is loud again is not.
        ([[1.0, 1.0]] * 2 + [[1.0, 0.01]] * 2, 1),
        ([[1.0, 0.01]] * 2 + [[1.0, 1.0]] * 2, 0),
        # A single judgement in which it is silent is noise.
        ([[1.0, 1.0]] * 3 + [[1.0, 0.01]] + [[1.0, 1.0]] * 2, 0),
        # A layer that stops as a whole, the only way for one head.
        ([[1.0]] * 2 + [[0.02]] * 2, 0),
        ([[1.0]] * 2 + [[0.009]] * 2, 1),
    ],
)
def test_a_head_is_silent_beside_its_layer_or_beside_what_its_layer_was(norms, expected):
    assert num_silent(np.array(norms)) == expected


def judged(norms):
    return Run({'judgements': judgements(norms)}, 'a.json')


def test_the_heads_of_all_layers_are_counted_from_the_first_update_on():
    loud, quiet = [1.0, 1.0], [1.0, 0.01]
    found = head_verdict(judged([[[None, None]] * 2, *[[loud, quiet]] * 3]))
    assert (found.num_heads, found.num_silent, found.num_idle) == (4, 1, 0)


@pytest.mark.parametrize('norms', [[], [[]] * 3, [[[None]]] * 3])
def test_without_judged_heads_there_is_no_verdict_on_them(norms):
    assert head_verdict(judged(norms)) is None
    assert head_verdict(Run({}, 'a.json')) is None
