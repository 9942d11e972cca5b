# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""Distance of proposed actions to the admissible set, differentiable, for the Lagrangian.

The set is the box cut by the shield's half-space, in action space (see control/shield.py). The
distance to a convex set has the gradient (a - a*) / |a - a*|, where a* is the projection: so the
projection itself needs no gradient, and the subgradient 0 is taken inside the set.
"""

import torch


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
