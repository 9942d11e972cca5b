# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""References for the node: a built-in motion, or trajectories as they arrive.

A reference begins at the state of the arm, with its velocity, and keeps to the limits of motion;
so it does whenever motion is resumed. A motion is then joined as fast as it should be
(`motion/joining.py`). Where trajectories are followed the arm is braked and held until one comes.

A trajectory_msgs/JointTrajectory means what it means to ros2_control, but is never straight:
points are reached at `time_from_start` after the stamp (after it is accepted, if that is zero),
along a quintic where accelerations are given, else along a cubic, whose velocities are fitted
where they are not given (`motion/reference.py`). It begins where the reference is and ends
at rest; an empty one means to brake and hold. It is refused if a joint would leave its limits on
the way: positions of points are checked, and the extremes of position, velocity and acceleration
on every piece, that from the present reference to the first point as well.

To make Python objects of a trajectory of 100,000 points stops every thread for a second, control
as well. So sizes are looked at first, and what is too large is refused unread; the rest is read by
Python code, which gives way to other threads.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np

from metactl_ros.bag.topics import CdrError, count_trajectory, read_trajectory, Trajectory
from metactl_ros.control.inputs import ABSURD
from metactl_ros.motion.joining import brake, Braking, Far, join, Near, require_joinable
from metactl_ros.motion.reference import (
    BoundedMotion,
    Knots,
    MotionBounds,
    PolynomialPath,
    Sinusoid,
)
from metactl_ros.runtime.joint_states import find_joints, MessageError
from metactl_ros.signals import ArmState, Array, NANOSECONDS_PER_SECOND, Reference, seconds

MAX_BYTES = 2**20
"""2,000 points of fourteen joints."""
MAX_NAMES = 64
MAX_POINTS = 2000


def unpack(data: bytes) -> Trajectory:
    """Return a trajectory_msgs/JointTrajectory from its bytes.

    Raises:
        MessageError: If it is too large, or none.
    """
    try:
        num_names, num_points = count_trajectory(data, MAX_NAMES)
        for found, most, what in (
            (num_names, MAX_NAMES, 'names'),
            (num_points, MAX_POINTS, 'points'),
            (len(data), MAX_BYTES, 'bytes'),
        ):
            if found > most:
                raise MessageError(
                    f'trajectory: expected at most {most} {what}, found {found}; send less of it '
                    'at a time.'
                )
        return read_trajectory(data)
    except CdrError as error:
        raise MessageError(f'trajectory: {error}') from None


def knots_of(trajectory: Trajectory, joint_names: Sequence[str]) -> Knots:
    """Return the points of a trajectory, at least one, in the order of the arm.

    Accelerations without velocities are not heeded.

    Raises:
        MessageError: If a joint is missing, a field has the wrong length, a number is not finite
            or absurd, or times do not rise; it names the point and the joint.
    """
    names, points = trajectory.names, trajectory.points
    places = find_joints(names, joint_names)
    times_ns = np.array([point.time_ns for point in points], dtype=np.int64)
    is_bad = np.diff(times_ns, prepend=-1) <= 0
    if is_bad.any():
        number = int(np.argmax(is_bad))
        raise MessageError(
            f'trajectory point {number}: time_from_start must rise from 0, found '
            f'{times_ns[number] / NANOSECONDS_PER_SECOND} s.'
        )
    q = _field('positions', [point.positions for point in points], names, places)
    qd = _field('velocities', [point.velocities for point in points], names, places)
    qdd = _field('accelerations', [point.accelerations for point in points], names, places)
    if np.isnan(q).any():
        number = int(np.argmax(np.isnan(q[:, 0])))
        raise MessageError(f'trajectory point {number}: has no positions.')
    return Knots(times_ns / NANOSECONDS_PER_SECOND, q, qd, np.where(np.isnan(qd), np.nan, qdd))


def _field(
    field: str, rows: Sequence[Sequence[float]], names: Sequence[str], places: Sequence[int]
) -> Array:
    """Return the rows, shape (P, n), with NaN in place of empty ones."""
    sizes = np.array([len(row) for row in rows])
    is_given = sizes > 0
    is_bad = is_given & (sizes != len(names))
    if is_bad.any():
        number = int(np.argmax(is_bad))
        raise MessageError(
            f'trajectory point {number}: expected {len(names)} {field}, one per name, found '
            f'{sizes[number]}.'
        )
    values = np.full((len(rows), len(places)), np.nan)
    if is_given.any():
        found = np.array([row for row in rows if row])[:, places]
        values[is_given] = found
        is_bad = is_given[:, np.newaxis] & ~(np.abs(values) <= ABSURD)  # NaN is not
        if is_bad.any():
            number, joint = np.argwhere(is_bad)[0]
            raise MessageError(
                f'trajectory point {number}: joint {names[places[joint]]!r}: expected finite '
                f'{field} of at most {ABSURD:g}, found {values[number, joint]}.'
            )
    return values


