# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""The `metactl` command: one verb per job."""

import argparse
from collections.abc import Sequence
import os
from pathlib import Path
import signal
import sys

from metactl_ros.baselines import CLASSICAL
from metactl_ros.errors import ConfigError, legible, MetactlError
from metactl_ros.processes import dated_bag, Setup

CLASSICAL_FILE = 'gains of the classical ones (default: config/classical/nominal.yaml)'


def main(arguments: Sequence[str] | None = None) -> int:
    """Run `metactl VERB ...`; return 0 done, 2 wrong use, 130 asked to end; else see the verb."""
    args = _parser().parse_args(arguments)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # many have processes to end
    try:
        return int(args.run(args))
    except (MetactlError, OSError) as error:  # the latter of a folder that cannot be written
        sys.stderr.write(f'error: {legible(str(error))}\n')
        return 2
    except KeyboardInterrupt:
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog='metactl', description=__doc__)
    verbs = parser.add_subparsers(required=True, metavar='VERB')
    _add_up(verbs.add_parser('up', help='plant and controller, as processes of their own'))
    _add_demo(verbs.add_parser('demo', help='fixed and learned gains over ROS, with a picture'))
    _add_bench(verbs.add_parser('bench', help='how well time is kept over ROS, into a file'))
    _add_record(verbs.add_parser('record', help='topics of a running robot, into a bag'))
    _add_replay(verbs.add_parser('replay', help='a bag computed again, checked and compared'))
    _add_hil(verbs.add_parser('hil', help='scripted faults, and whether they are withstood'))
    inspect = verbs.add_parser('inspect', help='what a policy bundle is, and whether it is sound')
    inspect.add_argument('bundle', type=Path, metavar='NAME.metactl')
    inspect.set_defaults(run=_inspect)
    return parser


def _add_up(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        'Start the simulated robot and the controller, without the launch packages of ROS; '
        'Ctrl-C ends both.'
    )
    add, usual = parser.add_argument, Setup()
    add(
        '--controller',
        choices=('policy', *CLASSICAL),
        default=usual.controller,
        help='policy, or a classical one (%(default)s)',
    )
    add('--policy', default='', metavar='NAME', help='a bundle: path, or name (robust_tau2)')
    add('--policy-sha256', default='', metavar='HASH', help='refuse any other bundle')
    add('--classical-file', default='', metavar='FILE', help=CLASSICAL_FILE)
    add('--arm-file', default='', metavar='FILE', help='arm.yaml (default: the shipped one)')
    add('--controller-file', default='', metavar='FILE', help='(default: the shipped one)')
    add('--joint-prefix', default='', metavar='TEXT', help='of the joints of a real robot')
    add(
        '--reference',
        choices=('sinusoid', 'trajectory'),
        default=usual.reference,
        help='(sinusoid; a real robot: its parameter, which is trajectory: hold until told)',
    )
    add(
        '--autostart',
        action=argparse.BooleanOptionalAction,
        help='begin control at once (yes; a real robot: its parameter, which is no)',
    )
    add('--shadow', action='store_true', help='publish all but the commands')
    add(
        '--plant',
        choices=('bullet', 'rk4', 'none'),
        default=usual.plant,
        help='the simulated robot; none: a real one (%(default)s)',
    )
    add('--no-loopback', action='store_true', help='the network as it is set, not this host only')
    add('--tau-z', type=float, default=usual.tau_z_s, metavar='S', help='memory, s (%(default)s)')
    add(
        '--payload',
        type=float,
        metavar='KG',
        help=f'kg ({usual.payload_kg}; a real robot: its parameter payload_kg)',
    )
    add('--seed', type=int, default=usual.seed, help='of the episode (%(default)s)')
    add('--duration', type=float, default=0.0, metavar='S', help='s; 0: until Ctrl-C')
    add('--namespace', default='', help='of all topics (default: none)')
    add(
        '--params-file',
        type=Path,
        metavar='FILE',
        help='ROS parameters; the simulated episode, and options other than the default, overrule '
        'it',
    )
    add('--record', type=Path, metavar='BAG', help='record everything into a bag')
    add(
        '--faults',
        default='',
        metavar='NAME',
        help='of config/faults, or a path; those of the robot',
    )
    add('--use-sim-time', action='store_true', help='lockstep: simulated time, repeatable')
    add('--log-level', default=usual.log_level, help='(%(default)s)')
    parser.set_defaults(run=_up)


