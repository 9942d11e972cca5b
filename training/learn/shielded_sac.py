# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
r"""Soft actor-critic under a Lagrangian on the distance to the admissible set, and its replay.

    actor loss   E[ alpha_ent log pi - min Q ] + beta E[ dist(a, admissible(x)) ]
    beta         <- max(0, beta + rate reward_scale (E[dist] - target))    every gradient step

The set is the box cut by the shield's half-space, in action space (see control/shield.py). The
distance to a convex set has the gradient (a - a*) / |a - a*|, where a* is the projection: so the
projection itself needs no gradient, and the subgradient 0 is taken inside the set.

Stable-baselines3's SAC is the base: its policy, logger, callbacks, save and load work as ever.
Only `train` is its own, for the Lagrangian and for what stock SAC computes in vain: in the actor
loss the critic's features do not depend on the action, so they need no graph, and the critic's own
gradients are never read. With beta = 0 a step equals that of stock SAC.

The replay buffer stores every row once. Two windows that follow each other share all rows but one,
and stock replay stores both, twice. Here the rows of an episode lie side by side in a ring, each
with its age (steps since the episode began), and a window is W indices: `row - min(age, j)` for
j = W-1 .. 0, which repeats the first row before the episode has W of them, as the context window
does.

    rows   r0 r1 r2 r3 | r0 r1 r2 ...        an episode of T steps has T + 1 rows
    age     0  1  2  3 |  0  1  2

With each transition goes the half-space of admissible actions at its state, for the Lagrangian.
"""

import math
from typing import Any, NamedTuple

from gymnasium import spaces
import numpy as np
from stable_baselines3 import SAC
from stable_baselines3.common.buffers import BaseBuffer, ReplayBuffer
from stable_baselines3.common.vec_env import VecNormalize
import torch
from torch.nn import functional

from metactl_ros.errors import ConfigError

HALF_LOG_TWO_PI = 0.5 * math.log(2.0 * math.pi)
SQUASH_FLOOR = 1e-6
"""Keeps the logarithm of 1 - tanh^2 finite, as SB3 does."""


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
        self._newest, self._is_continuing = -1, False

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
        actions, rewards = self.actions[batch_inds], self.rewards[batch_inds, np.newaxis]
        half_space = self.half_spaces[batch_inds]
        # In the order of `ShieldedSamples`. Indexing by a list has copied: torch may keep it.
        arrays = (windows, actions, next_windows, is_final[:, np.newaxis], rewards)
        both = (half_space[:, :-1], half_space[:, -1])
        return ShieldedSamples(*(self.to_torch(array, copy=False) for array in (*arrays, *both)))


