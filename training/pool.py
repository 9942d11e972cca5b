# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""Jobs side by side in a pool of processes, under a progress bar."""

from collections.abc import Callable, Sequence
from concurrent.futures import as_completed, ProcessPoolExecutor
import multiprocessing
from typing import Any, TypeVar

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

Result = TypeVar('Result')


def progress_bar(console: Console) -> Progress:
    """Return a bar that counts jobs and estimates the time that is left."""
    return Progress(
        TextColumn('{task.description}'),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=console,
    )


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
