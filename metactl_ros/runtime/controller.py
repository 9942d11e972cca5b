# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""One tick of the controller, without ROS: states in, a checked effort out.

    controller.begin(state, effort)        the first good state
    tick = controller.tick(inputs)         all that a tick depends on is in its inputs

`Controller` is the control loop (`control/loop.py`) with its policy; a replay gives it the inputs
of a bag. `LiveController` makes the inputs on a robot: from several states at once or none, a
reference that may be missing, and requests of an operator.

    controller.begin(state, effort)                   the first good state
    tick = controller.drive(new_states, now_ns, ...)  every period, whether or not a state came
    controller.resume(effort)                         before it, after a pause
    controller.warm_cache(budget_ns)                  shortly before it
    tick = controller.fade(now_ns)                    at the end: the torque of a blind arm

There are two times. States, and the reference they are compared with, have that of the gate
(`StateGate`), which follows the robot's stamps. Modes, rate limits and fading torques have the
loop's, which begins as that of the states and from there on is the controller's own steady clock:
whatever stamps do, a second of FAULT is a second. In simulated time only the first exists.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
import math
import time
from typing import NamedTuple

import numpy as np

from metactl_ros.control.loop import ControlLoop, ControlStep
from metactl_ros.control.modes import Cause, Health, Mode
from metactl_ros.control.settings import ControllerSettings
from metactl_ros.dynamics.rigid_body import ArmModel
from metactl_ros.motion.reference import Hold
from metactl_ros.runtime.deadlines import TICKS_KEPT
from metactl_ros.runtime.joint_states import MessageError
from metactl_ros.runtime.reference_source import ReferenceSource, TrajectorySource, unpack
from metactl_ros.signals import ArmState, Array, Policy, Reference


class TickInputs(NamedTuple):
    """All that a tick depends on; a bag holds it, so that the tick can be computed again."""

    now_ns: int
    """On the timeline of the states."""
    loop_ns: int
    """On the clock of the loop: steady since it was reset; it never goes back."""
    seen: Sequence[tuple[ArmState, Reference]]
    """What enters the window, oldest first; nothing if no state came."""
    state: ArmState
    """The one acted upon: the last that was seen."""
    reference: Reference
    payload_kg: float
    """The estimate."""
    health: Health
    """What is known about the inputs; a policy over its budget is late as well."""
    acted_nm: Sequence[Array] = ()
    """Where another controller drove, what acted before each of `seen`, shape (n,) each."""


class Tick(NamedTuple):
    """Everything one tick saw and decided; fields that `TickInputs` has as well are as there."""

    now_ns: int
    loop_ns: int
    was_restarted: bool
    """Whether it is the first, or the context was cleared before it."""
    was_resumed: bool
    """Whether the loop went on after a pause, from an effort that was not its last."""
    seen: Sequence[tuple[ArmState, Reference]]
    effort_before_nm: Array
    """From which the rate was limited, shape (n,)."""
    state: ArmState
    reference: Reference
    payload_kg: float
    action: Array
    """What the policy proposed, or low gains where no hypothesis fits, shape (m,)."""
    health: Health
    """That of the inputs, and whether the policy was on time."""
    step: ControlStep
    inference_ns: int
    """How long the policy took; zero if it was not asked."""

    @property
    def mode(self) -> Mode:
        """What the controller was doing."""
        return Mode(int(self.step.modes))

    @property
    def cause(self) -> Cause:
        """Why it was doing that."""
        return Cause(int(self.step.causes))

    @property
    def joint(self) -> int:
        """Which joint the cause is about; `NO_JOINT` if none in particular."""
        return int(self.step.joints)


@dataclass(slots=True)
class Requests:
    """What an operator may ask for while the loop runs; read once per tick."""

    payload_kg: float
    """The estimate p_hat; it stays until changed."""
    is_enabled: bool = True
    """False holds the arm where it is."""
    reset_fault: bool = False
    clear_context: bool = False


