# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
from hypothesis import given
from hypothesis import strategies as st
import numpy as np
import pytest
from support.situations import LAW, LAYOUT, MODEL, SETTINGS, Situation

from metactl_ros.control.law import (
    AdmissibleGains,
    computed_torque,
    effort_box,
    GainLayout,
    holding_torque,
    nominal_gains,
    saturate,
)

LIMITS = SETTINGS.arm.limits


def effort(situation, theta):
    """Return the law's effort for any gains; only a test may vouch for them itself."""
    gains = AdmissibleGains(np.asarray(theta, dtype=float))
    qdd = situation.qdd_desired
    hold = holding_torque(situation.bias, situation.features, gains)
    return computed_torque(situation.posture, hold, qdd, situation.features, gains)


def random_theta(rng, lead=()):
    return rng.uniform(-1, 1, (*lead, 8)) * [60, 60, 10, 10, 6, 6, 3, 3]


def test_nominal_gains_are_the_baseline_of_the_paper():
    gains = nominal_gains(LAW, LAYOUT, 2)
    np.testing.assert_array_equal(gains, [30, 30, 5, 5, 0, 0, 0, 0])
    here = Situation(0)
    e, e_dot = here.q_desired - here.q, here.qd_desired - here.qd
    wanted = here.qdd_desired + 5.0 * e_dot + 30.0 * (e_dot + 5.0 * e)
    expected = here.posture.apply(wanted) + here.bias
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
            expected = here.posture.apply(signal * only)
            np.testing.assert_allclose(columns[row + joint], expected, atol=1e-12)
        np.testing.assert_allclose(columns[4 + joint], only, atol=1e-12)
        np.testing.assert_allclose(columns[6 + joint], direction * only, atol=1e-12)


AWARE = GainLayout(True, ('coulomb', 'estimate'))


def test_nominal_gains_weigh_an_estimate_by_one_and_have_no_position_gain():
    gains = nominal_gains(LAW, AWARE, 2)
    np.testing.assert_array_equal(gains, [30, 30, 5, 5, 0, 0, 0, 0, 1, 1])


def test_a_position_gain_accelerates_against_the_error_and_an_estimate_is_added():
    here = Situation(3, layout=AWARE)
    zero = effort(here, np.zeros(10))
    columns = np.array([effort(here, unit) - zero for unit in np.eye(10)])
    for joint in range(2):
        only = np.eye(2)[joint]
        expected = here.posture.apply(here.error.e_rad * only)
        np.testing.assert_allclose(columns[4 + joint], expected, atol=1e-12)
        np.testing.assert_allclose(columns[8 + joint], here.estimate_nm * only, atol=1e-12)


@given(seed=st.integers(0, 10_000))
def test_a_position_gain_of_zero_changes_no_bit(seed):
    """The law of the paper and the one with K_p = 0 send the same efforts."""
    here = Situation(seed)
    theta = random_theta(here.rng)
    plain = effort(here, theta)
    here.layout = GainLayout(True, here.layout.columns)
    here._derive()
    with_kp = np.concatenate([theta[:4], np.zeros(2), theta[4:]])
    np.testing.assert_array_equal(effort(here, with_kp), plain)


def test_on_the_nominal_arm_the_error_obeys_the_closed_loop_equation():
    here = Situation(4)
    tau = effort(here, nominal_gains(LAW, LAYOUT, 2))
    qdd = MODEL.forward_dynamics(here.q, here.qd, tau)
    e, e_dot = here.q_desired - here.q, here.qd_desired - here.qd
    np.testing.assert_allclose(
        here.qdd_desired - qdd, -35.0 * e_dot - 150.0 * e, rtol=0, atol=1e-9
    )


efforts = st.floats(-1e4, 1e4)
pairs = st.tuples(efforts, efforts).map(np.array)
pushes = st.tuples(*[st.integers(-80_000, 80_000)] * 2).map(lambda k: np.array(k) / 8.0)
shares = st.tuples(*[st.floats(-1.0, 1.0)] * 2).map(np.array)
MOST = np.array(LIMITS.effort_nm)
REACH = 0.01 * np.array(LIMITS.effort_rate_nmps)
SLACK_NM = 1e-9


def box_from(share):
    """Return what size and rate leave, from any effort within its size."""
    return effort_box(share * MOST, MOST, REACH)


