# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
from dataclasses import replace
from itertools import pairwise

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
    FRICTION,
    LAW,
    NO_FRICTION,
)
from support.estimator_inputs import SETTINGS as SHIPPED

from metactl_ros.control.estimators.choice import EstimatorSettings
from metactl_ros.control.estimators.friction_observers import (
    LugreObserver,
    LugreSettings,
    Oracle,
    OracleSettings,
)
from metactl_ros.dynamics.friction import friction_torque
from metactl_ros.signals import Reference, seconds
from metactl_ros.sim.plant import SensedPlant
from metactl_ros.sim.rk4_arm import Rk4Arm

LUGRE = LugreSettings(
    stiffness_nmprad=100.0,
    damping_nmsprad=0.0,
    coulomb_nm=2.0,
    static_nm=3.0,
    stribeck_velocity_radps=0.1,
    viscous_nmsprad=0.5,
    correction=1.0,
)
SIGMA_0, SIGMA_2 = LUGRE.stiffness_nmprad, LUGRE.viscous_nmsprad
MODEL = ARM.body()
PER_KG = ARM.body_per_kg()
TRUTH = OracleSettings(friction=FRICTION, payload_kg=0.8, tau_z_s=2.0)
ONLY_MEMORY = replace(NO_FRICTION, memory_gain_nmprad=FRICTION.memory_gain_nmprad)

speeds = st.floats(0.01, 5.0) | st.floats(-5.0, -0.01)
angles = st.floats(-np.pi, np.pi)
rates = st.floats(-3.0, 3.0)


def level(v):
    return 2.0 + 1.0 * np.exp(-((v / 0.1) ** 2))


def moving(v, **options):
    """Return the input with two joints at one velocity, without an error."""
    return at_goal([0.0, 0.0], [v, v], **options)


@given(v=speeds)
def test_steady_sliding_gives_the_stribeck_curve(v):
    observer = LugreObserver(LUGRE)
    pace = SIGMA_0 * abs(v) / level(v)
    for _ in range(2):
        found = observer.update(moving(v, passed_s=20.0 / pace))  # e^-40 of the deflection is left
    expected = level(v) * np.sign(v) + SIGMA_2 * v
    assert found == pytest.approx([expected] * 2, rel=1e-8)


@given(v=speeds, deflection=st.floats(-0.03, 0.03), passed_s=st.floats(1e-4, 0.05))
def test_the_deflection_of_a_bristle_is_found_as_fast_as_the_joint_slides(v, deflection, passed_s):
    observer, pace = LugreObserver(LUGRE), SIGMA_0 * abs(v) / level(v)
    settled = level(v) * np.sign(v) / SIGMA_0
    observer.update(moving(v, passed_s=0.0))
    for k in range(1, 6):
        (found, _) = observer.update(moving(v, passed_s=passed_s))
        bristle = settled + (deflection - settled) * np.exp(-pace * k * passed_s)
        miss = SIGMA_0 * deflection * np.exp(-pace * k * passed_s)
        assert SIGMA_0 * bristle + SIGMA_2 * v - found == pytest.approx(miss, abs=1e-8)


def test_damping_adds_what_the_bristle_moves():
    v, dt = 0.3, 0.01
    plain, damped = LugreObserver(LUGRE), LugreObserver(replace(LUGRE, damping_nmsprad=0.7))
    for _ in range(3):
        (found, _), (force, _) = (o.update(moving(v, passed_s=dt)) for o in (damped, plain))
        x_dot = v - SIGMA_0 * v / level(v) * (force - SIGMA_2 * v) / SIGMA_0
        assert found - force == pytest.approx(0.7 * x_dot, abs=1e-9)
    assert abs(0.7 * x_dot) > 0.05


