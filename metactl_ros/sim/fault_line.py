# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""The line between a robot's sensors and whoever listens, with faults on it.

Each state goes in once; what comes out is to be published now: nothing, the state, or several that
were held back. Content is altered first, in the order of the faults; then states are lost, held
back and swapped. What is held back comes as soon as no fault holds it any more.
"""

from collections import deque
from collections.abc import Callable, Sequence
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
        if fault.kind == 'freeze':
            seen = self._since.setdefault(fault, message.state)
            q, qd = seen.q_rad, seen.qd_radps
        elif fault.kind in MEASURES:
            state = message.state
            q, qd = MEASURES[fault.kind](
                state.q_rad, state.qd_radps, fault.size, seconds(self._period_ns)
            )
        else:
            return message
        mixed_q, mixed_qd = message.state.q_rad.copy(), message.state.qd_radps.copy()
        mixed_q[fault.joints], mixed_qd[fault.joints] = q[fault.joints], qd[fault.joints]
        return message._replace(state=replace(message.state, q_rad=mixed_q, qd_radps=mixed_qd))

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


def _biased(q_rad: Array, qd_radps: Array, bias_rad: float, _: float) -> tuple[Array, Array]:
    return q_rad + bias_rad, qd_radps


def _flipped(q_rad: Array, qd_radps: Array, _: float, __: float) -> tuple[Array, Array]:
    return q_rad, -qd_radps


def _standing(q_rad: Array, qd_radps: Array, _: float, __: float) -> tuple[Array, Array]:
    return q_rad, np.zeros_like(qd_radps)


def _scaled(q_rad: Array, qd_radps: Array, factor: float, _: float) -> tuple[Array, Array]:
    return q_rad, factor * qd_radps


def _unknown(q_rad: Array, qd_radps: Array, _: float, __: float) -> tuple[Array, Array]:
    return np.full_like(q_rad, np.nan), np.full_like(qd_radps, np.nan)


def _quantised(q_rad: Array, qd_radps: Array, bits: float, period_s: float) -> tuple[Array, Array]:
    """Return positions in whole counts, and velocities from two of them a period apart."""
    count_rad = 2.0 * np.pi / 2.0**bits
    now = np.round(q_rad / count_rad)
    before = np.round((q_rad - period_s * qd_radps) / count_rad)
    return now * count_rad, (now - before) * (count_rad / period_s)


MEASURES: dict[str, Callable[[Array, Array, float, float], tuple[Array, Array]]] = {
    'bias': _biased,
    'sign_flip': _flipped,
    'velocity_zero': _standing,
    'velocity_scale': _scaled,
    'nan': _unknown,
    'quantise': _quantised,
}
"""Positions and velocities as a faulty sensor shows them: of both, the amount and the period."""
