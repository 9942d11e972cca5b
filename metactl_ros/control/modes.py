# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
r"""Which of six things the controller does, as one pure function of (mode, inputs, now).

    WARMUP    nominal gains, until the window is full         -> NOMINAL
    NOMINAL   the policy's gains, through the shield
    FALLBACK  nominal gains, because the policy failed        -> NOMINAL after good ticks
    STOP      holds the arm where it was                      -> once at rest and all is well again
    BLIND     no fresh state: gravity torque fading to zero   -> WARMUP
    FAULT     zero torque, latched                            -> WARMUP on reset, if all is well

Rules are tried from the gravest down, so a graver condition always wins. Every rule needs a fresh
tick to leave a worse mode for a better one; only `reset` leaves FAULT.
"""

from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

from metactl_ros.config import require_not_negative, require_positive
from metactl_ros.signals import NANOSECONDS_PER_SECOND


class Mode(IntEnum):
    """What the controller is doing; larger is graver."""

    NOMINAL = 0
    WARMUP = 1
    FALLBACK = 2
    STOP = 3
    BLIND = 4
    FAULT = 5


@dataclass(frozen=True, kw_only=True, slots=True)
class ModeSettings:
    """When modes change, as `config/controller.yaml` states it."""

    warmup_ticks: int
    """Fresh samples before the policy may act; the window length on a robot, 0 in training."""
    recovery_ticks: int
    """Good ticks in FALLBACK before the policy may act again."""
    rest_velocity_radps: float
    """Below this the arm is at rest, rad / s."""
    violation_tolerance: float
    """Excess of the nominal gains over the Lyapunov condition that counts as a violation."""
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
            stop_after_violations=self.stop_after_violations,
            fault_after_violations=self.fault_after_violations,
            fault_after_degradations_per_s=self.fault_after_degradations_per_s,
            fault_after_blind_s=self.fault_after_blind_s,
        )


class ModeInputs(NamedTuple):
    """What is known about one arm at one tick."""

    state_is_fresh: bool
    """A valid state arrived recently enough."""
    reference_is_valid: bool
    """There is a finite reference that has not expired."""
    policy_is_valid: bool
    """The policy answered in time with finite numbers, and the shield found admissible gains."""
    nominal_is_admissible: bool
    """The nominal gains meet the condition, up to the tolerance."""
    is_within_limits: bool
    """Position and velocity are within the joint limits."""
    is_at_rest: bool
    has_error: bool
    """Something inside failed: an exception, a non-finite effort, a wrong identity."""
    reset_requested: bool


@dataclass(frozen=True, slots=True)
class ModeState:
    """The mode, and what must be remembered to leave it."""

    mode: Mode = Mode.WARMUP
    since_ns: int = 0
    """When the mode was entered."""
    fresh_ticks: int = 0
    """Ticks in a row with a fresh state."""
    good_ticks: int = 0
    """Ticks in a row on which the policy was valid."""
    violations: int = 0
    """Ticks in a row on which the nominal gains were not admissible."""
    degradations_ns: tuple[int, ...] = ()
    """When the mode last changed for the worse, newest last."""


def next_mode(
    settings: ModeSettings, before: ModeState, inputs: ModeInputs, now_ns: int
) -> ModeState:
    """Return the mode of this tick."""
    fresh = before.fresh_ticks + 1 if inputs.state_is_fresh else 0
    good = before.good_ticks + 1 if inputs.policy_is_valid else 0
    violations = 0 if inputs.nominal_is_admissible else before.violations + 1
    mode = _choose(settings, before, inputs, now_ns, fresh, good, violations)
    degradations = before.degradations_ns
    if mode > before.mode:
        limit = settings.fault_after_degradations_per_s
        degradations = (*degradations, now_ns)[-limit:]
        is_burst = now_ns - degradations[0] < NANOSECONDS_PER_SECOND
        if len(degradations) == limit and is_burst:
            mode = Mode.FAULT
    if before.mode == Mode.FAULT and mode != Mode.FAULT:
        degradations, fresh = (), 1
    return ModeState(
        mode=mode,
        since_ns=before.since_ns if mode == before.mode else now_ns,
        fresh_ticks=fresh,
        good_ticks=good,
        violations=violations,
        degradations_ns=degradations,
    )


def _choose(
    settings: ModeSettings,
    before: ModeState,
    inputs: ModeInputs,
    now_ns: int,
    fresh_ticks: int,
    good_ticks: int,
    violations: int,
) -> Mode:
    if before.mode == Mode.FAULT:
        is_well = inputs.state_is_fresh and inputs.reference_is_valid and inputs.is_within_limits
        is_well = is_well and inputs.nominal_is_admissible and not inputs.has_error
        return Mode.WARMUP if inputs.reset_requested and is_well else Mode.FAULT
    if inputs.has_error or violations >= settings.fault_after_violations:
        return Mode.FAULT
    if not inputs.state_is_fresh:
        blind_ns = now_ns - before.since_ns if before.mode == Mode.BLIND else 0
        is_lost = blind_ns > settings.fault_after_blind_s * NANOSECONDS_PER_SECOND
        return Mode.FAULT if is_lost else Mode.BLIND
    must_stop = not inputs.reference_is_valid or not inputs.is_within_limits
    must_stop = must_stop or violations >= settings.stop_after_violations
    if must_stop or (before.mode == Mode.STOP and not inputs.is_at_rest):
        return Mode.STOP
    if fresh_ticks <= settings.warmup_ticks:
        return Mode.WARMUP
    if not inputs.policy_is_valid:
        return Mode.FALLBACK
    if before.mode >= Mode.FALLBACK and good_ticks < settings.recovery_ticks:
        return Mode.FALLBACK
    return Mode.NOMINAL
