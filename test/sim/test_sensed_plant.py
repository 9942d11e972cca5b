# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
from dataclasses import replace

import numpy as np
import pytest
from support.episodes import start

from metactl_ros.errors import ConfigError
from metactl_ros.settings import make_plant
from metactl_ros.sim.plant import SensedPlant, whole_periods

EFFORT = np.array([60.0, 15.0])


def sensed(settings, name='rk4', **changes):
    sensing = replace(settings.plant.sensing, **changes)
    plant = make_plant(name, replace(settings, plant=replace(settings.plant, sensing=sensing)))
    assert isinstance(plant, SensedPlant)
    return plant


def run(plant, begin, num_steps=30, effort=EFFORT):
    states = [plant.reset(begin)]
    shape = np.shape(begin.q_rad)
    states += [plant.step(np.broadcast_to(effort, shape)) for _ in range(num_steps)]
    plant.close()
    return states


def test_without_effects_the_state_is_the_true_one(settings):
    states = run(sensed(settings), start([0.1, 0.2]))
    bare = run(sensed(settings)._plant, start([0.1, 0.2]))
    for seen, true in zip(states, bare, strict=True):
        np.testing.assert_array_equal(seen.q_rad, true.q_rad)
        np.testing.assert_array_equal(seen.qd_radps, true.qd_radps)


@pytest.mark.parametrize('name', ['rk4', 'bullet'])
def test_noise_follows_its_seed_and_size_on_both_plants(settings, name):
    begin = start([0.1, 0.2])
    quiet = run(sensed(settings, name), begin, 300)
    noisy = [
        run(
            sensed(settings, name, velocity_noise_radps=0.05),
            replace(begin, noise_seed=np.asarray(seed)),
            300,
        )
        for seed in (1, 1, 2)
    ]
    noise = np.array(
        [[s.qd_radps - q.qd_radps for s, q in zip(r, quiet, strict=True)] for r in noisy]
    )
    np.testing.assert_array_equal(noise[0], noise[1])
    assert not np.array_equal(noise[0], noise[2])
    assert noise[0].std() == pytest.approx(0.05, rel=0.15)
    assert abs(np.corrcoef(noise[0, :-1, 0], noise[0, 1:, 0])[0, 1]) < 0.2


def test_both_plants_draw_the_same_noise(settings):
    begin = replace(start([0.1, 0.2]), noise_seed=np.asarray(5))
    first = {
        name: run(sensed(settings, name, velocity_noise_radps=0.05), begin, 0)[0]
        for name in ('rk4', 'bullet')
    }
    np.testing.assert_array_equal(first['rk4'].qd_radps, first['bullet'].qd_radps)


def test_a_noisy_batch_equals_its_arms_one_by_one(settings):
    begin = replace(start([[0.1, 0.2], [0.3, 0.4]]), noise_seed=np.array([7, 8]))
    together = run(sensed(settings, velocity_noise_radps=0.1), begin, 300)[-1]
    for arm in range(2):
        alone = replace(start(begin.q_rad[arm]), noise_seed=begin.noise_seed[arm])
        last = run(sensed(settings, velocity_noise_radps=0.1), alone, 300)[-1]
        np.testing.assert_array_equal(last.qd_radps, together.qd_radps[arm])


def test_an_encoder_reports_whole_counts_and_their_differences(settings):
    count = 2 * np.pi / 2**12
    states = run(sensed(settings, encoder_bits=12), start([0.1, 0.2], qd_radps=[0.5, -0.5]))
    q = np.array([s.q_rad for s in states])
    np.testing.assert_allclose(q / count, np.round(q / count), rtol=0, atol=1e-9)
    qd = np.array([s.qd_radps for s in states])
    np.testing.assert_allclose(qd[1:], np.diff(q, axis=0) / 0.01, rtol=0, atol=1e-9)
    assert np.abs(qd[0] - [0.5, -0.5]).max() <= count / 0.01