def _add_demo(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        'Run the baseline and the shipped policy on the same episode, in real time over ROS, and '
        'compare them.'
    )
    add, usual = parser.add_argument, Setup()
    add('--out', type=Path, default=Path('runs/demo'), help='(%(default)s)')
    add('--seed', type=int, default=usual.seed, help='of the episode (%(default)s)')
    add('--payload', type=float, default=usual.payload_kg, metavar='KG', help='kg (%(default)s)')
    add('--duration', type=float, default=20.0, metavar='S', help='of each run (%(default)s)')
    parser.set_defaults(run=_demo)


def _add_bench(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        'Measure rate, lateness and memory of the controller over ROS, quiet and under load, and '
        'what happens when the robot falls silent or a process is killed.'
    )
    add = parser.add_argument
    add('--out', type=Path, default=Path('results/ros_timing.json'), help='(%(default)s)')
    add('--duration', type=float, default=60.0, metavar='S', help='of each run (%(default)s)')
    add('--silences', type=int, default=110, help='of the robot (%(default)s)')
    add('--kills', type=int, default=10, help='of each process (%(default)s)')
    add('--headlines', type=Path, metavar='FILE', help='put the cost of a tick there, too')
    add('--only', nargs='+', metavar='PART', help='quiet, loaded, blind or crashes (all)')
    add('--policy', type=Path, metavar='NAME.metactl', help='(default: the shipped one)')
    parser.set_defaults(run=_bench)


def _add_record(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        'Record everything that controller and robot say, into an MCAP bag; Ctrl-C ends it. A '
        'kill costs less than a second of it. Exit codes: 0 recorded, 1 the disk failed, '
        '2 wrong use, 3 nothing came: no bag is left.'
    )
    add = parser.add_argument
    add('--out', type=Path, metavar='BAG', help='a new folder (default: runs/bags/DATE_TIME)')
    add('--topics', nargs='+', metavar='NAME[=TYPE]', help='(default: all of this package)')
    add('--namespace', default='', help='of all topics (default: none)')
    add('--duration', type=float, default=0.0, metavar='S', help='s; 0: until Ctrl-C')
    parser.set_defaults(run=_record)


def _add_replay(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        'Compute every tick of a bag again, with the recorded controller to the bit, or with '
        'another one in open loop; check every certificate, and that both command topics carry '
        'what was decided and nothing else; write replay.json and replay.html. Exit codes: '
        '0 equal, 1 it differs, a certificate is violated or a command is wrong, 2 it cannot be '
        'used, 3 parts of it are missing, or nothing could be compared.'
    )
    add = parser.add_argument
    add('bag', type=Path, metavar='BAG', help='rosbag2, MCAP or sqlite3: a folder or a file')
    which = parser.add_mutually_exclusive_group()
    which.add_argument(
        '--bundle', type=Path, metavar='NAME.metactl', help='a policy (default: as recorded)'
    )
    which.add_argument('--controller', choices=CLASSICAL, help='a classical one')
    add('--classical-file', type=Path, metavar='FILE', help=CLASSICAL_FILE)
    add('--out', type=Path, metavar='FOLDER', help='(default: runs/replay/BAG)')
    add('--arm-file', type=Path, metavar='FILE', help='arm.yaml (default: the shipped one)')
    add('--controller-file', type=Path, metavar='FILE', help='(default: the shipped one)')
    add('--node', default='controller', help='whose ticks, as in /left/controller (%(default)s)')
    parser.set_defaults(run=_replay)


