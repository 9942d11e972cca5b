# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""A robot as its driver shows it: plant, brake, command check and watchdog, without ROS.

The free-running robot integrates period k -> k+1 at the end of it, with the command received last
by then. A command is therefore held for whole periods, and latency below one period is not felt;
`sensing.transport_delay_s` adds whole periods of it. An episode waits for its first command; after
that the brake holds the arm whenever commands stay away.

The lockstep robot stands still until the command arrives that answers its last reading.

Both limit the rate of commands, as a drive does: the effort moves from that of the
period before towards the command by at most `limits.effort_rate_nmps`. The first command of an
episode is where it begins. And both brake from a stop request until it is taken back and a command
has come after that.
"""

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from metactl_ros.dynamics.rigid_body import ArmModel
from metactl_ros.runtime.joint_states import MessageError, read_effort
from metactl_ros.settings import make_plant, PlantName, Settings
from metactl_ros.signals import ArmState, Array, period_ns_of, ROUNDING_NM, seconds
from metactl_ros.sim.faults import GroundTruthPlant, Perturbation
from metactl_ros.sim.plant import PlantStart, SensedPlant

# A reason quotes the message, and a message may be of any size.
MAX_REASON_LENGTH = 300


class Reading(NamedTuple):
    """All that is known of the robot at one instant; arrays have shape (n,)."""

    stamp_ns: int
    """Simulated time; grows by one period from reading to reading, also across restarts."""
    measured: ArmState  # through the sensors
    truth: ArmState
    memory_nm: Array
    """The true friction memory z."""
    effort_nm: Array
    """What the motors delivered during the last period; empty before the first of an episode."""
    is_braking: bool
    driven_ns: int
    """Simulated time since the first command of the episode; zero before it."""


@dataclass(slots=True)
class Counts:
    """Steps, steps that held an old command, brakings, rejected commands, the last one's fault."""

    steps: int = 0
    held: int = 0
    brakes: int = 0
    rejected: int = 0
    last_reason: str = ''


class SimulatedRobot:
    """What both robots share; `reading` is the newest, the first bears the stamp `origin_ns`."""

    def __init__(
        self, plant: PlantName, settings: Settings, start: PlantStart, origin_ns: int
    ) -> None:
        rate_hz = settings.controller.law.rate_hz
        self.arm = settings.arm
        self.period_ns = period_ns_of(rate_hz)
        self.counts = Counts()
        # The sensing effects go around the plant that keeps the truth, not below it.
        friction = settings.plant.friction
        ideal = make_plant(plant, without_sensing(settings))
        self._ground_truth = GroundTruthPlant(ideal, settings.arm, friction)
        self._plant = SensedPlant(self._ground_truth, settings.plant.sensing, rate_hz)
        self._stamp_ns = origin_ns - self.period_ns
        self._driven_ns = 0
        period_s = seconds(self.period_ns)
        self._damping_nmsprad = brake_damping(settings.arm, period_s)
        # The controller's last check grants as much for rounding.
        self._reach_nm = period_s * np.array(self.arm.limits.effort_rate_nmps) + ROUNDING_NM
        self._drive_nm: Array | None = None  # what the drive gave in the period before
        self._is_braked = False  # by a fault
        self._is_stop_asked = self._is_stopped = False
        self.reading = self._begin(start)

    def set_conditions(self, payload_kg: float, tau_z_s: float) -> None:
        """Change payload and memory horizon from the next step on."""
        self._plant.set_conditions(np.asarray(payload_kg), np.asarray(tau_z_s))

    def apply(self, perturbation: Perturbation) -> None:
        """Let faults act on the plant from the next step on."""
        self._is_braked = perturbation.is_braked
        self._ground_truth.apply(perturbation)

    def request_stop(self, *, is_asked: bool) -> None:
        """Brake from now on; or, once that is taken back, until the next command comes."""
        self._is_stop_asked = is_asked
        self._is_stopped = self._is_stopped or is_asked

    def close(self) -> None:
        """Release the plant."""
        self._plant.close()

    def _begin(self, start: PlantStart) -> Reading:
        self._driven_ns, self._drive_nm = 0, None
        return self._read(self._plant.reset(start), is_braking=False)

    def _obey(self, command_nm: Array) -> Reading:
        """Take a step with a command, as fast as the drive can follow it; or with the brake."""
        if self._is_stopped or self._is_braked:
            return self._brake()
        if self._drive_nm is not None:
            reach = self._reach_nm
            command_nm = np.clip(command_nm, self._drive_nm - reach, self._drive_nm + reach)
        return self._advance(command_nm, is_braking=False)

    def _brake(self) -> Reading:
        self.counts.brakes += not self.reading.is_braking
        payload_kg, truth = float(self._ground_truth.payload_kg), self._ground_truth.truth
        effort = brake_effort(self.arm, self._damping_nmsprad, payload_kg, truth)
        return self._advance(effort, is_braking=True)

    def _advance(self, effort_nm: Array, *, is_braking: bool) -> Reading:
        self.counts.steps += 1
        self._driven_ns += self.period_ns
        self._drive_nm = effort_nm
        return self._read(self._plant.step(effort_nm), is_braking=is_braking)

    def _release_stop(self) -> None:
        """Let go of a brake that a request had set, if it was taken back since."""
        self._is_stopped = self._is_stop_asked

    def _read(self, measured: ArmState, *, is_braking: bool) -> Reading:
        self._stamp_ns += self.period_ns
        true = self._ground_truth
        facts = (measured, true.truth, true.memory_nm, true.delivered_nm)
        self.reading = Reading(self._stamp_ns, *facts, is_braking, self._driven_ns)
        return self.reading

    def _read_command(self, message: Any) -> tuple[int, Array] | None:
        """Return stamp (ns) and efforts (N m), shape (n,), of a command the motors can obey.

        None of one with a joint or its effort missing, not finite or above its limit.
        """
        joints, limits = self.arm.joint_names, self.arm.limits.effort_nm
        try:
            stamp_ns, effort = read_effort(message, joints)
        except MessageError as error:
            self._refuse(error)
            return None
        for joint, value, limit in zip(joints, effort.tolist(), limits, strict=True):
            if abs(value) > limit:
                self._refuse(f'joint {joint!r}: expected at most {limit} N m, found {value}.')
                return None
        return stamp_ns, effort

    def _refuse(self, reason: object) -> bool:
        self.counts.rejected += 1
        self.counts.last_reason = str(reason)[:MAX_REASON_LENGTH]
        return False


