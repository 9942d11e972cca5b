# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""Two-link arms in torch, a batch of different ones: the closed form of `dynamics/two_link.py`.

Leading axes are (B,) or (B, K): K hypotheses of each arm. M, C and g are linear in the payload, so
that an arm is its constants without payload and what one kilogram adds to them.
"""

from typing import NamedTuple

import torch
from torch import Tensor


class Lumped(NamedTuple):
    """a1, a2, a3 in kg m^2, b1, b2 in N m, as in `TwoLinkBody`; each (B,) or (B, K)."""

    a1: Tensor
    a2: Tensor
    a3: Tensor
    b1: Tensor
    b2: Tensor


class Arms(NamedTuple):
    """A batch of arms."""

    empty: Lumped
    """Without payload, each (B,)."""
    per_kg: Lumped
    """What one kilogram at the tip adds, each (B,)."""
    rotor: Tensor
    """Inertia of the rotors as the joints feel it, kg m^2, (B, 2)."""


class Inertia(NamedTuple):
    """The entries of M, each (B,) or (B, K)."""

    M11: Tensor
    M12: Tensor
    M22: Tensor


def lumped(m1: Tensor, m2: Tensor, l1: Tensor, l2: Tensor, p: Tensor, g: Tensor) -> Lumped:
    """Return the constants of uniform rods with a point mass p at the tip."""
    return Lumped(
        m1 * l1**2 / 3.0 + (m2 + p) * l1**2,
        m2 * l2**2 / 3.0 + p * l2**2,
        l1 * l2 * (m2 / 2.0 + p),
        g * l1 * (m1 / 2.0 + m2 + p),
        g * l2 * (m2 / 2.0 + p),
    )


def loaded(arms: Arms, payload_kg: Tensor) -> Lumped:
    """Return the constants with a payload, (B,) or (B, K)."""
    shape = (-1, *(1,) * (payload_kg.dim() - 1))
    return Lumped(
        *(
            a.view(shape) + payload_kg * b.view(shape)
            for a, b in zip(arms.empty, arms.per_kg, strict=True)
        )
    )


def inertia(body: Lumped, q: Tensor, armature: Tensor) -> Inertia:
    """Return M(q) plus a diagonal; q and armature are (B, 2) or (B, K, 2)."""
    coupling = body.a3 * torch.cos(q[..., 1])
    M12 = body.a2 + coupling
    return Inertia(body.a1 + M12 + coupling + armature[..., 0], M12, body.a2 + armature[..., 1])


def bias(body: Lumped, q: Tensor, v: Tensor) -> Tensor:
    """Return C(q, v) v + g(q), N m, of the shape of q."""
    elbow = body.b2 * torch.cos(q[..., 0] + q[..., 1])
    shoulder = body.b1 * torch.cos(q[..., 0]) + elbow
    h = body.a3 * torch.sin(q[..., 1])
    v1, v2 = v[..., 0], v[..., 1]
    return torch.stack((shoulder - h * v2 * (2.0 * v1 + v2), elbow + h * v1 * v1), -1)


def apply(M: Inertia, x: Tensor) -> Tensor:
    """Return M x."""
    x1, x2 = x[..., 0], x[..., 1]
    return torch.stack((M.M11 * x1 + M.M12 * x2, M.M12 * x1 + M.M22 * x2), -1)


def solve(M: Inertia, t: Tensor) -> Tensor:
    """Return M^-1 t."""
    t1, t2 = t[..., 0], t[..., 1]
    scale = 1.0 / (M.M11 * M.M22 - M.M12 * M.M12)
    return torch.stack((M.M22 * t1 - M.M12 * t2, M.M11 * t2 - M.M12 * t1), -1) * scale[..., None]


def effective_inertia(M: Inertia) -> Tensor:
    """Return 1 / (M^-1)_ii: what a joint feels while the others are free, kg m^2."""
    determinant = M.M11 * M.M22 - M.M12 * M.M12
    return torch.stack((determinant / M.M22, determinant / M.M11), -1)
