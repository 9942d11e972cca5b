# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""Whether the stamps of joint states keep pace with the steady clock.

    delay = received - stamp = offset of the two clocks + time on the way

The offset is unknown; the time on the way is never negative, and mostly short. So the least delay
of a while shows the offset, as in the clock filter of NTP, and least delays that move show clocks
that drift. A state is out of step if its delay is

    behind   above a least delay of the last two seconds: its stamp runs slow, or it came late
    ahead    below the least one of the first of these seconds: its stamp runs fast, or it would
             have come before it was sent

by more than a tolerance for the way and 5 % of the time between the two states. What is behind may
be `LATE_NS` late in any case: feedback so old an arm bears. A line that stalls delivers late what
was sent meanwhile, and that is too old; what comes after it is not. Before two seconds are known,
the first states may all have come late, by `STALL_NS`.
"""

from collections import deque

from metactl_ros.signals import NANOSECONDS_PER_SECOND

DRIFT = 0.05
"""By this share of the time between two states the time between their stamps may differ."""
STALL_NS = 200_000_000
"""How long a line or a machine may stall while it begins."""
SPAN_NS = 2 * NANOSECONDS_PER_SECOND
"""What came longer ago is forgotten."""
BLOCK_NS = SPAN_NS // 20
"""The least delay is kept for each so long while."""
LATE_NS = 50_000_000
"""How much later than others a state may come, at least."""


class StampClock:
    """Compares stamps with the steady clock over the last two seconds."""

    def __init__(self, tolerance_ns: int) -> None:
        self._tolerance_ns = tolerance_ns
        self._blocks: deque[tuple[int, int, int]] = deque()
        """When each begins, its least delay, and when the state with it came, ns."""

    def _forget(self, received_ns: int) -> None:
        while self._blocks and self._blocks[0][0] < received_ns - SPAN_NS:
            self._blocks.popleft()

    def is_behind(self, delay_ns: int, received_ns: int) -> bool:
        """Return whether a state comes too late, or its stamp is too old."""
        self._forget(received_ns)
        allowed_ns = max(self._tolerance_ns, LATE_NS)
        return any(
            delay_ns - least_ns > allowed_ns + DRIFT * (received_ns - at_ns)
            for _, least_ns, at_ns in self._blocks
        )

    def is_ahead(self, delay_ns: int, received_ns: int) -> bool:
        """Return whether the stamp of a state is too new."""
        self._forget(received_ns)
        if not self._blocks:
            return False
        early = [block[1:] for block in self._blocks if block[0] <= received_ns - SPAN_NS // 2]
        is_known = self._blocks[0][0] <= received_ns - SPAN_NS + BLOCK_NS
        least_ns, at_ns = min(early) if is_known else self._blocks[0][1:]
        allowed_ns = self._tolerance_ns + (0 if is_known else STALL_NS)
        return least_ns - delay_ns > allowed_ns + DRIFT * (received_ns - at_ns)

    def agree(self, delay_ns: int, received_ns: int, other: tuple[int, int]) -> bool:
        """Return whether a state is in step with another, of (delay, received)."""
        allowed_ns = self._tolerance_ns + DRIFT * (received_ns - other[1])
        return abs(delay_ns - other[0]) <= allowed_ns

    def note(self, delay_ns: int, received_ns: int) -> None:
        """Learn from a state that is believed."""
        begin_ns, least_ns, _ = self._blocks[-1] if self._blocks else (-BLOCK_NS, 0, 0)
        if not self._blocks or received_ns - begin_ns >= BLOCK_NS:
            self._blocks.append((received_ns, delay_ns, received_ns))
        elif delay_ns < least_ns:
            self._blocks[-1] = (begin_ns, delay_ns, received_ns)

    def restart(self) -> None:
        """Forget all delays: they were those of another clock."""
        self._blocks.clear()
