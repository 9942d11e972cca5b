# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""The adaptive law in torch, batched over random arms, so that it can be trained through them."""
