# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
from pathlib import Path

import pytest
from support import DOMAIN
from topics_page import page, RECORDER, TOPICS

DOCS = Path(__file__).resolve().parents[2] / 'docs' / 'topics_and_parameters.md'
NEEDS_ROS = "needs ROS: pip install 'metactl_ros[ros]'"
GRAPH = {'in': 'subscriber', 'out': 'publisher', 'service': 'service'}
ROS_ITSELF = {'rcl_interfaces', 'lifecycle_msgs', 'type_description_interfaces'}
"""Packages of the types that every node, or every lifecycle node, speaks."""


def test_the_page_in_docs_is_the_one_that_is_written_now():
    assert DOCS.read_text(encoding='utf-8') == page()


def rows_on_page(node):
    for row, name, kind, _ in TOPICS[node]:
        full = name.replace('~', f'/{node}')
        package, _, short = kind.partition('/')
        folder = 'srv' if row == 'service' else 'msg'
        yield row, f'/{full.lstrip("/")}', f'{package}/{folder}/{short}'


def rows_of_node(peer, node):
    names = {name for name, _ in peer.node.get_node_names_and_namespaces()}
    for name in names & {node, f'{node}_loop'}:  # a controller is two
        for row, kind_of_row in GRAPH.items():
            found = getattr(peer.node, f'get_{kind_of_row}_names_and_types_by_node')(name, '/')
            for topic, kinds in found:
                yield from ((row, topic, kind) for kind in kinds if not is_of_ros(kind))


def is_of_ros(kind):
    return kind.partition('/')[0] in ROS_ITSELF


@pytest.fixture
def peer():
    pytest.importorskip('rclpy', reason=NEEDS_ROS)
    from support.ros_peer import Peer

    peer = Peer(DOMAIN)
    yield peer
    peer.close()


@pytest.mark.ros
@pytest.mark.parametrize(
    ('node', 'parameters'),
    [
        ('controller', ['reference:=trajectory']),
        ('plant', ['plant:=rk4', 'lockstep:=true']),
    ],
    ids=['controller', 'plant'],
)
def test_a_node_has_the_topics_and_services_on_the_page_and_no_others(peer, node, parameters):
    from diagnostic_msgs.msg import DiagnosticArray
    from support.ros_peer import running, wait_until

    reports = []
    peer.node.create_subscription(DiagnosticArray, '/diagnostics', reports.append, 5)
    expected = sorted(rows_on_page(node))
    with running(f'{node}_node', DOMAIN, *parameters):
        # Two of them, a second apart: then all that it makes at its start is long known here.
        wait_until(lambda: len(reports) > 1)
        found = sorted(rows_of_node(peer, node))
    assert found == expected


@pytest.mark.ros
def test_the_recorder_has_the_parameters_on_the_page_and_no_others(peer, tmp_path):
    from rcl_interfaces.srv import GetParameters, ListParameters
    from rclpy.parameter import parameter_value_to_python
    from support.ros_peer import running

    own = {'use_sim_time', 'start_type_description_service'}  # of every node
    with running('recorder', DOMAIN, f'out:={tmp_path}/bag'):
        names = peer.call(ListParameters, 'recorder/list_parameters', ListParameters.Request())
        asked = GetParameters.Request(names=list(RECORDER))
        values = peer.call(GetParameters, 'recorder/get_parameters', asked).values
    assert set(names.result.names) - own == set(RECORDER)
    expected = {name: meaning.default for name, meaning in RECORDER.items()}
    expected['out'] = f'{tmp_path}/bag'
    assert dict(zip(RECORDER, map(parameter_value_to_python, values), strict=True)) == expected
