# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""What every estimator of the torque that the model lacks is shown, and what it returns.

    M^ qdd + C^ qd + g^ + d = tau          d: payload, friction and memory, in N m

An estimate of d is one more column of Phi, which the shield counts on, and a classical controller
is a constant theta with an estimator: limits, modes and shield are those of the learned one. The
loop shows its estimator each new state, before the policy is asked, and takes the estimate when
the action is there: most estimate d alone (`Estimation`), the bank of observers the state of the
arm and its payload, too (`bank_estimation.py`).
"""

from typing import NamedTuple, Protocol

import numpy as np

from metactl_ros.control.law import LawSettings, tracking_error, TrackingError, TrackingState
from metactl_ros.dynamics.rigid_body import Posture, RigidBody
from metactl_ros.signals import Array, each_arm, Flags, GAP_PERIODS, seconds, where_arms


class Estimate(NamedTuple):
    """The arm now, as an estimator sees it; (..., n) unless stated."""

    q: Array
    qd: Array
    d_nm: Array
    """What the model with the payload below lacks."""
    payload_kg: Array
    """(...); 0 where it is not estimated: then it is part of d."""


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


class LoopEstimation(Protocol):
    """An estimator within a control loop; `features` may be shown to the policy."""

    num_scheduled: int
    """Entries of an action, behind the gains, that say how to estimate."""
    estimate_nm: Array
    """The last estimate of d, shape (..., n)."""
    missed_nm: Array
    """By how much the torque since the state before differed from what was estimated then, as it
    is measured, shape (..., n); zero where nothing is predicted."""
    fits: Flags
    """Whether the arm does what its model and some delay predict, shape (...)."""

    @property
    def features(self) -> Array:
        """What it adds to a row of the context, shape (..., F)."""

    def reset(self, effort_nm: Array) -> None:
        """Begin anew with an effort that acts until the first state; the estimate is zero."""

    def record_effort(self, effort_nm: Array, is_free: Flags, acts: Flags) -> None:
        """Remember an effort that was sent, shape (..., n).

        Args:
            effort_nm: After limits.
            is_free: Whether it is all of what the policy asked for, shape (...).
            acts: Whether the motors give it: not those of an arm in BLIND or FAULT, shape (...).
        """

    def observe(
        self,
        stamp_ns: int,
        at: TrackingState,
        is_usable: Flags,
        payload_estimate_kg: Array | float,
        effort_nm: Array | None,
    ) -> None:
        """Take a state.

        Args:
            stamp_ns: Of the state, since reset.
            at: The state and its reference.
            is_usable: Whether a state is to be believed, shape (...).
            payload_estimate_kg: p_hat, shape (...); one that is not finite counts as none.
            effort_nm: What acted since the state before, if it was not what was recorded; one that
                is not finite is not used.
        """

    def estimate(self, at: TrackingState, schedule: Array) -> Estimate:
        """Return the estimate now, where the arm is measured at `at`; schedule: the action's."""


class UsableStates:
    """States of arms, with the last usable one in place of one that is not.

    An integral never forgets a single sample of 1e5 rad / s.
    """

    def __init__(self) -> None:
        self._last: tuple[Array, Array] | None = None

    def of(self, at: TrackingState, is_usable: Flags) -> TrackingState:
        """Return the state to be used, which is remembered."""
        if self._last is not None and not is_usable.all():
            q, qd = self._last
            at = at._replace(q=where_arms(is_usable, at.q, q), qd=where_arms(is_usable, at.qd, qd))
        self._last = (at.q, at.qd)
        return at


class Estimation:
    """An estimator of d alone: when it is asked, what it is told, how large it may be.

    Of two states with one stamp it sees the first; after a gap it begins anew.
    """

    num_scheduled = 0

    def __init__(
        self,
        estimator: Estimator,
        law: LawSettings,
        body: RigidBody,
        largest_nm: tuple[float, ...],
        period_ns: int,
    ) -> None:
        self._estimator, self._law, self._body = estimator, law, body
        self._largest = np.array(largest_nm)
        self._gap_ns = GAP_PERIODS * period_ns
        self.estimate_nm = np.zeros(len(largest_nm))
        self.reset(self.estimate_nm)

    @property
    def features(self) -> Array:
        """The estimate, shape (..., n)."""
        return self.estimate_nm

    def reset(self, effort_nm: Array) -> None:
        """Begin anew with an effort that acts until the first state; the estimate is zero."""
        self._estimator.reset()
        self._stamp_ns: int | None = None
        self._effort, self._sum, self._num_summed = effort_nm, effort_nm, 1
        self._may_learn: Flags = np.zeros(effort_nm.shape[:-1], dtype=bool)
        self._states = UsableStates()
        self.estimate_nm = np.zeros(effort_nm.shape)
        self.missed_nm: Array = self.estimate_nm
        self.fits: Flags = np.ones(effort_nm.shape[:-1], dtype=bool)

    def record_effort(self, effort_nm: Array, is_free: Flags, acts: Flags) -> None:
        """Remember an effort that was sent, see `LoopEstimation`."""
        self._effort, self._may_learn = effort_nm, is_free & acts
        self._sum = self._sum + effort_nm
        self._num_summed += 1

    def observe(
        self,
        stamp_ns: int,
        at: TrackingState,
        is_usable: Flags,
        payload_estimate_kg: Array | float,
        effort_nm: Array | None,
    ) -> None:
        """Renew the estimate with a state, see `LoopEstimation`."""
        at = self._states.of(at, is_usable)
        passed_ns = 0
        if self._stamp_ns is not None:
            passed_ns = stamp_ns - self._stamp_ns
            if passed_ns <= 0:
                return
        if passed_ns > self._gap_ns:
            self._estimator.reset()
            passed_ns = 0
        mean = self._sum / self._num_summed if self._num_summed else self._effort
        payload_kg = np.asarray(payload_estimate_kg, dtype=np.float64)
        given = EstimatorInput(
            seconds(stamp_ns),
            seconds(passed_ns),
            at,
            tracking_error(self._law, at),
            self._body.at(at.q, at.qd),
            effort_told(effort_nm, mean, self._largest),
            np.where(np.isfinite(payload_kg), payload_kg, 0.0),
            self._may_learn & is_usable,
        )
        estimate = self._estimator.update(given)
        self.estimate_nm = np.clip(estimate, -self._largest, self._largest)
        self._stamp_ns = stamp_ns
        self._sum, self._num_summed = np.zeros(self._effort.shape), 0

    def estimate(self, at: TrackingState, schedule: Array) -> Estimate:
        """Return the measured state and the estimate of d."""
        return Estimate(at.q, at.qd, self.estimate_nm, np.zeros(at.q.shape[:-1]))


def effort_told(told_nm: Array | None, recorded_nm: Array, largest_nm: Array) -> Array:
    """Return the effort that acted: as told, where that is finite, else as recorded."""
    if told_nm is None:
        return recorded_nm
    told = np.clip(told_nm, -largest_nm, largest_nm)
    return where_arms(each_arm(np.isfinite(told)), told, recorded_nm)
