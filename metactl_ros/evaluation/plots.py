# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""Pictures of what an arm did; matplotlib draws to files, no screen needed."""

from collections.abc import Iterable, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any, Protocol

import matplotlib
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.patches import Patch
from matplotlib.typing import ColorType
import numpy as np
from numpy.typing import NDArray

from metactl_ros.control.modes import Mode
from metactl_ros.evaluation.replay_figures import MODE_COLOURS
from metactl_ros.signals import Array

matplotlib.use('Agg')
from matplotlib import pyplot


def _shade_of(mode: Mode) -> tuple[float, float, float]:
    """Return a colour to draw lines upon: white if NOMINAL, else the graver the darker.

    The hues alone, made pale, would not be told apart by everybody.
    """
    strength = 0.2 + 0.08 * mode if mode else 0.0
    red, green, blue = (1.0 - strength * (1.0 - part) for part in to_rgb(MODE_COLOURS[mode]))
    return red, green, blue


SHADES: dict[Mode, ColorType] = {mode: _shade_of(mode) for mode in Mode}


def mode_spans(time_s: Array, modes: NDArray[Any]) -> list[tuple[Mode, float, float]]:
    """Return each mode in turn, and when it began and ended, s.

    The mode of a tick lasts until the next tick, that of the last one for a usual period.

    Args:
        time_s: Of the ticks, shape (T,), s.
        modes: Their numbers, shape (T,).
    """
    period_s = float(np.median(np.diff(time_s))) if len(time_s) > 1 else 0.0
    begins = np.flatnonzero(np.diff(modes, prepend=-1))
    edges_s = [*time_s[begins].tolist(), float(time_s[-1]) + period_s]
    names = [Mode(int(mode)) for mode in modes[begins]]
    return [(mode, *edges) for mode, edges in zip(names, pairwise(edges_s), strict=True)]


def shade_modes(
    axes: Iterable[Axes],
    time_s: Array,
    modes: NDArray[Any],
    colours: Mapping[Mode, ColorType] = SHADES,
) -> None:
    """Colour the background by mode.

    Args:
        axes: Over time, s.
        time_s: Of the ticks, shape (T,), s.
        modes: Their numbers, shape (T,).
        colours: Of the modes.
    """
    spans = mode_spans(time_s, modes)
    for axis in axes:
        for mode, begin_s, end_s in spans:
            # The edge keeps a single tick visible; no milder neighbour may cover it.
            axis.axvspan(begin_s, end_s, color=colours[mode], linewidth=0.8, zorder=0.1 * mode)


def mode_legend(modes: NDArray[Any], colours: Mapping[Mode, ColorType] = SHADES) -> list[Patch]:
    """Return what a legend says of the background: the modes that occur, the gravest last.

    Args:
        modes: The numbers of all that is shown.
        colours: Of the modes.
    """
    return [
        Patch(facecolor=colours[mode], edgecolor='0.6', label=mode.name)
        for mode in Mode
        if mode in modes
    ]


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
