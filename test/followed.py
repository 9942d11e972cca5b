# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""Episodes as the node follows them: a reference that begins at the state of the arm."""

from dataclasses import replace

from metactl_ros.motion.joining import join
from metactl_ros.motion.limits import motion_limits
from metactl_ros.settings import load_arm

LIMITS = motion_limits(load_arm())


def as_followed(episode):
    start = episode.start
    return replace(
        episode, reference=join(episode.reference, LIMITS, 0.0, start.q_rad, start.qd_radps)
    )
