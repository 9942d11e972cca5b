# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""The `metactl` command: one verb per job."""

import argparse
from collections.abc import Sequence
from pathlib import Path
import sys

from metactl_ros.errors import MetactlError


def main(arguments: Sequence[str] | None = None) -> int:
    """Run `metactl VERB ...` and return its exit code: 0 done, 2 wrong use."""
    args = _parser().parse_args(arguments)
    try:
        return int(args.run(args))
    except MetactlError as error:
        sys.stderr.write(f'error: {error}\n')
        return 2


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog='metactl', description=__doc__)
    verbs = parser.add_subparsers(required=True, metavar='VERB')
    demo = verbs.add_parser(
        'demo',
        help='the fixed-gain baseline on the PyBullet arm, with a picture',
        description='Track a sinusoid with the fixed-gain computed-torque baseline on the '
        'PyBullet arm: as it is, without friction memory, and with the memory known.',
    )
    demo.add_argument('--out', type=Path, default=Path('runs/demo'), help='default: %(default)s')
    demo.add_argument('--seed', type=int, default=42, help='of the episode (default: %(default)s)')
    demo.add_argument('--payload', type=float, default=0.75, help='kg (default: %(default)s)')
    demo.set_defaults(run=_demo)
    return parser


def _demo(args: argparse.Namespace) -> int:
    # Imported here: a robot that only runs the node has neither PyBullet nor matplotlib.
    from metactl_ros.evaluation.demo import run_demo

    run_demo(args.out, args.seed, args.payload)
    return 0
