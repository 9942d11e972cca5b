# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st
import numpy as np
import pytest
from support.three_joints import FRICTION as OF_THREE
from support.three_joints import in_order

from metactl_ros.dynamics.friction import (
    friction_of_joints,
    friction_torque,
    memory_rate,
    smallest_smoothing,
)
from metactl_ros.errors import ConfigError
from metactl_ros.settings import load_settings

SETTINGS = load_settings()
FRICTION = SETTINGS.plant.friction
(JOINT,) = friction_of_joints(FRICTION, 1)
rates = st.floats(-20.0, 20.0)
torques = st.floats(-50.0, 50.0)


def test_levels_are_static_near_rest_and_coulomb_plus_viscous_at_speed():
    sharp = replace(FRICTION, smoothing_velocity_radps=1e-6)
    at_rest = friction_torque(sharp, np.array([1e-4]), np.zeros(1))
    at_speed = friction_torque(sharp, np.array([5.0]), np.zeros(1))
    assert at_rest == pytest.approx(sharp.static_nm, rel=1e-4)
    assert at_speed == pytest.approx(sharp.coulomb_nm + 5.0 * sharp.viscous_nmsprad, rel=1e-9)


@given(qd=rates, z=torques)
def test_friction_is_odd(qd, z):
    one = friction_torque(FRICTION, np.array([qd]), np.array([z]))
    other = friction_torque(FRICTION, np.array([-qd]), np.array([-z]))
    np.testing.assert_array_equal(one, -other)


@given(qd=rates, z=torques, tau=st.floats(0.1, 10.0))
def test_friction_never_adds_energy_beyond_its_memory(qd, z, tau):
    power_taken = JOINT.torque(qd, z) * qd
    z_dot = float(memory_rate(FRICTION, np.array(qd), np.array(z), tau))
    stored = z * z_dot / FRICTION.memory_gain_nmprad  # d/dt of z^2 / (2 lambda_z)
    assert power_taken - stored >= -1e-9


@given(qd=st.lists(rates, min_size=1, max_size=5), z=torques)
def test_a_batch_equals_its_joints_one_by_one(qd, z):
    together = friction_torque(FRICTION, np.array(qd), np.array(z))
    one_by_one = [JOINT.torque(value, z) for value in qd]
    np.testing.assert_allclose(together, one_by_one, rtol=1e-14, atol=1e-14)


@given(qd=rates, z=torques, tau=st.floats(0.5, 10.0))
def test_memory_step_solves_its_differential_equation(qd, z, tau):
    fine, dt = z, 1e-3
    for _ in range(10):
        k1 = float(memory_rate(FRICTION, np.array(qd), np.array(fine), tau))
        k2 = float(memory_rate(FRICTION, np.array(qd), np.array(fine + dt * k1), tau))
        fine += 0.5 * dt * (k1 + k2)
    assert JOINT.memory_after(qd, z, tau, 10 * dt) == pytest.approx(fine, abs=1e-4)


def test_long_memory_is_a_spring():
    after = JOINT.memory_after(0.5, 0.0, tau_z_s=1e6, dt_s=1.0)
    assert after == pytest.approx(FRICTION.memory_gain_nmprad * 0.5, rel=1e-5)


def test_shipped_smoothing_keeps_a_10_ms_step_stable_at_rest():
    inertia, dt = SETTINGS.arm.smallest_inertia_kgm2(), 0.01
    damping = FRICTION.static_nm / FRICTION.smoothing_velocity_radps + FRICTION.viscous_nmsprad
    assert damping * dt / inertia <= 2.0
    least = smallest_smoothing(FRICTION, 1, inertia, dt)[0]
    assert least <= FRICTION.smoothing_velocity_radps
    at_bound = FRICTION.static_nm / least + FRICTION.viscous_nmsprad
    assert at_bound * dt / inertia == pytest.approx(2.0)


