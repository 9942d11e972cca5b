# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st
import numpy as np
import pytest

from metactl_ros.config import build
from metactl_ros.errors import ConfigError
from metactl_ros.per_joint import (
    for_joints,
    joint_array,
    one_for_all,
    PerJoint,
    require_joints,
    scaled,
)

numbers = st.floats(-1e6, 1e6)
lists = st.lists(numbers, min_size=1, max_size=5).map(tuple)


@dataclass(frozen=True)
class Joints:
    stiffness: PerJoint
    damping: PerJoint
    title: str = ''


@given(value=numbers, num_joints=st.integers(1, 5))
def test_one_number_is_that_of_every_joint(value, num_joints):
    assert for_joints(value, num_joints).tolist() == [value] * num_joints
    assert joint_array(value) == value
    assert one_for_all('x', value) == value
    assert scaled(2.0, value) == 2.0 * value
    require_joints(Joints(value, value), num_joints)


@given(values=lists)
def test_a_list_has_the_number_of_each_joint(values):
    assert for_joints(values, len(values)).tolist() == list(values)
    np.testing.assert_array_equal(joint_array(values), values)
    assert scaled(2.0, values) == tuple(2.0 * value for value in values)
    require_joints(Joints(values, 1.0), len(values))
    require_joints(Joints(values, values))


def test_another_number_of_entries_is_refused_with_key_joints_and_what_was_found():
    says = r'Joints\.damping: expected 3 entries, one per joint, found 2: \[1\.0, 2\.0\]'
    with pytest.raises(ConfigError, match=says):
        require_joints(Joints(1.0, (1.0, 2.0)), 3)
    with pytest.raises(ConfigError, match=says):
        require_joints(Joints((1.0, 2.0, 3.0), (1.0, 2.0)))


def test_a_list_is_refused_where_only_one_number_will_do():
    with pytest.raises(ConfigError, match=r'x: expected one number for all joints, found \[1'):
        one_for_all('x', (1.0, 2.0))


@pytest.mark.parametrize('stated', [2.0, [1.0, 2.0], 3, [3, 4.5]])
def test_what_a_file_states_is_kept_as_it_was(stated):
    found = build(Joints, {'stiffness': stated, 'damping': 1.0}, 'file').stiffness
    assert found == (tuple(stated) if isinstance(stated, list) else stated)
    each = found if isinstance(found, tuple) else (found,)
    assert all(type(value) is float for value in each)


@pytest.mark.parametrize('stated', ['stiff', ['stiff'], [[1.0]], None, {'a': 1.0}, float('inf')])
def test_what_is_neither_a_number_nor_a_list_of_them_is_refused(stated):
    says = 'file: stiffness: expected a finite number, or a list, each entry a finite number, fo'
    with pytest.raises(ConfigError, match=says):
        build(Joints, {'stiffness': stated, 'damping': 1.0}, 'file')


def test_a_missing_key_says_what_may_be_stated():
    says = r"missing key 'damping'; add it \(a finite number, or a list, each entry a finite n"
    with pytest.raises(ConfigError, match=says):
        build(Joints, {'stiffness': 1.0}, 'file')
