# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""Gains that adapt to friction with memory, behind a Lyapunov shield, for torque-controlled arms.

                     observe()                   driver              actuate()
plant/ --ArmState--> context window --Window--> policy  --Action--> gain map --Gains--> shield
  ^                                                                                       |
  +---------------Effort [N m]<----------- effort limits <---- computed torque <----------+

Read `control/` from top to bottom of that line, then the driver you need: the environment and the
evaluator under `training/` and `evaluation/`, the ROS 2 node under `nodes/`.
"""
