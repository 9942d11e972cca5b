# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""A replay buffer that stores every row once and gathers windows when they are sampled.

Two windows that follow each other share all rows but one, and stock replay stores both, twice.
Here the rows of an episode lie side by side in a ring, each with its age (steps since the episode
began), and a window is W indices: `row - min(age, j)` for j = W-1 .. 0, which repeats the first
row before the episode has W of them, as the context window does.

    rows   r0 r1 r2 r3 | r0 r1 r2 ...        an episode of T steps has T + 1 rows
    age     0  1  2  3 |  0  1  2

With each transition goes the half-space of admissible actions at its state, for the Lagrangian.
"""

from typing import Any, NamedTuple

from gymnasium import spaces
import numpy as np
from stable_baselines3.common.buffers import BaseBuffer, ReplayBuffer
from stable_baselines3.common.vec_env import VecNormalize
import torch

from metactl_ros.errors import ConfigError


class ShieldedSamples(NamedTuple):
    """A batch as SAC reads it, with the half-space of each state in action space."""

    observations: torch.Tensor
    actions: torch.Tensor
    next_observations: torch.Tensor
    dones: torch.Tensor
    rewards: torch.Tensor
    normal: torch.Tensor
    """Shape (B, m)."""
    offset: torch.Tensor
    """Shape (B,)."""


class WindowReplayBuffer(ReplayBuffer):
    """Replay for one environment whose observation is a flattened window of `num_rows` rows."""

    ARRAYS = ('rows', 'ages', 'row_of', 'actions', 'rewards', 'dones', 'timeouts', 'half_spaces')

    def __init__(
        self,
        buffer_size: int,
        observation_space: spaces.Space[Any],
        action_space: spaces.Space[Any],
        device: torch.device | str = 'auto',
        n_envs: int = 1,
        optimize_memory_usage: bool = False,
        handle_timeout_termination: bool = True,
        *,
        num_rows: int,
    ) -> None:
        BaseBuffer.__init__(
            self, buffer_size, observation_space, action_space, device, n_envs=n_envs
        )
        if n_envs != 1 or optimize_memory_usage or not handle_timeout_termination:
            raise ConfigError(
                'WindowReplayBuffer: stores one environment, with time limits; use n_envs=1, '
                'optimize_memory_usage=False and handle_timeout_termination=True.'
            )
        (size,) = observation_space.shape or (0,)
        if size % num_rows:
            raise ConfigError(
                f'WindowReplayBuffer.num_rows: an observation of {size} numbers is not a window '
                f'of {num_rows} rows; use the window length of the environment.'
            )
        self.num_rows = num_rows
        self.optimize_memory_usage = False
        self.handle_timeout_termination = True
        # Every transition brings one row, every episode one more: at worst two per transition.
        self._ring = 2 * buffer_size + num_rows
        self._back = np.arange(num_rows, -1, -1)
        self.rows = np.zeros((self._ring, size // num_rows), dtype=np.float32)
        self.ages = np.zeros(self._ring, dtype=np.int64)
        self.row_of = np.zeros(buffer_size, dtype=np.int64)
        self.actions = np.zeros((buffer_size, self.action_dim), dtype=np.float32)
        self.rewards = np.zeros(buffer_size, dtype=np.float32)
        self.dones = np.zeros(buffer_size, dtype=np.float32)
        self.timeouts = np.zeros(buffer_size, dtype=np.float32)
        self.half_spaces = np.zeros((buffer_size, self.action_dim + 1), dtype=np.float32)
        self._newest = -1
        self._is_continuing = False

    def add(
        self,
        obs: np.ndarray,
        next_obs: np.ndarray,
        action: np.ndarray,
        reward: np.ndarray,
        done: np.ndarray,
        infos: list[dict[str, Any]],
    ) -> None:
        """Store a transition; the first of an episode also stores the row it begins with."""
        if not self._is_continuing:
            first = obs.reshape(self.num_rows, -1)
            if not np.array_equal(first, np.broadcast_to(first[-1], first.shape)):
                raise ConfigError(
                    'WindowReplayBuffer.add: an episode must begin with its first row repeated; '
                    'reset the environment before adding to an empty buffer.'
                )
            self._append(first[-1], age=0)
        self.row_of[self.pos] = self._newest
        self.actions[self.pos] = action.reshape(-1)
        self.rewards[self.pos] = reward.item()
        self.dones[self.pos] = done.item()
        self.timeouts[self.pos] = infos[0].get('TimeLimit.truncated', False)
        self.half_spaces[self.pos] = infos[0]['half_space']
        self._append(next_obs.reshape(self.num_rows, -1)[-1], age=self.ages[self._newest] + 1)
        self._is_continuing = not bool(done.item())
        self.pos += 1
        if self.pos == self.buffer_size:
            self.full, self.pos = True, 0

    def state(self) -> dict[str, np.ndarray]:
        """Return everything the buffer holds, as arrays."""
        place = (self.pos, self.full, self._newest, self._is_continuing)
        return {name: getattr(self, name) for name in self.ARRAYS} | {'place': np.array(place)}

    def restore(self, state: dict[str, np.ndarray]) -> None:
        """Take back what `state` returned."""
        for name in self.ARRAYS:
            if state[name].shape != getattr(self, name).shape:
                raise ConfigError(
                    f'WindowReplayBuffer.{name}: this buffer has shape '
                    f'{getattr(self, name).shape}, the saved one {state[name].shape}; resume with '
                    'the window and buffer size of the run.'
                )
            setattr(self, name, state[name])
        pos, full, newest, continues = state['place'].tolist()
        self.pos, self.full = pos, bool(full)
        self._newest, self._is_continuing = newest, bool(continues)

    def _append(self, row: np.ndarray, age: int) -> None:
        self._newest = (self._newest + 1) % self._ring
        self.rows[self._newest] = row
        self.ages[self._newest] = age

    def _windows(self, row: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the flattened windows that end with the given rows and with the next ones.

        The two share all rows but one, so W + 1 rows are gathered; shapes (B, W F).
        """
        newest = (row + 1) % self._ring
        back = np.minimum(self.ages[newest][:, np.newaxis], self._back)
        gathered = self.rows[newest[:, np.newaxis] - back]  # (B, W + 1, F); below 0 wraps around
        return gathered[:, :-1].reshape(len(row), -1), gathered[:, 1:].reshape(len(row), -1)

    def _get_samples(  # type: ignore[override]
        self, batch_inds: np.ndarray, env: VecNormalize | None = None
    ) -> ShieldedSamples:
        windows, next_windows = self._windows(self.row_of[batch_inds])
        is_final = self.dones[batch_inds] * (1.0 - self.timeouts[batch_inds])
        half_space = self.to_torch(self.half_spaces[batch_inds], copy=False)
        return ShieldedSamples(  # indexing by a list has copied: torch may keep the memory
            observations=self.to_torch(windows, copy=False),
            actions=self.to_torch(self.actions[batch_inds], copy=False),
            next_observations=self.to_torch(next_windows, copy=False),
            dones=self.to_torch(is_final[:, np.newaxis], copy=False),
            rewards=self.to_torch(self.rewards[batch_inds, np.newaxis], copy=False),
            normal=half_space[:, :-1],
            offset=half_space[:, -1],
        )
