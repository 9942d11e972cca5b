# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""What several tests build, record or talk to; imported as `support.NAME`."""
