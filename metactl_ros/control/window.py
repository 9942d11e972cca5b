# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""The last W observations, one control period apart: what the policy sees.

    rows():  (..., W, F)    row 0 = oldest, row W-1 = now

    push a            a a a a      the first row fills the whole window
    push b            a a a b
    push c            a a b c
    push e (d lost)   b c d' e     d' lies halfway between c and e: time is never closed up
    push e again      b c d' e     a stamp less than half a period ahead changes nothing

A row is the paper's step observation, in its order and in raw units; `token_map` is the invertible
linear map that a network applies first.
"""

from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeAlias

import numpy as np

from metactl_ros.config import (
    for_joints,
    PerJoint,
    require_length,
    require_not_negative,
    require_positive,
)
from metactl_ros.signals import ArmState, Array, Reference, seconds

Tokens: TypeAlias = Literal['raw', 'error_scaled', 'error_fine']


class TokenUnits(NamedTuple):
    """What the features of a token are measured in; those of joints for all, or one per joint."""

    error_rad: PerJoint
    error_rate_radps: PerJoint
    payload_kg: float
    friction_regime: float
    estimate_nm: PerJoint


TOKEN_UNITS: dict[Tokens, TokenUnits] = {
    'raw': TokenUnits(1.0, 1.0, 1.0, 1.0, 1.0),
    'error_scaled': TokenUnits(0.05, 0.3, 1.5, 0.2, 1.0),
    'error_fine': TokenUnits(0.01, 0.06, 1.5, 0.2, 1.0),
}
"""`error_fine` is for what remains on top of a bank of observers."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ContextSettings:
    """What the policy sees, as `config/controller.yaml` states it."""

    num_rows: int
    """W, the length of the window in control periods."""
    horizon_s: float
    """T of the phase feature t / T, s."""
    friction_regime_estimate: float
    """mu_hat, a constant of the context token."""
    num_extra: int
    """Features behind the paper's 4 n + 3, such as a disturbance estimate."""

    def __post_init__(self) -> None:
        require_positive('ContextSettings', num_rows=self.num_rows, horizon_s=self.horizon_s)
        require_not_negative('ContextSettings', num_extra=self.num_extra)


def feature_names(joint_names: tuple[str, ...], num_extra: int = 0) -> tuple[str, ...]:
    """Return the names of the F = 4 n + 3 features, and of extra ones behind them."""
    per_joint = [
        f'{signal}.{joint}'
        for signal in ('q_rad', 'qd_radps', 'q_desired_rad', 'qd_desired_radps')
        for joint in joint_names
    ]
    extra = [f'extra.{index}' for index in range(num_extra)]
    return (*per_joint, 'payload_estimate_kg', 'friction_regime_estimate', 'phase', *extra)


def step_observation(
    state: ArmState,
    reference: Reference,
    payload_estimate_kg: Array | float,
    friction_regime_estimate: float,
    horizon_s: float,
    extra: Array | None = None,
) -> Array:
    """Return one row: (q, qd, q_d, qd_d, p_hat, mu_hat, t / T, extra...), shape (..., F).

    The phase t / T wraps, because a robot runs for hours and an episode lasts seconds.
    """
    lead = state.q_rad.shape[:-1]
    scalars = np.empty((*lead, 3))
    scalars[..., 0] = payload_estimate_kg
    scalars[..., 1] = friction_regime_estimate
    scalars[..., 2] = (seconds(state.stamp_ns) % horizon_s) / horizon_s
    parts = [state.q_rad, state.qd_radps, reference.q_rad, reference.qd_radps, scalars]
    return np.concatenate(parts if extra is None else [*parts, extra], axis=-1)


