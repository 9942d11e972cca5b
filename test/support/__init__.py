# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""What several tests build, record or talk to; imported as `support.NAME`."""

import os

DOMAIN = os.getpid() % 50 * 2 + 1
"""The tests of a process run one after the other, in a ROS domain of its own."""
