# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
from dataclasses import replace
import json
from pathlib import Path

import numpy as np
import pytest
from support.situations import LAW, LAYOUT, MODEL, SETTINGS, Situation

from metactl_ros.control.law import (
    AdmissibleGains,
    computed_torque,
    holding_torque,
    nominal_gains,
)
from metactl_ros.control.lyapunov import (
    certificate_matrix,
    closed_loop_matrix,
    LyapunovFunction,
    rate_bound,
    solve_lyapunov,
)
from metactl_ros.errors import ConfigError

SHIPPED = SETTINGS.controller.lyapunov
ROOT = Path(__file__).resolve().parents[2]


def function(**changes):
    return LyapunovFunction(replace(SHIPPED, **changes), LAW, SETTINGS.arm.sample_inertias())


def half_space(here, lyapunov):
    return lyapunov.half_space(here.posture, here.error, here.features, here.estimate_nm)


def value_of(lyapunov, q_desired, qd_desired, q, qd):
    e, e_dot = q_desired - q, qd_desired - qd
    xi = np.concatenate([e, e_dot + LAW.slope_per_s * e])
    return 0.5 * xi @ lyapunov.P @ xi


@pytest.mark.parametrize('seed', range(30))
def test_the_half_space_is_the_rate_of_v_along_a_simulated_nominal_step(seed):
    here, lyapunov = Situation(seed), function()
    theta = here.rng.uniform([10, 10, 1, 1, -6, -6, -3, -3], [60, 60, 10, 10, 6, 6, 3, 3])
    gains = AdmissibleGains(theta)
    hold = holding_torque(here.bias, here.features, gains)
    tau = computed_torque(here.posture, hold, here.qdd_desired, here.features, gains)
    qdd = MODEL.forward_dynamics(here.q, here.qd, tau)

    def value_after(dt):
        q = here.q + dt * here.qd + 0.5 * dt**2 * qdd
        qd = here.qd + dt * qdd
        q_desired = here.q_desired + dt * here.qd_desired + 0.5 * dt**2 * here.qdd_desired
        return value_of(lyapunov, q_desired, here.qd_desired + dt * here.qdd_desired, q, qd)

    h = 1e-5
    v_dot = (value_after(h) - value_after(-h)) / (2 * h)
    expected = v_dot + lyapunov.alpha_per_s * (value_after(0.0) - lyapunov.target_level)
    found = half_space(here, lyapunov)
    assert found.excess(theta) == pytest.approx(expected, rel=1e-6, abs=1e-6)
    assert found.value == pytest.approx(value_after(0.0), rel=1e-12)


def test_the_bound_is_the_rate_at_which_the_condition_is_just_met():
    here, lyapunov = Situation(3), function()
    space = half_space(here, lyapunov)
    theta = nominal_gains(LAW, LAYOUT, 2)
    v_dot = space.excess(theta) - lyapunov.alpha_per_s * (space.value - lyapunov.target_level)
    assert v_dot - rate_bound(lyapunov, space.value) == pytest.approx(space.excess(theta))


def test_the_half_space_does_not_depend_on_the_reference_acceleration():
    here, lyapunov = Situation(1), function()
    before = half_space(here, lyapunov)
    here.qdd_desired = here.qdd_desired + 7.0
    for found, expected in zip(half_space(here, lyapunov), before, strict=True):
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize('seed', range(5))
def test_missing_effort_raises_the_rate_by_its_pull(seed):
    here, lyapunov = Situation(seed), function()
    theta, missing = nominal_gains(LAW, LAYOUT, 2), np.array([3.0, -2.0])
    gains = AdmissibleGains(theta)
    hold = holding_torque(here.bias, here.features, gains)
    tau = computed_torque(here.posture, hold, here.qdd_desired, here.features, gains)
    rates = []
    for torque in (tau, tau - missing):
        qdd = MODEL.forward_dynamics(here.q, here.qd, torque)
        e_dot = here.error.e_dot_radps
        s_dot = here.qdd_desired - qdd + LAW.slope_per_s * e_dot
        xi = np.concatenate([here.error.e_rad, here.error.s_radps])
        rates.append(xi @ lyapunov.P @ np.concatenate([e_dot, s_dot]))
    pull = half_space(here, lyapunov).Minv_w @ missing
    assert rates[1] - rates[0] == pytest.approx(pull, rel=1e-9, abs=1e-9)


def test_the_nominal_closed_loop_is_the_matrix_that_p_is_solved_for():
    A = closed_loop_matrix(LAW, 2)
    expected = np.block([[-5.0 * np.eye(2), np.eye(2)], [np.zeros((2, 2)), -30.0 * np.eye(2)]])
    np.testing.assert_array_equal(A, expected)
    other = closed_loop_matrix(replace(LAW, nominal_lambda_per_s=3.0), 1)
    xi = np.array([0.2, -0.7])  # e, s; e_dot = s - 5 e, s_dot = 5 e_dot - 3 e_dot - 30 s
    e_dot = xi[1] - 5.0 * xi[0]
    np.testing.assert_allclose(other @ xi, [e_dot, 2.0 * e_dot - 30.0 * xi[1]])


def test_the_nominal_closed_loop_has_the_gains_of_each_joint():
    law = replace(LAW, nominal_kd_per_s=(30.0, 20.0, 10.0), nominal_lambda_per_s=(5.0, 3.0, 8.0))
    A = closed_loop_matrix(law, 3)
    for joint in range(3):
        kd, slope = law.nominal_kd_per_s[joint], law.nominal_lambda_per_s[joint]
        alone = replace(LAW, nominal_kd_per_s=kd, nominal_lambda_per_s=slope)
        own = [joint, joint + 3]
        np.testing.assert_array_equal(A[np.ix_(own, own)], closed_loop_matrix(alone, 1))
        A[np.ix_(own, own)] = 0.0
    assert not A.any()


