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

Conditions that lead to FAULT: a joint further from its reference than `tracking_error_rad`, faster
than its limit by `velocity_margin`, as its velocity or its positions say, or beyond its position
limit by `position_margin_rad`, each for `persistence_s`; the first only while the reference is
followed.
A joint that has had its full effort for `no_motion_s` and stands still cannot move: that is told
apart, for a STOP. A state counts for the time since the one before, at most one period.
"""

from dataclasses import dataclass, fields, replace
import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from metactl_ros.config import require_not_negative, require_positive
from metactl_ros.control.law import TrackingState
from metactl_ros.control.modes import Cause, NO_JOINT
from metactl_ros.dynamics.rigid_body import JointLimits, Posture
from metactl_ros.signals import (
    Array,
    each_arm,
    Flags,
    GAP_PERIODS,
    is_all,
    seconds,
    to_nanoseconds,
)

SLOWEST_RADPS = 1e-6
"""What is slower than this may stay within the last digit of its position for a while, rad / s."""


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


class Change(NamedTuple):
    """What a state says, against the one before it; arrays are (..., n) unless stated."""

    lasted_ns: int
    """What the state counts for."""
    at: TrackingState
    """State and reference."""
    move_rad: Array
    """From the state before; zero after a gap."""
    gain_radps: Array
    """Of velocity, since then."""
    effort_nm: Array
    """What acted."""
    follows: Flags
    """Whether the reference is followed, shape (...)."""


class Bounds(NamedTuple):
    """What a state may say that comes dt after the one before; rows as `Evidence` has them."""

    lowest: Array
    """What it takes from Page's sums at most, shape (4, n)."""
    most: Array
    """What it adds to them at most."""
    allowed: Array
    """k, which is taken off."""
    full: Array
    """Beyond which no sum grows."""
    limits: Array
    """What is too far, too fast or astray, shape (5, n)."""


