# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""Simulated hardware in the loop: scripted faults, and what must hold while they last."""
