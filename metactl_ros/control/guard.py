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

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace

import numpy as np

from metactl_ros.config import require_not_negative, require_positive
from metactl_ros.control.law import Situation
from metactl_ros.control.modes import Cause
from metactl_ros.dynamics.two_link import apply_mass, JointLimits, Mass
from metactl_ros.signals import (
    choose,
    Component,
    every,
    NANOSECONDS_PER_SECOND,
    seconds,
    Vector,
)

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


class JointWatch:
    """The evidence about one joint: numbers, or arrays with one entry per arm."""

    def __init__(
        self, settings: GuardSettings, position_rad: float, velocity_radps: float, effort_nm: float
    ) -> None:
        self._settings = settings
        self._farthest_rad = settings.position_margin_rad + position_rad
        self._fastest_radps = (1.0 + settings.velocity_margin) * velocity_radps
        self._full_nm = settings.full_effort_share * effort_nm
        self._lacking_nm = settings.unexplained_effort_share * effort_nm
        self._strongest_nm = settings.unexplained_step_share * effort_nm
        self._alarm_nms = settings.unexplained_full_effort_s * effort_nm
        self._persistence_ns = _nanoseconds(settings.persistence_s)
        self._frozen_ns = _nanoseconds(settings.frozen_s)
        self._no_motion_ns = _nanoseconds(settings.no_motion_s)
        self.reset(0.0)

    def reset(self, q_desired_rad: Component) -> None:
        """Begin anew, the reference being there."""
        self._astray_ns: Component = 0
        self._fast_ns: Component = 0
        self._beyond_ns: Component = 0
        self._stuck_ns: Component = 0
        self.begin_series(q_desired_rad)

    def begin_series(self, q_desired_rad: Component) -> None:
        """Forget what follows from comparing a state with the one before."""
        self._anchor_rad = q_desired_rad
        self._is_frozen: Component = False
        self._x_up: Component = 0.0
        self._x_down: Component = 0.0
        self._y_up: Component = 0.0
        self._y_down: Component = 0.0
        self._same_ns: Component = 0

    def forget(self, which: Component) -> None:
        """Set all sums and times of some arms to zero."""
        keep = ~np.asarray(which)[()]
        self._x_up, self._x_down = keep * self._x_up, keep * self._x_down
        self._y_up, self._y_down = keep * self._y_up, keep * self._y_down
        self._astray_ns, self._fast_ns = keep * self._astray_ns, keep * self._fast_ns
        self._beyond_ns, self._stuck_ns = keep * self._beyond_ns, keep * self._stuck_ns
        self._same_ns, self._is_frozen = keep * self._same_ns, keep & self._is_frozen

    def add(self, dt_s: float, move_rad: Component, speeds: Component) -> None:
        """Add a move, and the sum of the velocities at its ends, to Page's sums of x."""
        settings = self._settings
        x, most = move_rad - 0.5 * dt_s * speeds, settings.mismatch_step_rad
        share = settings.mismatch_share * abs(move_rad)
        allowed, full = dt_s * settings.mismatch_allowance_radps, settings.mismatch_rad + most
        up, down = _least(x - share, most), _least(-x - share, most)
        self._x_up = _least(_most(self._x_up + up - allowed, 0.0), full)
        self._x_down = _least(_most(self._x_down + down - allowed, 0.0), full)

    def add_momentum(self, dt_s: float, y_nms: Component, *, counts: Component) -> None:
        """Add y to its sums where it counts; where not, forget them."""
        most, lacking = dt_s * self._strongest_nm, dt_s * self._lacking_nm
        y, full = _least(_most(y_nms, -most), most), self._alarm_nms + most
        self._y_up = counts * _least(_most(self._y_up + y - lacking, 0.0), full)
        self._y_down = counts * _least(_most(self._y_down - y - lacking, 0.0), full)

    def time_limits(
        self,
        lasted_ns: int,
        q_rad: Component,
        qd_radps: Component,
        q_desired_rad: Component,
        effort_nm: Component,
        *,
        follows: Component,
        leapt: Component,
    ) -> None:
        """Note for how long the joint has been astray, fast, beyond its limit or stuck.

        Args:
            lasted_ns: What this state counts for.
            q_rad: Its position.
            qd_radps: Its velocity.
            q_desired_rad: Where it should be.
            effort_nm: What acted on it.
            follows: Whether the reference is followed.
            leapt: Whether it moved further since the state before than its speed permits.
        """
        settings, speed = self._settings, abs(qd_radps)
        is_astray = follows & (abs(q_desired_rad - q_rad) > settings.tracking_error_rad)
        self._astray_ns = (self._astray_ns + lasted_ns) * is_astray
        self._fast_ns = (self._fast_ns + lasted_ns) * (leapt | (speed > self._fastest_radps))
        self._beyond_ns = (self._beyond_ns + lasted_ns) * (abs(q_rad) > self._farthest_rad)
        is_stuck = (speed < settings.no_motion_radps) & (abs(effort_nm) >= self._full_nm)
        self._stuck_ns = (self._stuck_ns + lasted_ns) * is_stuck

    def has_leapt(self, dt_s: float, move_rad: Component) -> Component:
        """Return whether a move is further than the speed limit and a step of a sensor permit."""
        return abs(move_rad) > dt_s * self._fastest_radps + self._settings.mismatch_step_rad

    def time_sameness(
        self,
        lasted_ns: int,
        qd_radps: Component,
        q_desired_rad: Component,
        *,
        is_same: Component,
    ) -> None:
        """Note for how long the readings have been the same, and whether they are frozen."""
        self._same_ns = (self._same_ns + lasted_ns) * is_same
        if is_same is False:  # one arm in motion: the usual case
            self._anchor_rad, self._is_frozen = q_desired_rad, False
            return
        (self._anchor_rad,) = choose(is_same, [self._anchor_rad], [q_desired_rad])
        should_move = abs(q_desired_rad - self._anchor_rad) > self._settings.frozen_reference_rad
        seems_to_move = abs(qd_radps) > SLOWEST_RADPS
        self._is_frozen = (should_move | seems_to_move) & (self._same_ns >= self._frozen_ns)

    def alarms(self) -> Iterator[tuple[Cause, Component]]:
        """Yield what may be wrong, and whether it is; sensors last: they explain all else."""
        often_ns, alarm_rad = self._persistence_ns, self._settings.mismatch_rad
        yield Cause.NO_MOTION, self._stuck_ns >= self._no_motion_ns
        yield Cause.BEYOND_LIMITS, self._beyond_ns >= often_ns
        yield Cause.OVERSPEED, self._fast_ns >= often_ns
        yield Cause.TRACKING_ERROR, self._astray_ns >= often_ns
        unexplained = (self._y_up > self._alarm_nms) | (self._y_down > self._alarm_nms)
        yield Cause.EFFORT_MOTION_MISMATCH, unexplained
        yield Cause.FROZEN_STATE, self._is_frozen
        yield (
            Cause.POSITION_VELOCITY_MISMATCH,
            (self._x_up > alarm_rad) | (self._x_down > alarm_rad),
        )


