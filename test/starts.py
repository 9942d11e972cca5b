# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""Builders of plant starts for tests."""

import numpy as np

from metactl_ros.sim.plant import PlantStart


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