@given(share=shares)
def test_the_box_of_efforts_is_size_and_rate_at_once(share):
    low, high = box_from(share)
    before = share * MOST
    np.testing.assert_allclose(low, np.maximum(before - REACH, -MOST))
    np.testing.assert_allclose(high, np.minimum(before + REACH, MOST))
    assert (low <= before).all()
    assert (before <= high).all()


@given(hold=pairs, wanted=pairs, share=shares)
def test_a_saturated_effort_is_always_within_the_box(hold, wanted, share):
    low, high = box_from(share)
    got = saturate(hold, wanted, low, high)
    assert (got >= low).all()
    assert (got <= high).all()


@given(hold=pairs, share=shares, inside=st.tuples(*[st.floats(0.0, 1.0)] * 2))
def test_an_effort_within_the_box_passes_to_the_bit(hold, share, inside):
    low, high = box_from(share)
    wanted = np.clip(low + np.multiply(inside, high - low), low, high)
    np.testing.assert_array_equal(saturate(hold, wanted, low, high), wanted)


@given(seed=st.integers(0, 10_000), share=shares, push=pushes)
def test_the_arm_never_accelerates_against_the_command(seed, share, push):
    """The proof as a test: from a torque that holds the arm, M^-1 (tau - h) is a share of a."""
    here = Situation(seed)
    low, high = box_from(share)
    hold = np.clip(here.bias, low, high)
    wanted = hold + push
    got = saturate(hold, wanted, low, high)
    mass = MODEL.inertia_matrix(here.q)
    commanded, reached = np.linalg.solve(mass, push), np.linalg.solve(mass, got - hold)
    part = float(reached @ commanded) / max(float(commanded @ commanded), 1e-300)
    np.testing.assert_allclose(reached, part * commanded, rtol=0, atol=1e-7)
    assert -SLACK_NM <= part <= 1.0 + SLACK_NM
    # And no larger share would have been within the box.
    more = hold + (part + 1e-6) * push
    is_whole = part >= 1.0 - SLACK_NM or not np.any(push)
    assert is_whole or (more < low).any() or (more > high).any()


def test_cutting_each_joint_alone_would_turn_the_acceleration():
    """Why efforts are scaled: the coupled joints of a stretched arm, and a strong push."""
    stretched = MODEL.at(np.zeros(2), np.zeros(2))
    push = stretched.apply(np.array([30.0, 10.0]))
    high = np.array([150.0, 5.0])
    cut = np.clip(push, -high, high)
    assert stretched.solve(cut)[1] < 0.0  # the second joint goes the other way
    scaled = saturate(np.zeros(2), push, -high, high)
    ratio = stretched.solve(scaled) / [30.0, 10.0]
    assert ratio[0] == pytest.approx(ratio[1])
    assert 0.0 < ratio[0] < 1.0


@pytest.mark.parametrize(
    ('hold', 'wanted', 'expected'),
    [
        ((60.0, 0.0), (20.0, 0.0), (20.0, 0.0)),  # the command leads back into the box
        ((60.0, 0.0), (20.0, 40.0), (40.0, 20.0)),  # as far as the second joint allows
        ((60.0, 0.0), (80.0, 10.0), (50.0, 0.0)),  # out of reach, and further out: hold
        ((60.0, 0.0), (80.0, 0.0), (50.0, 0.0)),
        ((0.0, 30.0), (0.0, 30.0), (0.0, 20.0)),  # nothing commanded: as near as it gets
        ((100.0, 0.0), (80.0, 5.0), (30.0, 5.0)),  # the command leads to the box, not into it
        ((60.0, 30.0), (20.0, 30.0), (10.0, 20.0)),  # a joint is not moved, and out of reach
        ((60.0, -30.0), (20.0, -30.0), (10.0, -20.0)),
    ],
)
def test_where_the_arm_cannot_be_held_the_nearest_torque_takes_its_place(hold, wanted, expected):
    high = np.array([50.0, 20.0])
    got = saturate(np.array(hold), np.array(wanted), -high, high)
    np.testing.assert_allclose(got, expected, atol=1e-9)


def test_a_batch_saturates_as_its_arms_do():
    rng = np.random.default_rng(5)
    hold, wanted = rng.uniform(-200.0, 200.0, (2, 500, 2))
    low, high = np.array([-50.0, -20.0]), np.array([50.0, 20.0])
    batch = saturate(hold, wanted, low, high)
    single = [saturate(h, w, low, high) for h, w in zip(hold, wanted, strict=True)]
    np.testing.assert_array_equal(batch, single)
