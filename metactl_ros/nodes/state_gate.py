# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""Which joint states may be believed: newer than the last, in step with it, and possible.

    stamp not ahead of the last                   refused: sent again, out of order
    stamp and steady clock disagree by over 1 s   refused: a clock jumped, or another arm speaks
    moved further than its fastest joint could    refused: a glitch, or another arm speaks

A robot that restarts is all of this at once. So ten refused states in a row that agree with each
other begin a new timeline. The stamps that leave the gate never go back: they begin at zero with
the first state, and across a break they advance by the steady clock.
"""

from collections import Counter

import numpy as np

from metactl_ros.arm import Arm
from metactl_ros.nodes.joint_messages import JointSample
from metactl_ros.signals import ArmState, NANOSECONDS_PER_SECOND, seconds

CLOCK_TOLERANCE_NS = NANOSECONDS_PER_SECOND
"""How far stamps may drift from the steady clock between two states of a real robot."""
SPEED_TOLERANCE = 2.0
"""How much faster than its limit a joint may seem to move between two states."""
ADOPT_AFTER = 10
"""Refused states in a row, each in step with the one before, that begin a new timeline."""
COUNTED = (
    'accepted',
    'dropped',
    'old stamps',
    'clock jumps',
    'impossible motions',
    'new timelines',
)


class StateGate:
    """Turns samples into states on one timeline, or refuses them.

    Simulated time knows no steady clock: there `clock_tolerance_ns` is None.
    """

    def __init__(self, arm: Arm, period_ns: int, clock_tolerance_ns: int | None) -> None:
        self._clock_tolerance_ns = clock_tolerance_ns
        self._fastest_radps = SPEED_TOLERANCE * np.array(arm.limits.velocity_radps)
        self._period_ns = period_ns
        self._offset_ns = 0
        self._last: tuple[JointSample, int] | None = None
        self._refused: tuple[JointSample, int] | None = None
        self._streak = 0
        self.counts = Counter(dict.fromkeys(COUNTED, 0))
        """How many were accepted, dropped on the way, and refused, by reason."""

    def admit(self, sample: JointSample, received_ns: int) -> ArmState | None:
        """Return the state on the gate's timeline, or None if it is refused.

        Args:
            sample: A finite sample (`read_joint_state`).
            received_ns: When it came, on the steady clock.
        """
        if self._last is None:
            self._offset_ns = sample.stamp_ns
            return self._accept(sample, received_ns)
        objection = self._objection(self._last, sample, received_ns)
        if objection is None:
            gap_ns = sample.stamp_ns - self._last[0].stamp_ns
            self.counts['dropped'] += max(round(gap_ns / self._period_ns) - 1, 0)
            return self._accept(sample, received_ns)
        self.counts[objection] += 1
        agrees = self._refused is not None and not self._objection(
            self._refused, sample, received_ns
        )
        self._streak = self._streak + 1 if agrees else 1
        self._refused = (sample, received_ns)
        if self._streak < ADOPT_AFTER:
            return None
        last, last_received_ns = self._last
        passed_ns = max(received_ns - last_received_ns, self._period_ns)
        self._offset_ns = sample.stamp_ns - (last.stamp_ns - self._offset_ns) - passed_ns
        self.counts['new timelines'] += 1
        return self._accept(sample, received_ns)

    def _objection(
        self, last: tuple[JointSample, int], sample: JointSample, received_ns: int
    ) -> str | None:
        before, before_ns = last
        passed_ns = sample.stamp_ns - before.stamp_ns
        if passed_ns <= 0:
            return 'old stamps'
        drift_ns = abs(passed_ns - (received_ns - before_ns))
        if self._clock_tolerance_ns is not None and drift_ns > self._clock_tolerance_ns:
            return 'clock jumps'
        reach = self._fastest_radps * max(seconds(passed_ns), seconds(self._period_ns))
        if (np.abs(sample.q_rad - before.q_rad) > reach).any():
            return 'impossible motions'
        return None

    def _accept(self, sample: JointSample, received_ns: int) -> ArmState:
        self._last, self._refused, self._streak = (sample, received_ns), None, 0
        self.counts['accepted'] += 1
        return ArmState(sample.stamp_ns - self._offset_ns, sample.q_rad, sample.qd_radps)
