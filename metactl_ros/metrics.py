# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""How well an arm tracked, and how durations are summed up, as pure functions of arrays."""

import numpy as np
from numpy.typing import NDArray

from metactl_ros.signals import Array

QUANTILE = 0.9
"""Of each joint, by which the joints are made comparable."""
LOST_ERROR_RAD = 1.5
"""A joint this far from its reference has lost it; the softest gains of the box sag by 0.7 rad."""


def tracking_rmse(q_desired_rad: Array, q_rad: Array) -> Array:
    """Return sqrt(mean_t ||e||^2) of each rollout, in rad, shape (...).

    Time is the first axis, (T + 1, ..., n). Row 0 is the drawn initial error, which no controller
    can influence, and does not count. A rollout that diverged gives infinity, never NaN.
    """
    squared = np.sum(np.square(q_desired_rad[1:] - q_rad[1:]), axis=-1)
    rmse = np.sqrt(np.mean(squared, axis=0))
    return np.where(np.isfinite(rmse), rmse, np.inf)


def is_lost(q_desired_rad: Array, q_rad: Array) -> NDArray[np.bool_]:
    """Return whether each rollout lost its reference, shape (...): the one meaning of lost.

    It did if the error of any joint ever reached LOST_ERROR_RAD or was not a number. Time is the
    first axis, (T + 1, ..., n); row 0 is the drawn start and does not count.
    """
    is_near = np.abs(q_desired_rad[1:] - q_rad[1:]) < LOST_ERROR_RAD  # NaN is not near
    return np.asarray(~is_near.all(axis=(0, -1)))


def delta_percent(rmse: float, baseline_rmse: float) -> float:
    """Return the change against the baseline in percent; negative is better."""
    return 100.0 * (rmse - baseline_rmse) / baseline_rmse


def percentiles(values: Array) -> dict[str, float] | None:
    """Return the median, the 99th percentile and the largest of finite values; None of none."""
    if not len(values):
        return None
    p50, p99, largest = np.quantile(values, [0.5, 0.99, 1.0]).tolist()
    return {'p50': p50, 'p99': p99, 'max': largest}


def conformal_rho(off_nm: Array, coverage: float) -> Array:
    """Return rho, shape (n,), within which all joints are on a share of ticks.

    The level has the correction of split conformal prediction for N episodes: with exchangeable
    episodes the expected coverage of a new one is at least as stated.

    Args:
        off_nm: d - d^ of ticks and episodes, shape (T, N, n).
        coverage: Share of ticks.
    """
    size = np.abs(off_nm)
    unit = np.quantile(size, QUANTILE, axis=(0, 1))
    level = min(coverage * (1.0 + 1.0 / off_nm.shape[1]), 1.0)
    return np.asarray(np.quantile((size / unit).max(axis=-1), level) * unit)
