# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""Simulated arms that are guided by hand: what pushes them is added to the effort."""

from typing import NamedTuple

import numpy as np

from metactl_ros.baselines import load_classical
from metactl_ros.control.loop import ControlLoop
from metactl_ros.motion.reference import Hold
from metactl_ros.settings import load_settings, make_plant
from metactl_ros.signals import seconds
from metactl_ros.sim.plant import PlantStart
from metactl_ros.sim.rollout import without_warmup

ARMS = ('two_link', 'fr3', 'ur5e')


class Run(NamedTuple):
    """One row per tick."""

    q_rad: np.ndarray
    """The true ones, after the tick."""
    qd_radps: np.ndarray
    modes: np.ndarray
    causes: np.ndarray
    effort_nm: np.ndarray


class GuidedArm:
    """An arm of a name with all that it has by default."""

    def __init__(self, name):
        self.settings = load_settings(name)
        self.arm, limits = self.settings.arm, self.settings.arm.limits
        self.controller, _ = load_classical(
            'gravity_compensation', self.settings.controller, None, 0.0, self.arm
        )
        self.guiding = self.controller.guiding
        width = np.asarray(self.guiding.wall_width_rad)
        self.lower_rad = np.maximum(limits.lower_rad + width, -np.pi)
        self.upper_rad = np.minimum(limits.upper_rad - width, np.pi)
        self.middle_rad = 0.5 * (self.lower_rad + self.upper_rad)
        self.effort_nm = np.array(limits.effort_nm)
        self.payload_kg = self.settings.plant.task.payload_max_kg
        self.plant_name = 'rk4' if name == 'two_link' else 'pinocchio'

    def loop(self, controller=None):
        return ControlLoop(self.arm, without_warmup(controller or self.controller))

    def run(self, q_rad, num_ticks, payload_kg=0.0, stated_kg=None, push_nm=lambda t_s: 0.0):
        """Let go of the arm at rest, its motors giving what holds the stated payload."""
        stated_kg = payload_kg if stated_kg is None else stated_kg
        loop, plant = self.loop(), make_plant(self.plant_name, self.settings)
        zero, q = np.zeros(len(q_rad)), np.array(q_rad)
        start = PlantStart(
            q, zero, zero, np.array(payload_kg), np.array(2.0), np.array(0, dtype=np.int64)
        )
        state = plant.reset(start)
        loop.reset(state, self.arm.body(stated_kg).at(q, zero).gravity)
        rows = []
        for _ in range(num_ticks):
            reference = Hold(state.q_rad).at(0.0)
            loop.observe(state, reference, stated_kg)
            step = loop.actuate(loop.nominal_action, state, reference, state.stamp_ns)
            state = plant.step(step.effort_nm + push_nm(seconds(state.stamp_ns)))
            row = plant.true_q_rad, state.qd_radps, step.modes, step.causes, step.effort_nm
            rows.append([np.copy(x) for x in row])
        return Run(*map(np.array, zip(*rows, strict=True)))
