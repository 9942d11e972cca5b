# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
from dataclasses import replace

import numpy as np
import pytest
from support.episodes import start

from metactl_ros.errors import PlantError
from metactl_ros.sim.rk4_arm import Rk4Arm


def test_energy_is_conserved_without_friction(settings, no_friction):
    plant = Rk4Arm(settings.arm, no_friction, 1000.0)
    state = plant.reset(start([[0.3, 0.4], [1.2, -2.0]], payload_kg=[0.0, 1.5]))
    body = settings.arm.body(np.array([0.0, 1.5]))
    before = body.mechanical_energy(state.q_rad, state.qd_radps)
    for _ in range(2000):
        state = plant.step(np.zeros((2, 2)))
    after = body.mechanical_energy(state.q_rad, state.qd_radps)
    assert np.abs(state.qd_radps).max() > 1.0
    np.testing.assert_allclose(after, before, rtol=0, atol=1e-6)


def test_friction_takes_energy_from_a_falling_arm(settings):
    friction = replace(settings.plant.friction, memory_gain_nmprad=0.0)
    plant = Rk4Arm(settings.arm, friction, 1000.0)
    state = plant.reset(start([0.3, 0.4]))
    body, energy = settings.arm.body(), []
    for _ in range(1000):
        state = plant.step(np.zeros(2))
        energy.append(float(body.mechanical_energy(state.q_rad, state.qd_radps)))
    assert np.all(np.diff(energy) <= 1e-9)


def test_the_error_of_a_step_falls_with_its_fourth_power(settings):
    def end_of(rate_hz):
        plant = Rk4Arm(settings.arm, settings.plant.friction, rate_hz)
        plant.reset(start([0.3, 0.4], qd_radps=[1.0, -1.5], payload_kg=0.7))
        for _ in range(round(0.4 * rate_hz)):
            state = plant.step(np.array([60.0, 12.0]))
        return state.q_rad

    exact = end_of(4000.0)
    coarse, fine = (np.abs(end_of(rate) - exact).max() for rate in (250.0, 500.0))
    assert coarse / fine > 12.0


def test_a_batch_equals_its_arms_one_by_one(settings):
    rng = np.random.default_rng(1)
    q, qd, z = rng.uniform(-1, 1, (3, 7, 2))
    payload, tau = rng.uniform(0, 1.5, 7), rng.uniform(1, 5, 7)
    effort = rng.uniform(-30, 30, (20, 7, 2))
    plant = Rk4Arm(settings.arm, settings.plant.friction, 100.0)
    plant.reset(start(q, qd, z, payload, tau))
    for k in range(20):
        together = plant.step(effort[k])
    for arm in range(7):
        plant.reset(start(q[arm], qd[arm], z[arm], payload[arm], tau[arm]))
        for k in range(20):
            alone = plant.step(effort[k, arm])
        # NumPy's sine and the C library's may differ in the last bit.
        np.testing.assert_allclose(alone.q_rad, together.q_rad[arm], rtol=0, atol=1e-12)
        np.testing.assert_allclose(alone.qd_radps, together.qd_radps[arm], rtol=0, atol=1e-12)


def test_stamps_count_control_periods_in_nanoseconds(settings):
    plant = Rk4Arm(settings.arm, settings.plant.friction, 100.0)
    assert plant.reset(start([0.0, 0.0])).stamp_ns == 0
    assert plant.step(np.zeros(2)).stamp_ns == 10_000_000
    assert plant.step(np.zeros(2)).stamp_ns == 20_000_000
    assert plant.reset(start([0.0, 0.0])).stamp_ns == 0


def test_a_returned_state_does_not_change_later(settings):
    plant = Rk4Arm(settings.arm, settings.plant.friction, 100.0)
    first = plant.reset(start([0.1, 0.2]))
    plant.step(np.array([5.0, 5.0]))
    np.testing.assert_array_equal(first.q_rad, [0.1, 0.2])


def test_efforts_of_the_wrong_shape_are_refused(settings):
    plant = Rk4Arm(settings.arm, settings.plant.friction, 100.0)
    plant.reset(start([0.0, 0.0]))
    with pytest.raises(PlantError, match=r'shape \(2,\), found \(3,\)'):
        plant.step(np.zeros(3))
    plant.close()


@pytest.mark.parametrize(
    ('change', 'message'),
    [
        ({'payload_kg': np.nan}, 'finite masses of at least 0'),
        ({'payload_kg': -0.1}, 'finite masses of at least 0'),
        ({'tau_z_s': 0.0}, 'finite times above 0'),
        ({'qd_radps': [np.inf, 0.0]}, 'qd_radps: expected finite'),
        ({'memory_nm': [0.0, 0.0, 0.0]}, 'memory_nm: expected shape'),
    ],
)
def test_an_impossible_start_is_refused(change, message):
    with pytest.raises(PlantError, match=message):
        start([0.0, 0.0], **change)


def test_one_payload_for_two_arms_is_refused():
    good = start([[0.0, 0.0], [0.1, 0.1]])
    with pytest.raises(PlantError, match='one value per arm'):
        replace(good, payload_kg=np.zeros(3))
