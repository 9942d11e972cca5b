# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""What every estimator of the torque that the model lacks is shown, and what it returns.

    M^ qdd + C^ qd + g^ + d = tau          d: payload, friction and memory, in N m

An estimate of d is one more column of Phi, which the shield counts on, and a classical controller
is a constant theta with an estimator: limits, modes and shield are those of the learned one. The
loop asks its estimator with each new state, before the policy is asked.
"""

from typing import NamedTuple, Protocol

import numpy as np

from metactl_ros.control.law import TrackingError, TrackingState
from metactl_ros.dynamics.rigid_body import Posture
from metactl_ros.signals import Array, each_arm, Flags, GAP_PERIODS, seconds, where_arms


class EstimatorInput(NamedTuple):
    """What an estimator gets with a new state, all finite; arrays are (..., n) unless stated."""

    time_s: float
    """Of the state, since reset."""
    passed_s: float
    """Since the state before; 0 with the first."""
    at: TrackingState
    error: TrackingError
    posture: Posture
    """Of the nominal arm."""
    effort_nm: Array
    """What acted since the state before, on average."""
    payload_estimate_kg: Array
    """Shape (...)."""
    may_learn: Flags
    """Whether what happened is its doing: NOMINAL, and no limit cut the effort, shape (...)."""


class Estimator(Protocol):
    """Estimates d; it remembers, and forgets all with a reset."""

    def reset(self) -> None:
        """Forget everything; the next input is the first."""

    def update(self, given: EstimatorInput) -> Array:
        """Return the estimate of d with this state, in N m, shape (..., n)."""


class Estimation:
    """An estimator within a control loop: when it is asked, what it is told, how large it may be.

    Of two states with one stamp it sees the first; after a gap it begins anew.
    """

    def __init__(
        self, estimator: Estimator, largest_nm: tuple[float, ...], period_ns: int
    ) -> None:
        self._estimator = estimator
        self._largest = np.array(largest_nm)
        self._gap_ns = GAP_PERIODS * period_ns
        self.estimate_nm = np.zeros(len(largest_nm))
        self.reset(self.estimate_nm)

    def reset(self, effort_nm: Array) -> None:
        """Begin anew with an effort that acts until the first state; the estimate is zero."""
        self._estimator.reset()
        self._stamp_ns: int | None = None
        self._effort, self._sum, self._num_summed = effort_nm, effort_nm, 1
        self._may_learn: Flags = np.zeros(effort_nm.shape[:-1], dtype=bool)
        self._state: tuple[Array, Array] | None = None
        self._is_usable: Flags = np.ones(effort_nm.shape[:-1], dtype=bool)
        self.estimate_nm = np.zeros(effort_nm.shape)

    def record_effort(self, effort_nm: Array, may_learn: Flags) -> None:
        """Remember an effort that was sent, shape (..., n)."""
        self._effort, self._may_learn = effort_nm, may_learn
        self._sum = self._sum + effort_nm
        self._num_summed += 1

    def reject_outlier(self, at: TrackingState, is_usable: Flags) -> TrackingState:
        """Return the state, with the last usable one in place of one that is not.

        An integral never forgets a single sample of 1e5 rad / s.
        """
        if self._state is not None and not is_usable.all():
            q, qd = self._state
            at = at._replace(q=where_arms(is_usable, at.q, q), qd=where_arms(is_usable, at.qd, qd))
        self._state = (at.q, at.qd)
        self._is_usable = is_usable
        return at

    def update(
        self,
        stamp_ns: int,
        posture: Posture,
        at: TrackingState,
        error: TrackingError,
        payload_estimate_kg: Array | float,
        effort_nm: Array | None,
    ) -> None:
        """Renew the estimate with a state.

        Args:
            stamp_ns: Of the state, since reset.
            posture: Of the nominal arm at the state.
            at: The state and its reference.
            error: Of the one against the other.
            payload_estimate_kg: p_hat, shape (...); one that is not finite counts as none.
            effort_nm: What acted since the state before, if it was not what was recorded; one that
                is not finite is not used.
        """
        passed_ns = 0
        if self._stamp_ns is not None:
            passed_ns = stamp_ns - self._stamp_ns
            if passed_ns <= 0:
                return
        if passed_ns > self._gap_ns:
            self._estimator.reset()
            passed_ns = 0
        mean = self._sum / self._num_summed if self._num_summed else self._effort
        if effort_nm is not None:
            told = np.clip(effort_nm, -self._largest, self._largest)
            mean = where_arms(each_arm(np.isfinite(told)), told, mean)
        payload_kg = np.asarray(payload_estimate_kg, dtype=np.float64)
        given = EstimatorInput(
            seconds(stamp_ns),
            seconds(passed_ns),
            at,
            error,
            posture,
            mean,
            np.where(np.isfinite(payload_kg), payload_kg, 0.0),
            self._may_learn & self._is_usable,
        )
        estimate = self._estimator.update(given)
        self.estimate_nm = np.clip(estimate, -self._largest, self._largest)
        self._stamp_ns = stamp_ns
        self._sum, self._num_summed = np.zeros(self._effort.shape), 0
