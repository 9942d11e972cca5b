# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""Whether the scenarios of `config/faults/` can fail: each is run without its protection.

    python test/hil_mutants.py [NAME...] [--out runs/hil_mutants]

The protection is switched off from outside: the process starts with a few lines that replace one
function. Nothing of this is in the package. What failed goes to results/hil_mutants.json, where
what is said of other scenarios stays, and as a table to the terminal. Exit code 1: a scenario
passed without its protection.
"""

import argparse
import json
from pathlib import Path
import sys
from typing import NamedTuple

from fault_page import page
from rich.console import Console
from rich.table import Table

from metactl_ros.errors import ConfigError
from metactl_ros.files import write_json
from metactl_ros.hil.run import CAN_BE_RUN, run_judged
from metactl_ros.hil.scenario import chosen_scenarios, load_scenario
from metactl_ros.processes import commands
from metactl_ros.settings import load_settings, provenance

ATTEMPTS = 5
"""A run that did not come about, or on a machine that stalled, noticed nothing by itself."""
CONTROLLER, PLANT = ('controller_node',), ('plant_node',)

BELIEVES_OLD_STATES = """
from metactl_ros.runtime.controller import LiveController
honest = LiveController.drive
LiveController.drive = lambda self, states, now_ns, is_fresh, **rest: honest(
    self, states, now_ns, is_fresh=True, **rest)
"""
IMPATIENT = """
from itertools import count
from metactl_ros.runtime.controller import LiveController
honest, calls = LiveController.drive, count()
LiveController.drive = lambda self, states, now_ns, is_fresh, **rest: honest(
    self, states, now_ns, is_fresh=bool(states) if next(calls) > 190 else is_fresh, **rest)
"""
TICKS_ON_STATES = """
from metactl_ros.ros import controller_node
Timing = controller_node.Timing
controller_node.Timing = lambda **given: Timing(**given | {'ticks_on_states': True})
"""
ONE_STATE_PER_TICK = """
from metactl_ros.runtime.joint_states import Inbox
honest = Inbox.take
def take(self, timeout_s=0.0):
    first, *rest = honest(self, timeout_s) or [None]
    self._arrivals.extendleft(reversed(rest))
    return [] if first is None else [first]
Inbox.take = take
"""
OPEN_GATE = """
from metactl_ros.runtime.joint_states import StateGate
StateGate._objection = StateGate._out_of_step = lambda *_: None
"""
NO_NEW_TIMELINE = """
from metactl_ros.runtime import joint_states
joint_states.ADOPT_AFTER = 10**9
"""
NAMES_UNCHECKED = """
from metactl_ros.runtime import joint_states
joint_states.find_joints = lambda names, wanted: list(range(len(wanted)))
"""
NUMBERS_UNCHECKED = """
import numpy as np
from metactl_ros.control import inputs, law
from metactl_ros.runtime import joint_states
joint_states._pick = lambda values, field, names, places: np.array([values[p] for p in places])
def unchecked(self, state, goal):
    q, qd, fine = state.q_rad, state.qd_radps, np.ones(state.q_rad.shape[:-1], dtype=bool)
    at = law.TrackingState(q, qd, goal.q_rad, goal.qd_radps, goal.qdd_radps2)
    error = law.tracking_error(self._law, at)
    return inputs.View(at, fine, fine, fine, self._body.at(q, qd), error)
inputs.InputFilter._view = unchecked
"""
NO_WARM_UP = """
from dataclasses import replace
from metactl_ros.runtime import controller
controller.with_full_window = lambda settings: replace(
    settings, modes=replace(settings.modes, warmup_ticks=0))
"""
FLAPS_FOR_EVER = """
from dataclasses import replace
from metactl_ros.control import modes
honest = modes.next_mode
modes.next_mode = lambda settings, *rest: honest(
    replace(settings, fault_after_degradations_per_s=10**6), *rest)
"""
NO_RATE_LIMIT = """
from itertools import count
from metactl_ros.control import loop
honest, calls = loop.effort_box, count()
loop.effort_box = lambda before, most, reach: honest(
    before, most, reach if next(calls) < 150 else 1e9 + reach)
