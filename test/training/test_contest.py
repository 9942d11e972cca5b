# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0

from dataclasses import replace

import numpy as np
import pytest

from metactl_ros.baselines import constant_policy, load_rivals
from metactl_ros.control.loop import ControlLoop
from metactl_ros.metrics import LOST_ERROR_RAD, tracking_rmse
from metactl_ros.plants import make_plant
from metactl_ros.settings import load_settings, shipped_policy
from metactl_ros.sim.rollout import run_episode, without_warmup
from training.judge.contest import play, Player
from training.judge.regimes import draw_cases, load_benchmark, Regime, settings_in

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


def test_a_shield_that_only_counts_lets_the_arm_move_otherwise():
    enforced = play(SETTINGS, EPISODES, OBSERVER, 50)
    counted = play(SETTINGS, EPISODES, OBSERVER, 50, 'count')
    is_moved = (counted.shield_activation > 0.0) & (enforced.shield_activation > 0.0)
    assert is_moved.any()
    assert (enforced.rmse_rad != counted.rmse_rad)[is_moved].all()


def test_a_bundle_takes_part():
    learned = play(SETTINGS, EPISODES, Player('learned', bundle=shipped_policy()), 100)
    fixed = play(SETTINGS, EPISODES, Player('ct'), 100)
    assert learned.rmse_rad.mean() < fixed.rmse_rad.mean()


def test_variation_is_that_of_both_efforts_per_second():
    class Steps:
        time_s = np.array([0.0, 0.01, 0.02, 0.03])
        true_q_rad = q_desired_rad = np.zeros((4, 1, 2))
        effort_nm = np.array([[[0.0, 0.0]], [[1.0, -2.0]], [[0.0, 0.0]]])
        was_moved = np.array([[True], [False], [False]])

    from training.judge.contest import _outcome

    assert _outcome(Steps).variation_nmps == pytest.approx([6.0 / 0.02])
    assert _outcome(Steps).shield_activation == pytest.approx([1.0 / 3.0])


@pytest.mark.parametrize('far', [LOST_ERROR_RAD, np.nan, np.inf])
def test_an_arm_far_away_or_nowhere_is_lost(far):
    class Steps:
        time_s = np.array([0.0, 0.01, 0.02])
        q_desired_rad = np.zeros((3, 2, 2))
        true_q_rad = np.zeros((3, 2, 2))
        effort_nm = np.zeros((2, 2, 2))
        was_moved = np.zeros((2, 2), dtype=bool)

    from training.judge.contest import _outcome

    Steps.true_q_rad[1, 1, 0] = far
    assert _outcome(Steps).is_lost.tolist() == [False, True]


def test_errors_are_those_of_the_arm_and_not_of_its_sensors():
    late = Regime(name='late', meaning='states 20 ms late', transport_delay_s=0.02)
    settings = settings_in(SETTINGS, late, ())
    loop = ControlLoop(settings.arm, without_warmup(settings.controller))
    fixed = constant_policy(loop.nominal_action)
    log = run_episode(make_plant('rk4', settings), EPISODES, fixed, loop, 50)
    np.testing.assert_array_equal(log.q_rad[2:], log.true_q_rad[:-2])
    found = play(settings, EPISODES, Player('ct'), 50).rmse_rad
    np.testing.assert_array_equal(found, tracking_rmse(log.q_desired_rad, log.true_q_rad))
    assert (found != tracking_rmse(log.q_desired_rad, log.q_rad)).all()
