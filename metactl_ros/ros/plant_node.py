# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""The simulated robot behind ROS topics: `joint_commands` in, `joint_states` out.

    python -m metactl_ros.ros.plant_node --ros-args -p plant:=rk4 -p lockstep:=true

In real time, the state of deadline k bears the stamp start + k periods exactly and is published at
that deadline; of one that is missed there is no state. In lockstep, state k waits for the
command with its own stamp; the first is 1 s, and /clock has the same time. See
`simulated_robot.py`. While `stop_request` is true the robot brakes, whatever is commanded.

Faults come from a file (parameter `faults`) and from the services ~/fault/KIND; ~/faults names
those that are on. They decide what becomes of a reading and of the period after it; ~/truth stays
true.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
import gc
from pathlib import Path
import sys
import threading
import time
import traceback
from typing import Any, get_args

from diagnostic_msgs.msg import DiagnosticArray, DiagnosticStatus
import numpy as np
from rclpy.duration import Duration
from rclpy.node import Node
from rclpy.qos import QoSProfile
from rosgraph_msgs.msg import Clock as ClockMessage
from sensor_msgs.msg import JointState
from std_msgs.msg import Bool
from std_srvs.srv import SetBool, Trigger

from metactl_ros.errors import ConfigError
from metactl_ros.options import FAULT_PARAMETERS, PLANT_PARAMETERS
from metactl_ros.ros.messages import diagnostics, joint_state, LATCHED, RELIABLE, status, TELEMETRY
from metactl_ros.ros.simulated_robot import FreeRunningRobot, LockstepRobot, Reading
from metactl_ros.ros.spin import declare_parameters, ONCE_PER_SECOND, run_node, STEADY
from metactl_ros.runtime.deadlines import become_realtime, Deadlines, sleep_until
from metactl_ros.runtime.joint_states import set_stamp
from metactl_ros.settings import faults_file, load_faults, load_settings, PlantName, usual_plant
from metactl_ros.signals import NANOSECONDS_PER_SECOND, seconds
from metactl_ros.sim.fault_line import FaultLine, StateMessage
from metactl_ros.sim.faults import Fault, FaultSchedule, KINDS, perturbation_of
from metactl_ros.sim.plant import PlantStart
from metactl_ros.sim.task import draw_evaluation

STATES = QoSProfile(depth=5)  # reliable
FIRST_STAMP_NS = NANOSECONDS_PER_SECOND  # in lockstep; zero would mean: no stamp
REPEAT_S = 0.1  # an unanswered state is published again


