# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
r"""Whether what the sensors say can be true, and whether the arm is still under control.

No reading is believed alone. Of each joint, from one state to the next, dt later:

    x = dq - dt (qd + qd') / 2             position change that velocities do not explain, rad
    y = (M^ dqd)_i - dt (tau - C^ qd - g^)_i   momentum that effort and model do not explain, N m s

Both are zero for perfect sensors, and an arm that is its model. Noise and quantisation move them
to and fro, a broken sensor always to one side, so each is summed by Page's test (CUSUM) with an
allowance k for what may be so for ever, in either direction:

    S <- max(0, S + x - share |dq| - k)      alarm above a threshold      k = allowance dt

One state adds at most `mismatch_step_rad` to the sums of x, and to those of y the momentum of
`unexplained_step_share` times the full effort, so that a single spike is no alarm. Sign errors,
wrong units, a velocity that stays zero, and positions that freeze in motion show in x; motors with
the wrong sign, and brakes, show in y. In BLIND and FAULT y says nothing: there the robot may
brake. No sum grows much beyond its threshold, so that it is forgotten soon after its cause.

A joint that freezes at rest agrees with itself. Its readings are the same to the bit, for
`frozen_s`. That is an alarm if the velocity that stays is not zero: no joint moves and stays. And
it is one if its reference went `frozen_reference_rad` meanwhile. What sensors say that were cut
off at exactly zero velocity, on an arm that is held, is what coarse sound ones say, too: it shows
with the next motion, see docs/faults.md.

What makes it all end: a joint further from its reference than `tracking_error_rad`, faster than
its limit by `velocity_margin`, as its velocity or its positions say, or beyond its position limit
by `position_margin_rad`, each for `persistence_s`; the first only while the reference is followed.
A joint that has had its full effort for `no_motion_s` and stands still cannot move: that is told
apart, for a STOP. A state counts for the time since the one before, at most one period.
"""

from dataclasses import dataclass, fields, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from metactl_ros.config import require_not_negative, require_positive
from metactl_ros.control.law import TrackingState
from metactl_ros.control.modes import Cause
from metactl_ros.dynamics.rigid_body import JointLimits, Posture
from metactl_ros.signals import Array, each_arm, Flags, NANOSECONDS_PER_SECOND, seconds

MOST_PERIODS = 5
"""A state that comes this many periods after the one before is the first of a new series."""
SLOWEST_RADPS = 1e-6
"""What is slower than this may stay within the last digit of its position for a while, rad / s."""
NO_JOINT = -1


@dataclass(frozen=True, kw_only=True, slots=True)
class GuardSettings:
    """When sensors are not believed, and an arm is out of control; see the module's text."""

    tracking_error_rad: float
    """rad, per joint."""
    velocity_margin: float
    """As a share of the joint's velocity limit."""
    position_margin_rad: float
    """rad, per joint."""
    persistence_s: float
    """For how long states must say so, s."""
    mismatch_allowance_radps: float
    """Speed by which velocity and position change may always differ, rad / s."""
    mismatch_share: float
    """Share of the speed by which they may differ besides."""
    mismatch_step_rad: float
    """What one state may add at most, rad."""
    mismatch_rad: float
    """Unexplained position change that is an alarm, rad."""
    unexplained_effort_share: float
    """Share of its effort limit that a joint's model may always lack."""
    unexplained_step_share: float
    """Share of its effort limit that one state may count for at most."""
    unexplained_full_effort_s: float
    """Unexplained momentum that is an alarm: that of the full effort in this time, s."""
    frozen_s: float
    """For how long a joint's readings must be the same, s."""
    frozen_reference_rad: float
    """How far its reference must have moved meanwhile, rad."""
    full_effort_share: float
    """Share of its effort limit that is a joint's full effort."""
    no_motion_radps: float
    """What is slower than this does not move, rad / s."""
    no_motion_s: float
    """For how long it must have had its full effort and not moved, s."""

    def __post_init__(self) -> None:
        may_be_zero = ('mismatch_share', 'velocity_margin', 'position_margin_rad')
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        require_not_negative('GuardSettings', **{name: values.pop(name) for name in may_be_zero})
        require_positive('GuardSettings', **values)


