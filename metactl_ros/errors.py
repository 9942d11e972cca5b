# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""Every error this package raises on purpose, under one base class.

A message says where, what was expected, what was found, and what to do. Errors are raised at the
boundary (loading, configuring, resetting); in the 100 Hz loop a fault is a value with a reason.
"""

MAX_CHARACTERS = 4000


def legible(text: str) -> str:
    """Return a text for a terminal: not too long, and nothing in it that would steer one."""
    if len(text) > MAX_CHARACTERS:
        text = f'{text[: MAX_CHARACTERS - 3]}...'
    return ''.join(c if c.isprintable() or c == '\n' else ascii(c)[1:-1] for c in text)


class MetactlError(Exception):
    """Base of all errors raised by metactl_ros."""


class ConfigError(MetactlError, ValueError):
    """A setting is unknown, missing, of the wrong type or out of range."""


class BundleError(MetactlError, RuntimeError):
    """A policy bundle is not there, damaged, or made for another robot."""


class PlantError(MetactlError, ValueError):
    """A plant was asked for something it cannot simulate."""


class MissingDependency(MetactlError, ImportError):  # noqa: N818 - reads as the fact it states
    """An optional package is not installed; the message names the command that installs it."""
