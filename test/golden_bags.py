# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""Short recordings in lockstep and what `metactl replay` says of them, for `test/golden/bags/`.

    PYTHONPATH=. python test/golden_bags.py --write    # record over ROS, replay, keep both
    PYTHONPATH=. python test/golden_bags.py --replay   # replay what is kept, keep the answers

Only recording needs ROS. A bag holds what replay reads and the states of the robot, cut when the
policy has driven for 18 ticks. `replay.json` of each is kept but for how fast it was computed;
those in open loop are of the controller that did not record.
"""

import argparse
import os
from pathlib import Path
import shutil
import sys
import tempfile

from golden_package import rounding, run_command
from golden_values import commit, FOLDER, read_json, ROOT, without, write_json

BAGS = FOLDER / 'bags'
FILE = 'replay.json'
NUM_TICKS = 68
RECORDED = {'policy': {}, 'momentum_observer': {'controller': 'momentum_observer'}}
NOT_READ = ('/clock', '/diagnostics', '/controller/error', '/plant/truth')
VOLATILE = ('times_real_time',)
REPLAYS = {
    'policy': ('policy',),
    'momentum_observer': ('momentum_observer',),
    'policy, open loop': ('policy', '--controller', 'ct_best'),
    'momentum_observer, open loop': (
        'momentum_observer',
        '--bundle',
        ROOT / 'config' / 'policies' / 'paper_sac.metactl',
    ),
}
"""Words of `metactl replay` by what is asked."""


def replay(name, out):
    """Return the exit code and the JSON of a replay."""
    bag, *words = REPLAYS[name]
    code = run_command('metactl', 'replay', BAGS / bag, *words, '--out', out)
    return code, without(read_json(Path(out) / FILE), VOLATILE)


def record():
    """Record over ROS."""
    from support.recordings import record_ticks, write_own

    domain = os.getpid() % 50 * 2
    for name, options in RECORDED.items():
        with tempfile.TemporaryDirectory() as folder:
            messages = record_ticks(Path(folder) / 'bag', domain, NUM_TICKS, **options)
        shutil.rmtree(BAGS / name, ignore_errors=True)
        BAGS.mkdir(parents=True, exist_ok=True)
        write_own(BAGS / name, [m for m in messages if m.topic not in NOT_READ])


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument('--write', action='store_true', help='record and replay')
    which.add_argument('--replay', action='store_true', help='replay only')
    if parser.parse_args().write:
        record()
    with tempfile.TemporaryDirectory() as out:
        found = {name: replay(name, out) for name in REPLAYS}
    about = {'commit': commit(), 'rounding': rounding(), 'replays': {}}
    for name, (code, facts) in found.items():
        about['replays'][name] = {'exit_code': code, 'facts': facts}
    write_json(BAGS / FILE, about)
    return 0


if __name__ == '__main__':
    sys.exit(main())
