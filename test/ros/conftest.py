# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""A robot at rest that lasts for a file of tests, and a controller in NOMINAL that holds it."""

import pytest
from support import DOMAIN

from metactl_ros.control.modes import Mode


@pytest.fixture(scope='module')
def lasting_robot():
    from support.resting_robot import Robot  # needs ROS, which not every test here does

    robot = Robot(DOMAIN)
    yield robot
    robot.close()


@pytest.fixture
def robot(lasting_robot):
    lasting_robot.forget()
    yield lasting_robot
    lasting_robot.speaks = False


@pytest.fixture
def controller(robot):
    """A controller in NOMINAL whose arm stays where it is."""
    from support.resting_robot import PATIENT, STILL
    from support.ros_peer import running

    with running('controller_node', DOMAIN, PATIENT, STILL) as process:
        robot.speaks = True
        robot.until(Mode.NOMINAL)
        yield process
