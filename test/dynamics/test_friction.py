# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st
import numpy as np
import pytest

from metactl_ros.dynamics.friction import (
    friction_torque,
    joint_friction_torque,
    joint_memory_after,
    memory_rate,
    smallest_smoothing,
)
from metactl_ros.errors import ConfigError
from metactl_ros.settings import load_settings

SETTINGS = load_settings()
FRICTION = SETTINGS.plant.friction
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
    power_taken = joint_friction_torque(FRICTION, qd, z) * qd
    z_dot = float(memory_rate(FRICTION, np.array(qd), np.array(z), tau))
    stored = z * z_dot / FRICTION.memory_gain_nmprad  # d/dt of z^2 / (2 lambda_z)
    assert power_taken - stored >= -1e-9


@given(qd=st.lists(rates, min_size=1, max_size=5), z=torques)
def test_a_batch_equals_its_joints_one_by_one(qd, z):
    together = friction_torque(FRICTION, np.array(qd), np.array(z))
    one_by_one = [joint_friction_torque(FRICTION, value, z) for value in qd]
    np.testing.assert_allclose(together, one_by_one, rtol=1e-14, atol=1e-14)


@given(qd=rates, z=torques, tau=st.floats(0.5, 10.0))
def test_memory_step_solves_its_differential_equation(qd, z, tau):
    fine, dt = z, 1e-3
    for _ in range(10):
        k1 = float(memory_rate(FRICTION, np.array(qd), np.array(fine), tau))
        k2 = float(memory_rate(FRICTION, np.array(qd), np.array(fine + dt * k1), tau))
        fine += 0.5 * dt * (k1 + k2)
    assert joint_memory_after(FRICTION, qd, z, tau, 10 * dt) == pytest.approx(fine, abs=1e-4)


def test_long_memory_is_a_spring():
    after = joint_memory_after(FRICTION, 0.5, 0.0, tau_z_s=1e6, dt_s=1.0)
    assert after == pytest.approx(FRICTION.memory_gain_nmprad * 0.5, rel=1e-5)


def test_shipped_smoothing_keeps_a_10_ms_step_stable_at_rest():
    inertia, dt = SETTINGS.arm.smallest_inertia_kgm2(), 0.01
    damping = FRICTION.static_nm / FRICTION.smoothing_velocity_radps + FRICTION.viscous_nmsprad
    assert damping * dt / inertia <= 2.0
    least = smallest_smoothing(FRICTION, inertia, dt)
    assert least <= FRICTION.smoothing_velocity_radps
    at_bound = FRICTION.static_nm / least + FRICTION.viscous_nmsprad
    assert at_bound * dt / inertia == pytest.approx(2.0)


def test_too_much_viscous_friction_for_the_step_is_refused():
    with pytest.raises(ConfigError, match='shorten the step'):
        smallest_smoothing(replace(FRICTION, viscous_nmsprad=1e3), 0.1, 0.01)


def test_static_friction_below_coulomb_is_refused():
    with pytest.raises(ConfigError, match='at least coulomb_nm'):
        replace(FRICTION, static_nm=0.5 * FRICTION.coulomb_nm)
