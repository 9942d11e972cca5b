# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""Hundreds of hostile bags, each replayed by `metactl replay` in a process of its own.

    python test/hostile_bags.py [--count 868] [--seed 15] [--only KIND...]

No bag may end in a traceback, take longer than 5 s, or end the process; each must be answered with
a message and one of the documented exit codes. Writes results/hostile_bags.json. Exit code 1: one
was not.
"""

import argparse
from itertools import cycle, islice
import os
from pathlib import Path
import shutil
import sys
import tempfile
from typing import NamedTuple

from hostile_bag_content import CONTENT
from hostile_folders import FOLDERS
from hostile_mcap import MCAP
from hostile_runs import fresh_folder, run_forked, Tally
import numpy as np
from recordings import cut, messages_of, record_lockstep, with_every_command

from metactl_ros import cli
from metactl_ros.replay import page as replay_page
from metactl_ros.replay import verdict
from metactl_ros.result_file import provenance, write_json
from metactl_ros.settings import load_settings

KINDS = {make.__name__: make for make in (*MCAP, *FOLDERS, *CONTENT)}
DOCUMENTED = (0, 1, 2, 3)
"""Exit codes of metactl replay."""
LOADED = (replay_page, verdict)
"""Modules that a run would import, and that a fork has."""
TICKS = 60


class Base(NamedTuple):
    """What the bags are made of."""

    messages: list
    """Of a controller with fixed gains."""
    told: list
    """Of one that tells its gains and its estimator."""
    turn: int = 0
    """How many bags of the kind were made before."""


def record(bag, domain, controller):
    """Record a controller over ROS; return the messages of its first ticks."""
    recorded = messages_of(record_lockstep(bag, domain, TICKS, controller=controller))
    return with_every_command(cut(recorded, TICKS))


def record_base(folder, domain):
    """Record what all bags are made of."""
    return Base(*(record(folder / name, domain, name) for name in ('ct', 'momentum_observer')))


def replay(bag, out):
    return cli.main(['replay', str(bag), '--out', str(out)])


def run_all(names, count, seed, base, folder, say):
    """Make and replay bags, the kinds in turn; return the tally."""
    tally = Tally()
    for number, kind in enumerate(islice(cycle(names), count)):
        name = f'{kind}/{number}'
        place = fresh_folder(folder, name)
        rng = np.random.default_rng([seed, number])
        bag = KINDS[kind](rng, base._replace(turn=number // len(names)), place)
        ending = run_forked(lambda bag=bag, place=place: replay(bag, place / 'out'))
        tally.add(kind, name, ending, DOCUMENTED)
        say(name, ending)
        shutil.rmtree(place)
    return tally


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('--count', type=int, default=28 * len(KINDS))
    parser.add_argument('--seed', type=int, default=15)
    parser.add_argument('--only', nargs='+', choices=sorted(KINDS), metavar='KIND')
    parser.add_argument('--results', type=Path, default=Path('results/hostile_bags.json'))
    parser.add_argument('--without-pages', action='store_true', help='draw nothing, which is slow')
    parser.add_argument('--verbose', action='store_true', help='say what each ended with')
    args = parser.parse_args()
    if args.without_pages:
        replay_page.write_page = lambda *_: None

    def say(name, ending):
        if args.verbose:
            lines = ending.said.strip().splitlines() or ['']
            sys.stderr.write(f'{name}: {ending.outcome}, {ending.seconds:.2f} s, ')
            sys.stderr.write(f'{ending.peak_mb:.0f} MB: {lines[-1][:150]}\n')

    with tempfile.TemporaryDirectory() as folder:
        base = record_base(Path(folder), os.getpid() % 50 * 2 + 1)
        names = args.only or list(KINDS)
        tally = run_all(names, args.count, args.seed, base, Path(folder), say)
    figures = {'seed': args.seed, **tally.figures()}
    write_json(args.results, figures | provenance(load_settings()))
    for line in tally.bad:
        sys.stdout.write(f'{line}\n')
    sys.stdout.write(f'{figures["num_cases"]} bags, {figures["num_bad"]} bad; ')
    sys.stdout.write(f'slowest {tally.slowest}, largest {tally.largest}\n')
    return 1 if tally.bad else 0


if __name__ == '__main__':
    sys.exit(main())
