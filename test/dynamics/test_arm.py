# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
from hypothesis import given
from hypothesis import strategies as st
import numpy as np
import pybullet
import pytest

from metactl_ros.dynamics.two_link import (
    apply_mass,
    bias_torque,
    coriolis_matrix,
    forward_dynamics,
    gravity_torque,
    inertia_matrix,
    lump,
    mass_at,
    mechanical_energy,
    smallest_inertia,
    solve_mass,
)
from metactl_ros.settings import load_settings
from metactl_ros.signals import split, stack
from metactl_ros.sim.bullet_arm import load_body

ARM = load_settings().arm
angles = st.floats(-np.pi, np.pi)
rates = st.floats(-8.0, 8.0)
payloads = st.floats(0.0, 1.5)


@pytest.fixture
def random_states():
    rng = np.random.default_rng(0)
    q = rng.uniform(-np.pi, np.pi, (1000, 2))
    return q, rng.uniform(-8.0, 8.0, (1000, 2)), rng.uniform(-20.0, 20.0, (1000, 2))


def test_dynamics_equal_pybullet_over_1000_states_and_payloads(random_states):
    q, qd, qdd = random_states
    payloads_kg = np.linspace(0.0, 1.5, 20)  # PyBullet's queries keep the masses of load time
    for index, payload in enumerate(payloads_kg):
        client = pybullet.connect(pybullet.DIRECT)
        try:
            body = load_body(client, ARM, float(payload))
            pybullet.setGravity(0.0, 0.0, -ARM.gravity_mps2, physicsClientId=client)
            inertia = lump(ARM, payload)
            for k in range(50 * index, 50 * (index + 1)):
                M = pybullet.calculateMassMatrix(body, q[k].tolist(), physicsClientId=client)
                tau = pybullet.calculateInverseDynamics(
                    body, q[k].tolist(), qd[k].tolist(), qdd[k].tolist(), physicsClientId=client
                )
                np.testing.assert_allclose(inertia_matrix(inertia, q[k]), M, rtol=0, atol=1e-6)
                needed = apply_mass(mass_at(inertia, split(q[k])), split(qdd[k]))
                ours = stack(needed) + stack(bias_torque(inertia, split(q[k]), split(qd[k])))
                np.testing.assert_allclose(ours, tau, rtol=0, atol=1e-6)
        finally:
            pybullet.disconnect(physicsClientId=client)


@given(q2=angles, payload=payloads)
def test_inertia_is_symmetric_positive_definite(q2, payload):
    M = inertia_matrix(lump(ARM, payload), np.array([0.3, q2]))
    np.testing.assert_array_equal(M, M.T)
    assert np.linalg.eigvalsh(M).min() >= smallest_inertia(ARM) - 1e-12


def test_smallest_inertia_is_reached_by_some_posture():
    q2 = np.linspace(-np.pi, np.pi, 2001)
    q = np.stack([np.zeros_like(q2), q2], axis=-1)
    found = np.linalg.eigvalsh(inertia_matrix(lump(ARM, 0.0), q)).min()
    assert found == pytest.approx(smallest_inertia(ARM), rel=1e-9)


@given(q2=angles, qd1=rates, qd2=rates, payload=payloads)
def test_inertia_rate_minus_twice_coriolis_is_skew(q2, qd1, qd2, payload):
    inertia, q, qd = lump(ARM, payload), np.array([0.0, q2]), np.array([qd1, qd2])
    h = 1e-6
    M_dot = (inertia_matrix(inertia, q + h * qd) - inertia_matrix(inertia, q - h * qd)) / (2 * h)
    skew = M_dot - 2.0 * coriolis_matrix(inertia, q, qd)
    np.testing.assert_allclose(skew, -skew.T, rtol=0, atol=1e-6)


def test_bias_torque_is_coriolis_matrix_times_velocity_plus_gravity(random_states):
    q, qd, _ = random_states
    inertia = lump(ARM, 0.9)
    C = coriolis_matrix(inertia, q, qd)
    expected = np.einsum('...ij,...j->...i', C, qd) + stack(gravity_torque(inertia, split(q)))
    found = stack(bias_torque(inertia, split(q), split(qd)))
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12)


def test_gravity_torque_is_the_slope_of_the_potential(random_states):
    q, _, _ = random_states
    inertia, h, rest = lump(ARM, 1.1), 1e-6, split(np.zeros_like(q))
    torque = gravity_torque(inertia, split(q))
    for joint in range(2):
        step = h * np.eye(2)[joint]
        above = mechanical_energy(inertia, split(q + step), rest)
        below = mechanical_energy(inertia, split(q - step), rest)
        slope = (above - below) / (2 * h)
        np.testing.assert_allclose(torque[joint], slope, rtol=0, atol=1e-6)


def test_solving_undoes_applying_the_inertia(random_states):
    q, _, qdd = random_states
    mass = mass_at(lump(ARM, 0.4), split(q))
    again = solve_mass(mass, apply_mass(mass, split(qdd)))
    np.testing.assert_allclose(stack(again), qdd, rtol=0, atol=1e-9)


def test_applying_the_inertia_is_multiplying_by_the_matrix(random_states):
    q, _, qdd = random_states
    inertia = lump(ARM, 0.4)
    expected = np.einsum('...ij,...j->...i', inertia_matrix(inertia, q), qdd)
    found = stack(apply_mass(mass_at(inertia, split(q)), split(qdd)))
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12)


def test_a_batch_gives_the_same_acceleration_as_its_rows_one_by_one(random_states):
    q, qd, torque = random_states
    payloads_kg = np.linspace(0.0, 1.5, len(q))
    together = stack(forward_dynamics(lump(ARM, payloads_kg), *map(split, (q, qd, torque))))
    rows = [
        forward_dynamics(lump(ARM, float(p)), *map(split, row))
        for p, *row in zip(payloads_kg, q, qd, torque, strict=True)
    ]
    # NumPy's sine and the C library's may differ in the last bit.
    np.testing.assert_allclose(together, rows, rtol=1e-12, atol=1e-12)
