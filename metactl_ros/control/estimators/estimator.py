# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""What every estimator of the torque that the model lacks is shown, and what it returns.

    M^ qdd + C^ qd + g^ + d = tau          d: payload, friction and memory, in N m

An estimate of d is one more column of Phi, and a classical controller is a constant theta with an
estimator: limits, modes and shield are those of the learned one. The loop asks its estimator with
each new state, before the policy is asked.
"""

from typing import NamedTuple, Protocol

from metactl_ros.control.law import Situation, TrackingError
from metactl_ros.signals import choose, clamp, Component, is_finite, seconds, Vector

MOST_PERIODS = 5
"""Between two states of which an estimator makes sense."""


class Sight(NamedTuple):
    """What an estimator is shown with a new state, all finite; components as in `signals.py`."""

    time_s: float
    """Of the state, since reset."""
    passed_s: float
    """Since the state before; 0 with the first."""
    q_rad: Vector
    qd_radps: Vector
    q_desired_rad: Vector
    qd_desired_radps: Vector
    qdd_desired_radps2: Vector
    error: TrackingError
    effort_nm: Vector
    """What acted since the state before, on average."""
    payload_estimate_kg: Component
    may_learn: Component
    """Whether the estimate before could act: NOMINAL, and no limit cut the effort."""


class Estimator(Protocol):
    """Estimates d; it remembers, and forgets all with a reset."""

    def reset(self) -> None:
        """Forget everything; the next sight is the first."""

    def update(self, sight: Sight) -> Vector:
        """Return the estimate of d with this state, in N m, one component per joint."""


class Estimation:
    """An estimator within a control loop: when it is asked, what it is told, how large it may be.

    Of two states with one stamp it sees the first; after a gap it begins anew.
    """

    def __init__(
        self, estimator: Estimator, largest_nm: tuple[float, ...], period_ns: int
    ) -> None:
        self._estimator = estimator
        self._highest: Vector = largest_nm
        self._lowest: Vector = [-most for most in largest_nm]
        self._gap_ns = MOST_PERIODS * period_ns
        self.estimate_nm: list[Component] = []

    def reset(self, effort_nm: Vector) -> None:
        """Begin anew with an effort that acts until the first state; the estimate is zero."""
        self._estimator.reset()
        self._stamp_ns: int | None = None
        self._effort, self._sum, self._num_summed = effort_nm, list(effort_nm), 1
        self._may_learn: Component = False
        self._state: tuple[Vector, Vector] | None = None
        self._is_believable: Component = True
        self.estimate_nm = [0.0 * effort for effort in effort_nm]

    def note(self, effort_nm: Vector, may_learn: Component) -> None:
        """Remember an effort that was sent."""
        self._effort, self._may_learn = effort_nm, may_learn
        self._sum = [total + effort for total, effort in zip(self._sum, effort_nm, strict=True)]
        self._num_summed += 1

    def believe(self, situation: Situation, is_believable: Component) -> Situation:
        """Return the situation, with the last believable state in place of one that is not.

        An integral never forgets a single sample of 1e5 rad / s.
        """
        if self._state is not None:
            pairs = zip((situation.q, situation.qd), self._state, strict=True)
            q, qd = (choose(is_believable, new, old) for new, old in pairs)
            situation = situation._replace(q=q, qd=qd)
        self._state = (situation.q, situation.qd)
        self._is_believable = is_believable
        return situation

    def look(
        self,
        stamp_ns: int,
        situation: Situation,
        error: TrackingError,
        payload_estimate_kg: Component,
        effort_nm: Vector | None,
    ) -> None:
        """Renew the estimate with a state.

        Args:
            stamp_ns: Of the state, since reset.
            situation: The state and its reference.
            error: Of the one against the other.
            payload_estimate_kg: p_hat; one that is not finite counts as none.
            effort_nm: What acted since the state before, if it was not what was noted; one that
                is not finite is not believed.
        """
        passed_ns = 0
        if self._stamp_ns is not None:
            passed_ns = stamp_ns - self._stamp_ns
            if passed_ns <= 0:
                return
        if passed_ns > self._gap_ns:
            self._estimator.reset()
            passed_ns = 0
        mean: Vector = self._effort
        if self._num_summed:
            mean = [total / self._num_summed for total in self._sum]
        if effort_nm is not None:
            told = clamp(effort_nm, self._lowest, self._highest)
            mean = choose(is_finite(sum(told)), told, mean)
        knows_payload = is_finite(payload_estimate_kg)
        (payload_kg,) = choose(knows_payload, [payload_estimate_kg], [0.0])
        sight = Sight(
            seconds(stamp_ns),
            seconds(passed_ns),
            *situation,
            error,
            mean,
            payload_kg,
            self._may_learn & self._is_believable,
        )
        self.estimate_nm = clamp(self._estimator.update(sight), self._lowest, self._highest)
        self._stamp_ns = stamp_ns
        self._sum, self._num_summed = [0.0 * effort for effort in self._effort], 0
