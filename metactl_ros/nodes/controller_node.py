# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""The controller: joint states in, shielded computed-torque efforts out, 100 times a second.

    python -m metactl_ros.nodes.controller_node --ros-args -p policy:=NAME.metactl
    python -m metactl_ros.nodes.controller_node --ros-args -p controller:=momentum_observer

A lifecycle node. Configure loads and verifies the policy bundle, or a classical controller;
activate starts the control thread, which waits for a first joint state and then ticks on absolute
deadlines of the steady clock; deactivate, shutdown, SIGTERM, SIGINT and any error end it with the
fading torque of a blind arm and a last command of zero. Joint states have a thread of their own,
other callbacks run in the executor's; both only leave things for the control thread to pick up.
This is not a safety-rated function.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
import functools
import json
from pathlib import Path
import sys
import time
from typing import Any

from diagnostic_msgs.msg import DiagnosticArray
import numpy as np
from rclpy.clock import Clock, ClockType
from rclpy.lifecycle import LifecycleNode, LifecycleState, TransitionCallbackReturn
from sensor_msgs.msg import JointState
from std_msgs.msg import Float64, Float64MultiArray, String
from std_srvs.srv import SetBool, Trigger
from trajectory_msgs.msg import JointTrajectory

from metactl_ros.arm import Arm
from metactl_ros.bag.told_settings import tell, TOLD
from metactl_ros.control.controller_settings import ControllerSettings
from metactl_ros.errors import MetactlError
from metactl_ros.evaluation.rollout import Policy
from metactl_ros.nodes import parameters
from metactl_ros.nodes.control_thread import Arrival, Command, ControlThread, Inbox, Timing
from metactl_ros.nodes.diagnostics import idle_report, report
from metactl_ros.nodes.driver import Driver, Requests
from metactl_ros.nodes.joint_messages import MessageError, read_joint_state
from metactl_ros.nodes.quality_of_service import KEPT, RELIABLE, SENSOR, TELEMETRY
from metactl_ros.nodes.reference_source import MotionSource, TrajectorySource
from metactl_ros.nodes.spin import run_node
from metactl_ros.nodes.state_gate import CLOCK_TOLERANCE_NS, StateGate
from metactl_ros.nodes.state_receiver import StateReceiver
from metactl_ros.nodes.subscriptions import subscribe
from metactl_ros.nodes.telemetry import forward_command, joint_state, Telemetry
from metactl_ros.reference import Sinusoid
from metactl_ros.rivals import load_classical, load_learned
from metactl_ros.settings import load_arm, load_file, shipped_policy
from metactl_ros.signals import NANOSECONDS_PER_SECOND, period_ns_of

STEADY = Clock(clock_type=ClockType.STEADY_TIME)
Transition = Callable[['ControllerNode', LifecycleState], None]


def reported(transition: Transition) -> Callable[..., TransitionCallbackReturn]:
    """Say why a transition failed: rclpy swallows exceptions without a word."""

    @functools.wraps(transition)
    def wrapped(node: 'ControllerNode', state: LifecycleState) -> TransitionCallbackReturn:
        try:
            transition(node, state)
        except MetactlError as error:
            node.say_error(str(error))
            return TransitionCallbackReturn.FAILURE
        except Exception as error:
            node.say_error(f'{transition.__name__}: {error!r}')
            return TransitionCallbackReturn.FAILURE
        return TransitionCallbackReturn.SUCCESS

    return wrapped


