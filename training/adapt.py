# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""Train the adaptive law through random worlds: an observer bank, scheduled by attention.

    python -m training.adapt --seed 1 --out runs/adapt/seed1
    python -m training.adapt --resume runs/adapt/seed1

The run directory holds config.json before the first update, checkpoint.pt to go on from,
log.csv with a row per episode, best.pt, and result.json at the end. From its half on the law is
judged now and then on worlds that it never learns from; the best is the one that loses the fewest
arms there, and of these the one that tracks best. SIGTERM or Ctrl-C writes a checkpoint and ends
with exit code 3.

With a C++ compiler the tick is compiled first, which takes minutes and pays off in a full run;
without one, or with --eager, everything works, slower.
"""

import argparse
from collections.abc import Mapping, Sequence
import csv
from dataclasses import asdict
from pathlib import Path
import shutil
import signal
import time
from types import FrameType
from typing import Any, get_args
import warnings

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
import torch

from metactl_ros.errors import ConfigError
from metactl_ros.files import write_json
from metactl_ros.settings import load_settings, provenance
from training.adaptive import segments
from training.adaptive.finished import BEST, CONFIG, read_config
from training.adaptive.held_out import judge, Judgement
from training.adaptive.learner import AdaptConfig, Learner, Tick
from training.adaptive.network import Kind, Shape
from training.commands import command_parser, positive_count, refusing

CHECKPOINT, LOG, RESULT = 'checkpoint.pt', 'log.csv', 'result.json'
JUDGE_EVERY = 100
"""Updates."""


class Stop:
    """Remembers that the process was asked to end."""

    def __init__(self) -> None:
        self.is_asked = False

    def ask(self, _signal: int, _frame: FrameType | None) -> None:
        """Handle a signal."""
        self.is_asked = True


def compiled_tick() -> Tick:
    """Return the tick of a batch, compiled where there is a C++ compiler."""
    if shutil.which('g++') is None and shutil.which('clang++') is None:
        return segments.tick
    warnings.filterwarnings('ignore', category=FutureWarning, module='torch')
    tick: Tick = torch.compile(segments.tick, dynamic=False)
    return tick


def begin(folder: Path, config: AdaptConfig) -> None:
    """Create a run directory that states what it is for."""
    if (folder / CONFIG).exists():
        raise ConfigError(
            f'{folder}: holds a run; go on with --resume {folder}, or choose another --out.'
        )
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / CONFIG, {'run': asdict(config), **provenance(load_settings())})


def save(path: Path, content: Mapping[str, Any]) -> None:
    """Write tensors so that a crash leaves the file whole."""
    draft = path.with_suffix('.new')
    torch.save(dict(content), draft)
    draft.replace(path)


def train(folder: Path, config: AdaptConfig, *, is_compiled: bool, console: Console) -> bool:
    """Train until all updates are made, or until asked to stop; return whether they are made."""
    torch.set_num_threads(1)
    learner = Learner(config, compiled_tick() if is_compiled else segments.tick)
    best: Judgement | None = None
    spent_s = 0.0
    if (folder / CHECKPOINT).exists():
        kept = torch.load(folder / CHECKPOINT, weights_only=True)
        learner.restore(kept['learner'])
        spent_s = kept['spent_s']
        best = Judgement(**kept['best']) if kept['best'] else None
    began_s, stop = time.process_time(), Stop()
    before = {name: signal.signal(name, stop.ask) for name in (signal.SIGTERM, signal.SIGINT)}
    columns = (
        *(TextColumn('{task.description}'), BarColumn(), MofNCompleteColumn()),
        *(TimeRemainingColumn(), TextColumn('{task.fields[last]}')),
    )
    try:
        with Progress(*columns, console=console) as progress:
            bar = progress.add_task(
                'updates', total=config.updates, completed=learner.num_updates, last=''
            )
            while not learner.is_done and not stop.is_asked:
                due = learner.num_updates // JUDGE_EVERY
                row = learner.episode()
                _append(folder / LOG, row)
                is_due = learner.num_updates // JUDGE_EVERY > due or learner.is_done
                if is_due and learner.num_updates >= config.updates // 2:
                    found = judge(learner.law)
                    console.print(f'{learner.num_updates:5d} {found}', highlight=False)
                    if best is None or found.is_better_than(best):
                        best = found
                        save(folder / BEST, learner.law.state_dict())
                last = f'{row["median_rmse_mrad"]:.2f} mrad, {100 * row["lost_share"]:.0f} % lost'
                progress.update(bar, completed=learner.num_updates, last=last)
                save(
                    folder / CHECKPOINT,
                    {
                        'learner': learner.state(),
                        'spent_s': spent_s + time.process_time() - began_s,
                        'best': best._asdict() if best else None,
                    },
                )
    finally:
        for name, handler in before.items():
            signal.signal(name, handler)
    if not learner.is_done:
        return False
    assert best is not None  # the last update is judged
    _write_result(folder, learner, best, spent_s + time.process_time() - began_s)
    return True


def _write_result(folder: Path, learner: Learner, best: Judgement, cpu_s: float) -> None:
    result = {
        'run': asdict(learner.config),
        'num_parameters': sum(p.numel() for p in learner.law.parameters()),
        'best': best._asdict(),
        'cpu_minutes': cpu_s / 60.0,
        'skipped_updates': learner.num_skipped,
    }
    write_json(folder / RESULT, result | provenance(load_settings()))


def _append(path: Path, row: Mapping[str, float]) -> None:
    is_new = not path.exists()
    with path.open('a', encoding='utf-8', newline='') as file:
        writer = csv.DictWriter(file, list(row))
        if is_new:
            writer.writeheader()
        writer.writerow(row)


def parse_args(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Return the command line as a namespace."""
    parser = command_parser('adapt', __doc__)
    add = parser.add_argument
    usual = AdaptConfig(shape=Shape())
    add('--seed', type=int, default=usual.seed, help='(%(default)s)')
    text = 'what pools the past; none: no network at all (%(default)s)'
    add('--kind', choices=get_args(Kind), default=usual.shape.kind, help=text)
    add('--heads', type=positive_count, default=usual.shape.heads, help='(%(default)s)')
    add('--window', type=positive_count, default=usual.shape.window, help='ticks (%(default)s)')
    add('--updates', type=positive_count, default=usual.updates, help='(%(default)s)')
    add('--arms', type=positive_count, default=usual.arms, help='in a batch (%(default)s)')
    add('--eager', action='store_true', help='do not compile: for short tries')
    add('--out', type=Path, help='run directory (default: runs/adapt/KIND_kHEADS_wWINDOW_seedS)')
    add('--resume', type=Path, metavar='RUN', help='go on with a run')
    return parser.parse_args(arguments)


@refusing
def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code: 0 done, 2 wrong use, 3 stopped and resumable."""
    console = Console(stderr=True)
    args = parse_args(arguments)
    if args.resume:
        folder, config = args.resume, read_config(args.resume)
    else:
        shape = Shape(kind=args.kind, heads=args.heads, window=args.window)
        config = AdaptConfig(shape=shape, seed=args.seed, updates=args.updates, arms=args.arms)
        name = f'{args.kind}_k{args.heads}_w{args.window}_seed{args.seed}'
        folder = args.out or Path('runs/adapt') / name
        begin(folder, config)
    if not train(folder, config, is_compiled=not args.eager, console=console):
        console.print(f'stopped; go on with: python -m training.adapt --resume {folder}')
        return 3
    console.print(f'done: {folder}', highlight=False)
    return 0


if __name__ == '__main__':
    raise SystemExit(main())
