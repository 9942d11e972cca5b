# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""Learns the law through the plant: gradients of tracking over segments of random episodes.

An episode is a batch of worlds for 1.2 or 4 s, cut into segments of 0.4 s; each segment is one
update. What makes it converge:

- Gradients of states are clipped per arm, at three times the median of the batch: an arm near
  instability would otherwise drown all others.
- A lost arm stays in the loss by the delay that it took for true and by how stiff its gains are,
  not by its motion, through which gradients are noise; then it begins anew.
- At first gentle gains act, which lose few arms, until delays are told apart.
- An update whose gradient is ten times the usual size is left out.
"""

from collections.abc import Callable
from dataclasses import dataclass
import statistics
from typing import Any, TypeAlias

import torch
from torch import Tensor

from training.adaptive import segments, worlds
from training.adaptive.network import Shape
from training.adaptive.segments import Adaptive, Counted, Run
from training.adaptive.worlds import World

Tick: TypeAlias = Callable[[Adaptive, World, Run, Tensor], tuple[Run, Counted]]

LOST_RAD = 0.2
"""An arm that is so far off within a segment has lost its reference."""
LONG_TICKS, SHORT_TICKS, LONG_SHARE = 400, 120, 0.3
USUAL = 50
"""Updates over which the usual size of a gradient is taken."""


@dataclass(frozen=True, kw_only=True, slots=True)
class AdaptConfig:
    """A training run; what it is made of decides its result to the bit on one machine."""

    shape: Shape
    seed: int = 1
    updates: int = 1200
    arms: int = 384
    """In a batch."""
    segment_ticks: int = 40
    learning_rate: float = 1.5e-3
    variation_weight: float = 0.25
    first_weight: float = 3.0
    """Of the first segment of an episode, in which the initial error decays."""
    lost_weight: float = 8.0
    """Of what a lost arm is charged with: less than tracking costs, and losing arms would pay."""
    shield_weight: float = 0.3
    """Of what the shield takes back."""
    gentle_updates: int = 100


class Learner:
    """A law, its optimiser and its random numbers, from episode to episode."""

    def __init__(self, config: AdaptConfig, tick: Tick = segments.tick) -> None:
        self.config = config
        torch.manual_seed(config.seed)
        self.law = Adaptive(config.shape)
        self._tick = tick
        self._optimiser = torch.optim.Adam(self.law.parameters(), lr=config.learning_rate)
        self._generator = torch.Generator().manual_seed(90_000 + config.seed)
        self.num_updates = self.num_skipped = 0
        self._sizes: list[float] = []

    @property
    def is_done(self) -> bool:
        """Whether all updates are made."""
        return self.num_updates >= self.config.updates

    def state(self) -> dict[str, Any]:
        """Return all that the next episode depends on."""
        return {
            'law': self.law.state_dict(),
            'optimiser': self._optimiser.state_dict(),
            'generator': self._generator.get_state(),
            'num_updates': self.num_updates,
            'num_skipped': self.num_skipped,
            'sizes': list(self._sizes),
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from a state, as if nothing had happened."""
        self.law.load_state_dict(state['law'])
        self._optimiser.load_state_dict(state['optimiser'])
        self._generator.set_state(state['generator'])
        self.num_updates, self.num_skipped = state['num_updates'], state['num_skipped']
        self._sizes = list(state['sizes'])

    def episode(self) -> dict[str, float]:
        """Run one episode, with one update per segment; return what came of it."""
        config, generator = self.config, self._generator
        world = worlds.draw_world(config.arms, generator)
        motion = worlds.begin_motion(world, generator)
        run = segments.begin(self.law, world, motion, self._trust())
        is_long = bool(torch.rand((), generator=generator) < LONG_SHARE)
        num_segments = max((LONG_TICKS if is_long else SHORT_TICKS) // config.segment_ticks, 1)
        ever_lost = torch.zeros(config.arms, dtype=torch.bool)
        squares, right, losses = [], [], []
        for number in range(num_segments):
            noise = torch.randn(config.segment_ticks, config.arms, 2, generator=generator)
            run, counted = self._segment(world, run, noise)
            loss, is_lost = segment_loss(config, counted, is_first=number == 0)
            self._update(loss)
            ever_lost |= is_lost
            squares.append(counted.square_error.detach())
            right.append(counted.is_right.mean())
            losses.append(loss.item())
            run = segments.detached(run)
            if is_lost.any():
                run = segments.begun_anew(self.law, world, run, is_lost)
        rmse_mrad = 1e3 * torch.cat(squares).mean(0).sqrt()
        return {
            'update': self.num_updates,
            'ticks': num_segments * config.segment_ticks,
            'loss': statistics.fmean(losses),
            'lost_share': ever_lost.float().mean().item(),
            'median_rmse_mrad': rmse_mrad[~ever_lost].median().item(),
            'delay_known': torch.stack(right)[1:].mean().item() if num_segments > 1 else 0.0,
            'skipped': self.num_skipped,
        }

    def _trust(self) -> float:
        """Return how far the law's own gains act: none at first, then more and more."""
        quarter = 0.25 * self.config.gentle_updates
        return min(max((self.num_updates - quarter) / (3.0 * quarter + 1e-9), 0.0), 1.0)

    def _segment(self, world: World, run: Run, noise: Tensor) -> tuple[Run, Counted]:
        ticks = []
        for row in noise:
            run, counted = self._tick(self.law, world, run, row)
            ticks.append(counted)
            bank, motion = run.bank, run.motion
            states = (bank.q, bank.v, bank.theta, bank.P, bank.payload, *motion[:3])
            for state in states:
                if state.requires_grad:
                    state.register_hook(clipped_per_arm)  # type: ignore[no-untyped-call]
        return run, Counted(*(torch.stack(parts) for parts in zip(*ticks, strict=True)))

    def _update(self, loss: Tensor) -> None:
        """Take one step, unless its gradient is far beyond the usual."""
        config = self.config
        begun = self.num_updates / config.updates
        rate = min((self.num_updates + 1) / 10.0, 1.0)
        if begun >= 0.3:
            rate = 1.0 - 0.95 * (begun - 0.3) / 0.7
        for group in self._optimiser.param_groups:
            group['lr'] = config.learning_rate * rate
        self._optimiser.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        size = float(torch.nn.utils.clip_grad_norm_(self.law.parameters(), 1.0))
        size = size if size < 1e9 else 1e9  # also what is not finite
        usual = statistics.median(self._sizes) if self._sizes else size
        if size <= 10.0 * usual:
            self._optimiser.step()
        else:
            self.num_skipped += 1
        # What is far beyond the usual must not become it.
        self._sizes = [*self._sizes, min(size, 3.0 * usual)][-USUAL:]
        self.num_updates += 1


def clipped_per_arm(gradient: Tensor | None) -> Tensor | None:
    """Return a gradient (B, ...) with no arm above three times the median of the batch."""
    if gradient is None:
        return None
    gradient = torch.nan_to_num(gradient, nan=0.0, posinf=0.0, neginf=0.0)
    sizes = gradient.flatten(1).norm(dim=1)
    most = 3.0 * sizes.median() + 1e-9
    share = most / torch.maximum(sizes, most)
    clipped: Tensor = gradient * share.view(-1, *(1,) * (gradient.dim() - 1))
    return clipped


def segment_loss(
    config: AdaptConfig, counted: Counted, *, is_first: bool
) -> tuple[Tensor, Tensor]:
    """Return the loss of a segment, and which arms are lost in it, (B,).

    Tracking counts by its logarithm: a tenth less of 1 mrad is worth as much as of 10.

    Args:
        config: Weights.
        counted: Of every tick, each (T, B).
        is_first: Whether the episode begins with it.
    """
    with torch.no_grad():
        is_finite = torch.isfinite(counted.square_error).all(0)
        is_finite &= torch.isfinite(counted.variation).all(0)
        is_lost = ~is_finite | (counted.square_error.max(0).values >= LOST_RAD**2)
    # Not only the loss of a lost arm, but what it is computed from: 0 times NaN is NaN.
    square_error, variation, state_loss, moved = (
        torch.where(is_lost, 0.0, part)
        for part in (counted.square_error, counted.variation, counted.state_loss, counted.moved)
    )
    rmse_mrad = 1e3 * torch.sqrt(square_error.mean(0) + 1e-8)
    weight = config.first_weight if is_first else 1.0
    tracking = 3.0 * weight * torch.log(rmse_mrad + 0.7) + 0.05 * torch.relu(rmse_mrad - 15.0)
    delay = 0.2 * counted.delay_loss.mean(0)
    good = tracking + config.variation_weight * variation.mean(0)
    good = good + delay + 0.1 * state_loss.mean(0) + config.shield_weight * moved.mean(0)
    calm = config.lost_weight * (delay + 2.0 * counted.stiffness.mean(0))
    calm = torch.where(torch.isfinite(calm), calm, 0.0)
    return torch.where(is_lost, calm, good).mean(), is_lost
