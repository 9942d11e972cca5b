# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
from dataclasses import replace

import numpy as np
import pytest
from support.three_joints import M, ThreeJoints

from metactl_ros.dynamics.rigid_body import JointLimits
from metactl_ros.errors import ConfigError

LIMITS = JointLimits(
    effort_nm=(9.0, 8.0, 7.0),
    effort_rate_nmps=(90.0, 80.0, 70.0),
    position_rad=(2.0, 1.0, 3.0),
    velocity_radps=(4.0, 5.0, 6.0),
)


def test_a_range_of_which_only_the_upper_end_is_stated_is_symmetric():
    np.testing.assert_array_equal(LIMITS.upper_rad, [2.0, 1.0, 3.0])
    np.testing.assert_array_equal(LIMITS.lower_rad, [-2.0, -1.0, -3.0])


def test_both_ends_of_a_range_may_be_stated_also_on_one_side_of_zero():
    limits = replace(LIMITS, position_rad=(2.0, -0.1, 3.0), position_lower_rad=(-0.5, -3.0, 1.0))
    np.testing.assert_array_equal(limits.upper_rad, [2.0, -0.1, 3.0])
    np.testing.assert_array_equal(limits.lower_rad, [-0.5, -3.0, 1.0])


@pytest.mark.parametrize(
    ('lower', 'text'),
    [
        (
            (-1.0, 1.1, -1.0),
            r'finite ends below position_rad = \[2.0, 1.0, 3.0\], found \[-1.0, 1.1',
        ),
        ((-1.0, -1.0, 3.0), 'finite ends below'),  # no range at all
        ((-1.0, -1.0, float('nan')), 'finite ends below'),
        ((-float('inf'), -1.0, -1.0), 'finite ends below'),
        ((-1.0, -1.0), 'expected 3 entries, one per joint, found 2'),
    ],
)
def test_a_range_whose_ends_are_crossed_missing_or_no_numbers_is_refused(lower, text):
    with pytest.raises(ConfigError, match=f'JointLimits.position_lower_rad: .*{text}'):
        replace(LIMITS, position_lower_rad=lower)


@pytest.mark.parametrize('upper', [(0.0, 1.0, 1.0), (-1.0, 1.0, 1.0), (1.0, 1.0, float('nan'))])
def test_a_symmetric_range_has_an_upper_end_above_zero(upper):
    with pytest.raises(
        ConfigError, match=r'JointLimits\.position_rad: expected finite values above'
    ):
        replace(LIMITS, position_rad=upper)


def test_the_stand_in_with_three_joints_keeps_the_protocol_of_a_posture():
    rng = np.random.default_rng(0)
    q, torque, armature = rng.uniform(0.1, 2.0, (3, 5, 3))
    posture = ThreeJoints().body().at(q, np.zeros_like(q))
    np.testing.assert_allclose(posture.apply(posture.solve(torque)), torque)
    qdd = posture.solve(torque, armature)
    np.testing.assert_allclose(posture.apply(qdd) + armature * qdd, torque)
    feels = 1.0 / np.diag(np.linalg.inv(M))
    np.testing.assert_allclose(posture.effective_inertia, np.broadcast_to(feels, (5, 3)))