NEVER, FOR_EVER_S = 1e300, 1e9


def switched_off(settings: GuardSettings) -> GuardSettings:
    """Return settings under which nothing is ever an alarm."""
    return replace(
        settings,
        tracking_error_rad=NEVER,
        velocity_margin=NEVER,
        position_margin_rad=NEVER,
        mismatch_rad=NEVER,
        unexplained_full_effort_s=NEVER,
        frozen_s=FOR_EVER_S,
        no_motion_s=FOR_EVER_S,
    )


CAUSES = (
    Cause.BEYOND_LIMITS,
    Cause.OVERSPEED,
    Cause.TRACKING_ERROR,
    Cause.EFFORT_MOTION_MISMATCH,
    Cause.FROZEN_STATE,
    Cause.POSITION_VELOCITY_MISMATCH,
)
"""What ends in FAULT, in the order of the rows of `Evidence.alarms`; sensors explain all else."""


class Sample(NamedTuple):
    """A state that was judged, and when."""

    stamp_ns: int
    q: Array
    qd: Array


class Evidence:
    """Sums and times of every joint, shape (..., n), in the terms of the module's text."""

    def __init__(self, settings: GuardSettings, limits: JointLimits) -> None:
        self._settings = settings
        effort_nm = np.array(limits.effort_nm)
        self._low_rad = limits.lower_rad - settings.position_margin_rad
        self._high_rad = limits.upper_rad + settings.position_margin_rad
        self._fastest_radps = (1.0 + settings.velocity_margin) * np.array(limits.velocity_radps)
        self._full_nm = settings.full_effort_share * effort_nm
        self._lacking_nm = settings.unexplained_effort_share * effort_nm
        self._strongest_nm = settings.unexplained_step_share * effort_nm
        self._alarm_nms = settings.unexplained_full_effort_s * effort_nm
        self._persistence_ns = _nanoseconds(settings.persistence_s)
        self._frozen_ns = _nanoseconds(settings.frozen_s)
        self._no_motion_ns = _nanoseconds(settings.no_motion_s)

    def reset(self, q_desired_rad: Array) -> None:
        """Begin anew, the reference being there."""
        shape = q_desired_rad.shape
        # For how long each joint has been beyond its limits, fast, astray, and stuck.
        self._lasted_ns: NDArray[np.int64] = np.zeros((4, *shape), dtype=np.int64)
        self.begin_series(q_desired_rad)

    def begin_series(self, q_desired_rad: Array) -> None:
        """Forget what follows from comparing a state with the one before."""
        shape = q_desired_rad.shape
        self._anchor_rad = q_desired_rad
        self._is_frozen: Flags = np.zeros(shape, dtype=bool)
        self._x: Array = np.zeros((2, *shape))  # Page's sums, upwards and downwards
        self._y: Array = np.zeros((2, *shape))
        self._same_ns: NDArray[np.int64] = np.zeros(shape, dtype=np.int64)

    def forget(self, which: Flags) -> None:
        """Set all sums and times of some arms, shape (...), to zero."""
        keep = ~which[..., np.newaxis]
        self._x, self._y = keep * self._x, keep * self._y
        self._lasted_ns, self._same_ns = keep * self._lasted_ns, keep * self._same_ns
        self._is_frozen = keep & self._is_frozen

    def add(self, dt_s: float, move_rad: Array, mean_qd: Array) -> None:
        """Add a move, and the mean of the velocities at its ends, to Page's sums of x."""
        settings, most = self._settings, self._settings.mismatch_step_rad
        x = move_rad - dt_s * mean_qd
        share = settings.mismatch_share * np.abs(move_rad)
        allowed, full = dt_s * settings.mismatch_allowance_radps, settings.mismatch_rad + most
        steps = np.minimum(SIGNS.reshape(2, *[1] * x.ndim) * x - share, most)
        self._x = np.minimum(np.maximum(self._x + steps - allowed, 0.0), full)

    def add_momentum(self, dt_s: float, y_nms: Array, *, counts: Flags) -> None:
        """Add y to its sums where it counts, shape (...); where not, forget them."""
        most, lacking = dt_s * self._strongest_nm, dt_s * self._lacking_nm
        y, full = np.minimum(np.maximum(y_nms, -most), most), self._alarm_nms + most
        sums = self._y + SIGNS.reshape(2, *[1] * y.ndim) * y - lacking
        self._y = np.minimum(np.maximum(sums, 0.0), full)
        if not counts.all():
            self._y = self._y * counts[..., np.newaxis]

    def time_limits(
        self, lasted_ns: int, at: TrackingState, effort_nm: Array, *, follows: Flags, leapt: Flags
    ) -> None:
        """Note for how long joints have been astray, fast, beyond their limits or stuck.

        Args:
            lasted_ns: What this state counts for.
            at: State and reference.
            effort_nm: What acted.
            follows: Whether the reference is followed, shape (...).
            leapt: Which joints moved further since the state before than their speed permits.
        """
        settings, speed = self._settings, np.abs(at.qd)
        is_so = np.empty(self._lasted_ns.shape, dtype=bool)
        is_so[0] = (at.q > self._high_rad) | (at.q < self._low_rad)
        is_so[1] = leapt | (speed > self._fastest_radps)
        is_so[2] = np.abs(at.q_desired - at.q) > settings.tracking_error_rad
        is_so[2] &= follows[..., np.newaxis]
        is_so[3] = (speed < settings.no_motion_radps) & (np.abs(effort_nm) >= self._full_nm)
        self._lasted_ns = (self._lasted_ns + lasted_ns) * is_so

    def has_leapt(self, dt_s: float, move_rad: Array) -> Flags:
        """Return which moves are further than the speed limit and a step of a sensor permit."""
        reach = dt_s * self._fastest_radps + self._settings.mismatch_step_rad
        return np.asarray(np.abs(move_rad) > reach)

    def time_sameness(
        self, lasted_ns: int, qd_radps: Array, q_desired_rad: Array, *, is_same: Flags
    ) -> None:
        """Note for how long readings have been the same, and which are frozen."""
        if not is_same.any():  # all joints in motion: the usual case
            self._same_ns, self._is_frozen = self._same_ns * 0, is_same
            self._anchor_rad = q_desired_rad
            return
        self._same_ns = (self._same_ns + lasted_ns) * is_same
        self._anchor_rad = np.where(is_same, self._anchor_rad, q_desired_rad)
        way = np.abs(q_desired_rad - self._anchor_rad)
        should_move = way > self._settings.frozen_reference_rad
        seems_to_move = np.abs(qd_radps) > SLOWEST_RADPS
        self._is_frozen = (should_move | seems_to_move) & (self._same_ns >= self._frozen_ns)

    def alarms(self) -> tuple[Flags, Flags]:
        """Return which joints are stuck, (..., n), and what is wrong, (causes, ..., n)."""
        wrong = np.empty((len(CAUSES), *self._is_frozen.shape), dtype=bool)
        wrong[:3] = self._lasted_ns[:3] >= self._persistence_ns
        wrong[3] = (self._y > self._alarm_nms).any(axis=0)
        wrong[4] = self._is_frozen
        wrong[5] = (self._x > self._settings.mismatch_rad).any(axis=0)
        return self._lasted_ns[3] >= self._no_motion_ns, wrong