class FreeRunningRobot(SimulatedRobot):
    """A robot in real time: it waits for the first command, and brakes when commands stay away.

    Until then it stands where the episode begins, so that this is the one of an evaluation.
    With a command received at time r, every step later than r + `command_timeout_s` brakes. Steps
    are a period apart, so the brake acts at most one period after the timeout.
    """

    def __init__(
        self,
        plant: PlantName,
        settings: Settings,
        start: PlantStart,
        origin_ns: int,
        command_timeout_s: float,
    ) -> None:
        super().__init__(plant, settings, start, origin_ns)
        self.reading = _standing(self.reading)
        self._timeout_s = command_timeout_s
        self._command_nm: Array | None = None
        self._received_ns = 0
        self._is_new = False
        self._restart_from: PlantStart | None = None

    def receive(self, message: Any, now_ns: int) -> bool:
        """Return whether a command is obeyed; one that is not leaves the watchdog unfed."""
        if (command := self._read_command(message)) is None:
            return False
        self._command_nm, self._received_ns, self._is_new = command[1], now_ns, True
        self._release_stop()
        return True

    def restart(self, start: PlantStart) -> None:
        """Make the next step the start of an episode, which waits for a command."""
        self._restart_from = start

    def step(self, now_ns: int, num_missed: int = 0) -> Reading:
        """Simulate the period that ends now, after some that were missed.

        The arm stands still in these, its clock does not: what is read now is stamped now.
        """
        self._stamp_ns += num_missed * self.period_ns
        if self._restart_from is not None:
            start, self._restart_from, self._command_nm = self._restart_from, None, None
            self.reading = _standing(self._begin(start))
            return self.reading
        is_new, self._is_new = self._is_new, False
        command = self._command_nm
        if command is None:
            self.reading = _standing(self._read(self.reading.measured, is_braking=True))
            return self.reading  # the episode waits
        if seconds(now_ns - self._received_ns) > self._timeout_s:
            return self._brake()
        self.counts.held += not is_new
        return self._obey(command)


class LockstepRobot(SimulatedRobot):
    """A robot that takes one step per answer to its last reading; it brakes only on request."""

    def answer(self, message: Any) -> bool:
        """Take a step if the command is valid and bears the stamp of the reading; say whether."""
        if (command := self._read_command(message)) is None:
            return False
        stamp_ns, effort = command
        if stamp_ns != self.reading.stamp_ns:
            wanted = f'the stamp {self.reading.stamp_ns} ns of the joint state it answers'
            return self._refuse(f'command: expected {wanted}, found {stamp_ns} ns.')
        self._release_stop()
        self._obey(effort)
        return True

    def restart(self, start: PlantStart) -> None:
        """Begin the episode again, now; an answer to the reading before comes too late."""
        self._begin(start)


def _standing(reading: Reading) -> Reading:
    """Return a reading of an arm that the brake holds until its episode begins.

    The episode may begin with a velocity, but positions that stay say that there is none yet, and
    a controller must not see them contradict each other.
    """
    measured, truth = (
        replace(state, qd_radps=np.zeros_like(state.qd_radps))
        for state in (reading.measured, reading.truth)
    )
    return reading._replace(measured=measured, truth=truth, is_braking=True)


def brake_damping(arm: ArmModel, period_s: float) -> Array:
    """Return the damping D of the brake, N m s/rad, shape (n,): 73.5 and 8.6 for the shipped arm.

    D_i = 1 / (n dt max_q (M^-1)_ii). The trace of dt M^-1 D is then at most 1 in every posture and
    with every payload, hence its eigenvalues are: a velocity sampled once per period and opposed
    by D for the whole of it dies out without changing sign.
    """
    return np.asarray(1.0 / (len(arm.joint_names) * period_s * arm.largest_mobility()))


def brake_effort(
    arm: ArmModel, damping_nmsprad: Array, payload_kg: float, truth: ArmState
) -> Array:
    """Return g(q) - D qd, each joint clamped to its effort limit, in N m, shape (n,).

    D is diagonal, not a share of M(q): what a limit leaves of it still opposes every joint.
    """
    limits = np.array(arm.limits.effort_nm)
    gravity = arm.body(payload_kg).at(truth.q_rad, truth.qd_radps).gravity
    return np.clip(gravity - damping_nmsprad * truth.qd_radps, -limits, limits)


def without_sensing(settings: Settings) -> Settings:
    """Return the settings with ideal sensors, motors and conditions."""
    off: dict[str, Any] = {'velocity_noise_radps': 0.0, 'encoder_bits': 0}
    off |= {'transport_delay_s': 0.0, 'actuator_limit_nm': None, 'payload_step_kg': 0.0}
    ideal = replace(settings.plant.sensing, tau_z_drift_to_s=None, **off)
    return replace(settings, plant=replace(settings.plant, sensing=ideal))
