# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""Bags: what a recording is made of and how it gets to the disk; without ROS, only its files."""
