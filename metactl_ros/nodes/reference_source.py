# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""References for the node: a built-in motion, or trajectories as they arrive.

A trajectory_msgs/JointTrajectory means what it means to ros2_control: points are reached at
`time_from_start` after the stamp (after now, if that is zero), along a quintic where accelerations
are given, a cubic where only velocities are, else straight; an empty one means hold; past its end
the last position is held. Its segment before the first point begins where the reference is, that
of the first trajectory where control began.
"""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from metactl_ros.control.loop import ABSURD
from metactl_ros.nodes.joint_messages import find_joints, MessageError, nanoseconds
from metactl_ros.reference import Hold, ReferenceMotion
from metactl_ros.signals import ArmState, Array, NANOSECONDS_PER_SECOND, Reference, seconds

BLEND_ABOVE_RAD = 0.1
"""A motion whose start is further away than this is approached smoothly."""
BLEND_S = 2.0


class ReferenceSource(Protocol):
    """Where the arm should be, on the timeline of the states."""

    def begin(self, state: ArmState) -> None:
        """Begin at a state, whose stamp is the time zero of a motion."""

    def rejoin(self, state: ArmState) -> None:
        """Go on from a state, wherever the arm has got to while nobody held it."""

    def at(self, stamp_ns: int) -> Reference | None:
        """Return the reference at a time, or None if there is none."""


class MotionSource:
    """A motion that begins with control; from far away its start is approached along a quintic."""

    def __init__(self, motion: ReferenceMotion) -> None:
        self._motion = motion
        self._begin_ns = self._joined_ns = 0
        self._offset_rad: Array | None = None

    def begin(self, state: ArmState) -> None:
        """Begin the motion at a state."""
        self._begin_ns = state.stamp_ns
        self.rejoin(state)

    def rejoin(self, state: ArmState) -> None:
        """Go on with the motion, approaching it if it is far from the state."""
        offset = state.q_rad - self._motion.at(seconds(state.stamp_ns - self._begin_ns)).q_rad
        self._joined_ns = state.stamp_ns
        self._offset_rad = offset if np.abs(offset).max() > BLEND_ABOVE_RAD else None

    def at(self, stamp_ns: int) -> Reference | None:
        """Return the motion, with what is left of the distance at joining added."""
        reference = self._motion.at(seconds(stamp_ns - self._begin_ns))
        t_s = seconds(stamp_ns - self._joined_ns)
        if self._offset_rad is None or t_s >= BLEND_S:
            return reference
        left = _quintic(_Knot(0.0, self._offset_rad), _Knot(BLEND_S, 0.0 * self._offset_rad), t_s)
        return Reference(
            reference.q_rad + left.q_rad,
            reference.qd_radps + left.qd_radps,
            reference.qdd_radps2 + left.qdd_radps2,
        )


@dataclass(frozen=True, slots=True)
class _Knot:
    """A point of a trajectory, at a time in s; None is not given."""

    t_s: float
    q_rad: Array
    qd_radps: Array | None = None
    qdd_radps2: Array | None = None


def _time_s(knot: _Knot) -> float:
    return knot.t_s


class TrajectorySource:
    """Trajectories as they arrive; before the first there is no reference."""

    def __init__(self, joint_names: Sequence[str]) -> None:
        self._joint_names = joint_names
        self._rest: Reference | None = None
        # Two threads meet here, so the time of the knots and the knots change in one assignment.
        self._plan: tuple[int, list[_Knot]] = (0, [])

    def begin(self, state: ArmState) -> None:
        """Forget what came before: it was for another timeline."""
        self._rest = Hold(state.q_rad).at(0.0)
        self._plan = (state.stamp_ns, [])

    def rejoin(self, state: ArmState) -> None:
        """Forget the trajectory: it went on while nobody held the arm."""
        self.begin(state)

    def accept(self, message: Any, now_ns: int, ros_now_ns: int) -> None:
        """Follow a JointTrajectory from now on.

        Args:
            message: The trajectory.
            now_ns: Now, on the timeline of the states.
            ros_now_ns: Now, on the clock of the message's stamp.

        Raises:
            MessageError: If it cannot be followed; then the one before goes on.
        """
        present = self.at(now_ns)
        begin_ns = now_ns
        if message.points and nanoseconds(message.header.stamp):
            begin_ns += nanoseconds(message.header.stamp) - ros_now_ns
        knots = read_trajectory(message, self._joint_names)
        now_s = seconds(now_ns - begin_ns)
        if knots and knots[-1].t_s <= now_s:
            raise MessageError(
                f'trajectory: must end in the future, ends {now_s - knots[-1].t_s:g} s ago; check '
                'time_from_start and the clocks.'
            )
        if present is None and knots:
            present = self._rest
        if present is not None:
            start = _Knot(now_s, present.q_rad, present.qd_radps, present.qdd_radps2)
            if not knots:
                start = _Knot(now_s, present.q_rad)
            knots = [start, *(knot for knot in knots if knot.t_s > now_s)]
        self._plan = (begin_ns, knots)

    def at(self, stamp_ns: int) -> Reference | None:
        """Return the reference at a time; past the end, hold."""
        begin_ns, knots = self._plan
        if not knots:
            return None
        t_s = seconds(stamp_ns - begin_ns)
        later = bisect_right(knots, t_s, key=_time_s)
        if later in (0, len(knots)):
            return Hold(knots[0 if later == 0 else -1].q_rad).at(0.0)
        return _between(knots[later - 1], knots[later], t_s)


def read_trajectory(message: Any, joint_names: Sequence[str]) -> list[_Knot]:
    """Return the points of a JointTrajectory in the order of the arm, or say why not."""
    if not message.points:
        return []
    places = find_joints(message.joint_names, joint_names)
    knots: list[_Knot] = []
    for number, point in enumerate(message.points):
        t_s = nanoseconds(point.time_from_start) / NANOSECONDS_PER_SECOND
        if t_s < 0.0 or (knots and t_s <= knots[-1].t_s):
            raise MessageError(
                f'trajectory point {number}: time_from_start must rise from 0, found {t_s} s.'
            )
        fields = (point.positions, point.velocities, point.accelerations)
        q, qd, qdd = (_field(number, values, message.joint_names, places) for values in fields)
        if q is None:
            raise MessageError(f'trajectory point {number}: has no positions.')
        knots.append(_Knot(t_s, q, qd, qdd if qd is not None else None))
    return knots


def _field(
    number: int, values: Sequence[float], names: Sequence[str], places: Sequence[int]
) -> Array | None:
    if not len(values):
        return None
    if len(values) != len(names):
        raise MessageError(
            f'trajectory point {number}: expected {len(names)} numbers, found {len(values)}.'
        )
    for place in places:
        if not abs(values[place]) <= ABSURD:  # NaN is not
            raise MessageError(
                f'joint {names[place]!r}: trajectory point {number} is {values[place]}.'
            )
    return np.array([float(values[place]) for place in places])


def _between(a: _Knot, b: _Knot, t_s: float) -> Reference:
    if a.qd_radps is None or b.qd_radps is None:
        share = (t_s - a.t_s) / (b.t_s - a.t_s)
        slope = (b.q_rad - a.q_rad) / (b.t_s - a.t_s)
        return Reference(a.q_rad + share * (b.q_rad - a.q_rad), slope, 0.0 * slope)
    if a.qdd_radps2 is None or b.qdd_radps2 is None:
        return _cubic(a, b, t_s)
    return _quintic(a, b, t_s)


def _cubic(a: _Knot, b: _Knot, t_s: float) -> Reference:
    assert a.qd_radps is not None
    assert b.qd_radps is not None
    h = b.t_s - a.t_s
    rest = (b.q_rad - a.q_rad) / h
    c2 = (3.0 * rest - 2.0 * a.qd_radps - b.qd_radps) / h
    c3 = (a.qd_radps + b.qd_radps - 2.0 * rest) / h**2
    return _polynomial([a.q_rad, a.qd_radps, c2, c3], t_s - a.t_s)


def _quintic(a: _Knot, b: _Knot, t_s: float) -> Reference:
    zero = 0.0 * a.q_rad
    v0, v1 = (knot.qd_radps if knot.qd_radps is not None else zero for knot in (a, b))
    a0, a1 = (knot.qdd_radps2 if knot.qdd_radps2 is not None else zero for knot in (a, b))
    h = b.t_s - a.t_s
    way = b.q_rad - a.q_rad
    c3 = (20.0 * way - (8.0 * v1 + 12.0 * v0) * h - (3.0 * a0 - a1) * h**2) / (2.0 * h**3)
    c4 = (-30.0 * way + (14.0 * v1 + 16.0 * v0) * h + (3.0 * a0 - 2.0 * a1) * h**2) / (2.0 * h**4)
    c5 = (12.0 * way - 6.0 * (v1 + v0) * h - (a0 - a1) * h**2) / (2.0 * h**5)
    return _polynomial([a.q_rad, v0, 0.5 * a0, c3, c4, c5], t_s - a.t_s)


def _polynomial(coefficients: Sequence[Array], t_s: float) -> Reference:
    q = sum(c * t_s**k for k, c in enumerate(coefficients))
    qd = sum(k * c * t_s ** (k - 1) for k, c in enumerate(coefficients) if k)
    qdd = sum(k * (k - 1) * c * t_s ** (k - 2) for k, c in enumerate(coefficients) if k > 1)
    return Reference(np.asarray(q), np.asarray(qd), np.asarray(qdd))
