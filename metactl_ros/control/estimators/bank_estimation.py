# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""The observer bank within a control loop: what the policy sees of it, and how it is scheduled.

    loop.observe    every hypothesis is predicted and compared with the state: innovations, and
                    from them a token per joint for the context
    loop.actuate    the action's last entries are the schedule: hypotheses are corrected by it and
                    run forward to now; the law acts on that state, disturbance and payload

Each period takes one effort of those that were sent, in their order, so that a state that is lost,
or two that come at once, shift nothing. In a tick without a new state the law acts on where the
model has gone since: at 1 rad / s the arm moves by 10 mrad in a period.
"""

import numpy as np

from metactl_ros.control.estimators.bank import (
    ahead,
    BankSettings,
    Innovation,
    ObserverBank,
    Schedule,
)
from metactl_ros.control.estimators.estimator import effort_told, Estimate, UsableStates
from metactl_ros.control.law import TrackingState
from metactl_ros.dynamics.rigid_body import ArmModel
from metactl_ros.signals import Array, Flags, GAP_PERIODS, is_all, seconds

NUM_CONSISTENCY, NUM_PER_DELAY, NUM_OTHERS, NUM_STATIC = 3, 3, 7, 4
"""Features of a token: how q and qd agree, and the torque innovation; per delay two innovations
and the size of all; motion, error and effort; what the joint is and how long it has run."""
UNITS = (1e-3, 5e-3, 1.0, 4e-3, 3e-4)
"""Of how q and qd agree, rad / s, torque, in friction, and innovations of velocity and position.
"""
PER_JOINT, PER_ARM = 9, 1
"""Entries of a schedule besides one per delay: six corrections, drift, noise, beta; payload."""
MOST_LOGIT = 8.0
LOG_DRIFT, LOG_NOISE, LOG_PAYLOAD_DRIFT = (-5.0, 0.0), (-2.0, 3.0), (-8.0, -2.0)
"""Ranges of decimal logarithms."""
FIT_RATIO, FIT_RADPS, FIT_SHARE, FIT_WEIGHT = 3.0, 0.02, 0.1, 0.5
"""No hypothesis fits if the longest delay is the likeliest and even the best is off by more than
the ratio times what positions and velocities disagree by, and this besides; both as means that
forget a share per period. Motors that give less than they are sent surprise as much, but at a
delay that is known; low gains would then lose the arm."""


def token_size(num_delays: int) -> int:
    """Return how many features a token has, of one joint."""
    signed = NUM_CONSISTENCY + NUM_PER_DELAY * num_delays
    return 2 * signed + NUM_OTHERS + NUM_STATIC


def schedule_size(num_delays: int, num_joints: int) -> int:
    """Return how many entries of an action schedule a bank."""
    return num_delays + PER_JOINT * num_joints + PER_ARM


def schedule_of(action: Array, num_delays: int, num_joints: int) -> Schedule:
    """Return the schedule of the entries of an action in [-1, 1], shape (..., schedule_size)."""
    joints = action[..., num_delays:-PER_ARM]
    joints = joints.reshape(*action.shape[:-1], num_joints, PER_JOINT)
    share = 0.5 * (1.0 + joints)
    return Schedule(
        logits=MOST_LOGIT * action[..., :num_delays],
        correction=share[..., :6],
        drift=_decades(share[..., 6], LOG_DRIFT),
        noise=_decades(share[..., 7], LOG_NOISE),
        beta=share[..., 8],
        payload_drift=_decades(0.5 * (1.0 + action[..., -1]), LOG_PAYLOAD_DRIFT),
    )


def action_of(settings: BankSettings, num_joints: int) -> Array:
    """Return the entries of an action that give a bank its own constant schedule, in [-1, 1]."""
    correction = 2.0 * np.array(settings.correction) - 1.0
    drift = _of_decades(settings.offset_drift, LOG_DRIFT)
    noise = _of_decades(settings.noise, LOG_NOISE)
    joint = np.array((*correction, drift, noise, 2.0 * settings.beta - 1.0))
    logits = np.array(settings.delay_logits) / MOST_LOGIT
    payload = _of_decades(settings.payload_drift, LOG_PAYLOAD_DRIFT)
    action = np.concatenate((logits, np.tile(joint, num_joints), [payload]))
    return np.asarray(np.clip(action, -1.0, 1.0))


def _of_decades(value: float, ends: tuple[float, float]) -> float:
    return 2.0 * (float(np.log10(value)) - ends[0]) / (ends[1] - ends[0]) - 1.0


def _decades(share: Array, ends: tuple[float, float]) -> Array:
    power: Array = 10.0 ** (ends[0] + (ends[1] - ends[0]) * share)
    return power


class BankEstimation:
    """A bank of observers, from state to state and from effort to effort."""

    def __init__(
        self, settings: BankSettings, arm: ArmModel, period_ns: int, num_skipped: int = 0
    ) -> None:
        """Make a bank.

        Args:
            settings: Of the bank.
            arm: The model of the robot.
            period_ns: Of control.
            num_skipped: States after a reset that are not looked at: while brakes open and drives
                begin, an arm does what no effort explains, and the window would remember it.
        """
        self._num_skipped = num_skipped
        self._period_ns, self._dt_s = period_ns, seconds(period_ns)
        self._arm, self._bank = arm, ObserverBank(settings, arm, self._dt_s)
        self._is_scheduled = settings.is_scheduled
        self._num_delays, self._num_joints = settings.num_delays, len(arm.joint_names)
        self._largest_nm = np.array(arm.limits.effort_nm)
        size = schedule_size(self._num_delays, self._num_joints)
        self.num_scheduled = size if settings.is_scheduled else 0
        self._token_size = token_size(self._num_delays)
        self._units = np.repeat(UNITS, (1, 1, 1, self._num_delays, self._num_delays))
        self.reset(np.zeros(self._num_joints))

    def reset(self, effort_nm: Array) -> None:
        """Begin anew with an effort that acts until the first state; the estimate is zero."""
        shape = effort_nm.shape
        self._stamp_ns: int | None = None
        self._effort, self._waiting = effort_nm, list[Array]()
        self._may_learn: Flags = np.ones(shape[:-1], dtype=bool)
        self._states = UsableStates()
        self._found: Innovation | None = None
        self._schedule: Schedule | None = None
        self._now: Estimate | None = None
        self._num_ahead = 0
        self._y = np.zeros(shape), np.zeros(shape)
        self._num_left = self._num_skipped
        self._disagreement = self._surprise = np.zeros(shape[:-1])
        self.fits = np.ones(shape[:-1], dtype=bool)
        self.missed_nm = np.zeros(shape)
        self.features = np.zeros((*shape[:-1], shape[-1] * self._token_size))
        self.estimate_nm = np.zeros(shape)

    def record_effort(self, effort_nm: Array, is_free: Flags, acts: Flags) -> None:
        """Remember an effort that was sent, see `LoopEstimation`.

        It is what was sent after limits, so that these do not matter here.
        """
        self._effort, self._may_learn = effort_nm, acts
        self._waiting = [*self._waiting, effort_nm][-GAP_PERIODS:]

    def observe(
        self,
        stamp_ns: int,
        at: TrackingState,
        is_usable: Flags,
        payload_estimate_kg: Array | float,
        effort_nm: Array | None,
    ) -> None:
        """Take a state, see `LoopEstimation`."""
        at = self._states.of(at, is_usable)
        if self._num_left > 0:
            self._num_left -= 1
            return
        periods = 0
        if self._stamp_ns is not None:
            periods = (stamp_ns - self._stamp_ns + self._period_ns // 2) // self._period_ns
            if periods <= 0:
                return
        if not 0 < periods <= GAP_PERIODS:
            self._begin(stamp_ns, at, payload_estimate_kg)
        else:
            self._correct()  # a state before, after which nobody asked
            self._pass(periods, effort_nm)
            assert self._stamp_ns is not None
            self._stamp_ns += periods * self._period_ns  # the grid, so that jitter adds up to none
        self._found = self._bank.innovate(at.q, at.qd)
        if self._bank.age > 0:
            self._judge_fit(self._found, at)
        self.features = self._tokens(self._found, at)
        self._y = at.q, at.qd

    def _begin(self, stamp_ns: int, at: TrackingState, payload_estimate_kg: Array | float) -> None:
        payload_kg = np.asarray(payload_estimate_kg, dtype=np.float64)
        payload_kg = np.where(np.isfinite(payload_kg), payload_kg, 0.0)
        self._bank.begin(at.q, at.qd, payload_kg, self._effort)
        self._stamp_ns, self._waiting, self._found = stamp_ns, [], None
        self._now = None
        self._y = at.q, at.qd
        self.estimate_nm = np.zeros(at.q.shape)

    def _pass(self, periods: int, told_nm: Array | None) -> None:
        """Let periods pass, each with the next effort that was sent."""
        for number in range(periods):
            if number:
                self._bank.coast()
            sent = self._waiting.pop(0) if self._waiting else self._effort
            self._bank.record_effort(effort_told(told_nm, sent, self._largest_nm))

    def _judge_fit(self, found: Innovation, at: TrackingState) -> None:
        """Compare what was predicted with what is measured, and that with itself."""
        y_q, y_v = self._y
        surprise = np.matmul(self._bank.pi[..., np.newaxis, :], found.nu_v)
        self.missed_nm = self._bank.measured.apply(surprise / self._dt_s)[..., 0, :]
        apart = np.abs((at.q - y_q) / self._dt_s - 0.5 * (at.qd + y_v))
        apart = np.maximum.reduce(apart, axis=-1)
        best = np.minimum.reduce(np.maximum.reduce(np.abs(found.nu_v), axis=-1), axis=-1)
        self._disagreement = self._disagreement + FIT_SHARE * (apart - self._disagreement)
        self._surprise = self._surprise + FIT_SHARE * (best - self._surprise)
        is_small = self._surprise <= FIT_RATIO * (self._disagreement + FIT_RADPS)
        self.fits = is_small | (self._bank.pi[..., -1] < FIT_WEIGHT)

    def _correct(self) -> None:
        """Correct the bank by an innovation that waits, with the last schedule."""
        if self._found is not None:
            by = self._bank.constant_schedule() if self._schedule is None else self._schedule
            self._bank.correct(self._found, by, self._may_learn)
            self._found = None

    def estimate(self, at: TrackingState, schedule: Array) -> Estimate:
        """Return state, disturbance and payload now; without a new state the model goes on."""
        if self._found is not None:
            if self._is_scheduled:
                self._take(schedule)
            by = self._schedule or self._bank.constant_schedule()
            self._bank.correct(self._found, by, self._may_learn)
            self._found = None
            now = self._bank.to_now(by, at.qd_desired, at.qdd_desired)
            d_nm = np.minimum(np.maximum(now.d_nm, -self._largest_nm), self._largest_nm)
            self._now, self.estimate_nm = now._replace(d_nm=d_nm), d_nm
            self._num_ahead = 0
        elif self._now is not None and len(self._waiting) > self._num_ahead:
            sent = self._waiting[self._num_ahead]
            self._now = ahead(self._arm, self._now, sent, self._dt_s)
            self._num_ahead += 1
        if self._now is None:  # nothing was ever observed
            return Estimate(at.q, at.qd, self.estimate_nm, np.zeros(at.q.shape[:-1]))
        return self._now

    def _take(self, schedule: Array) -> None:
        """Make a new schedule of an action; where that is not finite, of its middle."""
        if not is_all(np.isfinite(schedule)):
            schedule = np.nan_to_num(schedule, nan=0.0, posinf=0.0, neginf=0.0)
        inside = np.minimum(np.maximum(schedule, -1.0), 1.0)
        by = schedule_of(inside, self._num_delays, self._num_joints)
        self._schedule = by._replace(logits=by.logits + self._bank.evidence)

    def _tokens(self, found: Innovation, at: TrackingState) -> Array:
        """Return a token per joint, one behind the other, shape (..., n F)."""
        bank, (y_q, y_v), dt = self._bank, self._y, self._dt_s
        signed_size = NUM_CONSISTENCY + NUM_PER_DELAY * self._num_delays
        lead, n, num = at.q.shape[:-1], self._num_joints, self._num_delays
        token = np.zeros((*lead, n, self._token_size))
        felt = bank.felt[..., 0, :]
        static = token[..., -NUM_STATIC:]
        static[..., 0] = np.log(bank.unit_nm / felt) / 2.0
        static[..., 1] = np.log(felt) / 3.0
        static[..., 2] = min(bank.age / 60.0, 1.0)
        static[..., 3] = min(bank.age / 300.0, 1.0)
        if bank.age > 0:
            change = (at.q - y_q) / dt
            torque = self.missed_nm / bank.unit_nm
            signed = token[..., :signed_size]
            signed[..., 0] = change - 0.5 * (at.qd + y_v)
            signed[..., 1] = change - at.qd
            signed[..., 2] = torque
            signed[..., 3 : 3 + num] = np.swapaxes(found.nu_v, -1, -2)
            signed[..., 3 + num : 3 + 2 * num] = np.swapaxes(found.nu_q, -1, -2)
            shown = signed[..., : 3 + 2 * num]
            np.arcsinh(shown / self._units, out=shown)
            signed[..., 3 + 2 * num :] = bank.misfit[..., np.newaxis, :] - 2.0
            np.abs(signed, out=token[..., signed_size : 2 * signed_size])
            v_now = at.qd if self._now is None else self._now.qd
            others = token[..., 2 * signed_size : -NUM_STATIC]
            others[..., 0] = np.tanh(v_now / 0.15)
            others[..., 1] = np.tanh(v_now / 0.03)
            others[..., 2] = np.arcsinh((at.q_desired - at.q) / 0.01)
            others[..., 3] = np.tanh(at.qd_desired / 0.15)
            others[..., 4] = bank.last_sent / self._largest_nm
            others[..., 5] = np.arcsinh(self.estimate_nm / bank.unit_nm)
            others[..., 6] = 1.0
        return token.reshape(*lead, -1)