def with_full_window(settings: ControllerSettings) -> ControllerSettings:
    """Return settings whose warm-up lasts at least until the window holds only measured rows."""
    ticks = max(settings.modes.warmup_ticks, settings.context.num_rows)
    return replace(settings, modes=replace(settings.modes, warmup_ticks=ticks))


def propose(policy: Policy, window: Array, size: int) -> Array | None:
    """Return the proposal of a policy for a window, shape (m,), or None if it failed."""
    try:
        action = np.asarray(policy(window), dtype=np.float64)
    except Exception:  # whatever a runtime raises: the arm goes on with nominal gains
        return None
    return action if action.shape == (size,) else None


class Controller:
    """A control loop with its policy."""

    def __init__(
        self,
        arm: ArmModel,
        settings: ControllerSettings,
        policy: Policy | None,
        inference_budget_ns: float = math.inf,
    ) -> None:
        """Make a controller; it begins with `begin`.

        Args:
            arm: The model of the robot.
            settings: Of the loop; the warm-up is made to last for a full window.
            policy: None for the nominal gains.
            inference_budget_ns: A policy that takes longer is late: FALLBACK.
        """
        self.loop = ControlLoop(arm, with_full_window(settings))
        self._policy, self._inference_budget_ns = policy, inference_budget_ns
        self._window: Array | None = None
        self._action = self.loop.nominal_action
        self._last_inference_ns = 0
        self._was_restarted = self._was_resumed = False
        self._effort_nm = np.zeros(0)
        self.num_policy_errors = 0
        self.num_ticks = 0
        self.num_stale = 0
        """Ticks without a fresh state."""
        self.num_moved = 0
        """Ticks in which the shield moved or replaced the proposal."""
        self.inference_ns = np.zeros(TICKS_KEPT, dtype=np.int64)
        self.last: Tick | None = None

    def begin(self, state: ArmState, effort_nm: Array | None) -> Array:
        """Begin at a state; return the effort, shape (n,), that the first command starts from."""
        self.last, self._was_restarted = None, True
        self._action = self.loop.nominal_action
        self._effort_nm = self.loop.reset(state, effort_nm)
        return self._effort_nm

    def clear_context(self) -> None:
        """Empty the window and warm up again; modes, effort and counts stay."""
        self.loop.forget_context()
        self._action, self._was_restarted = self.loop.nominal_action, True

    def acting_effort(self, state: ArmState, effort_nm: Array | None) -> Array | None:
        """Return what the motors give after a pause, shape (n,); None in BLIND and FAULT.

        A robot that gets no commands brakes, or keeps the last effort: the measured one shows it.
        Where none is measured, gravity's torque is what a braked arm needs. BLIND and FAULT go on
        from the last commanded effort, which fades to zero whatever the motors give.
        """
        return None if self._was_blind_or_faulted() else self.loop.acting_effort(state, effort_nm)

    def resume(self, effort_nm: Array) -> None:
        """Go on after a pause, limiting the rate from an effort, shape (n,); modes stay."""
        self._effort_nm, self._was_resumed = effort_nm, True
        self.loop.resume(effort_nm)

    def warm_cache(self, budget_ns: int) -> None:
        """Call the policy on the last window and drop its answer, so that a tick finds it cached.

        One that took longer than the budget when it was last asked is not: a tick would wait.
        """
        is_quick = 0 < self._last_inference_ns <= budget_ns
        if self._policy is not None and self._window is not None and is_quick:
            propose(self._policy, self._window, self.loop.action_size)

    def tick(self, inputs: TickInputs) -> Tick:
        """Return what to do, given all there is to know."""
        inference_ns = self._observe(inputs)
        health = inputs.health
        if inference_ns > self._inference_budget_ns:
            health = health._replace(policy_is_on_time=False)
        step = self.loop.actuate(
            self._action, inputs.state, inputs.reference, inputs.loop_ns, health
        )
        self.inference_ns[self.num_ticks % len(self.inference_ns)] = inference_ns
        self.num_ticks += 1
        self.num_stale += not health.state_is_fresh
        self.num_moved += bool(step.decision.was_moved)
        self.last = Tick(
            now_ns=inputs.now_ns,
            loop_ns=inputs.loop_ns,
            was_restarted=self._was_restarted,
            was_resumed=self._was_resumed,
            seen=inputs.seen,
            effort_before_nm=self._effort_nm,
            state=inputs.state,
            reference=inputs.reference,
            payload_kg=inputs.payload_kg,
            action=step.action,
            health=health,
            step=step,
            inference_ns=inference_ns,
        )
        self._was_restarted = self._was_resumed = False
        self._effort_nm = step.effort_nm
        return self.last

    def _observe(self, inputs: TickInputs) -> int:
        """Let states enter the window and ask the policy; return how long it took, ns."""
        if not inputs.seen:
            return 0
        acted_nm: Sequence[Array | None] = inputs.acted_nm or [None] * len(inputs.seen)
        for (state, reference), effort_nm in zip(inputs.seen, acted_nm, strict=True):
            self._window = self.loop.observe(state, reference, inputs.payload_kg, effort_nm)
        if self._policy is None or self._window is None:
            return 0
        begin_ns = time.perf_counter_ns()
        action = propose(self._policy, self._window, self.loop.action_size)
        self._last_inference_ns = time.perf_counter_ns() - begin_ns
        self.num_policy_errors += action is None
        # NaN where the policy failed: the shield replaces it.
        self._action = np.full_like(self._action, np.nan) if action is None else action
        return self._last_inference_ns

    def _was_blind_or_faulted(self) -> bool:
        """Return whether the arm was in BLIND or FAULT."""
        return self.last is not None and self.last.mode >= Mode.BLIND


