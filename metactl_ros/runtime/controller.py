# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""One tick of the node, without ROS: states in, a checked effort out.

    driver.begin(state, effort)                   the first good state
    tick = driver.tick(new_states, now_ns, ...)   every period, whether or not a state came
    driver.resume(effort)                         before it, if nobody ticked for too long
    driver.rehearse(budget_ns)                    shortly before, so that the policy is quick
    tick = driver.fade(now_ns)                    on the way out: the ladder of a blind arm

The control loop, the shield and the modes are those of the simulations (`control/loop.py`); the
driver adds what only a robot has: several states at once or none, a reference that may be missing,
a policy that may be late, and requests of an operator.

There are two times. States, and the reference they are compared with, have that of the gate
(`state_gate.py`), which follows the robot's stamps. Modes, rate limits and fading torques have the
loop's, which begins as that of the states and from there on is the controller's own steady clock:
whatever stamps do, a second of FAULT is a second. In simulated time only the first exists.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
import time
from typing import NamedTuple

import numpy as np

from metactl_ros.control.loop import ControlLoop, ControlStep
from metactl_ros.control.modes import Cause, Health, Mode
from metactl_ros.control.settings import ControllerSettings
from metactl_ros.dynamics.two_link import Arm
from metactl_ros.motion.reference import Hold
from metactl_ros.runtime.reference_source import ReferenceSource
from metactl_ros.signals import ArmState, Array, Policy, Reference


class Tick(NamedTuple):
    """Everything one tick saw and decided."""

    now_ns: int
    """On the timeline of the states."""
    loop_ns: int
    """What the loop was told: the steady clock since it was reset; it never goes back."""
    was_restarted: bool
    """Whether it is the first, or the context was cleared before it."""
    was_resumed: bool
    """Whether the loop went on after a pause, from an effort that was not its last."""
    seen: Sequence[tuple[ArmState, Reference]]
    """What entered the window, oldest first; nothing if no state came."""
    effort_before_nm: Array
    """From which the rate was limited, shape (n,)."""
    state: ArmState
    """The one acted upon."""
    reference: Reference
    payload_kg: float
    """The estimate."""
    action: Array
    """What the policy proposed, shape (m,)."""
    health: Health
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
        """Which joint the cause is about; -1 if none in particular."""
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


def with_full_window(controller: ControllerSettings) -> ControllerSettings:
    """Return settings whose warm-up lasts at least until the window holds only measured rows."""
    ticks = max(controller.modes.warmup_ticks, controller.context.num_rows)
    return replace(controller, modes=replace(controller.modes, warmup_ticks=ticks))


def propose(policy: Policy, window: Array, size: int) -> Array | None:
    """Return the proposal of a policy for a window, shape (m,), or None if it failed."""
    try:
        action = np.asarray(policy(window), dtype=np.float64)
    except Exception:  # whatever a runtime raises: the arm goes on with nominal gains
        return None
    return action if action.shape == (size,) else None


def without_proposal(loop: ControlLoop) -> Array:
    """Return the action of a policy that failed: NaN, which the shield replaces."""
    return np.full_like(loop.nominal_action, np.nan)


