# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
import json
from pathlib import Path

import pytest

from training import grid
from training.grid import choose, main, PAPER, parse_args, rank, read_phase1, sizes_of, study_of
from training.records import Run
from training.sweep import expand

ROOT = Path(__file__).resolve().parents[2]
RECORD = json.loads((ROOT / 'results' / 'train_robust_tau2.json').read_text())[0]


def record_of(tau_z, k_star, heads):
    """A record of Phase 1, with keys that the grid does not read."""
    return {'tau_z': tau_z, 'k_star': k_star, 'phase2_heads': heads, 'versions': {'v1': {}}}


def write_phase1(folder, *records):
    path = folder / 'phase1.json'
    path.write_text(json.dumps({'search': {}, 'records': records}))
    return path


@pytest.fixture
def phase1(tmp_path):
    """The paper's K* at 1 and 2 s."""
    return write_phase1(tmp_path, record_of(1.0, 8, [4, 8]), record_of(2.0, 14, [7, 14]))


def pairs(sizes):
    return [(size.heads, size.window) for size in sizes]


def test_heads_from_half_of_k_star_to_k_star_are_tried_with_every_window(phase1):
    one, two = read_phase1(phase1, None)
    assert pairs(sizes_of(one, [20, 50], with_paper=False)) == [
        *((4, 20), (4, 50), (5, 20), (5, 50), (6, 20), (6, 50), (7, 20), (7, 50)),
        *((8, 20), (8, 50)),
    ]
    assert pairs(sizes_of(two, [20], with_paper=False)) == [(k, 20) for k in range(7, 15)]


def test_the_papers_sizes_are_named_and_added_once(phase1):
    assert pairs(PAPER.values()) == [(4, 20), (7, 50), (8, 20)]
    (one,) = read_phase1(phase1, [1.0])
    assert pairs(sizes_of(one, [20], with_paper=True)) == [
        *((4, 20), (5, 20), (6, 20), (7, 20), (8, 20)),
        (7, 50),
    ]


def test_the_shipped_report_of_phase_1_can_be_read():
    horizons = read_phase1(ROOT / 'results' / 'phase1.json', None)
    assert [horizon.tau_z for horizon in horizons] == [1.0, 2.0, 3.0, 4.0, 5.0]


def test_each_horizon_has_its_own_heads_and_all_share_windows_and_seeds(phase1):
    args = parse_args(['--windows', '20', '--seeds', '1', '2', '--steps', '7', '--plant', 'rk4'])
    runs = expand(study_of(args, read_phase1(phase1, None)))
    assert {run.model for run in runs} == {'incrt'}
    assert {(run.steps, run.plant, run.preset) for run in runs} == {(7, 'rk4', 'robust')}
    found = {(run.tau_z, run.heads, run.window, run.seed) for run in runs}
    expected = {1.0: range(4, 9), 2.0: range(7, 15)}
    assert found == {(t, k, 20, s) for t, heads in expected.items() for k in heads for s in (1, 2)}