"""
"""From 1.5 s on: the first tick in NOMINAL would be noticed as well, and be no proof."""
UNGUARDED = """
from metactl_ros.control.guard import Guard
Guard.see = lambda self, *given, **named: None
"""
STOPS_FOR_EVER = """
from dataclasses import replace
from metactl_ros.control import modes
from metactl_ros.control.guard import Guard
Guard.see = lambda self, *given, **named: None
honest = modes.next_mode
modes.next_mode = lambda settings, *rest: honest(replace(settings, stop_settle_s=1e9), *rest)
"""
CUTS_EACH_JOINT = """
import numpy as np
from metactl_ros.control import law
law.saturate = lambda hold, wanted, low, high: np.clip(wanted, low, high)
"""
BELIEVES_STAMPS = """
from metactl_ros.control.guard import Guard
from metactl_ros.runtime.joint_states import StateGate
Guard.see = lambda self, *given, **named: None
StateGate._out_of_step = StateGate._note_lost = lambda *_: None
"""
HEARS_EVERYBODY = """
from metactl_ros.runtime.state_intake import Contradictions, SourceWatch, Streams
Contradictions.were_found = Streams.are_several = lambda *_: False
Streams.receive = lambda *_: True
SourceWatch.poll = lambda *_: None
"""
JOINS_IN = """
from metactl_ros.runtime.state_intake import SourceWatch
from metactl_ros.ros.supervisor import Supervisor
SourceWatch.poll = lambda *_: None
Supervisor.require_sole_publisher = lambda self, *given, **named: None
"""
NEVER_AWAY = """
from metactl_ros.runtime.control_thread import ControlThread
honest = ControlThread._tick
ControlThread._tick = lambda self, arrivals, now_ns, late_ns: honest(self, arrivals, now_ns, 0)
"""
BELIEVES_EFFORTS = """
from metactl_ros.runtime import state_intake
state_intake.effort_doubt = lambda *_: ''
"""
FOLLOWS_ANYTHING = """
import numpy as np
from metactl_ros.motion.reference import MotionBounds
from metactl_ros.runtime import reference_source
honest, most = reference_source.path_within, np.full(2, np.inf)
any_size = MotionBounds(-most, most, most, most)
reference_source.require_points_within = lambda *_: None
reference_source.path_within = lambda knots, present, since_s, limits, names: honest(
    knots, present, since_s, any_size, names)
"""
ANSWERS_BESIDE_CONTROL = """
from rcl_interfaces.srv import DescribeParameters, GetParameters
from metactl_ros.ros.controller_node import LoopNode
honest = LoopNode.__init__
def begin(self, front):
    honest(self, front)
    for kind, name in ((GetParameters, 'get'), (DescribeParameters, 'describe')):
        self.create_service(kind, f'controller/{name}_parameters', lambda _, answer: answer)
LoopNode.__init__ = begin
"""
LISTENS_BESIDE_CONTROL = """
from trajectory_msgs.msg import JointTrajectory
from metactl_ros.ros.controller_node import LoopNode
honest = LoopNode.__init__
def begin(self, front):
    honest(self, front)
    self.create_subscription(JointTrajectory, 'controller/joint_trajectory', lambda _: None, 1)
LoopNode.__init__ = begin
"""
FORGIVES_LEAPS = """
from metactl_ros.runtime import state_intake
state_intake.REPORTED = {}
"""
CLEARS_ALWAYS = """
from metactl_ros.runtime import operator_requests
operator_requests.CLEAR_EVERY_NS = 0
"""
FIXED_GAINS = """
from metactl_ros.runtime.controller import LiveController
begin = LiveController.__init__
LiveController.__init__ = lambda self, arm, settings, _, *rest: begin(
    self, arm, settings, None, *rest)
"""
NONSENSE_UNSHIELDED = """
import numpy as np
from metactl_ros.control import loop
from metactl_ros.runtime import controller
random = np.random.default_rng(1)
controller.propose = lambda policy, window, size: random.uniform(-1.0, 1.0, size)
Shield = loop.Shield
loop.Shield = lambda gain_map, nominal, _: Shield(gain_map, nominal, 'count')
"""
SLEEPS_A_PERIOD = """
import time
from metactl_ros.runtime import control_thread
def sleep(_):
    time.sleep(0.005)  # twice a tick
    return time.monotonic_ns()
