# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
from dataclasses import asdict, replace

from hypothesis import given
from hypothesis import strategies as st
import numpy as np
import pytest
from support.three_joints import box_in_order
from support.three_joints import GAIN_BOX as OF_THREE

from metactl_ros.config import build, stated
from metactl_ros.control.gain_map import ColumnRange, GainBox, GainMap
from metactl_ros.control.loop import ControlLoop
from metactl_ros.errors import ConfigError
from metactl_ros.settings import load_settings

SHIPPED = load_settings().controller.gain_box
ESTIMATE = ColumnRange(column='estimate', ends=(0.0, 1.2))
LARGE = replace(SHIPPED, feed_forward=(*SHIPPED.feed_forward, ESTIMATE))
BOXES = pytest.mark.parametrize('box', [SHIPPED, LARGE], ids=['m8', 'm10'])

units = st.floats(-1.0, 1.0)


def actions_of(gain_map):
    return st.lists(units, min_size=gain_map.size, max_size=gain_map.size).map(np.array)


def assert_ends_are_at(gain_map, reach):
    """Assert that actions of this size have the ends of the box, to the bit."""
    action = np.full(gain_map.size, reach)
    np.testing.assert_array_equal(gain_map.gains(action), gain_map.upper)
    np.testing.assert_array_equal(gain_map.gains(-action), gain_map.lower)


@st.composite
def boxes(draw):
    def ends():
        least = draw(st.floats(-100.0, 100.0, allow_subnormal=False))
        return (least, least + draw(st.floats(0.1, 100.0)))

    columns = draw(st.lists(st.sampled_from(['bias', 'coulomb', 'estimate']), unique=True))
    ranges = tuple(ColumnRange(column=column, ends=ends()) for column in columns)
    kp = (-draw(st.floats(0.0, 9.0, allow_subnormal=False)), draw(st.floats(0.1, 900.0)))
    kp_per_s2 = draw(st.sampled_from([None, kp]))
    return GainBox(kd_per_s=ends(), lambda_per_s=ends(), kp_per_s2=kp_per_s2, feed_forward=ranges)


@pytest.mark.parametrize(('box', 'size'), [(SHIPPED, 8), (LARGE, 10)])
def test_there_are_two_gains_and_one_weight_per_column_for_each_joint(box, size):
    assert GainMap(box, 2).size == size


def test_gains_are_ordered_by_kind_then_by_joint():
    gain_map = GainMap(LARGE, 2)
    np.testing.assert_array_equal(gain_map.lower, [10, 10, 1, 1, -6, -6, -3, -3, 0, 0])
    np.testing.assert_array_equal(gain_map.upper, [60, 60, 10, 10, 6, 6, 3, 3, 1.2, 1.2])
    assert LARGE.columns == ('bias', 'coulomb', 'estimate')


def test_columns_keep_the_order_in_which_they_are_given():
    box = replace(SHIPPED, feed_forward=SHIPPED.feed_forward[::-1])
    assert box.columns == ('coulomb', 'bias')
    assert GainMap(box, 1).upper.tolist() == [60.0, 10.0, 3.0, 6.0]


@BOXES
def test_both_ends_of_the_box_are_reached_exactly(box):
    gain_map = GainMap(box, 2)
    assert_ends_are_at(gain_map, 1.0)


@given(box=boxes())
def test_both_ends_of_any_box_are_reached_exactly(box):
    gain_map = GainMap(box, 2)
    assert_ends_are_at(gain_map, 1.0)


@BOXES
def test_each_entry_of_the_action_moves_its_own_gain_only(box):
    gain_map = GainMap(box, 2)
    middle = gain_map.gains(np.zeros(gain_map.size))
    for entry in range(gain_map.size):
        action = np.zeros(gain_map.size)
        action[entry] = 0.5
        moved = gain_map.gains(action) != middle
        assert moved.nonzero()[0].tolist() == [entry]


@BOXES
@given(data=st.data())
def test_action_to_gains_to_action_is_the_identity(box, data):
    gain_map = GainMap(box, 2)
    action = data.draw(actions_of(gain_map))
    found = gain_map.action(gain_map.gains(action))
    np.testing.assert_allclose(found, action, rtol=0, atol=1e-14)