@pytest.mark.parametrize(
    ('text', 'message'),
    [
        (None, 'cannot be read (No such file or directory); make one with'),
        ('{', 'not valid JSON'),
        ('[]', 'holds no records, so it is no report of Phase 1; make one with'),
        ('{"records": []}', 'holds no records'),
        ('{"records": [{"tau_z": 2.0, "k_star": 3}]}', "missing key 'phase2_heads'"),
        (json.dumps({'records': [record_of(2.0, 'x', [1, 1])]}), 'k_star: expected a whole'),
        (json.dumps({'records': [record_of(2.0, 3, [3, 2])]}), 'the least and the greatest K'),
        (json.dumps({'records': [record_of(2.0, 3, [0, 2])]}), 'the least and the greatest K'),
        (json.dumps({'records': [record_of(2.0, 3, [2])]}), 'the least and the greatest K'),
        (json.dumps({'records': [record_of(1.0, 3, [2, 3])]}), 'has tau_z = 1 s, not 2; leave'),
    ],
)
def test_a_report_that_cannot_be_used_says_what_to_do(tmp_path, capsys, text, message):
    path = tmp_path / 'phase1.json'
    if text is not None:
        path.write_text(text)
    assert main(['--phase1', str(path), '--tau-z', '2', '--out', str(tmp_path / 'out')]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert 'python -m training.phase1 --json' in error
    assert not (tmp_path / 'out').exists()


def study_with(phase1, deltas, parameters=None):
    """A study of tau_z = 1 s and its results, from delta by (heads, seed)."""
    seeds = sorted({seed for _, seed in deltas})
    args = parse_args(['--windows', '20', '--seeds', *map(str, seeds)])
    study = study_of(args, read_phase1(phase1, [1.0]))
    results = {}
    for run in expand(study):
        if (run.heads, run.seed) in deltas:
            facts = {'heads': run.heads, 'window': run.window, 'tau_z': 1.0, 'seed': run.seed}
            facts['num_parameters'] = (parameters or {}).get(run.heads, 1000 * run.heads)
            facts['delta_percent'] = deltas[run.heads, run.seed]
            results[run.name] = Run(RECORD | facts, run.name)
    return study, results


def test_the_best_mean_over_seeds_is_chosen(phase1):
    deltas = {(k, seed): -10.0 * k for k in (4, 5, 6, 7) for seed in (1, 2)}
    deltas |= {(8, 1): -99.0, (8, 2): 0.0}  # the best seed, not the best mean
    study, results = study_with(phase1, deltas)
    ranking = rank(study, 1.0, results)
    assert [row['heads'] for row in ranking] == [7, 6, 5, 8, 4]
    assert choose(ranking) == {'heads': 7, 'window': 20}
    assert ranking[3]['delta_mean'] == pytest.approx(-49.5)
    assert ranking[3]['delta_std'] == pytest.approx(70.0, rel=0.01)
    assert [row['name'] for row in ranking] == [None, None, None, 'paper 5 s', 'paper 1 s']


def test_of_equals_the_smaller_network_is_chosen(phase1):
    deltas = {(k, 1): -10.0 for k in range(4, 9)}
    parameters = {4: 5, 5: 4, 6: 3, 7: 2, 8: 1}
    study, results = study_with(phase1, deltas, parameters)
    assert choose(rank(study, 1.0, results)) == {'heads': 8, 'window': 20}


@pytest.mark.parametrize('is_missing', [True, False])
def test_a_size_with_a_lost_seed_is_last_however_good_the_others_are(phase1, is_missing):
    deltas = {(k, seed): -10.0 for k in range(4, 9) for seed in (1, 2)}
    deltas[4, 1] = -99.0
    if is_missing:
        del deltas[4, 2]
    else:
        deltas[4, 2] = None
    study, results = study_with(phase1, deltas)
    last = rank(study, 1.0, results)[-1]
    assert (last['heads'], last['delta_mean'], last['delta_std']) == (4, None, None)
    assert last['delta_by_seed'] == [-99.0, None]


def test_nothing_is_chosen_where_every_run_failed(phase1):
    study, _ = study_with(phase1, {(4, 1): -1.0})
    assert choose(rank(study, 1.0, {})) is None


@pytest.mark.parametrize('code', [0, 1])
def test_the_ranking_is_printed_and_written_even_if_a_run_failed(
    phase1, tmp_path, monkeypatch, capsys, code
):
    deltas = {(k, 42): -10.0 * k for k in range(4 + code, 9)}
    _, results = study_with(phase1, deltas)
    monkeypatch.setattr(grid, 'run_study', lambda *_: (code, results))
    words = ['--phase1', str(phase1), '--tau-z', '1', '--windows', '20', '--out', str(tmp_path)]
    assert main(words) == code
    found = json.loads((tmp_path / 'grid.json').read_text())
    (horizon,) = found['horizons']
    assert horizon['choice'] == {'heads': 8, 'window': 20}
    assert (horizon['tau_z'], horizon['k_star'], len(horizon['ranking'])) == (1.0, 8, 5)
    assert (found['seeds'], found['preset']) == ([42], 'robust')
    assert {'settings', 'versions', 'command'} <= set(found)
    out = capsys.readouterr().out
    assert 'tau_z = 1 s: Phase 1 leaves K = 4 to 8' in out
    assert '-80.0' in out
    assert ('1 lost' in out) == bool(code)


def test_a_stopped_grid_chooses_nothing(phase1, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(grid, 'run_study', lambda *_: (3, {}))
    assert main(['--phase1', str(phase1), '--out', str(tmp_path)]) == 3
    assert 'the same command goes on' in capsys.readouterr().err
    assert not (tmp_path / 'grid.json').exists()


def test_the_grid_consumes_a_report_of_phase_1_in_a_real_run_of_200_steps(tmp_path):
    report = write_phase1(tmp_path, record_of(2.0, 1, [1, 1]), record_of(5.0, 9, [5, 9]))
    where = ['--phase1', str(report), '--out', str(tmp_path / 'out'), '--jobs', '1']
    what = ['--tau-z', '2', '--windows', '5', '--steps', '200', '--plant', 'rk4']
    assert main([*where, *what, '--rollouts', '1']) == 0
    found = json.loads((tmp_path / 'out' / 'grid.json').read_text())
    (horizon,) = found['horizons']
    assert horizon['choice'] == {'heads': 1, 'window': 5}
    (row,) = horizon['ranking']
    (result,) = (tmp_path / 'out' / 'results').iterdir()
    record = json.loads(result.read_text())
    assert row['delta_mean'] == record['delta_percent']
    assert (record['heads'], record['window'], record['steps']) == (1, 5, 200)
    assert record['tau_z'] == 2.0