AT_REST_RADPS = 1e-3
"""A last point slower than this is meant to be at rest."""
ROUNDING = 1e-9
UNITS = ('rad', 'rad', 'rad/s', 'rad/s^2')
REMEDIES = (
    'it overshoots: give more points, or other velocities',
    'it overshoots: give more points, or other velocities',
    'give it more time, or a shorter way',
    'give it more time, or more points so that it begins and ends gently',
)


def require_points_within(knots: Knots, limits: MotionBounds, joint_names: Sequence[str]) -> None:
    """Raise MessageError unless all points lie within the joint limits and the last is at rest."""
    slack = ROUNDING * (limits.upper_rad - limits.lower_rad)
    is_out = (knots.q_rad > limits.upper_rad + slack) | (knots.q_rad < limits.lower_rad - slack)
    if is_out.any():
        number, joint = np.argwhere(is_out)[0]
        raise MessageError(
            f'trajectory point {number}: joint {joint_names[joint]!r}: expected a position of '
            f'{limits.lower_rad[joint]:g} to {limits.upper_rad[joint]:g} rad, found '
            f'{knots.q_rad[number, joint]:g} rad; choose one within the joint limits.'
        )
    is_moving = np.abs(knots.qd_radps[-1]) > AT_REST_RADPS  # NaN is not
    if is_moving.any():
        joint = int(np.argmax(is_moving))
        raise MessageError(
            f'trajectory point {len(knots.t_s) - 1}: joint {joint_names[joint]!r}: expected rest '
            f'at the last point, found {knots.qd_radps[-1, joint]:g} rad/s; end with 0 rad/s.'
        )


def path_within(
    knots: Knots,
    present: Reference,
    present_s: float,
    limits: MotionBounds,
    joint_names: Sequence[str],
) -> PolynomialPath:
    """Return the path from the present reference through the points that are yet to come.

    Raises:
        MessageError: If none is to come, or a joint would leave its limits; it names the point on
            the way to which that is.
    """
    num_past = int(np.searchsorted(knots.t_s, present_s, side='right'))
    if num_past == len(knots.t_s):
        raise MessageError(
            f'trajectory: must end in the future, ends {present_s - knots.t_s[-1]:g} s before it '
            'could begin; check time_from_start and the clocks.'
        )
    path = PolynomialPath(
        Knots(
            np.append(present_s, knots.t_s[num_past:]),
            np.vstack([present.q_rad, knots.q_rad[num_past:]]),
            np.vstack([present.qd_radps, knots.qd_radps[num_past:]]),
            np.vstack([present.qdd_radps2, knots.qdd_radps2[num_past:]]),
        )
    )
    most = path.extremes()
    # A lower end is an upper one with the sign changed.
    found = np.stack(
        [-most.lower_rad, most.upper_rad, most.velocity_radps, most.acceleration_radps2], axis=1
    )
    permitted = np.stack(
        [-limits.lower_rad, limits.upper_rad, limits.velocity_radps, limits.acceleration_radps2]
    )
    is_out = ~(found <= permitted + ROUNDING * np.abs(permitted))  # NaN is out
    if is_out.any():
        piece, order, joint = np.argwhere(is_out)[0]
        signs = (-1.0, 1.0, 1.0, 1.0)
        raise MessageError(
            f'trajectory, on the way to point {num_past + piece}: joint {joint_names[joint]!r} '
            f'would reach {signs[order] * found[piece, order, joint]:.4g} {UNITS[order]}, '
            f'expected {"at least" if order == 0 else "at most"} '
            f'{signs[order] * permitted[order, joint]:.4g} {UNITS[order]}; {REMEDIES[order]}.'
        )
    return path


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


@dataclass(frozen=True, slots=True, eq=False)
class _Plan:
    """What is followed from some time on."""

    motion: Braking | PolynomialPath
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
    shape = ('amplitude_rad', 'omega_radps', 'phase_rad', 'centre_rad')
    sinusoid = Sinusoid(*(np.array(list(values[f'sinusoid.{name}'])) for name in shape))
    require_joinable('sinusoid', sinusoid, limits, joint_names)
    return MotionSource(sinusoid, limits)
