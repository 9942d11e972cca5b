# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""Hundreds of hostile YAML files, each given to what reads such files, in a process of its own.

    PYTHONPATH=test:. python -m hostile.yaml_files [--count 832] [--seed 15] [--reader NAME...]

The readers are the verbs of `metactl`, `python -m training.sweep`, and the functions behind the
files that no verb takes. None may end in a traceback, take longer than 5 s, or end the process:
a file is used, or refused with a message and exit code 2. Writes results/hostile_yaml.json. Exit
code 1: one was not.
"""

from collections.abc import Callable
from itertools import cycle, islice
import os
from pathlib import Path
import shutil
import sys
import tempfile
from typing import Any, NamedTuple

import numpy as np
from support.recordings import write_own
import yaml

from hostile.bags import DOCUMENTED, record
from hostile.runs import (
    command_line,
    fresh_folder,
    REFUSED,
    report,
    run_forked,
    say,
    say_nothing,
    Tally,
)
from hostile.yaml_texts import KINDS
from metactl_ros import cli
from metactl_ros.baselines import BASELINES, load_baselines, load_classical
from metactl_ros.control.estimators.bank import BankSettings
from metactl_ros.errors import MetactlError
from metactl_ros.hil import run as hil_run
from metactl_ros.hil.scenario import load_scenario
from metactl_ros.replay import page
from metactl_ros.settings import load_faults, load_file, load_settings, provenance, share_directory
from metactl_ros.sim.rk4_arm import Rk4Arm
from metactl_ros.sim.task import draw_evaluation
from training import sweep
from training.benchmark import Benchmark
from training.learn.run import Presets
from training.tune import write_baselines

CONFIG = share_directory() / 'config'
SETTINGS = load_settings()


class Base(NamedTuple):
    """A sound file, of which hostile ones are made."""

    text: str
    value: Any


class Reader(NamedTuple):
    """Who reads such a file."""

    file: str
    """A sound one, in config/."""
    read: Callable[[Path, Path], int]
    """Reads a file, with a recording at hand; returns the exit code."""
    allowed: tuple[int, ...] = (0, *REFUSED)


def verb(name, *options):
    """Return a reader that is a verb of metactl; FILE, BAG and OUT are put in."""

    def read(file, bag):
        places = {'FILE': str(file), 'BAG': str(bag), 'OUT': str(file.parent / 'out')}
        return cli.main([name, *(places.get(option, option) for option in options)])

    return read


def replay(*options):
    return verb('replay', 'BAG', '--out', 'OUT', *options)


def function(load):
    """Return a reader that is a function; it refuses as a verb would."""

    def read(file, bag):
        try:
            load(file)
        except MetactlError as error:
            sys.stderr.write(f'error: {error}\n')
            return 2
        return 0

    return read


def simulate(file):
    """Load a world as the simulated robot does, and begin an episode in it."""
    world = load_settings(plant=file)
    start = draw_evaluation(world.plant.task, 1, 0.5, 1, 2.0).of_arm(0).start
    plant = Rk4Arm(world.arm, world.plant.friction, world.controller.law.rate_hz)
    plant.reset(start)
    plant.step(np.zeros(2))


def classical(file):
    load_baselines(file)
    for name in BASELINES:
        load_classical(name, SETTINGS.controller, file, 0.5)


def retune(file):
    """Write what was found for one baseline over a file that has the others."""
    folder = file.parent / 'tuned'
    folder.mkdir()
    file.rename(folder / 'nominal.yaml')
    found = {'rival': 'ct_best', 'tuned_for': 'nominal', 'found': {'kd': 20.0, 'slope': 5.0}}
    write_baselines(folder, [found], SETTINGS)


def study(file, bag):
    return sweep.main([str(file), '--out', str(file.parent / 'out'), '--jobs', '1'])


READERS = {
    'replay --arm': Reader('arm.yaml', replay('--arm', 'FILE'), DOCUMENTED),
    'replay --controller-file': Reader(
        'controller.yaml', replay('--controller-file', 'FILE'), DOCUMENTED
    ),
    'replay --classical-file': Reader(
        'classical/nominal.yaml',
        replay('--classical-file', 'FILE', '--controller', 'lugre_observer'),
        DOCUMENTED,
    ),
    'hil': Reader('faults/drop.yaml', verb('hil', 'FILE', '--out', 'OUT')),
    'hil of processes': Reader('faults/kill_plant.yaml', function(load_scenario)),
    'faults of the robot': Reader(
        'faults/delay.yaml', function(lambda file: load_faults(file, 2))
    ),
    'plant': Reader('plant.yaml', function(simulate)),
    'classical': Reader('classical/noisy.yaml', function(classical)),
    'bank': Reader('bank.yaml', function(lambda file: load_file(BankSettings, file, ''))),
    'training.sweep': Reader('studies/smoke.yaml', study),
    'training.tune': Reader('classical/delayed.yaml', function(retune)),
    'benchmark': Reader(
        'benchmark.yaml', function(lambda file: load_file(Benchmark, file, 'benchmark.yaml'))
    ),
    'presets': Reader(
        'training.yaml', function(lambda file: load_file(Presets, file, 'training.yaml'))
    ),
}


def run_nothing(*_):
    """Stand in for hours of training, or minutes of ROS: the file was read and found sound."""
    raise SystemExit(0)


def run_all(kinds, readers, count, seed, bag, folder, say):
    """Make and read files, kinds and readers in turn; return the tally."""
    tally = Tally()
    bases = {}
    for name in readers:
        text = (CONFIG / READERS[name].file).read_text()
        bases[name] = Base(text, yaml.safe_load(text))
    pairs = [(kind, reader) for reader in readers for kind in kinds]
    for number, (kind, reader) in enumerate(islice(cycle(pairs), count)):
        name = f'{kind}/{reader}/{number}'
        place = fresh_folder(folder, f'{number}')
        file = place / 'hostile.yaml'
        KINDS[kind](np.random.default_rng([seed, number]), bases[reader], file)
        read, allowed = READERS[reader].read, READERS[reader].allowed
        ending = run_forked(lambda file=file, read=read: read(file, bag))
        tally.add(kind, name, ending, allowed)
        say(name, ending)
        shutil.rmtree(place)
    return tally


def main():
    count = 4 * len(KINDS) * len(READERS)
    parser = command_line(__doc__, KINDS, count=count, seed=15, results='hostile_yaml.json')
    parser.add_argument('--reader', nargs='+', choices=sorted(READERS), metavar='NAME')
    args = parser.parse_args()
    hil_run.run_judged = sweep.sweep = run_nothing
    page.write_page = lambda *_: None  # which is slow
    kinds, readers = args.only or list(KINDS), args.reader or list(READERS)
    with tempfile.TemporaryDirectory() as folder:
        messages = record(Path(folder) / 'recorded', os.getpid() % 50 * 2 + 1, 'ct')
        bag = write_own(Path(folder) / 'bag', messages)
        saying = say if args.verbose else say_nothing
        tally = run_all(kinds, readers, args.count, args.seed, bag, Path(folder), saying)
    before = {'seed': args.seed, 'readers': readers}
    return report(args, tally, before, provenance(load_settings()))


if __name__ == '__main__':
    sys.exit(main())
