# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""What can go wrong with a simulated robot, when, and the plant that it happens to.

A fault is on from `at_s` for `for_s`. While it is on it changes each joint state published, see
`fault_line.py`, or what the plant does in the next period: its `Perturbation`, which acts on a
`GroundTruthPlant`. Once it is over it leaves no trace. The truth of the plant is never altered.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
import difflib
from functools import partial
import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from metactl_ros.config import build, MAX_ENTRIES, require_not_negative, scaled, shown
from metactl_ros.dynamics.friction import Friction, friction_torque
from metactl_ros.dynamics.rigid_body import ArmModel, RigidBody
from metactl_ros.errors import ConfigError
from metactl_ros.signals import ArmState, Array, NANOSECONDS_PER_SECOND, seconds
from metactl_ros.sim.plant import Plant, PlantAround, PlantStart

TAU_Z_RANGE_S = (0.02, 1000.0)
"""Memory horizons that a period of 10 ms can simulate, s."""


class Kind(NamedTuple):
    """What a fault does to the robot, or to what it says; "this" and "so" are its amount."""

    meaning: str
    unit: str = ''
    """Of the amount; empty if the fault has none."""
    usual: float = 1.0
    """The amount where none is given."""
    bounds: tuple[float, float] = (1.0, 1.0)
    """The least and the largest amount."""
    is_per_joint: bool = False
    """It can strike one joint alone."""
    needs_real_time: bool = False
    """In lockstep the robot would wait for ever for the answer to a state nobody can use."""


