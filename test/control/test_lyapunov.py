# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
from dataclasses import replace
import json
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st
import numpy as np
import pytest
from support.situations import LAW, LAYOUT, MODEL, SETTINGS, Situation
from support.three_joints import controller_for_three, GAIN_BOX, ThreeJoints
from support.three_joints import LAW as LAW_OF_THREE

from metactl_ros.control.estimators.choice import EstimatorSettings
from metactl_ros.control.estimators.disturbance import MomentumObserverSettings
from metactl_ros.control.law import (
    AdmissibleGains,
    computed_torque,
    GainLayout,
    holding_torque,
    make_features,
    nominal_gains,
    TrackingError,
)
from metactl_ros.control.lyapunov import (
    certificate_matrix,
    closed_loop_matrix,
    error_radius,
    LyapunovFunction,
    margin_level,
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


# What follows is about plants that lack something, and a shield that counts on an estimate of it.
AWARE = GainLayout(True, ('bias', 'estimate'))
INERTIAS = SETTINGS.arm.sample_inertias()
lacks = st.tuples(st.floats(-20.0, 20.0), st.floats(-20.0, 20.0)).map(np.array)
rhos = st.tuples(st.floats(0.0, 3.0), st.floats(1e-3, 3.0))
seeds = st.integers(0, 10_000)
sizes = st.sampled_from([1e-4, 1e-2, 0.3, 3.0])


def random_p(seed):
    factor = np.random.default_rng(seed).normal(size=(4, 4))
    P = solve_lyapunov(factor @ factor.T + 1e-2 * np.eye(4), LAW, SHIPPED.alpha_per_s)
    return tuple(map(tuple, P.tolist()))


def true_rate(here, lyapunov, theta, lack_nm):
    """Return V_dot of a plant that lacks d, by finite differences over a step of it."""
    gains = AdmissibleGains(theta)
    hold = holding_torque(here.bias, here.features, gains)
    tau = computed_torque(here.posture, hold, here.qdd_desired, here.features, gains)
    qdd = MODEL.forward_dynamics(here.q, here.qd, tau - lack_nm)

    def value_after(dt):
        q = here.q + dt * here.qd + 0.5 * dt**2 * qdd
        q_desired = here.q_desired + dt * here.qd_desired + 0.5 * dt**2 * here.qdd_desired
        rates = (here.qd_desired + dt * here.qdd_desired, here.qd + dt * qdd)
        return value_of(lyapunov, q_desired, rates[0], q, rates[1])

    h = 1e-5
    return (value_after(h) - value_after(-h)) / (2 * h)


def random_theta(rng):
    return rng.uniform([10, 10, 1, 1, 0, 0, -6, -6, 0, 0], [60, 60, 10, 10, 900, 900, 6, 6, 1, 1])


@given(seed=seeds, off=lacks)
def test_the_half_space_is_the_rate_of_v_on_a_plant_that_lacks_what_is_estimated(seed, off):
    here, lyapunov = Situation(seed, layout=AWARE), function()
    theta = random_theta(here.rng)
    space = half_space(here, lyapunov)
    rate = true_rate(here, lyapunov, theta, here.estimate_nm + off)
    expected = rate + lyapunov.alpha_per_s * (space.value - lyapunov.target_level)
    found = space.excess(theta) + space.Minv_w @ off
    assert found == pytest.approx(expected, rel=1e-5, abs=1e-4)


@given(seed=seeds, rho=rhos, share=st.tuples(st.floats(-1.0, 1.0), st.floats(-1.0, 1.0)))
def test_with_a_margin_the_half_space_bounds_v_for_every_lack_within_it(seed, rho, share):
    here, lyapunov = Situation(seed, layout=AWARE), function(rho_nm=rho)
    theta = random_theta(here.rng)
    space = half_space(here, lyapunov)
    worst = np.sign(space.Minv_w)

    def excess(off):
        rate = true_rate(here, lyapunov, theta, here.estimate_nm + off * np.array(rho))
        return rate + lyapunov.alpha_per_s * (space.value - lyapunov.target_level)

    assert space.excess(theta) == pytest.approx(excess(worst), rel=1e-5, abs=1e-4)
    assert excess(np.array(share)) <= excess(worst) + 1e-4 * (1.0 + abs(excess(worst)))


@given(seed=seeds, size=sizes, rho=rhos)
def test_the_nominal_gains_are_admissible_with_the_margin_at_every_state(seed, size, rho):
    here = Situation(seed, (50,), error_rad=size, layout=AWARE)
    lyapunov = function(p_matrix=random_p(seed), rho_nm=rho)
    space = half_space(here, lyapunov)
    excess = space.excess(nominal_gains(LAW, AWARE, 2))
    rounding = 1e-12 * (np.abs(space.normal).sum(axis=-1) * 30.0 + np.abs(space.constant))
    assert np.all(excess <= rounding)


@given(seed=seeds, rho=rhos)
def test_the_level_of_a_margin_is_the_least_that_the_nominal_gains_can_keep(seed, rho):
    """At the worst state of all they meet the condition with nothing to spare."""
    lyapunov = function(p_matrix=random_p(seed), rho_nm=rho)
    Q = certificate_matrix(lyapunov.P, LAW, lyapunov.alpha_per_s)
    worst = -np.inf
    for q2 in (0.0, np.pi):
        for sign in (1.0, -1.0):
            posture = MODEL.at(np.array([0.0, q2]), np.zeros(2))
            off = posture.solve(np.array([rho[0], sign * rho[1]]))
            xi = np.linalg.solve(Q, lyapunov.P[2:].T @ off)
            error = TrackingError(xi[:2], xi[2:] - LAW.slope_per_s * xi[:2], xi[2:])
            lack = np.array([2.0, -1.0])
            features = make_features(LAW, AWARE, error, np.zeros(2), lack)
            space = lyapunov.half_space(posture, error, features, lack)
            worst = max(worst, float(space.excess(nominal_gains(LAW, AWARE, 2))))
    scale = lyapunov.alpha_per_s * lyapunov.target_level
    assert worst == pytest.approx(0.0, abs=1e-8 * scale)


@given(seed=seeds, rho=rhos)
def test_no_posture_between_the_sampled_ones_needs_a_higher_level(seed, rho):
    P, alpha, q2 = np.array(random_p(seed)), SHIPPED.alpha_per_s, np.linspace(-np.pi, np.pi, 5001)
    dense = MODEL.inertia_matrix(np.stack([np.zeros_like(q2), q2], axis=-1))
    sampled, all_of_them = (
        margin_level(P, LAW, alpha, np.array(rho), np.linalg.inv(M)) for M in (INERTIAS, dense)
    )
    assert all_of_them <= sampled * (1.0 + 1e-12)


def test_the_level_of_a_margin_grows_with_its_square():
    one, twice = (function(rho_nm=(k * 0.11, k * 0.1)).target_level for k in (1.0, 2.0))
    assert twice == pytest.approx(4.0 * one, rel=1e-12)
    assert function(rho_nm=(0.11, 0.1)).error_radius_rad == pytest.approx(0.0429, abs=1e-4)


@pytest.mark.parametrize('seed', range(5))
def test_the_certified_error_is_the_largest_within_the_level(seed):
    rng, P, level = np.random.default_rng(seed), np.array(random_p(seed)), 0.3
    radius = error_radius(P, level)
    xi = rng.normal(size=(100_000, 4))
    xi *= np.sqrt(2.0 * level / np.einsum('ni,ij,nj->n', xi, P, xi))[:, np.newaxis]
    reached = np.linalg.norm(xi[:, :2], axis=1).max()
    assert 0.95 * radius < reached <= radius


def test_three_joints_have_a_margin_of_their_own():
    rho = (0.4, 0.2, 0.1)
    observer = MomentumObserverSettings(bandwidth_radps=20.0)
    box = replace(GAIN_BOX, kp_per_s2=(0.0, 400.0))
    controller = controller_for_three(
        LAW_OF_THREE, box, EstimatorSettings(momentum_observer=observer)
    )
    settings = replace(controller.lyapunov, rho_nm=rho)
    lyapunov = LyapunovFunction(settings, LAW_OF_THREE, ThreeJoints().sample_inertias())
    rng, n = np.random.default_rng(0), 3
    e, e_dot, q, lack = (
        rng.normal(size=(4, 500, n)) * np.array([0.05, 0.3, 1.0, 5.0])[:, None, None]
    )
    error = TrackingError(e, e_dot, e_dot + LAW_OF_THREE.slope_per_s * e)
    features = make_features(LAW_OF_THREE, box.layout, error, 0.0 * e, lack)
    posture = ThreeJoints().body().at(q, 0.0 * q)
    space = lyapunov.half_space(posture, error, features, lack)
    excess = space.excess(nominal_gains(LAW_OF_THREE, box.layout, n))
    assert excess.max() <= 0.0
    plain = lyapunov.half_space(posture, error, features)
    margin = np.abs(space.Minv_w) @ np.array(rho) + np.sum(space.Minv_w * lack, axis=-1)
    np.testing.assert_allclose(space.constant - plain.constant, margin, atol=1e-9)


def test_two_margins_at_once_are_refused():
    with pytest.raises(ConfigError, match=r'rho_nm: expected one margin.* disturbance_radps2'):
        replace(SHIPPED, rho_nm=0.1, disturbance_radps2=1.0)
    with pytest.raises(ConfigError, match=r'LyapunovSettings\.rho_nm: expected'):
        replace(SHIPPED, rho_nm=(0.1, -0.1))
