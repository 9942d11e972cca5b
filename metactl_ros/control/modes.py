# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
r"""The mode state machine: six modes, and one pure transition function of (mode, inputs, now).

    WARMUP    nominal gains, until the window is full         -> NOMINAL
    NOMINAL   the policy's gains, through the shield
    FALLBACK  nominal gains, because the policy failed        -> NOMINAL after good ticks
    STOP      holds the arm where it was                      -> once at rest and all is well
                                                              -> FAULT if not at rest in time
    BLIND     no fresh state: gravity torque fading to zero   -> WARMUP
    FAULT     zero torque, latched                            -> WARMUP on reset, if all is well

Rules are tried from the gravest down, so a graver condition always wins. Every rule needs a fresh
tick to leave a worse mode for a better one; only `reset` leaves FAULT.
"""

from dataclasses import dataclass, replace
from enum import IntEnum
import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from metactl_ros.config import require_not_negative, require_positive
from metactl_ros.signals import Array, Flags, NANOSECONDS_PER_SECOND

NO_JOINT = -1
"""Stands for a joint, which counts from 0, where a cause is about none in particular."""


class Mode(IntEnum):
    """What the controller is doing; larger is graver."""

    NOMINAL = 0
    WARMUP = 1
    FALLBACK = 2
    STOP = 3
    BLIND = 4
    FAULT = 5


