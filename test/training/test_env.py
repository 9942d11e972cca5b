# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
from dataclasses import replace
import warnings

import numpy as np
import pytest
from stable_baselines3.common.env_checker import check_env

from metactl_ros.control.loop import ControlLoop
from metactl_ros.control.shield import project_all
from metactl_ros.dynamics.friction import memory_rate
from metactl_ros.metrics import LOST_ERROR_RAD
from metactl_ros.settings import make_plant
from metactl_ros.sim.rollout import run_episode, without_warmup
from metactl_ros.sim.task import draw_episode
from training.learn.env import ArmEnv, settled_memory

PLANTS = pytest.mark.parametrize('plant', ['rk4', 'bullet'])


@pytest.fixture
def make(settings):
    made = []

    def build(plant='rk4', **changes):
        options = {'tau_z_s': 2.0, 'num_rows': 50, 'reward_scale': 100.0, 'warm_start_share': 0.0}
        env = ArmEnv(settings, plant=plant, **(options | changes))
        made.append(env)
        return env

    yield build
    for env in made:
        env.close()


@PLANTS
def test_the_checker_of_stable_baselines_has_nothing_to_warn_of(make, plant):
    with warnings.catch_warnings():
        warnings.simplefilter('error')
        check_env(make(plant))


@PLANTS
def test_an_episode_is_the_rollout_of_the_evaluator_bit_for_bit(make, settings, plant):
    env, actions = make(plant), np.random.default_rng(0).uniform(-1, 1, (60, 8))
    env.reset(seed=5)
    episode = draw_episode(settings.plant.task, np.random.default_rng(5), 2.0)
    upcoming = iter(actions.astype(np.float32).astype(np.float64))
    loop = ControlLoop(settings.arm, without_warmup(settings.controller))
    rival = make_plant(plant, settings)
    log = run_episode(rival, episode, lambda _: next(upcoming), loop, 60)
    rival.close()
    observations = [env.step(action.astype(np.float32))[0] for action in actions]
    seen = np.array(observations).reshape(60, 50, 11)[:, -1, :2]
    np.testing.assert_array_equal(seen, log.q_rad[1:].astype(np.float32))


def test_an_arm_that_sags_goes_on_to_be_driven(make, settings):
    """The guard would take an error of 0.6 rad for a fault; an episode ends at 1.5 rad."""
    env = make()
    episode = draw_episode(settings.plant.task, np.random.default_rng(5), 2.0)
    far = replace(episode.start, q_rad=episode.start.q_rad + np.array([1.0, 0.0]))
    env.reset(options={'episode': replace(episode, start=far)})
    action = env.loop.nominal_action.astype(np.float32)
    errors = []
    for _ in range(200):
        row = env.step(action)[0].reshape(50, 11)[-1]
        errors.append(np.abs(row[4:6] - row[:2]).max())
    assert max(errors[:10]) > settings.controller.guard.tracking_error_rad
    assert max(errors[-50:]) < 0.4


def test_the_reward_is_the_scaled_squared_error_one_step_later(make):
    env = make(reward_scale=50.0)
    env.reset(seed=1)
    observation, reward, *_, info = env.step(env.loop.nominal_action.astype(np.float32))
    row = observation.reshape(50, 11)[-1].astype(np.float64)
    error = row[4:6] - row[:2]
    assert reward == pytest.approx(-50.0 * error @ error, rel=1e-4)
    assert info['reward_terms'] == {'tracking': reward, 'lost': 0.0}


def test_an_episode_is_truncated_after_500_steps_and_not_before(make):
    env = make()
    env.reset(seed=2)
    action = env.loop.nominal_action.astype(np.float32)
    ends = [env.step(action)[2:4] for _ in range(500)]
    assert ends[:-1] == [(False, False)] * 499
    assert ends[-1] == (False, True)


@pytest.mark.parametrize('state', [2.0, np.nan])
def test_a_lost_reference_terminates_with_the_stated_penalty(make, monkeypatch, state):
    env = make()
    env.reset(seed=3)
    real = env._plant.step

    def thrown_off(effort):
        found = real(effort)
        found.q_rad[0] += state
        return found

    monkeypatch.setattr(env._plant, 'step', thrown_off)
    observation, reward, terminated, truncated, _ = env.step(np.zeros(8, dtype=np.float32))
    assert (terminated, truncated) == (True, False)
    assert reward == -100.0 * 10 * LOST_ERROR_RAD**2
    assert np.all(np.isfinite(observation))


def test_a_warm_start_has_the_memory_of_an_arm_that_has_always_followed_its_reference(settings):
    friction, tau_z = settings.plant.friction, 2.0
    episode = draw_episode(settings.plant.task, np.random.default_rng(1), tau_z)
    memory = settled_memory(episode, friction.memory_gain_nmprad, tau_z)
    z, dt = np.zeros(2), 1e-3
    for k in range(-20_000, 0):
        middle = episode.reference.at((k + 0.5) * dt).qd_radps
        halfway = z + 0.5 * dt * memory_rate(friction, episode.reference.at(k * dt).qd_radps, z, 2)
        z = z + dt * memory_rate(friction, middle, halfway, tau_z)
    np.testing.assert_allclose(memory, z, rtol=0, atol=1e-3)


def test_warm_starts_come_as_often_as_asked(make):
    for share, expected in ((0.0, 0), (1.0, 20)):
        env = make(warm_start_share=share)
        env.reset(seed=4)
        warm = sum(
            bool(np.any(env._plant.memory_nm)) for _ in range(20) if env.reset() is not None
        )
        assert warm == expected


def test_the_half_space_in_action_space_is_the_one_the_shield_used(make):
    env = make()
    env.reset(seed=6)
    rng = np.random.default_rng(7)
    for _ in range(200):
        action = rng.uniform(-1, 1, 8).astype(np.float32)
        *_, info = env.step(action)
        space = info['half_space'].astype(np.float64)
        batch = (action[np.newaxis].astype(np.float64), space[np.newaxis, :-1], space[-1:])
        assert project_all(*batch)[2][0] == pytest.approx(info['distance'], abs=1e-5)
        assert info['was_moved'] == (info['distance'] > 1e-6)


def test_the_same_seed_gives_the_same_episode_and_another_seed_another(make):
    one, same, other = (make(warm_start_share=0.5).reset(seed=s)[0] for s in (1, 1, 2))
    np.testing.assert_array_equal(one, same)
    assert not np.array_equal(one, other)


@PLANTS
def test_an_environment_that_repeats_the_episode_under_way_goes_on_bit_for_bit(make, plant):
    env, again = make(plant, warm_start_share=0.5), make(plant, warm_start_share=0.5)
    actions = np.random.default_rng(9).uniform(-1, 1, (760, 8)).astype(np.float32)
    env.reset(seed=8)
    for action in actions[:200]:  # an episode that is not repeated
        env.step(action)
    env.reset()
    for action in actions[200:323]:
        env.step(action)
    again.np_random.bit_generator.state = env.drawn_from
    again.reset()
    for action in env.actions:
        again.step(action)
    for action in actions[323:]:
        one, two = env.step(action), again.step(action)
        np.testing.assert_array_equal(one[0], two[0])
        assert one[1:4] == two[1:4]
        if one[3]:
            np.testing.assert_array_equal(env.reset()[0], again.reset()[0])
    again.close()
