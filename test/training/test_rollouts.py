# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0

from dataclasses import replace

import numpy as np
import pytest
from rich.console import Console
from support.trials import a_trial, CASES, PLAIN

from metactl_ros.baselines import BASELINES, ConstantPolicy, ControllerSpec, load_spec
from metactl_ros.control.loop import ControlLoop
from metactl_ros.metrics import LOST_ERROR_RAD, tracking_rmse
from metactl_ros.settings import load_settings, make_plant, shipped_policy
from metactl_ros.sim.rollout import run_episode, without_warmup
from metactl_ros.sim.task import draw_evaluation
from training.benchmark import draw_cases, Regime, settings_in
from training.commands import run_jobs
from training.judge.rollouts import (
    Conditions,
    evaluate_controller,
    measure,
    prepare,
    run_trial,
    settings_of_twin,
)

SETTINGS = load_settings()
EPISODES = draw_cases(SETTINGS, PLAIN, CASES)
FIXED = ControllerSpec('ct')
OBSERVER = load_spec('momentum_observer')


def test_the_two_plants_and_a_batch_or_its_arms_agree():
    batch = evaluate_controller(FIXED, SETTINGS, EPISODES, 100)
    physics = evaluate_controller(FIXED, SETTINGS, EPISODES, 100, Conditions(plant='bullet'))
    np.testing.assert_allclose(physics.rmse_rad, batch.rmse_rad, rtol=0.005)
    assert batch.peak_effort_nm.shape == physics.peak_effort_nm.shape == (4, 2)
    assert not batch.is_lost.any()


def test_the_oracle_is_told_each_payload():
    heavy = evaluate_controller(load_spec('oracle'), SETTINGS, EPISODES, 100)
    fixed = evaluate_controller(FIXED, SETTINGS, EPISODES, 100)
    assert (heavy.rmse_rad[2:] < 0.5 * fixed.rmse_rad[2:]).all()


def test_a_shield_that_only_counts_lets_the_arm_move_otherwise():
    best = load_spec('ct_best')
    enforced = evaluate_controller(best, SETTINGS, EPISODES, 50)
    counted = evaluate_controller(best, SETTINGS, EPISODES, 50, Conditions(enforcement='count'))
    is_moved = (counted.shield_activation > 0.0) & (enforced.shield_activation > 0.0)
    assert is_moved.any()
    assert (enforced.rmse_rad != counted.rmse_rad)[is_moved].all()


def test_a_shield_that_counts_on_the_estimate_does_not_move_an_observer():
    observer = evaluate_controller(OBSERVER, SETTINGS, EPISODES, 100)
    assert not observer.shield_activation.any()


def test_a_bundle_takes_part():
    spec = ControllerSpec('learned', learned=shipped_policy())
    learned = evaluate_controller(spec, SETTINGS, EPISODES, 100)
    fixed = evaluate_controller(FIXED, SETTINGS, EPISODES, 100)
    assert learned.rmse_rad.mean() < fixed.rmse_rad.mean()


def test_variation_is_that_of_both_efforts_per_second():
    class Steps:
        time_s = np.array([0.0, 0.01, 0.02, 0.03])
        true_q_rad = q_desired_rad = np.zeros((4, 1, 2))
        effort_nm = np.array([[[0.0, 0.0]], [[1.0, -2.0]], [[0.0, 0.0]]])
        is_limited = np.zeros((3, 1, 2), dtype=bool)
        was_moved = np.array([[True], [False], [False]])

    assert measure(Steps).variation_nmps == pytest.approx([6.0 / 0.02])
    assert measure(Steps).shield_activation == pytest.approx([1.0 / 3.0])


@pytest.mark.parametrize('far', [LOST_ERROR_RAD, np.nan, np.inf])
def test_an_arm_far_away_or_nowhere_is_lost(far):
    class Steps:
        time_s = np.array([0.0, 0.01, 0.02])
        q_desired_rad = np.zeros((3, 2, 2))
        true_q_rad = np.zeros((3, 2, 2))
        effort_nm = np.zeros((2, 2, 2))
        is_limited = np.zeros((2, 2, 2), dtype=bool)
        was_moved = np.zeros((2, 2), dtype=bool)

    Steps.true_q_rad[1, 1, 0] = far
    assert measure(Steps).is_lost.tolist() == [False, True]


def test_errors_are_those_of_the_arm_and_not_of_its_sensors():
    late = Regime(name='late', meaning='states 20 ms late', transport_delay_s=0.02)
    settings = settings_in(SETTINGS, late, ())
    loop = ControlLoop(settings.arm, without_warmup(settings.controller))
    fixed = ConstantPolicy(loop.nominal_action)
    log = run_episode(make_plant('rk4', settings), EPISODES, fixed, loop, 50)
    np.testing.assert_array_equal(log.q_rad[2:], log.true_q_rad[:-2])
    found = evaluate_controller(FIXED, settings, EPISODES, 50).rmse_rad
    np.testing.assert_array_equal(found, tracking_rmse(log.q_desired_rad, log.true_q_rad))
    assert (found != tracking_rmse(log.q_desired_rad, log.q_rad)).all()


def test_an_arm_that_is_pushed_away_is_lost(settings, monkeypatch):
    still = run_trial(settings, a_trial())
    assert not still.is_lost.any()
    monkeypatch.setattr('metactl_ros.metrics.LOST_ERROR_RAD', 1e-3)
    assert run_trial(settings, a_trial()).is_lost.all()


def test_one_process_gives_what_two_give(settings):
    jobs = [(settings, a_trial(payload_kg=payload)) for payload in (0.0, 1.5)]
    quiet = Console(quiet=True)
    one, two = (run_jobs(run_trial, jobs, number, quiet, title='') for number in (1, 2))
    for here, there in zip(one, two, strict=True):
        np.testing.assert_array_equal(here.rmse_rad, there.rmse_rad)
    assert one[0].rmse_rad.mean() < one[1].rmse_rad.mean()


@pytest.mark.parametrize('name', BASELINES)
def test_every_baseline_beats_the_fixed_gains(settings, name):
    trial = a_trial(num_steps=60, payload_kg=1.5)
    fixed = run_trial(settings, trial).rmse_rad
    found = run_trial(settings, replace(trial, spec=load_spec(name))).rmse_rad
    assert np.isfinite(found).all()
    assert found.mean() < fixed.mean()


def test_the_oracle_is_told_payload_and_memory_of_its_episodes(settings):
    spec, task = load_spec('oracle'), settings.plant.task
    episodes = draw_evaluation(task, 1, payload_kg=1.5, num_rollouts=2, tau_z_s=5.0)
    told = prepare(spec, settings, episodes).controller.estimator.oracle
    assert (told.payload_kg, told.tau_z_s) == (1.5, 5.0)
    assert told.friction == settings.plant.friction
    forgetful = settings_of_twin(settings, 'without_memory')
    without = prepare(spec, forgetful, episodes).controller.estimator.oracle
    assert without.friction.memory_gain_nmprad == 0.0
