# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""A bag, computed again to the bit and judged.

    python examples/replay_bag.py           # records one first, over ROS, in simulated time
    python examples/replay_bag.py BAG       # any bag of a controller; needs no ROS

One sees whether every tick of the recording comes out the same, whether every certificate of the
shield holds for a second program, and whether the commands on both topics are those decided.
`metactl replay BAG` does the same and writes a page.
"""

import os
from pathlib import Path
import signal
import sys
import tempfile
import time

from metactl_ros.bag.reader import BagError
from metactl_ros.bag.tick_log import read_ticks
from metactl_ros.processes import loopback_environment, running, Setup
from metactl_ros.replay.verdict import replay_bag, ReplayRequest


def num_ticks(bag: Path) -> int:
    """Return how many ticks a bag that is being written has."""
    try:
        return len(read_ticks(bag).stamp_ns)
    except BagError:  # nothing is there yet
        return 0


def record(bag: Path) -> Path:
    """Record two seconds of the shipped policy; the robot waits for every command."""
    own_domain = os.getpid() % 50 * 2 + 1  # not that of another robot on this machine
    setup = Setup(plant='rk4', lockstep=True, record=bag, log_level='error')
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # whatever ends this, ends all of it
    with running(setup, loopback_environment(own_domain)):
        until_s = time.monotonic() + 60.0
        while num_ticks(bag) < 200 and time.monotonic() < until_s:
            time.sleep(0.2)
    return bag


with tempfile.TemporaryDirectory() as folder:
    bag = Path(sys.argv[1]) if len(sys.argv) > 1 else record(Path(folder) / 'bag')
    found = replay_bag(ReplayRequest(bag=bag))
    print(f'{len(found.log.stamp_ns)} ticks of {found.log.facts["controller"]}')
    print(f'{int(found.again.is_compared.sum())} of them compared: {found.facts["verdict"]}')
    print(f'{len(found.violations)} violations of certificates, or among the commands')
    for problem in found.problems:
        print(f'missing: {problem}')
