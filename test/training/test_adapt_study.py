# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""The comparison of heads, windows and networks of the adaptive law."""

import json

import pytest

from training import adapt, adapt_study
from training.adaptive import held_out, learner
from training.adaptive.network import Shape


@pytest.fixture
def quick(monkeypatch):
    """Two variants, few arms, short episodes, no compiler."""
    monkeypatch.setattr(learner, 'LONG_TICKS', 8)
    monkeypatch.setattr(learner, 'SHORT_TICKS', 8)
    monkeypatch.setattr(adapt, 'compiled_tick', lambda: adapt.segments.tick)
    judge = held_out.judge
    monkeypatch.setattr(adapt, 'judge', lambda law: judge(law, num_arms=6, num_ticks=40))
    variants = {'usual': Shape(window=5), 'none': Shape(kind='none', window=5)}
    monkeypatch.setattr(adapt_study, 'VARIANTS', variants)


def test_every_variant_is_trained_judged_and_kept(quick, tmp_path, capsys):
    out, runs = tmp_path / 'ablation.json', tmp_path / 'runs'
    command = ['--updates', '2', '--runs', str(runs), '--out', str(out)]
    assert adapt_study.main(command) == 0
    rows = json.loads(out.read_text())['rows']
    assert [row['name'] for row in rows] == ['usual', 'none']
    assert rows[0]['num_parameters'] > rows[1]['num_parameters']
    assert 'log RMSE' in capsys.readouterr().out
    results = [path.stat().st_mtime_ns for path in sorted(runs.glob('*/result.json'))]
    assert adapt_study.main(command) == 0  # what is done is kept
    assert [path.stat().st_mtime_ns for path in sorted(runs.glob('*/result.json'))] == results


def test_each_variant_differs_from_the_shipped_one_in_one_thing():
    usual, *others = adapt_study.VARIANTS.values()
    assert usual == Shape()
    for other in others:
        differs = [
            name
            for name in ('kind', 'heads', 'window', 'hidden')
            if getattr(other, name) != getattr(usual, name)
        ]
        assert len(differs) == 1


def finished(folder, seed, num_lost=0):
    """Leave what a finished and calibrated run leaves."""
    folder.mkdir()
    result = {'run': {'seed': seed}, 'best': {'num_lost': 1}, 'cpu_minutes': 20.0}
    (folder / 'result.json').write_text(json.dumps(result))
    regime = {
        **{'regime': 'tau_2', 'rmse_mrad': 2.0 + seed, 'num_lost': num_lost, 'num_arms': 30},
        **{'shield_activation': 0.0, 'coverage': 0.99},
    }
    fitted = {'error_radius_rad': 0.01}
    found = {'rho_nm': [0.1, 0.1], 'fitted': fitted, 'regimes': [regime]}
    (folder / 'calibration.json').write_text(json.dumps(found))
    return str(folder)


def test_seeds_are_reported_in_order_with_what_they_lose(tmp_path, capsys):
    out = tmp_path / 'seeds.json'
    folders = [finished(tmp_path / 'b', 2, num_lost=3), finished(tmp_path / 'a', 1)]
    assert adapt_study.main(['--seeds', *folders, '--out', str(out)]) == 0
    rows = json.loads(out.read_text())['rows']
    assert [row['seed'] for row in rows] == [1, 2]
    assert rows[1]['regimes'][0]['num_lost'] == 3
    assert rows[0]['error_radius_mrad'] == 10.0
    assert '4.00 (3 lost)' in ' '.join(capsys.readouterr().out.split())


def test_a_run_that_is_not_calibrated_is_refused_with_the_command(tmp_path, capsys):
    folder = finished(tmp_path / 'a', 1)
    (tmp_path / 'a' / 'calibration.json').unlink()
    assert adapt_study.main(['--seeds', folder, '--out', str(tmp_path / 'x.json')]) == 2
    assert 'python -m training.calibrate --run' in ' '.join(capsys.readouterr().err.split())
