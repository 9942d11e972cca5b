# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""The controller node under a lifecycle manager: it waits, is taken back, is asked again."""

import os
import shutil

import numpy as np
import pytest

from metactl_ros.control.modes import Mode
from metactl_ros.settings import shipped_policy

pytest.importorskip('rclpy', reason="needs ROS: pip install 'metactl_ros[ros]'")
from diagnostic_msgs.msg import DiagnosticStatus
from lifecycle_msgs.srv import ChangeState, GetState
from support.resting_robot import PATIENT, Robot, STILL
from support.ros_peer import running, wait_until

pytestmark = pytest.mark.ros

DOMAIN = os.getpid() % 50 * 2 + 1


@pytest.fixture
def robot():
    robot = Robot(DOMAIN)
    yield robot
    robot.close()


class Lifecycle:
    """Asks a node for transitions."""

    def __init__(self, robot):
        self._robot = robot

    def go(self, label):
        request = ChangeState.Request()
        request.transition.label = label
        return self._robot.call(ChangeState, 'controller/change_state', request).success

    def state(self):
        answer = self._robot.call(GetState, 'controller/get_state', GetState.Request())
        return answer.current_state.label


def test_without_autostart_it_waits_for_its_lifecycle(robot):
    go, state = Lifecycle(robot).go, Lifecycle(robot).state
    with running('controller_node', DOMAIN, PATIENT, STILL, 'autostart:=false'):
        robot.speaks = True
        assert state() == 'unconfigured'
        assert go('configure')
        assert state() == 'inactive'
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
        assert state() == 'unconfigured'
        wait_until(lambda: not robot.node.count_publishers('joint_commands'))
        assert go('configure')
        assert go('activate')
        robot.until(Mode.NOMINAL)
        assert robot.node.count_publishers('joint_commands') == 1
        assert robot.node.count_subscribers('joint_states') == 1
        assert go('shutdown')
        wait_until(lambda: not np.any(robot.commands[-1][2]))
        assert state() == 'finalized'


def diagnosed(robot):
    """Return level and text of the newest report of a controller's mode."""
    status = robot.reports[-1].status[0]
    assert status.name == 'controller: mode'
    return status.level, status.message


def test_diagnostics_tell_of_a_controller_that_drives_nothing(robot):
    lifecycle = Lifecycle(robot)
    with running('controller_node', DOMAIN, PATIENT, STILL, 'autostart:=false'):
        for transition, expected in [
            (None, 'unconfigured'),
            ('configure', 'inactive'),
            ('activate', 'waiting for a joint state'),
            ('deactivate', 'inactive'),
        ]:
            assert transition is None or lifecycle.go(transition)
            robot.reports.clear()
            wait_until(lambda: robot.reports)
            wanted = DiagnosticStatus.STALE if 'waiting' in expected else DiagnosticStatus.OK
            assert diagnosed(robot) == (wanted, expected)


def test_a_refused_configure_is_diagnosed_and_may_be_asked_for_again(robot, tmp_path):
    lifecycle, bundle = Lifecycle(robot), tmp_path / 'late.metactl'
    bundle.mkdir()  # there, but not yet filled
    parameters = ('autostart:=false', f'policy:={bundle}')
    with running('controller_node', DOMAIN, PATIENT, STILL, *parameters) as process:
        assert not lifecycle.go('configure')
        assert lifecycle.state() == 'unconfigured'
        robot.reports.clear()
        wait_until(lambda: robot.reports)
        level, text = diagnosed(robot)
        assert level == DiagnosticStatus.ERROR
        assert str(bundle) in text
        shutil.copytree(shipped_policy(), bundle, dirs_exist_ok=True)
        assert lifecycle.go('configure')
        assert lifecycle.state() == 'inactive'
        assert process.poll() is None
