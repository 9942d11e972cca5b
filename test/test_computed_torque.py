# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
from hypothesis import given
from hypothesis import strategies as st
import numpy as np
import pytest
from situations import LAW, MODEL, SETTINGS, Situation

from metactl_ros.arm import apply_mass, forward_dynamics
from metactl_ros.control.computed_torque import computed_torque, limit_effort
from metactl_ros.control.law import nominal_gains
from metactl_ros.control.shield import AdmissibleGains
from metactl_ros.signals import split, stack

LIMITS = SETTINGS.arm.limits


def effort(situation, theta):
    """Return the law's effort for any gains; only a test may vouch for them itself."""
    gains = AdmissibleGains(split(np.asarray(theta, dtype=float)))
    qdd = split(situation.qdd_desired)
    return stack(
        computed_torque(situation.mass, situation.bias, qdd, situation.error, situation.phi, gains)
    )


def random_theta(rng, lead=()):
    return rng.uniform(-1, 1, (*lead, 8)) * [60, 60, 10, 10, 6, 6, 3, 3]


def test_nominal_gains_are_the_baseline_of_the_paper():
    gains = nominal_gains(LAW, 2, 2)
    np.testing.assert_array_equal(gains, [30, 30, 5, 5, 0, 0, 0, 0])
    here = Situation(0)
    e, e_dot = here.q_desired - here.q, here.qd_desired - here.qd
    wanted = here.qdd_desired + 5.0 * e_dot + 30.0 * (e_dot + 5.0 * e)
    expected = np.array(apply_mass(here.mass, split(wanted))) + here.bias
    np.testing.assert_allclose(effort(here, gains), expected, rtol=1e-13)


@pytest.mark.parametrize('seed', range(20))
def test_the_effort_is_affine_in_the_gains(seed):
    here = Situation(seed)
    first, second = random_theta(here.rng), random_theta(here.rng)
    blended = effort(here, 0.3 * first + 0.7 * second)
    expected = 0.3 * effort(here, first) + 0.7 * effort(here, second)
    np.testing.assert_allclose(blended, expected, rtol=0, atol=1e-10)


def test_each_entry_of_the_gains_does_what_its_name_says():
    here = Situation(3)
    zero = effort(here, np.zeros(8))
    columns = np.array([effort(here, unit) - zero for unit in np.eye(8)])
    direction = np.tanh(here.qd_desired / LAW.coulomb_smoothing_radps)
    for joint in range(2):
        only = np.eye(2)[joint]
        for row, signal in ((0, here.error.s_radps), (2, here.error.e_dot_radps)):
            expected = apply_mass(here.mass, split(np.array(signal) * only))
            np.testing.assert_allclose(columns[row + joint], expected, atol=1e-12)
        np.testing.assert_allclose(columns[4 + joint], only, atol=1e-12)
        np.testing.assert_allclose(columns[6 + joint], direction * only, atol=1e-12)


def test_on_the_nominal_arm_the_error_obeys_the_closed_loop_equation():
    here = Situation(4)
    tau = effort(here, nominal_gains(LAW, 2, 2))
    qdd = np.array(forward_dynamics(MODEL, *map(split, (here.q, here.qd, tau))))
    e, e_dot = here.q_desired - here.q, here.qd_desired - here.qd
    np.testing.assert_allclose(
        here.qdd_desired - qdd, -35.0 * e_dot - 150.0 * e, rtol=0, atol=1e-9
    )


efforts = st.floats(-1e4, 1e4)


@given(wanted=st.tuples(efforts, efforts), share=st.tuples(*[st.floats(-1.0, 1.0)] * 2))
def test_a_limited_effort_respects_size_and_rate_from_any_allowed_effort(wanted, share):
    reach = [0.01 * rate for rate in LIMITS.effort_rate_nmps]
    previous = [a * b for a, b in zip(share, LIMITS.effort_nm, strict=True)]
    limited = limit_effort(wanted, previous, LIMITS.effort_nm, reach)
    for joint in range(2):
        assert abs(limited[joint]) <= LIMITS.effort_nm[joint]
        assert abs(limited[joint] - previous[joint]) <= reach[joint] + 1e-9
    assert limit_effort(limited, previous, LIMITS.effort_nm, reach) == limited


@given(wanted=st.tuples(efforts, efforts))
def test_limiting_moves_an_effort_no_farther_than_needed(wanted):
    limited = limit_effort(wanted, [0.0, 0.0], [150.0, 60.0], [40.0, 70.0])
    np.testing.assert_array_equal(limited, np.clip(wanted, [-40.0, -60.0], [40.0, 60.0]))
