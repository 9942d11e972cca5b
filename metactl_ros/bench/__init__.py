# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""Closed-loop runs, in process and over ROS, their metrics and their pictures."""
