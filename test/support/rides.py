# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""A controller on a ride: an arm that rests where it should be, and what is done to it."""

from dataclasses import replace

import numpy as np

from metactl_ros.control.law import nominal_gains
from metactl_ros.control.modes import Cause, Mode
from metactl_ros.motion.reference import Hold
from metactl_ros.runtime.controller import LiveController, Requests
from metactl_ros.settings import load_settings
from metactl_ros.signals import ArmState, period_ns_of

SETTINGS = load_settings()
ARM = SETTINGS.arm
PERIOD_NS = period_ns_of(SETTINGS.controller.law.rate_hz)
REACH_NM = np.array(ARM.limits.effort_rate_nmps) * PERIOD_NS / 1e9
BUDGET_NS = 10**12  # a busy machine is no late policy
NUM_ROWS = 4
QUICK = replace(
    SETTINGS.controller,
    context=replace(SETTINGS.controller.context, num_rows=NUM_ROWS),
    modes=replace(SETTINGS.controller.modes, warmup_ticks=0, recovery_ticks=3),
)
POSTURE = np.array([0.4, -0.3])
GRAVITY_NM = ARM.body().gravity(POSTURE)
NOMINAL_GAINS = nominal_gains(QUICK.law, QUICK.gain_box.layout, 2)
NOMINAL, WARMUP, FALLBACK, STOP, BLIND, FAULT = Mode


def state_at(stamp_ns, q_rad=POSTURE):
    return ArmState(stamp_ns, np.array(q_rad), np.zeros(2))


class Held:
    """A reference that holds a posture, unless it is missing; it remembers what it was asked."""

    def __init__(self, q_rad=POSTURE):
        self.held = Hold(np.array(q_rad)).at(0.0)
        self.is_missing = False
        self.begun, self.asked, self.rejoined = [], [], []

    def begin(self, state):
        self.begun.append(state.stamp_ns)

    def rejoin(self, state):
        self.rejoined.append(state.stamp_ns)

    def at(self, stamp_ns):
        self.asked.append(stamp_ns)
        return None if self.is_missing else self.held


class Seen:
    """A policy that proposes one action and remembers the windows it saw."""

    def __init__(self, value=0.5):
        self.value, self.windows = value, []

    def __call__(self, window):
        self.windows.append(window)
        return np.full(8, self.value)


class Ride:
    """A controller of an arm that rests where it should be, one period after the other."""

    def __init__(self, policy=None, effort_nm=None, q_desired=POSTURE, requests=None):
        self.policy = policy or Seen()
        self.reference = Held(q_desired)
        self.requests = requests or Requests(payload_kg=0.5)
        self.controller = LiveController(
            ARM, QUICK, self.policy, self.reference, self.requests, BUDGET_NS
        )
        self.now_ns = 0
        self.effort = self.controller.begin(state_at(0), effort_nm)

    def tick(self, is_fresh=True, error=Cause.NONE):
        """Tick with a state that came this very moment."""
        states = [state_at(self.now_ns)]
        tick = self.controller.drive(states, self.now_ns, is_fresh=is_fresh, error=error)
        return self._checked(tick)

    def tick_without_state(self, is_fresh=False):
        return self._checked(self.controller.drive([], self.now_ns, is_fresh=is_fresh))

    def warm(self):
        """Tick until the policy acts."""
        modes = [self.tick().mode for _ in range(NUM_ROWS + 1)]
        assert modes == [WARMUP] * NUM_ROWS + [NOMINAL]
        return self

    def faulted(self):
        assert self.warm().tick(error=Cause.INTERNAL_ERROR).mode == FAULT
        return self

    def _checked(self, tick):
        assert (np.abs(tick.step.effort_nm - self.effort) <= REACH_NM + 1e-9).all()
        assert tick is self.controller.last
        self.now_ns += PERIOD_NS
        self.effort = tick.step.effort_nm
        return tick
