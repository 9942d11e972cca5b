# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""Two independent simulators, one arm.

Tolerance: 1e-3 rad on every position of a 5 s baseline episode and 0.1 % on its RMSE. The two
differ by integrator, RK4 at 10 ms against semi-implicit Euler at 1 ms, whose position error is of
the order qdd dt / 2 (settling time of the loop) = 5 rad/s^2 * 0.5 ms * 0.2 s = 5e-4 rad. The
largest difference found over 300 rollouts was 5e-4 rad and 0.06 % of RMSE; the bound is double.
"""

from dataclasses import replace

import numpy as np
import pytest
from support.three_joints import FRICTION as OF_THREE

from metactl_ros.errors import ConfigError
from metactl_ros.metrics import tracking_rmse
from metactl_ros.settings import make_plant
from metactl_ros.sim.rollout import run_episode
from metactl_ros.sim.task import draw_evaluation
from training.judge.rollouts import fixed_gains

NUM_STEPS = 500


def baseline_log(settings, name, episode, num_steps=NUM_STEPS):
    plant = make_plant(name, settings)
    loop, policy = fixed_gains(settings)
    log = run_episode(plant, episode, policy, loop, num_steps)
    plant.close()
    return log


@pytest.mark.parametrize('tau_z_s', [1.0, 2.0, 5.0])
@pytest.mark.parametrize('payload_kg', [0.0, 1.5])
def test_baseline_trajectories_of_the_two_plants_agree(settings, tau_z_s, payload_kg):
    episodes = draw_evaluation(settings.plant.task, 42, payload_kg, 4, tau_z_s)
    rk4 = baseline_log(settings, 'rk4', episodes)
    for arm in range(4):
        bullet = baseline_log(settings, 'bullet', episodes.of_arm(arm))
        assert np.abs(bullet.q_rad - rk4.q_rad[:, arm]).max() < 1e-3
        rmse = [
            float(tracking_rmse(log_q, q))
            for log_q, q in (
                (bullet.q_desired_rad, bullet.q_rad),
                (rk4.q_desired_rad[:, arm], rk4.q_rad[:, arm]),
            )
        ]
        assert rmse[0] == pytest.approx(rmse[1], rel=1e-3)


PER_JOINT = {
    'coulomb_nm': (2.0, 0.8),
    'static_nm': (3.0, 1.0),
    'stribeck_velocity_radps': (0.1, 0.3),
    'smoothing_velocity_radps': (0.12, 0.2),
    'viscous_nmsprad': (0.5, 1.0),
    'memory_gain_nmprad': (4.6, 1.5),
}


def with_friction(settings, constants):
    friction = replace(settings.plant.friction, **constants)
    return replace(settings, plant=replace(settings.plant, friction=friction))


def test_the_two_plants_agree_on_friction_that_differs_between_joints(settings):
    other = with_friction(settings, PER_JOINT)
    episode = draw_evaluation(settings.plant.task, 42, 0.5, 1, 2.0).of_arm(0)
    rk4, bullet = (baseline_log(other, name, episode, 300) for name in ('rk4', 'bullet'))
    assert np.abs(bullet.q_rad - rk4.q_rad).max() < 1e-3
    plain = baseline_log(settings, 'rk4', episode, 300)
    assert np.abs(plain.q_rad - rk4.q_rad).max() > 1e-2


@pytest.mark.parametrize('name', ['rk4', 'bullet'])
def test_friction_with_equal_entries_is_that_of_one_number_to_the_bit(settings, name):
    friction = settings.plant.friction
    twice = {constant: (getattr(friction, constant),) * 2 for constant in PER_JOINT}
    episode = draw_evaluation(settings.plant.task, 42, 0.5, 1, 2.0).of_arm(0)
    one, each = (
        baseline_log(of, name, episode, 100) for of in (settings, with_friction(settings, twice))
    )
    np.testing.assert_array_equal(one.q_rad, each.q_rad)
    np.testing.assert_array_equal(one.effort_nm, each.effort_nm)


@pytest.mark.parametrize('name', ['rk4', 'bullet'])
def test_a_plant_refuses_friction_of_another_number_of_joints(settings, name):
    plant = make_plant(name, settings)
    with pytest.raises(ConfigError, match=r'Friction\.coulomb_nm: expected 2 entries.* found 3'):
        plant.set_friction(OF_THREE)
    plant.close()


@pytest.mark.parametrize('name', ['rk4', 'bullet'])
def test_the_same_seed_gives_the_same_numbers_and_another_seed_others(settings, name):
    same, again, other = (
        baseline_log(
            settings, name, draw_evaluation(settings.plant.task, s, 0.75, 1, 2.0).of_arm(0), 100
        )
        for s in (42, 42, 43)
    )
    np.testing.assert_array_equal(same.q_rad, again.q_rad)
    np.testing.assert_array_equal(same.effort_nm, again.effort_nm)
    assert not np.array_equal(same.q_rad, other.q_rad)


def test_the_baseline_touches_no_limit_after_the_first_step(settings):
    for payload in settings.plant.task.payload_levels_kg:
        episodes = draw_evaluation(settings.plant.task, 42, payload, 200, 2.0)
        log = baseline_log(settings, 'rk4', episodes)
        assert not log.is_limited[1:].any()
