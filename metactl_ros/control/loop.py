# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""One control step in two halves, around whatever policy the driver has.

    window = loop.observe(state, reference, payload_estimate)
    action = policy(window)
    step = loop.actuate(action, state, reference, now_ns)
    plant.step(step.effort_nm)

    observe    what is measured, made finite (`inputs`), whether it can be true (`guard`), and a
               row of the context (`window`)
    actuate    where the arm is and what the model lacks (`estimators`), the gains that are
               admissible there (`lyapunov`, `shield`), the mode that follows from all of it
               (`modes`), the effort of the law, and its limits (`law`)

The training environment, the evaluator, the bag replay and the ROS node run this same code; so do
the studies and benchmarks that step it (training/rank.py, training/lyapunov_fit.py, bench). Every
effort returned is finite, within its limits and within its rate.
"""

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from metactl_ros.config import for_joints
from metactl_ros.control.estimators.choice import make_estimation
from metactl_ros.control.estimators.estimator import Estimate, LoopEstimation
from metactl_ros.control.gain_map import GainMap
from metactl_ros.control.guard import Guard
from metactl_ros.control.guiding import GuidingLaw
from metactl_ros.control.inputs import InputFilter, View
from metactl_ros.control.law import (
    computed_torque,
    effort_box,
    Features,
    holding_torque,
    limit_effort,
    make_features,
    nominal_gains,
    tracking_error,
    TrackingError,
    TrackingState,
)
from metactl_ros.control.lyapunov import LyapunovFunction
from metactl_ros.control.modes import ArmsInputs, Cause, Health, HEALTHY, Mode, Modes
from metactl_ros.control.settings import ControllerSettings
from metactl_ros.control.shield import Enforcement, Reason, Shield, ShieldDecision
from metactl_ros.control.window import ContextWindow, step_observation
from metactl_ros.dynamics.rigid_body import ArmModel, Posture
from metactl_ros.errors import ConfigError
from metactl_ros.signals import (
    ArmState,
    Array,
    dot,
    each_arm,
    Flags,
    is_all,
    period_ns_of,
    Reference,
    seconds,
    where_arms,
)

COVERAGE_S = 5.0
SKIPPED_SHARE = 5
"""One in so many ticks of the warm-up passes before a bank of observers looks at the arm."""


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
    excess_after_limits: Array
    """The Lyapunov condition re-evaluated on the limited effort, shape (...); met up to 0."""
    estimate: Estimate | None
    """Where the arm is and what the model lacks, if there is an estimator. Only NOMINAL counts on
    it."""
    action: Array
    """What was weighed, shape (..., m): the policy's, or low gains where no hypothesis fits."""

    @property
    def estimate_nm(self) -> Array | None:
        """What the model is estimated to lack, shape (..., n), if there is an estimator."""
        return None if self.estimate is None else self.estimate.d_nm


class _Situation(NamedTuple):
    """Where the law acts: at the measured state or at an estimated one."""

    at: TrackingState
    error: TrackingError
    posture: Posture
    estimate_nm: Array | None
    """d^, shape (..., n), if the law counts on one."""


class _Judgement(NamedTuple):
    """A proposal, weighed in one situation."""

    here: _Situation
    features: Features
    decision: ShieldDecision


