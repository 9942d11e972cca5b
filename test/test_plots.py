# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""When modes are shown to have been, and in which colours."""

from itertools import combinations

from matplotlib.colors import to_rgb
import numpy as np
import pytest

from metactl_ros.control.modes import Mode
from metactl_ros.evaluation.plots import mode_spans, SHADES


def test_a_mode_lasts_until_the_next_tick_and_the_last_one_for_a_usual_period():
    time_s = np.array([0.0, 0.1, 0.2, 0.7, 0.8])
    spans = mode_spans(time_s, np.array([1, 0, 0, 5, 1]))
    begin_to_end = [(0.0, 0.1), (0.1, 0.7), (0.7, 0.8), (0.8, pytest.approx(0.9))]
    assert [mode.name for mode, *_ in spans] == ['WARMUP', 'NOMINAL', 'FAULT', 'WARMUP']
    assert [tuple(ends) for _, *ends in spans] == begin_to_end
    assert mode_spans(np.array([3.0]), np.array([2])) == [(Mode.FALLBACK, 3.0, 3.0)]


def test_shades_are_pale_but_no_two_are_alike():
    assert SHADES[Mode.NOMINAL] == to_rgb('white')
    lightness = [np.dot(SHADES[mode], [0.2126, 0.7152, 0.0722]) for mode in Mode]
    assert lightness == sorted(lightness, reverse=True)  # the graver the darker
    assert lightness[-1] > 0.5
    for a, b in combinations(SHADES.values(), 2):
        assert np.linalg.norm(np.subtract(a, b)) > 0.1
