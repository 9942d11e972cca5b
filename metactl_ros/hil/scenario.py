# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""A scenario: what runs, what goes wrong and when, and what must hold. One YAML file each.

    title: The joint states stop for 0.3 s
    duration_s: 6
    setup: {plant: rk4, controller: momentum_observer}        # fields of processes.Setup
    faults: [{kind: silence, at_s: 2.0, for_s: 0.3}]
    expect:
      - {mode: BLIND, after_s: 2.0, within_s: 0.1}            # reached within
      - {mode_in: [STOP, FAULT], after_s: 2.0, within_s: 0.1} # one of these is
      - {leaves_nominal: true, after_s: 2.0, within_s: 0.1}   # any other mode is
      - {braking: true, after_s: 2.0, within_s: 0.1}          # of the robot, likewise
      - {zero_or_holding: true, after_s: 2.0, within_s: 0.5}  # of the torque, and it stays so
      - {error_below_rad: 0.1, from_s: 4.5, to_s: 6.0}        # the true error, on every tick
      - {speed_below_radps: [2.0, 2.0]}                       # the true one; one entry: of all
      - {effort_below_nm: [150, 60]}                          # of every command
      - {never: FAULT}
      - {only: [BLIND, FAULT], from_s: 2.1}                   # no other mode
      - {rate_above_hz: 90, from_s: 1.0, to_s: 5.0}           # of the commands
      - {gap_below_s: 0.05}                                   # between two of them
      - {alone: true}                                         # no other node sends commands
      - {in_order: true}                                      # no accepted state is older
      - {certified: true}                                     # the condition held in NOMINAL
    margins: {speed: 2.0, position_rad: 1.0, reason: no signal shows it}
    protection: staleness

Every run must besides meet the demands that `judge.py` lists, from its first driven step on; only
where physics makes that impossible may `margins` be larger, with the reason.

Numbers are for the arm of the setup, if none the two-link one; `for_arm` fits them to another.

Times count from the first step the robot is driven. Where one is the beginning or the end of a
fault, it means when that really came.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
import difflib
from functools import cache
import math
from pathlib import Path
from typing import Literal

import numpy as np

