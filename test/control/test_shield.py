# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
import ast
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st
import numpy as np
import pytest
import quadprog
from support.situations import LAW, LAYOUT, problems, SETTINGS

from metactl_ros.control import shield
from metactl_ros.control.gain_map import GainMap
from metactl_ros.control.law import nominal_gains
from metactl_ros.control.lyapunov import HalfSpace
from metactl_ros.control.shield import project_all, project_one, Reason, Shield

ROOT = Path(__file__).resolve().parents[2]
MAP = GainMap(SETTINGS.controller.gain_box, 2)
NOMINAL = nominal_gains(LAW, LAYOUT, 2)
SHIELD = Shield(MAP, NOMINAL)
ZERO, NO_PULL = np.zeros(()), np.zeros(2)  # a shield asks neither for V nor for M^-1 w


def solved_by_quadprog(proposal, normal, offset):
    bounds = np.concatenate([np.eye(8), -np.eye(8), -normal[np.newaxis]]).T
    right = np.concatenate([-np.ones(16), [-offset]])
    return quadprog.solve_qp(np.eye(8), proposal, bounds, right)[0]


def one_by_one(proposal, normal, offset):
    return [project_one(*row) for row in zip(proposal, normal, offset, strict=True)]


def test_the_projection_equals_a_quadratic_program_on_10000_problems():
    proposal, normal, offset = problems(10_000, seed=0)
    expected = [solved_by_quadprog(*row) for row in zip(proposal, normal, offset, strict=True)]
    together, reason, distance = project_all(proposal, normal, offset)
    np.testing.assert_allclose(together, expected, rtol=0, atol=1e-8)
    np.testing.assert_allclose(
        distance, np.linalg.norm(expected - proposal, axis=-1), rtol=0, atol=1e-8
    )
    assert set(reason.tolist()) == {Reason.ADMITTED, Reason.PROJECTED}
    alone = one_by_one(proposal, normal, offset)
    np.testing.assert_allclose([row[0] for row in alone], expected, rtol=0, atol=1e-8)
    np.testing.assert_array_equal([row[1] for row in alone], reason)
    np.testing.assert_allclose([row[2] for row in alone], distance, rtol=0, atol=1e-8)


def test_the_projection_lies_in_the_set():
    proposal, normal, offset = problems(10_000, seed=1)
    alone = np.array([row[0] for row in one_by_one(proposal, normal, offset)])
    for action in (project_all(proposal, normal, offset)[0], alone):
        assert np.abs(action).max() <= 1.0
        assert (np.sum(normal * action, axis=-1) - offset).max() <= 1e-11


def test_projecting_twice_equals_projecting_once():
    proposal, normal, offset = problems(10_000, seed=2)
    once = project_all(proposal, normal, offset)[0]
    twice = project_all(once, normal, offset)[0]
    np.testing.assert_allclose(twice, once, rtol=0, atol=1e-11)


def test_admissible_proposals_pass_unchanged():
    proposal, normal, offset = problems(10_000, seed=3, reach=1.0)
    inside = np.sum(normal * proposal, axis=-1) <= offset
    action, reason, distance = project_all(proposal, normal, offset)
    assert 1000 < inside.sum() < 9000
    np.testing.assert_array_equal(action[inside], proposal[inside])
    np.testing.assert_array_equal(reason == Reason.ADMITTED, inside)
    np.testing.assert_array_equal(distance[inside], 0.0)


def test_no_admissible_point_is_closer_than_the_projection():
    proposal, normal, offset = problems(500, seed=4)
    _, _, distance = project_all(proposal, normal, offset)
    rng = np.random.default_rng(5)
    for _ in range(200):
        other = project_all(rng.uniform(-1, 1, proposal.shape), normal, offset)[0]
        assert np.all(np.linalg.norm(other - proposal, axis=-1) >= distance - 1e-9)


