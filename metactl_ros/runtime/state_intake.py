# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""Takes joint states in: each is left for the control thread, or refused and counted.

    is it of the one publisher?         `sources.py`
    can it be read?                     `joint_samples.py`
    is it newer, in step, possible?     `state_gate.py`
    how old is it?                      `StateLatency`

What is accepted waits in an `Inbox` for the next tick (`control_io.py`).
"""

from collections.abc import Callable
import time
from typing import Any, NamedTuple

import numpy as np

from metactl_ros.control.modes import Cause
from metactl_ros.dynamics.two_link import Arm
from metactl_ros.runtime.control_io import Arrival, Exchange, Inbox
from metactl_ros.runtime.deadlines import Timing
from metactl_ros.runtime.joint_samples import effort_doubt, MessageError, read_joint_state
from metactl_ros.runtime.sources import SourceWatch
from metactl_ros.runtime.state_gate import DISTRUSTED, LATE, StateGate

LATENCIES_KEPT = 1000
"""How many latencies are kept for quantiles."""
LEAST_LATENCY_MS = -1.0
"""Clocks that are kept in step differ by less, as those of NTP in one building."""
MOST_LATENCY_MS = 1000.0
"""No line is that slow."""


class Finding(NamedTuple):
    """What is reported of the latency."""

    is_good: bool
    text: str
    values: dict[str, object]


class StateLatency:
    """Keeps the latencies of the last states, and reports what they mean."""

    def __init__(self, state_timeout_ns: int) -> None:
        self._timeout_ns = state_timeout_ns
        self._kept_ns = np.zeros(LATENCIES_KEPT, dtype=np.int64)
        self._count = 0

    def note(self, latency_ns: int) -> None:
        """Keep the latency of a state."""
        self._kept_ns[self._count % LATENCIES_KEPT] = latency_ns
        self._count += 1

    def finding(self) -> Finding:
        """Return what the latencies mean; one above the timeout of the states is not good."""
        kept_ms = self._kept_ns[: self._count] / 1e6
        if not len(kept_ms):
            return Finding(True, 'not known', {})
        least_ms, p50_ms, p99_ms = np.quantile(kept_ms, [0.0, 0.5, 0.99]).tolist()
        timeout_ms = self._timeout_ns / 1e6
        if not LEAST_LATENCY_MS <= least_ms <= MOST_LATENCY_MS:
            values = {'p50 above the least ms': p50_ms - least_ms}
            values['p99 above the least ms'] = p99_ms - least_ms
            side = 'ahead' if least_ms < 0.0 else 'behind'
            return Finding(
                p50_ms - least_ms <= timeout_ms,
                f"not known: the robot's clock is {abs(least_ms) / 1e3:.3g} s {side} of this "
                'one; only changes are known. Keep the clocks in step.',
                values,
            )
        text = f'{p50_ms:.1f} ms'
        if p50_ms > timeout_ms:
            text += (
                f': states are older than state_timeout_s, {timeout_ms:g} ms, when they come, or '
                "the robot's clock is behind; shorten the way, or keep the clocks in step."
            )
        return Finding(p50_ms <= timeout_ms, text, {'p50 ms': p50_ms, 'p99 ms': p99_ms})


REPORTED = {'clock drifts': Cause.CLOCK_MISMATCH, 'leaps': Cause.POSITION_LEAP}
"""Counts of a gate that are latched errors, which only a fault reset clears."""
NO_CONTRADICTION = ('old stamps', LATE, DISTRUSTED)
"""States that only come late, or twice, are refused and may yet be of the same arm."""


class StateIntake:
    """Passes joint states on to an inbox, and what is wrong with them to the control thread."""

    def __init__(
        self,
        arm: Arm,
        timing: Timing,
        sources: SourceWatch,
        inbox: Inbox,
        exchange: Exchange,
        complain: Callable[[str], None],
    ) -> None:
        """Make an intake.

        Args:
            arm: Whose joints are read.
            timing: Of the controller.
            sources: Keeps publishers apart.
            inbox: Where accepted states go.
            exchange: Of the control thread: where faults go.
            complain: Logs what is wrong with a message.
        """
        timeout_ns, self._is_simulated = timing.state_timeout_ns, timing.ticks_on_states
        self._gate = StateGate(arm, timing.period_ns, None if self._is_simulated else timeout_ns)
        self._joints, self._most_nm = arm.joint_names, arm.limits.effort_nm
        self._sources, self._inbox, self._exchange = sources, inbox, exchange
        self._complain = complain
        self._num_unusable = self._num_foreign = 0
        self._has_doubted = False
        self.latency = StateLatency(timeout_ns)

    @property
    def counts(self) -> dict[str, int]:
        """How many were accepted, and how many not, by reason."""
        refused = {'unusable messages': self._num_unusable, 'of others': self._num_foreign}
        return {**self._gate.counts, **refused}

    def receive(self, message: Any, info: dict[str, int]) -> None:
        """Take a JointState and what the middleware knows of it."""
        received_ns = time.monotonic_ns()
        streams = self._sources.streams
        may_be_used = streams.receive(info['publication_sequence_number'], received_ns)
        if may_be_used:
            self._judge(message, received_ns)
        else:
            self._num_foreign += 1
        if self._sources.are_states_in_doubt(received_ns):
            self._exchange.outer_error = Cause.SECOND_SOURCE

    def _judge(self, message: Any, received_ns: int) -> None:
        try:
            sample = read_joint_state(message, self._joints)
        except MessageError as error:
            self._num_unusable += 1
            self._complain(str(error))
            return
        if not self._is_simulated:
            self.latency.note(time.time_ns() - sample.stamp_ns)
        doubt = effort_doubt(sample, self._most_nm, self._joints)
        if doubt and not self._has_doubted:
            self._has_doubted = True
            self._complain(doubt)
        counts = self._gate.counts
        before = counts.copy()
        state = self._gate.admit(sample, received_ns)
        for name, cause in REPORTED.items():
            if counts[name] > before[name]:
                self._exchange.report(cause)
        is_only_late = any(counts[name] > before[name] for name in NO_CONTRADICTION)
        contradicts = state is None and not is_only_late
        self._sources.contradictions.record(received_ns, contradicts=contradicts)
        if state is not None:
            effort_nm = None if doubt else sample.effort_nm
            self._inbox.put(Arrival(state, sample.stamp_ns, effort_nm, received_ns))
