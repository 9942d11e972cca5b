# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""Write config/arm.urdf from config/arm.yaml."""

from pathlib import Path

from metactl_ros.settings import load_arm
from metactl_ros.sim.arm_urdf import arm_urdf

FILE = Path(__file__).resolve().parents[1] / 'config' / 'arm.urdf'

if __name__ == '__main__':
    FILE.write_text(arm_urdf(load_arm()), encoding='utf-8')
