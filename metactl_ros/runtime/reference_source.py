# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""References for the node: a built-in motion, or trajectories as they arrive.

A reference begins at the state of the arm, with its velocity, and keeps to the limits of motion;
so it does whenever motion is resumed. A motion is then joined as fast as it should be
(`motion/joining.py`). Where trajectories are followed the arm is braked and held until one comes.

A trajectory_msgs/JointTrajectory means what it means to ros2_control, but is never straight:
points are reached at `time_from_start` after the stamp (after it is accepted, if that is zero),
along a quintic where accelerations are given, else along a cubic, whose velocities are fitted
where they are not given (`motion/polynomial_path.py`). It begins where the reference is and ends
at rest; an empty one means to brake and hold. It is refused if a joint would leave its limits on
the way.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np

from metactl_ros.bag.cdr import Trajectory
from metactl_ros.motion.joining import brake, Far, join, Near, require_joinable
from metactl_ros.motion.polynomial_path import Knots
from metactl_ros.motion.reference import BoundedMotion, MotionBounds, Sinusoid
from metactl_ros.runtime.joint_samples import MessageError
from metactl_ros.runtime.trajectory import knots_of, path_within, require_points_within
from metactl_ros.signals import ArmState, Reference, seconds

LEAD_NS, LEAD_PER_POINT_NS = 20_000_000, 50_000
"""How far ahead a trajectory takes over from the reference: until then it is checked."""
ATTEMPTS = 4
"""Of a machine that is too slow for that, each with four times the lead of the one before."""


class ReferenceSource(Protocol):
    """Where the arm should be, on the timeline of the states."""

    def begin(self, state: ArmState) -> None:
        """Begin at a state, whose stamp is the time zero of a motion."""

    def rejoin(self, state: ArmState) -> None:
        """Go on from a state, wherever the arm has got to while it did not follow."""

    def at(self, stamp_ns: int) -> Reference | None:
        """Return the reference at a time, or None if there is none."""


class MotionSource:
    """A motion that begins with control and goes on in its own time."""

    def __init__(self, motion: BoundedMotion, limits: MotionBounds) -> None:
        """Take a motion that can be joined within the limits (`require_joinable`)."""
        self._motion, self._limits = motion, limits
        self._begin_ns = 0
        self._way: Near | Far | None = None

    def begin(self, state: ArmState) -> None:
        """Begin the motion at a state."""
        self._begin_ns = state.stamp_ns
        self.rejoin(state)

    def rejoin(self, state: ArmState) -> None:
        """Go on with the motion from a state."""
        t_s = seconds(state.stamp_ns - self._begin_ns)
        self._way = join(self._motion, self._limits, t_s, state.q_rad, state.qd_radps)

    def at(self, stamp_ns: int) -> Reference | None:
        """Return the motion, or the way to it."""
        if self._way is None:
            return None
        return self._way.at(seconds(stamp_ns - self._begin_ns))


class _Timed(Protocol):
    """A motion of time."""

    def at(self, t_s: float) -> Reference:
        """Return the reference at a time, s."""


@dataclass(frozen=True, slots=True, eq=False)
class _Plan:
    """What is followed from some time on."""

    motion: _Timed
    origin_ns: int
    """Time zero of the motion."""
    since_ns: int
    """From when on it is followed."""
    before: '_Plan | None' = None
    """What is followed until then."""

    def at(self, stamp_ns: int) -> Reference:
        """Return the reference at a time."""
        if self.before is not None and stamp_ns < self.since_ns:
            return self.before.at(stamp_ns)
        return self.motion.at(seconds(stamp_ns - self.origin_ns))


def _still_needed(plan: _Plan, now_ns: int) -> _Plan:
    """Return a plan without those before it that are over: at 100 Hz they would pile up."""
    if plan.before is None or plan.since_ns <= now_ns:
        return replace(plan, before=None)
    return replace(plan, before=_still_needed(plan.before, now_ns))


