# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
from hypothesis import given
from hypothesis import strategies as st
import numpy as np
from numpy.polynomial import Polynomial
import pytest

from metactl_ros.motion.reference import fitted_velocities, Knots, PolynomialPath

NONE = np.nan
numbers = st.floats(-5.0, 5.0)
rows = st.tuples(numbers, numbers)
knots_of_any_kind = st.lists(
    st.tuples(st.floats(0.05, 3.0), rows, rows, rows, st.integers(0, 2)), min_size=2, max_size=6
)


def knots_from(drawn):
    """Return knots; of each as many derivatives are given as were drawn, of the first all."""
    steps_s, q, qd, qdd, kinds = (np.array(x) for x in zip(*drawn, strict=True))
    kinds[0] = 2
    qd[kinds < 1] = qdd[kinds < 2] = NONE
    return Knots(np.cumsum(steps_s), q, qd, qdd)


def values(reference):
    return np.stack([reference.q_rad, reference.qd_radps, reference.qdd_radps2])


def pieces_of(knots):
    """Return the pieces as NumPy's polynomials of t, by piece and joint, in another way.

    Each solves the linear equations that its ends are.
    """
    qd = fitted_velocities(knots)
    for k in range(len(knots.t_s) - 1):
        h = knots.t_s[k + 1] - knots.t_s[k]
        ends = [knots.q_rad[k : k + 2], qd[k : k + 2], knots.qdd_radps2[k : k + 2]]
        if np.isnan(ends[2]).any():
            ends.pop()
        powers = np.arange(2 * len(ends))
        equations = []
        for order in range(len(ends)):
            factor = np.prod([powers - i for i in range(order)], axis=0)
            for t in (0.0, h):
                equations.append(factor * t ** np.maximum(powers - order, 0) * (powers >= order))
        c = np.linalg.solve(np.array(equations), np.concatenate(ends))
        yield h, [Polynomial(c[:, joint]) for joint in range(c.shape[1])]


@given(knots_of_any_kind)
def test_pieces_are_the_polynomials_that_their_ends_determine(drawn):
    knots = knots_from(drawn)
    path = PolynomialPath(knots)
    for k, (h, joints) in enumerate(pieces_of(knots)):
        for share in (0.0, 0.3, 0.99):
            expected = [[p.deriv(order)(share * h) for p in joints] for order in range(3)]
            found = values(path.at(float(knots.t_s[k] + share * h)))
            np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-6)


def sizes(bounds):
    """Return the largest sizes of position, velocity and acceleration of each piece."""
    farthest = np.maximum(np.abs(bounds.lower_rad), np.abs(bounds.upper_rad))
    return farthest, bounds.velocity_radps, bounds.acceleration_radps2


@given(knots_of_any_kind)
def test_extremes_are_those_at_the_roots_of_the_derivatives(drawn):
    knots = knots_from(drawn)
    most = PolynomialPath(knots).extremes()
    for k, (h, joints) in enumerate(pieces_of(knots)):
        for joint, p in enumerate(joints):
            bounds = sizes(most)
            for order, bound in enumerate(bounds):
                curve = p.deriv(order)
                roots = curve.deriv().roots() if order < p.degree() else []
                places = [0.0, h, *(x.real for x in np.atleast_1d(roots) if 0 <= x.real <= h)]
                expected = max(abs(curve(x)) for x in places)
                assert bound[k, joint] == pytest.approx(expected, rel=1e-6, abs=1e-6)


@given(knots_of_any_kind)
def test_nothing_along_a_path_is_beyond_its_extremes(drawn):
    knots = knots_from(drawn)
    path = PolynomialPath(knots)
    most = path.extremes()
    bounds = np.stack(sizes(most), axis=1)
    for k in range(len(knots.t_s) - 1):
        for t_s in np.linspace(knots.t_s[k], knots.t_s[k + 1], 50)[:-1]:
            size = np.abs(values(path.at(float(t_s))))
            assert (size <= bounds[k] * (1.0 + 1e-12) + 1e-9).all()


@given(knots_of_any_kind)
def test_position_and_velocity_are_continuous_and_the_path_ends_at_rest(drawn):
    knots = knots_from(drawn)
    path = PolynomialPath(knots)
    steepest = path.extremes().acceleration_radps2.max()
    for t_s in knots.t_s.tolist()[1:]:
        before, after = (values(path.at(t_s + dt)) for dt in (-1e-10, 0.0))
        np.testing.assert_allclose(before[:2], after[:2], rtol=0, atol=1e-9 + 1e-9 * steepest)
    rest = [knots.q_rad[-1], np.zeros(2), np.zeros(2)]
    for later_s in (0.0, 1.0, 1e6):
        np.testing.assert_array_equal(values(path.at(knots.t_s[-1] + later_s)), rest)


def test_before_its_first_knot_a_path_rests_there():
    knots = Knots(np.array([1.0, 2.0]), np.array([[0.1], [0.2]]), np.ones((2, 1)), np.ones((2, 1)))
    np.testing.assert_array_equal(values(PolynomialPath(knots).at(0.9)), [[0.1], [0.0], [0.0]])


def bare(t_s, q_rad):
    """Return knots of one joint of which only positions are given, and rest at the first."""
    q = np.array(q_rad)[:, np.newaxis]
    qd = np.full_like(q, NONE)
    qd[0] = 0.0
    return Knots(np.array(t_s), q, qd, np.full_like(q, NONE))


@given(st.lists(st.tuples(st.floats(0.05, 3.0), numbers), min_size=3, max_size=8))
def test_fitted_velocities_are_those_of_another_program(drawn):
    interpolate = pytest.importorskip('scipy.interpolate')
    steps_s, q = np.array(drawn).T
    t_s = np.cumsum(steps_s)
    with np.errstate(divide='ignore', invalid='ignore', over='ignore'):
        slopes = interpolate.PchipInterpolator(t_s, q).derivative()(t_s)
    np.testing.assert_allclose(
        fitted_velocities(bare(t_s, q))[1:-1, 0], slopes[1:-1], rtol=1e-6, atol=1e-9
    )


@given(st.lists(st.tuples(st.floats(0.05, 3.0), numbers), min_size=2, max_size=8))
def test_between_points_without_velocities_no_joint_overshoots(drawn):
    steps_s, q = np.array(drawn).T
    knots = bare(np.cumsum(steps_s), q)
    found = PolynomialPath(knots).extremes()
    for ends, expected in (
        (found.lower_rad, np.minimum(q[:-1], q[1:])),
        (found.upper_rad, np.maximum(q[:-1], q[1:])),
    ):
        np.testing.assert_allclose(ends[:, 0], expected, rtol=1e-9, atol=1e-9)


def test_velocities_that_are_given_stay_but_the_last():
    knots = bare([0.0, 1.0, 2.0, 3.0], [0.0, 1.0, 2.0, 3.0])
    knots.qd_radps[:] = [[0.5], [7.0], [NONE], [9.0]]
    assert fitted_velocities(knots)[:, 0].tolist() == [0.5, 7.0, 1.0, 0.0]
