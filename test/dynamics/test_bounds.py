# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
from dataclasses import replace

import numpy as np
import pytest
from support import urdf_arms
from support.three_joints import M, ThreeJoints
from support.urdf_arms import CLOSED_FORM, HEAVIEST_KG, model

from metactl_ros.dynamics import bounds
from metactl_ros.errors import ConfigError
from metactl_ros.settings import load_settings

FRICTION = load_settings().plant.friction
LAMBDA_PER_S, PERIOD_S = 5.0, 0.01
PUSH_RAD = 1e-3


def is_within(limits, q):
    return bool(((q >= limits.lower_rad) & (q <= limits.upper_rad)).all())


def test_sampled_postures_fill_the_joint_ranges_evenly_and_are_always_the_same():
    limits = ThreeJoints().limits
    q = bounds.workspace_postures(limits)
    assert is_within(limits, q)
    np.testing.assert_array_equal(q, bounds.workspace_postures(limits))
    shares = (q[:-2] - limits.lower_rad) / (limits.upper_rad - limits.lower_rad)
    cells, counts = np.unique((shares * 4).astype(int), axis=0, return_counts=True)
    assert len(cells) == 4**3
    assert counts.min() >= 0.5 * len(shares) / 4**3


def test_a_climb_finds_a_peak_between_samples_and_one_at_the_end_of_a_range():
    limits, peak = ThreeJoints().limits, np.array([0.1234, -1.4321, 2.5])
    inside, outside = bounds.worst_postures(
        lambda q: np.stack([-np.sum((q - peak) ** 2, axis=-1), q.sum(axis=-1)], axis=-1), limits
    )
    np.testing.assert_allclose(inside.q_rad, peak, atol=1e-3)
    np.testing.assert_allclose(outside.q_rad, limits.upper_rad, atol=1e-9)


def test_an_inertia_that_never_changes_is_its_own_bound():
    arm = ThreeJoints()
    least = [at.value for at in bounds.effective_inertias(arm)]
    np.testing.assert_allclose(least, 1.0 / np.diag(np.linalg.inv(M)), rtol=1e-12)
    assert bounds.least_inertia(arm).value == pytest.approx(arm.smallest_inertia_kgm2())


def test_the_brake_of_the_two_link_arm_is_that_of_its_stretched_posture():
    inverse = np.linalg.inv(CLOSED_FORM.body().inertia_matrix(np.zeros(2)))
    expected = 1.0 / (2 * PERIOD_S * np.diag(inverse))
    found = bounds.brake_damping(CLOSED_FORM, PERIOD_S)
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    np.testing.assert_allclose(found, [73.5, 8.6], atol=0.06)


@pytest.mark.parametrize('name', ['ur5e', 'fr3'])
def test_the_brake_turns_no_velocity_round_in_any_posture(name):
    arm = model(name)
    rng = np.random.default_rng(3)
    q = rng.uniform(arm.limits.lower_rad, arm.limits.upper_rad, (2000, len(arm.joint_names)))
    D = bounds.brake_damping(arm, PERIOD_S)
    shares = PERIOD_S * np.linalg.solve(arm.body().inertia_matrix(q), np.diag(D))
    # The trace may exceed 1 by as much as sampling misses of the maximum.
    assert np.trace(shares, axis1=-2, axis2=-1).max() <= 1.01
    assert np.linalg.eigvals(shares).real.max() < 1.0


def test_the_friction_step_of_equal_dampers_is_that_of_the_least_inertia():
    found = bounds.friction_step(CLOSED_FORM, FRICTION, PERIOD_S)
    D = FRICTION.static_nm / FRICTION.smoothing_velocity_radps + FRICTION.viscous_nmsprad
    expected = D * PERIOD_S / CLOSED_FORM.smallest_inertia_kgm2()
    assert found.value == pytest.approx(expected, rel=1e-6)
    bounds.require_friction_step(CLOSED_FORM, FRICTION, PERIOD_S)


def test_friction_too_steep_for_its_step_is_refused_with_the_posture():
    steep = replace(FRICTION, smoothing_velocity_radps=FRICTION.smoothing_velocity_radps / 10.0)
    with pytest.raises(
        ConfigError, match=r'is at most 2\.0 at rest.* found .* at q = \[.*shorten'
    ):
        bounds.require_friction_step(CLOSED_FORM, steep, PERIOD_S)