class LoopClock:
    """The time of the loop: it begins as that of the states, and from there on never goes back."""

    def __init__(self, begin_ns: int) -> None:
        self._now_ns = begin_ns
        self._stood_ns = 0
        self._origin_ns: int | None = None

    def loop_ns(self, now_ns: int, steady_ns: int | None) -> int:
        """Return the time of the loop, ns.

        Args:
            now_ns: Now, on the timeline of the states.
            steady_ns: Now, on the steady clock; None in simulated time.
        """
        if steady_ns is None:
            # A simulator that pauses stands still while the steady clock runs. Later its stamps
            # are behind, but the loop must not wait for them: to it, time only goes on.
            self._stood_ns += max(self._now_ns - now_ns, 0)
            self._now_ns = now_ns
            return now_ns + self._stood_ns
        if self._origin_ns is None:
            self._origin_ns = steady_ns - now_ns
        return steady_ns - self._origin_ns


class LiveController(Controller):
    """A controller with a reference, an operator and clocks."""

    def __init__(
        self,
        arm: ArmModel,
        settings: ControllerSettings,
        policy: Policy | None,
        reference: ReferenceSource | None,
        requests: Requests,
        inference_budget_ns: int,
    ) -> None:
        """Make a `Controller` that follows a reference; requests are read once per tick.

        Without a reference the arm is guided by hand: it is wanted where it is.
        """
        super().__init__(arm, settings, policy, inference_budget_ns)
        self.reference, self.requests = reference, requests
        self._state: ArmState | None = None
        self._clock = LoopClock(0)
        self._payload_kg = requests.payload_kg
        self._was_held = False

    def begin(self, state: ArmState, effort_nm: Array | None) -> Array:
        """Begin at a state; return the effort, shape (n,), that the first command starts from."""
        if self.reference is not None:
            self.reference.begin(state)
        self._state, self._clock = state, LoopClock(state.stamp_ns)
        return super().begin(state, effort_nm)

    def drive(
        self,
        states: Sequence[ArmState],
        now_ns: int,
        *,
        is_fresh: bool,
        error: Cause = Cause.NONE,
        steady_ns: int | None = None,
    ) -> Tick:
        """Take what came since the last tick and return what to do.

        Args:
            states: New ones, oldest first; all enter the window, the last is acted upon. After
                BLIND and FAULT only the last counts: what came before led nowhere.
            now_ns: Now, on the timeline of the states.
            is_fresh: Whether the newest state is recent enough.
            error: A latched error, which only a fault reset clears.
            steady_ns: Now, on the steady clock; None in simulated time.
        """
        assert self._state is not None
        if self.requests.clear_context and self._may_clear():
            self.requests.clear_context = False
            if self.last is not None:  # else there is nothing to clear
                self.clear_context()
        self._payload_kg = self.requests.payload_kg  # once: it may change at any time
        is_enabled = self.requests.is_enabled
        if self._was_blind_or_faulted():
            states = states[-1:]
        source = self.reference
        if source and (states or is_fresh) and self._must_rejoin(is_enabled=is_enabled):
            source.rejoin(states[-1] if states else self._state)
        # Asked once: a new trajectory is for the next tick.
        stamps_ns = [state.stamp_ns for state in states] or [now_ns]
        wanted = [source.at(stamp_ns) if source else None for stamp_ns in stamps_ns]
        self._state = states[-1] if states else self._state
        reset_fault = self.requests.reset_fault
        if reset_fault:  # one that comes from now on is for the next tick
            self.requests.reset_fault = False
        self._was_held = not is_enabled
        health = Health(
            state_is_fresh=is_fresh,
            reference_is_valid=(source is None or wanted[-1] is not None) and is_enabled,
            error=error,
            reset_requested=reset_fault,
        )
        seen = [
            (state, reference or _hold(state))
            for state, reference in zip(states or [self._state], wanted, strict=True)
        ]
        return self._tick(seen if states else [], seen[-1][1], now_ns, steady_ns, health)

    def follow(self, data: bytes, ros_now_ns: int) -> None:
        """Follow a trajectory from shortly after the last tick on.

        Args:
            data: The bytes of a trajectory_msgs/JointTrajectory.
            ros_now_ns: Now, on the clock of the trajectory's stamp.

        Raises:
            MessageError: If it cannot be followed, or the arm follows nothing now.
        """
        if self.reference is None:
            raise MessageError(
                'trajectory: expected an arm that follows, found one that is guided by hand; '
                'configure another controller than gravity_compensation, and send it again.'
            )
        assert isinstance(self.reference, TrajectorySource)
        trajectory, last = unpack(data), self.last
        if last is not None and last.mode >= Mode.STOP:
            raise MessageError(
                f'trajectory: expected an arm that follows, found it in {last.mode.name} '
                f'({last.cause.name}); send it again once that is over.'
            )
        self.reference.accept(trajectory, 0 if last is None else last.now_ns, ros_now_ns)

    def fade(self, now_ns: int, steady_ns: int | None = None) -> Tick:
        """Return a tick of an arm that is being left alone: gravity torque, fading to zero."""
        assert self._state is not None
        health = Health(state_is_fresh=False)
        return self._tick([], _hold(self._state), now_ns, steady_ns, health)

    def _tick(
        self,
        seen: Sequence[tuple[ArmState, Reference]],
        reference: Reference,
        now_ns: int,
        steady_ns: int | None,
        health: Health,
    ) -> Tick:
        assert self._state is not None
        return self.tick(
            TickInputs(
                now_ns=now_ns,
                loop_ns=self._clock.loop_ns(now_ns, steady_ns),
                seen=seen,
                state=self._state,
                reference=reference,
                payload_kg=self._payload_kg,
                health=health,
            )
        )

    def _must_rejoin(self, *, is_enabled: bool) -> bool:
        """Return whether the reference has gone on while the arm did not follow it."""
        if self.last is None or self.last.mode < Mode.STOP:
            return False
        # In STOP without a reference there is none to join: a new one begins where the arm is.
        was_there = self.last.mode >= Mode.BLIND or self.last.health.reference_is_valid
        return was_there or (self._was_held and is_enabled)

    def _may_clear(self) -> bool:
        """Clearing the context forgets no latched fault, no stop, and wakes no fading torque."""
        return self.last is None or self.last.mode < Mode.STOP


def _hold(state: ArmState) -> Reference:
    return Hold(np.asarray(state.q_rad)).at(0.0)
