# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""State and reference as the control loop uses them: finite, whatever was measured or asked for.

    state not finite, or absurd              the last position that was seen, at rest
    reference not finite, or out of limits   a hold at that position

What was replaced is told, for each arm of a batch; modes and guard decide what follows from it.
"""

from typing import NamedTuple

import numpy as np

from metactl_ros.control.law import LawSettings, tracking_error, TrackingError, TrackingState
from metactl_ros.dynamics.rigid_body import ArmModel, Posture, RigidBody
from metactl_ros.signals import ArmState, Array, each_arm, Flags, is_all, Reference, where_arms

# No arm moves at this many rad, rad/s or rad/s^2. Beyond it a number is as good as NaN, and its
# square could overflow.
ABSURD = 1e6


class View(NamedTuple):
    """State and reference, with what stands in for the missing, and what follows from them."""

    at: TrackingState
    sees: Flags
    """Whether the state is usable, shape (...)."""
    knows_goal: Flags
    """Whether the reference is, shape (...)."""
    is_within_limits: Flags
    """Whether position and velocity are within the joint limits, shape (...)."""
    posture: Posture
    """Of the nominal arm."""
    error: TrackingError


class Sight:
    """What one controller, or a batch of them, sees; it remembers where it saw an arm last."""

    def __init__(self, arm: ArmModel, body: RigidBody, law: LawSettings) -> None:
        limits = arm.limits
        self._body, self._law = body, law
        self._lower_rad, self._upper_rad = limits.lower_rad, limits.upper_rad
        self._fastest_radps = np.array(limits.velocity_radps)
        self._hardest_radps2 = np.array(limits.effort_nm) / arm.smallest_inertia_kgm2()
        # All of (q, qd, q_d, qd_d, qdd_d) within these bounds, as is usual, takes one comparison.
        ends = (self._upper_rad, self._fastest_radps)
        most = np.concatenate((*ends, *ends, self._hardest_radps2))
        ends = (self._lower_rad, -self._fastest_radps)
        least = np.concatenate((*ends, *ends, -self._hardest_radps2))
        self._most, self._least = np.minimum(most, ABSURD), np.maximum(least, -ABSURD)
        self.last_q_rad: Array = np.zeros(len(arm.joint_names))
        """Where each arm was seen last, shape (..., n)."""
        self.forget(())

    def forget(self, shape: tuple[int, ...]) -> None:
        """Forget the last look, but not where arms were; these have the shape (...)."""
        self._all_arms: Flags = np.ones(shape, dtype=bool)
        self._seen: tuple[ArmState, Reference, View] | None = None

    def look(self, state: ArmState, reference: Reference) -> View:
        """Return a new view, and keep it: the same objects are asked about twice in a step."""
        view = self._view(state, reference)
        self._seen = (state, reference, view)
        return view

    def recall(self, state: ArmState, reference: Reference) -> View:
        """Return the view of the last look if it was at these very objects, else a new one."""
        seen = self._seen
        if seen is not None and seen[0] is state and seen[1] is reference:
            return seen[2]
        return self._view(state, reference)

    def _view(self, state: ArmState, reference: Reference) -> View:
        """Return state and reference, all finite, and whether they were usable."""
        # Copies: what is remembered of them must not change with a buffer that the caller reuses.
        q, qd = state.q_rad.copy(), state.qd_radps.copy()
        goal = (
            reference.q_rad.copy(),
            reference.qd_radps.copy(),
            reference.qdd_radps2.copy(),
        )
        numbers = np.concatenate((q, qd, *goal), axis=-1)
        sees = knows_goal = is_within = self._all_arms
        at = TrackingState(q, qd, *goal)
        if not is_all((numbers >= self._least) & (numbers <= self._most)):  # something is amiss
            sees = each_arm((np.abs(q) <= ABSURD) & (np.abs(qd) <= ABSURD))
            knows_goal = each_arm(
                (goal[0] <= self._upper_rad)
                & (goal[0] >= self._lower_rad)
                & (np.abs(goal[1]) <= self._fastest_radps)
                & (np.abs(goal[2]) <= self._hardest_radps2)
            )
            at = self._with_substitutes(at, sees, knows_goal)
            is_within = self._is_within_limits(at)
        self.last_q_rad = at.q
        error = tracking_error(self._law, at)
        return View(at, sees, knows_goal, is_within, self._body.at(at.q, at.qd), error)

    def _with_substitutes(
        self, at: TrackingState, sees: Flags, knows_goal: Flags
    ) -> TrackingState:
        """Return the last position at rest for what is not seen, a hold for what is not known."""
        zero = np.zeros(at.q.shape)
        q = where_arms(sees, at.q, self.last_q_rad)
        return TrackingState(
            q=q,
            qd=where_arms(sees, at.qd, zero),
            q_desired=where_arms(knows_goal, at.q_desired, q),
            qd_desired=where_arms(knows_goal, at.qd_desired, zero),
            qdd_desired=where_arms(knows_goal, at.qdd_desired, zero),
        )

    def _is_within_limits(self, at: TrackingState) -> Flags:
        is_within = (at.q <= self._upper_rad) & (at.q >= self._lower_rad)
        return each_arm(is_within & (np.abs(at.qd) <= self._fastest_radps))