class ShieldedSAC(SAC):
    """SAC whose actor also pays for proposals that the shield would have to move."""

    def __init__(
        self, *args: Any, lagrangian_rate: float = 0.0, distance_target: float = 0.0, **kwargs: Any
    ) -> None:
        self.lagrangian_rate = lagrangian_rate
        """Step of beta per unit of distance, reward scale included; zero keeps beta at zero."""
        self.distance_target = distance_target
        self.beta = 0.0
        self.shield_moved: list[bool] = []
        """Whether the shield moved the proposal, of every step since the last judgement."""
        super().__init__(*args, **kwargs)

    def train(self, gradient_steps: int, batch_size: int = 64) -> None:
        """Update entropy, critics, actor, multiplier and targets, once per gradient step."""
        self.policy.set_training_mode(True)
        optimizers = [self.actor.optimizer, self.critic.optimizer, self.ent_coef_optimizer]
        self._update_learning_rate([o for o in optimizers if o is not None])
        assert self.replay_buffer is not None
        rows = []
        for _ in range(gradient_steps):
            samples: Any = self.replay_buffer.sample(batch_size)
            rows.append(self._gradient_step(samples))
            self._update_targets()
        self._n_updates += gradient_steps
        self.logger.record('train/n_updates', self._n_updates, exclude='tensorboard')
        for name in rows[0] if rows else ():
            self.logger.record(f'train/{name}', float(np.mean([row[name] for row in rows])))

    def _gradient_step(self, samples: ShieldedSamples) -> dict[str, float]:
        actions, log_prob = self._sample_actions(samples.observations)
        entropy_weight, entropy_loss = self._update_entropy(log_prob)
        critic_loss = self._update_critic(samples, entropy_weight)
        with torch.inference_mode():  # features of the state: no action in them, no graph needed
            features = self.critic.extract_features(
                samples.observations, self.critic.features_extractor
            )
        joined = torch.cat([features, actions], dim=1)
        q_values = torch.cat([q_net(joined) for q_net in self.critic.q_networks], dim=1)
        q_value = torch.min(q_values, dim=1, keepdim=True).values
        distance = distance_to_admissible(actions, samples.normal, samples.offset).mean()
        actor_loss = (entropy_weight * log_prob - q_value).mean() + self.beta * distance
        self.actor.optimizer.zero_grad()
        weights = self.actor.optimizer.param_groups[0]['params']
        actor_loss.backward(inputs=weights)  # type: ignore[no-untyped-call]
        self.actor.optimizer.step()
        surplus = float(distance.detach()) - self.distance_target
        self.beta = max(0.0, self.beta + self.lagrangian_rate * surplus)
        said = {'critic_loss': critic_loss, 'ent_coef_loss': entropy_loss, 'beta': self.beta}
        tensors = {'actor_loss': actor_loss, 'ent_coef': entropy_weight, 'distance': distance}
        return said | {name: float(tensor.detach()) for name, tensor in tensors.items()}

    def _sample_actions(self, observations: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return sampled actions, shape (B, m), and their log-probability, shape (B, 1).

        It is SB3's squashed Gaussian. The noise is at hand, so it need not be found again from
        the sample.
        """
        mean, log_std, _ = self.actor.get_action_dist_params(observations)
        noise = torch.randn_like(mean)
        actions = torch.tanh(mean + log_std.exp() * noise)
        squash = torch.log(1.0 - actions.square() + SQUASH_FLOOR)
        surprise = 0.5 * noise.square() + HALF_LOG_TWO_PI + log_std + squash
        return actions, -surprise.sum(dim=1, keepdim=True)

    def _update_targets(self) -> None:
        """Let the targets follow the critics by tau: SB3's polyak update, all tensors at once."""
        with torch.no_grad():
            torch._foreach_mul_(self._targets, 1.0 - self.tau)
            torch._foreach_add_(self._targets, self._online, alpha=self.tau)

    def _create_aliases(self) -> None:
        super()._create_aliases()
        self._online: list[torch.Tensor] = [*self.critic.parameters()]
        self._targets: list[torch.Tensor] = [*self.critic_target.parameters()]

    def _excluded_save_params(self) -> list[str]:
        return [*super()._excluded_save_params(), '_online', '_targets']

    def _update_entropy(self, log_prob: torch.Tensor) -> tuple[torch.Tensor, float]:
        """Return the weight of the entropy, before its own update, and the loss of that update."""
        if self.ent_coef_optimizer is None or self.log_ent_coef is None:
            return self.ent_coef_tensor, 0.0
        value = self.log_ent_coef.detach()
        weight = torch.exp(value)
        # The loss is -log_ent_coef times the mean surplus, so this is its gradient.
        gradient = -(log_prob.detach().mean() + float(self.target_entropy)).reshape(1)
        loss = float(value * gradient)
        self.log_ent_coef.grad = gradient
        self.ent_coef_optimizer.step()
        return weight, loss

    def _update_critic(self, samples: ShieldedSamples, entropy_weight: torch.Tensor) -> float:
        with torch.inference_mode():
            next_actions, next_log_prob = self._sample_actions(samples.next_observations)
            next_q = torch.cat(self.critic_target(samples.next_observations, next_actions), dim=1)
            next_value = torch.min(next_q, dim=1, keepdim=True).values
            next_value = next_value - entropy_weight * next_log_prob
            discounted = (1.0 - samples.dones) * self.gamma * next_value
        target = samples.rewards + discounted
        current = self.critic(samples.observations, samples.actions)
        first, second = (functional.mse_loss(q, target) for q in current)
        loss = 0.5 * (first + second)
        self.critic.optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        self.critic.optimizer.step()
        return float(loss.detach())


def distance_to_admissible(
    action: torch.Tensor, normal: torch.Tensor, offset: torch.Tensor
) -> torch.Tensor:
    """Return the distance of each action to {|a_i| <= 1, normal . a <= offset}, shape (B,).

    Where the set is empty the distance is measured to the corner that violates it least. Gradients
    flow to the action, (B, m); the normal, (B, m), may have any length; the offset is (B,).
    """
    with torch.no_grad():  # most actions are admissible: only the others are projected
        is_outside = (action.abs() > 1.0).any(-1) | ((normal * action).sum(-1) > offset)
        rows = is_outside.nonzero().squeeze(-1)
        nearest = project(action[rows], normal[rows], offset[rows])
    moved = torch.linalg.vector_norm(action[rows] - nearest, dim=-1)
    return torch.zeros_like(offset).index_put((rows,), moved)


def project(proposal: torch.Tensor, normal: torch.Tensor, offset: torch.Tensor) -> torch.Tensor:
    """Return the nearest point of the set for each row, shape (B, m); the shield's closed form."""
    length = torch.linalg.vector_norm(normal, dim=-1, keepdim=True).clamp_min(1e-300)
    normal, offset = normal / length, offset.unsqueeze(-1) / length
    inside = proposal.clamp(-1.0, 1.0)
    is_beyond = (normal * inside).sum(-1, keepdim=True) > offset  # (B, 1)
    slope = torch.where(normal == 0.0, torch.ones_like(normal), normal)
    knots = torch.cat([(proposal - 1.0) / slope, (proposal + 1.0) / slope], dim=-1)  # (B, 2 m)
    at_knots = (proposal.unsqueeze(1) - knots.unsqueeze(2) * normal.unsqueeze(1)).clamp(-1.0, 1.0)
    level = (at_knots * normal.unsqueeze(1)).sum(-1)  # (B, 2 m), falls with the knot
    is_above = level > offset
    low = torch.where(is_above, knots, 0.0).amax(-1, keepdim=True).clamp_min(0.0)
    high = torch.where(is_above, torch.inf, knots).amin(-1, keepdim=True)
    between = 0.5 * (low + torch.where(high < torch.inf, high, low))
    middle = proposal - between * normal
    is_free = middle.abs() < 1.0
    fixed = torch.where(is_free, proposal, middle.sign())
    steepness = torch.where(is_free, normal * normal, 0.0).sum(-1, keepdim=True)
    surplus = (normal * fixed).sum(-1, keepdim=True) - offset
    mu = torch.where(steepness > 0.0, surplus / steepness.clamp_min(1e-300), low)
    moved = (proposal - torch.minimum(torch.maximum(mu, low), high) * normal).clamp(-1.0, 1.0)
    return torch.where(is_beyond, moved, inside)
