# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""The controller: joint states in, shielded computed-torque efforts out, 100 times a second.

    python -m metactl_ros.ros.controller_node --ros-args -p policy:=NAME.metactl
    python -m metactl_ros.ros.controller_node --ros-args -p controller:=momentum_observer

It is two processes, and a node in each. `LoopNode`, here, is a plain node NAME_loop in the process
that is started: it receives joint states, publishes commands, and answers only its front. It has
no service, so that no request of the network can slow it: what rclpy makes of a large one stops
every thread. Joint states have a thread of their own (`spin.py`), control has one, and so
have the front's requests; all leave things for the control thread to pick up.

The front is the lifecycle node NAME, `ControllerNode` of `front_node.py`, in a process that this
one starts: it has the parameters and services, and passes each transition on. Configure loads and
verifies the policy bundle, or a classical controller; activate starts the control thread, which
waits for a first joint state and then ticks on absolute deadlines of the steady clock; deactivate,
shutdown, SIGTERM, SIGINT and any error end it with the fading torque of a blind arm and a last
command of zero. If this process dies, the front ends; if the front dies, this one ends as on a
signal, with exit code 1. This is not a safety-rated function.
"""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
import json
from pathlib import Path
import sys
import time
from typing import Any

from diagnostic_msgs.msg import DiagnosticArray, DiagnosticStatus
from rclpy.node import Node
from rclpy.parameter import Parameter
from sensor_msgs.msg import JointState
from std_msgs.msg import Bool, Float64MultiArray, String

from metactl_ros.bag.topics import FORWARD, RecordedController, SETTINGS, STAMPED
from metactl_ros.baselines import load_classical, load_learned
from metactl_ros.control.settings import ControllerSettings
from metactl_ros.dynamics.rigid_body import ArmModel
from metactl_ros.motion.reference import motion_limits
from metactl_ros.options import require_sound_parameters
from metactl_ros.ros.front_node import FrontProcess
from metactl_ros.ros.messages import (
    CommandSender,
    diagnostics,
    LATCHED,
    RELIABLE,
    SENSOR,
    status,
    TELEMETRY,
    Telemetry,
)
from metactl_ros.ros.spin import ONCE_PER_SECOND, run_node, StateReceiver, STEADY, subscribe, take
from metactl_ros.ros.supervisor import report, Supervisor
from metactl_ros.runtime.control_thread import Command, ControlThread
from metactl_ros.runtime.controller import LiveController, Requests
from metactl_ros.runtime.deadlines import HANG_AFTER_NS, Timing
from metactl_ros.runtime.joint_states import Inbox
from metactl_ros.runtime.operator_requests import Answer, RequestHandler
from metactl_ros.runtime.process_link import Fields, LinkServer
from metactl_ros.runtime.reference_source import source_of
from metactl_ros.runtime.state_intake import StateIntake
from metactl_ros.settings import load_arm, load_controller, policy_file, shipped_policy
from metactl_ros.signals import period_ns_of, Policy, to_nanoseconds

COMMANDS = ((JointState, STAMPED), (Float64MultiArray, FORWARD))
LAST_ANSWER_S = 1.0
"""How long a request that is being answered when the end comes is waited for."""
REFUSED = 2
"""Exit code of a front that could not start; it has logged why."""


class LoopNode(Node):
    """The plain node that drives the arm, as its front, the lifecycle node, is asked to."""

    def __init__(self, front: FrontProcess) -> None:
        hello = front.hello()
        self._name, self._topics = hello['name'], hello['topics']
        super().__init__(
            f'{self._name}_loop',
            namespace=hello['namespace'],
            use_global_arguments=False,  # they name the front, and have named its topics
            start_parameter_services=False,
            parameter_overrides=[Parameter('start_type_description_service', value=False)],
        )
        self._front, self._front_code = front, 0
        self._is_ending = False
        self._thread: ControlThread | None = None
        self._receiver: StateReceiver | None = None
        self._owned = ExitStack()
        self._lifecycle = 'unconfigured'
        self.last_error = ''
        topics = [self._topics[topic] for _, topic in COMMANDS]
        self._supervisor = Supervisor(self, self._topics['joint_states'], topics)
        self._supervisor.start()
        self._diagnostics = self.create_publisher(
            DiagnosticArray, self._topics['/diagnostics'], RELIABLE
        )
        self.create_timer(1.0, self._diagnose, clock=STEADY)
        self._answers = LinkServer(front.link, self._answer, self._on_front_exit)
        self._requested: dict[str, Callable[..., None]] = {
            'configure': self._configure,
            'activate': self._activate,
            'deactivate': self._deactivate,
            'cleanup': self._cleanup,
            'set_payload': lambda payload_kg: setattr(self._requests, 'payload_kg', payload_kg),
            'follow': lambda data, ros_now_ns: self._controller.follow(data, ros_now_ns),
            'note_error': lambda text: setattr(self, 'last_error', text),
        }

    @property
    def exit_code(self) -> int:
        """Of the process: 1 if control ended by an error, 2 if it could not begin."""
        threads = (self._thread, self._receiver, self._supervisor)
        if any(t is not None and t.error for t in threads):
            return 1
        return self._front_code

    def log_error(self, text: str) -> None:
        """Put an error into the log and into the diagnostics."""
        self.last_error = text
        self.get_logger().error(text)

    def start(self) -> bool:
        """Answer the front, which configures and activates if `autostart` is set."""
        self._answers.start()
        return True

    def stop_control(self) -> None:
        """End: stop the control thread with a safe last command, and let the front go."""
        self._is_ending = True
        self._front.link.close()
        self._stop_driving()
        if self._answers.is_alive():
            self._answers.join(LAST_ANSWER_S)

    def destroy_node(self) -> None:
        """Take everything back."""
        self._supervisor.stop()
        super().destroy_node()

    def _on_front_exit(self) -> None:
        if not self._is_ending:
            code = self._front.wait()
            if code != REFUSED or self._thread is not None:
                self.log_error(f'the front, which answers the network, ended with code {code}.')
                code = 1
            self._front_code = code

    def _answer(self, what: str, fields: Fields, data: bytes) -> Fields:
        """Do what the front asks for, and return what became of it; the front logs errors."""
        if what in ('enable', 'reset_fault', 'clear_context'):
            answer: Answer = getattr(self._handler, what)(**fields)
            return answer._asdict()
        if data:
            fields['data'] = data
        self._requested[what](**fields)
        return {}

    def _configure(self, values: dict[str, Any], *, uses_sim_time: bool) -> None:
        """Load arm, controller and policy, and create all topics."""
        self._give_back()  # of a configuration that failed half-way
        self.last_error = ''
        arm = load_arm(values['arm_file'])
        require_sound_parameters(values, len(arm.joint_names))
        controller = load_controller(arm, _path(values['controller_file']))
        policy, controller = self._choose(values, arm, controller)
        self._joints = tuple(values['joint_prefix'] + name for name in arm.joint_names)
        self._arm = arm.renamed(self._joints)
        self._period_ns = period_ns_of(controller.law.rate_hz)
        self._uses_sim_time = uses_sim_time
        self._values, self._settings = values, controller
        reference = None
        if controller.guiding is None:
            reference = source_of(values, self._joints, motion_limits(self._arm))
        self._requests = Requests(payload_kg=float(values['payload_kg']))
        self._controller = LiveController(
            self._arm,
            controller,
            policy,
            reference,
            self._requests,
            to_nanoseconds(values['inference_budget_s']),
        )
        self._handler = RequestHandler(self._controller, self._arm, self._is_driving)
        self._connect(controller)
        self._lifecycle = 'inactive'
        self.get_logger().info(f'configured: {self._facts}')

    def _choose(
        self, values: dict[str, Any], arm: ArmModel, robot: ControllerSettings
    ) -> tuple[Policy | None, ControllerSettings]:
        """Return the policy and its settings, and remember what is published of them."""
        name, file = values['controller'], _path(values['classical_file'])
        self._facts: dict[str, object] = {'controller': name}
        self._recorded: dict[str, str] = {}
        if name == 'policy':
            path = policy_file(values['policy']) if values['policy'] else shipped_policy()
            bundle = load_learned(path, arm, robot, sha256=values['policy_sha256'])
            self._facts |= {'bundle': path.name, 'bundle sha256': bundle.sha256}
            if bundle.controller.estimator is not None:
                recorded = RecordedController.of(bundle.controller, None)
                self._recorded[SETTINGS] = recorded.to_json()
            return bundle.policy, bundle.controller
        payload_kg = float(values['payload_kg'])
        controller, policy = load_classical(name, robot, file, payload_kg, arm)
        if policy is not None:
            self._facts |= {} if file is None else {'classical file': file.name}
            recorded = RecordedController.of(controller, policy.action)
            self._recorded[SETTINGS] = recorded.to_json()
        return policy, controller

    def _connect(self, controller: ControllerSettings) -> None:
        """Create topics, but for those of commands."""
        names = [
            f'{name}.{joint}'
            for name, _ in controller.gain_box.named_ends()
            for joint in self._joints
        ]
        self._bundle = self._publisher(String, '~/bundle', LATCHED)
        # What a bag needs to be understood.
        facts = {**self._facts, **self._recorded, 'parameters': self._values}
        self._bundle.publish(String(data=json.dumps(facts, default=list)))
        clock = None if self._uses_sim_time else self._wall_ns
        self._sender = CommandSender(self._joints, clock, self.get_logger().error)
        self._telemetry = Telemetry(
            lambda kind, topic: self._publisher(kind, topic, TELEMETRY),
            self._joints,
            names,
            has_estimate=controller.estimator is not None,
            has_state=controller.payload_max_kg > 0.0,
        )
        self._states = subscribe(self, JointState, self._topics['joint_states'], SENSOR)
        self._owned.callback(self.destroy_subscription, self._states)

    def _publisher(self, kind: Any, topic: str, quality: Any) -> Any:
        publisher = self.create_publisher(kind, self._topics[topic], quality)
        self._owned.callback(self.destroy_publisher, publisher)
        return publisher

    def _activate(self) -> None:
        """Start the control thread."""
        values, modes = self._values, self._settings.modes
        timing = Timing(
            period_ns=self._period_ns,
            ticks_on_states=self._uses_sim_time,
            state_timeout_ns=to_nanoseconds(values['state_timeout_s']),
            state_lead_ns=to_nanoseconds(values['state_lead_s']),
            fade_ns=to_nanoseconds(modes.blind_ramp_s),
            # None in simulated time, which would only starve the recorder.
            priority=0 if self._uses_sim_time else values['realtime_priority'],
            hang_after_ns=max(HANG_AFTER_NS, 6 * to_nanoseconds(values['inference_budget_s'])),
        )
        self._take_over()
        inbox = Inbox()
        thread = ControlThread(
            self._controller,
            inbox,
            timing,
            self._arm.limits,
            self._sender.send,
            self._publish_tick,
        )
        self._intake = StateIntake(
            self._arm, timing, self._supervisor.watch, inbox, thread.exchange, self._log_throttled
        )
        below = max(timing.priority - 1, 0)
        self._receiver = StateReceiver(self._states, self.context, self._intake.receive, below)
        self._supervisor.begin(thread.exchange, self._joints, commands=not values['shadow'])
        self._thread = thread
        if not self._is_ending:  # from here on the end of the node stops the thread
            thread.start()
            self._receiver.start()
        self._lifecycle = 'active'

    def _take_over(self) -> None:
        """Create the publishers of commands, unless another node has any."""
        has_publishers, commands = self._sender.stamped is not None, not self._values['shadow']
        self._supervisor.require_sole_publisher(
            lambda: take(self._states), has_publishers=has_publishers, commands=commands
        )
        if commands and not has_publishers:
            self._sender.stamped, self._sender.forward = (
                self._publisher(kind, topic, RELIABLE) for kind, topic in COMMANDS
            )
            self._sender.stop_request = self._publisher(Bool, 'stop_request', LATCHED)

    def _deactivate(self, lifecycle: str) -> None:
        """Stop the control thread: the torque fades, the last command is zero."""
        self._stop_driving()
        self._lifecycle = lifecycle

    def _cleanup(self) -> None:
        """Take back what configure created, so that it may be done again, and differently."""
        self._give_back()
        self._lifecycle = 'unconfigured'

    def _give_back(self) -> None:
        self._owned.close()
        self._thread = self._receiver = None

    def _stop_driving(self) -> None:
        self._supervisor.modes.is_ending = True
        for thread in (self._thread, self._receiver):
            if thread is not None:
                thread.stop()
        self._supervisor.end()
        for one in (self._thread, self._receiver, self._supervisor):
            if one is not None and one.error:
                self.log_error(f'{one.name} ended by an error:\n{one.error}')

    def _is_driving(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def _wall_ns(self) -> int:
        return int(self.get_clock().now().nanoseconds)

    def _publish_tick(self, command: Command) -> None:
        """Publish what a command was made from."""
        if command.tick is not None:
            self._supervisor.modes.note(
                command.tick, time.monotonic_ns(), is_enabled=self._requests.is_enabled
            )
            self._telemetry.publish(
                command.stamp_ns, command.state_stamp_ns, command.tick, command.late_ns
            )

    def _log_throttled(self, text: str) -> None:
        """Say what is wrong with a message, at most once a second."""
        self.get_logger().error(text, **ONCE_PER_SECOND)

    def _diagnose(self) -> None:
        thread, facts = self._thread, {'last error': self.last_error}
        if thread is not None and (thread.is_alive() or thread.error):
            about = (self._controller, self._intake, self._facts | facts, self._supervisor)
            found = report(self._name, thread, *about)
        else:  # it drives no arm: why, if it should
            level = DiagnosticStatus.ERROR if self.last_error else DiagnosticStatus.OK
            text, values = self.last_error or self._lifecycle, {'lifecycle': self._lifecycle}
            found = [status(f'{self._name}: mode', level, text, values)]
        self._diagnostics.publish(diagnostics(self._wall_ns(), *found))


def _path(text: str) -> Path | None:
    return Path(text) if text else None


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the controller until it is asked to end; return the exit code."""
    front = FrontProcess(arguments)
    try:
        return run_node(lambda: LoopNode(front), arguments)
    finally:
        front.end()


if __name__ == '__main__':
    sys.exit(main())