@pytest.mark.parametrize('batch', [True, False])
def test_an_empty_set_gives_the_nominal_gains_and_the_reason(batch):
    proposal, normal, _ = problems(10_000, seed=6, reach=1.0)
    offset = -np.abs(normal).sum(axis=-1) * (
        1.0 + np.random.default_rng(7).exponential(size=10_000)
    )
    space = physical(normal, offset)
    if batch:
        decision = SHIELD.admit(proposal, space)
        theta, reason, distance = decision.gains.theta, decision.reason, decision.distance
    else:
        decisions = [
            SHIELD.admit(row, HalfSpace(space.normal[k], space.constant[k], ZERO, NO_PULL))
            for k, row in enumerate(proposal)
        ]
        theta = np.array([d.gains.theta for d in decisions])
        reason = np.array([d.reason for d in decisions])
        distance = np.array([d.distance for d in decisions])
        decision = decisions[0]
    np.testing.assert_array_equal(theta, np.broadcast_to(NOMINAL, theta.shape))
    assert np.all(reason == Reason.EMPTY_SET)
    assert np.all(np.isinf(distance))
    assert not np.any(decision.is_feasible)


def physical(normal, offset):
    """Return the half-space in gains that is normal . action <= offset in action space."""
    scaled = normal / MAP.half_width
    return HalfSpace(scaled, -(scaled @ MAP.middle + offset), offset * 0.0, NO_PULL)


def test_no_raw_proposal_passes_in_100000_infeasible_cases():
    proposal, normal, _ = problems(100_000, seed=8, reach=1.0)
    offset = -1.5 * np.abs(normal).sum(axis=-1)
    decision = SHIELD.admit(proposal, physical(normal, offset))
    raw = MAP.gains(proposal)
    assert not np.any(np.all(decision.gains.theta == raw, axis=-1))
    assert np.all(decision.was_moved)
    assert np.all(decision.excess > 0.0)  # the violation of the nominal gains is reported
    alone = one_by_one(proposal, normal, offset)
    assert all(reason == Reason.EMPTY_SET for _, reason, _ in alone)


@given(
    proposal=st.lists(
        st.floats(allow_nan=True, allow_infinity=True), min_size=8, max_size=8
    ).filter(lambda values: not np.all(np.isfinite(values)))
)
def test_a_proposal_that_is_not_finite_gives_the_nominal_gains(proposal):
    row = np.array(proposal)
    space = physical(np.eye(8)[0], np.asarray(0.5))
    alone = SHIELD.admit(row, space)
    rows, batch_space = np.stack([row, row]), physical(np.eye(8)[[0, 0]], np.array([0.5, 0.5]))
    together = SHIELD.admit(rows, batch_space)
    np.testing.assert_array_equal(alone.gains.theta, NOMINAL)
    np.testing.assert_array_equal(together.gains.theta, [NOMINAL, NOMINAL])
    assert alone.reason == Reason.NOT_FINITE
    assert np.all(together.reason == Reason.NOT_FINITE)


NOT_NUMBERS = [(place, x) for place in ('normal', 'constant') for x in (np.nan, np.inf, -np.inf)]


@pytest.mark.parametrize(('place', 'bad'), [*NOT_NUMBERS, ('normal', 1e200)])
def test_a_condition_that_is_not_finite_gives_the_nominal_gains(place, bad):
    normal, constant = np.ones(8), -1e4
    if place == 'normal':
        normal[3] = bad
    else:
        constant = bad
    proposal = np.zeros(8)
    alone = SHIELD.admit(proposal, HalfSpace(normal, np.asarray(constant), ZERO, NO_PULL))
    both = np.stack([np.ones(8), normal])
    rows = HalfSpace(both, np.array([-1e4, constant]), np.zeros(2), NO_PULL)
    together = SHIELD.admit(np.stack([proposal, proposal]), rows)
    assert alone.reason == together.reason[1] == Reason.NUMERICAL
    np.testing.assert_array_equal(alone.gains.theta, NOMINAL)
    np.testing.assert_array_equal(together.gains.theta[1], NOMINAL)
    assert together.reason[0] <= Reason.PROJECTED


def test_a_condition_without_gains_in_it_is_met_or_empty():
    free = HalfSpace(np.zeros(8), np.asarray(-1.0), ZERO, NO_PULL)
    broken = HalfSpace(np.zeros(8), np.asarray(1.0), ZERO, NO_PULL)
    proposal = np.full(8, 0.5)
    assert SHIELD.admit(proposal, free).reason == Reason.ADMITTED
    assert SHIELD.admit(proposal, broken).reason == Reason.EMPTY_SET
    both = HalfSpace(np.zeros((2, 8)), np.array([-1.0, 1.0]), np.zeros(2), NO_PULL)
    np.testing.assert_array_equal(
        SHIELD.admit(np.stack([proposal, proposal]), both).reason,
        [Reason.ADMITTED, Reason.EMPTY_SET],
    )


