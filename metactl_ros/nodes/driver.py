# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""One tick of the node, without ROS: states in, a checked effort out.

    driver.begin(state, effort)                   the first good state
    tick = driver.tick(new_states, now_ns, ...)   every period, whether or not a state came
    driver.rehearse(budget_ns)                    shortly before, so that the policy is quick
    tick = driver.fade(now_ns)                    on the way out: the ladder of a blind arm

The control loop, the shield and the modes are those of the simulations (`control/loop.py`); the
driver adds what only a robot has: several states at once or none, a reference that may be missing,
a policy that may be late, and requests of an operator.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
import time
from typing import NamedTuple

import numpy as np

from metactl_ros.arm import Arm
from metactl_ros.control.controller_settings import ControllerSettings
from metactl_ros.control.loop import ControlLoop, ControlStep, Health
from metactl_ros.control.modes import Mode
from metactl_ros.evaluation.rollout import Policy
from metactl_ros.nodes.reference_source import ReferenceSource
from metactl_ros.reference import Hold
from metactl_ros.signals import ArmState, Array, Reference


class Tick(NamedTuple):
    """Everything one tick saw and decided."""

    now_ns: int
    """On the timeline of the states."""
    loop_ns: int
    """The same without steps back: what the loop was told."""
    was_restarted: bool
    """Whether the loop was reset before it: at the first tick, or because it was asked for."""
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
        self._action = self.loop.nominal_action
        self._inference_ns = self._last_inference_ns = 0
        self._seen: list[tuple[ArmState, Reference]] = []
        self._payload_kg = requests.payload_kg
        self._was_restarted = False
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
        self, states: Sequence[ArmState], now_ns: int, is_fresh: bool, has_error: bool = False
    ) -> Tick:
        """Take what came since the last tick and return what to do.

        Args:
            states: New ones, oldest first; all enter the window, the last is acted upon.
            now_ns: Now, on the timeline of the states.
            is_fresh: Whether the newest state is recent enough.
            has_error: Whether something failed that only a reset forgives.
        """
        assert self._state is not None
        if self.requests.clear_context and self._may_clear():
            self.requests.clear_context = False
            if self.last is not None:  # else there is nothing to clear
                self._restart(states[-1] if states else self._state, self.last.step.effort_nm)
        self._inference_ns, self._seen = 0, []
        self._payload_kg = self.requests.payload_kg  # once: it may change at any time
        if states:
            if self.last is not None and self.last.mode >= Mode.BLIND:
                self.reference.rejoin(states[0])  # the arm has moved by itself meanwhile
            reference = self._look(states)  # asked once: a new trajectory is for the next tick
        else:
            reference = self.reference.at(now_ns)
        state = self._state
        reset_fault = self.requests.reset_fault
        if reset_fault:  # one that comes from now on is for the next tick
            self.requests.reset_fault = False
        health = Health(
            state_is_fresh=is_fresh,
            reference_is_valid=reference is not None and self.requests.is_enabled,
            policy_is_on_time=self._inference_ns <= self._inference_budget_ns,
            has_error=has_error,
            reset_requested=reset_fault,
        )
        return self._act(state, reference or self._hold(state), now_ns, health)

    def rehearse(self, budget_ns: int) -> None:
        """Ask the policy for nothing: what it needs is then in the caches when a tick asks it.

        One that took longer than the budget when it was last asked is not: a tick would wait.
        """
        is_quick = 0 < self._last_inference_ns <= budget_ns
        if self._policy is not None and self._window is not None and is_quick:
            propose(self._policy, self._window, self.loop.gain_map.size)

    def fade(self, now_ns: int) -> Tick:
        """Return a tick of an arm that is being left alone: gravity torque, fading to zero."""
        assert self._state is not None
        self._inference_ns, self._seen = 0, []
        health = Health(state_is_fresh=False)
        return self._act(self._state, self._hold(self._state), now_ns, health)

    def _restart(self, state: ArmState, effort_nm: Array | None) -> Array:
        self.reference.begin(state)
        self._state, self._action = state, self.loop.nominal_action
        self._now_ns, self._stood_ns = state.stamp_ns, 0
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

    def _act(self, state: ArmState, reference: Reference, now_ns: int, health: Health) -> Tick:
        # A simulator that pauses stands still while the steady clock runs. Later its stamps are
        # behind, but the loop must not wait for them: to it, time only goes on.
        self._stood_ns += max(self._now_ns - now_ns, 0)
        self._now_ns = now_ns
        loop_ns = now_ns + self._stood_ns
        step = self.loop.actuate(self._action, state, reference, loop_ns, health)
        self.inference_ns[self.num_ticks % len(self.inference_ns)] = self._inference_ns
        self.num_ticks += 1
        self.num_stale += not health.state_is_fresh
        self.num_moved += bool(step.decision.was_moved)
        self.last = Tick(
            now_ns,
            loop_ns,
            self._was_restarted,
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
        self._was_restarted, self._effort_nm = False, step.effort_nm
        return self.last

    def _may_clear(self) -> bool:
        """Clearing the context forgets no latched fault and begins no fading torque anew."""
        return self.last is None or self.last.mode < Mode.BLIND

    @staticmethod
    def _hold(state: ArmState) -> Reference:
        return Hold(np.asarray(state.q_rad)).at(0.0)