def lugre_ride(correction, dt):
    """Drive one joint with LuGre friction; return V, and what it must have lost so far.

    m v_dot = u - sigma_0 z,    u = m (v_d_dot + Lambda_0 e_dot + K_d s) + sigma_0 x
    V_dot = -K_d m s^2 - sigma_0^2 |v| / (k g) (z - x)^2
    """
    mass, kd, slope = 1.5, 30.0, LAW.slope_per_s
    observer = LugreObserver(replace(LUGRE, viscous_nmsprad=0.0, correction=correction))
    q, v, z, value, loss = 0.0, 0.0, -0.02, [], []
    for k in range(round(1.5 / dt)):
        t = k * dt
        wanted, rate, push = 0.2 * np.sin(3 * t), 0.6 * np.cos(3 * t), -1.8 * np.sin(3 * t)
        goal = Reference(*(np.array([x, x]) for x in (wanted, rate, push)))
        here = estimator_input(np.array([q, q]), np.array([v, v]), goal, passed_s=dt * (k > 0))
        (estimate, _) = observer.update(here)
        e_dot, s, miss = rate - v, here.error.s_radps[0], z - estimate / SIGMA_0
        value.append(0.5 * mass * s**2 + 0.5 * SIGMA_0 / correction * miss**2)
        loss.append(kd * mass * s**2 + SIGMA_0**2 * abs(v) / (correction * level(v)) * miss**2)
        u = mass * (push + slope * e_dot + kd * s) + estimate
        for _ in range(10):  # the joint itself, much finer
            z += 0.1 * dt * (v - SIGMA_0 * abs(v) / level(v) * z)
            v += 0.1 * dt * (u - SIGMA_0 * z) / mass
            q += 0.1 * dt * v
    lost = np.cumsum([0.0, *(0.5 * dt * (a + b) for a, b in pairwise(loss))])
    return np.array(value), lost


@pytest.mark.parametrize('correction', [0.1, 1.0, 3.0])
def test_the_lyapunov_function_loses_what_damping_and_sliding_take_and_nothing_else(correction):
    """Up to the length of a step: half as long, half as far off."""
    misses = []
    for dt in (1e-3, 5e-4):
        value, lost = lugre_ride(correction, dt)
        misses.append(np.abs(value[0] - value - lost).max() / value[0])
        assert value[-1] < 1e-6 * value[0]
    assert misses[1] < 0.01
    assert misses[0] / misses[1] == pytest.approx(2.0, abs=0.2)


def test_at_rest_the_bristle_moves_with_the_correction_alone():
    observer, zero = LugreObserver(LUGRE), np.zeros(2)
    ahead = Reference(zero, np.array([0.4, -0.2]), zero)
    for _ in range(1000):
        found = observer.update(estimator_input(zero, zero, ahead, passed_s=0.01))
    expected = SIGMA_0 * LUGRE.correction * 10.0 * ahead.qd_radps
    np.testing.assert_allclose(found, expected, rtol=1e-8)
    for _ in range(1000):
        found = observer.update(estimator_input(zero, zero, ahead, passed_s=0.01, learn=False))
    np.testing.assert_allclose(found, expected, rtol=3e-8)  # a rate of 1e-9 / s for 20 s


@pytest.mark.parametrize('v', [0.0, 5e-324, 1e-12, 1e6])
def test_no_velocity_gives_a_friction_that_is_not_finite(v):
    observer = LugreObserver(replace(LUGRE, damping_nmsprad=1.0))
    for passed_s in (0.0, 0.01, 0.05):
        found = observer.update(moving(v, passed_s=passed_s))
        assert np.all(np.abs(found) <= 3.0 + (LUGRE.viscous_nmsprad + 1.0) * v)


def test_a_reset_forgets_the_bristle():
    observer = LugreObserver(LUGRE)
    first = observer.update(moving(0.3))
    assert (observer.update(moving(0.3)) != first).all()
    observer.reset()
    np.testing.assert_array_equal(observer.update(moving(0.3)), first)


def oracle_miss(rate_hz, truth=TRUTH, sensing=SHIPPED.plant.sensing):
    """Return how far the oracle is from the memory of a simulated arm, and how large that is."""
    oracle = Oracle(replace(truth, friction=ONLY_MEMORY, payload_kg=0.0), PER_KG)
    plant = SensedPlant(Rk4Arm(ARM, FRICTION, rate_hz), sensing, rate_hz)
    state = plant.reset(start([0.3, 0.4], [0.8, -0.6], tau_z_s=truth.tau_z_s))
    misses, sizes = [], []
    for k in range(round(3.0 * rate_hz)):
        t = seconds(state.stamp_ns)
        here = at_goal(state.q_rad, state.qd_radps, time_s=t, passed_s=(k > 0) / rate_hz)
        misses.append(np.abs(oracle.update(here) - plant.memory_nm).max())
        sizes.append(np.abs(plant.memory_nm).max())
        drive = np.array([25.0 * np.cos(5.0 * t), -8.0 * np.cos(7.0 * t)])
        state = plant.step(drive + MODEL.gravity(state.q_rad))
    return max(misses), max(sizes)