class Evidence:
    """Sums and times of every joint, in the terms of the module's text.

    What there is several of per joint is stacked, (..., rows, n), and treated at once. The rows of
    Page's sums are x upwards, x downwards, y upwards, y downwards.
    """

    def __init__(self, settings: GuardSettings, limits: JointLimits) -> None:
        self._settings = settings
        effort_nm = np.array(limits.effort_nm)
        self._low_rad = limits.lower_rad - settings.position_margin_rad
        self._high_rad = limits.upper_rad + settings.position_margin_rad
        self._fastest_radps = (1.0 + settings.velocity_margin) * np.array(limits.velocity_radps)
        self._full_nm = settings.full_effort_share * effort_nm
        self._lacking_nm = settings.unexplained_effort_share * effort_nm
        self._strongest_nm = settings.unexplained_step_share * effort_nm
        self._alarm = _rows_of_sums(
            settings.mismatch_rad, settings.unexplained_full_effort_s * effort_nm
        )
        self._persistence_ns = to_nanoseconds(settings.persistence_s)
        self._frozen_ns = to_nanoseconds(settings.frozen_s)
        self._no_motion_ns = to_nanoseconds(settings.no_motion_s)
        self._dt_s = math.nan

    def set_bounds(self, dt_s: float) -> None:
        """Set the bounds of a state that comes `dt_s` after the one before."""
        if dt_s == self._dt_s:  # as a rule states are one period apart
            return
        settings, strongest, fastest = self._settings, self._strongest_nm, self._fastest_radps
        most = _rows_of_sums(settings.mismatch_step_rad, dt_s * strongest)
        astray = np.full(fastest.shape, settings.tracking_error_rad)
        reach = dt_s * fastest + settings.mismatch_step_rad
        self._dt_s = dt_s
        self._bounds = Bounds(
            lowest=_rows_of_sums(-np.inf, -dt_s * strongest),
            most=most,
            allowed=dt_s * _rows_of_sums(settings.mismatch_allowance_radps, self._lacking_nm),
            full=self._alarm + most,
            limits=np.stack([self._high_rad, -self._low_rad, fastest, reach, astray]),
        )

    def reset(self, q_desired_rad: Array) -> None:
        """Begin anew, the reference being there."""
        *lead, n = q_desired_rad.shape
        self._no_times: NDArray[np.int64] = np.zeros((*lead, 4, n), dtype=np.int64)
        # For how long each joint has been beyond its limits, fast, astray, and stuck.
        self._lasted_ns = self._no_times
        self.begin_series(q_desired_rad)

    def begin_series(self, q_desired_rad: Array) -> None:
        """Forget what follows from comparing a state with the one before."""
        *lead, n = q_desired_rad.shape
        self._sums: Array = np.zeros((*lead, 4, n))
        self._nothing_stays(q_desired_rad)

    def _nothing_stays(self, q_desired_rad: Array) -> None:
        self._anchor_rad = q_desired_rad
        self._same_ns = self._no_times[..., 0, :]
        self._is_frozen: Flags | None = None

    def forget(self, which: Flags) -> None:
        """Set all sums and times of some arms, shape (...), to zero."""
        keep = ~which[..., np.newaxis]
        self._same_ns = keep * self._same_ns
        if self._is_frozen is not None:
            self._is_frozen = keep & self._is_frozen
        keep = keep[..., np.newaxis]
        self._sums, self._lasted_ns = keep * self._sums, keep * self._lasted_ns

    def add(self, x_rad: Array, y_nms: Array, move_rad: Array, *, counts: Flags) -> None:
        """Add x and y to Page's sums; where y does not count, shape (...), forget its sums."""
        bounds, share = self._bounds, self._settings.mismatch_share * np.abs(move_rad)
        steps = np.empty(self._sums.shape)
        steps[..., 0, :] = x_rad - share
        steps[..., 1, :] = -x_rad - share
        steps[..., 2, :] = y_nms
        steps[..., 3, :] = -y_nms
        steps = np.minimum(np.maximum(steps, bounds.lowest), bounds.most)
        sums = np.maximum(self._sums + steps - bounds.allowed, 0.0)
        self._sums = np.minimum(sums, bounds.full)
        if not is_all(counts):
            self._sums[..., 2:, :] *= counts[..., np.newaxis, np.newaxis]

    def time_limits(self, change: Change) -> None:
        """Note for how long joints have been astray, fast, beyond their limits or stuck."""
        at, q, speed = change.at, change.at.q, np.abs(change.at.qd)
        said = np.empty((*q.shape[:-1], 5, q.shape[-1]))
        said[..., 0, :] = q
        said[..., 1, :] = -q
        said[..., 2, :] = speed
        said[..., 3, :] = np.abs(change.move_rad)
        said[..., 4, :] = np.abs(at.q_desired - q)
        is_over = said > self._bounds.limits
        is_pushed = np.abs(change.effort_nm) >= self._full_nm
        is_stuck = (speed < self._settings.no_motion_radps) & is_pushed
        if not (np.count_nonzero(is_over) or np.count_nonzero(is_stuck)):  # the usual case
            self._lasted_ns = self._no_times
            return
        is_so = np.empty(self._lasted_ns.shape, dtype=bool)
        is_so[..., 0, :] = is_over[..., 0, :] | is_over[..., 1, :]
        is_so[..., 1, :] = is_over[..., 2, :] | is_over[..., 3, :]  # as it says, or has leapt
        is_so[..., 2, :] = is_over[..., 4, :] & change.follows[..., np.newaxis]
        is_so[..., 3, :] = is_stuck
        self._lasted_ns = (self._lasted_ns + change.lasted_ns) * is_so

    def time_sameness(self, change: Change) -> None:
        """Note for how long readings have been the same, and which are frozen."""
        at, move = change.at, change.move_rad
        if np.count_nonzero(move) == move.size:  # all joints in motion: the usual case
            self._nothing_stays(at.q_desired)
            return
        is_same = (move == 0.0) & (change.gain_radps == 0.0) & change.follows[..., np.newaxis]
        self._same_ns = (self._same_ns + change.lasted_ns) * is_same
        self._anchor_rad = np.where(is_same, self._anchor_rad, at.q_desired)
        way = np.abs(at.q_desired - self._anchor_rad)
        should_move = way > self._settings.frozen_reference_rad
        seems_to_move = np.abs(at.qd) > SLOWEST_RADPS
        self._is_frozen = (should_move | seems_to_move) & (self._same_ns >= self._frozen_ns)

    def alarms(self) -> tuple[Flags, Flags] | None:
        """Return which joints are stuck, (..., n), and what is wrong, (causes, ..., n), if any."""
        is_above = self._sums > self._alarm
        lasts, is_frozen = self._lasted_ns is not self._no_times, self._is_frozen
        if not (lasts or is_frozen is not None or np.count_nonzero(is_above)):
            return None  # the usual case
        has_lasted = self._lasted_ns[..., :3, :] >= self._persistence_ns
        is_stuck = self._lasted_ns[..., 3, :] >= self._no_motion_ns
        wrong = np.empty((len(CAUSES), *is_stuck.shape), dtype=bool)
        wrong[:3] = np.moveaxis(has_lasted, -2, 0)
        wrong[3] = is_above[..., 2:, :].any(axis=-2)
        wrong[4] = False if is_frozen is None else is_frozen
        wrong[5] = is_above[..., :2, :].any(axis=-2)
        return (is_stuck, wrong) if is_stuck.any() or wrong.any() else None


