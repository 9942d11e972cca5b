# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""What is answered to who asks for the context to be cleared, and whether it is."""

from metactl_ros.control.modes import Mode
from metactl_ros.runtime.controller import Requests, Tick
from metactl_ros.signals import NANOSECONDS_PER_SECOND, seconds

EVERY_NS = NANOSECONDS_PER_SECOND
"""How often it may be cleared: who does it all the time has none."""


class ContextClearing:
    """Passes requests on, but not too often, and not where they would do nothing."""

    def __init__(self, requests: Requests) -> None:
        self._requests = requests
        self._next_ns = 0

    def ask(self, last: Tick | None, now_ns: int) -> tuple[bool, str]:
        """Return whether the context will be cleared, and a word to that.

        Args:
            last: The last tick; None before the first.
            now_ns: On the steady clock.
        """
        if last is None:
            return False, 'there is no context yet: no joint state has come'
        if last.mode >= Mode.STOP:
            return False, f'not in {last.mode.name}: ask again once the arm is driven'
        if now_ns < self._next_ns:
            wait_s = seconds(self._next_ns - now_ns)
            return False, f'cleared just now; ask again in {wait_s:.2f} s'
        self._next_ns = now_ns + EVERY_NS
        self._requests.clear_context = True
        return True, 'with the next tick; modes and what they count stay'