control_thread.sleep_until = sleep
"""
NO_REJOINING = """
from metactl_ros.runtime.reference_source import MotionSource
honest = MotionSource.rejoin
def begin(self, state):
    self._begin_ns = state.stamp_ns
    honest(self, state)
MotionSource.begin, MotionSource.rejoin = begin, lambda self, state: None
"""
NO_WATCHDOG = """
from metactl_ros.ros.simulated_robot import FreeRunningRobot
honest = FreeRunningRobot.__init__
def begin(self, *given):
    honest(self, *given)
    self._timeout_s = 1e9
FreeRunningRobot.__init__ = begin
"""


class Mutant(NamedTuple):
    """A protection that is missing."""

    says: str
    code: str
    processes: tuple[str, ...] = CONTROLLER


MUTANTS = {
    'bias': Mutant('no limit of the effort rate', NO_RATE_LIMIT),
    'brake_engages': Mutant('each joint is cut to its limit alone', CUTS_EACH_JOINT),
    'burst': Mutant('one state per tick, the rest waits', ONE_STATE_PER_TICK),
    'clock_fast': Mutant('stamps are believed, signals not compared', BELIEVES_STAMPS),
    'clock_jump': Mutant('the gate admits every state', OPEN_GATE),
    'clock_jump_back': Mutant('a new timeline is never begun', NO_NEW_TIMELINE),
    'clock_ninety': Mutant('stamps are believed, signals not compared', BELIEVES_STAMPS),
    'clock_slow': Mutant('stamps are believed, signals not compared', BELIEVES_STAMPS),
    'clock_sticks': Mutant('stamps are believed, signals not compared', BELIEVES_STAMPS),
    'cpu_load': Mutant('sleeps for a period, not until a deadline', SLEEPS_A_PERIOD),
    'delay': Mutant('no warm-up', NO_WARM_UP),
    'drives_off': Mutant('signals are not compared', UNGUARDED),
    'drop': Mutant('ticks only when a state comes', TICKS_ON_STATES),
    'echoed_states': Mutant('nobody counts who publishes', HEARS_EVERYBODY),
    'effort_milliamperes': Mutant('every measured effort is believed', BELIEVES_EFFORTS),
    'flood_clear_context': Mutant('the context is cleared whenever asked', CLEARS_ALWAYS),
    'flood_parameters': Mutant('the process that controls is asked', ANSWERS_BESIDE_CONTROL),
    'flood_trajectories': Mutant('the process that controls listens', LISTENS_BESIDE_CONTROL),
    'freeze': Mutant('signals are not compared', UNGUARDED),
    'frozen_for_good': Mutant('signals are not compared', UNGUARDED),
    'frozen_joint': Mutant('signals are not compared', UNGUARDED),
    'frozen_while_held': Mutant('signals are not compared', UNGUARDED),
    'friction_step': Mutant('fixed gains instead of learned ones', FIXED_GAINS),
    'glitch': Mutant('the gate admits every state', OPEN_GATE),
    'jammed_joint': Mutant('signals are not compared', UNGUARDED),
    'jitter': Mutant('a tick without a new state is blind', IMPATIENT),
    'kill_controller': Mutant('the robot has no watchdog', NO_WATCHDOG, PLANT),
    'kill_plant': Mutant('the reference does not wait for the arm', NO_REJOINING),
    'latency': Mutant('signals are not compared, STOP lasts for ever', STOPS_FOR_EVER),
    'nan': Mutant('numbers are not checked', NUMBERS_UNCHECKED),
    'payload_drop': Mutant('fixed gains instead of learned ones', FIXED_GAINS),
    'position_leap': Mutant('leaps are forgiven', FORGIVES_LEAPS),
    'quantise': Mutant('no limit of the effort rate', NO_RATE_LIMIT),
    'rename': Mutant('joints are told by their place', NAMES_UNCHECKED),
    'reorder': Mutant('the gate admits every state', OPEN_GATE),
    'second_commands': Mutant('nobody counts who publishes', HEARS_EVERYBODY),
    'second_controller': Mutant('a controller joins another', JOINS_IN),
    'second_states': Mutant('nobody counts who publishes', HEARS_EVERYBODY),
    'sigstop_controller': Mutant('the robot has no watchdog', NO_WATCHDOG, PLANT),
    'sigstop_controller_1s': Mutant('who was away goes on as if not', NEVER_AWAY),
    'sigstop_controller_3s': Mutant(
        'who was away goes on as if not, and old states are believed',
        NEVER_AWAY + BELIEVES_OLD_STATES.replace('honest', 'fresh'),
    ),
    'sigstop_plant': Mutant('no warm-up', NO_WARM_UP),
    'sign_flip': Mutant('signals are not compared', UNGUARDED),
    'silence': Mutant('old states are believed', BELIEVES_OLD_STATES),
    'silence_flapping': Mutant('flapping is not counted', FLAPS_FOR_EVER),
    'tau_z_drift': Mutant('fixed gains instead of learned ones', FIXED_GAINS),
    'torque_loss': Mutant('nonsense is proposed, the shield only counts', NONSENSE_UNSHIELDED),
    'trajectory_far': Mutant('trajectories are not checked', FOLLOWS_ANYTHING),
    'trajectory_fast': Mutant('trajectories are not checked', FOLLOWS_ANYTHING),
    'trajectory_leap': Mutant('trajectories are not checked', FOLLOWS_ANYTHING),
    'velocity_degrees': Mutant('signals are not compared, STOP lasts for ever', STOPS_FOR_EVER),
    'velocity_sign': Mutant('signals are not compared', UNGUARDED),
    'velocity_zero': Mutant('signals are not compared', UNGUARDED),
}
"""By the name of the scenario that must notice."""


def mutated(mutant):
    """Return a function like `processes.commands` whose processes lack a protection."""

    def commands_of(setup):
        lines = commands(setup)
        for process in mutant.processes:
            executable, _, module, *arguments = lines[process]
            start = f'import sys\nfrom {module} import main\n{mutant.code}\nsys.exit(main())'
            lines[process] = [executable, '-c', start, *arguments]
        return lines

    return commands_of


def run(name, out):
    """Run a scenario without its protection; return what the table says of it."""
    (file,) = chosen_scenarios([name])
    scenario, mutant = load_scenario(file), MUTANTS[name]
    for _ in range(ATTEMPTS):
        outcome = run_judged(file, scenario, out / name, mutated(mutant), attempts=1)
        unmet = [verdict for verdict in outcome.verdicts if not verdict.has_passed]
        if outcome.stalls_s and not outcome.stalls_s[-1]:
            break
    if any(verdict.demand == CAN_BE_RUN for verdict in unmet):
        raise ConfigError(f'hil_mutants: {name} could not be run; see {out / name}.')
    failed = [f'{verdict.demand}: found {verdict.found}' for verdict in unmet]
    return {
        'scenario': name,
        'protection': scenario.protection,
        'mutant': mutant.says,
        'is_noticed': bool(failed),
        'longest_stall_s': outcome.stalls_s[-1],
        'failed_expectations': failed,
    }


def kept_mutants(path):
    """Return what a file says of mutants that were run before."""
    return json.loads(path.read_text())['mutants'] if path.is_file() else []


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('names', nargs='*', default=sorted(MUTANTS), metavar='NAME')
    parser.add_argument('--out', type=Path, default=Path('runs/hil_mutants'))
    parser.add_argument('--results', type=Path, default=Path('results/hil_mutants.json'))
    parser.add_argument('--page', type=Path, default=Path('docs/faults.md'))
    args = parser.parse_args()
    if unknown := set(args.names) - set(MUTANTS):
        raise ConfigError(f'hil_mutants: no mutant for {sorted(unknown)}; see MUTANTS.')
    table = Table('scenario', 'protection', 'mutant', 'failed expectation')
    rows = []
    for name in args.names:
        row = run(name, args.out)
        rows.append(row)
        first = row['failed_expectations'][0] if row['is_noticed'] else 'NONE: it survived'
        sys.stderr.write(f'{name}: {first}\n')
        table.add_row(name, row['protection'], row['mutant'], first)
    kept = [row for row in kept_mutants(args.results) if row['scenario'] not in args.names]
    every = sorted([*kept, *rows], key=lambda row: row['scenario'])
    write_json(args.results, {'mutants': every} | provenance(load_settings()))
    args.page.write_text(page())
    Console().print(table)
    return 0 if all(row['is_noticed'] for row in rows) else 1


if __name__ == '__main__':
    sys.exit(main())
