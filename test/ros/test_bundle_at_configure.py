# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""What the controller node does with a bundle it should not trust: it says why, and nothing else.

Each of these is one node process; `test_bundle_refusals.py` tries thousands of them without ROS.
"""

import hashlib
import os
import shutil
import time
import zipfile

import pytest
import yaml

from metactl_ros.runtime.joint_states import set_stamp
from metactl_ros.settings import share_directory, shipped_policy

pytest.importorskip('rclpy', reason="needs ROS: pip install 'metactl_ros[ros]'")
from sensor_msgs.msg import JointState
from std_msgs.msg import Float64MultiArray
from support import DOMAIN
from support.ros_peer import Peer, running

pytestmark = pytest.mark.ros


HOOK = """
import sys
file = open({path!r}, 'a', buffering=1)
def note(event, _, heard=('pickle.find_class', 'os.system', 'os.exec', 'os.posix_spawn',
                          'subprocess.Popen', 'sys.addaudithook')):
    if event in heard:
        file.write(event + ' ')
sys.addaudithook(note)
sys.addaudithook(lambda *_: None)
"""


class Listener(Peer):
    """An arm at rest that hears whether a node commands it or tells of a tick."""

    def __init__(self):
        super().__init__(DOMAIN)
        self.heard = []
        for kind, topic in (
            (JointState, 'joint_commands'),
            (Float64MultiArray, 'forward_effort_controller/commands'),
            (JointState, 'controller/shield'),
        ):
            self.node.create_subscription(kind, topic, self.heard.append, 10)
        self._states = self.node.create_publisher(JointState, 'joint_states', 5)
        self.node.create_timer(0.01, self._speak)

    def _speak(self):
        names = ['joint1', 'joint2', 'shoulder', 'elbow']  # of any robot of these tests
        message = JointState(name=names, position=[0.0] * 4, velocity=[0.0] * 4)
        set_stamp(message.header.stamp, time.time_ns())
        self._states.publish(message)


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
    """Put in its place what Stable-Baselines3 saves, which its own loader unpickles."""
    sb3 = pytest.importorskip('stable_baselines3', reason="needs 'metactl_ros[train]'")
    shutil.rmtree(bundle)
    sb3.SAC('MlpPolicy', 'Pendulum-v1', buffer_size=1, device='cpu').save(
        bundle.with_suffix('.zip')
    )
    bundle.with_suffix('.zip').rename(bundle)
    assert zipfile.is_zipfile(bundle)


@pytest.mark.parametrize(
    ('damage', 'reason'),
    [
        (flip_a_bit, 'policy.onnx'),
        (truncate, 'golden.npz'),
        (to_fifo, 'a named pipe, not a regular file'),
        (to_empty_directory, 'SHA256SUMS'),
        (to_sb3_zip, 'Not a directory'),
        (shutil.rmtree, 'expected the path of a bundle'),
        (lambda bundle: (bundle / 'extra.txt').write_text('x'), 'extra.txt'),
    ],
)
def test_a_spoilt_bundle_is_refused_with_its_reason(damage, reason, bundle, listener, audited):
    damage(bundle)
    assert_refused(listener, audited, reason, f'policy:={bundle}')


def test_a_bundle_that_is_not_the_trusted_one_is_refused_with_both_hashes(listener, audited):
    found = hashlib.sha256((shipped_policy() / 'SHA256SUMS').read_bytes()).hexdigest()
    trusted = found[::-1]
    reason = f'expected the bundle with SHA-256 {trusted}, found {found}'
    assert_refused(listener, audited, reason, f'policy_sha256:={trusted}')


@pytest.mark.parametrize('text', ['12ab', 'g' * 64, 'a' * 65])
def test_what_is_no_hash_is_refused(text, listener, audited):
    reason = 'policy_sha256: expected 64 hexadecimal digits, as metactl inspect prints them, or'
    assert_refused(listener, audited, reason, f'policy_sha256:={text}')


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
def test_a_bundle_for_another_robot_is_refused_with_its_reason(
    change, reason, tmp_path, listener, audited
):
    files = {}
    texts = {name: share_directory() / 'config' / f'{name}.yaml' for name in ('arm', 'controller')}
    values = {name: yaml.safe_load(path.read_text()) for name, path in texts.items()}
    change(**values)
    for name, value in values.items():
        files[name] = tmp_path / f'{name}.yaml'
        files[name].write_text(yaml.safe_dump(value))
    parameters = [f'{name}_file:={path}' for name, path in files.items()]
    assert_refused(listener, audited, reason, *parameters)


@pytest.fixture
def audited(tmp_path, monkeypatch):
    """Make every Python started from here note what it executes; return where."""
    notes, folder = tmp_path / 'audit.txt', tmp_path / 'site'
    folder.mkdir()
    (folder / 'sitecustomize.py').write_text(HOOK.format(path=str(notes)))
    monkeypatch.setenv('PYTHONPATH', str(folder))
    return notes


def assert_refused(listener, audited, reason, *parameters):
    """Assert that a node says why and ends, having executed nothing and published nothing."""
    listener.heard.clear()
    with running('controller_node', DOMAIN, *parameters) as process:
        assert process.wait(15.0) == 2
        assert reason in process.communicate()[1]
    assert not listener.heard
    assert set(audited.read_text().split()) == {'sys.addaudithook'}  # which shows that it hears
