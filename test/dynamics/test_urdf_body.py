# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
from dataclasses import replace
import sys

from hypothesis import given, settings
from hypothesis import strategies as st
import numpy as np
import pytest
from support import urdf_arms
from support.urdf_arms import checked, CLOSED_FORM, HEAVIEST_KG, model, NAMES, states

from metactl_ros.dynamics.urdf_arm import check_arm, LockedJoint
from metactl_ros.errors import ConfigError, MissingDependency

arms = pytest.mark.parametrize('name', NAMES)
seeds = st.integers(0, 2**32 - 1)


def terms(posture, x):
    """Return all that a posture tells, by name."""
    return {
        'bias': posture.bias,
        'gravity': posture.gravity,
        'diagonal': posture.diagonal,
        'momentum_flow': posture.momentum_flow,
        'apply': posture.apply(x),
        'effective_inertia': posture.effective_inertia,
        'solve': posture.solve(x),
        'solve with armature': posture.solve(x, np.abs(x)),
        'coriolis': posture.coriolis(x),
    }


def test_pinocchio_equals_the_closed_form_over_10_000_states_and_payloads():
    q, qd, qdd, payloads_kg = states('two_link', 10_000)
    found = terms(model('two_link').body(payloads_kg).at(q, qd), qdd)
    expected = terms(CLOSED_FORM.body(payloads_kg).at(q, qd), qdd)
    for term, value in expected.items():
        np.testing.assert_allclose(found[term], value, rtol=0, atol=1e-9, err_msg=term)


def test_the_two_link_arm_has_the_limits_and_the_least_inertia_of_the_closed_form():
    arm = model('two_link')
    assert arm.joint_names == CLOSED_FORM.joint_names
    for name in ('effort_nm', 'effort_rate_nmps', 'position_rad', 'velocity_radps'):
        assert getattr(arm.limits, name) == getattr(CLOSED_FORM.limits, name)
    np.testing.assert_array_equal(arm.limits.lower_rad, CLOSED_FORM.limits.lower_rad)
    least = CLOSED_FORM.smallest_inertia_kgm2()
    assert arm.smallest_inertia_kgm2() == pytest.approx(least, rel=1e-9)


@arms
def test_inertia_bias_and_acceleration_give_the_torque_of_the_inverse_dynamics(name):
    pinocchio = urdf_arms.urdf_body().pinocchio
    q, qd, qdd, _ = states(name, 200)
    arm = model(name)
    whole = arm._links.model
    for row in zip(q, qd, qdd, strict=True):
        posture = arm.body().at(row[0], row[1])
        tau = pinocchio.rnea(whole, whole.createData(), *row)
        found = posture.apply(row[2]) + posture.bias
        np.testing.assert_allclose(found, tau, rtol=1e-12, atol=1e-11)


@arms
def test_a_payload_is_a_point_mass_on_a_link_of_its_own(name):
    q, qd, qdd, _ = states(name, 100)
    arm, payload_kg = checked(name), HEAVIEST_KG[name]
    text = urdf_arms.with_payload(urdf_arms.urdf_text(name), arm.file.payload_frame, payload_kg)
    as_link = urdf_arms.urdf_body().UrdfArm(check_arm(arm.file, text, 'loaded.urdf'))
    expected = terms(as_link.body().at(q, qd), qdd)
    found = terms(model(name).body(payload_kg).at(q, qd), qdd)
    for term, value in expected.items():
        np.testing.assert_allclose(found[term], value, rtol=1e-9, atol=1e-11, err_msg=term)


def test_a_payload_off_its_frame_is_a_payload_of_a_frame_that_is_there():
    arm = checked('two_link')
    beside = replace(arm.file, payload_frame='link2', payload_offset_m=(0.7, 0.0, 0.0))
    body = urdf_arms.urdf_body().UrdfArm(arm._replace(file=beside)).body(1.2)
    q, qd, qdd, _ = states('two_link', 50)
    expected = terms(model('two_link').body(1.2).at(q, qd), qdd)
    for term, value in terms(body.at(q, qd), qdd).items():
        np.testing.assert_allclose(value, expected[term], rtol=1e-10, atol=1e-11, err_msg=term)


@arms
@settings(max_examples=25)
@given(seed=seeds)
def test_inertia_rate_minus_twice_coriolis_is_skew(name, seed):
    (q,), (qd,), _, (payload_kg,) = states(name, 1, seed)
    body, h = model(name).body(payload_kg), 1e-5
    M_dot = (body.inertia_matrix(q + h * qd) - body.inertia_matrix(q - h * qd)) / (2 * h)
    C = np.column_stack([body.at(q, qd).coriolis(v) for v in np.eye(len(q))])
    skew = M_dot - 2.0 * C
    np.testing.assert_allclose(skew, -skew.T, rtol=0, atol=1e-6 * np.abs(M_dot).max() + 1e-8)


