# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""An arm guided by hand over ROS: brought up, refused trajectories, recorded, computed again."""

import numpy as np
import pytest
from support import DOMAIN

from metactl_ros.cli import main
from metactl_ros.control.modes import Mode
from metactl_ros.replay.recompute import GUIDED
from metactl_ros.replay.verdict import replay_bag, ReplayRequest

pytest.importorskip('rclpy', reason="needs ROS: pip install 'metactl_ros[ros]'")
pytest.importorskip('pinocchio', reason="needs Pinocchio: pip install 'metactl_ros[urdf]'")
pytestmark = pytest.mark.ros
NAME = 'gravity_compensation'


def test_it_ends_cleanly_and_its_bag_is_computed_again_to_the_bit(tmp_path, monkeypatch):
    bag = tmp_path / 'bag'
    monkeypatch.setenv('ROS_DOMAIN_ID', str(DOMAIN))
    words = ['--arm', 'fr3', '--controller', NAME, '--record', str(bag), '--duration', '6']
    assert main(['up', *words]) == 0
    result = replay_bag(ReplayRequest(bag=bag, arm_file='fr3'))
    assert result.again.first_difference is None
    assert result.violations == []
    assert result.facts['computed_by'] == NAME
    ticks = result.facts['ticks']
    assert ticks['compared'] > 100
    assert ticks['not_certified'][GUIDED] > 100
    assert result.facts['recording']['rmse_rad']['total'] is None
    log = result.log
    driven = log.shield['mode'] < Mode.STOP
    assert driven.sum() > 100
    assert np.abs(np.ptp(log.q_rad[driven], axis=0)).max() < 0.5  # no sinusoid is followed
