# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
from hypothesis import given
from hypothesis import strategies as st
import numpy as np
import pytest

from metactl_ros.settings import load_settings
from metactl_ros.sim.described_arm import described_two_link

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
    pybullet = pytest.importorskip('pybullet', reason='has no wheels from Python 3.12 on')
    from metactl_ros.sim.bullet_arm import load_body

    q, qd, qdd = random_states
    payloads_kg = np.linspace(0.0, 1.5, 20)  # PyBullet's queries keep the masses of load time
    for index, payload in enumerate(payloads_kg):
        client = pybullet.connect(pybullet.DIRECT)
        try:
            body = load_body(client, described_two_link(ARM, float(payload)))
            pybullet.setGravity(0.0, 0.0, -ARM.gravity_mps2, physicsClientId=client)
            model = ARM.body(float(payload))
            for k in range(50 * index, 50 * (index + 1)):
                M = pybullet.calculateMassMatrix(body, q[k].tolist(), physicsClientId=client)
                tau = pybullet.calculateInverseDynamics(
                    body, q[k].tolist(), qd[k].tolist(), qdd[k].tolist(), physicsClientId=client
                )
                np.testing.assert_allclose(model.inertia_matrix(q[k]), M, rtol=0, atol=1e-6)
                posture = model.at(q[k], qd[k])
                ours = posture.apply(qdd[k]) + posture.bias
                np.testing.assert_allclose(ours, tau, rtol=0, atol=1e-6)
        finally:
            pybullet.disconnect(physicsClientId=client)


@given(q2=angles, payload=payloads)
def test_inertia_is_symmetric_positive_definite(q2, payload):
    M = ARM.body(payload).inertia_matrix(np.array([0.3, q2]))
    np.testing.assert_array_equal(M, M.T)
    assert np.linalg.eigvalsh(M).min() >= ARM.smallest_inertia_kgm2() - 1e-12


def test_smallest_inertia_is_reached_by_some_posture():
    q2 = np.linspace(-np.pi, np.pi, 2001)
    q = np.stack([np.zeros_like(q2), q2], axis=-1)
    found = np.linalg.eigvalsh(ARM.body().inertia_matrix(q)).min()
    assert found == pytest.approx(ARM.smallest_inertia_kgm2(), rel=1e-9)


@given(q2=angles, qd1=rates, qd2=rates, payload=payloads)
def test_inertia_rate_minus_twice_coriolis_is_skew(q2, qd1, qd2, payload):
    body, q, qd = ARM.body(payload), np.array([0.0, q2]), np.array([qd1, qd2])
    h = 1e-6
    M_dot = (body.inertia_matrix(q + h * qd) - body.inertia_matrix(q - h * qd)) / (2 * h)
    skew = M_dot - 2.0 * body.coriolis_matrix(q, qd)
    np.testing.assert_allclose(skew, -skew.T, rtol=0, atol=1e-6)


def test_bias_torque_is_coriolis_matrix_times_velocity_plus_gravity(random_states):
    q, qd, _ = random_states
    body = ARM.body(0.9)
    C = body.coriolis_matrix(q, qd)
    expected = np.einsum('...ij,...j->...i', C, qd) + body.gravity(q)
    np.testing.assert_allclose(body.at(q, qd).bias, expected, rtol=0, atol=1e-12)


