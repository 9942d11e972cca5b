# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""Gains that adapt to friction with memory, behind a Lyapunov shield, for torque-controlled arms.

                   observe()                 driver              actuate()
plant --ArmState--> context window --Window--> policy --Action--> gain map --Gains--> shield
  ^                                                                                     |
  +---------------Effort [N m]<---------- effort limits <---- computed torque <---------+

Read `control/loop.py` first, then `control/` along that line. Four drivers run the same loop, and
only they know where states come from and where efforts go: the training environment
(`training/learn/env.py`), rollouts in process (`sim/rollout.py`), the replay of recorded bags
(`replay/recompute.py`) and the controller of the ROS 2 node (`runtime/controller.py`).
"""