class TrajectorySource:
    """Trajectories as they arrive; until one does, and when one is over, the arm is held.

    States come from one thread, trajectories from another, and neither waits for the other.
    """

    def __init__(self, joint_names: Sequence[str], limits: MotionBounds) -> None:
        self._joint_names, self._limits = joint_names, limits
        self._asked_ns = 0
        self._hold: _Plan | None = None
        # What is followed, and the hold that it began from: it ends with the next hold.
        self._followed: tuple[_Plan, _Plan] | None = None

    def begin(self, state: ArmState) -> None:
        """Brake and hold: what came before was for another timeline."""
        way = brake(self._limits, state.q_rad, state.qd_radps)
        self._asked_ns = state.stamp_ns
        self._hold = _Plan(way, state.stamp_ns, state.stamp_ns)

    def rejoin(self, state: ArmState) -> None:
        """Brake and hold: the trajectory went on while the arm did not follow."""
        self.begin(state)

    def at(self, stamp_ns: int) -> Reference | None:
        """Return the reference at a time."""
        hold = self._hold
        if hold is None:
            return None
        self._asked_ns = stamp_ns
        return self._plan_after(hold).at(stamp_ns)

    def accept(self, trajectory: Trajectory, now_ns: int, ros_now_ns: int) -> None:
        """Follow a trajectory from shortly after now on.

        Args:
            trajectory: As it came.
            now_ns: Now, on the timeline of the states.
            ros_now_ns: Now, on the clock of the trajectory's stamp.

        Raises:
            MessageError: If it cannot be followed; then the one before goes on.
        """
        hold = self._hold
        if hold is None:
            raise MessageError('trajectory: no joint state yet; send it again once there is one.')
        present = _still_needed(self._plan_after(hold), now_ns)
        knots = knots_of(trajectory, self._joint_names) if trajectory.points else None
        if knots is not None:
            require_points_within(knots, self._limits, self._joint_names)
        origin_ns = now_ns + trajectory.stamp_ns - ros_now_ns if trajectory.stamp_ns else None
        lead_ns = LEAD_NS + LEAD_PER_POINT_NS * len(trajectory.points)
        for _ in range(ATTEMPTS):
            since_ns = max(now_ns, self._asked_ns) + lead_ns
            plan = self._plan(knots, origin_ns, present, since_ns)
            if self._asked_ns < since_ns:
                break
            lead_ns *= 4
        else:
            raise MessageError(
                'trajectory: could not be checked before it should have begun; send it again when '
                'this machine has time.'
            )
        self._followed = plan, hold
        if self._hold is not hold:
            raise MessageError('trajectory: the arm stopped as it came; send it again.')

    def _plan_after(self, hold: _Plan) -> _Plan:
        """Return what is followed after a hold: itself unless a trajectory came since."""
        followed = self._followed
        return followed[0] if followed is not None and followed[1] is hold else hold

    def _plan(
        self, knots: Knots | None, origin_ns: int | None, present: _Plan, since_ns: int
    ) -> _Plan:
        """Return what to follow: the points, from a time on, or without points a hold."""
        begin = present.at(since_ns)
        if knots is None:
            way = brake(self._limits, begin.q_rad, begin.qd_radps)
            return _Plan(way, since_ns, since_ns, present)
        origin_ns = since_ns if origin_ns is None else origin_ns
        begin_s = seconds(since_ns - origin_ns)
        path = path_within(knots, begin, begin_s, self._limits, self._joint_names)
        return _Plan(path, origin_ns, since_ns, present)


def source_of(
    values: Mapping[str, Any], joint_names: Sequence[str], limits: MotionBounds
) -> MotionSource | TrajectorySource:
    """Return the source that the parameters of the controller ask for.

    Raises:
        ConfigError: If it is a sinusoid that does not fit the arm.
    """
    if values['reference'] == 'trajectory':
        return TrajectorySource(joint_names, limits)
    shape = ('amplitude_rad', 'omega_radps', 'phase_rad')
    sinusoid = Sinusoid(*(np.array(list(values[f'sinusoid.{name}'])) for name in shape))
    require_joinable('sinusoid', sinusoid, limits, joint_names)
    return MotionSource(sinusoid, limits)
