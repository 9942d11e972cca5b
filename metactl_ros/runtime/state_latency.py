# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""How old joint states are when they come, as far as clocks can tell.

    latency = wall clock when a state came - its stamp

That is so if robot and controller share a clock, as on one machine, or keep theirs in step. Two
clocks that differ by a constant cannot be told from a line that delays by it; a latency below
zero, or above a second, shows that they do. Then only changes are known: how much later than the
quickest a state came.
"""

from typing import NamedTuple

import numpy as np

from metactl_ros.signals import NANOSECONDS_PER_SECOND

KEPT = 1000
"""How many latencies are kept for quantiles."""
LEAST_NS = -1_000_000
"""Clocks that are kept in step differ by less, as those of NTP in one building."""
MOST_NS = NANOSECONDS_PER_SECOND
"""No line is that slow."""


class Finding(NamedTuple):
    """What is to be told of the latency."""

    is_good: bool
    text: str
    values: dict[str, object]


class StateLatency:
    """Keeps the latencies of the last states, and says what they mean."""

    def __init__(self, state_timeout_ns: int) -> None:
        self._timeout_ns = state_timeout_ns
        self._kept_ns = np.zeros(KEPT, dtype=np.int64)
        self._count = 0

    def note(self, latency_ns: int) -> None:
        """Keep the latency of a state."""
        self._kept_ns[self._count % KEPT] = latency_ns
        self._count += 1

    def finding(self) -> Finding:
        """Return what the latencies mean; one above the timeout of the states is not good."""
        kept_ms = self._kept_ns[: self._count] / 1e6
        if not len(kept_ms):
            return Finding(True, 'not known', {})
        least_ms, p50_ms, p99_ms = np.quantile(kept_ms, [0.0, 0.5, 0.99]).tolist()
        timeout_ms = self._timeout_ns / 1e6
        if not LEAST_NS / 1e6 <= least_ms <= MOST_NS / 1e6:
            values = {'p50 above the least ms': p50_ms - least_ms}
            values['p99 above the least ms'] = p99_ms - least_ms
            side = 'ahead' if least_ms < 0.0 else 'behind'
            return Finding(
                p50_ms - least_ms <= timeout_ms,
                f"not known: the robot's clock is {abs(least_ms) / 1e3:.3g} s {side} of this "
                'one; only changes can be told. Keep the clocks in step.',
                values,
            )
        text = f'{p50_ms:.1f} ms'
        if p50_ms > timeout_ms:
            text += (
                f': states are older than state_timeout_s, {timeout_ms:g} ms, when they come, or '
                "the robot's clock is behind; shorten the way, or keep the clocks in step."
            )
        return Finding(p50_ms <= timeout_ms, text, {'p50 ms': p50_ms, 'p99 ms': p99_ms})