def test_a_p_that_is_not_definite_is_refused_though_q_is():
    """With alpha above 2 Lambda_0 there is such a P: V would be no measure of the error."""
    P = np.diag([-1.0, -1.0, 1.0, 1.0])
    assert np.linalg.eigvalsh(certificate_matrix(P, LAW, 20.0)).min() > 0.0
    with pytest.raises(ConfigError, match=r'symmetric positive definite.* found -1'):
        function(p_matrix=tuple(map(tuple, P.tolist())), alpha_per_s=20.0)


def assert_nominal_gains_are_admissible_everywhere(P, seed):  # noqa: N803
    """Assert it by the eigenvalues of Q, and by the half-space at random states, v_0 = 0."""
    assert np.linalg.eigvalsh(certificate_matrix(P, LAW, SHIPPED.alpha_per_s)).min() > 0.0
    p_matrix = tuple(map(tuple, P.tolist()))
    here = Situation(seed, (100,), error_rad=1.0)
    space = half_space(here, function(p_matrix=p_matrix, target_error_rad=0.0))
    assert np.all(space.excess(nominal_gains(LAW, LAYOUT, 2)) <= 0.0)


def test_the_nominal_gains_are_admissible_at_every_state_for_the_shipped_p():
    assert_nominal_gains_are_admissible_everywhere(function().P, 0)


def test_the_nominal_gains_are_admissible_at_every_state_for_1000_random_q():
    rng = np.random.default_rng(0)
    for seed in range(1000):
        factor = rng.normal(size=(4, 4))
        Q = factor @ factor.T + 1e-3 * np.eye(4)
        P = solve_lyapunov(Q, LAW, SHIPPED.alpha_per_s)
        assert np.trace(P) == pytest.approx(4.0)
        scaled = certificate_matrix(P, LAW, SHIPPED.alpha_per_s)
        np.testing.assert_allclose(scaled / np.trace(scaled), Q / np.trace(Q), atol=1e-9)
        assert_nominal_gains_are_admissible_everywhere(P, seed)


@pytest.mark.parametrize('seed', range(6))
def test_a_disturbance_margin_shrinks_the_set(seed):
    here = Situation(seed)
    plain, wary = (half_space(here, function(disturbance_radps2=d)) for d in (0.0, 2.0))
    np.testing.assert_array_equal(wary.normal, plain.normal)
    xi = np.concatenate([here.error.e_rad, here.error.s_radps])
    w = (function().P @ xi)[2:]
    assert wary.constant - plain.constant == pytest.approx(2.0 * np.abs(w).sum())


def test_the_target_level_is_the_value_of_its_error_in_the_stiffest_direction():
    lyapunov = function()
    e = np.linalg.eigh(lyapunov.P[:2, :2])[1][:, -1] * SHIPPED.target_error_rad
    assert 0.5 * e @ lyapunov.P[:2, :2] @ e == pytest.approx(lyapunov.target_level)
    assert function(target_error_rad=0.0).target_level == 0.0


@pytest.mark.parametrize('bad', [np.diag([1.0, 1.0, -1.0, 1.0]), np.diag([1e3, 1e3, 1.0, 1.0])])
def test_a_p_that_does_not_certify_the_nominal_gains_is_refused(bad):
    with pytest.raises(ConfigError, match=r'certify the nominal gains.*training.lyapunov_fit'):
        function(p_matrix=tuple(map(tuple, bad.tolist())))


def test_a_lopsided_p_is_refused():
    bad = function().P + np.triu(np.full((4, 4), 1e-3), 1)
    with pytest.raises(ConfigError, match='symmetric'):
        function(p_matrix=tuple(map(tuple, bad.tolist())))


def test_a_p_of_the_wrong_size_is_refused():
    for bad in (((1.0, 0.0), (0.0, 1.0)), ((1.0,) * 4, (1.0,) * 3, (1.0,) * 4, (1.0,) * 4)):
        with pytest.raises(ConfigError, match='expected 4 rows and columns of finite numbers'):
            function(p_matrix=bad)


def test_a_p_that_is_not_finite_is_refused():
    with pytest.raises(ConfigError, match='finite numbers'):
        function(p_matrix=((np.nan,) * 4,) * 4)


def test_a_decay_faster_than_the_nominal_gains_have_is_refused():
    with pytest.raises(ConfigError, match=r'below 2 Lambda_0 = 10\.0'):
        solve_lyapunov(np.eye(4), LAW, 10.0)


def test_the_shipped_p_is_the_fitted_one():
    fitted = json.loads((ROOT / 'results' / 'lyapunov.json').read_text())
    np.testing.assert_array_equal(SHIPPED.p_matrix, fitted['p_matrix'])
    for rate in fitted['violation_rate'].values():
        assert rate['fitted'] < rate['identity']


def test_a_batch_equals_its_arms_one_by_one():
    lyapunov, together = function(), Situation(5, (7,))
    batch = half_space(together, lyapunov)
    for k in range(7):
        alone = half_space(together.of_arm(k), lyapunov)
        np.testing.assert_allclose(alone.normal, batch.normal[k], rtol=1e-12)
        assert alone.constant == pytest.approx(batch.constant[k], rel=1e-12)
