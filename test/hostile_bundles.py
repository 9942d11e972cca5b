# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""Hundreds of hostile policy bundles, each loaded as a robot would, in a process of its own.

    python test/hostile_bundles.py [--count 500] [--seed 7] [--only KIND...]

No bundle may end in a traceback, take longer than 5 s, or end the process; each must be refused
with a message that names it, or loaded if what was changed does no harm. Writes
results/hostile_bundles.json. Exit code 1: one was not.
"""

import argparse
from itertools import cycle, islice
from pathlib import Path
import shutil
import sys
import tempfile

import hostile_bundle_files
import hostile_bundle_graphs
from hostile_runs import run_forked, Tally
import numpy as np

from metactl_ros.errors import MetactlError
from metactl_ros.policy.bundle import load_bundle
from metactl_ros.policy.verifier import GOLDEN_TOLERANCE
from metactl_ros.result_file import provenance, write_json
from metactl_ros.settings import load_settings, shipped_policy

MAKERS = hostile_bundle_files.KINDS | hostile_bundle_graphs.KINDS
KINDS = {make.__name__: (make, allowed) for make, allowed in MAKERS.items()}
MAX_CHARACTERS = 20_000
"""Of a message."""
ACTS_OTHERWISE, SAYS_TOO_MUCH, NAMES_NOTHING = 91, 92, 93
"""Exit codes of what must not be either."""


def load(path, settings):
    """Load a bundle and let it act; return the exit code of a command that does."""
    try:
        bundle = load_bundle(path, settings.arm, settings.controller)
    except MetactlError as error:
        text = str(error)
        sys.stderr.write(f'error: {text.encode(errors="replace").decode()}\n')
        if len(text) > MAX_CHARACTERS:
            return SAYS_TOO_MUCH
        return 2 if str(path) in text else NAMES_NOTHING
    with np.load(shipped_policy() / 'golden.npz') as arrays:
        pairs = zip(arrays['window'], arrays['action'], strict=True)
        worst = max(np.abs(bundle.policy(window) - action).max() for window, action in pairs)
    return 0 if worst <= 2 * GOLDEN_TOLERANCE else ACTS_OTHERWISE


def cases(count, seed, only):
    """Yield number, kind and generator of each bundle; kinds take turns."""
    names = [name for name in KINDS if not only or name in only]
    for number, name in enumerate(islice(cycle(names), count)):
        yield number, name, np.random.default_rng([seed, number])


def judge(count, seed, only=(), say=lambda _: None):
    """Make and load bundles; return a tally of how that ended."""
    tally, settings = Tally(), load_settings()
    for number, name, rng in cases(count, seed, only):
        make, allowed = KINDS[name]
        with tempfile.TemporaryDirectory() as folder:
            copy = Path(folder) / 'bundle.metactl'
            shutil.copytree(shipped_policy(), copy)
            path = make(copy, rng)
            ending = run_forked(lambda path=path: load(path, settings))
            tally.add(name, f'{name} {number}', ending, allowed)
        say(
            f'{number} {name}: {ending.outcome} {ending.seconds:.2f} s {ending.said.strip()[:300]}'
        )
    return tally


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('--count', type=int, default=500)
    parser.add_argument('--seed', type=int, default=7)
    parser.add_argument('--only', nargs='*', default=[], choices=[[], *KINDS], metavar='KIND')
    parser.add_argument('--results', type=Path, default=Path('results/hostile_bundles.json'))
    parser.add_argument('--verbose', action='store_true', help='tell every bundle')
    args = parser.parse_args()
    say = (lambda line: sys.stderr.write(f'{line}\n')) if args.verbose else (lambda _: None)
    tally = judge(args.count, args.seed, args.only, say)
    known = {key: value for key, value in provenance(load_settings()).items() if key != 'settings'}
    write_json(args.results, {'seed': args.seed, **tally.figures(), **known})
    sys.stderr.write(f'{args.count} bundles, {len(tally.bad)} bad, {args.results}\n')
    for line in tally.bad:
        sys.stderr.write(f'{line}\n')
    return 1 if tally.bad else 0


if __name__ == '__main__':
    sys.exit(main())