class Guard:
    """Watches the states of one arm, or of a batch of them, shape (...)."""

    def __init__(self, settings: GuardSettings, limits: JointLimits, period_ns: int) -> None:
        self._period_ns, self._gap_ns = period_ns, GAP_PERIODS * period_ns
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
        """A `Cause` per arm: the fault found in the last state; NONE if there is none."""
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
        state_is_valid: Flags,
        follows: Flags,
        acts: Flags,
        effort_nm: Array | None = None,
    ) -> None:
        """Judge a state, after `expect`; flags have the shape (...).

        Args:
            stamp_ns: When it was measured.
            at: State and reference, finite.
            state_is_valid: Whether it is a measured state, and no substitute; from a substitute
                nothing is concluded.
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
        evidence.set_bounds(dt_s)
        move, gain = at.q - last.q, at.qd - last.qd
        change = Change(lasted_ns, at, move, gain, effort, follows)
        if passed_ns <= self._gap_ns:
            x = move - dt_s * (0.5 * (at.qd + last.qd))
            y = self._posture.apply(gain) - dt_s * (effort - self._posture.bias)
            evidence.add(x, y, move, counts=acts)
            evidence.time_sameness(change)
        else:
            change = change._replace(move_rad=np.zeros(at.q.shape))
            evidence.begin_series(at.q_desired)
        evidence.time_limits(change)
        if not is_all(state_is_valid):
            evidence.forget(~state_is_valid)
        self._conclude(at.q.shape[:-1])

    def _conclude(self, shape: tuple[int, ...]) -> None:
        """Report of each arm what is wrong, and of which joint; the last of several counts."""
        if not self.is_calm:
            self._report_nothing(shape)
        alarms = self._evidence.alarms()
        if alarms is None:
            return
        is_stuck, wrong = alarms
        self.is_calm = False
        self.can_move = each_arm(~is_stuck)
        for joint in range(wrong.shape[-1]):
            for cause, is_so in zip(CAUSES, wrong[..., joint], strict=True):
                self.error = np.where(is_so, int(cause), self.error)
                self.joint = np.where(is_so, joint, self.joint)


def _rows_of_sums(of_x: float, of_y: Array) -> Array:
    """Return a constant of x and one of y, shape (n,), as Page's sums are stacked: (4, n)."""
    x = np.full(of_y.shape, of_x)
    return np.stack([x, x, of_y, of_y])
