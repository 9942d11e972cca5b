# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""A plant that keeps its ground truth, and applies the faults of a robot to itself."""

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from metactl_ros.dynamics.friction import Friction
from metactl_ros.dynamics.two_link import Arm
from metactl_ros.signals import ArmState, Array
from metactl_ros.sim.faults import (
    no_perturbation,
    Perturbation,
    perturbed_conditions,
    perturbed_friction,
    with_stops,
)
from metactl_ros.sim.plant import Plant, PlantAround, PlantStart


class GroundTruthPlant(PlantAround):
    """A plant that keeps its true state and effort, which `SensedPlant` hides.

    It applies the faults of the plant on top of whatever conditions it is told.
    """

    truth: ArmState
    payload_kg: Array
    delivered_nm: Array

    def __init__(self, plant: Plant, arm: Arm, friction: Friction) -> None:
        super().__init__(plant)
        self._arm, self._friction = arm, friction
        self._perturbation = self._unperturbed = no_perturbation(len(arm.joint_names))
        self._effort_share = np.array(self._perturbation.effort_share)

    def reset(self, start: PlantStart) -> ArmState:
        """Begin a new run; nothing has been delivered yet."""
        self.payload_kg, self.delivered_nm = start.payload_kg, np.zeros(0)
        self._told = self._in_force = start.payload_kg, start.tau_z_s
        self._before_ns = 0  # how far the run was when a jam last set the plant anew
        self.truth = self._plant.reset(start)
        if self._perturbation != self._unperturbed:
            self.set_conditions(*self._told)
        return self.truth

    def step(self, effort_nm: Array) -> ArmState:
        """Advance the plant; keep effort and state."""
        self.delivered_nm = self._effort_share * effort_nm
        if any(self._perturbation.is_jammed):
            self.truth = self._step_jammed(np.array(self._perturbation.is_jammed))
        else:
            self.truth = self._continued(self._plant.step(self.delivered_nm))
        return self.truth

    def _step_jammed(self, is_jammed: NDArray[np.bool_]) -> ArmState:
        """Advance a plant whose stops take what the motors give.

        Their torque is the mean of those at both ends of the period; what it still lets a jammed
        joint move is taken back.
        """
        before = self._rested(self.truth, is_jammed)
        memory = self._plant.memory_nm
        first = self._stops_nm(before, memory, is_jammed)
        self._set_anew(before, memory)
        tried = self._rested(self._plant.step(first), is_jammed, before.q_rad)
        last = self._stops_nm(tried, self._plant.memory_nm, is_jammed)
        self._set_anew(before, memory)
        moved = self._continued(self._plant.step(0.5 * (first + last)))
        after = self._rested(moved, is_jammed, before.q_rad)
        self._set_anew(after, self._plant.memory_nm)
        return after

    @staticmethod
    def _rested(
        state: ArmState, is_jammed: NDArray[np.bool_], at_rad: Array | None = None
    ) -> ArmState:
        """Return a state whose jammed joints stand still, at other positions if given."""
        q = state.q_rad if at_rad is None else np.where(is_jammed, at_rad, state.q_rad)
        return ArmState(state.stamp_ns, q, np.where(is_jammed, 0.0, state.qd_radps))

    def _stops_nm(self, state: ArmState, memory_nm: Array, is_jammed: NDArray[np.bool_]) -> Array:
        body = self._arm.body(float(self.payload_kg))
        friction = perturbed_friction(self._friction, self._perturbation.friction_factor)
        return with_stops(body, friction, state, memory_nm, self.delivered_nm, is_jammed)

    def _set_anew(self, state: ArmState, memory_nm: Array) -> None:
        self._before_ns = state.stamp_ns
        motion = (state.q_rad, state.qd_radps, memory_nm)
        self._plant.reset(PlantStart(*motion, *self._in_force, np.asarray(0)))

    def _continued(self, state: ArmState) -> ArmState:
        """Return a state with the time since the start of the run."""
        if not self._before_ns:
            return state
        return replace(state, stamp_ns=self._before_ns + state.stamp_ns)

    def set_conditions(self, payload_kg: Array, tau_z_s: Array) -> None:
        """Change the plant; keep the payload."""
        self._told = payload_kg, tau_z_s
        if self._perturbation.payload_lost_kg or self._perturbation.tau_z_shift_s:
            payload, tau_z = perturbed_conditions(self._perturbation, payload_kg, tau_z_s)
            payload_kg, tau_z_s = np.asarray(payload), np.asarray(tau_z)
        self._plant.set_conditions(payload_kg, tau_z_s)
        self._in_force = payload_kg, tau_z_s
        self.payload_kg = payload_kg

    def set_friction(self, friction: Friction) -> None:
        """Change the friction that a perturbation multiplies."""
        self._friction = friction
        self._plant.set_friction(perturbed_friction(friction, self._perturbation.friction_factor))

    def apply(self, perturbation: Perturbation) -> None:
        """Let faults act on the plant from the next step on."""
        if perturbation == self._perturbation:
            return
        before, self._perturbation = self._perturbation, perturbation
        self._effort_share = np.array(perturbation.effort_share)
        self.set_conditions(*self._told)
        if perturbation.friction_factor != before.friction_factor:
            self.set_friction(self._friction)
