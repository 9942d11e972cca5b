# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
from hypothesis import given
from hypothesis import strategies as st
import numpy as np
import pytest

from metactl_ros.control.window import (
    ContextWindow,
    feature_names,
    step_observation,
    token_map,
    TOKEN_UNITS,
    TokenUnits,
)
from metactl_ros.errors import ConfigError
from metactl_ros.signals import ArmState, Reference

PERIOD_NS = 10_000_000
JOINTS = ('joint1', 'joint2')


class SlowWindow:
    def __init__(self, num_rows):
        self.num_rows, self.rows, self.newest = num_rows, [], None

    def push(self, tick, row):
        periods = self.num_rows if self.newest is None else tick - self.newest
        if periods < 1:
            return
        if periods >= self.num_rows:
            self.rows = [row] * self.num_rows
        else:
            last = self.rows[-1]
            between = [last + k / periods * (row - last) for k in range(1, periods)]
            self.rows = [*self.rows, *between, row][-self.num_rows :]
        self.newest = tick


def row(*values):
    return np.array(values, dtype=np.float64)


def filled(num_rows, *values):
    window = ContextWindow(num_rows, PERIOD_NS)
    for index, value in enumerate(values):
        window.push(index * PERIOD_NS, row(value))
    return window


advances = st.integers(-3, 9)
jitters = st.floats(-0.24, 0.24).map(lambda share: int(share * PERIOD_NS))
values = st.floats(-1e3, 1e3)
pushes = st.lists(st.tuples(advances, jitters, values, values), min_size=1, max_size=40)


@given(num_rows=st.integers(1, 7), pushes=pushes)
def test_the_ring_equals_a_slow_and_obvious_window(num_rows, pushes):
    ring, slow = ContextWindow(num_rows, PERIOD_NS), SlowWindow(num_rows)
    tick = 0
    for advance, jitter, a, b in pushes:
        tick += advance
        ring.push(tick * PERIOD_NS + jitter, row(a, b))
        slow.push(tick, row(a, b))
        np.testing.assert_allclose(ring.rows(), slow.rows, rtol=0, atol=1e-9)


def test_first_push_fills_the_whole_window():
    window = ContextWindow(4, PERIOD_NS)
    assert window.push(123, row(1, 2)) == 4
    np.testing.assert_array_equal(window.rows(), [[1, 2]] * 4)


def test_rows_run_from_the_oldest_to_now():
    np.testing.assert_array_equal(filled(4, 1, 2, 3).rows(), [[1], [1], [2], [3]])
    np.testing.assert_array_equal(filled(3, *range(8)).rows(), [[5], [6], [7]])


def test_lost_rows_are_interpolated():
    window = filled(5, 0)
    assert window.push(3 * PERIOD_NS, row(6)) == 3
    np.testing.assert_allclose(window.rows()[:, 0], [0, 0, 2, 4, 6], rtol=0, atol=1e-12)


@pytest.mark.parametrize('periods', [4, 5, 1000])
def test_a_gap_as_long_as_the_window_fills_it_anew(periods):
    window = filled(4, 1, 2, 3)
    assert window.push((2 + periods) * PERIOD_NS, row(9)) == 4
    np.testing.assert_array_equal(window.rows(), [[9]] * 4)


def test_a_gap_shorter_than_the_window_keeps_its_newest_row():
    window = filled(4, 1, 2, 3)
    assert window.push((2 + 3) * PERIOD_NS, row(9)) == 3
    np.testing.assert_allclose(window.rows()[:, 0], [3, 5, 7, 9], rtol=0, atol=1e-12)


@pytest.mark.parametrize('stamp_ns', [2 * PERIOD_NS, PERIOD_NS, 0, -(10**18)])
def test_a_stamp_that_is_not_newer_changes_nothing(stamp_ns):
    window = filled(4, 1, 2, 3)
    before = window.rows()
    assert window.push(stamp_ns, row(9)) == 0
    np.testing.assert_array_equal(window.rows(), before)
    assert window.push(3 * PERIOD_NS, row(4)) == 1


def test_jitter_below_half_a_period_is_one_row_each():
    window = ContextWindow(5, PERIOD_NS)
    window.push(0, row(0))
    for index, jitter in enumerate([0.2, -0.2, 0.24, -0.2], start=1):
        assert window.push(int((index + jitter) * PERIOD_NS), row(index)) == 1
    np.testing.assert_array_equal(window.rows()[:, 0], range(5))