def test_the_last_corner_of_the_box_is_reached():
    normal = np.array([0.6, -0.8, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0])
    proposal = np.array([0.9, 0.9] + [0.0] * 6)
    for offset in (-1.4, -1.4 + 1e-12):
        action, reason, _ = project_one(proposal, normal, np.asarray(offset))
        assert reason == Reason.PROJECTED
        np.testing.assert_allclose(action[:2], [-1.0, 1.0], rtol=0, atol=1e-9)


def test_a_projection_that_misses_the_set_is_not_trusted(monkeypatch):
    proposal, normal, offset = problems(50, seed=11)
    is_beyond = project_all(proposal, normal, offset)[1] == Reason.PROJECTED
    is_beyond &= np.sum(normal * np.clip(proposal, -1, 1), axis=-1) > offset + 1e-3
    monkeypatch.setattr(shield, '_crossing', lambda *_: 0.0)
    monkeypatch.setattr(shield, '_project', lambda proposal, *_: np.clip(proposal, -1, 1))
    assert is_beyond.sum() > 10
    _, together, distance = project_all(proposal, normal, offset)
    alone = np.array([row[1] for row in one_by_one(proposal, normal, offset)])
    for reason in (together, alone):
        assert np.all(reason[is_beyond] == Reason.NUMERICAL)
    assert np.all(np.isinf(distance[is_beyond]))


def test_the_certificate_is_the_condition_at_the_gains_that_came_out():
    proposal, normal, offset = problems(100, seed=9)
    space = physical(normal, offset)
    decision = SHIELD.admit(proposal, space)
    theta = decision.gains.theta
    expected = np.sum(space.normal * theta, axis=-1) + space.constant
    np.testing.assert_allclose(decision.excess, expected, rtol=0, atol=1e-12)
    assert decision.excess.max() <= 1e-9
    np.testing.assert_array_equal(decision.was_moved, decision.distance > 1e-6)


def test_a_counting_shield_lets_the_proposal_pass_and_reports_the_distance():
    proposal, normal, offset = problems(100, seed=10, reach=1.0)
    strict, counting = SHIELD, Shield(MAP, NOMINAL, enforcement='count')
    space = physical(normal, offset)
    passed = counting.admit(proposal, space)
    np.testing.assert_allclose(passed.gains.theta, MAP.gains(proposal))
    np.testing.assert_array_equal(passed.distance, strict.admit(proposal, space).distance)
    assert np.any(passed.excess > 0.0)


def calls_by_name(path, name):
    tree = ast.parse(path.read_text())
    calls = [node.func for node in ast.walk(tree) if isinstance(node, ast.Call)]
    return [f for f in calls if name in (getattr(f, 'id', None), getattr(f, 'attr', None))]


def test_only_the_shield_constructs_admissible_gains():
    sources = [*(ROOT / 'metactl_ros').rglob('*.py'), *(ROOT / 'training').rglob('*.py')]
    makers = {path.name for path in sources if calls_by_name(path, 'AdmissibleGains')}
    assert makers == {'shield.py'}


def test_no_node_can_ask_the_shield_to_count_only():
    for path in (ROOT / 'metactl_ros').rglob('*.py'):
        if path.parent.name in {'nodes', 'policy'} or path.name in {'cli.py', 'settings.py'}:
            assert "'count'" not in path.read_text()
            assert 'enforcement' not in path.read_text()


def test_the_least_excess_over_the_box_tells_an_empty_set_from_another():
    proposal, normal, offset = problems(500, seed=12)
    offset[::2] -= 1.2 * np.abs(normal[::2]).sum(axis=-1)
    space = physical(normal, offset)
    least = space.least_excess(MAP.lower, MAP.upper)
    reason = SHIELD.admit(proposal, space).reason
    np.testing.assert_array_equal(least > 0.0, reason == Reason.EMPTY_SET)
    corners = np.where(space.normal > 0.0, MAP.lower, MAP.upper)
    np.testing.assert_allclose(least, space.excess(corners), rtol=1e-9, atol=1e-9)
