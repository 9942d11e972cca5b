# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""The picture of a run: modes as a band, true error and speed, efforts, faults as shades."""

from pathlib import Path

import matplotlib

from metactl_ros.bench.plots import mode_legend, shade_modes
from metactl_ros.hil.run_log import RunLog
from metactl_ros.replay.figures import MODE_COLOURS

matplotlib.use('Agg')
from matplotlib import pyplot

MOST_LABELS = 40
"""More faults than this are shaded without their names."""


def plot_timeline(path: Path, title: str, log: RunLog) -> None:
    """Draw a run into a PNG."""
    figure, axes = pyplot.subplots(
        4, 1, figsize=(11, 9), sharex=True, height_ratios=(1, 3, 3, 3), squeeze=False
    )
    band, error, speed, effort = axes[:, 0]
    shade_modes([band], log.tick_s, log.mode, MODE_COLOURS)
    band.set_yticks([])
    band.set_ylabel('mode')
    seen = mode_legend(log.mode, MODE_COLOURS)
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
