# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""How soon a hanging policy loses the arm, and how often one does that does not hang.

    python test/hang_bench.py [--minutes 5] [--hangs 40] [--out results/hang_watch.json]

The real control thread drives a simulated arm with the shipped policy, without ROS: as it is;
while two processes per core do nothing but compute; and then with its usual real-time priority. In
the first part nothing hangs, so every command that another thread sends is a false alarm. In the
second the policy hangs again and again until it is replaced. Times are of the steady clock.
"""

import argparse
from collections.abc import Callable
from contextlib import contextmanager
import hashlib
import os
from pathlib import Path
import subprocess
import sys
import threading
import time

import numpy as np

from metactl_ros.baselines import load_learned
from metactl_ros.control.loop import ControlLoop
from metactl_ros.files import write_json
from metactl_ros.motion.reference import motion_limits
from metactl_ros.runtime.control_thread import (
    ControlThread,
)
from metactl_ros.runtime.controller import LiveController, Requests
from metactl_ros.runtime.deadlines import HANG_AFTER_NS, Timing
from metactl_ros.runtime.joint_states import Arrival, Inbox
from metactl_ros.runtime.reference_source import MotionSource
from metactl_ros.settings import load_settings, provenance, shipped_policy
from metactl_ros.sim.rk4_arm import Rk4Arm
from metactl_ros.sim.task import draw_evaluation

PERIOD_NS = 10_000_000
BUSY_PER_CORE = 2
PRIORITY = 10
"""Of config/controller_node.yaml."""
LONG_NS = HANG_AFTER_NS
"""A tick of this length by the clock would be taken for a hang by who only looks at a clock."""


class Rig:
    """A control thread, its arm, and a policy that hangs when told to."""

    def __init__(self, priority):
        settings = load_settings()
        bundle = load_learned(shipped_policy(), settings.arm, settings.controller)
        self._policy = bundle.policy
        episode = draw_evaluation(settings.plant.task, 3, 0.75, 1, 2.0).of_arm(0)
        self._plant = Rk4Arm(settings.arm, settings.plant.friction, 100.0)
        self._state = self._plant.reset(episode.start)
        self.hang, self.hung_ns = None, 0
        self.replaced = threading.Event()
        self.latencies_ns, self.ticks_ns = [], []
        controller = LiveController(
            settings.arm,
            bundle.controller,
            self.act,
            MotionSource(episode.reference, motion_limits(settings.arm)),
            Requests(payload_kg=0.75),
            5_000_000,
        )
        honest = controller.drive

        def tick(*given, **known):
            begin_ns = time.monotonic_ns()
            result = honest(*given, **known)
            self.ticks_ns.append(time.monotonic_ns() - begin_ns)
            return result

        controller.drive = tick
        self.loop: ControlLoop = controller.loop
        self.inbox, self._effort_nm, self._must_end = Inbox(), None, False
        timing = Timing(
            period_ns=PERIOD_NS,
            ticks_on_states=False,
            state_timeout_ns=25_000_000,
            state_lead_ns=1_500_000,
            fade_ns=200_000_000,
            priority=priority,
        )
        self.thread = ControlThread(controller, self.inbox, timing, settings.arm.limits, self.send)
        self._robot = threading.Thread(target=self._live, daemon=True)

    def act(self, window):
        """Be the policy."""
        hang, self.hang = self.hang, None
        if hang is not None:
            self.hung_ns = time.monotonic_ns()
            hang(self.replaced)
        return self._policy(window)

    def send(self, command):
        self._effort_nm = command.effort_nm
        if command.tick is None and self.hung_ns:
            self.latencies_ns.append(time.monotonic_ns() - self.hung_ns)
            self.hung_ns = 0
            self.replaced.set()

    def _live(self):
        """Be the robot."""
        next_ns = time.monotonic_ns()
        while not self._must_end:
            if self._effort_nm is not None:
                self._state = self._plant.step(self._effort_nm)
            now_ns = time.monotonic_ns()
            stamp_ns = time.time_ns()
            self.inbox.put(Arrival(self._state, stamp_ns, self._effort_nm, now_ns))
            next_ns = max(next_ns + PERIOD_NS, now_ns)
            time.sleep((next_ns - now_ns) / 1e9)

    def __enter__(self):
        self.thread.start()
        self._robot.start()
        return self

    def __exit__(self, *_):
        self.thread.stop()
        self._must_end = True
        self._robot.join()


def waits(replaced):
    replaced.wait()


def computes(replaced):
    """Compute without the interpreter's lock, as onnxruntime does."""
    while not replaced.is_set():
        hashlib.pbkdf2_hmac('sha256', b'a', b'b', 2000)


