# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""What becomes of a joint state that was received: it is left for the control thread, or refused.

is it of the publisher that is believed?    `sources.py`
can it be read?                             `joint_messages.py`
may it be believed?                         `state_gate.py`
"""

from collections.abc import Callable
import time
from typing import Any

from metactl_ros.arm import Arm
from metactl_ros.control.modes import Cause
from metactl_ros.nodes.control_thread import ControlThread, Timing
from metactl_ros.nodes.inbox import Arrival, Inbox
from metactl_ros.nodes.joint_messages import effort_doubt, MessageError, read_joint_state
from metactl_ros.nodes.sources import SourceWatch
from metactl_ros.nodes.state_gate import DISTRUSTED, LATE, StateGate
from metactl_ros.nodes.state_latency import StateLatency

REPORTED = {'clock drifts': Cause.CLOCK_MISMATCH, 'leaps': Cause.POSITION_LEAP}
"""What of a gate's counts only a reset forgives."""
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
        control: ControlThread,
        complain: Callable[[str], None],
    ) -> None:
        timeout_ns, self._is_simulated = timing.state_timeout_ns, timing.ticks_on_states
        self._gate = StateGate(arm, timing.period_ns, None if self._is_simulated else timeout_ns)
        self._joints, self._most_nm = arm.joint_names, arm.limits.effort_nm
        self._sources, self._inbox, self._control = sources, inbox, control
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
        lines = self._sources.lines
        may_be_used = lines.hear(info['publication_sequence_number'], received_ns)
        if may_be_used:
            self._judge(message, received_ns)
        else:
            self._num_foreign += 1
        if self._sources.are_states_in_doubt(received_ns):
            self._control.outer_error = Cause.SECOND_SOURCE

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
                self._control.report(cause)
        is_only_late = any(counts[name] > before[name] for name in NO_CONTRADICTION)
        contradicts = state is None and not is_only_late
        self._sources.contradictions.hear(received_ns, contradicts=contradicts)
        if state is not None:
            effort_nm = None if doubt else sample.effort_nm
            self._inbox.put(Arrival(state, sample.stamp_ns, effort_nm, received_ns))
