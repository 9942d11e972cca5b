# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""Hostile input from a seed: bags, policy bundles and YAML files, and how they are answered."""
