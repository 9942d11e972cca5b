# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
from hypothesis import given
from hypothesis import strategies as st
import numpy as np
import pytest
from support.episodes import start
from support.estimator_inputs import (
    ARM,
    assert_batch_equals_arms,
    at_goal,
    estimator_input,
    LAW,
    NO_FRICTION,
    ride,
)

from metactl_ros.control.estimators.choice import EstimatorSettings
from metactl_ros.control.estimators.disturbance import (
    Integral,
    IntegralSettings,
    MomentumObserver,
    MomentumObserverSettings,
)
from metactl_ros.control.estimators.estimator import Estimation
from metactl_ros.control.law import TrackingState
from metactl_ros.motion.reference import Hold
from metactl_ros.signals import ArmState, Reference
from metactl_ros.sim.rk4_arm import Rk4Arm

MODEL = ARM.body()
K_I = 200.0
INTEGRAL = EstimatorSettings(integral=IntegralSettings(rate_per_s2=K_I))
LACK_RADPS2 = np.array([2.0, -3.0])

BANDWIDTH = 20.0
MOMENTUM = MomentumObserverSettings(bandwidth_radps=BANDWIDTH)
LACK_NM = np.array([4.0, -2.5])
STEP_S = 1e-3  # of the recorded motions

angles = st.floats(-np.pi, np.pi)
rates = st.floats(-8.0, 8.0)
pairs = st.tuples(rates, rates).map(np.array)


@given(q=st.tuples(angles, angles).map(np.array), qd=pairs, v=pairs, payload=st.floats(0.0, 1.5))
def test_the_coriolis_torque_is_the_matrix_times_any_velocity(q, qd, v, payload):
    body = ARM.body(payload)
    expected = body.coriolis_matrix(q, qd) @ v
    found = body.at(q, qd).coriolis(v)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12)


@given(q=st.tuples(angles, angles).map(np.array), qd=pairs, payload=st.floats(0.0, 1.5))
def test_the_momentum_flow_is_the_transposed_matrix_times_the_velocity(q, qd, payload):
    body = ARM.body(payload)
    expected = body.coriolis_matrix(q, qd).T @ qd
    found = body.at(q, qd).momentum_flow
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12)


LARGEST_NM = (150.0, 60.0)


def lack_at(state):
    return MODEL.at(state.q_rad, state.qd_radps).apply(LACK_RADPS2)


def integral_ride(slow, fast, rate_hz, duration_s, **options):
    """Ride with the gains that put the poles at -slow and -fast."""
    kd, ki = slow + fast, slow * fast
    estimator = EstimatorSettings(integral=IntegralSettings(rate_per_s2=ki))
    theta, steps = (kd, kd, 5.0, 5.0, 0.0, 0.0, 1.0, 1.0), round(duration_s * rate_hz)
    return ride(estimator, theta, steps, rate_hz=rate_hz, push=lack_at, **options)


@pytest.mark.parametrize(('slow', 'fast'), [(10.0, 20.0), (5.0, 50.0)])
def test_integral_action_answers_a_constant_lack_with_the_two_poles_of_its_gains(slow, fast):
    """s_ddot + K_d s_dot + k_i s = a_dot, up to what a period delays: linear in its length."""
    misses = []
    for rate_hz in (500.0, 1000.0):
        run = integral_ride(slow, fast, rate_hz, 0.6)
        shape = (np.exp(-slow * run.time_s) - np.exp(-fast * run.time_s)) / (fast - slow)
        expected = np.outer(shape, LACK_RADPS2)
        misses.append(np.abs(run.s - expected).max() / np.abs(expected).max())
    assert misses[1] < 0.013
    assert misses[0] / misses[1] == pytest.approx(2.0, abs=0.1)


def test_integral_action_leaves_no_error_and_ends_at_what_is_lacking():
    posture = np.array([0.3, 0.4])
    run = integral_ride(10.0, 20.0, 500.0, 2.4, motion=Hold(posture))
    lack_nm = lack_at(ArmState(0, posture, np.zeros(2)))
    np.testing.assert_allclose(run.q[-1], posture, rtol=0, atol=1e-6)
    np.testing.assert_allclose(run.estimate_nm[-1], lack_nm, rtol=0, atol=1e-6)


def lag(seed):
    rng = np.random.default_rng(seed)
    q, qd = rng.uniform(-1, 1, (2, 2))
    return q, qd, Reference(q + rng.normal(0, 0.1, 2), qd + rng.normal(0, 0.3, 2), np.zeros(2))


def test_the_integral_grows_with_the_sliding_variable():
    estimator = Integral(IntegralSettings(rate_per_s2=K_I), LARGEST_NM)
    q, qd, wanted = lag(0)
    assert not estimator.update(estimator_input(q, qd, wanted, passed_s=0.0)).any()
    found = estimator.update(estimator_input(q, qd, wanted, passed_s=0.02))
    s = wanted.qd_radps - qd + 5.0 * (wanted.q_rad - q)
    expected = MODEL.at(q, qd).apply(K_I * 0.02 * s)
    np.testing.assert_allclose(found, expected, rtol=1e-12)


def test_the_integral_stands_still_while_it_may_not_learn():
    estimator = Integral(IntegralSettings(rate_per_s2=K_I), LARGEST_NM)
    q, qd, wanted = lag(1)
    before = estimator.update(estimator_input(q, qd, wanted))
    for _ in range(5):
        found = estimator.update(estimator_input(q, qd, wanted, learn=False))
        np.testing.assert_array_equal(found, before)
    assert estimator.update(estimator_input(q, qd, wanted)) == pytest.approx(2 * before)


