# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""The supervisor over a node that is only pretended."""

from collections import defaultdict
from types import SimpleNamespace

import numpy as np
import pytest
from support.rides import NOMINAL, WARMUP
from support.worlds import MS, on_time, SECOND_NS

from metactl_ros.control.modes import Cause, Mode, NO_JOINT

pytest.importorskip('rclpy', reason="needs ROS: pip install 'metactl_ros[ros]'")
from metactl_ros.ros import supervisor as module
from metactl_ros.ros.supervisor import estimate_finding, SourceError, Supervisor
from metactl_ros.runtime.control_thread import Exchange
from metactl_ros.runtime.operator_requests import MAX_PENDING
from metactl_ros.runtime.state_intake import NAME_UNKNOWN

STATES, COMMANDS = '/joint_states', '/joint_commands'


class Node:
    """A node that knows who publishes what, and keeps what is logged."""

    def __init__(self):
        self.publishers, self.said = defaultdict(list), []

    def add(self, topic, name, identity=None):
        gid = list((identity or name).encode())
        endpoint = SimpleNamespace(node_namespace='/', node_name=name, endpoint_gid=gid)
        self.publishers[topic].append(endpoint)

    def get_logger(self):
        return SimpleNamespace(
            **{
                level: lambda text, level=level: self.said.append((level, text))
                for level in ('info', 'warning', 'error')
            }
        )

    def resolve_topic_name(self, topic):
        return f'/{topic}'

    def get_fully_qualified_name(self):
        return '/controller'

    def get_publishers_info_by_topic(self, topic):
        return list(self.publishers[topic])


@pytest.fixture
def node(monkeypatch):
    monkeypatch.setattr(module, 'DISCOVERY_S', (0.0, 0.0))
    monkeypatch.setattr(module, 'LISTEN_S', 0.05)
    node = Node()
    node.add(STATES, 'robot')
    return node


def supervisor_of(node, **given):
    one = Supervisor(node, 'joint_states', ['joint_commands'])
    control = Exchange()
    one.poll()
    one.begin(control, ('joint1', 'joint2'), commands=given.get('commands', True))
    return one, control


def test_a_second_publisher_of_commands_is_an_error_for_as_long_as_it_is_listed(node):
    supervisor, control = supervisor_of(node)
    node.add(COMMANDS, 'controller', 'mine')
    supervisor.poll()
    assert control.outer_error == Cause.NONE
    node.add(COMMANDS, 'controller', 'of another with my name')
    for _ in range(3):
        supervisor.poll()
        assert control.outer_error == Cause.SECOND_SOURCE
    node.publishers[COMMANDS].pop()
    supervisor.poll()
    assert control.outer_error == Cause.NONE
    assert len(node.said) == 1
    assert node.said[0][0] == 'error'
    assert 'found /controller; end it. States of others that were used: 0.' in node.said[0][1]


def test_in_shadow_and_before_it_drives_commands_of_others_do_not_matter(node):
    supervisor, control = supervisor_of(node, commands=False)
    node.add(COMMANDS, 'other')
    supervisor.poll()
    supervisor.require_sole_publisher(lambda: None, has_publishers=False, commands=False)
    assert control.outer_error == Cause.NONE
    supervisor.end()
    node.add(STATES, 'ghost')
    node.add(STATES, 'ghost 2')
    supervisor.poll()
    assert control.outer_error == Cause.NONE
    assert not node.said


def test_a_name_that_is_not_known_yet_is_waited_for_but_the_error_is_not(node):
    supervisor, control = supervisor_of(node)
    node.add(COMMANDS, NAME_UNKNOWN)
    supervisor.poll()
    assert control.outer_error == Cause.SECOND_SOURCE
    assert not node.said
    node.publishers[COMMANDS].clear()
    node.add(COMMANDS, 'other')
    supervisor.poll()
    assert 'found /other;' in node.said[0][1]


def test_it_refuses_to_drive_beside_others_and_names_them(node):
    supervisor, _ = supervisor_of(node)
    supervisor.require_sole_publisher(lambda: None, has_publishers=False, commands=True)
    node.add(COMMANDS, 'controller', 'mine')
    supervisor.require_sole_publisher(lambda: None, has_publishers=True, commands=True)
    with pytest.raises(SourceError, match=r'found /controller; end it .* then activate again'):
        supervisor.require_sole_publisher(lambda: None, has_publishers=False, commands=True)


def test_two_robots_are_told_by_listening_for_a_while(node, monkeypatch):
    monkeypatch.setattr('metactl_ros.runtime.state_intake.TOGETHER_NS', 0)
    supervisor, _ = supervisor_of(node)
    node.add(STATES, 'ghost')
    node.publishers[STATES].reverse()
    # It is dead.
    supervisor.require_sole_publisher(lambda: None, has_publishers=False, commands=True)
    numbers = iter([1, 500, 2, 501])

    def take():
        number = next(numbers, None)
        return number and (None, {'publication_sequence_number': number})

    with pytest.raises(SourceError, match='found /ghost, /robot alive'):
        supervisor.require_sole_publisher(take, has_publishers=False, commands=True)
    supervisor.require_sole_publisher(lambda: None, has_publishers=False, commands=True)


