# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""A control thread in a world whose clock only moves while something sleeps."""

from contextlib import contextmanager
from dataclasses import replace
import heapq
from itertools import count, pairwise
from types import SimpleNamespace

import numpy as np
import pytest

from metactl_ros.runtime import control_thread as module
from metactl_ros.runtime.control_thread import ControlThread
from metactl_ros.runtime.controller import LiveController, Requests
from metactl_ros.runtime.deadlines import Timing
from metactl_ros.runtime.joint_states import Arrival, Inbox
from metactl_ros.signals import ArmState
from support.rides import ARM, Held, PERIOD_NS, POSTURE, QUICK, Seen

MS, SECOND_NS = 1_000_000, 1_000_000_000
BOOT_NS = 1_700_000_000 * SECOND_NS
LEAD_NS, TIMEOUT_NS, FADE_NS = 1_500_000, 25 * MS, 200 * MS
MOST_NM = np.array(ARM.limits.effort_nm)
STEP_NM = np.array(ARM.limits.effort_rate_nmps) * PERIOD_NS / SECOND_NS
RAMP_NS = int(max(MOST_NM / STEP_NM) + 1) * PERIOD_NS
MEASURED_NM = np.array([100.0, -50.0])

TIMING = Timing(
    period_ns=PERIOD_NS,
    ticks_on_states=False,
    state_timeout_ns=TIMEOUT_NS,
    state_lead_ns=LEAD_NS,
    fade_ns=FADE_NS,
    priority=0,
)


def make_thread(inbox, send, **changes):
    controller = LiveController(ARM, QUICK, Seen(), Held(), Requests(payload_kg=0.5), 10**12)
    return ControlThread(
        controller, inbox, replace(TIMING, **changes), ARM.limits, send
    ), controller


def arrival(now_ns, received_ns=None):
    state = ArmState(now_ns, POSTURE, np.zeros(2))
    received_ns = now_ns if received_ns is None else received_ns
    return Arrival(state, BOOT_NS + now_ns, MEASURED_NM, received_ns)


def assert_are_safe(efforts):
    """Check every command against what no command may be."""
    for before, after in pairwise([MEASURED_NM, *efforts]):
        assert after.shape == (2,)
        assert (np.abs(after) <= MOST_NM + 1e-9).all()
        assert (np.abs(after - before) <= STEP_NM + 1e-9).all()


class World:
    """A control thread, run in the calling one, among events at known times."""

    def __init__(self, **changes):
        self.now_ns = 0
        self.events, self.order = [], count()
        self.sent = []
        self.sleeps_too_long_ns = self.send_takes_ns = self.take_takes_ns = 0
        self.inbox = Inbox()
        self.thread, self.controller = make_thread(self.inbox, self.send, **changes)
        self.take, self.inbox.take = self.inbox.take, self.take_or_wait

    def at(self, moment_ns, event):
        heapq.heappush(self.events, (moment_ns, next(self.order), event))

    def arrives(self, *moments_ns):
        for ns in moments_ns:
            self.at(ns, lambda ns=ns: self.inbox.put(arrival(ns)))
        return self

    def go_on_until(self, moment_ns):
        while self.events and self.events[0][0] <= moment_ns:
            event_ns, _, event = heapq.heappop(self.events)
            self.now_ns = max(self.now_ns, event_ns)
            event()
        self.now_ns = max(self.now_ns, moment_ns)

    def sleep_until(self, moment_ns):
        self.go_on_until(moment_ns + self.sleeps_too_long_ns)
        return self.now_ns

    def take_or_wait(self, timeout_s=0.0):
        self.go_on_until(self.now_ns + self.take_takes_ns)
        taken = self.take()
        if not taken and timeout_s:
            end_ns = self.now_ns + round(timeout_s * SECOND_NS)
            self.go_on_until(min([end_ns, *(event[0] for event in self.events[:1])]))
            taken = self.take()
        return taken

    def send(self, command):
        self.sent.append((self.now_ns, command))
        self.go_on_until(self.now_ns + self.send_takes_ns)

    @contextmanager
    def in_its_time(self):
        with pytest.MonkeyPatch.context() as patch:
            clock = SimpleNamespace(monotonic_ns=lambda: self.now_ns)
            patch.setattr(module, 'time', clock)
            patch.setattr(module, 'sleep_until', self.sleep_until)
            patch.setattr(module.gc, 'collect', lambda: None)
            patch.setattr(module.gc, 'freeze', lambda: None)
            yield

    def run(self, until_ns):
        self.at(until_ns, self.thread.stop)
        with self.in_its_time():
            self.thread.run()
        if self.sent:
            self.assert_is_safe()
            assert self.sent[-1][1].tick is None
            assert not self.efforts[-1].any()
        return self

    def assert_is_safe(self):
        assert_are_safe(self.efforts)

    @property
    def efforts(self):
        return [command.effort_nm for _, command in self.sent]

    def commands(self, before_ns=10**18):
        return [(ns, command) for ns, command in self.sent if ns < before_ns]

    def modes(self, before_ns=10**18):
        return [c.tick.mode for _, c in self.commands(before_ns) if c.tick is not None]


def each(period_ns, until_ns, begin_ns=0):
    return range(begin_ns, until_ns, period_ns)


def on_time(until_ns=SECOND_NS, **changes):
    return World(**changes).arrives(*each(PERIOD_NS, until_ns))


def breaks(message):
    def broken(*_, **__):
        raise RuntimeError(message)

    return broken
