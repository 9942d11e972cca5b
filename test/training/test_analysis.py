# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
import pytest
from support.made_records import record

from metactl_ros.errors import ConfigError
from training import stats
from training.judge.analysis import Cell, compare
from training.records import run_from


def cell(deltas, **changes):
    records = [record(seed=i, delta_percent=d, **changes) for i, d in enumerate(deltas)]
    return Cell(tuple(run_from(r, f'{r["seed"]}.json') for r in records))


POLICY = {
    'model': 'incrt',
    'heads': 7,
    'window': 50,
    'preset': 'paper',
    'steps': 50_000,
    'commit': 'aaa',
    'code': 'bbb',
    'evaluation_seed': 42,
}


@pytest.mark.parametrize(
    ('changes', 'said'),
    [
        ({'tau_z': 5.0}, 'tau_z_s: expected 2.0, as in a.json, found 5.0'),
        ({'window': 20}, 'window: expected 50, as in a.json, found 20'),
        ({'num_parameters': 7}, 'num_parameters: expected 100, as in a.json, found 7'),
        ({'commit': 'ccc'}, "commit: expected 'aaa', as in a.json, found 'ccc'"),
        ({'commit': 'aaa+'}, "commit: expected 'aaa', as in a.json, found 'aaa+'"),
        ({'commit': None}, "commit: expected 'aaa', as in a.json, found None"),
        ({'code': 'ccc'}, "code: expected 'bbb', as in a.json, found 'ccc'"),
        ({'preset': 'robust'}, "preset: expected 'paper', as in a.json, found 'robust'"),
        ({'steps': 2_000}, 'steps: expected 50000, as in a.json, found 2000'),
        ({'evaluation_seed': 1}, 'evaluation_seed: expected 42, as in a.json, found 1'),
        ({'plant': 'bullet'}, "plant: expected 'rk4', as in a.json, found 'bullet'"),
        ({'num_rollouts_per_payload': 5}, 'num_rollouts_per_payload: expected 20, as in a.json'),
        ({'lagrangian_rate': 0.0}, 'lagrangian_rate: expected None, as in a.json, found 0.0'),
    ],
)
def test_a_cell_refuses_runs_that_differ_in_more_than_their_seed(changes, said):
    one = run_from(record(**POLICY), 'a.json')
    other = run_from(record(**POLICY | {'seed': 43} | changes), 'b.json')
    with pytest.raises(ConfigError) as refusal:
        Cell((one, other))
    assert str(refusal.value).startswith(f'b.json: {said}')
    assert 'or report them separately' in str(refusal.value)


def test_seeds_of_one_commit_protocol_and_budget_make_a_cell():
    seeds = [run_from(record(**POLICY, seed=seed), f'{seed}.json') for seed in (42, 43)]
    assert len(Cell(tuple(seeds)).runs) == 2


def test_the_fixed_gains_may_be_judged_with_several_seeds():
    seeds = [record(controller='ct', seed=s, evaluation_seed=s) for s in (42, 43)]
    assert len(Cell(tuple(run_from(r, 'ct.json') for r in seeds)).runs) == 2


def test_a_seed_counts_once():
    with pytest.raises(ConfigError, match='seed 42 is both in a and in b: a seed counts once'):
        Cell((run_from(record(), 'a'), run_from(record(), 'b')))


def test_comparisons_stay_within_one_horizon_and_one_budget():
    with pytest.raises(ConfigError, match='compare within one tau_z'):
        compare([(cell([-50]), cell([-40], tau_z=5.0))])
    long, short = (cell([-50], **POLICY | {'steps': steps}) for steps in (50_000, 2_000))
    with pytest.raises(ConfigError, match=r'steps: expected 50000.*Runs of different budgets'):
        compare([(long, short)])
    assert len(compare([(long, cell([-40]))])) == 1  # what is not trained has no budget


def test_a_family_of_comparisons_is_adjusted_and_judged():
    reference = cell([-40, -38, -36, -34, -32])
    better, alike = cell([-60, -59, -58, -57, -56]), cell([-41, -37, -35, -33, -31])
    lost = cell([-60, -59, -58, -57, None])
    found = compare([(better, reference), (alike, reference), (lost, reference)])
    assert [c.verdict for c in found] == ['better', 'not shown', 'not shown']
    assert [c.p_u_holm for c in found] == stats.holm([c.p_u for c in found])
    assert found[0].d < found[0].d_interval[1] < 0.0
    # With a lost seed there is no mean to compare, but there are ranks: 5 of 25 pairs are lost.
    assert (found[2].d, found[2].p_w, found[2].u) == (None, None, 5.0)


def test_three_seeds_a_side_cannot_show_anything():
    found = compare([(cell([-60, -59, -58]), cell([-40, -39, -38]))])
    assert found[0].p_u == pytest.approx(0.05)
    assert found[0].verdict == 'too few seeds'
