# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""What the controller publishes: commands, the stop request, and what each tick was made from.

    joint_commands                        JointState       effort per joint, stamped
    forward_effort_controller/commands    Float64MultiArray  the same, in the order of the joints
    ~/reference                           JointTrajectory  q_d, qd_d, qdd_d in force
    ~/feedback                            JointState       the state acted upon; effort: before
    ~/error                               JointState       q_d - q, qd_d - qd
    ~/output                              JointState       effort decided; velocity: effort wanted
    ~/gains                               JointState       position: theta; velocity: the proposal
    ~/shield                              JointState       position: the values of SHIELD_NAMES,
                                                           half-space, estimate if there is one

What a tick decided is what joint_commands carries, unless the last check replaced it. All carry
the stamp of the command; that of the state is in ~/shield. Where several states came
since the last tick, all of them entered the window: ~/feedback then has a message for each and
~/reference a point for each, oldest first, and the last ones are those acted upon.
time_from_start of a point is the stamp of its state on the controller's timeline, which begins at
zero. A tick can be computed again from this alone, see `replay/recompute.py`.

A command bears the time of its state in simulated time, else that of the wall clock. What a stamp
cannot hold, as after January 2038, becomes the last that it can; a clock that fails gives none.
Neither keeps a command from going out, least of all the last zero.

`stop_request` is true in FAULT, in BLIND once the torque has faded, and after an error or a hang.
Zero torque lets an arm fall, and the watchdog that every robot needs sees none of these: commands
go on. A robot that can brake should.

A sensor is read best effort, which fits every publisher; a command must be reliable, or
ros2_control's controllers do not connect. No deadline is asked of a publisher: one that offers
none would silently not be received.
"""

from collections.abc import Callable, Mapping, Sequence
import math
from typing import Any, SupportsFloat

from diagnostic_msgs.msg import DiagnosticArray, DiagnosticStatus, KeyValue
from rclpy.qos import DurabilityPolicy, QoSProfile, ReliabilityPolicy
from sensor_msgs.msg import JointState
from std_msgs.msg import Bool, Float64MultiArray, MultiArrayDimension
from trajectory_msgs.msg import JointTrajectory, JointTrajectoryPoint

from metactl_ros.bag.topics import ESTIMATED_PAYLOAD, SHIELD_NAMES, STATE_NAMES
from metactl_ros.runtime.control_thread import Command
from metactl_ros.runtime.controller import Tick
from metactl_ros.runtime.joint_states import LAST_STAMP_NS, set_stamp
from metactl_ros.signals import Array, NANOSECONDS_PER_SECOND

SENSOR = QoSProfile(depth=5, reliability=ReliabilityPolicy.BEST_EFFORT)
RELIABLE = QoSProfile(depth=1, reliability=ReliabilityPolicy.RELIABLE)
TELEMETRY = QoSProfile(
    depth=1000, reliability=ReliabilityPolicy.RELIABLE, durability=DurabilityPolicy.TRANSIENT_LOCAL
)
"""For recorders: what was published before one was found is sent then, ten seconds of it."""
LATCHED = QoSProfile(
    depth=1, reliability=ReliabilityPolicy.RELIABLE, durability=DurabilityPolicy.TRANSIENT_LOCAL
)
"""For late subscribers: the last message is kept."""


def joint_state(stamp_ns: int, names: Sequence[str], **fields: Array) -> JointState:
    """Return a JointState with the given fields."""
    message = JointState(name=list(names), **{k: v.tolist() for k, v in fields.items()})
    set_stamp(message.header.stamp, stamp_ns)
    return message


def status(name: str, level: bytes, message: str, values: Mapping[str, object]) -> Any:
    """Return a DiagnosticStatus."""
    texts = ((k, f'{v:.6g}' if isinstance(v, float) else str(v)) for k, v in values.items())
    pairs = [KeyValue(key=key, value=text) for key, text in texts]
    about = {'name': name, 'message': message, 'hardware_id': 'metactl_ros'}
    return DiagnosticStatus(level=level, values=pairs, **about)


def diagnostics(stamp_ns: int, *statuses: Any) -> Any:
    """Return a DiagnosticArray."""
    array = DiagnosticArray(status=list(statuses))
    set_stamp(array.header.stamp, stamp_ns)
    return array


def forward_command(names: Sequence[str], effort_nm: Array) -> Float64MultiArray:
    """Return the command of ros2_control's forward_command_controller."""
    message = Float64MultiArray(data=effort_nm.tolist())
    message.layout.dim = [
        MultiArrayDimension(label=','.join(names), size=len(names), stride=len(names))
    ]
    return message


def reference_message(stamp_ns: int, names: Sequence[str], tick: Tick) -> JointTrajectory:
    """Return the references of a tick, one point for each state seen, the last in force."""
    message = JointTrajectory(joint_names=list(names))
    set_stamp(message.header.stamp, stamp_ns)
    for state, reference in tick.seen or [(tick.state, tick.reference)]:
        point = JointTrajectoryPoint(
            positions=reference.q_rad.tolist(),
            velocities=reference.qd_radps.tolist(),
            accelerations=reference.qdd_radps2.tolist(),
        )
        set_stamp(point.time_from_start, state.stamp_ns)
        message.points.append(point)
    return message


