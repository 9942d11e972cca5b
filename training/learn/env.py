# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""The tracking task as a Gymnasium environment: the control loop with the policy cut out.

    observation   the window, flattened, shape (W F,), raw units
    action        [-1, 1]^m, which `actuate` turns into shielded gains and an effort
    reward        -scale ||e||^2 one control period later, and a penalty for divergence

An episode lasts T and is then truncated; it is terminated only when the arm loses its reference.
"""

from dataclasses import replace
from typing import Any, TypeAlias

import gymnasium
import numpy as np
from numpy.typing import NDArray

from metactl_ros.config import joint_array, PerJoint
from metactl_ros.control.loop import ControlLoop
from metactl_ros.control.shield import Enforcement
from metactl_ros.control.window import feature_names
from metactl_ros.metrics import LOST_ERROR_RAD
from metactl_ros.motion.reference import Sinusoid
from metactl_ros.settings import make_plant, PlantName, Settings
from metactl_ros.signals import ArmState, Array, seconds
from metactl_ros.sim.rollout import for_learning, with_window
from metactl_ros.sim.task import draw_episode, Episode

Observation: TypeAlias = NDArray[np.float32]

# Losing the reference costs as much as staying at that error for ten more steps.
LOST_STEPS = 10


class ArmEnv(gymnasium.Env[Observation, Observation]):
    """One arm, one episode at a time."""

    metadata = {'render_modes': []}  # noqa: RUF012 - Gymnasium's own type

    def __init__(
        self,
        settings: Settings,
        *,
        plant: PlantName,
        tau_z_s: float,
        num_rows: int,
        reward_scale: float,
        warm_start_share: float,
        enforcement: Enforcement = 'enforce',
    ) -> None:
        """Make the plant and the loop; `warm_start_share` of the episodes begin under way."""
        controller = with_window(for_learning(settings.controller), num_rows)
        self._settings, self._tau_z_s = settings, tau_z_s
        self._reward_scale, self._warm_start_share = reward_scale, warm_start_share
        self._plant = make_plant(plant, settings)
        self.loop = ControlLoop(settings.arm, controller, enforcement)
        num_extra = controller.context.num_extra
        size = num_rows * len(feature_names(settings.arm.joint_names, num_extra))
        self.observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (size,), np.float32)
        self.action_space = gymnasium.spaces.Box(-1.0, 1.0, (self.loop.action_size,), np.float32)
        self.drawn_from: dict[str, Any] = {}
        """State of the generator from which the episode under way was drawn."""
        self.actions: list[Observation] = []
        """All actions since: with both, an environment comes to where this one is."""

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Draw a new episode; every draw follows from the seed of the first reset.

        With options={'episode': Episode} it is that one.
        """
        super().reset(seed=seed)
        self.drawn_from, self.actions = dict(self.np_random.bit_generator.state), []
        self._episode = options['episode'] if options and 'episode' in options else self._draw()
        state = self._plant.reset(self._episode.start)
        self.loop.reset(state)
        self._move(state)
        return self._observe(), {}

    def _draw(self) -> Episode:
        episode = draw_episode(self._settings.plant.task, self.np_random, self._tau_z_s)
        if self.np_random.random() >= self._warm_start_share:
            return episode
        gain = self._settings.plant.friction.memory_gain_nmprad
        memory_nm = settled_memory(episode, gain, self._tau_z_s)
        return replace(episode, start=replace(episode.start, memory_nm=memory_nm))

    def step(self, action: Observation) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        """Hold the gains of an action for one control period."""
        self.actions.append(np.array(action, dtype=np.float32))
        proposal = np.asarray(action, dtype=np.float64)
        step = self.loop.actuate(proposal, self._state, self._reference, self._state.stamp_ns)
        self._move(self._plant.step(step.effort_nm))
        error = self._reference.q_rad - self._state.q_rad
        is_lost = not np.all(np.abs(error) < LOST_ERROR_RAD)  # NaN is lost, too
        terms = {
            'tracking': 0.0 if is_lost else -self._reward_scale * float(error @ error),
            'lost': -self._reward_scale * LOST_STEPS * LOST_ERROR_RAD**2 if is_lost else 0.0,
        }
        is_over = seconds(self._state.stamp_ns) >= self._settings.controller.context.horizon_s
        decision, gain_map = step.decision, self.loop.gain_map
        space, offset = decision.half_space, -decision.half_space.excess(gain_map.middle)
        free = np.zeros(self.loop.action_size - gain_map.size)  # the schedule of an estimator
        normal = np.concatenate((space.normal * gain_map.half_width, free))
        info = {
            'reward_terms': terms,
            # Of admissible actions: (normal, offset), shape (m + 1,).
            'half_space': np.append(normal, offset).astype(np.float32),
            'was_moved': bool(decision.was_moved),
            'distance': decision.distance,
        }
        return self._observe(), sum(terms.values()), is_lost, is_over and not is_lost, info

    def close(self) -> None:
        """Close the plant."""
        self._plant.close()

    def _move(self, state: ArmState) -> None:
        self._state = state
        self._reference = self._episode.reference.at(seconds(state.stamp_ns))

    def _observe(self) -> Observation:
        window = self.loop.observe(
            self._state, self._reference, float(self._episode.payload_estimate_kg)
        )
        return window.astype(np.float32).ravel()


def settled_memory(episode: Episode, memory_gain_nmprad: PerJoint, tau_z_s: float) -> Array:
    """Return z of an arm that has followed its sinusoid for ever, at t = 0, in N m, shape (n,).

    z_dot = -z / tau + lambda A w cos(w t + phase) has the periodic solution
    z = lambda A w tau / (1 + (w tau)^2) (cos(w t + phase) + w tau sin(w t + phase)).
    """
    motion = episode.reference
    assert isinstance(motion, Sinusoid)
    turns = motion.omega_radps * tau_z_s
    size = joint_array(memory_gain_nmprad) * motion.amplitude_rad * turns / (1.0 + turns**2)
    return np.asarray(size * (np.cos(motion.phase_rad) + turns * np.sin(motion.phase_rad)))
