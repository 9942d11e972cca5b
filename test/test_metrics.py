# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
import numpy as np
import pytest

from metactl_ros.metrics import (
    delta_percent,
    is_lost,
    LOST_ERROR_RAD,
    percentiles,
    tracking_rmse,
)


def test_rmse_of_a_hand_computed_rollout():
    wanted = np.zeros((3, 2))
    found = np.array([[9.0, 9.0], [3.0, 4.0], [0.0, 5.0]])  # row 0 is the drawn start
    assert tracking_rmse(wanted, found) == 5.0


def test_rollouts_are_kept_apart():
    found = np.zeros((3, 4, 2))
    found[:, 1] = 1.0
    np.testing.assert_allclose(tracking_rmse(np.zeros_like(found), found), [0, 2**0.5, 0, 0])


@pytest.mark.parametrize('bad', [np.nan, np.inf, -np.inf])
def test_a_diverged_rollout_is_infinitely_bad_and_never_nan(bad):
    found = np.zeros((3, 2, 2))
    found[2, 0, 1] = bad
    np.testing.assert_array_equal(tracking_rmse(np.zeros_like(found), found), [np.inf, 0.0])


@pytest.mark.parametrize('far', [LOST_ERROR_RAD, -LOST_ERROR_RAD, np.nan, np.inf, -np.inf])
def test_an_arm_is_lost_if_one_joint_once_reaches_the_limit_or_is_nowhere(far):
    found = np.zeros((4, 3, 2))
    found[2, 1, 1] = far
    found[0, 2] = 9.0  # the drawn start does not count
    found[1:, 0] = np.nextafter(LOST_ERROR_RAD, 0.0)
    assert is_lost(np.zeros_like(found), found).tolist() == [False, True, False]


def test_one_arm_is_lost_or_not():
    assert not is_lost(np.zeros((3, 2)), np.zeros((3, 2)))
    assert is_lost(np.zeros((3, 2)), np.full((3, 2), 2.0))


def test_delta_is_negative_for_an_improvement():
    assert delta_percent(0.05, 0.10) == pytest.approx(-50.0)


def test_percentiles_are_those_of_a_known_row_and_none_of_nothing():
    assert percentiles(np.arange(101.0)) == {'p50': 50.0, 'p99': 99.0, 'max': 100.0}
    assert percentiles(np.zeros(0)) is None