def test_delay_shows_old_positions_under_the_present_stamp(settings):
    prompt = run(sensed(settings), start([0.1, 0.2]))
    late = run(sensed(settings, transport_delay_s=0.02), start([0.1, 0.2]))
    for k in range(len(late)):
        np.testing.assert_array_equal(late[k].q_rad, prompt[max(k - 2, 0)].q_rad)
        assert late[k].stamp_ns == prompt[k].stamp_ns


def test_a_delay_between_two_periods_is_refused():
    with pytest.raises(ConfigError, match=r'expected a multiple of 0\.01 s, found 0\.015'):
        whole_periods(0.015, 0.01)


def test_motors_deliver_no_more_than_they_can(settings):
    weak = run(sensed(settings, actuator_limit_nm=(20.0, 5.0)), start([0.1, 0.2]))
    limited = run(sensed(settings), start([0.1, 0.2]), effort=np.array([20.0, 5.0]))
    np.testing.assert_array_equal(weak[-1].q_rad, limited[-1].q_rad)
    push_down = run(
        sensed(settings, actuator_limit_nm=(20.0, 5.0)), start([0.1, 0.2]), effort=-EFFORT
    )
    reference = run(sensed(settings), start([0.1, 0.2]), effort=np.array([-20.0, -5.0]))
    np.testing.assert_array_equal(push_down[-1].q_rad, reference[-1].q_rad)


@pytest.mark.parametrize('name', ['rk4', 'bullet'])
def test_the_payload_steps_at_its_time_and_never_below_zero(settings, name):
    stepping = sensed(settings, name, payload_step_at_s=0.1, payload_step_kg=-2.0)
    stepped = [stepping.reset(start([0.1, 0.2], payload_kg=1.0))]
    stepped += [stepping.step(EFFORT) for _ in range(10)]
    memory = stepping.memory_nm
    stepped.append(stepping.step(EFFORT))
    stepping.close()
    heavy = run(sensed(settings, name), start([0.1, 0.2], payload_kg=1.0))
    np.testing.assert_array_equal(stepped[10].q_rad, heavy[10].q_rad)
    assert np.abs(stepped[11].q_rad - heavy[11].q_rad).max() > 1e-5
    # From the step on it is the arm without payload.
    light = sensed(settings, name)
    light.reset(start(stepped[10].q_rad, stepped[10].qd_radps, memory, payload_kg=0.0))
    np.testing.assert_allclose(light.step(EFFORT).q_rad, stepped[11].q_rad, rtol=0, atol=1e-9)
    light.close()


@pytest.mark.parametrize('name', ['rk4', 'bullet'])
def test_the_memory_horizon_drifts_from_its_start_to_its_end(settings, name):
    drifting = sensed(settings, name, tau_z_drift_to_s=5.0, tau_z_drift_over_s=0.1)
    drifting.reset(start([0.1, 0.2], memory_nm=[3.0, 3.0], tau_z_s=1.0))
    memory = [drifting.memory_nm[0]]
    for _ in range(30):
        drifting.step(np.array([47.0, 14.0]))
        memory.append(drifting.memory_nm[0])
    drifting.close()
    settled = sensed(settings, name)
    settled.reset(start([0.1, 0.2], memory_nm=[3.0, 3.0], tau_z_s=1.0))
    settled.step(np.array([47.0, 14.0]))
    assert memory[1] == settled.memory_nm[0]
    settled.set_conditions(np.asarray(0.0), np.asarray(5.0))
    settled.step(np.array([47.0, 14.0]))
    second = settled.memory_nm[0]
    settled.close()
    assert memory[2] < second  # not yet at 5 s: it still decays faster


def test_a_payload_step_that_is_not_finite_is_refused(settings):
    with pytest.raises(ConfigError, match='payload_step_kg'):
        replace(settings.plant.sensing, payload_step_kg=float('inf'))
