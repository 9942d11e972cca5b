# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""Where arms start in tests, and episodes whose reference begins at the state of the arm."""

from dataclasses import replace

import numpy as np

from metactl_ros.motion.joining import join
from metactl_ros.motion.reference import motion_limits
from metactl_ros.settings import load_arm
from metactl_ros.sim.plant import PlantStart

LIMITS = motion_limits(load_arm())


def start(q_rad, qd_radps=None, memory_nm=None, payload_kg=0.0, tau_z_s=2.0) -> PlantStart:
    """Return a start at `q_rad`, shape (..., 2); everything else is zero or broadcast."""
    q = np.array(q_rad, dtype=np.float64)
    lead = q.shape[:-1]
    return PlantStart(
        q_rad=q,
        qd_radps=np.zeros_like(q) if qd_radps is None else np.array(qd_radps, dtype=np.float64),
        memory_nm=np.zeros_like(q) if memory_nm is None else np.array(memory_nm, dtype=np.float64),
        payload_kg=np.broadcast_to(np.asarray(payload_kg, dtype=np.float64), lead).copy(),
        tau_z_s=np.broadcast_to(np.asarray(tau_z_s, dtype=np.float64), lead).copy(),
        noise_seed=np.zeros(lead, dtype=np.int64),
    )


def as_followed(episode, limits=LIMITS):
    """Return an episode as the node follows it: joined from where the arm is."""
    start = episode.start
    return replace(
        episode, reference=join(episode.reference, limits, 0.0, start.q_rad, start.qd_radps)
    )