class Driver:
    """A control loop with a policy, a reference and an operator."""

    def __init__(
        self,
        arm: Arm,
        controller: ControllerSettings,
        policy: Policy | None,
        reference: ReferenceSource,
        requests: Requests,
        inference_budget_ns: int,
    ) -> None:
        self.loop = ControlLoop(arm, with_full_window(controller))
        self._policy = policy
        self.reference = reference
        self.requests = requests
        self._inference_budget_ns = inference_budget_ns
        self._state: ArmState | None = None
        self._window: Array | None = None
        self._now_ns = 0
        self._stood_ns = 0
        self._origin_ns: int | None = None
        self._action = self.loop.nominal_action
        self._inference_ns = self._last_inference_ns = 0
        self._seen: list[tuple[ArmState, Reference]] = []
        self._payload_kg = requests.payload_kg
        self._was_restarted = self._was_resumed = self._was_held = False
        self._effort_nm = np.zeros(0)
        self.num_policy_errors = 0
        self.num_ticks = 0
        self.num_stale = 0
        """Ticks without a fresh state."""
        self.num_moved = 0
        """Ticks in which the shield moved or replaced the proposal."""
        self.inference_ns = np.zeros(8192, dtype=np.int64)
        self.last: Tick | None = None

    def begin(self, state: ArmState, effort_nm: Array | None) -> Array:
        """Begin at a state; return the effort, shape (n,), that the first command starts from."""
        self.last = None
        return self._restart(state, effort_nm)

    def tick(
        self,
        states: Sequence[ArmState],
        now_ns: int,
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
            error: What failed that only a reset forgives.
            steady_ns: Now, on the steady clock; None in simulated time.
        """
        assert self._state is not None
        if self.requests.clear_context and self._may_clear():
            self.requests.clear_context = False
            if self.last is not None:  # else there is nothing to clear
                self.loop.forget_context()
                self._action, self._was_restarted = self.loop.nominal_action, True
        self._inference_ns, self._seen = 0, []
        self._payload_kg = self.requests.payload_kg  # once: it may change at any time
        is_enabled = self.requests.is_enabled
        if self._was_let_go():
            states = states[-1:]
        if (states or is_fresh) and self._was_left(is_enabled):
            self.reference.rejoin(states[-1] if states else self._state)
        # Asked once: a new trajectory is for the next tick.
        reference = self._look(states) if states else self.reference.at(now_ns)
        state = self._state
        reset_fault = self.requests.reset_fault
        if reset_fault:  # one that comes from now on is for the next tick
            self.requests.reset_fault = False
        health = Health(
            state_is_fresh=is_fresh,
            reference_is_valid=reference is not None and is_enabled,
            policy_is_on_time=self._inference_ns <= self._inference_budget_ns,
            error=error,
            reset_requested=reset_fault,
        )
        self._was_held = not is_enabled
        loop_ns = self._loop_ns(now_ns, steady_ns)
        return self._act(state, reference or self._hold(state), now_ns, loop_ns, health)

    def acting_effort(self, state: ArmState, effort_nm: Array | None) -> Array | None:
        """Return what the motors give after a pause, shape (n,), or None if that is no matter.

        A robot to which nobody speaks brakes, or keeps the last effort: the measured one tells.
        If it says none, gravity's torque is what a braked arm needs. BLIND and FAULT go on from
        their own effort: it fades, and nothing wakes it.
        """
        return None if self._was_let_go() else self.loop.acting_effort(state, effort_nm)

    def resume(self, effort_nm: Array) -> None:
        """Go on after a pause, limiting the rate from an effort, shape (n,); modes stay."""
        self._effort_nm, self._was_resumed = effort_nm, True
        self.loop.resume(effort_nm)

    def rehearse(self, budget_ns: int) -> None:
        """Ask the policy for nothing: what it needs is then in the caches when a tick asks it.

        One that took longer than the budget when it was last asked is not: a tick would wait.
        """
        is_quick = 0 < self._last_inference_ns <= budget_ns
        if self._policy is not None and self._window is not None and is_quick:
            propose(self._policy, self._window, self.loop.gain_map.size)

    def fade(self, now_ns: int, steady_ns: int | None = None) -> Tick:
        """Return a tick of an arm that is being left alone: gravity torque, fading to zero."""
        assert self._state is not None
        self._inference_ns, self._seen = 0, []
        health = Health(state_is_fresh=False)
        loop_ns = self._loop_ns(now_ns, steady_ns)
        return self._act(self._state, self._hold(self._state), now_ns, loop_ns, health)

    def _restart(self, state: ArmState, effort_nm: Array | None) -> Array:
        self.reference.begin(state)
        self._state, self._action = state, self.loop.nominal_action
        self._now_ns, self._stood_ns, self._origin_ns = state.stamp_ns, 0, None
        self._was_restarted = True
        self._effort_nm = self.loop.reset(state, effort_nm)
        return self._effort_nm

    def _look(self, states: Sequence[ArmState]) -> Reference | None:
        """Let states enter the window, ask the policy, and return what is wanted at the last."""
        wanted: Reference | None = None
        for state in states:
            wanted = self.reference.at(state.stamp_ns)
            reference = wanted or self._hold(state)
            self._window = self.loop.observe(state, reference, self._payload_kg)
            self._seen.append((state, reference))
        self._state = states[-1]
        if self._policy is not None and self._window is not None:
            begin_ns = time.perf_counter_ns()
            action = propose(self._policy, self._window, self.loop.gain_map.size)
            self._inference_ns = self._last_inference_ns = time.perf_counter_ns() - begin_ns
            self.num_policy_errors += action is None
            self._action = without_proposal(self.loop) if action is None else action
        return wanted

    def _loop_ns(self, now_ns: int, steady_ns: int | None) -> int:
        """Return what the time is to the loop."""
        if steady_ns is None:
            # A simulator that pauses stands still while the steady clock runs. Later its stamps
            # are behind, but the loop must not wait for them: to it, time only goes on.
            self._stood_ns += max(self._now_ns - now_ns, 0)
            self._now_ns = now_ns
            return now_ns + self._stood_ns
        if self._origin_ns is None:
            self._origin_ns = steady_ns - now_ns
        return steady_ns - self._origin_ns

    def _act(
        self,
        state: ArmState,
        reference: Reference,
        now_ns: int,
        loop_ns: int,
        health: Health,
    ) -> Tick:
        step = self.loop.actuate(self._action, state, reference, loop_ns, health)
        self.inference_ns[self.num_ticks % len(self.inference_ns)] = self._inference_ns
        self.num_ticks += 1
        self.num_stale += not health.state_is_fresh
        self.num_moved += bool(step.decision.was_moved)
        self.last = Tick(
            now_ns,
            loop_ns,
            self._was_restarted,
            self._was_resumed,
            self._seen,
            self._effort_nm,
            state,
            reference,
            self._payload_kg,
            self._action,
            health,
            step,
            self._inference_ns,
        )
        self._was_restarted = self._was_resumed = False
        self._effort_nm = step.effort_nm
        return self.last

    def _was_left(self, is_enabled: bool) -> bool:
        """Return whether the reference has gone on while the arm did not follow it."""
        if self.last is None or self.last.mode < Mode.STOP:
            return False
        # In STOP without a reference there is none to join: a new one begins where the arm is.
        was_there = self.last.mode >= Mode.BLIND or self.last.health.reference_is_valid
        return was_there or (self._was_held and is_enabled)

    def _was_let_go(self) -> bool:
        """Return whether the arm was in BLIND or FAULT."""
        return self.last is not None and self.last.mode >= Mode.BLIND

    def _may_clear(self) -> bool:
        """Clearing the context forgets no latched fault, no stop, and wakes no fading torque."""
        return self.last is None or self.last.mode < Mode.STOP

    @staticmethod
    def _hold(state: ArmState) -> Reference:
        return Hold(np.asarray(state.q_rad)).at(0.0)