@pytest.mark.parametrize(
    ('found_s', 'expected_s'), [(0.0, 0.5), (0.6, 0.85), (9.0, 1.5)], ids=['soon', 'late', 'never']
)
def test_it_waits_until_the_robot_is_found_but_not_for_ever(
    node, monkeypatch, found_s, expected_s
):
    now_s = 100.0

    def sleep(duration_s):
        nonlocal now_s
        now_s += duration_s
        if now_s >= 100.0 + found_s and not node.publishers[STATES]:
            node.add(STATES, 'robot')

    clock = SimpleNamespace(monotonic=lambda: now_s, monotonic_ns=lambda: 0, sleep=sleep)
    monkeypatch.setattr(module, 'time', clock)
    monkeypatch.setattr(module, 'DISCOVERY_S', (0.5, 1.5))
    monkeypatch.setattr(module, 'LISTEN_S', 0.25)
    if found_s:
        node.publishers[STATES].clear()
    supervisor, _ = supervisor_of(node)
    supervisor.require_sole_publisher(lambda: None, has_publishers=False, commands=True)
    assert now_s - 100.0 == pytest.approx(expected_s, abs=0.01)


def test_changes_are_logged_once_and_as_gravely_as_they_are(node):
    supervisor, _ = supervisor_of(node)
    rows = (
        (Mode.WARMUP, 'info'),
        (Mode.FALLBACK, 'warning'),
        (Mode.STOP, 'warning'),
        (Mode.BLIND, 'error'),
        (Mode.FAULT, 'error'),
        (Mode.NOMINAL, 'info'),
    )
    for mode, _ in rows:
        tick = SimpleNamespace(mode=mode, cause=Cause.NONE, joint=NO_JOINT)
        supervisor.modes.note(tick, 0, is_enabled=True)
        supervisor.poll()
    supervisor.modes.is_ending = True
    tick = SimpleNamespace(mode=Mode.BLIND, cause=Cause.NONE, joint=NO_JOINT)
    supervisor.modes.note(tick, 0, is_enabled=True)
    supervisor.end()
    supervisor.end()
    levels = [level for level, _ in node.said]
    assert levels == [level for _, level in rows] + ['info']
    assert 'control ends' in node.said[-1][1]


def test_changes_that_were_lost_are_counted_in_the_log(node):
    supervisor, _ = supervisor_of(node)
    for number in range(MAX_PENDING + 7):
        tick = SimpleNamespace(mode=Mode(number % 2), cause=Cause.NONE, joint=NO_JOINT)
        supervisor.modes.note(tick, 0, is_enabled=True)
    supervisor.poll()
    assert node.said[0] == ('error', '7 changes of the mode came too fast to be logged.')
    assert len(node.said) == 1 + MAX_PENDING


def test_one_that_cannot_look_any_more_says_so_and_faults_the_controller(node):
    supervisor, control = supervisor_of(node)
    node.get_publishers_info_by_topic = None
    supervisor.start()
    supervisor.join(timeout=20.0)
    assert 'TypeError' in supervisor.error
    assert control.outer_error == Cause.INTERNAL_ERROR
    supervisor.stop()


def test_it_looks_until_it_is_stopped(node):
    supervisor, control = supervisor_of(node)
    supervisor.start()
    node.add(COMMANDS, 'other')
    while control.outer_error == Cause.NONE:
        assert supervisor.is_alive()
    supervisor.stop()
    assert not supervisor.is_alive()
    assert supervisor.error is None


def test_an_outer_error_is_one_for_as_long_as_it_is_found_and_no_reset_helps():
    world = on_time()
    requests = world.controller.requests
    for at_ms, target, name, value in (
        (305, world.thread.exchange, 'outer_error', Cause.SECOND_SOURCE),
        (505, requests, 'reset_fault', True),
        (605, world.thread.exchange, 'outer_error', Cause.NONE),
        (705, requests, 'reset_fault', True),
    ):
        world.at(at_ms * MS, lambda given=(target, name, value): setattr(*given))
    world.run(SECOND_NS)
    ticks = [command.tick for _, command in world.commands(SECOND_NS)]
    assert ticks[30].mode == NOMINAL
    bad = {(tick.mode, tick.cause) for tick in ticks[31:71]}
    assert bad == {(Mode.FAULT, Cause.SECOND_SOURCE)}
    assert ticks[71].mode == WARMUP


@pytest.mark.parametrize(
    ('fits', 'coverage', 'finding'),
    [
        (True, 0.95, ''),
        (True, 0.7, 'off by more than rho on 30% of the last 5 s'),
        (False, 0.95, 'none of the delays it knows: low gains act'),
    ],
)
def test_what_is_wrong_with_the_estimate_is_said(fits, coverage, finding):
    loop = SimpleNamespace(
        fits=np.array(fits),
        coverage=np.array(coverage),
        lyapunov=SimpleNamespace(error_radius_rad=0.0168),
    )
    found = estimate_finding(loop)
    assert finding in found
    assert bool(found) == bool(finding)
    assert ('certified error of 17 mrad' in found) == (coverage < 0.9)
