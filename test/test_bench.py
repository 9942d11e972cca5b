# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""The kept figures of `make bench` meet their goals."""

import json
from pathlib import Path

import pytest

KEPT = json.loads((Path(__file__).resolve().parents[1] / 'results' / 'bench.json').read_text())


@pytest.mark.parametrize(
    ('figure', 'least', 'most'),
    [
        ('plant_bullet_steps_per_s', 4000.0, None),
        ('plant_rk4_ratio_n1024', 50.0, None),
        ('control_step_p99_us', None, 150.0),
        ('control_step_rss_growth_kb_per_million', None, 1024.0),
    ],
)
def test_a_kept_figure_meets_its_goal(figure, least, most):
    assert least is None or KEPT[figure] >= least
    assert most is None or KEPT[figure] <= most
