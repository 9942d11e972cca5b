# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""Every classical controller as a node, in lockstep with an arm that the test moves.

Each has a process and a namespace of its own; all are up before the first drives, in one bag.
"""

import json
import threading
import time

import numpy as np
import pytest
from support import DOMAIN
from support.episodes import as_followed
import yaml

pytest.importorskip('rclpy', reason="needs ROS: pip install 'metactl_ros[ros]'")
from sensor_msgs.msg import JointState
from support.recordings import (
    assert_equal,
    changed,
    messages_of,
    stamp_ns,
    with_every_command,
    write_own,
)
from support.ros_peer import PATIENCE_S, Peer, running, wait_until

from metactl_ros.bag.topics import FORWARD, STAMPED, TOPICS
from metactl_ros.baselines import CLASSICAL, ConstantPolicy, load_baselines, load_classical
from metactl_ros.cli import main
from metactl_ros.control.estimators.disturbance import MomentumObserver
from metactl_ros.control.estimators.estimator import EstimatorInput
from metactl_ros.control.law import tracking_error, TrackingState
from metactl_ros.control.loop import ControlLoop
from metactl_ros.control.modes import Mode
from metactl_ros.errors import MetactlError
from metactl_ros.processes import commands, loopback_environment, ProcessGroup, Setup
from metactl_ros.replay.verdict import replay_bag, ReplayRequest, summary
from metactl_ros.runtime.controller import with_full_window
from metactl_ros.runtime.joint_states import nanoseconds, set_stamp
from metactl_ros.settings import make_plant, policy_file, share_directory, shipped_policy
from metactl_ros.sim.rollout import run_episode

pytestmark = pytest.mark.ros

STEPS = 110
START_NS = 10**9
PATIENT = '/**: {ros__parameters: {inference_budget_s: 1.0, realtime_priority: 0}}\n'
SHIPPED = share_directory() / 'config' / 'classical' / 'nominal.yaml'
OTHER = 'ct_integral'
"""Runs with gains of a file of its own."""
TOLD = [topic for topic in TOPICS if topic.startswith('controller/') and 'event' not in topic]


def rivals_file(path, changes):
    """Write the shipped file with other settings of some estimators."""
    rivals = yaml.safe_load(SHIPPED.read_text())
    for name, values in changes.items():
        (settings,) = rivals[name]['estimator'].values()
        settings |= values
    path.write_text(yaml.safe_dump(rivals))
    return path


def setup_of(name, **options):
    return Setup(
        controller=name, namespace=name, lockstep=True, seed=5, log_level='error', **options
    )


class Robot:
    """An arm behind the topics of a namespace, which waits for the answer to each state."""

    def __init__(self, peer, name, settings):
        self._node, self._name = peer.node, name
        self._plant = make_plant('rk4', settings)
        self._joints, self._answers = list(settings.arm.joint_names), {}
        self._heard = threading.Event()
        self._node.create_subscription(JointState, f'/{name}/joint_commands', self._hear, 5)

    def _hear(self, message):
        self._answers[nanoseconds(message.header.stamp)] = np.array(message.effort)
        self._heard.set()

    @property
    def is_listened_to(self):
        """Whether controller and recorder are there."""
        listeners = self._node.count_subscribers
        at = f'/{self._name}'
        return listeners(f'{at}/joint_states') > 0 and listeners(f'{at}/joint_commands') > 1

    def drive(self, episode):
        states = self._node.create_publisher(JointState, f'/{self._name}/joint_states', 5)
        wait_until(states.get_subscription_count)
        state = self._plant.reset(episode.start)
        for _ in range(STEPS):
            said = {'position': state.q_rad.tolist(), 'velocity': state.qd_radps.tolist()}
            message = JointState(name=self._joints, **said)
            set_stamp(message.header.stamp, START_NS + state.stamp_ns)
            effort_nm = self._answer(states, message, START_NS + state.stamp_ns)
            state = self._plant.step(effort_nm)

    def _answer(self, states, message, stamp_ns):
        """Say a state until it is answered: best effort may lose it; twice is refused as old."""
        until = time.monotonic() + PATIENCE_S
        while stamp_ns not in self._answers:
            assert time.monotonic() < until, f'{self._name}: no answer'
            self._heard.clear()
            states.publish(message)
            self._heard.wait(0.5)
        return self._answers[stamp_ns]


@pytest.fixture(scope='module')
def bag(tmp_path_factory, settings):
    folder = tmp_path_factory.mktemp('classical')
    (folder / 'patient.yaml').write_text(PATIENT)
    topics = [f'{n}/{topic}={TOPICS[topic]}' for n in CLASSICAL for topic in TOLD]
    topics += [f'{n}/{topic}={TOPICS[topic]}' for n in CLASSICAL for topic in (STAMPED, FORWARD)]
    other = rivals_file(folder / 'other.yaml', {OTHER: {'rate_per_s2': 123.0}})
    out = (f'out:={folder / "bag"}', f'topics:={json.dumps(topics)}')
    group, peer = ProcessGroup(loopback_environment(DOMAIN)), Peer(DOMAIN)
    try:
        robots = {name: Robot(peer, name, settings) for name in CLASSICAL}
        with running('recorder', DOMAIN, *out):
            for name in CLASSICAL:
                file = str(other) if name == OTHER else ''
                setup = setup_of(name, params_file=folder / 'patient.yaml', classical_file=file)
                group.start(name, commands(setup)['controller_node'])
            wait_until(lambda: all(r.is_listened_to for r in robots.values()), timeout_s=60.0)
            for name, robot in robots.items():
                robot.drive(setup_of(name).episode())
            for name in CLASSICAL:  # one by one: the recorder is to see how each one ends
                assert group.stop(name) == 0
    finally:
        group.stop_all()
        peer.close()
    return folder / 'bag'


@pytest.fixture(scope='module')
def whole(bag):
    """The same with the commands that a recorder on a busy machine has missed."""
    return write_own(bag.parent / 'whole', with_every_command(messages_of(bag)))


def request_of(bag, name, **options):
    return ReplayRequest(bag=bag, node=f'/{name}/controller', **options)


@pytest.mark.parametrize('name', CLASSICAL)
def test_a_node_drives_as_the_loop_in_process_and_its_bag_is_computed_again_to_the_bit(
    bag, name, settings
):
    setup = setup_of(name)
    file = bag.parent / 'other.yaml' if name == OTHER else None
    controller, policy = load_classical(name, settings.controller, file, setup.robot_payload_kg)
    loop = ControlLoop(settings.arm, with_full_window(controller))
    plant = make_plant('rk4', settings)
    policy = policy or ConstantPolicy(loop.nominal_action)
    expected = run_episode(plant, as_followed(setup.episode()), policy, loop, STEPS)
    result = replay_bag(request_of(bag, name))
    log = result.log
    assert set(log.shield['mode']) == {Mode.WARMUP, Mode.NOMINAL, Mode.BLIND}
    np.testing.assert_array_equal(log.effort_nm[:STEPS], expected.effort_nm)
    np.testing.assert_array_equal(log.gains[:STEPS], expected.gains)
    was_sent = np.isfinite(log.sent_nm).all(axis=1)
    assert was_sent.sum() > STEPS // 2
    np.testing.assert_array_equal(log.sent_nm[was_sent], log.effort_nm[was_sent])
    assert (log.estimate_nm is not None) == (controller.estimator is not None)
    assert_equal(result)
    assert result.facts['computed_by'] == name


def test_the_bag_of_a_controller_is_replayed_by_all_others_in_open_loop(whole):
    for other in CLASSICAL:
        for name in ('slotine_li', 'ct_best'):
            result = replay_bag(request_of(whole, name, controller=other))
            assert result.again.is_open_loop == (other != name)
            verdict = 'equal' if other == name else 'open loop, compared with nothing'
            assert result.facts['verdict'] == verdict
            assert result.exit_code == 0  # with the certificates of the recorded one
    result = replay_bag(request_of(whole, 'slotine_li', bundle=shipped_policy()))
    assert result.again.is_open_loop
    assert result.again.estimate_nm is not None
    assert result.exit_code == 0
    result = replay_bag(request_of(whole, 'slotine_li', bundle=policy_file('paper_sac')))
    assert result.again.gain_names != result.log.gain_names


def test_the_estimate_of_another_controller_is_made_from_the_recorded_efforts(
    whole, tmp_path, settings, capsys
):
    result = replay_bag(request_of(whole, 'ct', controller='momentum_observer'))
    assert result.again.is_open_loop
    assert 'open loop' in result.facts['verdict']
    assert 'open loop' in result.facts['computed_again']['label']
    assert result.exit_code == 0
    bandwidth_radps = load_baselines().momentum_observer.estimator.momentum_observer
    log = result.log
    observer = MomentumObserver(bandwidth_radps, settings.arm.limits.effort_nm)
    for k in range(STEPS):
        at = TrackingState(log.q_rad[k], log.qd_radps[k], *[np.zeros(2)] * 3)
        given = EstimatorInput(
            *(0.0, 0.01 if k else 0.0, at, tracking_error(settings.controller.law, at)),
            settings.arm.body().at(at.q, at.qd),
            *(log.effort_before_nm[k], np.zeros(()), np.ones((), dtype=bool)),
        )
        np.testing.assert_array_equal(result.again.estimate_nm[k], observer.update(given))
    assert np.abs(result.again.estimate_nm[STEPS - 1]).max() > 1.0
    command = ['replay', str(whole), '--node', '/ct/controller', '--out', str(tmp_path)]
    assert main([*command, '--controller', 'momentum_observer']) == 0
    assert 'open loop' in capsys.readouterr().out
    assert 'What the model of joint1 lacks' in (tmp_path / 'replay.html').read_text()


def test_gains_of_another_file_are_another_controller(whole, tmp_path):
    copy = rivals_file(tmp_path / 'copy.yaml', {})
    result = replay_bag(request_of(whole, 'momentum_observer', classical_file=copy))
    assert (result.again.is_open_loop, result.facts['verdict']) == (False, 'equal')
    other = rivals_file(tmp_path / 'other.yaml', {'momentum_observer': {'bandwidth_radps': 9.0}})
    result = replay_bag(request_of(whole, 'momentum_observer', classical_file=other))
    assert result.again.is_open_loop


def test_a_bag_tells_the_file_of_its_gains_and_needs_it_no_more(whole):
    result = replay_bag(request_of(whole, OTHER))
    assert result.log.facts['classical file'] == 'other.yaml'
    assert ('recorded by', f'{OTHER}, other.yaml') in summary(result)
    assert result.exit_code == 0
    shipped = replay_bag(request_of(whole, OTHER, classical_file=SHIPPED))
    assert shipped.again.is_open_loop


@pytest.fixture(scope='module')
def messages(bag):
    return [m for m in messages_of(bag) if m.topic.startswith('/momentum_observer/')]


def widen(facts):
    told = json.loads(facts['settings'])
    told['gain_box']['kd_per_s'] = [1.0, 600.0]
    facts['settings'] = json.dumps(told)


def with_facts(bag, messages, change):
    def alter(message):
        facts = json.loads(message.data)
        change(facts)
        message.data = json.dumps(facts)

    topic = '/momentum_observer/controller/bundle'
    return write_own(bag, changed(messages, topic, 0, alter))


@pytest.mark.parametrize(
    ('change', 'says'),
    [
        (lambda facts: facts.pop('settings'), 'does not say with which gains; record again'),
        (lambda facts: facts.update(settings='{}'), "missing key 'gain_box'"),
        (lambda facts: facts.update(settings='nothing'), 'cannot be read'),
        (lambda facts: facts.update(controller='nobody'), "'nobody', expected policy or one of"),
        (widen, 'its gain box, .* is none of this robot'),
    ],
)
def test_a_bag_that_does_not_tell_its_controller_is_refused(tmp_path, messages, change, says):
    bag = with_facts(tmp_path / 'bag', messages, change)
    with pytest.raises(MetactlError, match=says):
        replay_bag(request_of(bag, 'momentum_observer'))


def test_after_a_gap_an_estimator_is_not_compared_until_a_restart(tmp_path, messages):
    stamps = sorted({stamp_ns(m) for m in messages if m.topic.endswith('/shield')})
    kept = [m for m in messages if stamp_ns(m) not in stamps[70:73]]
    result = replay_bag(request_of(write_own(tmp_path / 'bag', kept), 'momentum_observer'))
    assert result.exit_code == 3
    assert result.again.first_difference is None
    assert result.again.is_compared.tolist() == [k < 70 for k in range(len(result.log.stamp_ns))]
    assert result.violations == []


def test_an_altered_estimate_is_caught_at_its_tick(tmp_path, messages):
    def alter(message):
        message.position[-1] += 1e-12

    topic = '/momentum_observer/controller/shield'
    bag = write_own(tmp_path / 'bag', changed(messages, topic, 30, alter))
    first = replay_bag(request_of(bag, 'momentum_observer')).again.first_difference
    assert (first.tick, first.quantity, first.joint_or_gain) == (30, 'estimate', 'joint2')
