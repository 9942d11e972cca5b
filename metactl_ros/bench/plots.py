# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""Pictures of what an arm did; matplotlib draws to files, no screen needed."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import cycle, pairwise
from typing import Any, NamedTuple

from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.typing import ColorType
import numpy as np
from numpy.typing import NDArray

from metactl_ros.bag.tick_log import TickLog
from metactl_ros.control.modes import Mode
from metactl_ros.metrics import tracking_rmse
from metactl_ros.replay.page import BLUE, MODE_COLOURS, ORANGE
from metactl_ros.signals import Array

TALL = 3
"""With more joints than this, a picture that has all of them below each other cannot be read."""
RUN_COLOURS = (BLUE, ORANGE)
"""Of Okabe and Ito, which colour-blind people can distinguish."""


def _shade_of(mode: Mode) -> tuple[float, float, float]:
    """Return a colour to draw lines upon: white if NOMINAL, else the graver the darker.

    The hues alone, made pale, not everybody could distinguish.
    """
    strength = 0.2 + 0.08 * mode if mode else 0.0
    red, green, blue = (1.0 - strength * (1.0 - part) for part in to_rgb(MODE_COLOURS[mode]))
    return red, green, blue


SHADES: dict[Mode, ColorType] = {mode: _shade_of(mode) for mode in Mode}


def mode_spans(time_s: Array, modes: NDArray[Any]) -> list[tuple[Mode, float, float]]:
    """Return each mode in turn, and when it began and ended, s, from those of ticks, shapes (T,).

    The mode of a tick lasts until the next tick, that of the last one for a usual period.
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
    """Colour the background of axes over time by the modes of ticks, shapes (T,)."""
    spans = mode_spans(time_s, modes)
    for axis in axes:
        for mode, begin_s, end_s in spans:
            # The edge keeps a single tick visible; no milder neighbour may cover it.
            axis.axvspan(begin_s, end_s, color=colours[mode], linewidth=0.8, zorder=0.1 * mode)


def mode_legend(modes: NDArray[Any], colours: Mapping[Mode, ColorType] = SHADES) -> list[Patch]:
    """Return what a legend says of the background: the modes that occur, the gravest last."""
    return [
        Patch(facecolor=colours[mode], edgecolor='0.6', label=mode.name)
        for mode in Mode
        if mode in modes
    ]


class Track(NamedTuple):
    """What a picture shows of a run of T ticks and n joints."""

    joint_names: Sequence[str]
    time_s: Array
    """Shape (T,)."""
    q_rad: Array
    """Measured, shape (T, n)."""
    q_desired_rad: Array
    """The reference of this run, shape (T, n)."""
    effort_nm: Array
    """Shape (T, n)."""
    modes: NDArray[Any]
    """Numbers, shape (T,)."""


def track_of(log: TickLog) -> Track:
    """Return what a picture shows of a recorded run."""
    arrays = (log.time_s, log.q_rad, log.q_desired_rad, log.effort_nm, log.shield['mode'])
    return Track(log.joint_names, *arrays)


def draw_tracking(title: str, tracks: Mapping[str, Track]) -> Figure:
    """Draw how an arm tracked in several runs: position, error and effort of each joint.

    A run is a column, its joints one below the other; of an arm with more than TALL joints it is
    three columns, a row for each joint. Every run is drawn against its own reference, which begins
    where the arm was found. Runs share their scales, and the modes of a run are the background of
    its errors and efforts. All runs are of the same arm.
    """
    num_joints = len(next(iter(tracks.values())).joint_names)
    figure, grid = (_wide if num_joints > TALL else _tall)(num_joints, len(tracks))
    colours = dict(zip(tracks, cycle(RUN_COLOURS), strict=False))
    for run, (label, track) in enumerate(tracks.items()):
        for axis, first in zip(grid[:, run].flat, grid[:, 0].flat, strict=True) if run else ():
            axis.sharey(first)  # before anything is drawn: what is then all sets the scale
            axis.tick_params(labelleft=False)
        grid[0, run, 0].set_title(label, color=colours[label], fontweight='bold')
        for joint in range(num_joints):
            _draw_joint(grid[joint, run], track, joint, colours[label])
    for axis in grid[:, 1:].flat:
        axis.set_ylabel('')
    figure.suptitle(title)
    references, _ = grid[0, 0, 0].get_legend_handles_labels()
    shades = mode_legend(np.concatenate([track.modes for track in tracks.values()]))
    figure.legend(handles=[*references, *shades], loc='outside lower center', ncols=1 + len(Mode))
    return figure


def _tall(num_joints: int, num_runs: int) -> tuple[Figure, NDArray[Any]]:
    """Return axes of shape (joint, run, 3) with a column for each run."""
    figure = Figure(figsize=(10.0, 1.0 + 4.2 * num_joints), layout='constrained')
    table = figure.subplots(3 * num_joints, num_runs, sharex=True, squeeze=False)
    for axis in table.flat:
        axis.label_outer()
    figure.align_ylabels(table[:, 0])
    return figure, table.reshape(num_joints, 3, num_runs).transpose(0, 2, 1)


def _wide(num_joints: int, num_runs: int) -> tuple[Figure, NDArray[Any]]:
    """Return axes of shape (joint, run, 3) with a row for each joint."""
    size = (1.0 + 9.0 * num_runs, 1.0 + 1.7 * num_joints)
    figure = Figure(figsize=size, layout='constrained')
    table = figure.subplots(num_joints, 3 * num_runs, sharex=True, squeeze=False)
    return figure, table.reshape(num_joints, num_runs, 3)


def _draw_joint(axes: Iterable[Axes], log: Track, joint: int, colour: str) -> None:
    """Draw position, error and effort of one joint of one run into three axes."""
    position, error, effort = axes
    wanted, found = log.q_desired_rad[:, [joint]], log.q_rad[:, [joint]]
    position.plot(log.time_s, found, color=colour, linewidth=2.0)
    position.plot(log.time_s, wanted, 'k--', linewidth=1.0, label='reference of the run')
    position.set_ylabel(f'{log.joint_names[joint]}\nposition [rad]')
    error.plot(log.time_s, wanted - found, color=colour, linewidth=1.2)
    error.set_ylabel('error [rad]')
    rms = f'rms {tracking_rmse(wanted, found):.3f} rad'
    error.set_title(rms, loc='right', fontsize='medium', pad=2.0)
    effort.plot(log.time_s, log.effort_nm[:, joint], color=colour, linewidth=0.8)
    effort.set_ylabel('effort [N m]')
    for axis in (position, error, effort):
        if axis.get_subplotspec().is_last_row():  # type: ignore[union-attr]
            axis.set_xlabel('time [s]')
        axis.grid(alpha=0.3)
        axis.margins(x=0.0)
    shade_modes((error, effort), log.time_s, log.modes)