class ControllerNode(LifecycleNode):
    """The lifecycle node; see the module's text."""

    def __init__(self, **options: Any) -> None:
        super().__init__('controller', **options)
        parameters.declare(self, parameters.CONTROLLER, 'controller_node.yaml')
        self._diagnostics = self.create_publisher(DiagnosticArray, '/diagnostics', RELIABLE)
        self._thread: ControlThread | None = None
        self._receiver: StateReceiver | None = None
        self._owned: list[tuple[Callable[[Any], Any], Any]] = []
        self.last_error = ''
        self.create_timer(1.0, self._diagnose, clock=STEADY)

    @property
    def exit_code(self) -> int:
        """What the process should say: 1 if control ended by an error, 2 if it could not begin.

        Without `autostart` a refusal is for who asked: it may be set right and asked for again.
        """
        if any(t is not None and t.error for t in (self._thread, self._receiver)):
            return 1
        is_own_start = self.get_parameter('autostart').value
        return 2 if self.last_error and self._thread is None and is_own_start else 0

    def say_error(self, text: str) -> None:
        """Put an error into the log and into the diagnostics."""
        self.last_error = text
        self.get_logger().error(text)

    def start(self) -> bool:
        """Configure and activate if `autostart` says so; return whether that went well."""
        if not self.get_parameter('autostart').value:
            return True
        good = TransitionCallbackReturn.SUCCESS
        return bool(self.trigger_configure() == good and self.trigger_activate() == good)

    @reported
    def on_configure(self, _: LifecycleState) -> None:
        """Load arm, controller and policy, and create all topics and services."""
        self.last_error = ''
        arm = load_arm(_path(self.get_parameter('arm_file').value))
        values = parameters.read(self, len(arm.joint_names))
        controller = load_file(
            ControllerSettings, _path(values['controller_file']), 'controller.yaml'
        )
        policy, controller = self._choose(values, arm, controller)
        self._joints = tuple(values['joint_prefix'] + name for name in arm.joint_names)
        self._arm = replace(arm, joint_names=self._joints)
        self._period_ns = period_ns_of(controller.law.rate_hz)
        self._uses_sim_time = bool(self.get_parameter('use_sim_time').value)
        self._values, self._controller = values, controller
        if values['reference'] == 'trajectory':
            self._reference: Any = TrajectorySource(self._joints)
        else:
            shape = (
                values[f'sinusoid.{n}'] for n in ('amplitude_rad', 'omega_radps', 'phase_rad')
            )
            self._reference = MotionSource(Sinusoid(*(np.array(list(x)) for x in shape)))
        self._requests = Requests(payload_kg=float(values['payload_kg']))
        self._driver = Driver(
            self._arm,
            controller,
            policy,
            self._reference,
            self._requests,
            _nanoseconds(values['inference_budget_s']),
        )
        self._inbox = Inbox()
        self._renew_gate()
        self._connect(controller)
        self.get_logger().info(f'configured: {self._facts}')

    def _choose(
        self, values: dict[str, Any], arm: Arm, robot: ControllerSettings
    ) -> tuple[Policy | None, ControllerSettings]:
        """Return the policy and its settings, and remember what to tell of them."""
        name, file = values['controller'], _path(values['classical_file'])
        self._facts: dict[str, object] = {'controller': name}
        self._told: dict[str, str] = {}
        if name == 'policy':
            path = _path(values['policy']) or shipped_policy()
            bundle = load_learned(path, arm, robot)
            self._facts |= {'bundle': path.name, 'bundle sha256': bundle.sha256}
            if bundle.controller.estimator is not None:
                self._told[TOLD] = tell(bundle.controller, None)
            return bundle.policy, bundle.controller
        controller, policy = load_classical(name, robot, file, float(values['payload_kg']))
        if policy is not None:
            self._facts |= {} if file is None else {'classical file': file.name}
            anything = np.zeros((1, 1))  # it proposes the same whatever it sees
            self._told[TOLD] = tell(controller, policy(anything))
        return policy, controller

    def _connect(self, controller: ControllerSettings) -> None:
        """Create topics and services."""
        names = [
            f'{name}.{joint}'
            for name, _ in controller.gain_box.named_ends()
            for joint in self._joints
        ]
        self._bundle = self._publisher(String, '~/bundle', KEPT)
        # What a bag needs to be understood.
        facts = {**self._facts, **self._told, 'parameters': self._values}
        self._bundle.publish(String(data=json.dumps(facts, default=list)))
        if not self._values['shadow']:
            self._stamped = self._publisher(JointState, 'joint_commands', RELIABLE)
            self._forward = self._publisher(
                Float64MultiArray, 'forward_effort_controller/commands', RELIABLE
            )
        self._telemetry = Telemetry(
            lambda kind, topic: self._publisher(kind, topic, TELEMETRY),
            self._joints,
            names,
            has_estimate=controller.estimator is not None,
        )
        heard = [(Float64, '~/payload', self._on_payload, RELIABLE)]
        if isinstance(self._reference, TrajectorySource):
            trajectory = (JointTrajectory, '~/joint_trajectory', self._on_trajectory, RELIABLE)
            heard.append(trajectory)
        subscriptions = [self.create_subscription(*one) for one in heard]
        self._states = subscribe(self, JointState, 'joint_states', SENSOR)
        for one in (*subscriptions, self._states):
            self._owned.append((self.destroy_subscription, one))
        for kind, name, answer in (
            (SetBool, '~/enable', self._on_enable),
            (Trigger, '~/reset_fault', self._on_reset_fault),
            (Trigger, '~/clear_context', self._on_clear_context),
        ):
            self._owned.append((self.destroy_service, self.create_service(kind, name, answer)))
        self.add_on_set_parameters_callback(self._on_set)
        self._owned.append((self.remove_on_set_parameters_callback, self._on_set))

    def _publisher(self, kind: Any, topic: str, quality: Any) -> Any:
        publisher = self.create_publisher(kind, topic, quality)
        self._owned.append((self.destroy_publisher, publisher))
        return publisher

    def _renew_gate(self) -> None:
        tolerance = None if self._uses_sim_time else CLOCK_TOLERANCE_NS
        self._gate = StateGate(self._arm, self._period_ns, tolerance)
        self._num_unusable = 0

    @reported
    def on_activate(self, state: LifecycleState) -> None:
        """Start the control thread."""
        values, modes = self._values, self._controller.modes
        timing = Timing(
            period_ns=self._period_ns,
            ticks_on_states=self._uses_sim_time,
            state_timeout_ns=_nanoseconds(values['state_timeout_s']),
            state_lead_ns=_nanoseconds(values['state_lead_s']),
            fade_ns=_nanoseconds(modes.blind_ramp_s),
            # None in simulated time, which would only starve who records.
            priority=0 if self._uses_sim_time else values['realtime_priority'],
        )
        self._inbox.take()
        self._renew_gate()
        self._thread = ControlThread(
            self._driver, self._inbox, timing, self._arm.limits, self._send, self._tell
        )
        below = max(timing.priority - 1, 0)
        self._receiver = StateReceiver(self._states, self.context, self._on_state, below)
        super().on_activate(state)
        self._thread.start()
        self._receiver.start()

    @reported
    def on_deactivate(self, state: LifecycleState) -> None:
        """Stop the control thread: the torque fades, the last command is zero."""
        self.stop_control()
        super().on_deactivate(state)

    @reported
    def on_cleanup(self, _: LifecycleState) -> None:
        """Take back what configure created, so that it may be done again, and differently."""
        while self._owned:
            destroy, entity = self._owned.pop()
            destroy(entity)
        self._thread = self._receiver = None

    @reported
    def on_shutdown(self, _: LifecycleState) -> None:
        """Stop the control thread."""
        self.stop_control()

    @reported
    def on_error(self, _: LifecycleState) -> None:
        """Stop the control thread."""
        self.stop_control()

    def stop_control(self) -> None:
        """Stop the control thread if it runs; it ends with a safe last command."""
        for thread in (self._thread, self._receiver):
            if thread is not None:
                thread.stop()
                if thread.error:
                    self.say_error(f'{thread.name} ended by an error:\n{thread.error}')

    def _stamp(self, command: Command) -> int:
        """Return the time of a command: that of its state in simulated time, else now."""
        if self._uses_sim_time:
            return command.state_stamp_ns
        return int(self.get_clock().now().nanoseconds)

    def _send(self, command: Command) -> None:
        """Publish a command."""
        self._stamp_ns = self._stamp(command)
        if not self._values['shadow']:
            self._stamped.publish(
                joint_state(self._stamp_ns, self._joints, effort=command.effort_nm)
            )
            self._forward.publish(forward_command(self._joints, command.effort_nm))

    def _tell(self, command: Command) -> None:
        """Publish what the last command was made from."""
        if command.tick is not None:
            self._telemetry.publish(
                self._stamp_ns, command.state_stamp_ns, command.tick, command.late_ns
            )

    def _on_state(self, message: JointState) -> None:
        received_ns = time.monotonic_ns()
        try:
            sample = read_joint_state(message, self._joints)
        except MessageError as error:
            self._num_unusable += 1
            self._complain(str(error))
            return
        state = self._gate.admit(sample, received_ns)
        if state is not None:
            self._inbox.put(Arrival(state, sample.stamp_ns, sample.effort_nm, received_ns))

    def _on_payload(self, message: Float64) -> None:
        if 0.0 <= message.data <= 100.0:
            self._requests.payload_kg = float(message.data)
        else:
            self._complain(f'payload: expected 0 to 100 kg, found {message.data}')

    def _complain(self, text: str) -> None:
        """Say what is wrong with a message, at most once a second."""
        self.get_logger().error(text, throttle_duration_sec=1.0, throttle_time_source_type=STEADY)

    def _on_trajectory(self, message: JointTrajectory) -> None:
        tick = self._driver.last
        if tick is None:
            self.get_logger().error('trajectory: no joint state yet; send it again once there is.')
            return
        try:
            now_ns = self.get_clock().now().nanoseconds
            self._reference.accept(message, tick.now_ns, now_ns)
        except MessageError as error:
            self.get_logger().error(str(error))

    def _on_enable(self, request: Any, response: Any) -> Any:
        self._requests.is_enabled = request.data
        response.success, response.message = True, 'enabled' if request.data else 'holding'
        return response

    def _on_reset_fault(self, _: Any, response: Any) -> Any:
        self._requests.reset_fault = True
        response.success, response.message = True, 'asked for; see ~/shield for the mode'
        return response

    def _on_clear_context(self, _: Any, response: Any) -> Any:
        self._requests.clear_context = True
        response.success, response.message = True, 'asked for; a latched fault is not forgotten'
        return response

    def _on_set(self, changed: Sequence[Any]) -> Any:
        from rcl_interfaces.msg import SetParametersResult

        for parameter in changed:  # ranges and read-only ones are rclpy's to refuse
            if parameter.name == 'payload_kg':
                self._requests.payload_kg = float(parameter.value)
        return SetParametersResult(successful=True)

    def _diagnose(self) -> None:
        name, stamp_ns = self.get_name(), self.get_clock().now().nanoseconds
        if self._thread is None or not (self._thread.is_alive() or self._thread.error):
            _, state = self._state_machine.current_state
            self._diagnostics.publish(idle_report(name, stamp_ns, state, self.last_error))
            return
        counts = {**self._gate.counts, 'unusable messages': self._num_unusable}
        facts = {**self._facts, 'last error': self.last_error}
        self._diagnostics.publish(
            report(name, stamp_ns, self._thread, self._driver, counts, facts)
        )


def _path(text: str) -> Path | None:
    return Path(text) if text else None


def _nanoseconds(seconds: float) -> int:
    return round(seconds * NANOSECONDS_PER_SECOND)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the node until it is asked to end; return the exit code."""
    return run_node(ControllerNode, arguments)


if __name__ == '__main__':
    sys.exit(main())
