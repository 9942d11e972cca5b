# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""How topics are carried.

A sensor is read best effort, which fits every publisher; a command must be reliable, or
ros2_control's controllers do not connect. No deadline is asked of anybody: a publisher that offers
none would silently not be heard.
"""

from rclpy.qos import DurabilityPolicy, QoSProfile, ReliabilityPolicy

SENSOR = QoSProfile(depth=5, reliability=ReliabilityPolicy.BEST_EFFORT)
RELIABLE = QoSProfile(depth=1, reliability=ReliabilityPolicy.RELIABLE)
TELEMETRY = QoSProfile(
    depth=1000,
    reliability=ReliabilityPolicy.RELIABLE,
    durability=DurabilityPolicy.TRANSIENT_LOCAL,
)
"""For recorders: what was published before one was found is sent then, ten seconds of it."""
KEPT = QoSProfile(
    depth=1,
    reliability=ReliabilityPolicy.RELIABLE,
    durability=DurabilityPolicy.TRANSIENT_LOCAL,
)
"""For who comes later: the last message is kept."""