@arms
@settings(max_examples=10)
@given(seed=seeds)
def test_the_coriolis_matrix_is_that_of_the_christoffel_symbols(name, seed):
    (q,), (qd,), _, (payload_kg,) = states(name, 1, seed)
    body, h, n = model(name).body(payload_kg), 1e-5, len(q)
    ends = [body.inertia_matrix(q + side * h * np.eye(n)) for side in (1.0, -1.0)]
    dM = (ends[0] - ends[1]) / (2.0 * h)  # first axis: the joint that was moved
    gamma = 0.5 * (
        np.einsum('kij->ijk', dM) + np.einsum('jik->ijk', dM) - np.einsum('ijk->ijk', dM)
    )
    posture = body.at(q, qd)
    C = np.column_stack([posture.coriolis(v) for v in np.eye(n)])
    np.testing.assert_allclose(C, gamma @ qd, rtol=0, atol=1e-6)
    np.testing.assert_allclose(posture.momentum_flow, C.T @ qd, rtol=0, atol=1e-9)


@arms
@settings(max_examples=25)
@given(seed=seeds)
def test_bias_is_coriolis_torque_plus_gravity(name, seed):
    q, qd, _, payloads_kg = states(name, 3, seed)
    posture = model(name).body(payloads_kg).at(q, qd)
    np.testing.assert_allclose(posture.bias, posture.coriolis(qd) + posture.gravity, atol=1e-9)


@arms
@settings(max_examples=25)
@given(seed=seeds, payload_kg=st.floats(0.0, 5.0))
def test_all_is_linear_in_the_payload(name, seed, payload_kg):
    q, qd, qdd, _ = states(name, 2, seed)
    arm = model(name)
    loaded, bare, per_kg = (
        b.at(q, qd) for b in (arm.body(payload_kg), arm.body(), arm.body_per_kg())
    )
    for found, none, slope in (
        (loaded.apply(qdd), bare.apply(qdd), per_kg.apply(qdd)),
        (loaded.bias, bare.bias, per_kg.bias),
        (loaded.gravity, bare.gravity, per_kg.gravity),
        (loaded.coriolis(qdd), bare.coriolis(qdd), per_kg.coriolis(qdd)),
        (loaded.diagonal, bare.diagonal, per_kg.diagonal),
    ):
        np.testing.assert_allclose(found, none + payload_kg * slope, rtol=1e-11, atol=1e-10)


@arms
def test_a_batch_equals_its_rows_one_by_one_to_rounding(name):
    q, qd, qdd, payloads_kg = states(name, 12)
    arm = model(name)
    shape = (3, 4, q.shape[-1])
    batch = arm.body(payloads_kg.reshape(3, 4)).at(q.reshape(shape), qd.reshape(shape))
    together = terms(batch, qdd.reshape(shape))
    for k, payload_kg in enumerate(payloads_kg):
        alone = terms(arm.body(float(payload_kg)).at(q[k], qd[k]), qdd[k])
        for term, value in alone.items():
            row = together[term][divmod(k, 4)]
            np.testing.assert_allclose(row, value, rtol=1e-12, atol=1e-12, err_msg=term)


@arms
def test_one_posture_with_several_payloads_is_a_batch(name):
    (q, *_), (qd, *_), (qdd, *_), payloads_kg = states(name, 4)
    posture = model(name).body(payloads_kg).at(q, qd)
    assert posture.bias.shape == posture.apply(qdd).shape == (4, len(q))
    alone = model(name).body(float(payloads_kg[2])).at(q, qd)
    np.testing.assert_allclose(posture.bias[2], alone.bias, rtol=1e-12)
    np.testing.assert_allclose(posture.solve(qdd)[2], alone.solve(qdd), rtol=1e-10)


def test_an_empty_batch_gives_empty_arrays():
    none = np.empty((0, 7))
    posture = model('fr3').body().at(none, none)
    assert posture.bias.shape == posture.solve(none).shape == (0, 7)
    assert model('fr3').body().inertia_matrix(none).shape == (0, 7, 7)


@arms
def test_solving_undoes_applying_and_an_armature_adds_to_the_diagonal(name):
    q, qd, torque, payloads_kg = states(name, 100)
    posture, armature = model(name).body(payloads_kg).at(q, qd), np.abs(qd)
    np.testing.assert_allclose(posture.apply(posture.solve(torque)), torque, atol=1e-9)
    qdd = posture.solve(torque, armature)
    np.testing.assert_allclose(posture.apply(qdd) + armature * qdd, torque, atol=1e-9)


def test_rotors_are_on_the_diagonal_of_the_inertia_and_nowhere_else():
    arm = checked('fr3')
    still = arm._replace(file=replace(arm.file, rotor_inertia_kgm2=(0.0,) * 7))
    without = urdf_arms.urdf_body().UrdfArm(still)
    q, qd, _, _ = states('fr3', 20)
    added = model('fr3').body().inertia_matrix(q) - without.body().inertia_matrix(q)
    rotors = np.broadcast_to(np.diag(arm.file.rotor_inertia_kgm2), added.shape)
    np.testing.assert_allclose(added, rotors, atol=1e-14)
    np.testing.assert_array_equal(
        model('fr3').body().at(q, qd).bias, without.body().at(q, qd).bias
    )


