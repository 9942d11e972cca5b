# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""One control step in two halves, around whatever policy the driver has.

    window = loop.observe(state, reference, payload_estimate)
    action = policy(window)
    step = loop.actuate(action, state, reference, now_ns)
    plant.step(step.effort_nm)

The environment, the evaluator, the bag replay and the ROS node are the only callers, and they run
this same code. Every effort returned is finite, within its limits and within its rate.
"""

from collections.abc import Sequence
import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from metactl_ros.control.computed_torque import (
    computed_torque,
    effort_box,
    holding_torque,
    limit_effort,
)
from metactl_ros.control.estimators.choice import make_estimator
from metactl_ros.control.estimators.estimator import Estimation
from metactl_ros.control.gain_map import GainMap
from metactl_ros.control.guard import Guard
from metactl_ros.control.law import (
    feed_forward_features,
    nominal_gains,
    Situation,
    tracking_error,
    TrackingError,
)
from metactl_ros.control.lyapunov import LyapunovFunction
from metactl_ros.control.modes import Health, HEALTHY, Mode, ModeInputs, Modes
from metactl_ros.control.settings import ControllerSettings
from metactl_ros.control.shield import Enforcement, Reason, Shield, ShieldDecision
from metactl_ros.control.window import ContextWindow, step_observation
from metactl_ros.dynamics.two_link import (
    Arm,
    bias_torque,
    gravity_torque,
    lump,
    Mass,
    mass_at,
    NUM_JOINTS,
    smallest_inertia,
)
from metactl_ros.errors import ConfigError
from metactl_ros.signals import (
    are_within,
    ArmState,
    Array,
    choose,
    clamp,
    Component,
    dot,
    every,
    is_finite,
    period_ns_of,
    Reference,
    seconds,
    split,
    stack,
    Vector,
)

# No arm moves at this many rad, rad/s or rad/s^2. Beyond it a number is as good as NaN, and its
# square could overflow.
ABSURD = 1e6


class ControlStep(NamedTuple):
    """Everything one step decided."""

    effort_nm: Array
    """What to send, shape (..., n): finite, within size and rate limits."""
    wanted_nm: Array
    """What was asked for before limits, shape (..., n)."""
    modes: NDArray[np.int64]
    """A `Mode` per arm, shape (...)."""
    causes: NDArray[np.int64]
    """A `Cause` per arm, shape (...): why the mode is what it is."""
    joints: NDArray[np.int64]
    """Which joint the cause is about, shape (...); -1 if none in particular."""
    decision: ShieldDecision
    """The gains in force and their certificate."""
    excess_after_limits: Component
    """The Lyapunov condition re-evaluated on the limited effort; at most 0 if met."""
    estimate_nm: Array | None
    """What the model is estimated to lack, shape (..., n), if there is an estimator."""


class _Judgement(NamedTuple):
    """A proposal, weighed in one situation."""

    mass: Mass
    error: TrackingError
    phi: Sequence[Vector]
    decision: ShieldDecision


class ControlLoop:
    """The state of one controller, or of a batch of them, between two steps."""

    def __init__(
        self, arm: Arm, settings: ControllerSettings, enforcement: Enforcement = 'enforce'
    ) -> None:
        self._limits = arm.limits
        self._settings = settings
        self._model = lump(arm, 0.0)
        self._columns = settings.gain_box.columns
        self._period_ns = period_ns_of(settings.law.rate_hz)
        acceleration = [most / smallest_inertia(arm) for most in arm.limits.effort_nm]
        self._goal_limits = [*arm.limits.position_rad, *arm.limits.velocity_radps, *acceleration]
        self._window = ContextWindow(settings.context.num_rows, self._period_ns)
        self.gain_map = GainMap(settings.gain_box, NUM_JOINTS)
        self.lyapunov = LyapunovFunction(settings.lyapunov, settings.law, NUM_JOINTS)
        nominal = nominal_gains(settings.law, NUM_JOINTS, len(self._columns)).tolist()
        self._nominal: list[float] = nominal
        self.nominal_action = np.array(self.gain_map.action(nominal))
        self.nominal_action.setflags(write=False)
        if np.abs(self.nominal_action).max() > 1.0:
            raise ConfigError(
                f'GainBox: must hold the nominal gains {nominal}, which every fallback needs; '
                f'found {self.gain_map.lower} to {self.gain_map.upper}.'
            )
        self._shield = Shield(self.gain_map, nominal, enforcement)
        self._estimation: Estimation | None = None
        if settings.estimator is not None:
            estimator = make_estimator(settings.estimator, arm, settings.law)
            self._estimation = Estimation(estimator, arm.limits.effort_nm, self._period_ns)
        self._guard = Guard(settings.guard, arm.limits, self._period_ns)
        self._modes = Modes(settings.modes)

    @property
    def doubts(self) -> Component:
        """What the guard finds wrong with the last state: a `Cause` per arm."""
        return self._guard.error

    def reset(self, state: ArmState, effort_nm: Array | None = None) -> Array:
        """Begin anew: empty window, WARMUP; return the effort from which the rate is limited.

        It is what the motors give now, or gravity's on the payload-free model if that is unknown.

        Raises:
            ConfigError: If the state is not finite: a loop begins with the first good one.
        """
        if not np.isfinite(state.q_rad + state.qd_radps).all():
            raise ConfigError(
                f'ControlLoop.reset: expected a finite state, found positions {state.q_rad} and '
                f'velocities {state.qd_radps}; wait for a good one.'
            )
        self.resume(self.acting_effort(state, effort_nm))
        self._modes.reset(state.q_rad.shape[:-1], state.stamp_ns)
        self._held_q = self._last_q = q = split(state.q_rad)
        self._now_ns = state.stamp_ns - self._period_ns
        self._meets_condition: Component = True
        bias = bias_torque(self._model, q, split(state.qd_radps))
        self._guard.expect(mass_at(self._model, q), bias, self._effort)
        return stack(self._effort)

    def acting_effort(self, state: ArmState, effort_nm: Array | None) -> Array:
        """Return what the motors give now: as measured, or gravity's torque if that is unknown."""
        effort = gravity_torque(self._model, split(state.q_rad))
        if effort_nm is not None:
            measured = split(effort_nm)
            effort = choose(is_finite(sum(measured)), measured, effort)
        most = self._limits.effort_nm
        return stack(clamp(effort, [-x for x in most], most))

    def resume(self, effort_nm: Array) -> None:
        """Go on from an effort that is not this loop's last; window and evidence begin anew."""
        self._effort = split(effort_nm)
        self._guard.reset()
        self._clear_window()

    def forget_context(self) -> None:
        """Empty the window and warm up anew; effort, time, graver modes and all counts stay."""
        self._modes.warm_up_anew(self._now_ns)
        self._clear_window()

    def _clear_window(self) -> None:
        self._window.clear()
        self._is_clear: Component = True
        if self._estimation is not None:
            self._estimation.reset(self._effort)

    def observe(
        self,
        state: ArmState,
        reference: Reference,
        payload_estimate_kg: Array | float,
        effort_nm: Array | None = None,
    ) -> Array:
        """Add what is seen now to the window and return it, shape (..., W, F), all finite.

        `effort_nm` is what acted since the state before, (..., n), if it was not this loop's.
        """
        context = self._settings.context
        extra = None
        seen, sees, knows_goal = self._perceive(state, reference)
        follows = knows_goal & (self._modes.is_nominal or (self._modes.values < Mode.STOP)[()])
        acts = self._modes.is_nominal or (self._modes.values < Mode.BLIND)[()]
        acted = None if effort_nm is None else split(effort_nm)
        self._guard.see(
            state.stamp_ns, seen, sees=sees, follows=follows, acts=acts, effort_nm=acted
        )
        if self._estimation is not None:
            is_sound = sees & knows_goal & self._is_within_limits(seen)
            seen = self._estimation.believe(seen, is_sound)
            error = tracking_error(self._settings.law, seen)
            self._estimation.look(state.stamp_ns, seen, error, payload_estimate_kg, acted)
            extra = stack(self._estimation.estimate_nm) if context.num_extra else None
        row = step_observation(
            state,
            reference,
            payload_estimate_kg,
            context.friction_regime_estimate,
            context.horizon_s,
            extra,
        )
        self._is_clear = True
        if not math.isfinite(np.vdot(row, row)):  # one bad number would spoil the window for long
            self._is_clear = np.asarray(np.isfinite(row).all(axis=-1))[()]
            row = np.nan_to_num(row, nan=0.0, posinf=0.0, neginf=0.0)
        self._window.push(state.stamp_ns, row)
        return self._window.rows()

    def actuate(
        self,
        action: Array,
        state: ArmState,
        reference: Reference,
        now_ns: int,
        health: Health = HEALTHY,
    ) -> ControlStep:
        """Turn a policy's action, shape (..., m), into the effort of this step.

        Args:
            action: In [-1, 1]; anything else is projected or replaced.
            state: Measured now, or the last one if nothing came; an arm whose state is not finite,
                or absurd, is blind.
            reference: Wanted now; an arm whose reference is not finite or out of limits stops.
            now_ns: Time since reset; a step back counts as standing still.
            health: What the driver knows about its inputs.
        """
        expected = (*state.q_rad.shape[:-1], self.gain_map.size)
        if action.shape != expected or not self._modes.has_begun:
            raise ConfigError(
                f'ControlLoop.actuate: expected an action of shape {expected} after a reset, '
                f'found {action.shape}; check the policy, and call reset first.'
            )
        passed_ns = min(max(now_ns - self._now_ns, 0), self._period_ns)
        self._now_ns = now_ns = max(now_ns, self._now_ns)
        situation, sees, knows_goal = self._perceive(state, reference)
        judged = self._judge(action, situation)
        before = self._modes.values
        self._advance_modes(judged, situation, sees, knows_goal, now_ns, health)
        if not self._modes.is_nominal:
            action, situation = self._safe_inputs(before, action, situation)
            judged = self._judge(action, situation)
        mass, error, phi, decision = judged
        bias = bias_torque(self._model, situation.q, situation.qd)
        hold = holding_torque(bias, phi, decision.gains)
        law = computed_torque(mass, hold, situation.qdd_desired, error, decision.gains)
        wanted = law if self._modes.is_nominal else self._without_sight(law, now_ns)
        step = self._limit(hold, law, wanted, decision, passed_ns)
        self._guard.expect(mass, bias, self._effort)
        return step

    def _perceive(
        self, state: ArmState, reference: Reference
    ) -> tuple[Situation, Component, Component]:
        """Return the situation, all finite, and whether state and reference were."""
        q, qd = split(state.q_rad), split(state.qd_radps)
        goal = [split(reference.q_rad), split(reference.qd_radps), split(reference.qdd_radps2)]
        sees = are_within([*q, *qd], [ABSURD] * (2 * len(q)))
        knows_goal = are_within([x for part in goal for x in part], self._goal_limits)
        if not every(sees & knows_goal):
            zero = [0.0] * len(q)
            q, qd = choose(sees, q, self._last_q), choose(sees, qd, zero)
            goal = [choose(knows_goal, *pair) for pair in zip(goal, (q, zero, zero), strict=True)]
        self._last_q = q
        return Situation(q, qd, *goal), sees, knows_goal

    def _judge(self, action: Array, situation: Situation) -> _Judgement:
        law = self._settings.law
        mass = mass_at(self._model, situation.q)
        error = tracking_error(law, situation)
        estimate = None if self._estimation is None else self._estimation.estimate_nm
        phi = feed_forward_features(law, self._columns, situation.qd_desired, estimate)
        half_space = self.lyapunov.half_space(mass, error, phi)
        return _Judgement(mass, error, phi, self._shield.admit(action, half_space))

    def _advance_modes(
        self,
        judged: _Judgement,
        situation: Situation,
        sees: Component,
        knows_goal: Component,
        now_ns: int,
        health: Health,
    ) -> None:
        settings, decision = self._settings.modes, judged.decision
        is_answered = (decision.reason <= Reason.PROJECTED) & self._is_clear
        is_certified = decision.half_space.excess(self._nominal) <= settings.violation_tolerance
        is_certified = is_certified & self._meets_condition
        is_within = self._is_within_limits(situation)
        guard = self._guard
        is_well = sees & knows_goal & is_answered & is_within & is_certified
        if self._modes.is_calm and guard.is_calm and health == HEALTHY and every(is_well):
            return  # nothing to count and good inputs: NOMINAL stays as it is
        speeds = situation.qd
        inputs = ModeInputs(
            state_is_fresh=sees & health.state_is_fresh,
            reference_is_valid=knows_goal & health.reference_is_valid,
            policy_is_valid=is_answered & health.policy_is_on_time,
            meets_condition=is_certified,
            is_within_limits=is_within,
            is_at_rest=are_within(speeds, [settings.rest_velocity_radps] * NUM_JOINTS),
            is_stopping=self._is_stopping(situation),
            can_move=guard.can_move,
            error=health.error or guard.error,
            joint=guard.joint,
            reset_requested=health.reset_requested,
        )
        self._modes.advance(inputs, now_ns)

    def _is_stopping(self, at: Situation) -> Component:
        """Return whether an arm in STOP is slow and near the posture that is held."""
        fastest_radps = self._settings.modes.stop_velocity_radps
        farthest_rad = self._settings.guard.tracking_error_rad
        way = [q - held for q, held in zip(at.q, self._held_q, strict=True)]
        is_held = are_within(way, [farthest_rad] * NUM_JOINTS)
        return are_within(at.qd, [fastest_radps] * NUM_JOINTS) & is_held

    def _is_within_limits(self, at: Situation) -> Component:
        most = (*self._limits.position_rad, *self._limits.velocity_radps)
        return are_within([*at.q, *at.qd], most)

    def _safe_inputs(
        self,
        before: NDArray[np.int64],
        action: Array,
        situation: Situation,
    ) -> tuple[Array, Situation]:
        """Return nominal gains for arms that are not NOMINAL, and for those in STOP a hold.

        What is held is the posture in which STOP was entered.
        """
        modes = self._modes.values
        is_nominal = (modes == Mode.NOMINAL)[..., np.newaxis]
        stops, zero = modes == Mode.STOP, [0.0] * NUM_JOINTS
        self._held_q = choose(before == Mode.STOP, self._held_q, situation.q)
        held = situation._replace(
            q_desired=choose(stops, self._held_q, situation.q_desired),
            qd_desired=choose(stops, zero, situation.qd_desired),
            qdd_desired=choose(stops, zero, situation.qdd_desired),
        )
        return np.where(is_nominal, action, self.nominal_action), held

    def _without_sight(self, wanted_nm: Vector, now_ns: int) -> list[Component]:
        """Return fading gravity torque for arms in BLIND, zero for those in FAULT."""
        modes, ramp_s = self._modes.values, self._settings.modes.blind_ramp_s
        blind_s = self._modes.since_s(now_ns)
        share = (np.clip(1.0 - blind_s / ramp_s, 0.0, 1.0) if ramp_s else 0.0 * blind_s)[()]
        fading = [share * torque for torque in gravity_torque(self._model, self._last_q)]
        seen = choose(modes == Mode.BLIND, fading, wanted_nm)
        return choose(modes == Mode.FAULT, [0.0] * len(seen), seen)

    def _limit(
        self,
        hold: Vector,
        law: Vector,
        wanted: Vector,
        decision: ShieldDecision,
        passed_ns: int,
    ) -> ControlStep:
        """Return the step with an effort that is finite, within size and within rate."""
        is_sound = is_finite(sum(wanted))
        if not every(is_sound):
            wanted = choose(is_sound, wanted, [0.0] * len(wanted))
            self._modes.fail(~np.asarray(is_sound), self._now_ns)
        modes = self._modes.values
        reach = [rate * seconds(passed_ns) for rate in self._limits.effort_rate_nmps]
        obeys = self._modes.is_nominal or (modes < Mode.BLIND)[()]
        box = effort_box(self._effort, self._limits.effort_nm, reach)
        self._effort = limit_effort(hold, wanted, *box, is_commanded=obeys)
        missing = [ask - get for ask, get in zip(law, self._effort, strict=True)]
        estimate: Array | None = None
        if self._estimation is not None:
            estimate = stack(self._estimation.estimate_nm)
            is_free = are_within(missing, [0.0] * NUM_JOINTS)
            self._estimation.note(self._effort, is_free & (modes == Mode.NOMINAL)[()])
        excess = decision.excess + dot(decision.half_space.pull_radps, missing)
        # What unshielded gains break, in a study that only counts, is not the limits' doing.
        is_met = excess <= self._settings.modes.violation_tolerance
        self._meets_condition = is_met | (excess <= decision.excess)
        if not self._modes.is_nominal:
            self._meets_condition = self._meets_condition | (modes >= Mode.BLIND)[()]
        return ControlStep(
            effort_nm=stack(self._effort),
            wanted_nm=stack(wanted),
            modes=modes,
            causes=self._modes.causes,
            joints=self._modes.joints,
            decision=decision,
            excess_after_limits=excess,
            estimate_nm=estimate,
        )
