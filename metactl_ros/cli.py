# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""The `metactl` command: one verb per job.

The docstring of an options class is the description of its verb. Imports are inside of functions:
a robot that only runs the node has neither PyBullet nor matplotlib, and to inspect a bundle needs
no ROS.
"""

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from inspect import getdoc
import os
from pathlib import Path
import signal
import sys
from typing import Any, NamedTuple

from metactl_ros.baselines import CONTROLLERS
from metactl_ros.errors import ConfigError, legible, MetactlError
from metactl_ros.options import (
    add_arguments,
    argument,
    ControllerOptions,
    from_arguments,
    option,
    shared,
)
from metactl_ros.processes import dated_bag, LaunchRequest, PAYLOAD_KG, Setup


class Up(LaunchRequest):
    """Start the simulated robot and the controller, without the launch packages of ROS.

    Ctrl-C ends both.
    """


def up(options: Up) -> int:
    """Run plant, controller and recorder until they are to end."""
    from metactl_ros.processes import run_up

    return run_up(options, options.duration_s, None if options.loopback else {})


@dataclass(frozen=True, kw_only=True)
class Demo:
    """Run the baseline and the shipped policy on the same episode, in real time over ROS.

    Both are compared in a table and a picture. For an arm from a URDF it is the momentum observer
    instead of the policy.
    """

    out: Path = option(Path('runs/demo'), 'folder of picture, bags and summary')
    seed: int = option(Setup.seed, 'of the episode')
    payload_kg: float = option(PAYLOAD_KG, 'kg', name='payload', metavar='KG')
    duration_s: float = option(20.0, 'of each run, s', name='duration', metavar='S')
    arm: str = shared('', ControllerOptions, 'arm_file')


def demo(options: Demo) -> int:
    """Run the demonstration."""
    from metactl_ros.bench.demo import run_demo

    run_demo(options.out, options.seed, options.payload_kg, options.duration_s, options.arm)
    return 0


@dataclass(frozen=True, kw_only=True)
class Bench:
    """Measure rate, lateness and memory of the controller over ROS, quiet and under load.

    And what happens when the robot falls silent or a process is killed.
    """

    out: Path = option(Path('results/ros_timing.json'), 'file of the results')
    duration_s: float = option(60.0, 'of each run, s', name='duration', metavar='S')
    silences: int = option(110, 'of the robot')
    kills: int = option(10, 'of each process')
    headlines: Path | None = option(None, 'put the cost of a tick there, too', metavar='FILE')
    only: tuple[str, ...] = option((), 'quiet, loaded, blind or crashes (all)', metavar='PART')
    policy: Path | None = option(None, '(default: the shipped one)', metavar='NAME.metactl')


def bench(options: Bench) -> int:
    """Measure timing."""
    from metactl_ros.bench.timing import run_bench, SECTIONS
    from metactl_ros.settings import shipped_policy

    if unknown := set(options.only) - set(SECTIONS):
        raise ConfigError(f'bench: --only takes some of {SECTIONS}, found {sorted(unknown)}.')
    run_bench(
        options.out,
        options.duration_s,
        options.silences,
        options.kills,
        options.policy or shipped_policy(),
        options.headlines,
        options.only or SECTIONS,
    )
    return 0


@dataclass(frozen=True, kw_only=True)
class Record:
    """Record everything that controller and robot publish, into an MCAP bag; Ctrl-C ends it.

    A kill costs less than a second of it. Exit codes: 0 recorded, 1 the disk failed, 2 wrong use,
    3 nothing came: no bag is left.
    """

    out: Path | None = option(
        None, 'a new folder', default_help='runs/bags/DATE_TIME', metavar='BAG'
    )
    topics: tuple[str, ...] = option(
        (), 'what to record', default_help='all of this package', metavar='NAME[=TYPE]'
    )
    namespace: str = option('', 'of all topics', default_help='none')
    duration_s: float = option(0.0, 's; 0: until Ctrl-C', name='duration', metavar='S')


def record(options: Record) -> int:
    """Record until asked to end."""
    from metactl_ros.processes import loopback_environment

    os.environ.update(loopback_environment(None))  # before rclpy, which reads it once
    from metactl_ros.ros.recorder import run_record

    out, topics = options.out or dated_bag(), options.topics or None
    return run_record(out, topics, options.namespace, options.duration_s)


@dataclass(frozen=True, kw_only=True)
class Replay:
    """Compute every tick of a bag again, and check what was recorded.

    With the recorded controller to the bit, or with another one in open loop; check every
    certificate, and that both command topics carry what was decided and nothing else; write
    replay.json and replay.html. Exit codes: 0 equal, 1 it differs, a certificate is violated or a
    command is wrong, 2 it cannot be used, 3 parts of it are missing, or nothing could be compared.
    """

    bag: Path = argument('rosbag2, MCAP or sqlite3: a folder or a file', metavar='BAG')
    bundle: Path | None = option(
        None, 'a policy', default_help='as recorded', metavar='NAME.metactl', group='which'
    )
    controller: str | None = option(None, 'a classical one', choices=CONTROLLERS, group='which')
    classical_file: Path | None = shared(None, ControllerOptions, 'classical_file')
    out: Path | None = option(None, 'folder', default_help='runs/replay/BAG', metavar='FOLDER')
    arm_file: Path | None = option(
        None,
        'an arm: its file, or the NAME of a shipped one',
        default_help='as recorded',
        name='arm',
        metavar='NAME',
    )
    controller_file: Path | None = shared(None, ControllerOptions, 'controller_file')
    node: str = option('controller', 'whose ticks, as in /left/controller')


def replay(options: Replay) -> int:
    """Replay a bag."""
    from metactl_ros.replay.verdict import ReplayRequest, run_replay

    given = {f.name: getattr(options, f.name) for f in fields(ReplayRequest)}
    return run_replay(ReplayRequest(**given), options.out)


@dataclass(frozen=True, kw_only=True)
class Hil:
    """Run robot, controller and recorder through scenarios of faults.

    The bags show whether all went as each demands. Exit code: 0 all passed, 1 some failed, 2 wrong
    use.
    """

    scenarios: tuple[str, ...] = option(
        (), 'of config/faults, or paths of YAML files', metavar='NAME', is_positional=True
    )
    is_all: bool = option(False, 'every scenario of config/faults', name='all')
    is_random: bool = option(False, 'a random timeline of all faults instead', name='random')
    minutes: float = option(10.0, 'how long the random one lasts')
    seed: int = option(7, 'of the random one')
    out: Path | None = option(
        None, 'folder', default_help='runs/hil, or runs/random_faults/SEED', metavar='FOLDER'
    )
    arm: str = shared('', ControllerOptions, 'arm_file')


def hil(options: Hil) -> int:
    """Run scenarios and judge them."""
    from metactl_ros.hil.scenario import chosen_scenarios

    if options.is_random:
        from metactl_ros.hil.random_faults import run_random_faults

        if options.scenarios or options.is_all:
            raise ConfigError('hil: --random makes its own scenario; leave the others out.')
        folder = options.out or Path('runs/random_faults') / str(options.seed)
        return run_random_faults(folder, 60.0 * options.minutes, options.seed, options.arm)
    from metactl_ros.hil.run import run_hil

    files = chosen_scenarios(options.scenarios, is_all=options.is_all)
    return run_hil(files, options.out or Path('runs/hil'), options.arm)


@dataclass(frozen=True, kw_only=True)
class Inspect:
    """Print what a policy bundle is, and whether it is sound."""

    bundle: Path = argument('the bundle', metavar='NAME.metactl')


def inspect(options: Inspect) -> int:
    """Print the card of a bundle."""
    from metactl_ros.policy.bundle import inspect_bundle

    return inspect_bundle(options.bundle)


@dataclass(frozen=True, kw_only=True)
class Adapt:
    """Make the policy bundle of an arm from its URDF; nothing is trained.

    The network of the shipped bundle has weights that all joints share. The margin of the shield
    is measured in a simulation, and the card says so.
    """

    arm: str = option('', 'its file, or the NAME of a shipped one')
    out: Path = option(Path('adapted.metactl'), 'a new bundle', metavar='NAME.metactl')
    policy: Path | None = option(
        None, 'of an adaptive law', default_help='the shipped one', metavar='NAME.metactl'
    )


def adapt(options: Adapt) -> int:
    """Write a bundle, and print its card."""
    from metactl_ros.adapt import adapt as write
    from metactl_ros.policy.bundle import inspect_bundle
    from metactl_ros.settings import load_settings, shipped_policy

    command = ('metactl', 'adapt', '--arm', Path(options.arm).name, '--out', options.out.name)
    write(options.policy or shipped_policy(), options.out, load_settings(options.arm), command)
    return inspect_bundle(options.out)


class Verb(NamedTuple):
    """A verb of the command."""

    options: type
    run: Callable[[Any], int]
    help: str


VERBS = {
    'up': Verb(Up, up, 'plant and controller, as processes of their own'),
    'demo': Verb(Demo, demo, 'fixed and learned gains over ROS, with a picture'),
    'bench': Verb(Bench, bench, 'how well time is kept over ROS, into a file'),
    'record': Verb(Record, record, 'topics of a running robot, into a bag'),
    'replay': Verb(Replay, replay, 'a bag computed again, checked and compared'),
    'hil': Verb(Hil, hil, 'scripted faults, and whether they are withstood'),
    'adapt': Verb(Adapt, adapt, 'the policy bundle of an arm from its URDF, untrained'),
    'inspect': Verb(Inspect, inspect, 'what a policy bundle is, and whether it is sound'),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run `metactl VERB ...`; return 0 done, 2 wrong use, 130 asked to end; else see the verb."""
    parser = argparse.ArgumentParser(prog='metactl', description='One verb per job.')
    verbs = parser.add_subparsers(required=True, metavar='VERB', dest='verb')
    for name, verb in VERBS.items():
        description = getdoc(verb.options)
        add_arguments(
            verbs.add_parser(name, help=verb.help, description=description), verb.options
        )
    args = parser.parse_args(arguments)
    verb = VERBS[args.verb]
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # many have processes to end
    try:
        return verb.run(from_arguments(verb.options, args))
    except (MetactlError, OSError) as error:  # the latter of a folder that cannot be written
        sys.stderr.write(f'error: {legible(str(error))}\n')
        return 2
    except KeyboardInterrupt:
        return 130
