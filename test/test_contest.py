# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0

from dataclasses import replace

import numpy as np
import pytest

from metactl_ros.rivals import load_rivals
from metactl_ros.settings import load_settings, shipped_policy
from training.contest import LOST_ERROR_RAD, play, Player
from training.regimes import draw_cases, load_benchmark, Regime

SETTINGS = load_settings()
CASES = replace(load_benchmark().judging, rollouts=2, payloads_kg=(0.0, 1.5))
PLAIN = Regime(name='plain', meaning='as it is')
EPISODES = draw_cases(SETTINGS, PLAIN, CASES)
OBSERVER = Player('momentum_observer', load_rivals().momentum_observer)


def test_the_two_plants_and_a_batch_or_its_arms_agree():
    batch = play(SETTINGS, EPISODES, Player('ct'), 100)
    physics = play(SETTINGS, EPISODES, Player('ct'), 100, plant='bullet')
    np.testing.assert_allclose(physics.rmse_rad, batch.rmse_rad, rtol=0.005)
    assert batch.peak_effort_nm.shape == physics.peak_effort_nm.shape == (4, 2)
    assert not batch.is_lost.any()


def test_the_oracle_is_told_each_payload():
    heavy = play(SETTINGS, EPISODES, Player('oracle', load_rivals().oracle), 100)
    fixed = play(SETTINGS, EPISODES, Player('ct'), 100)
    assert (heavy.rmse_rad[2:] < 0.5 * fixed.rmse_rad[2:]).all()


def test_a_shield_that_counts_moves_nothing_but_counts_the_same_proposals():
    enforced = play(SETTINGS, EPISODES, OBSERVER, 50)
    counted = play(SETTINGS, EPISODES, OBSERVER, 50, 'count')
    assert counted.shield_activation.max() > 0.0
    assert (enforced.rmse_rad != counted.rmse_rad).any()


def test_a_bundle_takes_part():
    learned = play(SETTINGS, EPISODES, Player('learned', bundle=shipped_policy()), 100)
    fixed = play(SETTINGS, EPISODES, Player('ct'), 100)
    assert learned.rmse_rad.mean() < fixed.rmse_rad.mean()


def test_variation_is_that_of_both_efforts_per_second():
    class Steps:
        time_s = np.array([0.0, 0.01, 0.02, 0.03])
        q_rad = q_desired_rad = np.zeros((4, 1, 2))
        effort_nm = np.array([[[0.0, 0.0]], [[1.0, -2.0]], [[0.0, 0.0]]])
        was_moved = np.array([[True], [False], [False]])

    from training.contest import _outcome

    assert _outcome(Steps).variation_nmps == pytest.approx([6.0 / 0.02])
    assert _outcome(Steps).shield_activation == pytest.approx([1.0 / 3.0])


@pytest.mark.parametrize('far', [LOST_ERROR_RAD, np.nan, np.inf])
def test_an_arm_far_away_or_nowhere_is_lost(far):
    class Steps:
        time_s = np.array([0.0, 0.01, 0.02])
        q_desired_rad = np.zeros((3, 2, 2))
        q_rad = np.zeros((3, 2, 2))
        effort_nm = np.zeros((2, 2, 2))
        was_moved = np.zeros((2, 2), dtype=bool)

    from training.contest import _outcome

    Steps.q_rad[1, 1, 0] = far
    assert _outcome(Steps).is_lost.tolist() == [False, True]