class Guard:
    """Watches the states of one arm, or of a batch of them, shape (...)."""

    def __init__(self, settings: GuardSettings, limits: JointLimits, period_ns: int) -> None:
        self._period_ns, self._gap_ns = period_ns, MOST_PERIODS * period_ns
        rows = zip(limits.position_rad, limits.velocity_radps, limits.effort_nm, strict=True)
        self._joints = [JointWatch(settings, *row) for row in rows]
        self.reset()

    def reset(self) -> None:
        """Forget everything: the next state is the first."""
        self._last: tuple[int, Vector, Vector] | None = None
        self._say_nothing()

    def _say_nothing(self) -> None:
        self.is_calm = True
        """Whether nothing is wrong with any arm."""
        self.error: Component = Cause.NONE
        """A `Cause` per arm: what of the last state cannot be, or must not be."""
        self.joint: Component = NO_JOINT
        """Of which joint, per arm."""
        self.can_move: Component = True
        """Whether no joint of an arm has had its full effort for a while and stood still."""

    def expect(self, mass: Mass, bias_nm: Vector, effort_nm: Vector) -> None:
        """Note what acts until the next state: M^, C^ qd + g^ and the effort that was sent."""
        self._model = (mass, bias_nm, effort_nm)

    def see(
        self,
        stamp_ns: int,
        at: Situation,
        *,
        sees: Component,
        follows: Component,
        acts: Component = True,
        effort_nm: Vector | None = None,
    ) -> None:
        """Judge a state, after `expect`.

        Args:
            stamp_ns: When it was measured.
            at: State and reference, finite.
            sees: Whether the state was measured at all; of one that was not nothing is concluded.
            follows: Whether the arm is made to follow the reference.
            acts: Whether it is moved by the effort that was sent, and not braked by others.
            effort_nm: What acted since the state before, if it was not what was expected.
        """
        last = self._last
        if last is not None and stamp_ns <= last[0]:
            return  # the same instant again
        self._last = (stamp_ns, at.q, at.qd)
        if last is None:
            for joint, goal in zip(self._joints, at.q_desired, strict=True):
                joint.reset(goal)
            self._say_nothing()
            return
        before_ns, q, qd = last
        passed_ns = stamp_ns - before_ns
        lasted_ns, is_next = min(passed_ns, self._period_ns), passed_ns <= self._gap_ns
        dt_s = seconds(passed_ns)
        mass, bias_nm, sent_nm = self._model
        efforts = sent_nm if effort_nm is None else effort_nm
        gained = apply_mass(mass, [new - old for new, old in zip(at.qd, qd, strict=True)])
        for i, joint in enumerate(self._joints):
            goal, leapt = at.q_desired[i], False
            if is_next:
                move = at.q[i] - q[i]
                joint.add(dt_s, move, at.qd[i] + qd[i])
                joint.add_momentum(dt_s, gained[i] - dt_s * (efforts[i] - bias_nm[i]), counts=acts)
                leapt = joint.has_leapt(dt_s, move)
                is_same = (at.q[i] == q[i]) & (at.qd[i] == qd[i]) & follows
                joint.time_sameness(lasted_ns, at.qd[i], goal, is_same=is_same)
            else:
                joint.begin_series(goal)
            joint.time_limits(
                lasted_ns, at.q[i], at.qd[i], goal, efforts[i], follows=follows, leapt=leapt
            )
            if not every(sees):
                joint.forget(~np.asarray(sees))
        self._conclude()

    def _conclude(self) -> None:
        """Say of each arm what is wrong, and of which joint."""
        self._say_nothing()
        for number, joint in enumerate(self._joints):
            for cause, is_so in joint.alarms():
                if is_so is False or not np.any(is_so):
                    continue
                self.is_calm = False
                if cause == Cause.NO_MOTION:
                    self.can_move = self.can_move & ~np.asarray(is_so)[()]
                    continue
                self.error = np.where(is_so, int(cause), self.error)[()]
                self.joint = np.where(is_so, number, self.joint)[()]


def _nanoseconds(time_s: float) -> int:
    return round(time_s * NANOSECONDS_PER_SECOND)


def _most(x: Component, low: float) -> Component:
    """Return the larger one."""
    return (x if x > low else low) if isinstance(x, float) else np.maximum(x, low)


def _least(x: Component, high: float) -> Component:
    """Return the smaller one."""
    return (x if x < high else high) if isinstance(x, float) else np.minimum(x, high)