def slid(arm, friction, dt_s):
    """Return how fast the arm is after 300 explicit steps from a small velocity, rad / s."""
    at = bounds.friction_step(arm, friction, dt_s)
    num_joints = len(arm.joint_names)
    damping = friction.static_nm / friction.smoothing_velocity_radps + friction.viscous_nmsprad
    posture = arm.body().at(at.q_rad, np.zeros(num_joints))
    qd = 1e-6 * np.random.default_rng(0).uniform(-1.0, 1.0, num_joints)
    for _ in range(300):
        qd = qd - dt_s * posture.solve(damping * qd)
    return at.value, np.abs(qd).max()


@pytest.mark.parametrize(('share', 'grows'), [(0.98, False), (1.02, True)])
def test_explicit_friction_at_rest_grows_just_beyond_the_condition(share, grows):
    arm = model('fr3')
    at = bounds.friction_step(arm, FRICTION, PERIOD_S)
    dt_s = share * bounds.STABLE_STEP / at.value * PERIOD_S
    _, speed = slid(arm, FRICTION, dt_s)
    assert (speed > 1e-6) == grows


def departure(arm, kd, payload_kg, at):
    """Return how far from a posture in which it could rest the arm gets within 12 s, rad.

    It begins `PUSH_RAD` beside it; the reference is where this posture sags from.
    """
    q, dt_s, rest = at.q_rad.copy(), 1e-3, np.zeros_like(at.q_rad)
    model_at, loaded, per_kg = arm.body(), arm.body(payload_kg), arm.body_per_kg()
    sag = payload_kg * model_at.at(q, rest).solve(per_kg.at(q, rest).gravity)
    reference = q + sag / (kd * LAMBDA_PER_S)
    q, qd = q + PUSH_RAD * np.random.default_rng(0).choice([-1.0, 1.0], len(q)), rest
    for _ in range(12_000):
        e = reference - q
        known, true = model_at.at(q, qd), loaded.at(q, qd)
        torque = known.apply(kd * (LAMBDA_PER_S * e - qd)) + known.bias
        qd = qd + dt_s * true.solve(torque - true.bias)
        q = q + dt_s * qd
        if np.abs(q - at.q_rad).max() > 0.1:
            break
    return np.abs(q - at.q_rad).max()


@pytest.mark.parametrize('name', ['two_link', 'ur5e', 'fr3'])
def test_below_the_least_kd_the_arm_falls_and_above_it_holds(name):
    arm, payload_kg = model(name), HEAVIEST_KG[name]
    at = bounds.least_kd(arm, payload_kg, LAMBDA_PER_S)
    assert is_within(arm.limits, at.q_rad)
    assert departure(arm, 0.7 * at.value, payload_kg, at) > 0.1
    assert departure(arm, 1.2 * at.value, payload_kg, at) < 0.5 * PUSH_RAD


def test_the_least_kd_grows_with_the_payload_and_falls_with_lambda():
    one = bounds.least_kd(CLOSED_FORM, 1.0, LAMBDA_PER_S).value
    assert one > 0.0
    twice = bounds.least_kd(CLOSED_FORM, 2.0, LAMBDA_PER_S).value
    assert twice == pytest.approx(2.0 * one, rel=1e-6)
    stiffer = bounds.least_kd(CLOSED_FORM, 1.0, (10.0, 10.0)).value
    assert stiffer == pytest.approx(0.5 * one, rel=1e-6)


def test_an_arm_whose_payload_weighs_nothing_needs_no_kd():
    assert bounds.least_kd(replace(CLOSED_FORM, gravity_mps2=0.0), 1.5, LAMBDA_PER_S).value == 0.0


def test_the_bounds_of_the_closed_form_are_those_of_its_urdf():
    arm = urdf_arms.model('two_link')
    for found, expected in zip(
        [*bounds.effective_inertias(arm), bounds.least_kd(arm, 1.5, 5.0)],
        [*bounds.effective_inertias(CLOSED_FORM), bounds.least_kd(CLOSED_FORM, 1.5, 5.0)],
        strict=True,
    ):
        assert found.value == pytest.approx(expected.value, rel=1e-6)
