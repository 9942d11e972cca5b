# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""Takes joint states in: each is left for the control thread, or refused and counted.

    is it of the one publisher?         `SourceWatch`
    can it be read?                     `read_joint_state`
    is it newer, in step, possible?     `StateGate`
    how old is it?                      `StateLatency`

Only one publisher may be alive. The middleware lists publishers, but one that was killed stays
listed for up to 20 s, so that a robot that restarts looks like two. A publisher counts as alive
only on evidence:

    messages    every publisher numbers its own. Two streams of numbers that alternate are two
                publishers; one that ends before another begins is a restart
    the list    one that appears is alive. Another that goes on sending after that is, too; so are
                two that appeared together, and two that are listed for longer than a lease
    the states  of one publisher contradict each other again and again: it passes on two arms

Messages show it at once, the list with the next poll. Until the stream in use has been silent for
`TAKEOVER_NS`, no other is used.
"""

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
import time
from typing import Any, NamedTuple

import numpy as np

from metactl_ros.control.modes import Cause
from metactl_ros.dynamics.rigid_body import ArmModel
from metactl_ros.runtime.control_thread import Exchange
from metactl_ros.runtime.deadlines import Timing
from metactl_ros.runtime.joint_states import (
    Arrival,
    DISTRUSTED,
    effort_doubt,
    Inbox,
    LATE,
    MessageError,
    read_joint_state,
    StateGate,
)
from metactl_ros.signals import NANOSECONDS_PER_SECOND

UNNUMBERED = (0, 2**64 - 1)
"""The number of every message, from a middleware that does not number them."""
STREAM_LASTS_NS = 300_000_000
"""A stream that is silent for longer is over; a process takes longer to start again."""
TAKEOVER_NS = 50_000_000
"""Silence of the stream in use, after which another may be used."""
NEAR = 10
"""Messages that may be lost within a stream while another speaks."""
EVIDENCE_LASTS_NS = NANOSECONDS_PER_SECOND
LEASE_NS = 25 * NANOSECONDS_PER_SECOND
"""No publisher stays listed for longer after its death; 20 s is usual."""
TOGETHER_NS = 300_000_000
"""Who appears within this of each other is alive at the same time."""
GOES_ON_NS = 100_000_000
"""How long after another appeared a publisher must send to be alive."""
NUM_VERDICTS, MAX_REFUSED, MAX_TURNS = 20, 5, 4
"""Of so many states, refusals that contradict the others, and changes from good to refused."""
NAME_UNKNOWN = '_NODE_NAME_UNKNOWN_'
"""What rclpy calls a node of which it knows a publisher, but not yet the name."""


@dataclass(slots=True, eq=False)
class _Stream:
    """Messages with rising numbers."""

    number: int
    first_ns: int
    last_ns: int


class Streams:
    """Keeps publishers of one topic apart by the numbers of their messages."""

    def __init__(self) -> None:
        self._streams: list[_Stream] = []
        """The one in use is first."""
        self._spoke: _Stream | None = None
        self._evidence_ns: int | None = None
        self._doubted_ns = 0
        """When a stream began beside another, or left out many numbers, as another would."""
        self._num_in_doubt = 0
        self.num_foreign_used = 0
        """At most so many messages of others were used before they were known as such."""

    def receive(self, number: int, now_ns: int) -> bool:
        """Note a message; return whether it may be used: none is while several publish."""
        if number in UNNUMBERED:
            return True
        self._streams = [x for x in self._streams if now_ns - x.last_ns <= STREAM_LASTS_NS]
        stream = self._stream_of(number)
        if stream is None:
            stream = _Stream(number, now_ns, now_ns)
            if self._streams:  # the message before may have been of another as well as this one
                self._doubt(now_ns, num_already=1)
            self._streams = [*self._streams, stream]
        elif stream is not self._spoke:  # it spoke, another spoke, and now it speaks again
            self._evidence_ns = now_ns
            self.num_foreign_used += self._num_in_doubt
            self._num_in_doubt = 0
        elif number - stream.number > NEAR:
            self._doubt(now_ns, num_already=0)
        stream.number, stream.last_ns, self._spoke = number, now_ns, stream
        return self._may_use(stream, now_ns)

    def _stream_of(self, number: int) -> _Stream | None:
        """Return the stream that a number goes on with, if there is one."""
        near = [x for x in self._streams if 0 < number - x.number <= NEAR]
        if near:  # of two that are equally near, more likely the one that spoke last
            return max(near, key=lambda x: (x.number, x is self._spoke))
        last = self._spoke if self._spoke in self._streams else None
        return last if last is not None and number > last.number else None

    def _doubt(self, now_ns: int, num_already: int) -> None:
        if now_ns - self._doubted_ns > STREAM_LASTS_NS:  # else it goes on
            self._doubted_ns, self._num_in_doubt = now_ns, num_already

    def _may_use(self, stream: _Stream, now_ns: int) -> bool:
        in_use = self._streams[0]
        if stream is not in_use and now_ns - in_use.last_ns > TAKEOVER_NS:
            self._streams = [stream, *(x for x in self._streams if x is not stream)]
            in_use = stream
        may_use = stream is in_use and not self.are_several(now_ns)
        self._num_in_doubt += may_use
        return may_use

    def are_several(self, now_ns: int) -> bool:
        """Return whether more than one publisher has sent lately."""
        return self._evidence_ns is not None and now_ns - self._evidence_ns < EVIDENCE_LASTS_NS

    def goes_on(self, since_ns: int, until_ns: int) -> bool:
        """Return whether a publisher sent before a time, and still sends after a later one."""
        return any(x.first_ns < since_ns and x.last_ns > until_ns for x in self._streams)


class Contradictions:
    """Notices states of which every few cannot be of the same arm as the others."""

    def __init__(self) -> None:
        self._verdicts: deque[bool] = deque(maxlen=NUM_VERDICTS)
        self._evidence_ns: int | None = None

    def record(self, now_ns: int, *, contradicts: bool) -> None:
        """Record whether a state contradicts those that were accepted before it."""
        self._verdicts.append(contradicts)
        if not contradicts:
            return
        seen = list(self._verdicts)
        num_turns = sum(after and not before for before, after in pairwise(seen))
        if sum(seen) >= MAX_REFUSED and num_turns >= MAX_TURNS:
            self._evidence_ns = now_ns

    def were_found(self, now_ns: int) -> bool:
        """Return whether that was so lately."""
        return self._evidence_ns is not None and now_ns - self._evidence_ns < EVIDENCE_LASTS_NS


class Publisher(NamedTuple):
    """One that the middleware lists."""

    node: str
    """Its full name."""
    identity: bytes


class PublisherList:
    """The publishers of a topic that the middleware lists, and whether several must be alive."""

    def __init__(self) -> None:
        self._appeared: dict[bytes, tuple[int, int]] = {}
        """When each was not listed yet, and when it was."""
        self._looked_ns: int | None = None

    def poll(self, listed: Sequence[Publisher], now_ns: int, streams: Streams) -> bool:
        """Note who is listed, asked for after `now_ns`; return whether several are alive."""
        before_ns = now_ns if self._looked_ns is None else self._looked_ns
        self._looked_ns = now_ns
        self._appeared = {
            one.identity: self._appeared.get(one.identity, (before_ns, now_ns)) for one in listed
        }
        in_order = sorted(self._appeared.values(), key=lambda times: times[1])
        return any(
            later_ns - earlier_ns < TOGETHER_NS
            or now_ns - later_ns > LEASE_NS
            or streams.goes_on(absent_ns, later_ns + GOES_ON_NS)
            for (_, earlier_ns), (absent_ns, later_ns) in pairwise(in_order)
        )


class SourceWatch:
    """Watches the publishers of joint states and of commands; two threads may use it.

    One receives states, the other polls the list, twenty times a second.
    """

    def __init__(self, states_topic: str) -> None:
        self._topic = states_topic
        self._listing = PublisherList()
        self.forget_messages()
        self.states: Sequence[Publisher] = ()
        """Who is listed for joint states."""
        self.findings: tuple[str, ...] = ()
        """What is wrong, as of the last poll."""

    def forget_messages(self) -> None:
        """Forget all messages; what is listed stays known."""
        self.streams, self.contradictions = Streams(), Contradictions()
        self._were_several = False

    def are_states_in_doubt(self, now_ns: int) -> bool:
        """Return whether messages say that more than one robot speaks."""
        return self.streams.are_several(now_ns) or self.contradictions.were_found(now_ns)

    def poll(
        self, states: Sequence[Publisher], foreign: Mapping[str, Sequence[Publisher]], now_ns: int
    ) -> None:
        """Judge who is listed.

        Args:
            states: For joint states.
            foreign: Others than this controller, for each topic of commands that it drives by.
            now_ns: Before the lists were asked for.
        """
        self.states = states
        several = self._listing.poll(states, now_ns, self.streams) or self.streams.are_several(
            now_ns
        )
        # Of two, the one that falls silent may have been the robot: who is left must be alone.
        self._were_several = several or (self._were_several and len(states) > 1)
        findings = []
        if self._were_several:
            findings.append(
                f'{self._topic}: expected one publisher, found {names_of(states)} alive; end all '
                'but one, or give each arm a topic of its own.'
            )
        elif self.contradictions.were_found(now_ns):
            findings.append(
                f'{self._topic}: expected the states of one arm, found some that contradict the '
                f'others, from {names_of(states)}; look for a node that mixes two streams.'
            )
        findings += [
            f'{topic}: expected no other publisher, found {names_of(others)}; end it.'
            for topic, others in foreign.items()
            if others
        ]
        self.findings = tuple(findings)


def names_of(publishers: Iterable[Publisher]) -> str:
    """Return the names of the nodes."""
    return ', '.join(sorted(one.node for one in publishers)) or 'nobody'


LATENCIES_KEPT = 1000
"""How many latencies are kept for quantiles."""
MIN_LATENCY_MS = -1.0
"""Clocks that are kept in step differ by less, as those of NTP in one building."""
MAX_LATENCY_MS = 1000.0
"""No line is that slow."""


class Finding(NamedTuple):
    """What is reported of the latency."""

    is_good: bool
    text: str
    values: dict[str, object]


class StateLatency:
    """Keeps the latencies of the last states, and reports what they mean."""

    def __init__(self, state_timeout_ns: int) -> None:
        self._timeout_ns = state_timeout_ns
        self._kept_ns = np.zeros(LATENCIES_KEPT, dtype=np.int64)
        self._count = 0

    def note(self, latency_ns: int) -> None:
        """Keep the latency of a state."""
        self._kept_ns[self._count % LATENCIES_KEPT] = latency_ns
        self._count += 1

    def finding(self) -> Finding:
        """Return what the latencies mean; one above the timeout of the states is not good."""
        kept_ms = self._kept_ns[: self._count] / 1e6
        if not len(kept_ms):
            return Finding(True, 'not known', {})
        min_ms, p50_ms, p99_ms = np.quantile(kept_ms, [0.0, 0.5, 0.99]).tolist()
        timeout_ms = self._timeout_ns / 1e6
        if not MIN_LATENCY_MS <= min_ms <= MAX_LATENCY_MS:
            values = {'p50 above the least ms': p50_ms - min_ms}
            values['p99 above the least ms'] = p99_ms - min_ms
            side = 'ahead' if min_ms < 0.0 else 'behind'
            return Finding(
                p50_ms - min_ms <= timeout_ms,
                f"not known: the robot's clock is {abs(min_ms) / 1e3:.3g} s {side} of this "
                'one; only changes are known. Keep the clocks in step.',
                values,
            )
        text = f'{p50_ms:.1f} ms'
        if p50_ms > timeout_ms:
            text += (
                f': states are older than state_timeout_s, {timeout_ms:g} ms, when they come, or '
                "the robot's clock is behind; shorten the way, or keep the clocks in step."
            )
        return Finding(p50_ms <= timeout_ms, text, {'p50 ms': p50_ms, 'p99 ms': p99_ms})


REPORTED = {'clock drifts': Cause.CLOCK_MISMATCH, 'leaps': Cause.POSITION_LEAP}
"""Counts of a gate that are latched errors, which only a fault reset clears."""
NO_CONTRADICTION = ('old stamps', LATE, DISTRUSTED)
"""States that only come late, or twice, are refused and may yet be of the same arm."""


class StateIntake:
    """Passes joint states on to an inbox, and what is wrong with them to the control thread."""

    def __init__(
        self,
        arm: ArmModel,
        timing: Timing,
        sources: SourceWatch,
        inbox: Inbox,
        exchange: Exchange,
        log_error: Callable[[str], None],
    ) -> None:
        """Make an intake; faults go to the exchange, and what is wrong with a message to a log."""
        timeout_ns, self._is_simulated = timing.state_timeout_ns, timing.ticks_on_states
        self._gate = StateGate(arm, timing.period_ns, None if self._is_simulated else timeout_ns)
        self._joints, self._limit_nm = arm.joint_names, arm.limits.effort_nm
        self._sources, self._inbox, self._exchange = sources, inbox, exchange
        self._log_error = log_error
        self._num_unusable = self._num_foreign = 0
        self._has_doubted = False
        self.latency = StateLatency(timeout_ns)

    @property
    def counts(self) -> dict[str, int]:
        """How many were accepted, and how many not, by reason."""
        refused = {'unusable messages': self._num_unusable, 'of others': self._num_foreign}
        return {**self._gate.counts, **refused}

    def receive(self, message: Any, info: dict[str, int]) -> None:
        """Take a JointState and what the middleware knows of it."""
        received_ns = time.monotonic_ns()
        streams = self._sources.streams
        may_be_used = streams.receive(info['publication_sequence_number'], received_ns)
        if may_be_used:
            self._judge(message, received_ns)
        else:
            self._num_foreign += 1
        if self._sources.are_states_in_doubt(received_ns):
            self._exchange.outer_error = Cause.SECOND_SOURCE

    def _judge(self, message: Any, received_ns: int) -> None:
        try:
            sample = read_joint_state(message, self._joints)
        except MessageError as error:
            self._num_unusable += 1
            self._log_error(str(error))
            return
        if not self._is_simulated:
            self.latency.note(time.time_ns() - sample.stamp_ns)
        doubt = effort_doubt(sample, self._limit_nm, self._joints)
        if doubt and not self._has_doubted:
            self._has_doubted = True
            self._log_error(doubt)
        counts = self._gate.counts
        before = counts.copy()
        state = self._gate.admit(sample, received_ns)
        for name, cause in REPORTED.items():
            if counts[name] > before[name]:
                self._exchange.report(cause)
        is_only_late = any(counts[name] > before[name] for name in NO_CONTRADICTION)
        contradicts = state is None and not is_only_late
        self._sources.contradictions.record(received_ns, contradicts=contradicts)
        if state is not None:
            effort_nm = None if doubt else sample.effort_nm
            self._inbox.put(Arrival(state, sample.stamp_ns, effort_nm, received_ns))