class Cause(IntEnum):
    """Why the mode is what it is; the numbers are recorded in bags and never change."""

    NONE = 0
    """All is well."""
    WINDOW_NOT_FULL = 1
    POLICY_FAILED = 2
    """It was late, raised, or proposed nothing the shield could use."""
    RECOVERING = 3
    """All is well again, but not yet for long enough."""
    NO_REFERENCE = 4
    """There is none, it is invalid, or the operator holds the arm."""
    OUTSIDE_LIMITS = 5
    """A joint is outside its position or velocity limits."""
    CONDITION_VIOLATED = 6
    """The Lyapunov condition failed, on the gains or on the effort that limits left, too often."""
    NO_MOTION = 7
    """A joint had its full effort and did not move."""
    STALE_STATE = 8
    """No state came in time, or this controller was late itself."""
    BLIND_TOO_LONG = 9
    FLAPPING = 10
    """The mode became worse too often within a second."""
    STOP_FAILED = 11
    """The arm did not come to rest in STOP."""
    TRACKING_ERROR = 12
    """A joint was too far from its reference."""
    OVERSPEED = 13
    """A joint was faster than its limit by more than the margin."""
    BEYOND_LIMITS = 14
    """A joint was beyond its position limit by more than the margin."""
    FROZEN_STATE = 15
    """A joint's readings stayed the same while it should have moved."""
    POSITION_VELOCITY_MISMATCH = 16
    """A joint's positions and velocities contradict each other."""
    EFFORT_MOTION_MISMATCH = 17
    """A joint does not move as its effort and the model say."""
    INTERNAL_ERROR = 18
    """An exception, or an effort that failed the last check."""
    SECOND_SOURCE = 19
    """More than one publisher speaks for the arm, or to it."""
    CLOCK_MISMATCH = 20
    """The stamps of the robot do not keep pace with time."""
    POSITION_LEAP = 21
    """The positions leapt further than the arm could have moved, and stayed there."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ModeSettings:
    """When modes change, as `config/controller.yaml` states it."""

    warmup_ticks: int
    """Fresh samples before the policy may act; the window length on a robot, 0 in training."""
    recovery_ticks: int
    """Good ticks in FALLBACK before the policy may act again."""
    rest_velocity_radps: float
    """Below this the arm is at rest, rad / s."""
    stop_settle_s: float
    """Time in which STOP must have slowed the arm down, s."""
    stop_velocity_radps: float
    """What is faster than this after that time was not stopped, rad / s."""
    violation_tolerance: float
    """Excess over the Lyapunov condition that counts as a violation, of the nominal gains or of
    the effort that its limits left."""
    stop_after_violations: int
    """Ticks in a row with such a violation before STOP."""
    fault_after_violations: int
    """Ticks in a row with such a violation before FAULT."""
    fault_after_degradations_per_s: int
    """Mode changes for the worse within one second that make a FAULT."""
    fault_after_blind_s: float
    """Time without a fresh state that makes a FAULT, s."""
    blind_ramp_s: float
    """Time in which the gravity torque fades in BLIND, s; zero for arms with brakes."""

    def __post_init__(self) -> None:
        require_not_negative(
            'ModeSettings',
            warmup_ticks=self.warmup_ticks,
            recovery_ticks=self.recovery_ticks,
            violation_tolerance=self.violation_tolerance,
            blind_ramp_s=self.blind_ramp_s,
        )
        require_positive(
            'ModeSettings',
            rest_velocity_radps=self.rest_velocity_radps,
            stop_settle_s=self.stop_settle_s,
            stop_velocity_radps=self.stop_velocity_radps,
            stop_after_violations=self.stop_after_violations,
            fault_after_violations=self.fault_after_violations,
            fault_after_degradations_per_s=self.fault_after_degradations_per_s,
            fault_after_blind_s=self.fault_after_blind_s,
        )


class Health(NamedTuple):
    """What the driver knows about its inputs; simulations are healthy."""

    state_is_fresh: bool = True
    reference_is_valid: bool = True
    policy_is_on_time: bool = True
    error: Cause = Cause.NONE
    """A latched error, which only a fault reset clears."""
    reset_requested: bool = False


HEALTHY = Health()


class ModeInputs(NamedTuple):
    """What is known about one arm at one tick."""

    state_is_fresh: bool
    """A valid state arrived recently enough."""
    reference_is_valid: bool
    """There is a finite reference that has not expired."""
    policy_is_valid: bool
    """The policy answered in time with finite numbers, and the shield found admissible gains."""
    meets_condition: bool
    """The nominal gains meet the condition, and so did the last effort, up to the tolerance."""
    is_within_limits: bool
    """Position and velocity are within the joint limits."""
    is_at_rest: bool
    is_stopping: bool
    """No joint is faster than STOP may leave it, or far from the posture that is held."""
    can_move: bool
    """No joint has had its full effort for a while and stood still."""
    error: Cause
    """A latched error, which only a fault reset clears; NONE if there is none."""
    joint: int
    """Which joint the error is about; `NO_JOINT` if none in particular."""
    reset_requested: bool


class ArmsInputs(NamedTuple):
    """The same of a batch of arms, each of shape (...)."""

    state_is_fresh: Flags
    reference_is_valid: Flags
    policy_is_valid: Flags
    meets_condition: Flags
    is_within_limits: Flags
    is_at_rest: Flags
    is_stopping: Flags
    can_move: Flags
    error: NDArray[np.int64]
    joint: NDArray[np.int64]
    reset_requested: bool

    @property
    def is_well(self) -> Flags:
        """Which arms have nothing that any rule but a recovery could look at, shape (...)."""
        inputs = self.state_is_fresh & self.reference_is_valid & self.policy_is_valid
        arm = self.meets_condition & self.is_within_limits & self.can_move
        return np.asarray(inputs & arm & (self.error == Cause.NONE))


@dataclass(frozen=True, slots=True)
class ModeState:
    """The mode, and what must be remembered to leave it."""

    mode: Mode = Mode.WARMUP
    cause: Cause = Cause.WINDOW_NOT_FULL
    """Why; of FAULT, why it was entered."""
    joint: int = NO_JOINT
    """Which joint the cause is about; `NO_JOINT` if none in particular."""
    since_ns: int = 0
    """When the mode was entered."""
    fresh_ticks: int = 0
    """Ticks in a row with a fresh state."""
    good_ticks: int = 0
    """Ticks in a row on which the policy was valid, since the mode last became worse."""
    violations: int = 0
    """Ticks in a row on which the condition was not met."""
    degradations_ns: tuple[int, ...] = ()
    """When the mode last changed for the worse, newest last."""


def next_mode(
    settings: ModeSettings, before: ModeState, inputs: ModeInputs, now_ns: int
) -> ModeState:
    """Return the mode of this tick."""
    fresh = before.fresh_ticks + 1 if inputs.state_is_fresh else 0
    good = before.good_ticks + 1 if inputs.policy_is_valid else 0
    violations = 0 if inputs.meets_condition else before.violations + 1
    mode, cause = _choose(settings, before, inputs, now_ns, fresh, good, violations)
    degradations = before.degradations_ns
    if mode > before.mode:
        good = 0  # what was good before does not count for the recovery
        limit = settings.fault_after_degradations_per_s
        degradations = (*degradations, now_ns)[-limit:]
        is_burst = now_ns - degradations[0] < NANOSECONDS_PER_SECOND
        if len(degradations) == limit and is_burst:
            mode, cause = Mode.FAULT, Cause.FLAPPING
    joint = before.joint if cause == before.cause else NO_JOINT
    if before.mode == Mode.FAULT and mode != Mode.FAULT:
        degradations, fresh = (), 1
    return ModeState(
        mode=mode,
        cause=cause,
        joint=inputs.joint if cause == inputs.error and before.cause != cause else joint,
        since_ns=before.since_ns if mode == before.mode else now_ns,
        fresh_ticks=fresh,
        good_ticks=good,
        violations=violations,
        degradations_ns=degradations,
    )


def warmed_up_anew(before: ModeState, now_ns: int) -> ModeState:
    """Return the mode of a loop whose window was emptied: a graver one, and all counts, stay.

    That the policy does not act for a while is wanted, and no change for the worse.
    """
    if before.mode >= Mode.STOP:
        return replace(before, fresh_ticks=0)
    return replace(
        before,
        mode=Mode.WARMUP,
        cause=Cause.WINDOW_NOT_FULL,
        since_ns=before.since_ns if before.mode == Mode.WARMUP else now_ns,
        fresh_ticks=0,
    )


def _choose(
    settings: ModeSettings,
    before: ModeState,
    inputs: ModeInputs,
    now_ns: int,
    fresh_ticks: int,
    good_ticks: int,
    violations: int,
) -> tuple[Mode, Cause]:
    if before.mode == Mode.FAULT:
        is_well = inputs.state_is_fresh and inputs.reference_is_valid and inputs.is_within_limits
        is_well = is_well and inputs.meets_condition and inputs.error == Cause.NONE
        if inputs.reset_requested and is_well:
            return Mode.WARMUP, Cause.WINDOW_NOT_FULL
        return Mode.FAULT, before.cause
    if inputs.error != Cause.NONE:
        return Mode.FAULT, inputs.error
    if violations >= settings.fault_after_violations:
        return Mode.FAULT, Cause.CONDITION_VIOLATED
    if not inputs.state_is_fresh:
        blind_ns = now_ns - before.since_ns if before.mode == Mode.BLIND else 0
        if blind_ns > settings.fault_after_blind_s * NANOSECONDS_PER_SECOND:
            return Mode.FAULT, Cause.BLIND_TOO_LONG
        return Mode.BLIND, Cause.STALE_STATE
    if before.mode == Mode.STOP and not inputs.is_stopping:
        stopping_ns = now_ns - before.since_ns
        if stopping_ns > settings.stop_settle_s * NANOSECONDS_PER_SECOND:
            return Mode.FAULT, Cause.STOP_FAILED
    if not inputs.reference_is_valid:
        return Mode.STOP, Cause.NO_REFERENCE
    if not inputs.is_within_limits:
        return Mode.STOP, Cause.OUTSIDE_LIMITS
    if violations >= settings.stop_after_violations:
        return Mode.STOP, Cause.CONDITION_VIOLATED
    if not inputs.can_move:
        return Mode.STOP, Cause.NO_MOTION
    if before.mode == Mode.STOP and not inputs.is_at_rest:
        return Mode.STOP, before.cause
    if fresh_ticks <= settings.warmup_ticks:
        return Mode.WARMUP, Cause.WINDOW_NOT_FULL
    if not inputs.policy_is_valid:
        return Mode.FALLBACK, Cause.POLICY_FAILED
    if before.mode >= Mode.FALLBACK and good_ticks < settings.recovery_ticks:
        return Mode.FALLBACK, Cause.RECOVERING
    return Mode.NOMINAL, Cause.NONE


class Modes:
    """The modes of one arm, or of a batch of them, shape (...), from tick to tick."""

    def __init__(self, settings: ModeSettings) -> None:
        self._settings = settings
        self._states: list[ModeState] = []

    @property
    def has_begun(self) -> bool:
        """Whether there was a reset."""
        return bool(self._states)

    def reset(self, shape: tuple[int, ...], now_ns: int) -> None:
        """Begin anew in WARMUP."""
        self._states = [ModeState(since_ns=now_ns)] * math.prod(shape)
        self._show(shape)

    def warm_up_anew(self, now_ns: int) -> None:
        """Take note that the window was emptied."""
        self._states = [warmed_up_anew(state, now_ns) for state in self._states]
        self._show(self.values.shape)

    def advance(self, inputs: ArmsInputs, now_ns: int) -> None:
        """Take a tick. Of an arm in NOMINAL, with nothing to count, good inputs change nothing."""
        shape = self.values.shape
        which = np.flatnonzero(~(inputs.is_well & self._is_idle))
        rows = zip(*(_per_arm(value, shape)[which].tolist() for value in inputs), strict=True)
        for arm, row in zip(which.tolist(), rows, strict=True):
            before = self._states[arm]
            self._states[arm] = next_mode(self._settings, before, ModeInputs(*row), now_ns)
        self._show(shape)

    def fail(self, which: Flags, now_ns: int) -> None:
        """Latch a FAULT of some arms, shape (...): something inside went wrong."""
        shape = self.values.shape
        rows = zip(self._states, _per_arm(which, shape).tolist(), strict=True)
        failed = ModeState(mode=Mode.FAULT, cause=Cause.INTERNAL_ERROR, since_ns=now_ns)
        self._states = [failed if is_so else state for state, is_so in rows]
        self._show(shape)

    def since_s(self, now_ns: int) -> Array:
        """Return for how long each arm has been in its mode, s, shape (...)."""
        passed_ns = [now_ns - state.since_ns for state in self._states]
        seconds: Array = np.array(passed_ns, dtype=np.float64) / NANOSECONDS_PER_SECOND
        return seconds.reshape(self.values.shape)

    def _show(self, shape: tuple[int, ...]) -> None:
        rows = [(state.mode, state.cause, state.joint, state.violations) for state in self._states]
        table: NDArray[np.int64] = np.array(rows, dtype=np.int64).T.reshape(4, *shape)
        table.setflags(write=False)
        self.values, self.causes, self.joints, violations = (table[row, ...] for row in range(4))
        self.follows: Flags = np.asarray(self.values < Mode.STOP)
        """Which arms are made to follow their reference."""
        self.acts: Flags = np.asarray(self.values < Mode.BLIND)
        """Which arms are moved by the law: neither blind nor given up."""
        self.is_nominal = not table[0].any()
        """Whether every arm is."""
        self._is_idle: Flags = np.asarray((self.values == Mode.NOMINAL) & (violations == 0))
        self.is_calm = bool(self._is_idle.all())
        """Whether, besides, there is nothing to count."""


def _per_arm(
    value: Flags | NDArray[np.int64] | bool, shape: tuple[int, ...]
) -> NDArray[np.bool_ | np.int64]:
    """Return one bool or number per arm, in one row."""
    return np.broadcast_to(np.asarray(value), shape).ravel()