DRIFT = {'tau_z_drift_to_s': 0.5, 'tau_z_drift_over_s': 2.0}


@pytest.mark.parametrize('drift', [{}, DRIFT], ids=['constant', 'drifting'])
def test_the_oracle_remembers_what_the_arm_remembers(drift):
    """Up to the trapezoid between two states, which falls with the square of their distance."""
    truth, sensing = replace(TRUTH, **drift), replace(SHIPPED.plant.sensing, **drift)
    (far, size), (near, _) = (oracle_miss(rate, truth, sensing) for rate in (100.0, 200.0))
    assert far < 5e-4 * size
    assert far / near == pytest.approx(4.0, abs=0.3)


def true_effort(payload_kg, q, qd, qdd, memory_nm=(0.0, 0.0)):
    true = ARM.body(payload_kg)
    rigid = true.inertia_matrix(q) @ qdd + true.at(q, qd).bias
    return rigid + friction_torque(FRICTION, qd, np.array(memory_nm))


def model_effort(q, qd, qdd):
    return MODEL.inertia_matrix(q) @ qdd + MODEL.at(q, qd).bias


pairs = st.tuples(rates, rates).map(np.array)


@given(q=st.tuples(angles, angles).map(np.array), qd=pairs, qdd=pairs, payload=st.floats(0.0, 1.5))
def test_on_its_reference_the_arm_gets_exactly_what_it_needs_from_model_and_oracle(
    q, qd, qdd, payload
):
    oracle = Oracle(replace(TRUTH, payload_kg=payload), PER_KG)
    given_nm = model_effort(q, qd, qdd) + oracle.update(at_goal(q, qd, qdd, passed_s=0.0))
    np.testing.assert_allclose(given_nm, true_effort(payload, q, qd, qdd), rtol=0, atol=1e-10)


def test_off_its_reference_payload_and_friction_are_those_of_the_reference():
    oracle = Oracle(TRUTH, PER_KG)
    q, qd, qd_desired, qdd_desired = np.random.default_rng(1).uniform(-1.5, 1.5, (4, 2))
    found = oracle.update(
        estimator_input(q, qd, Reference(q + 0.1, qd_desired, qdd_desired), passed_s=0.0)
    )
    needed = true_effort(TRUTH.payload_kg, q, qd_desired, qdd_desired)
    expected = needed - model_effort(q, qd_desired, qdd_desired)
    np.testing.assert_allclose(found, expected, rtol=1e-12)


@pytest.mark.parametrize(('step_kg', 'after_kg'), [(0.5, 1.3), (-0.5, 0.3), (-2.0, 0.0)])
def test_a_payload_that_changes_is_known_from_the_step_in_which_it_changes(step_kg, after_kg):
    change = {'payload_step_at_s': 0.05, 'payload_step_kg': step_kg}
    oracle = Oracle(replace(TRUTH, **change), PER_KG)
    sensing = replace(SHIPPED.plant.sensing, **change)
    plant = SensedPlant(Rk4Arm(ARM, FRICTION, 100.0), sensing, 100.0)
    q = np.array([0.3, 0.4])
    state = plant.reset(start(q, payload_kg=TRUTH.payload_kg))
    for k in range(10):
        t = seconds(state.stamp_ns)
        payload_kg = TRUTH.payload_kg if k < 5 else after_kg
        held = MODEL.gravity(q)
        held += oracle.update(at_goal(q, [0.0, 0.0], time_s=t))
        np.testing.assert_allclose(held, ARM.body(payload_kg).gravity(q))
        state = plant.step(held)
        np.testing.assert_allclose(state.q_rad, q, rtol=0, atol=1e-12)  # it holds the true arm


def test_a_reset_forgets_the_memory():
    oracle = Oracle(replace(TRUTH, friction=ONLY_MEMORY, payload_kg=0.0), PER_KG)
    for _ in range(2):
        assert not oracle.update(moving(0.5, passed_s=0.0)).any()
        assert oracle.update(moving(0.5)) == pytest.approx([4.6 * 0.005] * 2, rel=0.01)
        oracle.reset()


@pytest.mark.parametrize(
    'settings', [EstimatorSettings(lugre_observer=LUGRE), EstimatorSettings(oracle=TRUTH)]
)
def test_a_batch_equals_its_arms_one_by_one(settings):
    assert_batch_equals_arms(settings)
