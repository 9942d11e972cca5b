# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""Another node on the topics of robot and controller, for scenarios of faults.

    python -m metactl_ros.hil.intruder [--arm NAME] second_states flood_clear_context=100

Does what INTRUSIONS of `hil/scenario.py` lists. `KIND` or `KIND=AMOUNT` begins one, as an argument
or as a line of the standard input; `end KIND` there ends it, and `prepare KIND=AMOUNT` makes ready
what takes long, and prints `ready`. The end of the input, SIGTERM and SIGINT end the process. An
intrusion that is not on has neither publisher nor client, so that nothing shows the intruder.
"""

import argparse
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from queue import Empty, SimpleQueue
import signal
import sys
import threading
import time
from typing import Any

import numpy as np
from rcl_interfaces.srv import DescribeParameters, GetParameters
import rclpy
from rclpy.executors import SingleThreadedExecutor
from rclpy.node import Node
from rclpy.serialization import serialize_message
from rclpy.signals import SignalHandlerOptions
from rclpy.utilities import remove_ros_args
from sensor_msgs.msg import JointState
from std_msgs.msg import Float64MultiArray
from std_srvs.srv import Trigger
from trajectory_msgs.msg import JointTrajectory, JointTrajectoryPoint

from metactl_ros.bag.topics import FORWARD, STAMPED
from metactl_ros.dynamics.rigid_body import ArmModel
from metactl_ros.errors import ConfigError
from metactl_ros.hil.scenario import INTRUSIONS
from metactl_ros.ros.messages import forward_command, joint_state, RELIABLE, SENSOR
from metactl_ros.runtime.joint_states import set_stamp
from metactl_ros.settings import load_arm
from metactl_ros.signals import Array, NANOSECONDS_PER_SECOND

PERIOD_S = 0.01
POINTS_PER_S = 200_000
MATCHED_S = 0.3
"""Waited after a subscriber is found: it may not have found the publisher yet, s."""
ANSWER_WITHIN_S = 2.0
"""After this long without an answer, the next request is sent, s."""
SLOWLY_RADPS, SLOWLY_SHARE = 0.9, 0.5
"""For those parts of a bad trajectory that are in line: never more than this share of a limit."""
SMOOTHLY_S, FAST_S, INSTANT_S = 1.5, 0.05, 1e-9

Intrusion = Generator[None, None, None]
"""One step each time it is resumed, every PERIOD_S; closed, it removes its publishers."""


class Intruder:
    """The intrusions of one node that are on, by kind."""

    def __init__(self, node: Node, arm: ArmModel) -> None:
        self._node, self._arm = node, arm
        self._slowly_radps = min(SLOWLY_RADPS, SLOWLY_SHARE * arm.limits.velocity_radps[0])
        self._running: dict[str, Intrusion] = {}
        self._seen_rad: Array | None = None
        self._long: dict[int, JointTrajectory] = {}  # by the number of points
        # Not joint_states: there it would receive its own.
        node.create_subscription(JointState, 'plant/truth', self._on_truth, SENSOR)

    def begin(self, kind: str, amount: float) -> None:
        """Begin an intrusion, again if it is on."""
        self.end(kind)
        self._running[kind] = _INTRUSIONS[kind](self, amount)

    def prepare(self, kind: str, amount: float) -> None:
        """Write a very long trajectory before it is wanted: that takes seconds."""
        if kind == 'flood_trajectories':
            times_s = np.linspace(1.0, 60.0, round(amount)).tolist()
            nowhere = np.zeros(len(self._arm.joint_names))
            self._long[round(amount)] = self._trajectory([(t_s, nowhere) for t_s in times_s])

    def end(self, kind: str) -> None:
        """End an intrusion, if it is on."""
        if kind in self._running:
            self._running.pop(kind).close()

    def step(self) -> None:
        """Resume every intrusion that is on, once."""
        for kind, intrusion in list(self._running.items()):
            if next(intrusion, 'over') == 'over':
                del self._running[kind]

    def close(self) -> None:
        """End everything."""
        for kind in [*self._running]:
            self.end(kind)

    def _on_truth(self, message: JointState) -> None:
        self._seen_rad = np.array(message.position)

    def _find_arm(self) -> Generator[None, None, Array]:
        """Wait until the arm is seen; return where it is, shape (n,)."""
        while self._seen_rad is None:
            yield
        return self._seen_rad

    def _second_states(self, offset_rad: float) -> Intrusion:
        rest_rad = (yield from self._find_arm()) + offset_rad
        yield from self._publish_states(lambda: rest_rad)

    def _echoed_states(self, offset_rad: float) -> Intrusion:
        first = yield from self._find_arm()

        def position() -> Array:
            return (first if self._seen_rad is None else self._seen_rad) + offset_rad

        yield from self._publish_states(position)

    def _publish_states(self, position: Callable[[], Array]) -> Intrusion:
        """Publish joint states; velocities are the differences of positions."""
        with self._publisher(JointState, 'joint_states', 5) as publisher:
            before, before_ns = position(), time.time_ns()
            while True:
                yield
                now, now_ns = position(), time.time_ns()
                passed_s = max((now_ns - before_ns) / NANOSECONDS_PER_SECOND, PERIOD_S)
                fields = {'position': now, 'velocity': (now - before) / passed_s}
                publisher.publish(joint_state(now_ns, self._arm.joint_names, **fields))
                before, before_ns = now, now_ns

    def _second_commands(self, share: float) -> Intrusion:
        names, effort = self._arm.joint_names, share * np.array(self._arm.limits.effort_nm)
        of_forward = self._publisher(Float64MultiArray, FORWARD)
        with self._publisher(JointState, STAMPED) as stamped, of_forward as forward:
            while True:
                stamped.publish(joint_state(time.time_ns(), names, effort=effort))
                forward.publish(forward_command(names, effort))
                yield

    def _flood_parameters(self, number: float) -> Intrusion:
        """Ask for parameters by very many names, one request after the other."""
        names = ['policy'] * round(number)
        asked = (
            (GetParameters, 'controller/get_parameters'),
            (DescribeParameters, 'controller/describe_parameters'),
        )
        clients = [(kind, self._node.create_client(kind, name)) for kind, name in asked]
        try:
            while True:
                for kind, client in clients:
                    while not client.service_is_ready():
                        yield
                    answer = client.call_async(kind.Request(names=names))
                    until_s = time.monotonic() + ANSWER_WITHIN_S
                    while not answer.done() and time.monotonic() < until_s:
                        yield
                    client.remove_pending_request(answer)
        finally:
            for _, client in clients:
                self._node.destroy_client(client)

    def _flood_clear_context(self, rate_hz: float) -> Intrusion:
        client = self._node.create_client(Trigger, 'controller/clear_context')
        due_s = time.monotonic()
        try:
            while True:
                while due_s <= time.monotonic():
                    due_s += 1.0 / rate_hz
                    if client.service_is_ready():
                        client.call_async(Trigger.Request())
                yield
        finally:
            self._node.destroy_client(client)

    def _flood_trajectories(self, number: float) -> Intrusion:
        """Send a very long trajectory that holds the arm where it is, again and again."""
        here = yield from self._find_arm()
        if round(number) not in self._long:
            self.prepare('flood_trajectories', number)
        message = self._long[round(number)]
        for point in message.points:
            point.positions = here.tolist()
        yield from self._send(serialize_message(message), number / POINTS_PER_S)

    def _trajectory_smooth(self, way_rad: float, took_s: float = SMOOTHLY_S) -> Intrusion:
        here = yield from self._find_arm()
        goal = np.array([here[0] + way_rad, *here[1:]])
        yield from self._send(self._trajectory([(took_s, goal)]))

    def _trajectory_leap(self, way_rad: float) -> Intrusion:
        """Go to one side slowly, from there to the other in 1 ns."""
        here = yield from self._find_arm()
        sides = [np.array([side * 0.5 * way_rad, *here[1:]]) for side in (-1.0, 1.0)]
        begin_s = float(abs(sides[0] - here).max()) / self._slowly_radps
        points = [(begin_s, sides[0]), (begin_s + INSTANT_S, sides[1])]
        yield from self._send(self._trajectory(points))

    def _trajectory_far(self, goal_rad: float) -> Intrusion:
        here = yield from self._find_arm()
        goal = np.array([goal_rad, *here[1:]])
        took_s = float(abs(goal - here).max()) / self._slowly_radps
        yield from self._send(self._trajectory([(took_s, goal)]))

    def _trajectory_fast(self, way_rad: float) -> Intrusion:
        return self._trajectory_smooth(way_rad, FAST_S)

    def _trajectory(self, points: Sequence[tuple[float, Array]]) -> JointTrajectory:
        """Return a trajectory of positions at times, with velocities of zero."""
        message = JointTrajectory(joint_names=list(self._arm.joint_names))
        for t_s, q_rad in points:
            point = JointTrajectoryPoint(positions=q_rad.tolist(), velocities=[0.0] * len(q_rad))
            set_stamp(point.time_from_start, round(t_s * NANOSECONDS_PER_SECOND))
            message.points.append(point)
        return message

    def _send(self, message: JointTrajectory | bytes, every_s: float | None = None) -> Intrusion:
        """Publish a trajectory, or its bytes, to a subscriber; again every `every_s` if given."""
        with self._publisher(JointTrajectory, 'controller/joint_trajectory') as publisher:
            while not publisher.get_subscription_count():
                yield
            due_s = time.monotonic() + MATCHED_S
            while True:
                if time.monotonic() >= due_s:
                    publisher.publish(message)
                    due_s = np.inf if every_s is None else time.monotonic() + every_s
                yield

    @contextmanager
    def _publisher(self, kind: Any, topic: str, qos: Any = RELIABLE) -> Iterator[Any]:
        """Have a publisher only for as long as it is needed."""
        publisher = self._node.create_publisher(kind, topic, qos)
        try:
            yield publisher
        finally:
            self._node.destroy_publisher(publisher)


_INTRUSIONS: dict[str, Callable[[Intruder, float], Intrusion]] = {
    kind: getattr(Intruder, f'_{kind}') for kind in INTRUSIONS
}


def parse_intrusion(text: str) -> tuple[str, float]:
    """Return kind and amount of `KIND` or `KIND=AMOUNT`; refuse other kinds, and no numbers."""
    kind, _, amount = text.partition('=')
    if kind not in INTRUSIONS:
        raise ConfigError(f'intruder: expected one of {", ".join(INTRUSIONS)}, found {kind!r}.')
    try:
        return kind, float(amount) if amount else INTRUSIONS[kind].usual
    except ValueError:
        raise ConfigError(f'intruder: {kind}: expected a number, found {amount!r}.') from None


def main(arguments: Sequence[str] | None = None) -> int:
    """Run until the input ends or a signal comes; return 0, or 2 after wrong use."""
    given = sys.argv if arguments is None else list(arguments)
    lines: SimpleQueue[str | None] = SimpleQueue()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda _number, _frame: lines.put(None))
    try:
        parser = argparse.ArgumentParser(prog='intruder')
        parser.add_argument('--arm', default='')
        parser.add_argument('kinds', nargs='*')
        words = parser.parse_args(remove_ros_args(given)[1:])
        begun, arm = [parse_intrusion(text) for text in words.kinds], load_arm(words.arm)
    except ConfigError as error:
        sys.stderr.write(f'error: {error}\n')
        return 2
    rclpy.init(args=given, signal_handler_options=SignalHandlerOptions.NO)
    node = Node('intruder', start_parameter_services=False)
    executor, intruder = SingleThreadedExecutor(), Intruder(node, arm)
    executor.add_node(node)
    for kind, amount in begun:
        intruder.begin(kind, amount)
    threading.Thread(target=_read_input, args=(lines,), daemon=True).start()
    try:
        while _handle(intruder, lines):
            until_s = time.monotonic() + PERIOD_S
            intruder.step()
            while (left_s := until_s - time.monotonic()) > 0.0:
                executor.spin_once(timeout_sec=left_s)
    finally:
        intruder.close()
        executor.shutdown()
        node.destroy_node()
        rclpy.try_shutdown()
    return 0


def _read_input(lines: 'SimpleQueue[str | None]') -> None:
    for line in sys.stdin:
        lines.put(line.strip())
    lines.put(None)


def _handle(intruder: Intruder, lines: Any) -> bool:
    """Do what came from the input since the last time; return whether to go on."""
    while True:
        try:
            line = lines.get_nowait()
        except Empty:
            return True
        if line is None:
            return False
        if line.startswith('end '):
            intruder.end(line.removeprefix('end '))
        elif line.startswith('prepare '):
            intruder.prepare(*parse_intrusion(line.removeprefix('prepare ')))
            sys.stdout.write('ready\n')
            sys.stdout.flush()
        else:
            intruder.begin(*parse_intrusion(line))


if __name__ == '__main__':
    sys.exit(main())