def shield_values(
    tick: Tick, state_stamp_ns: int, late_ns: int, *, has_state: bool = False
) -> list[float]:
    """Return the values of SHIELD_NAMES, then the half-space, then any estimate."""
    step, decision, half_space = tick.step, tick.step.decision, tick.step.decision.half_space
    stamp_sec, stamp_nanosec = divmod(state_stamp_ns, NANOSECONDS_PER_SECOND)
    values: dict[str, SupportsFloat] = {
        'mode': step.modes,
        'reason': decision.reason,
        'was_moved': decision.was_moved,
        'is_feasible': decision.is_feasible,
        'distance': decision.distance if math.isfinite(decision.distance) else -1.0,
        'excess': decision.excess,
        'excess_after_limits': step.excess_after_limits,
        'lyapunov_value': half_space.value,
        **tick.health._asdict(),
        'payload_estimate_kg': tick.payload_kg,
        'was_restarted': tick.was_restarted,
        'num_states': len(tick.seen),
        'now_s': tick.loop_ns / NANOSECONDS_PER_SECOND,
        'late_ms': late_ns / 1e6,
        'inference_ms': tick.inference_ns / 1e6,
        'state_stamp_sec': stamp_sec,
        'state_stamp_nanosec': stamp_nanosec,
        'cause': step.causes,
        'cause_joint': step.joints,
        'was_resumed': tick.was_resumed,
    }
    named = [float(values[name]) for name in SHIELD_NAMES]
    half = [*map(float, half_space.normal), float(half_space.constant)]
    if step.estimate is None:
        return [*named, *half]
    q, qd, d_nm, payload_kg = step.estimate
    state = [*q.tolist(), *qd.tolist(), float(payload_kg)] if has_state else []
    return [*named, *half, *d_nm.tolist(), *state]


class Telemetry:
    """The publishers of one node; `publish` sends what a tick was made from."""

    def __init__(
        self,
        create: Callable[[Any, str], Any],
        joint_names: Sequence[str],
        gains: Sequence[str],
        *,
        has_estimate: bool,
        has_state: bool = False,
    ) -> None:
        self._joints, self._gains = joint_names, gains
        self._shield_names = [*SHIELD_NAMES, *(f'normal.{name}' for name in gains), 'constant']
        if has_estimate:
            self._shield_names += [f'estimate.{name}' for name in joint_names]
        self._has_state = has_state
        if has_state:
            self._shield_names += [
                f'{signal}.{name}' for signal in STATE_NAMES for name in joint_names
            ]
            self._shield_names.append(ESTIMATED_PAYLOAD)
        self._reference = create(JointTrajectory, '~/reference')
        self._feedback = create(JointState, '~/feedback')
        self._error = create(JointState, '~/error')
        self._output = create(JointState, '~/output')
        self._gain = create(JointState, '~/gains')
        self._shield = create(JointState, '~/shield')

    def publish(self, stamp_ns: int, state_stamp_ns: int, tick: Tick, late_ns: int) -> None:
        """Publish a tick whose command had the given stamp."""
        state, reference, joints = tick.state, tick.reference, self._joints
        error, error_rate = reference.q_rad - state.q_rad, reference.qd_radps - state.qd_radps
        theta = tick.step.decision.gains.theta
        message = joint_state(stamp_ns, self._shield_names)
        message.position = shield_values(tick, state_stamp_ns, late_ns, has_state=self._has_state)
        self._shield.publish(message)
        self._reference.publish(reference_message(stamp_ns, joints, tick))
        before = tick.effort_before_nm
        for seen, _ in tick.seen or [(state, reference)]:
            fields = {'position': seen.q_rad, 'velocity': seen.qd_radps, 'effort': before}
            self._feedback.publish(joint_state(stamp_ns, joints, **fields))
        self._error.publish(joint_state(stamp_ns, joints, position=error, velocity=error_rate))
        self._output.publish(
            joint_state(stamp_ns, joints, effort=tick.step.effort_nm, velocity=tick.step.wanted_nm)
        )
        self._gain.publish(
            joint_state(stamp_ns, self._gains, position=theta, velocity=tick.action[: len(theta)])
        )


class CommandSender:
    """Publishes commands and the stop request; without publishers, as in shadow, nothing."""

    stamped: Any | None = None
    """Of joint_commands."""
    forward: Any | None = None
    """Of the commands of ros2_control."""
    stop_request: Any | None = None
    """Latched, for late subscribers."""

    def __init__(
        self,
        joint_names: Sequence[str],
        now_ns: Callable[[], int] | None,
        log_error: Callable[[str], None],
    ) -> None:
        """Make one; `now_ns` is the wall clock, or None in simulated time."""
        self._joints, self._now_ns, self._log_error = joint_names, now_ns, log_error
        self._logged: set[str] = set()
        self._is_braking: bool | None = None

    def send(self, command: Command) -> int:
        """Publish a command, and the stop request if it changed; return the stamp, ns."""
        stamp_ns = self._stamp_of(command)
        try:
            if self.stamped is not None:
                message = joint_state(stamp_ns, self._joints, effort=command.effort_nm)
                self.stamped.publish(message)
            if self.forward is not None:
                self.forward.publish(forward_command(self._joints, command.effort_nm))
        finally:
            if self.stop_request is not None and command.must_brake is not self._is_braking:
                self.stop_request.publish(Bool(data=command.must_brake))
                self._is_braking = command.must_brake
        return stamp_ns

    def _stamp_of(self, command: Command) -> int:
        if self._now_ns is None:
            return command.state_stamp_ns
        try:
            stamp_ns = self._now_ns()
        except Exception as error:  # whatever a clock raises
            self._log_once(f'clock: {error!r}; commands bear no stamp.')
            return 0
        if stamp_ns > LAST_STAMP_NS:
            self._log_once(
                'clock: is beyond January 2038, which no stamp can hold; all commands bear the '
                'last one that it can. Set the clock of this machine.'
            )
        return stamp_ns

    def _log_once(self, text: str) -> None:
        if text not in self._logged:
            self._logged.add(text)
            self._log_error(text)
