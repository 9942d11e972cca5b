# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""What happened in a run of a scenario.

Times are those of publishing, on the clock of the machine: in seconds since the first step the
robot was driven, unless they are in ns.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from metactl_ros.check.invariants import Commands, States
from metactl_ros.hil.scripted_fault import HARMLESS, ScriptedFault
from metactl_ros.signals import Array, NANOSECONDS_PER_SECOND


class Span(NamedTuple):
    """When a fault really was."""

    fault: ScriptedFault
    begin_s: float
    end_s: float


class Life(NamedTuple):
    """The states that entered the window of one controller, in the order they did."""

    seen_s: Array
    """When each did, shape (K,)."""
    stamp_ns: NDArray[np.int64]
    """Of each, on the controller's timeline, shape (K,)."""


@dataclass(frozen=True, slots=True)
class RunLog:
    """Ticks, commands, brakings and faults, each in order."""

    zero_ns: int
    """Time zero, on the clock of the machine."""
    end_s: float
    """When the processes were told to end."""
    tick_s: Array
    """Shape (T,)."""
    mode: NDArray[np.int64]
    cause: NDArray[np.int64]
    """Of the mode, shape (T,)."""
    error_rad: Array
    """Norm of the true tracking error, shape (T,); NaN where it is not known."""
    excess: Array
    """Of the gains in force over the Lyapunov condition, shape (T,)."""
    lives: tuple[Life, ...]
    """One for each controller that ran."""
    commands: Commands
    states: States
    """Those that a controller could believe."""
    restarts_ns: tuple[int, ...]
    """When the first command of each further controller came."""
    command_problems: tuple[str, ...]
    """How the two topics of commands differ, or fail to have one for each tick."""
    foreign_s: Array
    """When somebody else sent commands, shape (F,)."""
    braking_s: Array
    """When the brake was set or released, shape (B,)."""
    is_braking: NDArray[np.bool_]
    step_s: Array
    """When the robot took its steps, shape (S,)."""
    true_q_rad: Array
    """Where its joints then were, shape (S, n)."""
    true_qd_radps: Array
    """And how fast, shape (S, n)."""
    spans: tuple[Span, ...]
    gone: tuple[str, ...]
    """Processes that ended by themselves, or crashed when told to end."""
    num_resets: int
    """How often whoever watched asked for the end of a FAULT."""

    @property
    def command_s(self) -> Array:
        """When each command was published, shape (N,)."""
        times: Array = (self.commands.received_ns - self.zero_ns) / NANOSECONDS_PER_SECOND
        return times

    @property
    def is_driven(self) -> NDArray[np.bool_]:
        """Which steps of the robot are of the run: from the first driven one on, shape (S,)."""
        return np.asarray((self.step_s >= 0.0) & (self.step_s <= self.end_s))

    @property
    def first_fault_s(self) -> float:
        """When the first fault really came; the end of the run if there was none."""
        begins = (span.begin_s for span in self.spans if span.fault.kind not in HARMLESS)
        return min(begins, default=self.end_s)

    def when(self, nominal_s: float) -> float:
        """Return when something really was that the scenario states: exact for ends of faults."""
        for fault, begin_s, end_s in self.spans:
            if abs(fault.at_s - nominal_s) < 1e-6:
                return begin_s
            if abs(fault.end_s - nominal_s) < 1e-6:
                return end_s
        return nominal_s
