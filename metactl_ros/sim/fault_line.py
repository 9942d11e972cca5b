# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""The line between a robot's sensors and whoever listens, with faults on it.

Each state goes in once; what comes out is to be published now: nothing, the state, or several that
were held back. Content is altered first, in the order of the faults; then states are lost, held
back and swapped. What is held back comes as soon as no fault holds it any more.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from metactl_ros.signals import ArmState, Array, NANOSECONDS_PER_SECOND, seconds
from metactl_ros.sim.faults import Fault

LATE = frozenset(('delay', 'jitter', 'latency'))
HOLDING = LATE | {'burst'}
RENAMED = '_renamed'
"""Put behind the names of joints by the fault `rename`."""


class StateMessage(NamedTuple):
    """What a joint state says."""

    stamp_ns: int
    names: tuple[str, ...]
    state: ArmState
    effort_nm: Array


class FaultLine:
    """Carries states, one per period; the same seed loses and delays the same ones."""

    def __init__(self, period_ns: int, seed: int) -> None:
        self._period_ns = period_ns
        self._random = np.random.default_rng(seed)
        self._since: dict[Fault, Any] = {}  # what a fault keeps from when it began
        self._held: deque[tuple[int, StateMessage]] = deque()  # with the time each is due
        self._first_of_pair: StateMessage | None = None

    def apply(self, message: StateMessage, faults: Sequence[Fault]) -> list[StateMessage]:
        """Return what is to be published now, in that order."""
        if not faults and not self._held and self._first_of_pair is None:
            self._since.clear()
            return [message]
        kinds = {fault.kind for fault in faults}
        self._since = {fault: kept for fault, kept in self._since.items() if fault in faults}
        altered = message
        for fault in faults:
            altered = self._alter(fault, altered)
        if 'silence' in kinds:
            self._held.clear()
            self._first_of_pair = None
            return []
        if not self._is_lost(faults):
            self._held.append((self._due_ns(message.stamp_ns, faults), altered))
        ready = []
        while self._held and (kinds.isdisjoint(HOLDING) or self._held[0][0] <= message.stamp_ns):
            ready.append(self._held.popleft()[1])
        return self._swapped(ready, is_reordering='reorder' in kinds)

    def _alter(self, fault: Fault, message: StateMessage) -> StateMessage:
        if fault.kind.startswith('clock_'):
            return message._replace(stamp_ns=self._wrong_time_ns(fault, message.stamp_ns))
        if fault.kind == 'rename':
            names = list(message.names)
            names[fault.joints] = [name + RENAMED for name in names[fault.joints]]
            return message._replace(names=tuple(names))
        if fault.kind == 'effort_scale':
            effort = message.effort_nm.copy()  # empty before the first command
            effort[fault.joints] *= fault.size
            return message._replace(effort_nm=effort)
        state = message.state
        shown: tuple[Array, Array] | None
        if fault.kind == 'freeze':
            frozen = self._since.setdefault(fault, state)
            shown = frozen.q_rad, frozen.qd_radps
        else:
            period_s = seconds(self._period_ns)
            shown = faulty_reading(fault.kind, state.q_rad, state.qd_radps, fault.size, period_s)
        if shown is None:
            return message
        q, qd = state.q_rad.copy(), state.qd_radps.copy()
        q[fault.joints], qd[fault.joints] = (values[fault.joints] for values in shown)
        return message._replace(state=replace(state, q_rad=q, qd_radps=qd))

    def _wrong_time_ns(self, fault: Fault, stamp_ns: int) -> int:
        if fault.kind == 'clock_jump':
            return stamp_ns + round(fault.size * NANOSECONDS_PER_SECOND)
        begun_ns = self._since.setdefault(fault, stamp_ns)
        passed_ns = stamp_ns - begun_ns
        if fault.kind == 'clock_rate':
            return int(begun_ns + round(fault.size * passed_ns))
        return int(begun_ns + passed_ns // self._period_ns)  # 1 ns per state

    def _is_lost(self, faults: Sequence[Fault]) -> bool:
        shares = [fault.size for fault in faults if fault.kind == 'drop']
        return any(self._random.random() < share for share in shares)

    def _due_ns(self, stamp_ns: int, faults: Sequence[Fault]) -> int:
        """Return when a state is to be published, in the robot's time; older ones go first."""
        due_ns = stamp_ns
        for fault in faults:
            if fault.kind in LATE:
                periods = round(fault.size * NANOSECONDS_PER_SECOND / self._period_ns)
                if fault.kind == 'jitter':
                    periods = int(self._random.integers(0, periods, endpoint=True))
                due_ns += periods * self._period_ns
        for fault in faults:
            if fault.kind == 'burst':
                hold_ns = round(fault.size * NANOSECONDS_PER_SECOND)
                begun_ns = self._since.setdefault(fault, stamp_ns)
                due_ns = begun_ns + ((due_ns - begun_ns) // hold_ns + 1) * hold_ns
        return due_ns

    def _swapped(self, messages: list[StateMessage], *, is_reordering: bool) -> list[StateMessage]:
        out: list[StateMessage] = []
        for message in messages:
            if self._first_of_pair is not None:
                pair = [self._first_of_pair, message]
                out += reversed(pair) if is_reordering else pair
                self._first_of_pair = None
            elif is_reordering:
                self._first_of_pair = message
            else:
                out.append(message)
        return out


def faulty_reading(
    kind: str, q_rad: Array, qd_radps: Array, amount: float, period_s: float
) -> tuple[Array, Array] | None:
    """Return positions and velocities as a faulty sensor shows them; None of another fault."""
    match kind:
        case 'bias':
            return q_rad + amount, qd_radps
        case 'sign_flip':
            return q_rad, -qd_radps
        case 'velocity_zero':
            return q_rad, np.zeros_like(qd_radps)
        case 'velocity_scale':
            return q_rad, amount * qd_radps
        case 'nan':
            return np.full_like(q_rad, np.nan), np.full_like(qd_radps, np.nan)
        case 'quantise':  # positions in whole counts, velocities from two a period apart
            count_rad = 2.0 * np.pi / 2.0**amount
            now = np.round(q_rad / count_rad)
            before = np.round((q_rad - period_s * qd_radps) / count_rad)
            return now * count_rad, (now - before) * (count_rad / period_s)
    return None
