# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
import numpy as np
import pytest

pytest.importorskip('pybullet', reason='needs PyBullet, which has no wheels from Python 3.12 on')
from support.episodes import start

from metactl_ros.errors import PlantError
from metactl_ros.settings import share_directory
from metactl_ros.sim.arm_urdf import arm_urdf
from metactl_ros.sim.bullet_arm import BulletArm
from metactl_ros.sim.plant import substeps_per_period


@pytest.fixture
def plant(settings):
    plant = BulletArm(settings.arm, settings.plant.friction, 100.0, 1000.0)
    yield plant
    plant.close()


def energy_drift(settings, no_friction, substep_hz):
    """Return how much energy a falling arm gains in 2 s, as a share of what it exchanged."""
    plant = BulletArm(settings.arm, no_friction, 100.0, substep_hz)
    state = plant.reset(start([0.3, 0.4], payload_kg=1.0))
    body = settings.arm.body(1.0)
    before = body.mechanical_energy(state.q_rad, state.qd_radps)
    kinetic = []
    for _ in range(200):
        state = plant.step(np.zeros(2))
        energy = body.mechanical_energy(state.q_rad, state.qd_radps)
        kinetic.append(energy - body.mechanical_energy(state.q_rad, np.zeros(2)))
    plant.close()
    assert max(kinetic) > 50.0
    return abs(energy - before) / max(kinetic)


def test_energy_is_conserved_without_friction_to_the_order_of_the_integrator(
    settings, no_friction
):
    # PyBullet steps are semi-implicit Euler: the drift is small and proportional to the step.
    coarse, fine = (energy_drift(settings, no_friction, hz) for hz in (1000.0, 4000.0))
    assert coarse < 0.02
    assert fine < 0.3 * coarse


@pytest.mark.parametrize('payload', [0.0, 0.4, 1.5])
def test_a_changed_payload_changes_the_acceleration_as_the_model_says(
    settings, no_friction, payload
):
    plant = BulletArm(settings.arm, no_friction, 1000.0, 1000.0)
    plant.reset(start([0.0, 0.0], payload_kg=0.9))
    plant.step(np.zeros(2))
    q, qd, effort = np.array([0.5, -0.7]), np.array([0.4, -0.3]), np.array([30.0, 6.0])
    plant.reset(start(q, qd, payload_kg=payload))
    acceleration = (plant.step(effort).qd_radps - qd) / 0.001
    plant.close()
    expected = settings.arm.body(payload).forward_dynamics(q, qd, effort)
    np.testing.assert_allclose(acceleration, expected, rtol=1e-6, atol=1e-6)


def test_a_payload_changed_in_mid_run_equals_one_set_at_the_start(plant):
    plant.reset(start([0.5, 0.2], payload_kg=0.0))
    plant.set_conditions(np.asarray(1.5), np.asarray(2.0))
    changed = plant.step(np.array([40.0, 10.0]))
    plant.reset(start([0.5, 0.2], payload_kg=1.5))
    from_start = plant.step(np.array([40.0, 10.0]))
    np.testing.assert_array_equal(changed.qd_radps, from_start.qd_radps)


def test_two_plants_do_not_share_a_world(settings):
    first = BulletArm(settings.arm, settings.plant.friction, 100.0, 1000.0)
    second = BulletArm(settings.arm, settings.plant.friction, 100.0, 1000.0)
    first.reset(start([0.1, 0.2]))
    second.reset(start([0.5, 0.6]))
    for _ in range(5):
        moved = first.step(np.array([80.0, 20.0]))
    untouched = second.reset(start([0.5, 0.6]))
    np.testing.assert_array_equal(untouched.q_rad, [0.5, 0.6])
    assert not np.array_equal(moved.q_rad, [0.1, 0.2])
    first.close()
    second.step(np.zeros(2))
    second.close()


def test_closing_twice_is_harmless(settings):
    plant = BulletArm(settings.arm, settings.plant.friction, 100.0, 1000.0)
    plant.close()
    plant.close()


def test_a_batch_is_refused_with_advice(plant):
    with pytest.raises(PlantError, match='use the RK4 plant for batches'):
        plant.reset(start([[0.0, 0.0], [0.1, 0.1]]))


def test_efforts_of_the_wrong_shape_are_refused(plant):
    plant.reset(start([0.0, 0.0]))
    with pytest.raises(PlantError, match='expected efforts of shape'):
        plant.step(np.zeros(3))


def test_240_hz_substeps_are_refused_with_a_rate_that_fits():
    with pytest.raises(
        PlantError, match=r'240.0 Hz is not a whole multiple.*use for example 1000'
    ):
        substeps_per_period(100.0, 240.0)


@pytest.mark.parametrize(('substep_hz', 'count'), [(100.0, 1), (1000.0, 10), (2000.0, 20)])
def test_substeps_fill_the_period(substep_hz, count):
    assert substeps_per_period(100.0, substep_hz) == count


def test_substeps_slower_than_control_are_refused():
    with pytest.raises(PlantError, match='not a whole multiple'):
        substeps_per_period(100.0, 50.0)


def test_shipped_urdf_is_the_arm_of_the_shipped_yaml(settings):
    shipped = share_directory() / 'config' / 'arm.urdf'
    assert shipped.read_text(encoding='utf-8') == arm_urdf(settings.arm), (
        'run: python test/write_arm_urdf.py'
    )
