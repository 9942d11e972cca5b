# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""The plant node as a process of its own, over real topics; timing bounds allow for busy cores."""

from contextlib import contextmanager
import math
import os
from pathlib import Path
import signal
import subprocess
import sys
import time
import warnings

import numpy as np
import psutil
import pytest
from support import DOMAIN

from metactl_ros.processes import loopback_environment
from metactl_ros.runtime.joint_states import nanoseconds, set_stamp
from metactl_ros.settings import make_plant
from metactl_ros.sim.task import draw_evaluation

rclpy = pytest.importorskip('rclpy', reason="needs ROS: pip install 'metactl_ros[ros]'")
from diagnostic_msgs.msg import DiagnosticArray  # noqa: E402
from rcl_interfaces.srv import SetParameters  # noqa: E402
from rclpy.executors import SingleThreadedExecutor  # noqa: E402
from rclpy.parameter import Parameter  # noqa: E402
from rclpy.qos import DurabilityPolicy, QoSProfile  # noqa: E402
from rosgraph_msgs.msg import Clock  # noqa: E402
from sensor_msgs.msg import JointState  # noqa: E402
from std_msgs.msg import Bool  # noqa: E402
from std_srvs.srv import Trigger  # noqa: E402

pytestmark = pytest.mark.ros

ROOT = Path(__file__).resolve().parents[2]
# Two domains of this process alone: one for the node that stays, one for those that come and go.
LIVE_DOMAIN = DOMAIN + 1
JOINTS = ['joint1', 'joint2']
PERIOD_NS = 10_000_000
STEPS = 150
PATIENCE_S = 15.0
BRAKE_BOUND_S = 0.1  # 0.04 is promised, and asserted with a fake clock in test_simulated_robot
EXIT_BOUND_S = 1.0  # 0.5 is promised
MODULE = ('-m', 'metactl_ros.ros.plant_node')


class Peer:
    """A controller's side of the topics, driven by the test."""

    def __init__(self, domain_id):
        self.context = rclpy.context.Context()
        rclpy.init(context=self.context, domain_id=domain_id)
        self.node = rclpy.create_node('peer', context=self.context)
        self.executor = SingleThreadedExecutor(context=self.context)
        self.executor.add_node(self.node)
        self.states, self.truths, self.clocks, self.brakings, self.reports = [], [], [], [], []
        self.reply = None
        self.replied_s = 0.0
        kept = QoSProfile(depth=10, durability=DurabilityPolicy.TRANSIENT_LOCAL)
        listen = self.node.create_subscription
        listen(JointState, 'joint_states', self.on_state, 5)
        listen(JointState, 'plant/truth', self.truths.append, 5)
        listen(Clock, '/clock', self.clocks.append, 5)
        listen(
            Bool, 'plant/braking', lambda m: self.brakings.append((time.monotonic(), m.data)), kept
        )
        listen(DiagnosticArray, '/diagnostics', self.reports.append, 1)
        self.commands = self.node.create_publisher(JointState, 'joint_commands', 1)

    def on_state(self, message):
        self.states.append(message)
        if self.reply is not None:
            self.command(self.reply(message), nanoseconds(message.header.stamp))
            self.replied_s = time.monotonic()

    def command(self, effort, stamp_ns=1, names=JOINTS):
        message = JointState(name=list(names), effort=list(effort))
        set_stamp(message.header.stamp, stamp_ns)
        self.commands.publish(message)

    def spin_until(self, condition, timeout_s=PATIENCE_S):
        end = time.monotonic() + timeout_s
        while not condition():
            assert time.monotonic() < end, f'waited {timeout_s} s in vain'
            self.executor.spin_once(timeout_sec=0.05)

    def spin_for(self, duration_s):
        end = time.monotonic() + duration_s
        while time.monotonic() < end:
            self.executor.spin_once(timeout_sec=0.01)

    def call(self, kind, name, request):
        client = self.node.create_client(kind, name)
        self.spin_until(client.service_is_ready)
        answer = client.call_async(request)
        self.spin_until(answer.done)
        self.node.destroy_client(client)
        return answer.result()

    def set_parameter(self, name, value):
        request = SetParameters.Request(
            parameters=[Parameter(name, value=value).to_parameter_msg()]
        )
        return self.call(SetParameters, 'plant/set_parameters', request).results[0]

    def facts(self):
        """Return the next report's values by name."""
        self.reports.clear()
        self.spin_until(lambda: self.reports)
        return {entry.key: entry.value for entry in self.reports[-1].status[0].values}

    def forget(self):
        """Let what is still under way arrive, and drop it."""
        self.reply = None
        self.spin_for(0.05)
        for heard in (self.states, self.truths, self.clocks, self.brakings, self.reports):
            heard.clear()

    def close(self):
        self.executor.shutdown()
        self.node.destroy_node()
        rclpy.shutdown(context=self.context)