class ControlLoop:
    """The state of one controller, or of a batch of them, between two steps."""

    def __init__(
        self, arm: ArmModel, settings: ControllerSettings, enforcement: Enforcement = 'enforce'
    ) -> None:
        limits, num_joints = arm.limits, len(arm.joint_names)
        self._settings = settings
        self._arm, self._body = arm, arm.body()
        self._layout = settings.gain_box.layout
        self._period_ns = period_ns_of(settings.law.rate_hz)
        self._inputs = InputFilter(arm, self._body, settings.law, settings.guiding)
        self._guiding: GuidingLaw | None = None
        if settings.guiding is not None:
            self._guiding = GuidingLaw(settings.guiding, arm, seconds(self._period_ns))
        self._payload_kg: Array | float = 0.0
        self._largest_nm = np.array(limits.effort_nm)
        self._rate_nmps = np.array(limits.effort_rate_nmps)
        self._window = ContextWindow(settings.context.num_rows, self._period_ns)
        self.gain_map = GainMap(settings.gain_box, num_joints)
        inertias = arm.sample_inertias(settings.payload_max_kg)
        self.lyapunov = LyapunovFunction(settings.lyapunov, settings.law, inertias)
        self._nominal = nominal_gains(settings.law, self._layout, num_joints)
        self._nominal_proposal = self.gain_map.action(self._nominal)
        if np.abs(self._nominal_proposal).max() > 1.0:
            raise ConfigError(
                f'GainBox: must hold the nominal gains {self._nominal.tolist()}, which every '
                f'fallback needs; found {self.gain_map.lower.tolist()} to '
                f'{self.gain_map.upper.tolist()}.'
            )
        # Least K_d and Lambda, and K_p and feed-forward as the nominal gains have them.
        self._low_proposal = self._nominal_proposal.copy()
        self._low_proposal[: 2 * num_joints] = -1.0
        self._shield = Shield(self.gain_map, self._nominal, enforcement)
        self._estimation: LoopEstimation | None = None
        num_scheduled = 0
        if settings.estimator is not None:
            self._estimation = make_estimation(
                settings.estimator,
                arm,
                settings.law,
                self._period_ns,
                num_skipped=settings.modes.warmup_ticks // SKIPPED_SHARE,
            )
            num_scheduled = self._estimation.num_scheduled
        self.nominal_action = np.append(self._nominal_proposal, np.zeros(num_scheduled))
        """The nominal gains, and the middle of every range of a schedule, shape (m,)."""
        self.nominal_action.setflags(write=False)
        self._rho_nm = for_joints(settings.lyapunov.rho_nm, num_joints)
        self._counts_coverage = settings.lyapunov.has_margin
        self._coverage_share = seconds(self._period_ns) / COVERAGE_S
        self.coverage: Array = np.ones(())
        """Share of about the last 5 s in which the estimate was within rho, as it is measured one
        period later, shape (...): noise counts against it. 1 without a margin."""
        self._guard = Guard(settings.guard, limits, self._period_ns)
        self._modes = Modes(settings.modes)
        # All of these are of an arm that has not begun; `reset` gives them the shape of a batch.
        self._effort = self._held_q = np.zeros(num_joints)
        self._now_ns = 0
        self._meets_condition: Flags = np.ones((), dtype=bool)
        self._is_clear: Flags = np.ones((), dtype=bool)
        self._all_arms: Flags = np.ones((), dtype=bool)

    @property
    def action_size(self) -> int:
        """How many entries an action has: gains, and the schedule of an estimator behind them."""
        return len(self.nominal_action)

    @property
    def fits(self) -> Flags:
        """Whether the arm does what its model and some delay predict, shape (...).

        Where it does not, low gains take the place of what a policy proposes.
        """
        return self._all_arms if self._estimation is None else self._estimation.fits

    @property
    def doubts(self) -> NDArray[np.int64]:
        """What the guard finds wrong with the last state: a `Cause` per arm, shape (...)."""
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
        shape = state.q_rad.shape[:-1]
        self.resume(self.acting_effort(state, effort_nm))
        self._modes.reset(shape, state.stamp_ns)
        self._held_q = self._inputs.last_q_rad = state.q_rad.copy()
        self._now_ns = state.stamp_ns - self._period_ns
        self._meets_condition = np.ones(shape, dtype=bool)
        self._guard.expect(self._body.at(self._held_q, state.qd_radps.copy()), self._effort)
        return self._effort.copy()

    def acting_effort(self, state: ArmState, effort_nm: Array | None) -> Array:
        """Return what the motors give now: as measured, or gravity's torque if that is unknown."""
        effort = self._body.at(state.q_rad, state.qd_radps).gravity
        if effort_nm is not None:
            effort = where_arms(each_arm(np.isfinite(effort_nm)), effort_nm, effort)
        return np.clip(effort, -self._largest_nm, self._largest_nm)

    def resume(self, effort_nm: Array) -> None:
        """Go on from an effort that is not this loop's last; window and evidence begin anew."""
        self._effort = effort_nm.copy()
        self._guard.reset(effort_nm.shape[:-1])
        self._clear_window()

    def forget_context(self) -> None:
        """Empty the window and warm up anew; effort, time, graver modes and all counts stay."""
        self._modes.warm_up_anew(self._now_ns)
        self._clear_window()

    def _clear_window(self) -> None:
        self._window.clear()
        self._inputs.forget(self._effort.shape[:-1])
        self._is_clear = self._all_arms = np.ones(self._effort.shape[:-1], dtype=bool)
        self.coverage = np.ones(self._effort.shape[:-1])
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
        self._payload_kg = payload_estimate_kg
        extra = None
        view = self._inputs.filtered(state, reference)
        self._guard.see(
            state.stamp_ns,
            view.at,
            state_is_valid=view.state_is_valid,
            follows=view.reference_is_valid & self._modes.follows,
            acts=self._modes.acts,
            effort_nm=effort_nm,
        )
        if self._estimation is not None:
            is_usable = view.state_is_valid & view.reference_is_valid & view.is_within_limits
            self._estimation.observe(
                state.stamp_ns, view.at, is_usable, payload_estimate_kg, effort_nm
            )
            if self._counts_coverage:
                is_within = each_arm(np.abs(self._estimation.missed_nm) <= self._rho_nm)
                self.coverage = self.coverage + self._coverage_share * (is_within - self.coverage)
            extra = self._estimation.features if context.num_extra else None
        row = step_observation(
            state,
            reference,
            payload_estimate_kg,
            context.friction_regime_estimate,
            context.horizon_s,
            extra,
        )
        self._is_clear = self._all_arms
        if not math.isfinite(np.vdot(row, row)):  # one bad number would spoil the window for long
            self._is_clear = each_arm(np.isfinite(row))
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
        expected = (*state.q_rad.shape[:-1], self.action_size)
        if action.shape != expected or not self._modes.has_begun:
            raise ConfigError(
                f'ControlLoop.actuate: expected an action of shape {expected} after a reset, '
                f'found {action.shape}; check the policy, and call reset first.'
            )
        passed_ns = min(max(now_ns - self._now_ns, 0), self._period_ns)
        self._now_ns = now_ns = max(now_ns, self._now_ns)
        view = self._inputs.cached(state, reference)
        num_gains = self.gain_map.size
        proposal, schedule = action[..., :num_gains], action[..., num_gains:]
        estimate: Estimate | None = None
        if self._estimation is not None:
            estimate = self._estimation.estimate(view.at, schedule)
            if not is_all(self._estimation.fits):
                proposal = where_arms(self._estimation.fits, proposal, self._low_proposal)
                action = np.concatenate((proposal, schedule), axis=-1)
        judged = self._judge(proposal, self._situation(view, estimate))
        before = self._modes.values
        self._advance_modes(judged.decision, view, now_ns, health)
        if not self._modes.is_nominal:
            proposal, here = self._safe_inputs(before, proposal, view, estimate)
            judged = self._judge(proposal, here)
        here, gains = judged.here, judged.decision.gains
        hold = holding_torque(here.posture.bias, judged.features, gains)
        law = computed_torque(here.posture, hold, here.at.qdd_desired, judged.features, gains)
        wanted, posture = law, view.posture
        if self._guiding is not None:
            hold, wanted, posture = self._guided(self._guiding, view, hold, law)
        wanted = wanted if self._modes.is_nominal else self._open_loop_effort(wanted, now_ns)
        step = self._limit(hold, law, wanted, judged.decision, passed_ns)._replace(
            estimate=estimate, action=action
        )
        self._guard.expect(posture, self._effort)
        return step

    def _guided(
        self, guiding: GuidingLaw, view: View, hold: Array, law: Array
    ) -> tuple[Array, Array, Posture]:
        """Return hold, effort and posture of an arm that is guided by hand, law's from STOP on."""
        at = view.at
        loaded = self._arm.body(self._payload_kg).at(at.q, at.qd)
        effort = guiding.torque(view.posture, loaded.gravity, at.q, at.qd)
        hold, effort = (
            where_arms(self._modes.follows, *pair)
            for pair in ((loaded.gravity, hold), (effort, law))
        )
        return hold, effort, loaded

    def _situation(self, view: View, estimate: Estimate | None) -> _Situation:
        """Return where the law acts, if it may count on what is estimated."""
        if estimate is None or not self._layout.counts_on_estimate:
            return _Situation(view.at, view.error, view.posture, None)
        if estimate.q is view.at.q:  # only d is estimated
            return _Situation(view.at, view.error, view.posture, estimate.d_nm)
        at = view.at._replace(q=estimate.q, qd=estimate.qd)
        posture = self._arm.body(estimate.payload_kg).at(at.q, at.qd)
        return _Situation(at, tracking_error(self._settings.law, at), posture, estimate.d_nm)

    def _judge(self, proposal: Array, here: _Situation) -> _Judgement:
        """Return what the shield makes of a proposal, shape (..., m)."""
        features = make_features(
            self._settings.law, self._layout, here.error, here.at.qd_desired, here.estimate_nm
        )
        half_space = self.lyapunov.half_space(here.posture, here.error, features, here.estimate_nm)
        return _Judgement(here, features, self._shield.admit(proposal, half_space))

    def _advance_modes(
        self, decision: ShieldDecision, view: View, now_ns: int, health: Health
    ) -> None:
        settings, guard, at = self._settings.modes, self._guard, view.at
        is_answered = (decision.reason <= Reason.PROJECTED) & self._is_clear
        is_certified = decision.half_space.excess(self._nominal) <= settings.violation_tolerance
        is_certified = is_certified & self._meets_condition
        is_well = (
            view.state_is_valid
            & view.reference_is_valid
            & is_answered
            & view.is_within_limits
            & is_certified
        )
        if self._modes.is_calm and guard.is_calm and health == HEALTHY and is_all(is_well):
            return  # nothing to count and good inputs: NOMINAL stays as it is
        inputs = ArmsInputs(
            state_is_fresh=view.state_is_valid & health.state_is_fresh,
            reference_is_valid=view.reference_is_valid & health.reference_is_valid,
            policy_is_valid=is_answered & health.policy_is_on_time,
            meets_condition=is_certified,
            is_within_limits=view.is_within_limits,
            is_at_rest=each_arm(np.abs(at.qd) <= settings.rest_velocity_radps),
            is_stopping=self._is_stopping(at),
            can_move=guard.can_move,
            error=np.where(health.error == Cause.NONE, guard.error, int(health.error)),
            joint=guard.joint,
            reset_requested=health.reset_requested,
        )
        self._modes.advance(inputs, now_ns)

    def _is_stopping(self, at: TrackingState) -> Flags:
        """Return whether an arm in STOP is slow and near the posture that is held, shape (...)."""
        is_slow = np.abs(at.qd) <= self._settings.modes.stop_velocity_radps
        is_near = np.abs(at.q - self._held_q) <= self._settings.guard.tracking_error_rad
        return each_arm(is_slow & is_near)

    def _safe_inputs(
        self,
        before: NDArray[np.int64],
        proposal: Array,
        view: View,
        estimate: Estimate | None,
    ) -> tuple[Array, _Situation]:
        """Return nominal gains for arms that are not NOMINAL, and for those in STOP a hold.

        What is held is the posture in which STOP was entered. Where sensors or arm are in doubt,
        so is what was estimated from them: there the measured state counts, and no estimate.
        """
        modes, at = self._modes.values, view.at
        is_nominal, stops, zero = modes == Mode.NOMINAL, modes == Mode.STOP, np.zeros(at.q.shape)
        self._held_q = where_arms(before == Mode.STOP, self._held_q, at.q)
        held = at._replace(
            q_desired=where_arms(stops, self._held_q, at.q_desired),
            qd_desired=where_arms(stops, zero, at.qd_desired),
            qdd_desired=where_arms(stops, zero, at.qdd_desired),
        )
        error = tracking_error(self._settings.law, held)
        here = self._situation(view._replace(at=held, error=error), self._kept(estimate, view))
        return where_arms(is_nominal, proposal, self._nominal_proposal), here

    def _kept(self, estimate: Estimate | None, view: View) -> Estimate | None:
        """Return the estimate of arms in NOMINAL, and of others what is measured."""
        if estimate is None:
            return None
        is_nominal, at = self._modes.values == Mode.NOMINAL, view.at
        # What is not finite stays so, and ends in FAULT.
        d_nm = estimate.d_nm * is_nominal[..., np.newaxis]
        if estimate.q is at.q:
            return estimate._replace(d_nm=d_nm)
        return Estimate(
            where_arms(is_nominal, estimate.q, at.q),
            where_arms(is_nominal, estimate.qd, at.qd),
            d_nm,
            np.where(is_nominal, estimate.payload_kg, 0.0),
        )

    def _open_loop_effort(self, wanted_nm: Array, now_ns: int) -> Array:
        """Return fading gravity torque for arms in BLIND, zero for those in FAULT."""
        modes, ramp_s = self._modes.values, self._settings.modes.blind_ramp_s
        blind_s = self._modes.since_s(now_ns)
        share = np.clip(1.0 - blind_s / ramp_s, 0.0, 1.0) if ramp_s else np.zeros(blind_s.shape)
        last_q = self._inputs.last_q_rad
        gravity = self._body.at(last_q, np.zeros(last_q.shape)).gravity
        seen = where_arms(modes == Mode.BLIND, share[..., np.newaxis] * gravity, wanted_nm)
        return where_arms(modes == Mode.FAULT, np.zeros(seen.shape), seen)

    def _limit(
        self, hold: Array, law: Array, wanted: Array, decision: ShieldDecision, passed_ns: int
    ) -> ControlStep:
        """Return the step with an effort that is finite, within size and within rate."""
        is_finite = np.isfinite(wanted)
        if not is_all(is_finite):
            is_sound = each_arm(is_finite)
            wanted = where_arms(is_sound, wanted, np.zeros(wanted.shape))
            hold = where_arms(is_sound, hold, np.zeros(wanted.shape))
            self._modes.fail(~is_sound, self._now_ns)
        modes, acts = self._modes.values, self._modes.acts
        reach = self._rate_nmps * seconds(passed_ns)
        box = effort_box(self._effort, self._largest_nm, reach)
        effort = limit_effort(hold, wanted, *box, is_commanded=acts)
        self._effort = effort.copy()  # the rate is limited from it, whatever is done to the step's
        missing = law - self._effort
        if self._estimation is not None:
            is_free = each_arm(missing == 0.0) & (modes == Mode.NOMINAL)
            self._estimation.record_effort(self._effort, is_free, acts)
        excess = decision.excess + dot(decision.half_space.Minv_w, missing)
        # What unshielded gains break, in a study that only counts, is not the limits' doing.
        is_met = excess <= self._settings.modes.violation_tolerance
        self._meets_condition = is_met | (excess <= decision.excess) | ~acts
        return ControlStep(
            effort_nm=effort,
            wanted_nm=wanted,
            modes=modes,
            causes=self._modes.causes,
            joints=self._modes.joints,
            decision=decision,
            excess_after_limits=excess,
            estimate=None,
            action=self.nominal_action,
        )