@BOXES
@given(data=st.data())
def test_the_map_is_affine(box, data):
    gain_map = GainMap(box, 2)
    actions = actions_of(gain_map)
    a, b, share = data.draw(actions), data.draw(actions), data.draw(st.floats(0.0, 1.0))
    mixed = gain_map.gains(share * a + (1.0 - share) * b)
    expected = share * gain_map.gains(a) + (1.0 - share) * gain_map.gains(b)
    np.testing.assert_allclose(mixed, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize('beyond', [1.0 + 1e-12, 1.5, 1e6])
def test_beyond_one_the_gains_stay_at_the_ends(beyond):
    gain_map = GainMap(LARGE, 2)
    assert_ends_are_at(gain_map, beyond)


@given(box=boxes(), data=st.data())
def test_no_rounding_leaves_the_box(box, data):
    gain_map = GainMap(box, 2)
    action = data.draw(actions_of(gain_map))
    gains = gain_map.gains(action)
    assert np.all((gain_map.lower <= gains) & (gains <= gain_map.upper))


def test_gains_outside_the_box_have_an_action_outside_one():
    gain_map = GainMap(SHIPPED, 2)
    action = gain_map.action(np.array([5.0, 35.0, 14.5, 5.5, 0.0, 12.0, 0.0, 0.0]))
    np.testing.assert_allclose(action, [-1.2, 0, 2, 0, 0, 2, 0, 0], rtol=0, atol=1e-12)


@BOXES
def test_a_batch_equals_its_rows_one_by_one(box):
    gain_map = GainMap(box, 2)
    actions = np.random.default_rng(6).uniform(-1.5, 1.5, (7, gain_map.size))
    gains = gain_map.gains(actions)
    alone = [gain_map.gains(action) for action in actions]
    np.testing.assert_array_equal(gains, alone)
    back = gain_map.action(gains)
    np.testing.assert_array_equal(back, [gain_map.action(gain) for gain in alone])


@pytest.mark.parametrize(
    'ends',
    [(60.0, 10.0), (10.0, 10.0), (10.0,), (), (1.0, 2.0, 3.0), (np.nan, 1.0), (0.0, np.inf)],
)
@pytest.mark.parametrize('name', ['kd_per_s', 'lambda_per_s'])
def test_a_range_without_two_finite_ordered_ends_is_refused(name, ends):
    with pytest.raises(ConfigError, match=rf'GainBox\.{name}: expected \[least, largest\]'):
        replace(SHIPPED, **{name: ends})


@pytest.mark.parametrize('ends', [(1.2, 0.0), (1.0,), (-np.inf, 1.0)])
def test_a_column_without_two_finite_ordered_ends_is_refused(ends):
    column = ColumnRange(column='estimate', ends=ends)
    with pytest.raises(ConfigError, match=r'GainBox\.feed_forward\.estimate: expected \[least'):
        replace(SHIPPED, feed_forward=(column,))


def test_a_refused_range_shows_what_was_found():
    with pytest.raises(ConfigError, match=r'in this order, found \[60\.0, 10\.0\]'):
        replace(SHIPPED, kd_per_s=(60.0, 10.0))


def test_a_column_given_twice_is_refused():
    twice = (ESTIMATE, SHIPPED.feed_forward[0], ESTIMATE)
    with pytest.raises(ConfigError, match=r"each column once, found \['estimate', 'bias'"):
        replace(SHIPPED, feed_forward=twice)


def test_a_box_without_the_nominal_gains_is_refused(settings):
    box = replace(settings.controller.gain_box, kd_per_s=(35.0, 60.0))
    with pytest.raises(ConfigError, match='must hold the nominal gains'):
        ControlLoop(settings.arm, replace(settings.controller, gain_box=box))


def test_the_active_faces_are_the_gains_at_an_end_of_their_range():
    gain_map = GainMap(SHIPPED, 2)
    theta = np.array([gain_map.middle, gain_map.lower, gain_map.upper])
    expected = np.zeros((3, 8), dtype=bool)
    expected[1:] = True
    np.testing.assert_array_equal(gain_map.active_faces(theta), expected)
    one = np.array([gain_map.upper[0], *gain_map.middle[1:]])
    np.testing.assert_array_equal(gain_map.active_faces(one), [True] + [False] * 7)


@given(box=boxes(), num_joints=st.integers(1, 4))
def test_a_range_of_each_joint_with_equal_entries_is_that_of_all_to_the_bit(box, num_joints):
    columns = tuple(replace(entry, ends=(entry.ends,) * num_joints) for entry in box.feed_forward)
    each = GainBox(
        kd_per_s=(box.kd_per_s,) * num_joints,
        lambda_per_s=(box.lambda_per_s,) * num_joints,
        kp_per_s2=None if box.kp_per_s2 is None else (box.kp_per_s2,) * num_joints,
        feed_forward=columns,
    )
    np.testing.assert_array_equal(each.ends(num_joints), box.ends(num_joints))
    assert [name for name, _ in each.named_ends()] == [name for name, _ in box.named_ends()]


def test_ranges_of_each_joint_are_ordered_by_kind_then_by_joint():
    gain_map = GainMap(OF_THREE, 3)
    lower = [10, 12, 15, 1, 1, 1, -6, -4, -1, -3, -2, -0.5, 0, 0, 0]
    upper = [60, 50, 40, 10, 10, 10, 6, 4, 2, 3, 2, 0.5, 1.2, 1.2, 1.2]
    np.testing.assert_array_equal(gain_map.lower, lower)
    np.testing.assert_array_equal(gain_map.upper, upper)
    assert_ends_are_at(gain_map, 1.0)


@given(order=st.permutations(range(3)), data=st.data())
def test_joints_in_another_order_have_their_gains_in_that_order(order, data):
    gain_map, other = GainMap(OF_THREE, 3), GainMap(box_in_order(OF_THREE, order), 3)
    action = data.draw(actions_of(gain_map))
    swapped = action.reshape(5, 3)[:, order].ravel()
    expected = gain_map.gains(action).reshape(5, 3)[:, order].ravel()
    np.testing.assert_array_equal(other.gains(swapped), expected)


@pytest.mark.parametrize('num_joints', [1, 2, 4])
def test_ranges_for_another_number_of_joints_are_refused(num_joints):
    says = rf'GainBox\.kd_per_s: expected {num_joints} entries, one per joint, found 3'
    with pytest.raises(ConfigError, match=says):
        GainMap(OF_THREE, num_joints)


@pytest.mark.parametrize(
    'pairs', [((1.0, 2.0), (2.0, 1.0)), ((1.0, 2.0), (1.0,)), ((1.0, 2.0), 3)]
)
def test_one_joint_without_two_ordered_ends_is_enough_to_be_refused(pairs):
    with pytest.raises(ConfigError, match=r'GainBox\.lambda_per_s: expected \[least, largest\]'):
        replace(SHIPPED, lambda_per_s=pairs)


def test_what_was_stated_is_what_is_written_and_read_back():
    assert build(GainBox, asdict(OF_THREE), 'box') == OF_THREE
    assert asdict(SHIPPED)['kd_per_s'] == (10.0, 60.0)
    with pytest.raises(ConfigError, match='box: kd_per_s: expected a list, each entry a finite'):
        build(GainBox, asdict(SHIPPED) | {'kd_per_s': [[1.0, 'x']]}, 'box')


def test_a_position_gain_stands_between_lambda_and_the_columns():
    box = replace(SHIPPED, kp_per_s2=(0.0, 900.0))
    names = [name for name, _ in box.named_ends()]
    assert names[:3] == ['kd_per_s', 'lambda_per_s', 'kp_per_s2']
    assert names[3:] == [name for name, _ in SHIPPED.named_ends()][2:]
    np.testing.assert_array_equal(box.ends(2)[4:6], [[0.0, 900.0]] * 2)
    assert box.layout == (True, SHIPPED.columns)
    assert SHIPPED.layout == (False, SHIPPED.columns)


@pytest.mark.parametrize('ends', [(1.0, 900.0), (-900.0, -1.0), ((0.0, 9.0), (0.5, 9.0))])
def test_a_range_of_the_position_gain_without_its_nominal_zero_is_refused(ends):
    with pytest.raises(ConfigError, match=r'GainBox\.kp_per_s2: expected a range that holds 0'):
        replace(SHIPPED, kp_per_s2=ends)


def test_a_box_without_a_position_gain_is_written_as_before_there_was_one():
    assert stated(SHIPPED) == {
        'kd_per_s': (10.0, 60.0),
        'lambda_per_s': (1.0, 10.0),
        'feed_forward': (
            {'column': 'bias', 'ends': (-6.0, 6.0)},
            {'column': 'coulomb', 'ends': (-3.0, 3.0)},
        ),
    }
    box = replace(SHIPPED, kp_per_s2=((0.0, 9.0), (0.0, 8.0)))
    assert build(GainBox, stated(box), 'box') == box
