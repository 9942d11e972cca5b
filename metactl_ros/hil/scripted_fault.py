# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""A fault of a scenario: one of the robot's own (`plant/faults.py`), or one of a process."""

from dataclasses import dataclass
import difflib
import math

from metactl_ros.config import require_not_negative
from metactl_ros.errors import ConfigError
from metactl_ros.plant.faults import Fault, is_plant_fault, KINDS

PROCESS_KINDS = {
    'cpu_load': 'so many processes per core spin; 1 if no amount is given',
    'sigstop_controller': 'the controller stands still, then goes on',
    'sigstop_plant': 'the robot stands still, then goes on',
    'kill_controller': 'the controller is killed, and started again at the end',
    'kill_plant': 'the robot is killed, and started again at the end',
}
"""What can happen to a process, and what it means."""
MAX_LOAD = 16.0


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
        if self.joint is not None or (self.amount is not None and self.kind != 'cpu_load'):
            raise ConfigError(f'Fault {self.kind}: has neither joint nor amount; leave them out.')
        if not 1.0 <= self.load <= MAX_LOAD:
            raise ConfigError(
                f'Fault cpu_load: expected an amount of 1 to {MAX_LOAD:g} per core, '
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
    def load(self) -> float:
        """Return how many processes per core a load has."""
        return 1.0 if self.amount is None else self.amount