class Guard:
    """Watches the states of one arm, or of a batch of them, shape (...)."""

    def __init__(self, settings: GuardSettings, limits: JointLimits, period_ns: int) -> None:
        self._period_ns, self._gap_ns = period_ns, MOST_PERIODS * period_ns
        self._evidence = Evidence(settings, limits)
        self.reset(())

    def reset(self, shape: tuple[int, ...]) -> None:
        """Forget everything: the next state is the first; arms have the shape (...)."""
        self._last: Sample | None = None
        self._report_nothing(shape)

    def _report_nothing(self, shape: tuple[int, ...]) -> None:
        self.is_calm = True
        """Whether nothing is wrong with any arm."""
        self.error: NDArray[np.int64] = np.zeros(shape, dtype=np.int64)
        """A `Cause` per arm: what of the last state cannot be, or must not be."""
        self.joint: NDArray[np.int64] = np.full(shape, NO_JOINT)
        """Of which joint, per arm."""
        self.can_move: Flags = np.ones(shape, dtype=bool)
        """Whether no joint of an arm has had its full effort for a while and stood still."""

    def expect(self, posture: Posture, effort_nm: Array) -> None:
        """Note what acts until the next state: the posture of the model, the effort sent."""
        self._posture, self._effort_nm = posture, effort_nm

    def see(
        self,
        stamp_ns: int,
        at: TrackingState,
        *,
        sees: Flags,
        follows: Flags,
        acts: Flags,
        effort_nm: Array | None = None,
    ) -> None:
        """Judge a state, after `expect`; flags have the shape (...).

        Args:
            stamp_ns: When it was measured.
            at: State and reference, finite.
            sees: Whether the state was measured at all; of one that was not nothing is concluded.
            follows: Whether the arm is made to follow the reference.
            acts: Whether it is moved by the effort that was sent, and not braked by others.
            effort_nm: What acted since the state before, if it was not what was expected.
        """
        last = self._last
        if last is not None and stamp_ns <= last.stamp_ns:
            return  # the same instant again
        self._last = Sample(stamp_ns, at.q, at.qd)
        evidence = self._evidence
        if last is None:
            evidence.reset(at.q_desired)
            self._report_nothing(at.q.shape[:-1])
            return
        passed_ns = stamp_ns - last.stamp_ns
        lasted_ns, dt_s = min(passed_ns, self._period_ns), seconds(passed_ns)
        effort = self._effort_nm if effort_nm is None else effort_nm
        leapt = np.zeros(at.q.shape, dtype=bool)
        if passed_ns <= self._gap_ns:
            move = at.q - last.q
            evidence.add(dt_s, move, 0.5 * (at.qd + last.qd))
            gained = self._posture.apply(at.qd - last.qd)
            y_nms = gained - dt_s * (effort - self._posture.bias)
            evidence.add_momentum(dt_s, y_nms, counts=acts)
            leapt = evidence.has_leapt(dt_s, move)
            is_same = (move == 0.0) & (at.qd == last.qd) & follows[..., np.newaxis]
            evidence.time_sameness(lasted_ns, at.qd, at.q_desired, is_same=is_same)
        else:
            evidence.begin_series(at.q_desired)
        evidence.time_limits(lasted_ns, at, effort, follows=follows, leapt=leapt)
        if not sees.all():
            evidence.forget(~sees)
        self._conclude(at.q.shape[:-1])

    def _conclude(self, shape: tuple[int, ...]) -> None:
        """Report of each arm what is wrong, and of which joint; the last of several counts."""
        self._report_nothing(shape)
        is_stuck, wrong = self._evidence.alarms()
        if not (is_stuck.any() or wrong.any()):
            return
        self.is_calm = False
        self.can_move = each_arm(~is_stuck)
        for joint in range(wrong.shape[-1]):
            for cause, is_so in zip(CAUSES, wrong[..., joint], strict=True):
                self.error = np.where(is_so, int(cause), self.error)
                self.joint = np.where(is_so, joint, self.joint)


SIGNS = np.array([1.0, -1.0])


def _nanoseconds(time_s: float) -> int:
    return round(time_s * NANOSECONDS_PER_SECOND)
