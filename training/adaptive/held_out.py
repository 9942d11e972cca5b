# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""Worlds that nothing learns from: by them the best of a run, and of several runs, is chosen."""

from typing import NamedTuple

import torch

from training.adaptive import segments, worlds
from training.adaptive.bank import NUM_DELAYS
from training.adaptive.learner import LOST_RAD
from training.adaptive.segments import Adaptive

SEED = 20_261
NUM_ARMS, NUM_TICKS = 512, 400
SETTLED_TICK = 150
LOST_LIMIT = 0.025
"""Share of arms: no law with more lost is chosen before one with fewer. Some worlds, such as a
payload that hidden limits cannot hold, lose their arm whatever is done."""
BEGIN_TICKS = 20
"""Not judged for being lost: they hold the initial error, which is no fault of the law."""


class Judgement(NamedTuple):
    """How a law did on the held-out worlds whose delay the bank knows."""

    num_lost: int
    num_arms: int
    log_rmse: float
    """Mean of log(RMSE + 0.7 mrad) of the arms that were not lost."""
    median_rmse_mrad: float
    settled_rmse_mrad: float
    """Median after 1.5 s."""
    variation: float
    """Median change of effort, share of the limits per second."""

    @property
    def num_too_many(self) -> int:
        """Lost arms beyond the limit."""
        return max(self.num_lost - int(LOST_LIMIT * self.num_arms), 0)

    def is_better_than(self, other: 'Judgement') -> bool:
        """Return whether it lost fewer arms beyond the limit, or as many and tracked better."""
        return (self.num_too_many, self.log_rmse) < (other.num_too_many, other.log_rmse)

    def __str__(self) -> str:
        """Return one line."""
        return (
            f'{self.num_lost} of {self.num_arms} lost, median {self.median_rmse_mrad:.2f} mrad, '
            f'after 1.5 s {self.settled_rmse_mrad:.2f}, variation {self.variation:.2f}'
        )


@torch.no_grad()
def judge(law: Adaptive, num_arms: int = NUM_ARMS, num_ticks: int = NUM_TICKS) -> Judgement:
    """Return how a law does; the same worlds every time."""
    generator = torch.Generator().manual_seed(SEED)
    world = worlds.draw_world(num_arms, generator)
    run = segments.begin(law, world, worlds.begin_motion(world, generator))
    squares, changes = [], []
    for _ in range(num_ticks):
        noise = torch.randn(num_arms, 2, generator=generator)
        run, counted = segments.tick(law, world, run, noise)
        squares.append(counted.square_error)
        changes.append(counted.variation)
    error = torch.nan_to_num(torch.stack(squares), nan=torch.inf)
    is_judged = world.delay < NUM_DELAYS
    is_lost = (error[BEGIN_TICKS:].max(0).values >= LOST_RAD**2) & is_judged
    kept = is_judged & ~is_lost
    rmse_mrad = 1e3 * error.mean(0).sqrt()[kept]
    settled_mrad = 1e3 * error[min(SETTLED_TICK, num_ticks // 2) :].mean(0).sqrt()[kept]
    return Judgement(
        num_lost=int(is_lost.sum()),
        num_arms=int(is_judged.sum()),
        log_rmse=torch.log(rmse_mrad + 0.7).mean().item(),
        median_rmse_mrad=rmse_mrad.median().item(),
        settled_rmse_mrad=settled_mrad.median().item(),
        variation=torch.stack(changes).mean(0)[kept].median().item(),
    )
