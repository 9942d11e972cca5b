# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""What the controller node does with a bundle it should not trust: it says why, and nothing else.

Each of these is one node process; `test_bundle_refusals.py` tries thousands of them without ROS.
"""

import os
import shutil
import zipfile

import pytest
import yaml

from metactl_ros.settings import share_directory, shipped_policy

pytest.importorskip('rclpy', reason="needs ROS: pip install 'metactl_ros[ros]'")
from ros_peer import Peer, running
from sensor_msgs.msg import JointState

pytestmark = pytest.mark.ros

DOMAIN = os.getpid() % 50 * 2 + 1


class Listener(Peer):
    """Hears whether a node commands the arm or tells of a tick."""

    def __init__(self):
        super().__init__(DOMAIN)
        self.heard = []
        for topic in ('joint_commands', 'controller/shield'):
            self.node.create_subscription(JointState, topic, self.heard.append, 10)


@pytest.fixture(scope='module')
def listener():
    listener = Listener()
    yield listener
    listener.close()


@pytest.fixture
def bundle(tmp_path):
    """A copy of the shipped bundle, to spoil."""
    return shutil.copytree(shipped_policy(), tmp_path / 'bundle.metactl')


def flip_a_bit(bundle):
    data = bytearray((bundle / 'policy.onnx').read_bytes())
    data[len(data) // 2] ^= 1
    (bundle / 'policy.onnx').write_bytes(data)


def truncate(bundle):
    os.truncate(bundle / 'golden.npz', 1000)


def to_fifo(bundle):
    (bundle / 'policy.onnx').unlink()
    os.mkfifo(bundle / 'policy.onnx')


def to_empty_directory(bundle):
    shutil.rmtree(bundle)
    bundle.mkdir()


def to_sb3_zip(bundle):
    """Put in its place what Stable-Baselines3 saves; its `data` would be unpickled."""
    shutil.rmtree(bundle)
    with zipfile.ZipFile(bundle, 'w') as archive:
        archive.writestr('data', b'\x80\x04\x95')
        archive.writestr('policy.pth', b'')


@pytest.mark.parametrize(
    ('damage', 'reason'),
    [
        (flip_a_bit, 'policy.onnx'),
        (truncate, 'golden.npz'),
        (to_fifo, 'expected a regular file'),
        (to_empty_directory, 'SHA256SUMS'),
        (to_sb3_zip, 'Not a directory'),
        (shutil.rmtree, 'No such file'),
        (lambda bundle: (bundle / 'extra.txt').write_text('x'), 'extra.txt'),
    ],
)
def test_a_spoilt_bundle_is_refused_with_its_reason(damage, reason, bundle, listener):
    damage(bundle)
    assert_refused(listener, reason, f'policy:={bundle}')


def other_joints(arm, controller):
    arm['joint_names'] = ['shoulder', 'elbow']


def other_arm(arm, controller):
    arm['link_masses_kg'] = [6.0, 5.0]


def other_rate(arm, controller):
    controller['law']['rate_hz'] = 200.0


@pytest.mark.parametrize(
    ('change', 'reason'),
    [(other_joints, 'joint_names'), (other_arm, 'link_masses_kg'), (other_rate, 'rate_hz')],
)
def test_a_bundle_for_another_robot_is_refused_with_its_reason(change, reason, tmp_path, listener):
    files = {}
    texts = {name: share_directory() / 'config' / f'{name}.yaml' for name in ('arm', 'controller')}
    values = {name: yaml.safe_load(path.read_text()) for name, path in texts.items()}
    change(**values)
    for name, value in values.items():
        files[name] = tmp_path / f'{name}.yaml'
        files[name].write_text(yaml.safe_dump(value))
    parameters = [f'{name}_file:={path}' for name, path in files.items()]
    assert_refused(listener, reason, *parameters)


def assert_refused(listener, reason, *parameters):
    listener.heard.clear()
    with running('controller_node', DOMAIN, *parameters) as process:
        assert process.wait(15.0) == 2
        assert reason in process.communicate()[1]
    assert not listener.heard
