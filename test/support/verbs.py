# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""A verb of `metactl` as a process, with a ROS domain that belongs to the test process alone."""

import os
from pathlib import Path
import subprocess
import sys

import psutil

from support import DOMAIN

ROOT = Path(__file__).resolve().parents[2]
CODE = 'import sys; from metactl_ros.cli import main; sys.exit(main(sys.argv[1:]))'


def start_verb(*arguments):
    """Return `metactl ARGUMENTS...` as a process whose output is one text."""
    return subprocess.Popen(
        [sys.executable, '-c', CODE, *map(str, arguments)],
        cwd=ROOT,
        env=os.environ | {'ROS_DOMAIN_ID': str(DOMAIN)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def assert_ends_all(process, number, num_children, exit_code):
    """Send a signal once a process has so many children: it ends, and none of them is left."""
    from support.ros_peer import wait_until

    family = psutil.Process(process.pid)
    wait_until(lambda: len(family.children()) >= num_children, 60.0)
    children = family.children(recursive=True)
    process.send_signal(number)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == exit_code, output
    assert not [child for child in children if child.is_running()]
