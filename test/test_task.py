# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
from dataclasses import replace

import numpy as np

from metactl_ros.plant.rk4_arm import Rk4Arm
from metactl_ros.task import draw_episode, draw_evaluation


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


def test_lattice_phases_scatter_less_over_seeds_than_independent_ones(settings):
    task, plant = settings.plant.task, Rk4Arm(settings.arm, settings.plant.friction, 100.0)

    def mean_sag(phase):
        """Return the mean over 20 rollouts of a quantity that depends on the phase."""
        episodes = draw_evaluation(task, 0, 1.5, 20, 2.0)
        reference = replace(episodes.reference, phase_rad=phase)
        at = reference.at(0.0)
        start = replace(episodes.start, q_rad=at.q_rad, qd_radps=at.qd_radps)
        plant.reset(start)
        return np.square(plant.step(np.zeros((20, 2))).qd_radps).mean()

    lattice = [
        mean_sag(draw_evaluation(task, s, 0.0, 20, 2.0).reference.phase_rad) for s in range(30)
    ]
    independent = [
        mean_sag(np.random.default_rng(s).uniform(0, 2 * np.pi, (20, 2))) for s in range(30)
    ]
    assert np.std(lattice) < 0.3 * np.std(independent)
