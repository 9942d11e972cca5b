# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""One episode through environment, in-process loop and node: the same efforts to the bit."""

from dataclasses import replace

import numpy as np
import pytest
from support import DOMAIN
from support.episodes import as_followed

from metactl_ros.bag.tick_log import read_ticks
from metactl_ros.baselines import BASELINES, load_classical, load_learned
from metactl_ros.control.loop import ControlLoop
from metactl_ros.control.modes import Mode
from metactl_ros.processes import loopback_environment, running, Setup
from metactl_ros.runtime.controller import with_full_window
from metactl_ros.settings import make_plant, policy_file, shipped_policy
from metactl_ros.sim.rollout import for_learning, run_episode, without_warmup
from training.learn.env import ArmEnv

STEPS = 300


@pytest.fixture(scope='module')
def setup():
    return Setup(plant='rk4', lockstep=True, seed=5, payload_kg=1.125, log_level='error')


@pytest.fixture(scope='module')
def bundle(settings):
    return load_learned(shipped_policy(), settings.arm, settings.controller)


@pytest.fixture(scope='module')
def in_process(setup, bundle, settings):
    loop = ControlLoop(settings.arm, with_full_window(bundle.controller))
    plant = make_plant('rk4', settings)
    return run_episode(plant, as_followed(setup.episode()), bundle.policy, loop, STEPS)


def test_the_policy_drives_from_the_end_of_the_warm_up_on(bundle, in_process):
    warmup = with_full_window(bundle.controller).modes.warmup_ticks
    assert 0 < warmup < STEPS // 2
    expected = [Mode.WARMUP] * warmup + [Mode.NOMINAL] * (STEPS - warmup)
    np.testing.assert_array_equal(in_process.modes, expected)


@pytest.mark.parametrize('name', ['adaptive', 'paper_sac'])
def test_the_environment_gives_the_efforts_of_the_in_process_loop(setup, settings, name):
    """Neither has a warm-up, and single precision is what the network sees in both."""
    bundle = load_learned(policy_file(name), settings.arm, settings.controller)
    loop = ControlLoop(settings.arm, for_learning(bundle.controller))
    plant = make_plant('rk4', settings)
    expected = run_episode(plant, setup.episode(), bundle.policy, loop, STEPS)
    window = bundle.controller.context.num_rows
    env, efforts = watched_env(replace(settings, controller=bundle.controller), window)
    observation, _ = env.reset(options={'episode': setup.episode()})
    for _ in range(STEPS):
        action = bundle.policy(observation.astype(np.float64).reshape(window, -1))
        observation, *_ = env.step(action)
    env.close()
    np.testing.assert_array_equal(efforts, expected.effort_nm)


@pytest.mark.parametrize('name', BASELINES)
def test_the_environment_of_a_rival_gives_the_efforts_of_the_in_process_loop(
    setup, settings, name
):
    controller, policy = load_classical(name, settings.controller, None, setup.payload_kg)
    loop = ControlLoop(settings.arm, without_warmup(controller))
    plant = make_plant('rk4', settings)
    expected = run_episode(plant, setup.episode(), policy, loop, STEPS).effort_nm
    window = controller.context.num_rows
    env, efforts = watched_env(replace(settings, controller=controller), window)
    observation, _ = env.reset(options={'episode': setup.episode()})
    for _ in range(STEPS):
        observation, *_ = env.step(policy(observation.reshape(window, -1)))
    env.close()
    np.testing.assert_array_equal(efforts, expected)


def watched_env(settings, num_rows):
    """Return an environment and the efforts that its plant is given."""
    env = ArmEnv(
        settings,
        plant='rk4',
        tau_z_s=2.0,
        num_rows=num_rows,
        reward_scale=1.0,
        warm_start_share=0.0,
    )
    efforts, real_step = [], env._plant.step
    env._plant.step = lambda effort: (efforts.append(effort), real_step(effort))[1]
    return env, efforts


@pytest.mark.ros
def test_the_node_in_lockstep_gives_the_efforts_of_the_in_process_loop(
    setup, in_process, tmp_path
):
    pytest.importorskip('rclpy', reason="needs ROS: pip install 'metactl_ros[ros]'")
    from support.ros_peer import wait_until

    bag = tmp_path / 'bag'
    with running(replace(setup, record=bag), loopback_environment(DOMAIN)):
        wait_until(lambda: _num_ticks(bag) > STEPS, timeout_s=60.0)
    log = read_ticks(bag)
    np.testing.assert_array_equal(log.q_rad[:STEPS], in_process.q_rad[:STEPS])
    np.testing.assert_array_equal(log.shield['mode'][:STEPS], in_process.modes)
    np.testing.assert_array_equal(log.gains[:STEPS], in_process.gains)
    np.testing.assert_array_equal(log.effort_nm[:STEPS], in_process.effort_nm)


def _num_ticks(bag):
    try:
        return len(read_ticks(next(bag.glob('*.mcap'))).stamp_ns)
    except Exception:  # not yet there, or not yet complete
        return 0
