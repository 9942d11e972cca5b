# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""State and reference as the control loop uses them: finite, whatever was measured or asked for.

    state not finite, or absurd              the last valid position, at rest
    reference not finite, or out of limits   a hold at that position

An arm that is guided by hand follows nothing: whatever reference there is, it is taken to be where
it should be and to move as it should, so that no error is left to weigh or to watch; and it is out
of limits above the speed limit of guiding.

Flags report, per arm, what was substituted; modes and guard decide what follows from it.
"""

from typing import NamedTuple

import numpy as np

from metactl_ros.config import for_joints
from metactl_ros.control.guiding import GuidingSettings
from metactl_ros.control.law import LawSettings, tracking_error, TrackingError, TrackingState
from metactl_ros.dynamics.rigid_body import ArmModel, Posture, RigidBody
from metactl_ros.signals import ArmState, Array, each_arm, Flags, is_all, Reference, where_arms

# No arm moves at this many rad, rad/s or rad/s^2. Beyond it a number is as good as NaN, and its
# square could overflow.
ABSURD = 1e6


class View(NamedTuple):
    """State and reference, with what stands in for the missing, and what follows from them."""

    at: TrackingState
    state_is_valid: Flags
    """Whether the state is usable, shape (...)."""
    reference_is_valid: Flags
    """Whether the reference is, shape (...)."""
    is_within_limits: Flags
    """Whether position and velocity are within the joint limits, shape (...)."""
    posture: Posture
    """Of the nominal arm."""
    error: TrackingError


class InputFilter:
    """Makes inputs of one controller, or of a batch, finite; keeps the last valid positions."""

    def __init__(
        self,
        arm: ArmModel,
        body: RigidBody,
        law: LawSettings,
        guiding: GuidingSettings | None = None,
    ) -> None:
        limits = arm.limits
        self._is_guided = guiding is not None
        self._body, self._law = body, law
        self._lower_rad, self._upper_rad = limits.lower_rad, limits.upper_rad
        self._fastest_radps = np.array(limits.velocity_radps)
        if guiding is not None:
            most_radps = for_joints(guiding.speed_limit_radps, len(arm.joint_names))
            self._fastest_radps = np.minimum(self._fastest_radps, most_radps)
        self._hardest_radps2 = np.array(limits.effort_nm) / arm.smallest_inertia_kgm2()
        # All of (q, qd, q_d, qd_d, qdd_d) within these bounds, as is usual, takes one comparison.
        ends = (self._upper_rad, self._fastest_radps)
        most = np.concatenate((*ends, *ends, self._hardest_radps2))
        ends = (self._lower_rad, -self._fastest_radps)
        least = np.concatenate((*ends, *ends, -self._hardest_radps2))
        self._most, self._least = np.minimum(most, ABSURD), np.maximum(least, -ABSURD)
        self.last_q_rad: Array = np.zeros(len(arm.joint_names))
        """The last valid position of each arm, shape (..., n)."""
        self.forget(())

    def forget(self, shape: tuple[int, ...]) -> None:
        """Drop the cached view, but not the last positions; arms have the shape (...)."""
        self._all_arms: Flags = np.ones(shape, dtype=bool)
        self._cache: tuple[ArmState, Reference, View] | None = None

    def filtered(self, state: ArmState, reference: Reference) -> View:
        """Return a new view, and cache it: one step asks twice about the same objects."""
        view = self._view(state, reference)
        self._cache = (state, reference, view)
        return view

    def cached(self, state: ArmState, reference: Reference) -> View:
        """Return the cached view if it is of these very objects, else a new one."""
        kept = self._cache
        if kept is not None and kept[0] is state and kept[1] is reference:
            return kept[2]
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
        state_is_valid = reference_is_valid = is_within = self._all_arms
        at = TrackingState(q, qd, *goal)
        if not is_all((numbers >= self._least) & (numbers <= self._most)):  # something is amiss
            state_is_valid = each_arm((np.abs(q) <= ABSURD) & (np.abs(qd) <= ABSURD))
            reference_is_valid = each_arm(
                (goal[0] <= self._upper_rad)
                & (goal[0] >= self._lower_rad)
                & (np.abs(goal[1]) <= self._fastest_radps)
                & (np.abs(goal[2]) <= self._hardest_radps2)
            )
            at = self._with_substitutes(at, state_is_valid, reference_is_valid)
            is_within = self._is_within_limits(at)
        if self._is_guided:
            reference_is_valid = self._all_arms
            at = at._replace(q_desired=at.q, qd_desired=at.qd, qdd_desired=np.zeros(at.q.shape))
        self.last_q_rad = at.q
        error = tracking_error(self._law, at)
        posture = self._body.at(at.q, at.qd)
        return View(at, state_is_valid, reference_is_valid, is_within, posture, error)

    def _with_substitutes(
        self, at: TrackingState, state_is_valid: Flags, reference_is_valid: Flags
    ) -> TrackingState:
        """Return the last position at rest for an invalid state, a hold for such a reference."""
        zero = np.zeros(at.q.shape)
        q = where_arms(state_is_valid, at.q, self.last_q_rad)
        return TrackingState(
            q=q,
            qd=where_arms(state_is_valid, at.qd, zero),
            q_desired=where_arms(reference_is_valid, at.q_desired, q),
            qd_desired=where_arms(reference_is_valid, at.qd_desired, zero),
            qdd_desired=where_arms(reference_is_valid, at.qdd_desired, zero),
        )

    def _is_within_limits(self, at: TrackingState) -> Flags:
        is_within = (at.q <= self._upper_rad) & (at.q >= self._lower_rad)
        return each_arm(is_within & (np.abs(at.qd) <= self._fastest_radps))