def token_map(
    tokens: Tokens, num_joints: int, num_extra: int = 0, units: TokenUnits | None = None
) -> Array:
    """Return the invertible matrix that turns a raw row into a network's token, shape (F, F).

    `raw` feeds the paper's numbers as they are. The others show the error instead of the desired
    state, in units a network can see, as `TOKEN_UNITS` has them: for `error_scaled`
    (q, qd, e / 0.05 rad, e_dot / 0.3 rad/s, p_hat / 1.5 kg, mu_hat / 0.2, t / T, extra...).
    token = row @ matrix.

    Args:
        tokens: Which map.
        num_joints: n.
        num_extra: Features behind the paper's, measured in the unit of an estimate.
        units: Others than those of `TOKEN_UNITS`; raw tokens have none.
    """
    size = 4 * num_joints + 3 + num_extra
    matrix = np.eye(size)
    if tokens != 'raw':
        units = TOKEN_UNITS[tokens] if units is None else units
        scales = np.concatenate(
            [
                _in_units('error_rad', units.error_rad, num_joints),
                _in_units('error_rate_radps', units.error_rate_radps, num_joints),
            ]
        )
        measured = np.arange(2 * num_joints)
        desired = measured + 2 * num_joints
        matrix[desired, desired] = 1.0 / scales
        matrix[measured, desired] = -1.0 / scales
        payload, friction = 4 * num_joints, 4 * num_joints + 1
        matrix[payload, payload] = 1.0 / units.payload_kg
        matrix[friction, friction] = 1.0 / units.friction_regime
        extra = np.arange(size - num_extra, size)
        if num_extra:
            matrix[extra, extra] = 1.0 / _in_units('estimate_nm', units.estimate_nm, num_extra)
    return matrix


def _in_units(name: str, unit: PerJoint, num_features: int) -> Array:
    """Return the unit of each feature; refuse one per joint for another number of them."""
    if isinstance(unit, tuple):
        require_length('TokenUnits', num_features, **{name: unit})
    return for_joints(unit, num_features)


class ContextWindow:
    """A ring of rows, spaced by the control period whatever the transport does.

    Every row is stored twice, W apart, so that the window is one slice at any time.
    """

    def __init__(self, num_rows: int, period_ns: int) -> None:
        self._num_rows = num_rows
        self._period_ns = period_ns
        self._buffer = np.zeros((0, 0, 0))
        self._newest = -1
        self._stamp_ns: int | None = None

    def clear(self) -> None:
        """Forget everything; the next row fills the window."""
        self._stamp_ns = None

    def push(self, stamp_ns: int, row: Array) -> int:
        """Add a row, shape (..., F), measured at a stamp; return how many periods it advanced.

        Stamps are rounded to a grid of control periods that begins with the first row. Zero means
        the row belongs to a period that has one, and nothing changed. Lost rows are interpolated;
        after a gap of W periods or more the row fills the window.
        """
        if self._stamp_ns is None:
            return self._refill(stamp_ns, row)
        periods = (stamp_ns - self._stamp_ns + self._period_ns // 2) // self._period_ns
        if periods <= 0:
            return 0
        if periods >= self._num_rows:
            return self._refill(stamp_ns, row)
        last = self._buffer[..., self._newest, :].copy()
        for step in range(1, periods):
            share = step / periods
            self._store((1.0 - share) * last + share * row)
        self._store(row)
        self._stamp_ns += periods * self._period_ns  # the grid, so that jitter does not add up
        return periods

    def rows(self) -> Array:
        """Return the window, oldest row first, shape (..., W, F); a copy."""
        begin = self._newest + 1
        window: Array = self._buffer[..., begin : begin + self._num_rows, :].copy()
        return window

    def _refill(self, stamp_ns: int, row: Array) -> int:
        shape = (*row.shape[:-1], 2 * self._num_rows, row.shape[-1])
        self._buffer = np.broadcast_to(row[..., np.newaxis, :], shape).copy()
        self._newest = self._num_rows - 1
        self._stamp_ns = stamp_ns
        return self._num_rows

    def _store(self, row: Array) -> None:
        self._newest = (self._newest + 1) % self._num_rows
        self._buffer[..., self._newest, :] = row
        self._buffer[..., self._newest + self._num_rows, :] = row
