# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""Passes an operator's requests to the control thread, and answers with what became of them.

A request is taken by the next tick. The desk waits for that tick, though not for long, and looks
at its mode: an answer states what the arm does, not what was requested. It only reads what ticks
leave behind, so that it cannot hold one up, however often it is asked.
"""

from collections.abc import Callable
import time
from typing import NamedTuple

import numpy as np

from metactl_ros.control.modes import Cause, Mode
from metactl_ros.dynamics.rigid_body import JointLimits
from metactl_ros.dynamics.two_link import Arm
from metactl_ros.runtime.controller import LiveController, Requests, Tick
from metactl_ros.runtime.mode_report import explain, joint_of, text_of, TEXTS
from metactl_ros.signals import NANOSECONDS_PER_SECOND, seconds

PATIENCE_S = 0.5
"""How long an answer may take."""
POLL_ANSWER_S = 0.002
"""How often it is checked whether a tick has taken a request."""
CLEAR_EVERY_NS = NANOSECONDS_PER_SECOND
"""How often the context may be cleared: cleared all the time, it would stay empty."""


class Answer(NamedTuple):
    """What became of a request."""

    success: bool
    message: str


class ContextClearing:
    """Passes requests on, but not too often, and not where they would do nothing."""

    def __init__(self, requests: Requests) -> None:
        self._requests = requests
        self._next_ns = 0

    def ask(self, last: Tick | None, now_ns: int) -> tuple[bool, str]:
        """Return whether the context will be cleared, and what to say of it.

        Args:
            last: The last tick; None before the first.
            now_ns: On the steady clock.
        """
        if last is None:
            return False, 'there is no context yet: no joint state has come'
        if last.mode >= Mode.STOP:
            return False, f'not in {last.mode.name}: ask again once the arm is driven'
        if now_ns < self._next_ns:
            wait_s = seconds(self._next_ns - now_ns)
            return False, f'cleared just now; ask again in {wait_s:.2f} s'
        self._next_ns = now_ns + CLEAR_EVERY_NS
        self._requests.clear_context = True
        return True, 'with the next tick; modes and what they count stay'


class OperatorDesk:
    """Passes requests on to a controller, and waits for the ticks that take them."""

    def __init__(
        self, controller: LiveController, arm: Arm, is_driving: Callable[[], bool]
    ) -> None:
        self._controller, self._requests, self._arm = controller, controller.requests, arm
        self._is_driving = is_driving
        self._clearing = ContextClearing(self._requests)

    def enable(self, *, is_wanted: bool) -> Answer:
        """Let the arm move, or hold it where it is."""
        self._requests.is_enabled = is_wanted
        asked = 'enabled' if is_wanted else 'holding'
        if not self._is_driving():
            return Answer(True, f'{asked}, once the controller drives: it does not yet.')
        tick = self._tick_that_took(lambda: True)
        if tick is None:
            return _not_taken()
        if is_wanted:
            # An arm that rolls out of STOP, or has no reference yet, is enabled all the same.
            is_done = tick.mode < Mode.STOP or (tick.mode, tick.cause) == (
                Mode.STOP,
                Cause.NO_REFERENCE,
            )
        else:
            is_done = tick.mode == Mode.STOP
        return Answer(is_done, f'{asked if is_done else "no effect yet"}: {self._explain(tick)}')

    def reset_fault(self) -> Answer:
        """Leave FAULT if all is well."""
        if not self._is_driving():
            return Answer(False, 'the controller does not drive: there is nothing to reset.')
        last = self._controller.last
        if last is not None and last.mode != Mode.FAULT:
            return Answer(True, f'no fault: {self._explain(last)}')
        self._requests.reset_fault = True
        tick = self._tick_that_took(lambda: not self._requests.reset_fault)
        if tick is None:
            self._requests.reset_fault = False
            return _not_taken()
        if tick.mode != Mode.FAULT:
            return Answer(True, f'left FAULT: {self._explain(tick)}')
        doubt = Cause(int(self._controller.loop.doubts))
        still = '; '.join(
            f'{TEXTS[cause].happened} ({cause.name})'
            for cause in obstacles(tick, self._arm.limits, doubt)
        )
        return Answer(False, f'still bad: {still}. {self._explain(tick)}')

    def clear_context(self) -> Answer:
        """Empty the window and warm up again."""
        last = self._controller.last if self._is_driving() else None
        is_taken, word = self._clearing.ask(last, time.monotonic_ns())
        if not is_taken:
            return Answer(False, word)
        tick = self._tick_that_took(lambda: not self._requests.clear_context)
        if tick is None:
            self._requests.clear_context = False  # or it would be done much later, unasked
            return _not_taken()
        return Answer(True, f'cleared: {self._explain(tick)}')

    def _tick_that_took(self, is_taken: Callable[[], bool]) -> Tick | None:
        """Return a tick that began after the request was made and taken; None if none came."""
        end_s = time.monotonic() + PATIENCE_S
        last, num_after = self._controller.last, 0
        while time.monotonic() < end_s:
            time.sleep(POLL_ANSWER_S)
            tick = self._controller.last
            if tick is last or not is_taken():
                last = tick
                continue
            last, num_after = tick, num_after + 1
            if num_after == 2 and tick is not None:  # the first may have begun before
                return tick
        return None

    def _explain(self, tick: Tick) -> str:
        text = text_of(tick.cause, is_enabled=self._requests.is_enabled)
        return explain(tick.mode, tick.cause, text, joint_of(tick, self._arm.joint_names))


def obstacles(tick: Tick, limits: JointLimits, doubt: Cause) -> list[Cause]:
    """Return what keeps a controller in FAULT; if nothing else, what brought it there.

    `doubt` is what the guard finds wrong with the last state.
    """
    state, health = tick.state, tick.health
    is_outside = ((state.q_rad > limits.upper_rad) | (state.q_rad < limits.lower_rad)).any()
    is_fast = (np.abs(state.qd_radps) > limits.velocity_radps).any()
    found = [
        cause
        for cause, is_so in (
            (health.error, health.error != Cause.NONE),
            (doubt, doubt not in (Cause.NONE, health.error)),
            (Cause.STALE_STATE, not health.state_is_fresh),
            (Cause.NO_REFERENCE, not health.reference_is_valid),
            (Cause.OUTSIDE_LIMITS, is_outside or is_fast),
        )
        if is_so
    ]
    return found or [tick.cause]


def _not_taken() -> Answer:
    return Answer(False, f'no tick came within {PATIENCE_S} s: is there a joint state?')
