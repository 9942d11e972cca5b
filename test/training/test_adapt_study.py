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
