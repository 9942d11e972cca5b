# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""The picture of a run: modes as a band, true error and speed, efforts, faults as shades."""

from itertools import pairwise
from pathlib import Path

import matplotlib
import numpy as np

from metactl_ros.control.modes import Mode
from metactl_ros.hil.run_log import RunLog

matplotlib.use('Agg')
from matplotlib import pyplot
from matplotlib.patches import Patch

COLOURS = {
    Mode.NOMINAL: '#4daf4a',
    Mode.WARMUP: '#a6d96a',
    Mode.FALLBACK: '#ffd92f',
    Mode.STOP: '#ff9f1c',
    Mode.BLIND: '#7570b3',
    Mode.FAULT: '#d7191c',
}

MOST_LABELS = 40
"""More faults than this are shaded without their names."""


def plot_timeline(path: Path, title: str, log: RunLog) -> None:
    """Draw a run into a PNG."""
    figure, axes = pyplot.subplots(
        4, 1, figsize=(11, 9), sharex=True, height_ratios=(1, 3, 3, 3), squeeze=False
    )
    band, error, speed, effort = axes[:, 0]
    edges = [0, *(np.flatnonzero(np.diff(log.mode)) + 1).tolist(), len(log.mode)]
    for begin, end in pairwise(edges):
        last_s = log.tick_s[min(end, len(log.tick_s) - 1)]
        band.axvspan(log.tick_s[begin], last_s, color=COLOURS[Mode(int(log.mode[begin]))])
    band.set_yticks([])
    band.set_ylabel('mode')
    seen = [Patch(color=COLOURS[m], label=m.name) for m in Mode if (log.mode == m).any()]
    band.legend(handles=seen, loc='upper left', ncols=len(seen), fontsize='small')
    error.plot(log.tick_s, log.error_rad, linewidth=0.8)
    error.set_ylabel('true error [rad]')
    speed.plot(log.step_s[log.is_driven], log.true_qd_radps[log.is_driven], linewidth=0.8)
    speed.set_ylabel('true speed [rad/s]')
    efforts_nm = log.commands.effort_nm
    for joint in range(efforts_nm.shape[1]):
        effort.plot(
            log.command_s,
            log.commands.effort_nm[:, joint],
            linewidth=0.7,
            label=f'joint {joint + 1}',
        )
    effort.set_ylabel('effort [N m]')
    effort.set_xlabel('time since the first driven step [s]')
    effort.legend(loc='upper left', fontsize='small')
    for span in log.spans:
        end_s = min(span.end_s, float(log.tick_s[-1]))
        for axis in (error, speed, effort):
            axis.axvspan(span.begin_s, end_s, color='0.5', alpha=0.2, linewidth=0)
        if len(log.spans) > MOST_LABELS:
            continue
        error.annotate(
            span.fault.kind,
            (span.begin_s, 1.0),
            xycoords=('data', 'axes fraction'),
            rotation=90,
            va='top',
            fontsize='x-small',
        )
    for axis in (error, speed, effort):
        axis.grid(alpha=0.3)
    figure.suptitle(title)
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=100)
    pyplot.close(figure)