_late = partial(Kind, needs_real_time=True)
_joint = partial(Kind, is_per_joint=True)
KINDS = {
    'drop': _late('this share of states is lost', 'share', 0.2, (0.0, 1.0)),
    'burst': _late('states are held back so long, then come all at once', 's', 0.2, (0.01, 10.0)),
    'delay': _late('states come so much later, in whole periods', 's', 0.02, (0.0, 10.0)),
    'jitter': _late(
        'states come late by whole periods at random, up to this; their order is kept',
        *('s', 0.02, (0.0, 10.0)),
    ),
    'latency': _late(
        'states come so much later, in whole periods; one that begins at 0 s is there from the '
        'first state on, and leaves no gap that would tell of it',
        *('s', 0.22, (0.0, 10.0)),
    ),
    'freeze': _joint('positions and velocities stay, stamps go on'),
    'nan': _joint('positions and velocities are NaN', needs_real_time=True),
    'reorder': _late('of two states the later comes first'),
    'rename': _joint('joints bear other names', needs_real_time=True),
    'sign_flip': _joint('velocities have the wrong sign'),
    'velocity_zero': _joint('velocities are zero'),
    'velocity_scale': _joint(
        'velocities are multiplied by this, as in another unit',
        *('factor', round(math.degrees(1.0), 2), (-1000.0, 1000.0)),
    ),
    'effort_scale': _joint(
        'measured efforts are multiplied by this, as in another unit',
        *('factor', 1000.0, (-1e6, 1e6)),
    ),
    'bias': _joint('this is added to positions', 'rad', 0.05, (-10.0, 10.0)),
    'quantise': _joint(
        'an encoder of so many bits per revolution; velocities are its differences',
        *('bits', 10.0, (1.0, 32.0)),
    ),
    'torque_loss': _joint('this share of each effort is lost', 'share', 0.3, (0.0, 1.0)),
    'friction_step': Kind(
        'Coulomb and static friction are multiplied by this', 'factor', 2.0, (0.0, 20.0)
    ),
    'payload_drop': Kind('payload lost; a negative one is added', 'kg', 0.5, (-10.0, 10.0)),
    'tau_z_drift': Kind('the memory horizon drifts at this rate', 's/s', 0.1, (-10.0, 10.0)),
    'brake': Kind('the brake is engaged whatever is commanded'),
    'jam': _joint('joints do not move whatever the torque'),
    'clock_jump': _late('this is added to stamps', 's', 5.0, (-1e8, 1e8)),
    'clock_rate': _late(
        'stamps advance at this multiple of the time', 'factor', 3.0, (0.001, 1000.0)
    ),
    'clock_stick': _late('stamps advance by 1 ns per state'),
    'silence': _late('no state is published at all'),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Fault:
    """One fault on the timeline of an episode, which begins with its first command."""

    kind: str
    at_s: float
    """When it begins, s."""
    for_s: float = 0.0
    """How long it lasts, s; zero: to the end."""
    amount: float | None = None
    """In the unit of the kind; None: the usual one."""
    joint: int | None = None
    """Which joint it strikes, from 0; None: all."""

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            near = difflib.get_close_matches(self.kind, KINDS, n=1)
            hint = f'did you mean {near[0]!r}?' if near else f'there are {", ".join(KINDS)}.'
            raise ConfigError(f'Fault.kind: unknown kind {self.kind!r}; {hint}')
        require_not_negative('Fault', at_s=self.at_s, for_s=self.for_s)
        kind, where = KINDS[self.kind], f'Fault {self.kind}'
        if self.amount is not None and not kind.unit:
            raise ConfigError(f'{where}: has no amount, found {self.amount}; leave it out.')
        low, high = kind.bounds
        if not low <= self.size <= high:
            raise ConfigError(
                f'{where}: expected an amount of {low:g} to {high:g} {kind.unit}, '
                f'found {self.amount}.'
            )
        if self.joint is not None and not kind.is_per_joint:
            raise ConfigError(f'{where}: strikes all joints, found {self.joint}; leave joint out.')
        if self.joint is not None and self.joint < 0:
            raise ConfigError(f'{where}: expected a joint of at least 0, found {self.joint}.')

    @property
    def size(self) -> float:
        """The amount in force."""
        return KINDS[self.kind].usual if self.amount is None else self.amount

    @property
    def joints(self) -> slice:
        """Which joints it strikes."""
        return slice(None) if self.joint is None else slice(self.joint, self.joint + 1)

    def is_on(self, t_ns: int) -> bool:
        """Return whether the fault is on at a time of the timeline."""
        begin_ns = round(self.at_s * NANOSECONDS_PER_SECOND)
        end_ns = begin_ns + round(self.for_s * NANOSECONDS_PER_SECOND)
        return t_ns >= begin_ns and (not self.for_s or t_ns < end_ns)


def is_plant_fault(kind: str) -> bool:
    """Return whether the simulated robot can have such a fault; others are of processes."""
    return kind in KINDS


def parse_faults(entries: object, num_joints: int, where: str = 'faults') -> list[Fault]:
    """Return the faults of an arm with so many joints from a list of tables, as YAML holds them.

    Raises:
        ConfigError: If it is no list, or an entry is no fault of the plant; it says which.
    """
    if not isinstance(entries, Sequence) or isinstance(entries, str):
        raise ConfigError(f'{where}: expected a list of faults, found {shown(entries)}.')
    faults = [build(Fault, entry, f'{where}[{i}]') for i, entry in enumerate(entries)]
    for i, fault in enumerate(faults):
        require_joint(f'{where}[{i}]: Fault {fault.kind}', fault.joint, num_joints)
    return faults


def require_joint(where: str, joint: int | None, num_joints: int) -> None:
    """Refuse a joint, counted from 0, that an arm with so many joints does not have."""
    if joint is not None and not 0 <= joint < num_joints:
        raise ConfigError(f'{where}: expected a joint of 0 to {num_joints - 1}, found {joint}.')


def plant_entries(scenario: object, where: str) -> list[Any]:
    """Return those entries of a scenario's list `faults` that are for the simulated robot.

    Faults of processes are left out; what looks like a misspelt fault of the robot is kept, so
    that `parse_faults` refuses it.
    """
    if not isinstance(scenario, Mapping) or not isinstance(scenario.get('faults'), list):
        raise ConfigError(f'{where}: expected a list `faults:`; write `faults: []` for none.')
    entries = scenario['faults']
    if len(entries) > MAX_ENTRIES:
        raise ConfigError(
            f'{where}: faults: expected at most {MAX_ENTRIES} entries, found {len(entries)}; '
            'leave some out.'
        )
    return [entry for entry in entries if _is_meant_for_plant(entry)]


def _is_meant_for_plant(entry: object) -> bool:
    kind = entry.get('kind') if isinstance(entry, Mapping) else None
    if not isinstance(kind, str):
        return True
    return is_plant_fault(kind) or bool(difflib.get_close_matches(kind, KINDS, cutoff=0.75))


class FaultSchedule:
    """Which faults are on: those of a timeline, and those switched on by hand."""

    def __init__(self, timeline: Iterable[Fault] = (), start_s: float = 0.0) -> None:
        self._timeline = tuple(timeline)
        self._start_ns = round(start_s * NANOSECONDS_PER_SECOND)
        self.switched: dict[str, Fault] = {}
        """Faults on whatever the timeline says, by kind."""

    def time_ns(self, driven_ns: int) -> int:
        """Return the time on the timeline, `driven_ns` after the first command of the episode."""
        return self._start_ns + driven_ns

    def active(self, driven_ns: int) -> tuple[Fault, ...]:
        """Return the faults that are on; the timeline waits for the first command.

        Only a latency that begins at once does not: it is how far the robot is away.
        """
        if not self._timeline:
            return tuple(self.switched.values())
        t_ns, is_waiting = self.time_ns(driven_ns), driven_ns <= 0
        scheduled = (
            fault
            for fault in self._timeline
            if fault.is_on(t_ns) and (fault.kind == 'latency' or not is_waiting)
        )
        return (*scheduled, *self.switched.values())


class Perturbation(NamedTuple):
    """What faults do to the plant itself during the next period."""

    effort_share: tuple[float, ...]
    """What is left of the effort, one entry per joint."""
    is_jammed: tuple[bool, ...]
    """Which joints do not move, one entry per joint."""
    friction_factor: float = 1.0
    payload_lost_kg: float = 0.0
    tau_z_shift_s: float = 0.0
    is_braked: bool = False


def no_perturbation(num_joints: int) -> Perturbation:
    """Return that of an arm without faults."""
    return Perturbation((1.0,) * num_joints, (False,) * num_joints)


def perturbation_of(faults: Iterable[Fault], t_ns: int, num_joints: int) -> Perturbation:
    """Return what faults that are on do to the plant at a time of the timeline.

    Raises:
        ConfigError: If a fault strikes a joint that the plant does not have.
    """
    none = no_perturbation(num_joints)
    shares, jams = list(none.effort_share), list(none.is_jammed)
    factor, lost_kg, shift_s, is_braked = 1.0, 0.0, 0.0, False
    for fault in faults:
        require_joint(f'Fault {fault.kind}', fault.joint, num_joints)
        if fault.kind == 'torque_loss':
            shares[fault.joints] = [(1.0 - fault.size) * share for share in shares[fault.joints]]
        elif fault.kind == 'friction_step':
            factor *= fault.size
        elif fault.kind == 'payload_drop':
            lost_kg += fault.size
        elif fault.kind == 'tau_z_drift':
            shift_s += fault.size * max(seconds(t_ns) - fault.at_s, 0.0)
        elif fault.kind == 'brake':
            is_braked = True
        elif fault.kind == 'jam':
            jams[fault.joints] = [True] * len(jams[fault.joints])
    return Perturbation(tuple(shares), tuple(jams), factor, lost_kg, shift_s, is_braked)


def perturbed_friction(friction: Friction, factor: float) -> Friction:
    """Return friction with its Coulomb and static levels multiplied.

    Where they grow, the smooth sign widens with them: its slope at rest stays, and with it the
    stability of a fixed step, see `smallest_smoothing`.
    """
    return replace(
        friction,
        coulomb_nm=scaled(factor, friction.coulomb_nm),
        static_nm=scaled(factor, friction.static_nm),
        smoothing_velocity_radps=scaled(max(factor, 1.0), friction.smoothing_velocity_radps),
    )


def with_stops(
    body: RigidBody,
    friction: Friction,
    state: ArmState,
    memory_nm: Array,
    effort_nm: Array,
    is_jammed: NDArray[np.bool_],
) -> Array:
    """Return the effort that acts on an arm whose jammed joints are held by stops, N m, (n,).

    M qdd + C qd + g + F = tau is solved for the free joints with qdd = 0 at the others; these get
    what keeps it so, whatever the motors give. The jammed joints of the state are at rest, and the
    body is the arm with its payload.
    """
    mass = body.inertia_matrix(state.q_rad)
    bias = body.at(state.q_rad, state.qd_radps).bias
    bias = bias + friction_torque(friction, state.qd_radps, memory_nm)
    free = ~is_jammed
    qdd = np.zeros_like(effort_nm)
    qdd[free] = np.linalg.solve(mass[np.ix_(free, free)], (effort_nm - bias)[free])
    return np.where(is_jammed, mass @ qdd + bias, effort_nm)


class GroundTruthPlant(PlantAround):
    """A plant that keeps its true state and effort, which `SensedPlant` hides.

    It applies the faults of the plant on top of whatever conditions it is told.
    """

    truth: ArmState
    payload_kg: Array
    delivered_nm: Array

    def __init__(self, plant: Plant, arm: ArmModel, friction: Friction) -> None:
        super().__init__(plant)
        self._arm, self._friction = arm, friction
        self._perturbation = self._unperturbed = no_perturbation(len(arm.joint_names))
        self._effort_share = np.array(self._perturbation.effort_share)

    def reset(self, start: PlantStart) -> ArmState:
        """Begin a new run; nothing has been delivered yet."""
        self.payload_kg, self.delivered_nm = start.payload_kg, np.zeros(0)
        self._told = self._in_force = start.payload_kg, start.tau_z_s
        self._before_ns = 0  # how far the run was when a jam last set the plant anew
        self.truth = self._plant.reset(start)
        if self._perturbation != self._unperturbed:
            self.set_conditions(*self._told)
        return self.truth

    def step(self, effort_nm: Array) -> ArmState:
        """Advance the plant; keep effort and state."""
        self.delivered_nm = self._effort_share * effort_nm
        if any(self._perturbation.is_jammed):
            self.truth = self._step_jammed(np.array(self._perturbation.is_jammed))
        else:
            self.truth = self._continued(self._plant.step(self.delivered_nm))
        return self.truth

    def _step_jammed(self, is_jammed: NDArray[np.bool_]) -> ArmState:
        """Advance a plant whose stops take what the motors give.

        Their torque is the mean of those at both ends of the period; what it still lets a jammed
        joint move is taken back.
        """
        before = self._rested(self.truth, is_jammed)
        memory = self._plant.memory_nm
        first = self._stops_nm(before, memory, is_jammed)
        self._set_anew(before, memory)
        tried = self._rested(self._plant.step(first), is_jammed, before.q_rad)
        last = self._stops_nm(tried, self._plant.memory_nm, is_jammed)
        self._set_anew(before, memory)
        moved = self._continued(self._plant.step(0.5 * (first + last)))
        after = self._rested(moved, is_jammed, before.q_rad)
        self._set_anew(after, self._plant.memory_nm)
        return after

    @staticmethod
    def _rested(
        state: ArmState, is_jammed: NDArray[np.bool_], at_rad: Array | None = None
    ) -> ArmState:
        """Return a state whose jammed joints stand still, at other positions if given."""
        q = state.q_rad if at_rad is None else np.where(is_jammed, at_rad, state.q_rad)
        return ArmState(state.stamp_ns, q, np.where(is_jammed, 0.0, state.qd_radps))

    def _stops_nm(self, state: ArmState, memory_nm: Array, is_jammed: NDArray[np.bool_]) -> Array:
        body = self._arm.body(float(self.payload_kg))
        friction = perturbed_friction(self._friction, self._perturbation.friction_factor)
        return with_stops(body, friction, state, memory_nm, self.delivered_nm, is_jammed)

    def _set_anew(self, state: ArmState, memory_nm: Array) -> None:
        self._before_ns = state.stamp_ns
        motion = (state.q_rad, state.qd_radps, memory_nm)
        self._plant.reset(PlantStart(*motion, *self._in_force, np.asarray(0)))

    def _continued(self, state: ArmState) -> ArmState:
        """Return a state with the time since the start of the run."""
        if not self._before_ns:
            return state
        return replace(state, stamp_ns=self._before_ns + state.stamp_ns)

    def set_conditions(self, payload_kg: Array, tau_z_s: Array) -> None:
        """Change the plant; keep the payload."""
        self._told = payload_kg, tau_z_s
        lost_kg, shift_s = self._perturbation.payload_lost_kg, self._perturbation.tau_z_shift_s
        if lost_kg or shift_s:  # each kept physical
            payload_kg = np.maximum(payload_kg - lost_kg, 0.0)
            tau_z_s = np.clip(tau_z_s + shift_s, *TAU_Z_RANGE_S)
        self._plant.set_conditions(payload_kg, tau_z_s)
        self._in_force = payload_kg, tau_z_s
        self.payload_kg = payload_kg

    def set_friction(self, friction: Friction) -> None:
        """Change the friction that a perturbation multiplies."""
        self._friction = friction
        self._plant.set_friction(perturbed_friction(friction, self._perturbation.friction_factor))

    def apply(self, perturbation: Perturbation) -> None:
        """Let faults act on the plant from the next step on."""
        if perturbation == self._perturbation:
            return
        before, self._perturbation = self._perturbation, perturbation
        self._effort_share = np.array(perturbation.effort_share)
        self.set_conditions(*self._told)
        if perturbation.friction_factor != before.friction_factor:
            self.set_friction(self._friction)
