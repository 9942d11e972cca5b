# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""Policy bundles: what a robot loads, and refuses to load; the only user of onnxruntime."""
