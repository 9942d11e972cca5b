# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""Sensors that fail, in process: which mode the controller takes, when, and why.

    python examples/fault.py

Between the arm and the controller is a line on which things go wrong, as in `metactl hil` but
without ROS. One sees how an encoder that hangs becomes a FAULT with zero torque, and how a state
that stays away for a while makes the controller BLIND, until it has seen enough to go on.
"""

import numpy as np

from metactl_ros.control.loop import ControlLoop
from metactl_ros.control.modes import Cause, Health, Mode
from metactl_ros.settings import load_settings, make_plant
from metactl_ros.signals import period_ns_of, seconds
from metactl_ros.sim.fault_line import FaultLine, StateMessage
from metactl_ros.sim.faults import Fault, FaultSchedule
from metactl_ros.sim.task import draw_evaluation

settings = load_settings()
period_ns = period_ns_of(settings.controller.law.rate_hz)
episode = draw_evaluation(
    settings.plant.task, seed=42, payload_kg=0.75, num_rollouts=1, tau_z_s=2.0
).of_arm(0)


def watch(fault: Fault) -> None:
    """Print every mode of five seconds with a fault."""
    print(f'{fault.kind} at {fault.at_s} s:')
    plant, loop = make_plant('rk4', settings), ControlLoop(settings.arm, settings.controller)
    line, schedule = FaultLine(period_ns, seed=0), FaultSchedule([fault])
    seen = true = plant.reset(episode.start)
    loop.reset(seen)
    effort_nm, mode = np.zeros(2), None
    for _ in range(500):
        message = StateMessage(true.stamp_ns, settings.arm.joint_names, true, effort_nm)
        arrived = line.apply(message, schedule.active(true.stamp_ns))
        health = Health(state_is_fresh=bool(arrived))
        seen = arrived[-1].state if arrived else seen
        reference = episode.reference.at(seconds(true.stamp_ns))
        loop.observe(seen, reference, float(episode.payload_estimate_kg))
        step = loop.actuate(loop.nominal_action, seen, reference, true.stamp_ns, health)
        if int(step.modes) != mode:
            mode = int(step.modes)
            why = Cause(int(step.causes)).name
            print(f'  {seconds(true.stamp_ns):5.2f} s  {Mode(mode).name:8}  {why}')
        effort_nm = step.effort_nm
        true = plant.step(effort_nm)
    print(f'  efforts in the end: {effort_nm.round(1)} N m')


watch(Fault(kind='freeze', at_s=2.0, joint=1))
watch(Fault(kind='silence', at_s=2.0, for_s=0.3))
