# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
from dataclasses import replace

import numpy as np

from metactl_ros.metrics import tracking_rmse
from metactl_ros.settings import make_plant
from metactl_ros.sim.rollout import run_episode
from metactl_ros.sim.task import draw_episode, draw_evaluation
from training.judge.rollouts import fixed_gains


def test_the_same_seed_draws_the_same_episode_and_another_seed_another(settings):
    task = settings.plant.task
    one, same, other = (draw_episode(task, np.random.default_rng(seed), 2.0) for seed in (3, 3, 4))
    np.testing.assert_array_equal(one.start.q_rad, same.start.q_rad)
    assert one.payload_estimate_kg == same.payload_estimate_kg
    assert not np.array_equal(one.start.q_rad, other.start.q_rad)


def test_draws_follow_the_stated_distributions(settings):
    task, rng = settings.plant.task, np.random.default_rng(0)
    drawn = [draw_episode(task, rng, 2.0) for _ in range(2000)]
    errors = np.array([d.reference.at(0.0).q_rad - d.start.q_rad for d in drawn])
    rates = np.array([d.reference.at(0.0).qd_radps - d.start.qd_radps for d in drawn])
    payloads = np.array([d.start.payload_kg for d in drawn])
    estimates = np.array([d.payload_estimate_kg for d in drawn])
    # Standard error of a standard deviation from 4,000 normal draws: 1.1 %; five of them.
    np.testing.assert_allclose(errors.std(), task.initial_error_std_rad, rtol=0.06)
    np.testing.assert_allclose(rates.std(), task.initial_velocity_error_std_radps, rtol=0.06)
    np.testing.assert_allclose(
        (estimates - payloads).std(), task.payload_estimate_std_kg, rtol=0.08
    )
    assert payloads.min() >= 0.0
    assert payloads.max() <= task.payload_max_kg
    np.testing.assert_allclose(payloads.mean(), task.payload_max_kg / 2, rtol=0.05)


def test_payload_levels_share_phases_and_initial_errors(settings):
    light, heavy = (draw_evaluation(settings.plant.task, 42, p, 20, 2.0) for p in (0.0, 1.5))
    np.testing.assert_array_equal(light.reference.phase_rad, heavy.reference.phase_rad)
    np.testing.assert_array_equal(light.start.q_rad, heavy.start.q_rad)
    np.testing.assert_array_equal(light.start.payload_kg, 0.0)
    np.testing.assert_array_equal(heavy.start.payload_kg, 1.5)


def test_one_arm_of_a_batch_keeps_its_episode(settings):
    batch = draw_evaluation(settings.plant.task, 42, 0.75, 20, 5.0)
    alone = batch.of_arm(7)
    np.testing.assert_array_equal(alone.reference.at(1.3).q_rad, batch.reference.at(1.3).q_rad[7])
    np.testing.assert_array_equal(alone.start.qd_radps, batch.start.qd_radps[7])
    assert alone.start.tau_z_s == 5.0
    assert alone.payload_estimate_kg == batch.payload_estimate_kg[7]


def test_the_baseline_scatters_less_over_seeds_with_lattice_phases(settings):
    plant = make_plant('rk4', settings)
    loop, policy = fixed_gains(settings)

    def mean_rmse(episodes):
        log = run_episode(plant, episodes, policy, loop, 200)
        return tracking_rmse(log.q_desired_rad, log.q_rad).mean()

    def with_independent_phases(episodes, seed):
        phase = np.random.default_rng(1000 + seed).uniform(0, 2 * np.pi, (20, 2))
        reference = replace(episodes.reference, phase_rad=phase)
        before, now = episodes.reference.at(0.0), reference.at(0.0)
        start = replace(
            episodes.start,
            q_rad=episodes.start.q_rad - before.q_rad + now.q_rad,
            qd_radps=episodes.start.qd_radps - before.qd_radps + now.qd_radps,
        )
        return replace(episodes, reference=reference, start=start)

    drawn = [draw_evaluation(settings.plant.task, seed, 1.5, 20, 2.0) for seed in range(12)]
    lattice = [mean_rmse(episodes) for episodes in drawn]
    independent = [mean_rmse(with_independent_phases(e, k)) for k, e in enumerate(drawn)]
    assert np.std(lattice) < 0.33 * np.std(independent)
