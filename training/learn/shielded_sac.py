# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
r"""Soft actor-critic under a Lagrangian on the distance to the admissible set.

    actor loss   E[ alpha_ent log pi - min Q ] + beta E[ dist(a, admissible(x)) ]
    beta         <- max(0, beta + rate reward_scale (E[dist] - target))    every gradient step

The set is the box cut by the shield's half-space, in action space (see control/shield.py). The
distance to a convex set has the gradient (a - a*) / |a - a*|, where a* is the projection: so the
projection itself needs no gradient, and the subgradient 0 is taken inside the set.

Stable-baselines3's SAC is the base: its policy, logger, callbacks, save and load work as ever.
Only `train` is its own, for the Lagrangian and for what stock SAC computes in vain: in the actor
loss the critic's features do not depend on the action, so they need no graph, and the critic's own
gradients are never read. With beta = 0 a step equals that of stock SAC.
"""

import math
from typing import Any

import numpy as np
from stable_baselines3 import SAC
import torch
from torch.nn import functional

from training.learn.replay_buffer import ShieldedSamples

HALF_LOG_TWO_PI = 0.5 * math.log(2.0 * math.pi)
SQUASH_FLOOR = 1e-6
"""Keeps the logarithm of 1 - tanh^2 finite, as SB3 does."""


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
            rows.append(self._improve(samples))
            self._follow()
        self._n_updates += gradient_steps
        self.logger.record('train/n_updates', self._n_updates, exclude='tensorboard')
        for name in rows[0] if rows else ():
            self.logger.record(f'train/{name}', float(np.mean([row[name] for row in rows])))

    def _improve(self, samples: ShieldedSamples) -> dict[str, float]:
        actions, log_prob = self._propose(samples.observations)
        entropy_weight, entropy_loss = self._improve_entropy(log_prob)
        critic_loss = self._improve_critic(samples, entropy_weight)
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
        return {
            'actor_loss': float(actor_loss.detach()),
            'critic_loss': critic_loss,
            'ent_coef': float(entropy_weight),
            'ent_coef_loss': entropy_loss,
            'beta': self.beta,
            'distance': float(distance.detach()),
        }

    def _propose(self, observations: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
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

    def _follow(self) -> None:
        """Let the targets follow the critics by tau: SB3's polyak update, all tensors at once."""
        with torch.no_grad():
            torch._foreach_mul_(self._followers, 1.0 - self.tau)
            torch._foreach_add_(self._followers, self._leaders, alpha=self.tau)

    def _create_aliases(self) -> None:
        super()._create_aliases()
        self._leaders: list[torch.Tensor] = [*self.critic.parameters()]
        self._followers: list[torch.Tensor] = [*self.critic_target.parameters()]

    def _excluded_save_params(self) -> list[str]:
        return [*super()._excluded_save_params(), '_leaders', '_followers']

    def _improve_entropy(self, log_prob: torch.Tensor) -> tuple[torch.Tensor, float]:
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

    def _improve_critic(self, samples: ShieldedSamples, entropy_weight: torch.Tensor) -> float:
        with torch.inference_mode():
            next_actions, next_log_prob = self._propose(samples.next_observations)
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

    Where the set is empty the distance is measured to the corner that violates it least.

    Args:
        action: Shape (B, m); gradients flow to it.
        normal: Shape (B, m), any length.
        offset: Shape (B,).
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