class PlantNode(Node):
    """Publishes what the robot reads, each time it has taken a step; see the module's text."""

    def __init__(self) -> None:
        super().__init__('plant')
        self.exit_code = 0
        declare_parameters(self, PLANT_PARAMETERS | FAULT_PARAMETERS, 'plant_node.yaml')
        plant, arm, world = map(self._value, ('plant', 'arm_file', 'plant_file'))
        if plant not in ('', *get_args(PlantName)):
            raise ConfigError(f'plant: expected one of {get_args(PlantName)}, found {plant!r}.')
        self._settings = load_settings(arm, Path(world) if world else None)
        plant = plant or usual_plant(self._settings.arm)
        self._num_joints = len(self._settings.arm.joint_names)
        self._is_lockstep = bool(self._value('lockstep'))
        self._schedule = FaultSchedule(self._timeline(), self._value('faults_start_s'))
        episode = (plant, self._settings, self._start())
        if self._is_lockstep:
            self._robot: LockstepRobot | FreeRunningRobot = LockstepRobot(*episode, FIRST_STAMP_NS)
            self._clocks = self.create_publisher(ClockMessage, '/clock', RELIABLE)
            self._repeat = self.create_timer(REPEAT_S, self._on_silence, clock=STEADY)
        else:
            timeout_s = self._value('command_timeout_s')
            robot = self._robot = FreeRunningRobot(*episode, time.time_ns(), timeout_s)
            self._thread = threading.Thread(target=self._run, args=(robot,), daemon=True)
        self._deadlines = Deadlines(self._robot.period_ns, 0)
        self._lock = threading.Lock()  # of the robot: commands come while it is stepped
        self._is_ending = self._is_realtime = False
        self._was_braking: bool | None = None
        self._line = FaultLine(self._robot.period_ns, self._value('seed'))
        self._faults: tuple[Fault, ...] | None = None  # on, as published last
        self._states = self.create_publisher(JointState, 'joint_states', STATES)
        self._truths = self.create_publisher(JointState, '~/truth', STATES)
        self._brakings = self.create_publisher(Bool, '~/braking', LATCHED)
        self._fault_reports = self.create_publisher(JointState, '~/faults', TELEMETRY)
        self._reports = self.create_publisher(DiagnosticArray, '/diagnostics', RELIABLE)
        self.create_subscription(JointState, 'joint_commands', self._on_command, RELIABLE)
        self.create_subscription(Bool, 'stop_request', self._on_stop_request, LATCHED)
        self.create_service(Trigger, '~/reset', self._on_reset)
        for kind in KINDS:
            self.create_service(SetBool, f'~/fault/{kind}', partial(self._on_switch, kind))
        self.create_timer(1.0, self._report, clock=STEADY)
        self.add_post_set_parameters_callback(self._on_set)

    def log_error(self, text: str) -> None:
        """Say why the process ends."""
        self.exit_code = 1
        self.get_logger().fatal(text)

    def start(self) -> bool:
        """Begin the episode; return that it began."""
        self._publish(self._robot.reading)
        if not self._is_lockstep:
            gc.freeze()  # what is there now stays, and need not be looked through again
            self._deadlines.next_ns = time.monotonic_ns() + self._robot.period_ns
            self._thread.start()
        return True

    def stop_control(self) -> None:
        """End the stepping thread and release the plant."""
        self._is_ending = True
        if not self._is_lockstep and self._thread.is_alive():
            self._thread.join()
        self._robot.close()

    def _value(self, name: str) -> Any:
        return self.get_parameter(name).value

    def _start(self) -> PlantStart:
        """Return the start of the episode the parameters name, the same as in an evaluation."""
        names = ('seed', 'payload_kg', 'num_rollouts', 'tau_z_s')
        episodes = draw_evaluation(self._settings.plant.task, *map(self._value, names))
        if (rollout := self._value('rollout')) >= self._value('num_rollouts'):
            raise ConfigError(f'rollout: expected less than num_rollouts, found {rollout}.')
        return episodes.of_arm(rollout).start

    def _timeline(self) -> list[Fault]:
        """Return the faults of the file the parameters name."""
        name = self._value('faults')
        faults = load_faults(faults_file(name), self._num_joints) if name else []
        stuck = sorted({fault.kind for fault in faults if KINDS[fault.kind].needs_real_time})
        if self._is_lockstep and stuck:
            raise ConfigError(
                f'faults: {", ".join(stuck)}: in lockstep the robot would wait for ever for an '
                'answer; leave them out, or run in real time.'
            )
        return faults

    def _run(self, robot: FreeRunningRobot) -> None:
        """Step in real time until the end; whatever goes wrong ends the process."""
        try:
            self._is_realtime = become_realtime(self._value('realtime_priority'))
            while not self._is_ending:
                now_ns = sleep_until(self._deadlines.next_ns)
                late_ns = self._deadlines.begin_tick(now_ns)
                with self._lock:
                    reading = robot.step(now_ns, late_ns // robot.period_ns)
                self._publish(reading)
        except Exception:
            self.log_error(f'the simulation failed: {traceback.format_exc()}')
            self._brakings.publish(Bool(data=True))
            self._brakings.wait_for_all_acked(Duration(seconds=0.2))  # it is the last word

    def _publish(self, reading: Reading) -> None:
        stamp_ns, names = reading.stamp_ns, self._robot.arm.joint_names
        if self._is_lockstep:
            clock = ClockMessage()
            set_stamp(clock.clock, stamp_ns)
            self._clocks.publish(clock)
        faults = self._apply_faults(reading)
        measured = self._line.apply(
            StateMessage(stamp_ns, names, reading.measured, reading.effort_nm), faults
        )
        truth = StateMessage(stamp_ns, names, reading.truth, reading.memory_nm)
        sent = [*((self._states, one) for one in measured), (self._truths, truth)]
        for publisher, message in sent:
            state = message.state
            fields = {
                'position': state.q_rad,
                'velocity': state.qd_radps,
                'effort': message.effort_nm,
            }
            publisher.publish(joint_state(message.stamp_ns, message.names, **fields))
        if reading.is_braking != self._was_braking:
            self._was_braking = reading.is_braking
            self._brakings.publish(Bool(data=reading.is_braking))

    def _apply_faults(self, reading: Reading) -> tuple[Fault, ...]:
        """Return the faults that are on, after they were published and applied to the plant."""
        with self._lock:
            faults, was_on = self._schedule.active(reading.driven_ns), bool(self._faults)
            if faults or was_on:
                now_ns = self._schedule.time_ns(reading.driven_ns)
                self._robot.apply(perturbation_of(faults, now_ns, self._num_joints))
        if faults != self._faults:
            self._faults = faults
            sizes = np.array([fault.size for fault in faults])
            kinds = [fault.kind for fault in faults]
            self._fault_reports.publish(joint_state(reading.stamp_ns, kinds, position=sizes))
        return faults

    def _on_command(self, message: JointState) -> None:
        now_ns = time.monotonic_ns()
        with self._lock:
            if isinstance(self._robot, FreeRunningRobot):
                is_obeyed = self._robot.receive(message, now_ns)
            else:
                is_obeyed = self._robot.answer(message)
        if not is_obeyed:
            reason = self._robot.counts.last_reason
            self.get_logger().warning(f'command rejected: {reason}', **ONCE_PER_SECOND)
        elif self._is_lockstep:
            self._repeat.reset()
            self._publish(self._robot.reading)

    def _on_stop_request(self, message: Bool) -> None:
        with self._lock:
            self._robot.request_stop(is_asked=message.data)

    def _on_silence(self) -> None:
        self._robot.counts.held += 1
        self._publish(self._robot.reading)

    def _on_reset(self, _: Any, response: Any) -> Any:
        with self._lock:
            self._robot.restart(self._start())
        if self._is_lockstep:
            self._publish(self._robot.reading)
        response.success, response.message = True, 'the episode begins again'
        return response

    def _on_switch(self, kind: str, request: Any, response: Any) -> Any:
        response.success = not (request.data and self._is_lockstep and KINDS[kind].needs_real_time)
        if not response.success:
            response.message = f'{kind}: in lockstep the robot would wait for ever for an answer'
            return response
        with self._lock:
            self._schedule.switched.pop(kind, None)
            if request.data:
                now_ns = self._schedule.time_ns(self._robot.reading.driven_ns)
                fault = Fault(kind=kind, at_s=seconds(now_ns), amount=self._amount(kind))
                self._schedule.switched[kind] = fault
        response.message = f'{kind} is {"on: " + KINDS[kind].meaning if request.data else "off"}'
        return response

    def _amount(self, kind: str) -> float | None:
        return self._value(f'fault.{kind}') if KINDS[kind].unit else None

    def _on_set(self, _: Sequence[Any]) -> None:
        with self._lock:
            for kind, fault in self._schedule.switched.items():
                self._schedule.switched[kind] = replace(fault, amount=self._amount(kind))
            self._robot.set_conditions(self._value('payload_kg'), self._value('tau_z_s'))

    def _report(self) -> None:
        counts, is_braking = self._robot.counts, self._robot.reading.is_braking
        facts = {
            'mode': 'lockstep' if self._is_lockstep else 'real time',
            'steps': counts.steps,
            'late steps': self._deadlines.num_late,
            'skipped steps': self._deadlines.num_missed,
            'worst lateness ms': self._deadlines.lateness_ms()['max'],
            'is realtime': self._is_realtime,
            'missed commands': counts.held,
            'brakings': counts.brakes,
            'rejected commands': counts.rejected,
            'last rejection': counts.last_reason,
            'faults': ', '.join(f'{fault.kind} {fault.size:g}' for fault in self._faults or ()),
        }
        level = DiagnosticStatus.WARN if is_braking or self._faults else DiagnosticStatus.OK
        text = 'braking' if is_braking else 'driven'
        text += f', with faults: {facts["faults"]}' if self._faults else ''
        found = status('plant: simulation', level, text, facts)
        self._reports.publish(diagnostics(time.time_ns(), found))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the node until SIGTERM or SIGINT; return 0, 1 if it failed, 2 if set up wrongly."""
    return run_node(PlantNode, arguments)


if __name__ == '__main__':
    sys.exit(main())
