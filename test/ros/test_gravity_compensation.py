# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""An arm guided by hand over ROS: brought up, ended, recorded, computed again."""

import numpy as np
import pytest
from support import DOMAIN

from metactl_ros.control.modes import Mode
from metactl_ros.processes import loopback_environment, running, Setup
from metactl_ros.replay.recompute import GUIDED
from metactl_ros.replay.verdict import replay_bag, ReplayRequest

pytest.importorskip('rclpy', reason="needs ROS: pip install 'metactl_ros[ros]'")
pytest.importorskip('pinocchio', reason="needs Pinocchio: pip install 'metactl_ros[urdf]'")
pytestmark = pytest.mark.ros
NAME, STEPS = 'gravity_compensation', 300


def test_it_ends_cleanly_and_its_bag_is_computed_again_to_the_bit(tmp_path):
    from support.ros_peer import wait_until

    from metactl_ros.bag.tick_log import read_ticks

    bag = tmp_path / 'bag'
    chosen = {'controller': NAME, 'arm_file': 'fr3', 'log_level': 'error'}
    setup = Setup(lockstep=True, seed=5, record=bag, **chosen)

    def num_ticks():
        try:
            return len(read_ticks(next(bag.glob('*.mcap'))).stamp_ns)
        except Exception:  # not yet there, or not yet complete
            return 0

    with running(setup, loopback_environment(DOMAIN)) as group:
        wait_until(lambda: num_ticks() > STEPS, timeout_s=120.0)
        assert set(group.stop_all().values()) == {0}
    result = replay_bag(ReplayRequest(bag=bag, arm_file='fr3'))
    assert result.facts['computed_by'] == NAME
    assert result.again.first_difference is None
    assert result.uncertified == []
    log = result.log
    is_guided = log.shield['mode'] < Mode.STOP
    # The simulated robot may begin on a fast sinusoid, which is a STOP at first.
    assert is_guided.sum() > 100
    assert set(log.shield['mode'][is_guided]) >= {Mode.NOMINAL}
    assert result.facts['ticks']['compared'] >= STEPS
    assert result.facts['ticks']['not_certified'][GUIDED] == is_guided.sum()
    assert result.facts['recording']['rmse_rad']['total'] is None
    np.testing.assert_array_equal(log.q_desired_rad[is_guided], log.q_rad[is_guided])
