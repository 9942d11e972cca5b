# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""A fault of a scenario: one of the robot's own (`sim/faults.py`), or one of processes."""

from dataclasses import dataclass
import difflib
import math

from metactl_ros.config import require_not_negative
from metactl_ros.errors import ConfigError
from metactl_ros.sim.faults import Fault, is_plant_fault, Kind, KINDS

INTRUSIONS = {
    'second_states': Kind(
        'another process publishes joint states of an arm that rests so far from where this one '
        'was when it began',
        'rad',
        0.0,
        (-10.0, 10.0),
    ),
    'echoed_states': Kind(
        'another process publishes every joint state once more, so far off',
        'rad',
        0.02,
        (-10.0, 10.0),
    ),
    'second_commands': Kind(
        'another process commands this share of each effort limit', 'share', 1.0, (-1.0, 1.0)
    ),
    'flood_parameters': Kind(
        'the controller is asked for parameters, by so many names at once', 'names', 1e6, (1, 1e7)
    ),
    'flood_trajectories': Kind(
        'the controller is sent trajectories of so many points', 'points', 1e5, (2, 1e6)
    ),
    'flood_clear_context': Kind(
        'the controller is asked so often to clear its context', 'Hz', 100.0, (1.0, 1000.0)
    ),
    'trajectory_smooth': Kind(
        'a trajectory moves the first joint so far, slowly', 'rad', 0.5, (-10.0, 10.0)
    ),
    'trajectory_leap': Kind(
        'a trajectory moves the first joint so far in 1 ns', 'rad', 5.6, (-10.0, 10.0)
    ),
    'trajectory_far': Kind(
        'a trajectory moves the first joint to this position, slowly', 'rad', 9.0, (-10.0, 10.0)
    ),
    'trajectory_fast': Kind(
        'a trajectory moves the first joint so far in 50 ms', 'rad', 2.0, (-10.0, 10.0)
    ),
}
"""What somebody else may do on the topics: `hil/intruder.py`."""
PROCESS_KINDS = {
    'cpu_load': Kind('so many processes per core spin', 'per core', 1.0, (1.0, 16.0)),
    'sigstop_controller': Kind('the controller stands still, then goes on'),
    'sigstop_plant': Kind('the robot stands still, then goes on'),
    'kill_controller': Kind('the controller is killed, and started again at the end'),
    'kill_plant': Kind('the robot is killed, and started again at the end'),
    'second_controller': Kind('another controller is started, and ended at the end'),
    **INTRUSIONS,
}
"""What can happen to processes, and between them."""
PAUSING = frozenset(
    kind
    for kind in PROCESS_KINDS
    if kind == 'second_controller' or kind.startswith(('cpu_', 'sigstop_', 'kill_', 'flood_'))
)
"""What makes processes pause: whatever stalls meanwhile, the machine is not to blame."""
HARMLESS = ('trajectory_smooth',)
"""What is not a fault, but what one needs to come upon."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ScriptedFault:
    """Something that goes wrong from `at_s` on, for `for_s` or, if that is zero, to the end."""

    kind: str
    at_s: float
    for_s: float = 0.0
    amount: float | None = None
    joint: int | None = None

    def __post_init__(self) -> None:
        if self.is_of_plant:
            values = {name: getattr(self, name) for name in ('at_s', 'for_s', 'amount', 'joint')}
            Fault(kind=self.kind, **values)  # which refuses what the robot cannot do
            return
        if self.kind not in PROCESS_KINDS:
            kinds = [*KINDS, *PROCESS_KINDS]
            near = difflib.get_close_matches(self.kind, kinds, n=1)
            hint = f'did you mean {near[0]!r}?' if near else f'there are {", ".join(kinds)}.'
            raise ConfigError(f'Fault.kind: unknown kind {self.kind!r}; {hint}')
        require_not_negative('Fault', at_s=self.at_s, for_s=self.for_s)
        kind = PROCESS_KINDS[self.kind]
        if self.joint is not None or (self.amount is not None and not kind.unit):
            what = 'no joint; leave it' if kind.unit else 'neither joint nor amount; leave them'
            raise ConfigError(f'Fault {self.kind}: has {what} out.')
        low, high = kind.bounds
        if not low <= self.size <= high:
            raise ConfigError(
                f'Fault {self.kind}: expected an amount of {low:g} to {high:g} {kind.unit}, '
                f'found {self.amount}.'
            )

    @property
    def is_of_plant(self) -> bool:
        """Return whether the robot does it to itself."""
        return is_plant_fault(self.kind)

    @property
    def end_s(self) -> float:
        """Return when it is over, s; infinite if it stays."""
        return self.at_s + self.for_s if self.for_s else math.inf

    @property
    def size(self) -> float:
        """Return the amount in force."""
        kind = (KINDS | PROCESS_KINDS)[self.kind]
        return kind.usual if self.amount is None else self.amount