def test_a_reset_forgets_the_integral():
    estimator = Integral(IntegralSettings(rate_per_s2=K_I), LARGEST_NM)
    q, qd, wanted = lag(2)
    assert np.abs(estimator.update(estimator_input(q, qd, wanted))).min() > 0.1
    estimator.reset()
    assert not estimator.update(estimator_input(q, qd, wanted, passed_s=0.0)).any()


def recorded(lack_nm, num_steps=1200):
    """Return states 1 ms apart and the efforts between them, new ones at random every 20 ms."""
    rng = np.random.default_rng(0)
    plant = Rk4Arm(ARM, NO_FRICTION, 1.0 / STEP_S)
    states, efforts = [plant.reset(start([0.3, 0.4], [0.5, -0.8]))], []
    for k in range(num_steps):
        if k % 20 == 0:
            gravity = MODEL.gravity(states[-1].q_rad)
            effort = gravity + rng.uniform(-1, 1, 2) * [12.0, 5.0]
        efforts.append(effort)
        states.append(plant.step(effort - lack_nm))
    assert np.abs(np.array([state.qd_radps for state in states])).max() > 3.0
    return states, np.array(efforts)


@pytest.fixture(scope='module', params=[LACK_NM, np.zeros(2)], ids=['lack', 'none'])
def motion(request):
    return (request.param, *recorded(request.param))


def misses(motion, every):
    """Return how far the estimates are from d (1 - e^(-K t)), with a state every so many ms."""
    lack_nm, states, efforts = motion
    observer = MomentumObserver(MOMENTUM, LARGEST_NM)
    found, expected = [], []
    for k in range(0, len(states), every):
        acted = efforts[k - every : k].mean(axis=0) if k else np.zeros(2)
        here = at_goal(
            states[k].q_rad, states[k].qd_radps, passed_s=every * STEP_S, effort_nm=acted
        )
        found.append(observer.update(here))
        expected.append(lack_nm * -np.expm1(-BANDWIDTH * k * STEP_S))
    return np.abs(np.array(found) - expected).max()


def test_the_momentum_observer_is_a_first_order_filter_of_what_lacks_whatever_the_arm_does(motion):
    """Up to the trapezoid between two states, which falls with the square of their distance."""
    far, near, nearest = (misses(motion, every) for every in (20, 10, 5))
    assert near < 0.011  # N m, at 100 Hz
    assert far / near == pytest.approx(4.0, abs=0.1)
    assert near / nearest == pytest.approx(4.0, abs=0.1)


def test_a_lost_state_changes_little_of_what_the_momentum_observer_estimates(motion):
    lack_nm, states, efforts = motion
    observer = MomentumObserver(MOMENTUM, LARGEST_NM)
    estimation = Estimation(observer, LAW, MODEL, LARGEST_NM, 10_000_000)
    nothing = np.zeros(2)
    estimation.reset(nothing)
    for k in range(0, len(states), 10):
        if (k // 10) % 3 != 1:  # every third is lost
            q, qd = states[k].q_rad, states[k].qd_radps
            seen = TrackingState(q, qd, q, qd, nothing)
            estimation.observe(states[k].stamp_ns, seen, np.array(True), 0.0, None)
            expected = lack_nm * -np.expm1(-BANDWIDTH * k * STEP_S)
            # Four times what a state every 10 ms leaves.
            np.testing.assert_allclose(estimation.estimate_nm, expected, rtol=0, atol=0.044)
        if k < len(efforts):
            effort_nm = efforts[k : k + 10].mean(axis=0)
            estimation.record_effort(effort_nm, np.array(True), np.array(True))


def test_the_momentum_observer_knows_nothing_at_first_and_after_a_reset():
    observer = MomentumObserver(MOMENTUM, LARGEST_NM)
    here = at_goal([0.3, 0.4], [0.5, -0.8], effort_nm=[30.0, -10.0])
    for _ in range(2):
        assert not observer.update(here).any()
        assert np.abs(observer.update(here)).min() > 0.1
        observer.reset()


def test_the_momentum_observer_learns_whether_it_is_in_force_or_not():
    observer = MomentumObserver(MOMENTUM, LARGEST_NM)
    found = []
    for learn in (True, False):
        here = at_goal([0.3, 0.4], [0.5, -0.8], effort_nm=[30.0, -10.0], learn=learn)
        observer.update(here)
        found.append(observer.update(here))
        observer.reset()
    np.testing.assert_array_equal(found[0], found[1])


@pytest.mark.parametrize('settings', [INTEGRAL, EstimatorSettings(momentum_observer=MOMENTUM)])
def test_a_batch_equals_its_arms_one_by_one(settings):
    assert_batch_equals_arms(settings)


def test_an_integral_that_fills_the_effort_can_only_shrink_and_never_exceeds_it():
    estimator = Integral(IntegralSettings(rate_per_s2=K_I), LARGEST_NM)
    rest = at_goal([0.0, 0.5], [0.0, 0.0])

    def lagging(s_radps, may_learn):
        error = rest.error._replace(s_radps=np.full(2, s_radps))
        return rest._replace(passed_s=0.01, may_learn=np.array(may_learn), error=error)

    full = estimator.update(lagging(1e6, True))
    M = MODEL.inertia_matrix(rest.at.q)
    alone = np.array(LARGEST_NM) / np.diag(M)
    np.testing.assert_allclose(full, M @ alone, rtol=1e-12)
    np.testing.assert_array_equal(estimator.update(lagging(1e6, False)), full)
    assert (np.abs(estimator.update(lagging(-1e-3, False))) < np.abs(full)).all()