from metactl_ros.baselines import BaselineName
from metactl_ros.config import require_not_negative, require_positive
from metactl_ros.errors import ConfigError
from metactl_ros.hil.judge import EffortBelow, ErrorBelow, Expectation, SpeedBelow
from metactl_ros.processes import best_controller, Setup
from metactl_ros.settings import (
    arm_path,
    faults_file,
    load_arm,
    load_file,
    load_settings,
    PlantName,
    Settings,
    share_directory,
    usual_plant,
)
from metactl_ros.sim.faults import Fault, is_plant_fault, Kind, KINDS, require_joint

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
"""What another node does on the topics of robot and controller: `intruder.py`."""
PROCESS_KINDS = {
    'cpu_load': Kind('so many processes per core are busy', 'per core', 1.0, (1.0, 16.0)),
    'sigstop_controller': Kind('the controller stands still, then goes on'),
    'sigstop_plant': Kind('the robot stands still, then goes on'),
    'kill_controller': Kind('the controller is killed, and started again at the end'),
    'kill_plant': Kind('the robot is killed, and started again at the end'),
    'second_controller': Kind('another controller is started, and ended at the end'),
    **INTRUSIONS,
}
"""What can happen to processes, and between them."""
_MAKES_PAUSE = ('second_controller', 'cpu_', 'sigstop_', 'kill_', 'flood_')
PAUSING = frozenset(kind for kind in PROCESS_KINDS if kind.startswith(_MAKES_PAUSE))
"""What makes processes pause: a stall meanwhile is not one of the machine."""
HARMLESS = ('trajectory_smooth',)
"""What is no fault, but a motion on which one comes."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ScriptedFault:
    """A fault of the robot (`sim/faults.py`) or of processes, from `at_s` on.

    It lasts for `for_s` or, if that is zero, to the end.
    """

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
        """Return whether the simulated robot itself plays it."""
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


@dataclass(frozen=True, kw_only=True, slots=True)
class ScenarioSetup:
    """What of `processes.Setup` a scenario may choose; the rest is as usual."""

    arm_file: str | None = None
    plant: PlantName | None = None
    controller: Literal['policy', 'ct', BaselineName] | None = None
    policy: str | None = None
    classical_file: str | None = None
    payload_kg: float | None = None
    tau_z_s: float | None = None
    seed: int | None = None
    reference: Literal['sinusoid', 'trajectory'] | None = None

    def applied_to(self, setup: Setup) -> Setup:
        """Return a set-up with what was chosen."""
        chosen = {field.name: getattr(self, field.name) for field in fields(self)}
        return replace(setup, **{k: v for k, v in chosen.items() if v is not None})


@dataclass(frozen=True, kw_only=True, slots=True)
class Margins:
    """By how much the true arm may miss its limits."""

    speed: float = 1.25
    """Times the velocity limit of each joint."""
    position_rad: float = 0.3
    """Beyond the position limit of each joint, rad."""
    reason: str = ''
    """Why they are not the usual ones."""

    def __post_init__(self) -> None:
        require_positive('Margins', speed=self.speed, position_rad=self.position_rad)
        usual = {field.name: field.default for field in fields(self)}
        is_usual = all(getattr(self, name) == usual[name] for name in ('speed', 'position_rad'))
        if is_usual == bool(self.reason.strip()):
            raise ConfigError(
                f'Margins: expected a reason with other margins than {usual["speed"]} and '
                f'{usual["position_rad"]} rad, and none with these, found {self.reason!r}.'
            )


@dataclass(frozen=True, kw_only=True, slots=True)
class Scenario:
    """One scenario, as its file states it."""

    title: str
    duration_s: float
    """From the first step the robot is driven, s."""
    protection: str
    """What makes it pass; without it, it must fail."""
    setup: ScenarioSetup = ScenarioSetup()
    faults: tuple[ScriptedFault, ...] = ()
    expect: tuple[Expectation, ...] = ()
    margins: Margins = Margins()
    reset_fault_after_s: float | None = None
    """A FAULT that has lasted this long is reset, s; null: none is."""

    def __post_init__(self) -> None:
        require_positive('Scenario', duration_s=self.duration_s)
        if late := [fault.kind for fault in self.faults if fault.at_s >= self.duration_s]:
            raise ConfigError(
                f'Scenario.faults: {late} would begin after the end at {self.duration_s} s; begin '
                'them earlier or let it last longer.'
            )


def load_scenario(path: Path, arm: str = '') -> Scenario:
    """Return the scenario of a file; an error has one line per mistake, with file and key.

    Args:
        path: Of the file.
        arm: Name or file of another arm than the one it is written for; empty: that one.
    """
    scenario = load_file(Scenario, path, path.name)
    written_for = scenario.setup.arm_file or ''
    if arm and arm_path(arm) != arm_path(written_for):
        scenario = for_arm(scenario, arm)
    num_joints = len(load_arm(scenario.setup.arm_file).joint_names)
    for fault in scenario.faults:
        require_joint(f'{path.name}: Fault {fault.kind}', fault.joint, num_joints)
    return scenario


def for_arm(scenario: Scenario, arm: str) -> Scenario:
    """Return a scenario for another arm than that it is written for.

    Joints keep their numbers. Bounds of effort and speed become for all joints the same share of
    the limit, the largest there was. Errors are the norm over all joints, and their bounds grow as
    that does. The plant is the usual one of the arm; the controller, if the scenario
    chooses none, the best one that the arm can have.
    """
    settings, old = _settings_of(arm), load_arm(scenario.setup.arm_file).limits
    new = settings.arm.limits
    growth = math.sqrt(len(new.effort_nm) / len(old.effort_nm))
    expect = list[Expectation]()
    for entry in scenario.expect:
        if isinstance(entry, EffortBelow):
            nm = _same_share(entry.effort_below_nm, old.effort_nm, new.effort_nm)
            expect.append(replace(entry, effort_below_nm=nm))
        elif isinstance(entry, SpeedBelow):
            radps = _same_share(entry.speed_below_radps, old.velocity_radps, new.velocity_radps)
            expect.append(replace(entry, speed_below_radps=radps))
        elif isinstance(entry, ErrorBelow):
            expect.append(replace(entry, error_below_rad=growth * entry.error_below_rad))
        else:
            expect.append(entry)
    chosen = scenario.setup
    controller = chosen.controller or (None if chosen.policy else best_controller(settings))
    setup = replace(chosen, arm_file=arm, plant=usual_plant(settings.arm), controller=controller)
    return replace(scenario, setup=setup, expect=tuple(expect))


@cache
def _settings_of(arm: str) -> Settings:
    """Return the settings of an arm, kept: to search a workspace takes a second or two."""
    return load_settings(arm)


def _same_share(
    bounds: Sequence[float], old: Sequence[float], new: Sequence[float]
) -> tuple[float, ...]:
    """Return bounds that are that share of new limits which the largest was of old ones."""
    share = float(np.max(np.array(bounds) / np.array(old)))
    return tuple(share * limit for limit in new)


def shipped_scenarios() -> list[Path]:
    """Return the files of `config/faults/`, in the order of their names."""
    return sorted((share_directory() / 'config' / 'faults').glob('*.yaml'))


def chosen_scenarios(names: Sequence[str], *, is_all: bool = False) -> list[Path]:
    """Return the files of scenarios given by name or path, or, if asked, of all shipped ones."""
    if bool(names) == is_all:
        raise ConfigError(
            'hil: expected names of scenarios or --all, found '
            f'{"both" if is_all else "neither"}; there are '
            f'{", ".join(path.stem for path in shipped_scenarios())}.'
        )
    return shipped_scenarios() if is_all else [faults_file(name) for name in names]