def test_rotors_that_are_stated_to_be_zero_are_remarked_with_their_consequence():
    arm = checked('fr3')
    rotors = (*arm.file.rotor_inertia_kgm2[:5], 0.0, 0.0)
    built = urdf_arms.urdf_body().UrdfArm(
        arm._replace(file=replace(arm.file, rotor_inertia_kgm2=rotors))
    )
    (remark,) = built.remarks
    assert 'zero for fr3_joint6, fr3_joint7; the arm is then as light as' in remark
    assert model('fr3').remarks == ()


def test_a_body_without_inertia_about_its_axis_is_refused():
    text = urdf_arms.urdf_text('fr3')
    start = text.index('<origin xyz="0.0045225817')
    end = text.index('</inertial>', start)
    point = '<mass value="0.6"/><inertia ixx="0" ixy="0" ixz="0" iyy="0" iyz="0" izz="0"/>'
    arm = replace(checked('fr3').file, rotor_inertia_kgm2=(0.0,) * 7)
    fits = check_arm(arm, text[:start] + point + text[end:], 'point.urdf')
    build = urdf_arms.urdf_body().UrdfArm
    with pytest.raises(ConfigError, match=r'point\.urdf: expected an inertia of at least 1e-06'):
        build(fits)


@arms
def test_no_sampled_inertia_is_below_the_least_one(name):
    arm, heaviest = model(name), HEAVIEST_KG[name]
    inertias = arm.sample_inertias(heaviest)
    n = len(arm.joint_names)
    assert inertias.shape[1:] == (n, n)
    assert len(inertias) == 5 * len(arm.sample_inertias())
    least = np.linalg.eigvalsh(inertias).min()
    assert least == pytest.approx(arm.smallest_inertia_kgm2(), rel=1e-9)
    np.testing.assert_array_equal(inertias, arm.sample_inertias(heaviest))


def test_joints_that_are_locked_become_part_of_their_links():
    arm = checked('fr3').file
    limits = replace(arm.limits, effort_rate_nmps=(1000.0,) * 6)
    wrist = replace(
        arm,
        joints=arm.joints[:6],
        rotor_inertia_kgm2=arm.rotor_inertia_kgm2[:6],
        locked=(LockedJoint(joint='fr3_joint7', position=0.7),),
        limits=limits,
    )
    locked = urdf_arms.urdf_body().UrdfArm(
        check_arm(wrist, urdf_arms.urdf_text('fr3'), 'fr3.urdf')
    )
    q, qd, qdd, _ = states('fr3', 20)
    q[:, 6], qd[:, 6], qdd[:, 6] = 0.7, 0.0, 0.0
    whole, part = model('fr3').body(2.0).at(q, qd), locked.body(2.0).at(q[:, :6], qd[:, :6])
    expected = (whole.apply(qdd) + whole.bias)[:, :6]
    np.testing.assert_allclose(part.apply(qdd[:, :6]) + part.bias, expected, atol=1e-11)


@arms
@pytest.mark.parametrize('is_loaded', [False, True])
def test_inverse_dynamics_equal_those_of_pybullet(name, is_loaded, tmp_path):
    pybullet = pytest.importorskip('pybullet', reason='has no wheels from Python 3.12 on')
    q, qd, qdd, _ = states(name, 200)
    file, payload_kg = checked(name).file, HEAVIEST_KG[name] * is_loaded
    text = urdf_arms.with_payload(urdf_arms.urdf_text(name), file.payload_frame, payload_kg)
    (tmp_path / 'arm.urdf').write_text(text)
    client = pybullet.connect(pybullet.DIRECT)
    try:
        body = pybullet.loadURDF(
            str(tmp_path / 'arm.urdf'),
            useFixedBase=True,
            flags=pybullet.URDF_USE_INERTIA_FROM_FILE,
            physicsClientId=client,
        )
        pybullet.setGravity(*file.gravity_mps2, physicsClientId=client)
        tau = [
            pybullet.calculateInverseDynamics(body, *(x.tolist() for x in row), client)
            for row in zip(q, qd, qdd, strict=True)
        ]
    finally:
        pybullet.disconnect(physicsClientId=client)
    posture = model(name).body(payload_kg).at(q, qd)
    # PyBullet knows no rotors.
    ours = posture.apply(qdd) + posture.bias - np.array(file.rotor_inertia_kgm2) * qdd
    np.testing.assert_allclose(ours, tau, rtol=0, atol=1e-8)


def test_without_pinocchio_the_error_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, 'pinocchio', None)
    monkeypatch.delitem(sys.modules, 'metactl_ros.dynamics.urdf_body', raising=False)
    from metactl_ros.arm_file import load_urdf_arm

    with pytest.raises(MissingDependency, match=r"pip install 'metactl_ros\[urdf\]'"):
        load_urdf_arm(urdf_arms.CONFIG / 'arms' / 'fr3.yaml')
