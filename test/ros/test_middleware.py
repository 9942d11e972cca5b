# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
import os
from pathlib import Path
import re
import subprocess
import sys
from xml.etree import ElementTree

import pytest

from metactl_ros.errors import ConfigError
from metactl_ros.processes import loopback_environment
from metactl_ros.ros.spin import require_secure_or_local

ROOT = Path(__file__).resolve().parents[2]
LIST_SOCKETS = """
import psutil, rclpy, sys
rclpy.init()
node = rclpy.create_node('listener')
node.create_publisher(__import__('std_msgs.msg').msg.Bool, 'topic', 1)
sockets = psutil.Process().net_connections('inet')
sys.stdout.write(' '.join(sorted({socket.laddr.ip for socket in sockets})))
node.destroy_node()
rclpy.shutdown()
"""


def test_the_environment_names_a_profile_that_exists():
    environment = loopback_environment(None)
    profile = Path(environment['FASTRTPS_DEFAULT_PROFILES_FILE'])
    assert profile == Path(environment['FASTDDS_DEFAULT_PROFILES_FILE'])
    text = {''.join(node.itertext()).strip() for node in ElementTree.parse(profile).iter()}
    assert '127.0.0.1' in text


@pytest.mark.parametrize('domain_id', [0, 7, 101])
def test_the_domain_is_passed_on(domain_id):
    assert loopback_environment(domain_id)['ROS_DOMAIN_ID'] == str(domain_id)


def test_without_a_domain_the_surrounding_one_stays():
    assert 'ROS_DOMAIN_ID' not in loopback_environment(None)


@pytest.mark.parametrize('domain_id', [-1, 102])
def test_a_domain_whose_ports_are_not_free_is_refused(domain_id):
    with pytest.raises(ConfigError, match='expected 0 to 101'):
        loopback_environment(domain_id)


@pytest.mark.parametrize(
    'environment',
    [
        {},
        {'ROS_SECURITY_ENABLE': ''},
        {'ROS_SECURITY_ENABLE': 'false', 'ROS_SECURITY_STRATEGY': 'Permissive'},
        {'ROS_SECURITY_STRATEGY': 'Enforce'},
        {'ROS_SECURITY_ENABLE': 'true', 'ROS_SECURITY_STRATEGY': 'Enforce'},
    ],
)
def test_security_that_is_off_or_enforced_is_accepted(environment):
    require_secure_or_local(environment)


@pytest.mark.parametrize('enable', ['true', 'True', '1', 'yes'])
@pytest.mark.parametrize('strategy', ['', 'Permissive', 'enforce'])
def test_security_that_might_be_dropped_silently_is_refused(enable, strategy):
    environment = {'ROS_SECURITY_ENABLE': enable, 'ROS_SECURITY_STRATEGY': strategy}
    with pytest.raises(ConfigError, match='ROS_SECURITY_STRATEGY=Enforce'):
        require_secure_or_local(environment)


def test_a_spelling_of_true_that_ros_takes_for_no_is_refused_even_if_enforced():
    with pytest.raises(ConfigError, match="found 'True' with 'Enforce'"):
        require_secure_or_local(
            {'ROS_SECURITY_ENABLE': 'True', 'ROS_SECURITY_STRATEGY': 'Enforce'}
        )


@pytest.mark.ros
def test_a_node_listens_on_the_loopback_address_only_whatever_surrounds_it(tmp_path):
    pytest.importorskip('rclpy', reason="needs ROS: pip install 'metactl_ros[ros]'")
    # Each of these opens sockets to the network unless the environment says otherwise.
    around = os.environ | {'ROS_LOCALHOST_ONLY': '1', 'ROS_AUTOMATIC_DISCOVERY_RANGE': 'LOCALHOST'}
    profile = (ROOT / 'config' / 'loopback.xml').read_text().replace('loopback', 'everywhere')
    opened, count = re.subn('<interfaceWhiteList>.*</interfaceWhiteList>', '', profile, flags=re.S)
    assert count == 1
    (tmp_path / 'DEFAULT_FASTRTPS_PROFILES.xml').write_text(opened)
    listed = subprocess.run(
        [sys.executable, '-c', LIST_SOCKETS],
        env=around | loopback_environment(os.getpid() % 100 + 1),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert listed.stdout == '127.0.0.1'
