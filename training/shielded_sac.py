# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
r"""Soft actor-critic under a Lagrangian on the distance to the admissible set.

    actor loss   E[ alpha_ent log pi - min Q ] + beta E[ dist(a, admissible(x)) ]
    beta         <- max(0, beta + rate reward_scale (E[dist] - target))    every gradient step

Stable-baselines3's SAC is the base: its policy, logger, callbacks, save and load work as ever.
Only `train` is its own, for the Lagrangian and for one saving: in the actor loss the critic's
features do not depend on the action, so they are computed without a graph. With beta = 0 a step
equals that of stock SAC.
"""

from typing import Any

import numpy as np
from stable_baselines3 import SAC
from stable_baselines3.common.utils import polyak_update
import torch
from torch.nn import functional

from training.admissible_distance import distance_to_admissible
from training.replay_buffer import ShieldedSamples


class ShieldedSAC(SAC):
    """SAC whose actor also pays for proposals that the shield would have to move."""

    def __init__(
        self,
        *args: Any,
        lagrangian_rate: float = 0.0,
        distance_target: float = 0.0,
        **kwargs: Any,
    ) -> None:
        self.lagrangian_rate = lagrangian_rate
        """Step of beta per unit of distance, reward scale included; zero keeps beta at zero."""
        self.distance_target = distance_target
        self.beta = 0.0
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
            rows.append(self._improve(samples))
            polyak_update(self.critic.parameters(), self.critic_target.parameters(), self.tau)
        self._n_updates += gradient_steps
        self.logger.record('train/n_updates', self._n_updates, exclude='tensorboard')
        for name in rows[0] if rows else ():
            self.logger.record(f'train/{name}', float(np.mean([row[name] for row in rows])))

    def _improve(self, samples: ShieldedSamples) -> dict[str, float]:
        actions, log_prob = self.actor.action_log_prob(samples.observations)
        log_prob = log_prob.reshape(-1, 1)
        entropy_weight, entropy_loss = self._improve_entropy(log_prob)
        critic_loss = self._improve_critic(samples, entropy_weight)
        with torch.no_grad():  # features of the state: no action in them, no graph needed
            features = self.critic.extract_features(
                samples.observations, self.critic.features_extractor
            )
        joined = torch.cat([features, actions], dim=1)
        q_values = torch.cat([q_net(joined) for q_net in self.critic.q_networks], dim=1)
        q_value = torch.min(q_values, dim=1, keepdim=True).values
        distance = distance_to_admissible(actions, samples.normal, samples.offset).mean()
        actor_loss = (entropy_weight * log_prob - q_value).mean() + self.beta * distance
        self.actor.optimizer.zero_grad()
        actor_loss.backward()  # type: ignore[no-untyped-call]
        self.actor.optimizer.step()
        surplus = float(distance.detach()) - self.distance_target
        self.beta = max(0.0, self.beta + self.lagrangian_rate * surplus)
        return {
            'actor_loss': float(actor_loss.detach()),
            'critic_loss': critic_loss,
            'ent_coef': float(entropy_weight),
            'ent_coef_loss': entropy_loss,
            'beta': self.beta,
            'distance': float(distance.detach()),
        }

    def _improve_entropy(self, log_prob: torch.Tensor) -> tuple[torch.Tensor, float]:
        """Return the weight of the entropy, before its own update, and the loss of that update."""
        if self.ent_coef_optimizer is None or self.log_ent_coef is None:
            return self.ent_coef_tensor, 0.0
        weight = torch.exp(self.log_ent_coef.detach())
        surplus = (log_prob + float(self.target_entropy)).detach()
        loss = -(self.log_ent_coef * surplus).mean()
        self.ent_coef_optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        self.ent_coef_optimizer.step()
        return weight, float(loss.detach())

    def _improve_critic(self, samples: ShieldedSamples, entropy_weight: torch.Tensor) -> float:
        with torch.no_grad():
            next_actions, next_log_prob = self.actor.action_log_prob(samples.next_observations)
            next_q = torch.cat(self.critic_target(samples.next_observations, next_actions), dim=1)
            next_value = torch.min(next_q, dim=1, keepdim=True).values
            next_value = next_value - entropy_weight * next_log_prob.reshape(-1, 1)
            target = samples.rewards + (1.0 - samples.dones) * self.gamma * next_value
        current = self.critic(samples.observations, samples.actions)
        loss = 0.5 * torch.stack([functional.mse_loss(q, target) for q in current]).sum()
        self.critic.optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        self.critic.optimizer.step()
        return float(loss.detach())