def computes_in_python(replaced):
    while not replaced.is_set():
        pass


HANGS: tuple[Callable[[threading.Event], None], ...] = (waits, computes, computes_in_python)


@contextmanager
def busy(num_processes):
    """Let so many processes compute meanwhile."""
    code = 'while True: pass'
    running = [subprocess.Popen([sys.executable, '-c', code]) for _ in range(num_processes)]
    try:
        yield
    finally:
        for process in running:
            process.kill()
            process.wait()


def false_alarms(rig, minutes):
    """Return what happened while nothing hung."""
    time.sleep(60.0 * minutes)  # the measurement itself
    ticks, thread = np.array(rig.ticks_ns), rig.thread
    return {
        'minutes': minutes,
        'ticks': len(ticks),
        'stand_ins': thread.output.num_stand_ins,
        'error': thread.error,
        'late_ticks': thread.deadlines.num_late,
        'missed_deadlines': thread.deadlines.num_missed,
        'largest_lateness_ms': thread.deadlines.lateness_ms()['max'],
        'longest_tick_ms': float(ticks.max()) / 1e6,
        'ticks_that_a_clock_would_call_hanging': int((ticks > LONG_NS).sum()),
    }


def latencies(rig, num_hangs):
    """Return how long hangs lasted until another thread had the arm, ms."""
    found = {}
    for hang in HANGS:
        rig.latencies_ns.clear()
        for _ in range(num_hangs):
            rig.replaced.clear()
            rig.hang = hang
            if not rig.replaced.wait(30.0):
                raise RuntimeError(f'{hang.__name__}: nobody stood in')
            time.sleep(0.3)  # until the arm is driven again
        ms = np.array(rig.latencies_ns) / 1e6
        names = {'p50': 0.5, 'p95': 0.95, 'max': 1.0}
        found[hang.__name__] = {name: float(np.quantile(ms, q)) for name, q in names.items()}
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('--minutes', type=float, default=5.0)
    parser.add_argument('--hangs', type=int, default=40)
    parser.add_argument('--out', type=Path, default=Path('results/hang_watch.json'))
    args = parser.parse_args()
    sys.setswitchinterval(0.0001)  # as nodes do
    rows, num_all = {}, BUSY_PER_CORE * os.cpu_count()
    for name, num_busy, priority in (
        ('as_it_is', 0, 0),
        ('cores_busy', num_all, 0),
        ('cores_busy_realtime', num_all, PRIORITY),
    ):
        load_before = os.getloadavg()[0]
        with busy(num_busy):
            with Rig(priority) as rig:
                quiet = false_alarms(rig, args.minutes)
            with Rig(priority) as rig:
                noticed = latencies(rig, args.hangs)
        rows[name] = {
            'busy_processes': num_busy,
            'load_before': load_before,
            'is_realtime': rig.thread.is_realtime,
            'without_a_hang': quiet,
            'noticed_after_ms': noticed,
        }
        sys.stderr.write(f'{name}: {rows[name]}\n')
    known = {key: value for key, value in provenance(load_settings()).items() if key != 'settings'}
    patience = {'patience_ms': HANG_AFTER_NS / 1e6, 'cores': os.cpu_count()}
    write_json(args.out, {**patience, **rows, **known})
    return 1 if any(row['without_a_hang']['stand_ins'] for row in rows.values()) else 0


if __name__ == '__main__':
    sys.exit(main())
