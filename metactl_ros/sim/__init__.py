# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""Simulated arms behind one protocol, their sensors, tasks and faults."""
