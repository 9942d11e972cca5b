# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""What commands share: a parser, checked numbers, JSON, errors as exit code 2, jobs at once."""

import argparse
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import as_completed, ProcessPoolExecutor
from contextlib import contextmanager
import functools
import json
import math
import multiprocessing
from pathlib import Path
import signal
from types import FrameType
from typing import Any, TypeAlias, TypeVar

from rich.box import SIMPLE
from rich.console import Console
from rich.markup import escape
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    TextColumn,
    TimeRemainingColumn,
)
from rich.table import Table

from metactl_ros.errors import ConfigError, MetactlError

Command: TypeAlias = Callable[[Sequence[str] | None], int]
Result = TypeVar('Result')


def command_parser(name: str, description: str | None) -> argparse.ArgumentParser:
    """Return the parser of `python -m training.NAME`, its help laid out as written."""
    return argparse.ArgumentParser(
        prog=f'python -m training.{name}',
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )


def refusing(main: Command) -> Callable[..., int]:
    """Let a command end with exit code 2 and the message, if this package raises an error."""

    @functools.wraps(main)
    def run(arguments: Sequence[str] | None = None) -> int:
        try:
            return main(arguments)
        except MetactlError as error:
            # As it is: its brackets are no markup, its lines are not cut.
            text = f'[red]error:[/red] {escape(str(error))}'
            Console(stderr=True).print(text, highlight=False, soft_wrap=True)
            return 2

    return run


def positive_number(text: str) -> float:
    """Return a finite number above zero, or end with a message."""
    value = float(text)
    if not (math.isfinite(value) and value > 0.0):
        raise argparse.ArgumentTypeError(f'expected a finite number above 0, found {text}')
    return value


def positive_count(text: str) -> int:
    """Return a whole number above zero, or end with a message."""
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f'expected a whole number above 0, found {text}')
    return value


def read_json(path: Path, remedy: str, kind: type[MetactlError] = ConfigError) -> Any:
    """Return what a JSON file holds; an error of a kind says what is wrong, and the remedy."""
    try:
        return json.loads(path.read_text(encoding='utf-8'))
    except OSError as error:
        raise kind(f'{path}: cannot be read ({error.strerror}); {remedy}') from None
    except ValueError as error:
        raise kind(f'{path}: not valid JSON ({error}); {remedy}') from None


def text_of(value: float | None, form: str, absent: str = '-') -> str:
    """Return a number in a form, or what stands where there is none."""
    return absent if value is None else f'{value:{form}}'


def terminal_table(title: str, rows: Sequence[Mapping[str, str]]) -> Table:
    """Return rows by heading for a terminal, as wide as they are."""
    table = Table(title=title, box=SIMPLE, padding=(0, 1, 0, 0), pad_edge=False)
    for heading in rows[0]:
        table.add_column(heading, justify='right', no_wrap=True)
    for row in rows:
        table.add_row(*row.values())
    return table


@contextmanager
def asked_to_stop(handler: Callable[[int, FrameType | None], Any]) -> Iterator[None]:
    """Let a handler take SIGTERM and Ctrl-C."""
    signals = (signal.SIGTERM, signal.SIGINT)
    before = {number: signal.signal(number, handler) for number in signals}
    try:
        yield
    finally:
        for number, usual in before.items():
            signal.signal(number, usual)


def progress_bar(console: Console, *columns: ProgressColumn) -> Progress:
    """Return a bar that counts, and has other columns behind, by default the time that is left."""
    begin = (TextColumn('{task.description}'), BarColumn(), MofNCompleteColumn())
    return Progress(*begin, *(columns or (TimeRemainingColumn(),)), console=console)


def run_jobs(
    function: Callable[..., Result],
    jobs: Sequence[tuple[Any, ...]],
    num_processes: int,
    console: Console,
    *,
    title: str,
    num_done: int = 0,
    on_result: Callable[[int, Result], None] = lambda index, result: None,
) -> list[Result]:
    """Call a function once for each job; return the results in the order of the jobs.

    More than one process means a pool. One means none: ending this process ends the work, and
    nothing is left behind that holds its files.

    Args:
        function: Importable by name, as the processes start anew.
        jobs: Its arguments.
        num_processes: Side by side.
        console: Where the bar is shown.
        title: Of the bar.
        num_done: Jobs that the bar counts as done before the first.
        on_result: Called here with the index of a job and its result, in the order of completion.
    """
    results: dict[int, Result] = {}
    with progress_bar(console) as progress:
        bar = progress.add_task(title, total=num_done + len(jobs), completed=num_done)

        def note(index: int, result: Result) -> None:
            results[index] = result
            on_result(index, result)
            progress.advance(bar)

        if num_processes == 1:
            for index, job in enumerate(jobs):
                note(index, function(*job))
        else:
            # spawn, not fork: a physics client must not be inherited.
            context = multiprocessing.get_context('spawn')
            with ProcessPoolExecutor(num_processes, context) as pool:
                futures = {pool.submit(function, *job): i for i, job in enumerate(jobs)}
                for future in as_completed(futures):
                    note(futures[future], future.result())
    return [results[index] for index in range(len(jobs))]
