# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
import os
import subprocess
import sys

import pytest

from metactl_ros.nodes.middleware import loopback_environment

pytest.importorskip('rclpy', reason="needs ROS: pip install 'metactl_ros[ros]'")
from ros_peer import ROOT

DOMAIN = os.getpid() % 50 * 2 + 1
ENDS_ITSELF = """
import gc, os, signal, sys, weakref
from metactl_ros.nodes.controller_node import ControllerNode
from metactl_ros.nodes.spin import run_node

made = []

def make():
    node = ControllerNode()
    made.append(weakref.ref(node))
    gc.freeze()  # as the control thread does
    node.create_timer(0.1, lambda: os.kill(os.getpid(), signal.SIGTERM))
    return node

code = run_node(make, None)
sys.exit(code if made[0]() is None else 'the node outlives its run')
"""


@pytest.mark.ros
def test_a_node_that_ended_leaves_nothing_for_the_end_of_the_process():
    done = subprocess.run(
        [sys.executable, '-c', ENDS_ITSELF],
        cwd=ROOT,
        env=os.environ | loopback_environment(DOMAIN),
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert done.returncode == 0, done.stderr