@contextmanager
def running(*parameters, program=MODULE, domain_id=DOMAIN, **surroundings):
    """Run the node and give the process; it ends with the block."""
    arguments = [part for text in parameters for part in ('-p', text)]
    process = subprocess.Popen(
        [sys.executable, *program, '--ros-args', *arguments],
        cwd=ROOT,
        env=os.environ | loopback_environment(domain_id) | surroundings,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


@contextmanager
def listening(domain_id):
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        warnings.simplefilter('ignore', DeprecationWarning)  # of lark, which rosidl imports
        for name, value in loopback_environment(domain_id).items():
            patch.setenv(name, value)
        peer = Peer(domain_id)
    yield peer
    peer.close()


@pytest.fixture(scope='module')
def lasting_peer():
    with listening(DOMAIN) as peer:
        yield peer


@pytest.fixture
def peer(lasting_peer):
    """The peer of a node that the test starts itself."""
    lasting_peer.forget()
    return lasting_peer


@pytest.fixture(scope='module')
def lasting_node():
    """A node in real time and its peer, shared by the tests that leave it running."""
    with running('plant:=rk4', domain_id=LIVE_DOMAIN) as process, listening(LIVE_DOMAIN) as peer:
        peer.spin_until(lambda: peer.states)
        yield process, peer


@pytest.fixture
def live(lasting_node):
    """The peer of the node that stays."""
    lasting_node[1].forget()
    return lasting_node[1]


def say(text):
    """Leave a measured figure in the output of the test (pytest -rP)."""
    sys.stdout.write(f'{text}\n')


def scripted_effort(k):
    return [45.0 * math.cos(0.05 * k), 12.0 * math.sin(0.11 * k + 1.0)]


def run_script(peer, first_stamp_ns, num_steps=STEPS):
    """Answer each state by the script; return (state, truth) for k = 0 .. num_steps."""

    def index(message):
        return (nanoseconds(message.header.stamp) - first_stamp_ns) // PERIOD_NS

    peer.spin_until(lambda: peer.states and peer.truths)  # both are heard: now answer
    peer.reply = lambda message: scripted_effort(index(message))
    peer.spin_until(lambda: peer.states and index(peer.states[-1]) >= num_steps)
    peer.reply = None
    peer.spin_until(lambda: index(peer.truths[-1]) >= num_steps)
    states, truths = ({index(m): m for m in heard} for heard in (peer.states, peer.truths))
    return [(states[k], truths[k]) for k in range(num_steps + 1)]


def rows(run):
    """Return positions, velocities and memory of a run, shape (T + 1, 6)."""
    return np.array([[*state.position, *state.velocity, *truth.effort] for state, truth in run])


def test_lockstep_over_dds_equals_the_plant_in_process_to_the_bit_every_time(peer, settings):
    runs = []
    for _ in range(2):
        peer.forget()
        with running('lockstep:=true', 'seed:=7', 'payload_kg:=1.125', 'tau_z_s:=1.0'):
            runs.append(run_script(peer, 10**9))
    start = draw_evaluation(settings.plant.task, 7, 1.125, 1, 1.0).of_arm(0).start
    plant = make_plant('bullet', settings)
    state = plant.reset(start)
    expected = [[*state.q_rad, *state.qd_radps, *plant.memory_nm]]
    for k in range(STEPS):
        state = plant.step(np.array(scripted_effort(k)))
        expected.append([*state.q_rad, *state.qd_radps, *plant.memory_nm])
    plant.close()
    assert np.array_equal(rows(runs[0]), expected)
    assert np.array_equal(rows(runs[1]), expected)
    told = {nanoseconds(message.clock) for message in peer.clocks}
    assert len(told) > 10
    assert told <= {10**9 + k * PERIOD_NS for k in range(STEPS + 2)}
    efforts = [list(state.effort) for state, _ in runs[0]]
    assert efforts == [[], *(scripted_effort(k) for k in range(STEPS))]


def test_lockstep_waits_repeats_and_begins_again_without_going_back_in_time(peer):
    with running('plant:=rk4', 'lockstep:=true', 'num_rollouts:=20', 'rollout:=3'):
        peer.spin_until(lambda: len(peer.states) >= 3)  # repeated, as nobody answers
        assert {nanoseconds(state.header.stamp) for state in peer.states} == {10**9}
        peer.command([1.0, 1.0], stamp_ns=10**9 + 1)  # the answer to another state
        began = time.monotonic()
        first = run_script(peer, 10**9)
        say(f'lockstep: {STEPS / (time.monotonic() - began):.0f} steps/s')
        assert peer.call(Trigger, 'plant/reset', Trigger.Request()).success
        peer.spin_until(lambda: not peer.states[-1].effort)  # no period of the episode has passed
        again = run_script(peer, nanoseconds(peer.states[-1].header.stamp))
        assert np.array_equal(rows(first), rows(again))
        stamps = [nanoseconds(state.header.stamp) for state in peer.states]
        assert stamps == sorted(stamps)
        facts = peer.facts()
        assert facts['mode'] == 'lockstep'
        assert int(facts['missed commands']) >= 2
        assert 'expected the stamp 1000000000 ns' in facts['last rejection']


def test_stamps_are_one_period_apart_and_states_come_at_that_rate(live):
    live.spin_until(lambda: len(live.states) >= 150)
    gaps = np.diff([nanoseconds(state.header.stamp) for state in live.states])
    assert (gaps % PERIOD_NS == 0).all()  # more than one if this process slept and missed some
    assert np.median(gaps) == PERIOD_NS
    facts = live.facts()
    say(f'worst lateness of a step: {facts["worst lateness ms"]} ms')
    assert facts['mode'] == 'real time'


def test_the_node_brakes_when_commands_stop(live):
    latencies_s = []
    while len(latencies_s) < 10:
        live.reply = lambda _: [20.0, 5.0]
        live.brakings.clear()
        live.spin_until(lambda: live.brakings and not live.brakings[-1][1])
        live.spin_for(0.05 + 0.007 * len(latencies_s))  # another phase each time
        live.reply = None
        if live.brakings[-1][1]:
            continue  # this process was too slow to command it; not what is measured here
        live.spin_until(lambda: live.brakings[-1][1])
        latencies_s.append(live.brakings[-1][0] - live.replied_s)
        live.states.clear()
        live.spin_until(lambda: live.states)
        assert list(live.states[-1].effort) != [20.0, 5.0]
    text = ' '.join(f'{1e3 * value:.0f}' for value in latencies_s)
    say(f'brake after the last command: {text} ms')
    assert np.median(latencies_s) < 0.06
    assert sorted(latencies_s)[-2] < BRAKE_BOUND_S  # one may fall into a stall of the machine


def fuzzed_commands(num, rng):
    """Give (effort, stamp, names) of commands of which none is valid."""
    odd = [math.nan, math.inf, -math.inf, 1e308, -1e9, 150.0001]
    for k in range(num):
        names, effort = list(JOINTS), [float(x) for x in rng.normal(0.0, 20.0, 2)]
        match k % 5:
            case 0:
                effort[rng.integers(2)] = odd[rng.integers(len(odd))]
            case 1:
                effort = [0.0] * int(rng.choice([0, 1, 3, 50]))
            case 2:
                names[rng.integers(2)] = ''.join(chr(c) for c in rng.integers(1, 0xD7FF, 5))
            case 3:
                names, effort = [*JOINTS, JOINTS[rng.integers(2)]], [0.0, 0.0, 0.0]
            case 4:
                names = []
        yield effort, int(rng.integers(-(2**31), 2**31)) * 10**9, names


def test_a_thousand_invalid_commands_neither_end_the_node_nor_release_the_brake(live):
    live.spin_for(0.1)
    live.brakings.clear()
    before = int(live.facts()['rejected commands'])
    for effort, stamp_ns, names in fuzzed_commands(1_000, np.random.default_rng(1)):
        live.command(effort, stamp_ns, names)
        live.executor.spin_once(timeout_sec=0.001)
    live.states.clear()
    facts = live.facts()
    assert not live.brakings
    assert int(facts['rejected commands']) - before > 100
    assert "joint 'joint" in facts['last rejection']
    assert all(np.isfinite(state.effort).all() for state in live.states)
    assert abs(live.states[-1].velocity[0]) < 0.1


def test_a_reset_takes_the_arm_back_to_its_start(live, settings):
    start = draw_evaluation(settings.plant.task, 42, 0.75, 1, 2.0).of_arm(0).start
    assert live.call(Trigger, 'plant/reset', Trigger.Request()).success
    live.spin_until(lambda: any(list(s.position) == start.q_rad.tolist() for s in live.states))
    stamps = [nanoseconds(state.header.stamp) for state in live.states]
    assert stamps == sorted(stamps)


def test_conditions_may_be_set_while_running_and_nothing_else(live):
    assert live.set_parameter('payload_kg', 1.5).successful
    assert live.set_parameter('tau_z_s', 1.0).successful
    for name, value in (('payload_kg', math.nan), ('payload_kg', -1.0), ('tau_z_s', 0.0)):
        assert not live.set_parameter(name, value).successful
    for name, value in (('seed', 1), ('plant', 'bullet'), ('command_timeout_s', 1.0)):
        assert not live.set_parameter(name, value).successful
    live.states.clear()
    live.spin_until(lambda: len(live.states) >= 5)


def test_every_socket_is_on_the_loopback_address(lasting_node):
    sockets = psutil.Process(lasting_node[0].pid).net_connections('inet')
    assert {socket.laddr.ip for socket in sockets} == {'127.0.0.1'}


@pytest.mark.parametrize('sent', [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_node_with_code_0(peer, sent):
    with running('plant:=rk4') as process:
        peer.spin_until(lambda: len(peer.states) >= 10)
        began = time.monotonic()
        process.send_signal(sent)
        assert process.wait(PATIENCE_S) == 0
    say(f'exit after {time.monotonic() - began:.3f} s')
    assert time.monotonic() - began < EXIT_BOUND_S


@pytest.mark.parametrize(
    ('parameters', 'reason'),
    [
        (['payload_kg:=-1.0'], 'payload_kg'),
        (['payload_kg:=heavy'], 'payload_kg'),
        (['plant:=mujoco'], "found 'mujoco'"),
        (['payload_gk:=1.0'], "did you mean 'payload_kg'"),
        (['arm_file:=/nowhere/arm.yaml'], '/nowhere/arm.yaml: cannot be read'),
        (['rollout:=1'], 'less than num_rollouts'),
    ],
)
def test_a_wrong_parameter_ends_the_node_with_code_2_and_says_which(parameters, reason):
    with running(*parameters) as process:
        _, text = process.communicate(timeout=PATIENCE_S)
        assert process.returncode == 2
    assert reason in text


def test_a_node_that_cannot_be_secured_as_asked_does_not_start():
    with running(ROS_SECURITY_ENABLE='true', ROS_SECURITY_STRATEGY='Permissive') as process:
        _, text = process.communicate(timeout=PATIENCE_S)
        assert process.returncode == 2
    assert 'ROS_SECURITY_STRATEGY=Enforce' in text


def test_a_simulation_that_fails_says_why_brakes_and_ends_the_node_with_code_1(peer):
    program = (
        'import sys; from metactl_ros.ros import plant_node as p\n'
        'step = p.FreeRunningRobot.step\n'
        'def failing(robot, *when):\n'
        '    if not robot.reading.is_braking: raise ArithmeticError("the arm exploded")\n'
        '    return step(robot, *when)\n'
        'p.FreeRunningRobot.step = failing\n'
        'sys.exit(p.main())\n'
    )
    with running('plant:=rk4', program=('-c', program)) as process:
        peer.spin_until(lambda: peer.brakings)
        peer.reply = lambda _: [0.0, 0.0]
        peer.spin_until(lambda: process.poll() is not None)
        assert process.returncode == 1
        assert 'the arm exploded' in process.stderr.read()
    peer.spin_until(lambda: len(peer.brakings) > 1 and peer.brakings[-1][1])
