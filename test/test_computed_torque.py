# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
import numpy as np
import pytest

from metactl_ros.arm import apply_inertia, bias_torque, forward_dynamics, lump
from metactl_ros.control.computed_torque import computed_torque, limit_effort, nominal_gains
from metactl_ros.settings import load_settings
from metactl_ros.signals import ArmState, Reference

SETTINGS = load_settings()
LAW, LIMITS = SETTINGS.controller.law, SETTINGS.arm.limits
MODEL = lump(SETTINGS.arm, 0.0)


def situation(seed, lead=()):
    rng = np.random.default_rng(seed)
    state = ArmState(0, rng.uniform(-2, 2, (*lead, 2)), rng.uniform(-4, 4, (*lead, 2)))
    reference = Reference(*(rng.uniform(-2, 2, (*lead, 2)) for _ in range(3)))
    theta = rng.uniform(-1, 1, (*lead, 8)) * [60, 60, 10, 10, 6, 6, 3, 3]
    return state, reference, theta


def test_nominal_gains_are_the_baseline_of_the_paper():
    np.testing.assert_array_equal(nominal_gains(LAW, 2), [30, 30, 5, 5, 0, 0, 0, 0])
    state, reference, _ = situation(0)
    e, e_dot = reference.q_rad - state.q_rad, reference.qd_radps - state.qd_radps
    wanted = reference.qdd_radps2 + 5.0 * e_dot + 30.0 * (e_dot + 5.0 * e)
    expected = apply_inertia(MODEL, state.q_rad, wanted)
    expected += bias_torque(MODEL, state.q_rad, state.qd_radps)
    found = computed_torque(LAW, MODEL, state, reference, nominal_gains(LAW, 2))
    np.testing.assert_allclose(found, expected, rtol=1e-14)


@pytest.mark.parametrize('seed', range(20))
def test_the_effort_is_affine_in_the_gains(seed):
    state, reference, first = situation(seed)
    second = situation(seed + 1000)[2]
    share = 0.3
    blended = computed_torque(LAW, MODEL, state, reference, share * first + (1 - share) * second)
    ends = [computed_torque(LAW, MODEL, state, reference, theta) for theta in (first, second)]
    np.testing.assert_allclose(
        blended, share * ends[0] + (1 - share) * ends[1], rtol=0, atol=1e-10
    )


def test_each_entry_of_the_gains_does_what_its_name_says():
    state, reference, _ = situation(3)
    e, e_dot = reference.q_rad - state.q_rad, reference.qd_radps - state.qd_radps
    zero = computed_torque(LAW, MODEL, state, reference, np.zeros(8))
    columns = np.array(
        [computed_torque(LAW, MODEL, state, reference, unit) - zero for unit in np.eye(8)]
    )
    s = e_dot + LAW.slope_per_s * e
    direction = np.tanh(reference.qd_radps / LAW.coulomb_smoothing_radps)
    for joint in range(2):
        only = np.eye(2)[joint]
        np.testing.assert_allclose(
            columns[joint], apply_inertia(MODEL, state.q_rad, s * only), atol=1e-12
        )
        np.testing.assert_allclose(
            columns[2 + joint], apply_inertia(MODEL, state.q_rad, e_dot * only), atol=1e-12
        )
        np.testing.assert_allclose(columns[4 + joint], only, atol=1e-12)
        np.testing.assert_allclose(columns[6 + joint], direction * only, atol=1e-12)


def test_on_the_nominal_arm_the_error_obeys_the_closed_loop_equation():
    state, reference, _ = situation(4)
    gains = nominal_gains(LAW, 2)
    effort = computed_torque(LAW, MODEL, state, reference, gains)
    qdd = forward_dynamics(MODEL, state.q_rad, state.qd_radps, effort)
    e, e_dot = reference.q_rad - state.q_rad, reference.qd_radps - state.qd_radps
    np.testing.assert_allclose(
        reference.qdd_radps2 - qdd, -35.0 * e_dot - 150.0 * e, rtol=0, atol=1e-9
    )


def test_a_batch_gives_the_same_effort_as_its_rows_one_by_one():
    state, reference, theta = situation(5, (9,))
    together = computed_torque(LAW, MODEL, state, reference, theta)
    for k in range(9):
        row = ArmState(0, state.q_rad[k], state.qd_radps[k])
        wanted = Reference(reference.q_rad[k], reference.qd_radps[k], reference.qdd_radps2[k])
        np.testing.assert_array_equal(
            computed_torque(LAW, MODEL, row, wanted, theta[k]), together[k]
        )


efforts = arrays(np.float64, (4, 2), elements=st.floats(-1e4, 1e4))


@given(wanted=efforts, share=arrays(np.float64, (4, 2), elements=st.floats(-1.0, 1.0)))
def test_a_limited_effort_respects_size_and_rate_from_any_allowed_effort(wanted, share):
    previous = share * np.array(LIMITS.effort_nm)
    limited = limit_effort(LIMITS, wanted, previous, 0.01)
    assert np.all(np.abs(limited) <= LIMITS.effort_nm)
    assert np.all(np.abs(limited - previous) <= np.array(LIMITS.effort_rate_nmps) * 0.01 + 1e-9)


@given(wanted=efforts)
def test_limiting_moves_an_effort_no_farther_than_needed(wanted):
    previous = np.zeros((4, 2))
    limited = limit_effort(LIMITS, wanted, previous, 0.01)
    reach = np.minimum(np.array(LIMITS.effort_rate_nmps) * 0.01, LIMITS.effort_nm)
    np.testing.assert_array_equal(limited, np.clip(wanted, -reach, reach))
    np.testing.assert_array_equal(limit_effort(LIMITS, limited, previous, 0.01), limited)
