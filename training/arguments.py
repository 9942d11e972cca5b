# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""Numbers on a command line, checked where they are read."""

import argparse
import math


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