def test_a_source_faster_than_the_control_rate_does_not_close_up_time():
    window = ContextWindow(50, PERIOD_NS)
    window.push(0, row(0.0))
    advanced = sum(window.push(k * 8_000_000, row(0.008 * k)) for k in range(1, 501))
    assert advanced == pytest.approx(400, abs=1)
    assert window.rows()[-1, 0] - window.rows()[0, 0] == pytest.approx(0.49, abs=0.02)


def test_rows_are_a_copy():
    window = filled(3, 1, 2, 3)
    window.rows()[:] = 99.0
    np.testing.assert_array_equal(window.rows(), [[1], [2], [3]])


def test_a_row_changed_after_its_push_does_not_change_the_window():
    window, pushed = ContextWindow(2, PERIOD_NS), row(1)
    window.push(0, pushed)
    pushed[:] = 99.0
    np.testing.assert_array_equal(window.rows(), [[1], [1]])


def test_the_widest_gap_between_two_finite_rows_is_interpolated_without_overflow():
    window = filled(4, 1.5e308)
    window.push(2 * PERIOD_NS, row(-1.5e308))
    np.testing.assert_allclose(window.rows()[:, 0], [1.5e308, 1.5e308, 0, -1.5e308], atol=1e300)


def test_clear_forgets_rows_and_time():
    window = filled(3, 1, 2, 3)
    window.clear()
    assert window.push(0, row(7)) == 3
    np.testing.assert_array_equal(window.rows(), [[7]] * 3)


def test_after_clear_the_number_of_arms_and_features_may_differ():
    window = filled(3, 1)
    window.clear()
    window.push(0, np.ones((5, 11)))
    assert window.rows().shape == (5, 3, 11)


def test_a_batch_equals_its_arms_one_by_one():
    rng = np.random.default_rng(2)
    stamps = np.cumsum(rng.integers(-1, 5, 30)) * PERIOD_NS
    rows = rng.normal(size=(30, 4, 3))
    together = ContextWindow(6, PERIOD_NS)
    alone = [ContextWindow(6, PERIOD_NS) for _ in range(4)]
    for stamp, batch in zip(stamps.tolist(), rows, strict=True):
        together.push(stamp, batch)
        for window, own in zip(alone, batch, strict=True):
            window.push(stamp, own)
        np.testing.assert_array_equal(together.rows(), [window.rows() for window in alone])


def observation(stamp_ns=2_000_000_000, horizon_s=5.0, extra=None):
    state = ArmState(stamp_ns, row(0.1, 0.2), row(1.1, 1.2))
    reference = Reference(row(0.3, 0.4), row(1.3, 1.4), row(9.0, 9.0))
    return step_observation(state, reference, 0.7, 0.2, horizon_s, extra)


def test_a_row_holds_the_eleven_features_of_the_paper_in_its_order():
    expected = {
        'q_rad.joint1': 0.1,
        'q_rad.joint2': 0.2,
        'qd_radps.joint1': 1.1,
        'qd_radps.joint2': 1.2,
        'q_desired_rad.joint1': 0.3,
        'q_desired_rad.joint2': 0.4,
        'qd_desired_radps.joint1': 1.3,
        'qd_desired_radps.joint2': 1.4,
        'payload_estimate_kg': 0.7,
        'friction_regime_estimate': 0.2,
        'phase': 0.4,
    }
    assert feature_names(JOINTS) == tuple(expected)
    np.testing.assert_array_equal(observation(), list(expected.values()))


@pytest.mark.parametrize(
    ('stamp_ns', 'phase'), [(0, 0.0), (4_990_000_000, 0.998), (5_000_000_000, 0.0)]
)
def test_the_phase_wraps_after_the_horizon(stamp_ns, phase):
    assert observation(stamp_ns)[10] == pytest.approx(phase, abs=1e-12)
    assert observation(stamp_ns + 3_600_000_000_000)[10] == pytest.approx(phase, abs=1e-12)


def test_two_extra_features_make_thirteen_and_come_last():
    names = feature_names(JOINTS, num_extra=2)
    assert len(names) == 13
    assert names[:11] == feature_names(JOINTS)
    assert names[11:] == ('extra.0', 'extra.1')
    found = observation(extra=row(7.0, 8.0))
    np.testing.assert_array_equal(found, [*observation(), 7.0, 8.0])


