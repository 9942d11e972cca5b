# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""Random control situations for tests, as arrays (..., n) and as what the law works on."""

import numpy as np

from metactl_ros.control.law import make_features, tracking_error, TrackingState
from metactl_ros.settings import load_settings

SETTINGS = load_settings()
LAW = SETTINGS.controller.law
LAYOUT = SETTINGS.controller.gain_box.layout
MODEL = SETTINGS.arm.body()


def problems(count, seed, reach=1.5):
    """Return proposals, unit normals with some zeros, and offsets with a non-empty set."""
    rng = np.random.default_rng(seed)
    normal = rng.normal(size=(count, 8)) * np.exp(rng.normal(size=(count, 8)))
    normal[rng.random((count, 8)) < 0.15] = 0.0
    normal[:, 0] += 1e-3
    normal /= np.linalg.norm(normal, axis=-1, keepdims=True)
    proposal = rng.uniform(-reach, reach, (count, 8))
    span = np.abs(normal).sum(axis=-1)
    return proposal, normal, span * rng.uniform(-0.98, 1.0, count)


class Situation:
    """A random state and reference, shape (..., 2), with errors of a given size."""

    def __init__(self, seed, lead=(), error_rad=0.3, layout=LAYOUT):
        rng = np.random.default_rng(seed)
        self.q = rng.uniform(-2, 2, (*lead, 2))
        self.qd = rng.uniform(-2, 2, (*lead, 2))
        self.q_desired = self.q + error_rad * rng.normal(size=(*lead, 2))
        self.qd_desired = self.qd + 3.0 * error_rad * rng.normal(size=(*lead, 2))
        self.qdd_desired = rng.uniform(-5, 5, (*lead, 2))
        self.rng, self.layout = rng, layout
        self.estimate_nm = None
        if layout.counts_on_estimate:
            self.estimate_nm = rng.uniform(-8, 8, (*lead, 2))
        self._derive()

    def _derive(self):
        self.posture = MODEL.at(self.q, self.qd)
        self.bias = self.posture.bias
        wanted = (self.q_desired, self.qd_desired, self.qdd_desired)
        self.error = tracking_error(LAW, TrackingState(self.q, self.qd, *wanted))
        self.features = make_features(
            LAW, self.layout, self.error, self.qd_desired, self.estimate_nm
        )

    def of_arm(self, index):
        """Return the situation of one arm of a batch."""
        one = Situation(0, layout=self.layout)
        for name in ('q', 'qd', 'q_desired', 'qd_desired', 'qdd_desired', 'estimate_nm'):
            values = getattr(self, name)
            setattr(one, name, None if values is None else values[index])
        one._derive()
        return one
