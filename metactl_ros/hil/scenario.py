# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""A scenario: what runs, what goes wrong and when, and what must hold. One YAML file each.

    title: The joint states stop for 0.3 s
    duration_s: 6
    setup: {plant: rk4, controller: momentum_observer}        # fields of fleet.Setup
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
      - {alone: true}                                         # nobody else sends commands
      - {in_order: true}                                      # no state believed is older
      - {certified: true}                                     # the condition held in NOMINAL
    margins: {speed: 2.0, position_rad: 1.0, reason: nobody could know}
    protection: staleness

What `always.py` demands is demanded of every run besides, from its first driven step on; only
where physics makes that impossible may `margins` be larger, with the reason.

Times count from the first step the robot is driven. Where one is the beginning or the end of a
fault, it means when that really came.
"""

from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Literal, TypeAlias

from metactl_ros.baselines import RivalName
from metactl_ros.config import require_not_negative, require_positive
from metactl_ros.errors import ConfigError
from metactl_ros.hil.scripted_fault import ScriptedFault
from metactl_ros.processes import Setup
from metactl_ros.settings import load_file, share_directory

ModeName: TypeAlias = Literal['NOMINAL', 'WARMUP', 'FALLBACK', 'STOP', 'BLIND', 'FAULT']

REACHED = ('mode', 'mode_in', 'leaves_nominal', 'braking', 'zero_or_holding')
"""Expectations of something that comes about: they need `after_s` and `within_s`."""
LASTING = (
    'never',
    'only',
    'error_below_rad',
    'speed_below_radps',
    'effort_below_nm',
    'rate_above_hz',
    'gap_below_s',
    'alone',
    'in_order',
    'certified',
)
"""Expectations of something that holds: `from_s` and `to_s` may narrow them."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Expectation:
    """One thing that must be true of a run; exactly one of REACHED and LASTING is given."""

    mode: ModeName | None = None
    mode_in: tuple[ModeName, ...] | None = None
    leaves_nominal: bool | None = None
    braking: bool | None = None
    zero_or_holding: bool | None = None
    never: ModeName | None = None
    only: tuple[ModeName, ...] | None = None
    error_below_rad: float | None = None
    speed_below_radps: tuple[float, ...] | None = None
    effort_below_nm: tuple[float, ...] | None = None
    rate_above_hz: float | None = None
    gap_below_s: float | None = None
    alone: bool | None = None
    in_order: bool | None = None
    certified: bool | None = None
    after_s: float | None = None
    within_s: float | None = None
    from_s: float | None = None
    to_s: float | None = None

    def __post_init__(self) -> None:
        given = [name for name in (*REACHED, *LASTING) if getattr(self, name) is not None]
        if len(given) != 1:
            raise ConfigError(
                f'Expectation: expected exactly one of {(*REACHED, *LASTING)}, found {given}.'
            )
        if getattr(self, given[0]) is False and given[0] != 'braking':
            raise ConfigError(f'Expectation.{given[0]}: expected true, found false; leave it out.')
        times = ('after_s', 'within_s') if given[0] in REACHED else ('from_s', 'to_s')
        set_times = {
            name: value
            for name in ('after_s', 'within_s', 'from_s', 'to_s')
            if (value := getattr(self, name)) is not None
        }
        wrong = sorted(set(set_times) - set(times))
        missing = sorted(set(times) - set(set_times)) if given[0] in REACHED else []
        if wrong or missing:
            raise ConfigError(
                f'Expectation.{given[0]}: goes with {times}, found {wrong or "not"} '
                f'{missing or ""}; correct the times.'
            )
        require_not_negative('Expectation', **set_times)

    @property
    def subject(self) -> str:
        """Return which of REACHED and LASTING it is."""
        return next(n for n in (*REACHED, *LASTING) if getattr(self, n) is not None)

    def __str__(self) -> str:
        named = ((field.name, getattr(self, field.name)) for field in fields(self))
        parts = (
            f'{name} {list(value) if isinstance(value, tuple) else value}'
            for name, value in named
            if value is not None
        )
        return ', '.join(parts)


@dataclass(frozen=True, kw_only=True, slots=True)
class ScenarioSetup:
    """What of `fleet.Setup` a scenario may choose; the rest is as usual."""

    plant: Literal['bullet', 'rk4'] | None = None
    controller: Literal['policy', 'ct', RivalName] | None = None
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
    """Whoever watches resets a FAULT that has lasted this long, s; null: nobody does."""

    def __post_init__(self) -> None:
        require_positive('Scenario', duration_s=self.duration_s)
        late = [fault.kind for fault in self.faults if fault.at_s >= self.duration_s]
        if late:
            raise ConfigError(
                f'Scenario.faults: {late} would begin after the end at {self.duration_s} s; begin '
                'them earlier or let it last longer.'
            )


def load_scenario(path: Path) -> Scenario:
    """Return the scenario of a file.

    Raises:
        ConfigError: With one line per mistake, each naming file and key.
    """
    return load_file(Scenario, path, path.name)


def shipped_scenarios() -> list[Path]:
    """Return the files of `config/faults/`, in the order of their names."""
    return sorted((share_directory() / 'config' / 'faults').glob('*.yaml'))