def test_a_batch_of_observations_equals_its_arms_one_by_one():
    rng = np.random.default_rng(3)
    q, qd, q_d, qd_d, extra = rng.normal(size=(5, 4, 2))
    payload = rng.uniform(0, 1.5, 4)
    together = step_observation(
        ArmState(10, q, qd), Reference(q_d, qd_d, q_d), payload, 0.2, 5.0, extra
    )
    for arm in range(4):
        state = ArmState(10, q[arm], qd[arm])
        reference = Reference(q_d[arm], qd_d[arm], q_d[arm])
        own = step_observation(state, reference, payload[arm], 0.2, 5.0, extra[arm])
        np.testing.assert_array_equal(together[arm], own)


@pytest.mark.parametrize('num_extra', [0, 2])
def test_raw_tokens_are_the_row_itself(num_extra):
    np.testing.assert_array_equal(token_map('raw', 2, num_extra), np.eye(11 + num_extra))


@pytest.mark.parametrize('num_extra', [0, 2])
@pytest.mark.parametrize('tokens', ['raw', 'error_scaled', 'error_fine'])
def test_a_token_can_be_turned_back_into_its_row(tokens, num_extra):
    matrix = token_map(tokens, 2, num_extra)
    assert matrix.shape == (11 + num_extra, 11 + num_extra)
    row = np.random.default_rng(4).normal(size=11 + num_extra)
    np.testing.assert_allclose(np.linalg.solve(matrix.T, row @ matrix), row, rtol=0, atol=1e-12)


@pytest.mark.parametrize('num_extra', [0, 2])
@pytest.mark.parametrize(
    ('tokens', 'units'),
    [('error_scaled', (0.05, 0.3, 1.5, 0.2, 1.0)), ('error_fine', (0.01, 0.06, 1.5, 0.2, 1.0))],
)
def test_scaled_tokens_show_the_error_in_units_a_network_can_see(tokens, units, num_extra):
    rows = np.random.default_rng(5).normal(size=(6, 11 + num_extra))
    q, qd, q_d, qd_d = (rows[:, k : k + 2] for k in (0, 2, 4, 6))
    payload, friction, phase = (rows[:, k : k + 1] for k in (8, 9, 10))
    shown = (q_d - q, qd_d - qd, payload, friction, rows[:, 11:])
    e, e_dot, payload, friction, extra = (x / unit for x, unit in zip(shown, units, strict=True))
    expected = np.concatenate([q, qd, e, e_dot, payload, friction, phase, extra], axis=-1)
    found = rows @ token_map(tokens, 2, num_extra)
    np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-12)


PER_JOINT = TokenUnits((0.05, 0.02, 0.01), (0.3, 0.2, 0.1), 1.5, 0.2, (10.0, 5.0, 1.0))


@pytest.mark.parametrize('num_extra', [0, 3])
def test_each_joint_can_have_its_own_units(num_extra):
    rows = np.random.default_rng(6).normal(size=(6, 15 + num_extra))
    tokens = rows @ token_map('error_fine', 3, num_extra, PER_JOINT)
    for joint in range(3):
        error = rows[:, 6 + joint] - rows[:, joint]
        rate = rows[:, 9 + joint] - rows[:, 3 + joint]
        np.testing.assert_allclose(tokens[:, 6 + joint], error / PER_JOINT.error_rad[joint])
        np.testing.assert_allclose(tokens[:, 9 + joint], rate / PER_JOINT.error_rate_radps[joint])
    expected = rows[:, 15:] / np.array(PER_JOINT.estimate_nm)[:num_extra]
    np.testing.assert_allclose(tokens[:, 15:], expected)


@pytest.mark.parametrize('tokens', ['raw', 'error_scaled', 'error_fine'])
def test_equal_units_of_each_joint_are_one_unit_to_the_bit(tokens):
    one = TOKEN_UNITS[tokens]
    thrice = one._replace(
        error_rad=(one.error_rad,) * 3,
        error_rate_radps=(one.error_rate_radps,) * 3,
        estimate_nm=(one.estimate_nm,) * 3,
    )
    default = token_map(tokens, 3, 3)
    np.testing.assert_array_equal(token_map(tokens, 3, 3, thrice), default)
    np.testing.assert_array_equal(token_map(tokens, 3, 3, one), default)


@pytest.mark.parametrize(
    ('num_joints', 'num_extra', 'says'),
    [
        (2, 0, r'TokenUnits\.error_rad: expected 2 entries, one per joint, found 3'),
        (3, 2, r'TokenUnits\.estimate_nm: expected 2 entries, one per joint, found 3'),
    ],
)
def test_units_for_another_number_of_joints_are_refused(num_joints, num_extra, says):
    with pytest.raises(ConfigError, match=says):
        token_map('error_scaled', num_joints, num_extra, PER_JOINT)
