# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""What commands share: numbers checked where they are read, errors as they are printed."""

import argparse
import math

from rich.console import Console
from rich.markup import escape


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


def complain(console: Console, error: Exception) -> None:
    """Print an error as it is: its brackets are no markup, its lines are not cut."""
    console.print(f'[red]error:[/red] {escape(str(error))}', highlight=False, soft_wrap=True)