def test_too_much_viscous_friction_for_the_step_is_refused():
    with pytest.raises(ConfigError, match='shorten the step'):
        smallest_smoothing(replace(FRICTION, viscous_nmsprad=1e3), 2, 0.1, 0.01)


def test_static_friction_below_coulomb_is_refused():
    with pytest.raises(ConfigError, match='at least coulomb_nm'):
        replace(FRICTION, static_nm=0.5 * FRICTION.coulomb_nm)


def stated(friction, index=slice(None)):
    """Return the constants of a friction that is stated per joint, or of some of its joints."""
    return {name: getattr(friction, name)[index] for name in friction.__slots__}


def three(values):
    return st.lists(values, min_size=3, max_size=3).map(np.array)


@given(qd=three(rates), z=three(torques), tau=st.floats(0.5, 10.0))
def test_each_joint_has_its_own_constants(qd, z, tau):
    torque, rate = friction_torque(OF_THREE, qd, z), memory_rate(OF_THREE, qd, z, tau)
    for joint, own in enumerate(friction_of_joints(OF_THREE, 3)):
        alone = replace(FRICTION, **stated(OF_THREE, joint))
        assert torque[joint] == friction_torque(alone, qd, z)[joint]
        assert rate[joint] == memory_rate(alone, qd, z, tau)[joint]
        (plain,) = friction_of_joints(alone, 1)
        assert own == plain


@given(qd=three(rates), z=three(torques), tau=st.floats(0.5, 10.0))
def test_equal_entries_are_one_number_to_the_bit(qd, z, tau):
    constants = {name: getattr(FRICTION, name) for name in FRICTION.__slots__}
    thrice = replace(FRICTION, **{name: (value,) * 3 for name, value in constants.items()})
    np.testing.assert_array_equal(friction_torque(thrice, qd, z), friction_torque(FRICTION, qd, z))
    np.testing.assert_array_equal(
        memory_rate(thrice, qd, z, tau), memory_rate(FRICTION, qd, z, tau)
    )
    assert friction_of_joints(thrice, 3) == friction_of_joints(FRICTION, 3)


@given(qd=three(rates), z=three(torques), order=st.permutations(range(3)))
def test_joints_in_another_order_have_the_same_torques_in_that_order(qd, z, order):
    torque = friction_torque(in_order(OF_THREE, order), qd[order], z[order])
    np.testing.assert_array_equal(torque, friction_torque(OF_THREE, qd, z)[order])


def test_the_bound_of_the_smoothing_is_that_of_each_joint():
    least = smallest_smoothing(OF_THREE, 3, 0.2, 0.01)
    for joint in range(3):
        alone = replace(FRICTION, **stated(OF_THREE, joint))
        assert least[joint] == smallest_smoothing(alone, 1, 0.2, 0.01)


def test_one_joint_with_too_much_viscous_friction_is_enough_to_be_refused():
    friction = replace(OF_THREE, viscous_nmsprad=(0.5, 1e3, 0.1))
    with pytest.raises(ConfigError, match=r'viscous_nmsprad: 1000\.0 N m s/rad alone'):
        smallest_smoothing(friction, 3, 0.1, 0.01)


def test_static_friction_below_coulomb_in_one_joint_is_refused():
    with pytest.raises(ConfigError, match='at least coulomb_nm'):
        replace(OF_THREE, static_nm=(3.0, 0.9, 0.5))


@pytest.mark.parametrize('ask', [friction_of_joints, lambda f, n: smallest_smoothing(f, n, 1, 1)])
def test_friction_of_three_joints_is_refused_for_two(ask):
    with pytest.raises(
        ConfigError, match=r'Friction\.coulomb_nm: expected 2 entries, one per joint, found 3'
    ):
        ask(OF_THREE, 2)


def test_constants_for_different_numbers_of_joints_are_refused():
    with pytest.raises(ConfigError, match=r'static_nm: expected 3 entries.* found 2'):
        replace(OF_THREE, static_nm=(3.0, 3.0))