def _add_hil(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        'Run robot, controller and recorder through scenarios of faults, and judge from the bags '
        'whether all went as each demands. Exit code: 0 all passed, 1 some failed, 2 wrong use.'
    )
    add = parser.add_argument
    add('scenarios', nargs='*', metavar='NAME', help='of config/faults, or paths of YAML files')
    add('--all', action='store_true', help='every scenario of config/faults')
    add('--random', action='store_true', help='a random timeline of all faults instead')
    add('--minutes', type=float, default=10.0, help='how long the random one lasts (%(default)s)')
    add('--seed', type=int, default=7, help='of the random one (%(default)s)')
    add('--out', type=Path, metavar='FOLDER', help='(runs/hil, or runs/random_faults/SEED)')
    parser.set_defaults(run=_hil)


# Imports are inside: a robot that only runs the node has neither PyBullet nor matplotlib, and who
# only inspects a bundle needs no ROS.


def _up(args: argparse.Namespace) -> int:
    from metactl_ros.processes import run_up

    setup = Setup(
        controller=args.controller,
        policy=args.policy,
        policy_sha256=args.policy_sha256,
        classical_file=args.classical_file,
        arm_file=args.arm_file,
        controller_file=args.controller_file,
        joint_prefix=args.joint_prefix,
        reference=args.reference,
        autostart=args.autostart,
        shadow=args.shadow,
        plant=args.plant,
        tau_z_s=args.tau_z,
        payload_kg=Setup().payload_kg if args.payload is None else args.payload,
        payload_estimate_kg=args.payload,
        seed=args.seed,
        lockstep=args.use_sim_time,
        namespace=args.namespace,
        params_file=args.params_file,
        record=args.record,
        faults=args.faults,
        log_level=args.log_level,
    )
    return run_up(setup, args.duration, {} if args.no_loopback else None)


def _demo(args: argparse.Namespace) -> int:
    from metactl_ros.bench.demo import run_demo

    run_demo(args.out, args.seed, args.payload, args.duration)
    return 0


def _bench(args: argparse.Namespace) -> int:
    from metactl_ros.bench.timing import run_bench, SECTIONS
    from metactl_ros.settings import shipped_policy

    if unknown := set(args.only or ()) - set(SECTIONS):
        raise ConfigError(f'bench: --only takes some of {SECTIONS}, found {sorted(unknown)}.')
    run_bench(
        args.out,
        args.duration,
        args.silences,
        args.kills,
        args.policy or shipped_policy(),
        args.headlines,
        args.only or SECTIONS,
    )
    return 0


def _record(args: argparse.Namespace) -> int:
    from metactl_ros.ros.loopback import loopback_environment

    os.environ.update(loopback_environment(None))  # before rclpy, which reads it once
    from metactl_ros.ros.recorder import run_record

    return run_record(args.out or dated_bag(), args.topics, args.namespace, args.duration)


def _replay(args: argparse.Namespace) -> int:
    from metactl_ros.replay.verdict import ReplayRequest, run_replay

    request = ReplayRequest(
        bag=args.bag,
        bundle=args.bundle,
        controller=args.controller,
        classical_file=args.classical_file,
        arm_file=args.arm_file,
        controller_file=args.controller_file,
        node=args.node,
    )
    return run_replay(request, args.out)


def _hil(args: argparse.Namespace) -> int:
    from metactl_ros.hil.scenario import chosen_scenarios

    if args.random:
        from metactl_ros.hil.random_faults import run_random_faults

        if args.scenarios or args.all:
            raise ConfigError('hil: --random makes its own scenario; leave the others out.')
        folder = args.out or Path('runs/random_faults') / str(args.seed)
        return run_random_faults(folder, 60.0 * args.minutes, args.seed)
    from metactl_ros.hil.run import run_hil

    files = chosen_scenarios(args.scenarios, is_all=args.all)
    return run_hil(files, args.out or Path('runs/hil'))


def _inspect(args: argparse.Namespace) -> int:
    from metactl_ros.policy.bundle import inspect_bundle

    return inspect_bundle(args.bundle)
