# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""The controller node under a lifecycle manager: it waits, is taken back, is asked again."""

import shutil

import numpy as np
import pytest

from metactl_ros.control.modes import Mode
from metactl_ros.settings import shipped_policy

pytest.importorskip('rclpy', reason="needs ROS: pip install 'metactl_ros[ros]'")
from diagnostic_msgs.msg import DiagnosticStatus
from lifecycle_msgs.srv import GetState
from support import DOMAIN
from support.resting_robot import PATIENT, Robot, STILL
from support.ros_peer import running, wait_until

pytestmark = pytest.mark.ros


@pytest.fixture
def robot():
    robot = Robot(DOMAIN)
    yield robot
    robot.close()


def state_of(robot):
    return robot.call(GetState, 'controller/get_state', GetState.Request()).current_state.label


def test_without_autostart_it_waits_for_its_lifecycle(robot):
    go = robot.change_state
    with running('controller_node', DOMAIN, PATIENT, STILL, 'autostart:=false'):
        robot.speaks = True
        assert state_of(robot) == 'unconfigured'
        assert go('configure')
        assert state_of(robot) == 'inactive'
        assert not robot.commands
        assert go('activate')
        robot.until(Mode.NOMINAL)
        assert go('deactivate')
        wait_until(lambda: not np.any(robot.commands[-1][2]))
        count = len(robot.commands)
        assert go('activate')
        robot.until(Mode.WARMUP)
        wait_until(lambda: len(robot.commands) > count)
        assert go('deactivate')
        assert go('cleanup')
        assert state_of(robot) == 'unconfigured'
        wait_until(lambda: not robot.node.count_publishers('joint_commands'))
        assert go('configure')
        assert go('activate')
        robot.until(Mode.NOMINAL)
        assert robot.node.count_publishers('joint_commands') == 1
        assert robot.node.count_subscribers('joint_states') == 1
        assert go('shutdown')
        wait_until(lambda: not np.any(robot.commands[-1][2]))
        assert state_of(robot) == 'finalized'


def diagnosed(robot):
    """Return level and text of the newest report of a controller's mode."""
    status = robot.reports[-1].status[0]
    assert status.name == 'controller: mode'
    return status.level, status.message


def test_diagnostics_tell_of_a_controller_that_drives_nothing(robot):
    with running('controller_node', DOMAIN, PATIENT, STILL, 'autostart:=false'):
        for transition, expected in [
            (None, 'unconfigured'),
            ('configure', 'inactive'),
            ('activate', 'waiting for a joint state'),
            ('deactivate', 'inactive'),
        ]:
            assert transition is None or robot.change_state(transition)
            robot.reports.clear()
            wait_until(lambda: robot.reports)
            wanted = DiagnosticStatus.STALE if 'waiting' in expected else DiagnosticStatus.OK
            assert diagnosed(robot) == (wanted, expected)


def test_a_refused_configure_is_diagnosed_and_may_be_asked_for_again(robot, tmp_path):
    bundle = tmp_path / 'late.metactl'
    bundle.mkdir()  # there, but not yet filled
    parameters = ('autostart:=false', f'policy:={bundle}')
    with running('controller_node', DOMAIN, PATIENT, STILL, *parameters) as process:
        assert not robot.change_state('configure')
        assert state_of(robot) == 'unconfigured'
        robot.reports.clear()
        wait_until(lambda: robot.reports)
        level, text = diagnosed(robot)
        assert level == DiagnosticStatus.ERROR
        assert str(bundle) in text
        shutil.copytree(shipped_policy(), bundle, dirs_exist_ok=True)
        assert robot.change_state('configure')
        assert state_of(robot) == 'inactive'
        assert process.poll() is None
