# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""Train and evaluate every run of a study, a file of config/studies/, several side by side.

    python -m training.sweep config/studies/smoke.yaml --jobs 2

    OUT/runs/NAME/       a run of training.train; log.txt holds what it and its evaluation said
    OUT/results/*.json   one record of training.evaluate per run
    OUT/stop             while it is there no run goes on; Ctrl-C and SIGTERM create it

A stopped sweep goes on when the same command is given again: finished runs are left alone, begun
ones resume, failed ones are tried again. That holds however it ended: a run whose sweep is killed
writes a checkpoint and ends, too. With `--collect DIR` each record is also written to
DIR/NAME.json as soon as it is there. With `--engine ray` the runs are tasks of a Ray cluster whose
machines share the checkout and OUT. Exit codes: 0 all done, 1 some failed, 2 wrong use, 3 stopped
and resumable.
"""

import argparse
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager, nullcontext, suppress
import ctypes
from dataclasses import asdict, dataclass, fields, replace
import fcntl
from importlib import import_module
from itertools import product
import math
import os
from pathlib import Path
import shlex
import signal
import subprocess
import sys
import time
from typing import Any, get_args, Literal, NamedTuple, TextIO, TypeAlias
import zipfile

from rich.box import SIMPLE
from rich.console import Console
from rich.live import Live
from rich.table import Table

from metactl_ros.config import require_positive, shown
from metactl_ros.errors import ConfigError, MissingDependency
from metactl_ros.files import write_json
from metactl_ros.settings import load_file, PlantName
from training.commands import asked_to_stop, command_parser, positive_count, refusing
from training.learn.judgements import read_judgements
from training.learn.networks import Model, NetworkConfig
from training.learn.run import (
    choose_device,
    load_presets,
    read_run,
    RunConfig,
    RunError,
    with_difference,
)
from training.records import load_runs, Run

MOST_RUNS = 10_000
"""Of a study: a year on a machine of some tens of cores."""
ROOT = Path(__file__).resolve().parents[1]
# One thread: small matrices only lose by more. Wide: the reason of a failure stays on one line.
# Unbuffered: and that line stays the last one.
ENVIRONMENT = {
    'OMP_NUM_THREADS': '1',
    'OPENBLAS_NUM_THREADS': '1',
    'COLUMNS': '400',
    'PYTHONUNBUFFERED': '1',
}
LOCK_PATIENCE_S = 60.0
"""How long a run of a sweep that was killed may take to write its checkpoint."""
PR_SET_PDEATHSIG = 1  # of prctl(2)
LIBC = ctypes.CDLL(None)

State: TypeAlias = Literal['running', 'failed', 'stopped', 'queued', 'done']


@dataclass(frozen=True, kw_only=True, slots=True)
class Size:
    """Heads K and window W of a network."""

    heads: int
    window: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Product:
    """Every combination of one entry from each list; tau_z in s."""

    presets: tuple[str, ...]
    models: tuple[Model, ...]
    sizes: tuple[Size, ...]
    tau_z: tuple[float, ...]
    seeds: tuple[int, ...]
    differences: tuple[str, ...] = ()
    """Names of config/differences.yaml, one for each run; without any, nothing is changed."""

    def __post_init__(self) -> None:
        needed = [field.name for field in fields(self) if field.name != 'differences']
        empty = [name for name in needed if not getattr(self, name)]
        if empty:
            raise ConfigError(f'{", ".join(empty)}: empty; list at least one entry.')


@dataclass(frozen=True, kw_only=True, slots=True)
class Study:
    """A file of config/studies/: the plant is that of training and of evaluation."""

    plant: PlantName
    steps: int
    rollouts: int
    """Of the evaluation, per payload."""
    products: tuple[Product, ...]

    def __post_init__(self) -> None:
        require_positive('Study', steps=self.steps, rollouts=self.rollouts)
        if not self.products:
            raise ConfigError('products: empty; list at least one.')


def expand(study: Study) -> list[RunConfig]:
    """Return the runs of a study in its order, or refuse it as a whole."""
    presets, device = load_presets(), choose_device('auto')
    known = [field.name for field in fields(presets)]
    runs: dict[str, RunConfig] = {}
    blocks = [
        (b.presets, b.models, b.sizes, b.tau_z, b.differences or (None,), b.seeds)
        for b in study.products
    ]
    count = sum(math.prod(map(len, lists)) for lists in blocks)
    if count > MOST_RUNS:
        raise ConfigError(f'products: expected at most {MOST_RUNS} runs, found {count}.')
    for lists in blocks:
        for preset, model, size, tau_z, difference, seed in product(*lists):
            if preset not in known:
                raise ConfigError(f'presets: expected one of {known}, found {shown(preset)}.')
            NetworkConfig(model=model, **asdict(size))
            run = RunConfig(
                preset=preset,
                model=model,
                **asdict(size),
                tau_z=tau_z,
                seed=seed,
                steps=study.steps,
                plant=study.plant,
                device=device,
                hyper=with_difference(getattr(presets, preset), difference),
                difference=difference,
            )
            if runs.setdefault(run.name, run) is not run:
                raise ConfigError(f'{run.name}: the study asks for it twice; remove one.')
    return list(runs.values())


class Status(NamedTuple):
    """Where a run stands; delta in percent, elapsed time in s."""

    state: State
    steps: int = 0
    delta: float | None = None
    elapsed_s: float | None = None
    reason: str = ''


Engine: TypeAlias = tuple[Callable[[RunConfig, Path, int], 'Future[Status]'], int]
"""What does `run_one` elsewhere, and how many runs are to be side by side."""


def result_of(run: RunConfig, out: Path, rollouts: int) -> Run | None:
    """Return the evaluation of a run, None if there is none with as many rollouts."""
    paths = (out / 'results').glob(f'{run.name}_{run.plant}_tau*.json')
    found = load_runs(sorted(paths))
    return next((r for r in found if r.record['num_rollouts_per_payload'] == rollouts), None)


def require_same_runs(runs: Sequence[RunConfig], out: Path) -> None:
    """Raise ConfigError if OUT holds a run of the same name that was asked for differently."""
    for run in runs:
        folder = out / 'runs' / run.name
        if (folder / 'config.json').exists():
            found = replace(read_run(folder), device=run.device)
            names = [f.name for f in fields(run) if getattr(found, f.name) != getattr(run, f.name)]
            if names:
                raise ConfigError(
                    f'{folder}: holds a run with another value of {", ".join(names)}; '
                    'choose another --out, or remove it.'
                )


def run_one(run: RunConfig, out: Path, rollouts: int) -> Status:
    """Train what is left of a run, then evaluate it: the unit of work of both engines."""
    folder, stop, code = out / 'runs' / run.name, out / 'stop', 0
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / 'log.txt').open('a', encoding='utf-8') as log:
        if not _lock(log, stop):
            return Status('failed', reason='another process works on it; wait for it, or end it')
        if not zipfile.is_zipfile(folder / 'model.zip'):  # absent, or cut short by a crash
            code = call(train_command(run, folder), log, stop)
        if code == 0:
            code = call(evaluate_command(run, folder, out / 'results', rollouts), log, stop)
    if code == 0 and (found := result_of(run, out, rollouts)):
        return Status('done', run.steps, found.record['delta_percent'])
    if code == 3 or stop.exists():  # 3 is a checkpoint on request
        return Status('stopped', *progress_of(folder))
    log_text = (folder / 'log.txt').read_text(encoding='utf-8', errors='replace')
    said = [f'killed by signal {-code}'] if code < 0 else log_text.split('\n')
    return Status('failed', *progress_of(folder), reason=[s for s in said if s.strip()][-1])


def _lock(log: TextIO, stop: Path) -> bool:
    """Return whether no other process works on this run; children inherit the lock of its log."""
    deadline_s = time.monotonic() + LOCK_PATIENCE_S
    while True:
        with suppress(BlockingIOError):
            fcntl.flock(log, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        if time.monotonic() > deadline_s or stop.exists():
            return False
        time.sleep(0.1)


def train_command(run: RunConfig, folder: Path) -> list[str]:
    """Return the arguments of Python that begin a run, or go on with it."""
    if num_steps_saved(folder):
        return ['-m', 'training.train', '--resume', str(folder)]
    # Ended before its first checkpoint: training.train would refuse to begin it again.
    (folder / 'config.json').unlink(missing_ok=True)
    names = ('preset', 'model', 'heads', 'window', 'tau_z', 'seed', 'steps', 'plant')
    options = [f'--{name.replace("_", "-")}={getattr(run, name)}' for name in names]
    options += [f'--difference={run.difference}'] if run.difference else []
    return ['-m', 'training.train', *options, f'--out={folder}']


def evaluate_command(run: RunConfig, folder: Path, results: Path, rollouts: int) -> list[str]:
    """Return the arguments of Python that evaluate a run, by one process."""
    options = [f'--plant={run.plant}', f'--tau-z={run.tau_z}', f'--rollouts={rollouts}']
    return ['-m', 'training.evaluate', f'--run={folder}', *options, '--jobs=1', f'--out={results}']


def call(arguments: Sequence[str], log: TextIO, stop: Path) -> int:
    """Run Python; send it SIGTERM as soon as the file `stop` is there; return its exit code."""
    log.write(f'$ python {shlex.join(arguments)}\n')
    log.flush()
    with subprocess.Popen(
        [sys.executable, *arguments],
        cwd=ROOT,
        env=os.environ | ENVIRONMENT,
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=subprocess.STDOUT,
        start_new_session=True,  # Ctrl-C reaches the sweep alone
        # The kernel sends it SIGTERM when the sweep ends, even by SIGKILL.
        preexec_fn=lambda: LIBC.prctl(PR_SET_PDEATHSIG, int(signal.SIGTERM)),
    ) as child:
        try:
            while child.poll() is None and not stop.exists():
                with suppress(subprocess.TimeoutExpired):
                    child.wait(timeout=0.1)
        finally:
            if child.poll() is None:
                os.killpg(child.pid, signal.SIGTERM)
    return child.returncode


def num_steps_saved(folder: Path) -> int:
    """Return the step of the newest checkpoint of a run, 0 without one."""
    return max((int(path.name) for path in folder.glob('checkpoints/[0-9]*')), default=0)


def progress_of(folder: Path) -> tuple[int, float | None]:
    """Return how many steps of a run are known to be done, and its last delta in percent."""
    judged: list[dict[str, Any]] = []
    with suppress(RunError):  # a damaged file is for the run itself to refuse
        judged = read_judgements(folder)
    steps, delta = (judged[-1]['step'], judged[-1]['delta_percent']) if judged else (0, None)
    return max(steps, num_steps_saved(folder)), delta


@contextmanager
def local_engine(jobs: int | None) -> Iterator[Engine]:
    """Give the processes of this machine."""
    jobs = jobs or os.cpu_count() or 1
    with ThreadPoolExecutor(jobs) as pool:  # a thread only waits for its processes
        yield lambda *unit: pool.submit(run_one, *unit), jobs


@contextmanager
def ray_engine(jobs: int | None) -> Iterator[Engine]:
    """Give a Ray cluster: that of RAY_ADDRESS, else one that runs here, else a new one.

    If a machine is lost, Ray hands its runs to others, which resume from the last checkpoint.
    """
    try:
        ray = import_module('ray')
    except ImportError as error:
        raise MissingDependency(
            "--engine ray needs ray; run: pip install 'metactl_ros[sweep]', or leave --engine out."
        ) from error
    ray.init(log_to_driver=False)
    try:
        # Under its own name: __main__ is another module on a worker.
        task = ray.remote(num_cpus=1)(import_module('training.sweep').run_one)
        jobs = jobs or int(ray.cluster_resources()['CPU'])
        yield lambda *unit: task.remote(*unit).future(), jobs
    finally:
        ray.shutdown()


ENGINES = {'local': local_engine, 'ray': ray_engine}


def sweep(
    runs: Sequence[RunConfig],
    out: Path,
    rollouts: int,
    engine: Engine,
    console: Console,
    collect: Path | None = None,
) -> dict[str, Status]:
    """Work off the runs that are not finished; return where each of them stands, by name."""
    (submit, jobs), stop = engine, out / 'stop'
    out.mkdir(parents=True, exist_ok=True)
    stop.unlink(missing_ok=True)
    named = {run.name: run for run in runs}
    board = {name: Status('queued') for name in named}
    active: dict[Future[Status], tuple[str, float]] = {}

    def note(name: str, status: Status) -> None:
        board[name] = status
        if collect and status.state == 'done' and (found := result_of(named[name], out, rollouts)):
            write_json(collect / f'{name}.json', found.record)
        if not console.is_terminal or status.state == 'failed':
            row = (*cells(name, status, named[name]), status.reason)
            console.out(*(cell for cell in row if cell not in ('', '-')))

    for name, run in named.items():
        if found := result_of(run, out, rollouts):
            note(name, Status('done', run.steps, found.record['delta_percent']))
    queue = [name for name, status in board.items() if status.state == 'queued']
    live = Live(console=console, auto_refresh=False, transient=True)
    shown_live = live if console.is_terminal else nullcontext()
    with asked_to_stop(lambda *_: stop.touch()), shown_live:
        try:
            while active or (queue and not stop.exists()):
                while queue and len(active) < jobs and not stop.exists():
                    name = queue.pop(0)
                    active[submit(named[name], out, rollouts)] = name, time.monotonic()
                    note(name, Status('running', *progress_of(out / 'runs' / name)))
                ended, _ = wait(active, timeout=0.5, return_when=FIRST_COMPLETED)
                for future in ended:
                    name, began_s = active.pop(future)
                    error = future.exception()  # of the engine, or a full disk: of this run only
                    status = Status('failed', reason=repr(error)) if error else future.result()
                    note(name, status._replace(elapsed_s=time.monotonic() - began_s))
                for name, began_s in active.values():
                    progress = progress_of(out / 'runs' / name)
                    board[name] = Status('running', *progress, time.monotonic() - began_s)
                if console.is_terminal:
                    live.update(table_of(board, named), refresh=True)
        finally:
            stop.touch()  # if this process errs, it must not leave runs behind
    stop.unlink()
    return board


def cells(name: str, status: Status, run: RunConfig) -> tuple[str, ...]:
    """Return the row of a run: state, name, steps, delta, elapsed time."""
    delta = '-' if status.delta is None else f'{status.delta:+.1f} %'
    seconds = '-' if status.elapsed_s is None else f'{status.elapsed_s:.0f} s'
    return f'{status.state:7}', name, f'{status.steps}/{run.steps}', delta, seconds


def table_of(board: Mapping[str, Status], runs: Mapping[str, RunConfig]) -> Table:
    """Return the runs as a table, those to look at on top."""
    table = Table('state', 'run', 'steps', 'delta', 'elapsed', box=SIMPLE)
    order = get_args(State).index
    for name, status in sorted(board.items(), key=lambda item: order(item[1].state)):
        table.add_row(*cells(name, status, runs[name]))
    return table


def run_study(
    study: Study, args: argparse.Namespace, out: Path, console: Console
) -> tuple[int, dict[str, Run]]:
    """Run a study as the command line says, print the table; return exit code and results."""
    out, runs = out.resolve(), expand(study)
    require_same_runs(runs, out)
    with ENGINES[args.engine](args.jobs) as engine:
        board = sweep(runs, out, study.rollouts, engine, console, args.collect)
    Console().print(table_of(board, {run.name: run for run in runs}))
    results = {r.name: found for r in runs if (found := result_of(r, out, study.rollouts))}
    states = {status.state for status in board.values()}
    return 3 if states & {'stopped', 'queued'} else 1 if 'failed' in states else 0, results


def add_engine_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what says how a study is run, rather than what it is."""
    parser.add_argument('--engine', choices=ENGINES, default='local', help='(%(default)s)')
    parser.add_argument('--jobs', type=positive_count, help='runs at a time (default: all cores)')
    parser.add_argument(
        '--collect', type=Path, metavar='DIR', help='also write each record to DIR/NAME.json'
    )


@refusing
def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
    parser = command_parser('sweep', __doc__)
    parser.add_argument('study', type=Path, metavar='STUDY.yaml', help='see config/studies/')
    add_engine_arguments(parser)
    parser.add_argument('--out', type=Path, help='(default: runs/sweep/STUDY)')
    args = parser.parse_args(arguments)
    out = args.out or Path('runs/sweep') / args.study.stem
    console = Console(stderr=True, highlight=False)
    code, results = run_study(load_file(Study, args.study, ''), args, out, console)
    if code == 3:
        console.out('stopped; the same command goes on')
    for preset in sorted({result.record['preset'] for result in results.values()}):
        console.out(f'report: python -m training.report {out}/results/{preset}_*.json')
    return code


if __name__ == '__main__':
    raise SystemExit(main())
