# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""How much may be asked for within a second: a bucket of tokens that fills again."""

from metactl_ros.signals import seconds


class Allowance:
    """So many tokens at once, and so many a second."""

    def __init__(self, at_once: float, per_s: float) -> None:
        self._at_once, self._per_s = at_once, per_s
        self._left = at_once
        self._then_ns: int | None = None

    def take(self, tokens: float, now_ns: int) -> bool:
        """Return whether so many are there, and take them if so.

        Args:
            tokens: At most as many as there may be at once.
            now_ns: On the steady clock.
        """
        if self._then_ns is not None:
            gained = seconds(now_ns - self._then_ns) * self._per_s
            self._left = min(self._left + gained, self._at_once)
        self._then_ns = now_ns
        if tokens > self._left:
            return False
        self._left -= tokens
        return True
