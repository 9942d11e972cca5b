# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""Pictures of what an arm did; matplotlib draws to files, no screen needed."""

from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

import matplotlib
import numpy as np

from metactl_ros.signals import Array

matplotlib.use('Agg')
from matplotlib import pyplot


class Track(Protocol):
    """What one arm did: time first, joints last."""

    @property
    def time_s(self) -> Array:
        """Shape (T,), s."""

    @property
    def q_rad(self) -> Array:
        """Shape (T, n)."""

    @property
    def q_desired_rad(self) -> Array:
        """Shape (T, n)."""

    @property
    def effort_nm(self) -> Array:
        """Shape (T, n), or one row less."""


def plot_tracking(path: Path, title: str, logs: Mapping[str, Track]) -> None:
    """Draw positions, tracking error and effort of one arm under several conditions.

    Args:
        path: Where the PNG goes.
        title: Above the picture.
        logs: Logs of the same episode by label; arrays of one arm, shape (T + 1, n).
    """
    num_joints = next(iter(logs.values())).q_rad.shape[-1]
    figure, axes = pyplot.subplots(3, num_joints, figsize=(11, 8), sharex=True, squeeze=False)
    for joint in range(num_joints):
        position, error, effort = axes[:, joint]
        any_log = next(iter(logs.values()))
        position.plot(any_log.time_s, any_log.q_desired_rad[:, joint], 'k--', label='reference')
        for label, log in logs.items():
            position.plot(log.time_s, log.q_rad[:, joint], label=label)
            miss = log.q_desired_rad[:, joint] - log.q_rad[:, joint]
            error.plot(log.time_s, miss, label=f'rms {np.sqrt(np.mean(miss**2)):.3f}')
            effort.plot(log.time_s[: len(log.effort_nm)], log.effort_nm[:, joint], label=label)
        position.set_title(f'joint {joint + 1}')
        position.set_ylabel('position [rad]')
        error.set_ylabel('error [rad]')
        effort.set_ylabel('effort [N m]')
        effort.set_xlabel('time [s]')
        error.legend(fontsize='small', framealpha=0.5)
        for axis in (position, error, effort):
            axis.grid(alpha=0.3)
    figure.suptitle(title)
    names = axes[0, 0].get_legend_handles_labels()
    figure.legend(*names, loc='lower center', ncols=len(logs) + 1, fontsize='small')
    figure.tight_layout(rect=(0.0, 0.03, 1.0, 1.0))
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
    pyplot.close(figure)