def test_a_posture_multiplies_by_the_coriolis_matrix_and_its_transpose(random_states):
    q, qd, v = random_states
    body = ARM.body(0.9)
    C, posture = body.coriolis_matrix(q, qd), body.at(q, qd)
    rightward, transposed = (
        np.einsum('...ij,...j->...i', C, v),
        np.einsum('...ji,...j->...i', C, qd),
    )
    np.testing.assert_allclose(posture.coriolis(v), rightward, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(posture.momentum_flow, transposed, rtol=1e-12, atol=1e-12)


def test_a_posture_tells_the_diagonal_of_the_inertia_and_gravity(random_states):
    q, qd, _ = random_states
    body = ARM.body(0.9)
    posture = body.at(q, qd)
    expected = np.diagonal(body.inertia_matrix(q), axis1=-2, axis2=-1)
    np.testing.assert_array_equal(posture.diagonal, expected)
    np.testing.assert_array_equal(posture.gravity, body.gravity(q))


def test_mass_coriolis_and_gravity_are_linear_in_the_payload(random_states):
    q, qd, qdd = random_states
    none, per_kg, loaded = (x.at(q, qd) for x in (ARM.body(), ARM.body_per_kg(), ARM.body(1.3)))
    for found, bare, slope in (
        (loaded.apply(qdd), none.apply(qdd), per_kg.apply(qdd)),
        (loaded.bias, none.bias, per_kg.bias),
        (loaded.coriolis(qdd), none.coriolis(qdd), per_kg.coriolis(qdd)),
    ):
        np.testing.assert_allclose(found, bare + 1.3 * slope, rtol=1e-12, atol=1e-11)


def test_gravity_torque_is_the_slope_of_the_potential(random_states):
    q, _, _ = random_states
    body, h, rest = ARM.body(1.1), 1e-6, np.zeros_like(q)
    torque = body.gravity(q)
    for joint in range(2):
        step = h * np.eye(2)[joint]
        above = body.mechanical_energy(q + step, rest)
        below = body.mechanical_energy(q - step, rest)
        slope = (above - below) / (2 * h)
        np.testing.assert_allclose(torque[:, joint], slope, rtol=0, atol=1e-6)


def test_solving_undoes_applying_the_inertia(random_states):
    q, qd, qdd = random_states
    posture = ARM.body(0.4).at(q, qd)
    again = posture.solve(posture.apply(qdd))
    np.testing.assert_allclose(again, qdd, rtol=0, atol=1e-9)


def test_applying_the_inertia_is_multiplying_by_the_matrix(random_states):
    q, qd, qdd = random_states
    body = ARM.body(0.4)
    expected = np.einsum('...ij,...j->...i', body.inertia_matrix(q), qdd)
    found = body.at(q, qd).apply(qdd)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12)


def test_a_batch_gives_the_same_acceleration_as_its_rows_one_by_one(random_states):
    q, qd, torque = random_states
    payloads_kg = np.linspace(0.0, 1.5, len(q))
    together = ARM.body(payloads_kg).forward_dynamics(q, qd, torque)
    rows = [
        ARM.body(float(p)).forward_dynamics(*row)
        for p, *row in zip(payloads_kg, q, qd, torque, strict=True)
    ]
    # The sine of a batch and that of one number may differ in the last bit.
    np.testing.assert_allclose(together, rows, rtol=1e-12, atol=1e-12)


def test_an_armature_adds_to_the_diagonal_of_the_inertia(random_states):
    q, qd, torque = random_states
    armature = np.random.default_rng(1).uniform(0.0, 3.0, q.shape)
    M = ARM.body(0.7).inertia_matrix(q) + armature[..., np.newaxis] * np.eye(2)
    found = ARM.body(0.7).at(q, qd).solve(torque, armature)
    np.testing.assert_allclose(found, np.linalg.solve(M, torque[..., np.newaxis])[..., 0])


def test_no_armature_is_an_armature_of_zero_to_the_bit(random_states):
    q, qd, torque = random_states
    posture = ARM.body(0.7).at(q, qd)
    np.testing.assert_array_equal(
        posture.solve(torque, np.zeros_like(torque)), posture.solve(torque)
    )


def test_a_torque_on_one_joint_alone_feels_the_effective_inertia(random_states):
    q, qd, _ = random_states
    posture = ARM.body(0.7).at(q, qd)
    for joint in range(2):
        push = np.zeros_like(q)
        push[:, joint] = 1.0
        feels = 1.0 / posture.solve(push)[:, joint]
        np.testing.assert_allclose(posture.effective_inertia[:, joint], feels, rtol=1e-12)
    assert (posture.effective_inertia <= posture.diagonal + 1e-12).all()


def test_a_batch_of_payloads_gives_each_arm_its_own_body(random_states):
    q, qd, torque = random_states
    payloads_kg = np.linspace(0.0, 1.5, len(q))
    together = ARM.body(payloads_kg).at(q, qd)
    armature = np.full(q.shape, 0.2)
    for k in (0, 333, 999):
        alone = ARM.body(float(payloads_kg[k])).at(q[k], qd[k])
        for of_batch, of_one in (
            (together.bias[k], alone.bias),
            (together.effective_inertia[k], alone.effective_inertia),
            (together.solve(torque, armature)[k], alone.solve(torque[k], armature[k])),
        ):
            np.testing.assert_allclose(of_batch, of_one, rtol=1e-12)
