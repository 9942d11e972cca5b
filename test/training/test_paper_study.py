# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""The study of the paper's experiments, as config/studies/paper.yaml lists it."""

from collections import Counter
from pathlib import Path

from metactl_ros.settings import load_file
from training.judge.study import expand, Study

ROOT = Path(__file__).resolve().parents[2]
RUNS = expand(load_file(Study, ROOT / 'config/studies/paper.yaml', ''))


def test_the_papers_study_has_the_60_runs_of_its_table():
    cells = Counter((run.tau_z, run.model, run.heads, run.window) for run in RUNS)
    table = {
        (1.0, 'incrt', 4, 20): 10,
        (2.0, 'incrt', 7, 50): 5,
        (5.0, 'incrt', 8, 20): 10,
        (1.0, 'transformer', 4, 20): 10,
        (2.0, 'transformer', 4, 20): 5,
        (5.0, 'transformer', 4, 20): 10,
        (2.0, 'transformer', 4, 50): 5,
        (5.0, 'transformer', 4, 50): 5,
    }
    assert sum(table.values()) == 60
    assert {cell: cells[cell] for cell in table} == table
    assert {(run.steps, run.plant, run.preset) for run in RUNS} == {(50_000, 'bullet', 'paper')}


def test_the_papers_study_begins_with_what_is_most_worth_reading():
    first = [(run.model, run.heads, run.window, run.tau_z, run.seed) for run in RUNS[:33]]
    three, five = range(42, 45), range(42, 47)
    assert first == [
        *(('incrt', 1, 20, tau_z, seed) for tau_z in (1.0, 2.0, 5.0) for seed in three),
        *(('incrt', 4, 20, 1.0, seed) for seed in five),
        *(('incrt', 7, 50, 2.0, seed) for seed in five),
        *(('incrt', 8, 20, 5.0, seed) for seed in five),
        *(('transformer', 4, 20, tau_z, seed) for tau_z in (1.0, 2.0, 5.0) for seed in three),
    ]


def test_the_papers_study_has_every_cell_of_its_ablation():
    found = {(run.model, run.heads, run.window, run.tau_z) for run in RUNS if run.seed == 42}
    models = ('incrt', 'attention_l2', 'attention_l2_ffn', 'attention_l3')
    horizons = ((7, 2.0), (8, 5.0))
    assert found >= {
        (model, heads, window, tau_z)
        for model in models
        for window in (20, 50, 100)
        for heads, tau_z in horizons
    }
