# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""What commands share: a parser, numbers checked where they are read, errors as exit code 2."""

import argparse
from collections.abc import Callable, Sequence
import functools
import math
from typing import TypeAlias

from rich.console import Console
from rich.markup import escape

from metactl_ros.errors import MetactlError

Command: TypeAlias = Callable[[Sequence[str] | None], int]


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
