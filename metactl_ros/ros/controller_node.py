# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""The controller: joint states in, shielded computed-torque efforts out, 100 times a second.

    python -m metactl_ros.ros.controller_node --ros-args -p policy:=NAME.metactl
    python -m metactl_ros.ros.controller_node --ros-args -p controller:=momentum_observer

A lifecycle node. Configure loads and verifies the policy bundle, or a classical controller;
activate starts the control thread, which waits for a first joint state and then ticks on absolute
deadlines of the steady clock; deactivate, shutdown, SIGTERM, SIGINT and any error end it with the
fading torque of a blind arm and a last command of zero. This is not a safety-rated function.

It is two processes. The one that is started controls (`control_node.py`): it receives joint states
and publishes, as NAME_loop. It starts the other, its front (`front_node.py`), which is the
lifecycle node NAME that the network can ask. If the first dies, the front ends; if the front dies,
the first ends as on a signal, with exit code 1.
"""

from collections.abc import Sequence
import sys

from metactl_ros.ros.control_node import ControlNode
from metactl_ros.ros.front_node import FrontProcess
from metactl_ros.ros.spin import run_node


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the controller until it is asked to end; return the exit code."""
    front = FrontProcess(arguments)
    try:
        return run_node(lambda: ControlNode(front), arguments)
    finally:
        front.end()


if __name__ == '__main__':
    sys.exit(main())
