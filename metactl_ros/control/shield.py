# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
r"""The shield: whatever a policy proposes, what leaves here is admissible.

The admissible set is the gain box cut by the Lyapunov half-space. In normalised coordinates (the
action space of `gain_map`) the shield returns the nearest point of it:

    min |a - p|^2   subject to   -1 <= a <= 1,   n . a <= d

The solution is a(mu) = clip(p - mu n, -1, 1) for the least mu >= 0 with n . a(mu) <= d. The left
side falls with mu and is linear between the 2 m knots where an entry reaches an end of the box, so
mu follows in closed form from the segment that d lies in. No solver, no iteration, batch first.

If the set is empty, or anything is not finite, the nominal gains K_0 come out, with the reason. A
proposal that failed never passes.
"""

from enum import IntEnum
import math
from operator import mul
from typing import Literal, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from metactl_ros.control.gain_map import GainMap
from metactl_ros.control.law import AdmissibleGains, CountedGains, Gains
from metactl_ros.control.lyapunov import HalfSpace
from metactl_ros.signals import Array, Flags, is_all, where_arms

# A proposal farther out than this is no number to work with: rounding would grow with it.
LARGEST_PROPOSAL = 1e3
# How far beyond the half-space, in normalised units, rounding may leave a projection.
TOLERANCE = 1e-9
# A proposal moved by less than this, in normalised units, was not touched.
MOVED = 1e-6

Enforcement: TypeAlias = Literal['enforce', 'count']


class Reason(IntEnum):
    """Why the gains that came out are what they are."""

    ADMITTED = 0
    """The proposal was admissible and passed unchanged."""
    PROJECTED = 1
    """The nearest admissible gains took its place."""
    EMPTY_SET = 2
    """No gains of the box meet the condition: the nominal gains."""
    NOT_FINITE = 3
    """The proposal was NaN, infinite or absurdly large: the nominal gains."""
    NUMERICAL = 4
    """The half-space was not finite, or the projection missed it: the nominal gains."""


class ShieldDecision(NamedTuple):
    """The gains that came out, and the certificate that goes with them; one entry per arm."""

    gains: Gains
    reason: NDArray[np.int64]
    """A `Reason` per arm, shape (...)."""
    half_space: HalfSpace
    """The condition, in physical gains."""
    excess: Array
    """normal . theta + constant of the gains that came out, shape (...): admissible up to 0."""
    distance: Array
    """How far the proposal was moved, in normalised units, shape (...); infinite if replaced."""

    @property
    def is_feasible(self) -> Flags:
        """Whether gains of the box meet the condition at all; shape (...)."""
        return np.asarray(self.reason != Reason.EMPTY_SET)

    @property
    def was_moved(self) -> Flags:
        """Whether the shield was active: moved the proposal or replaced it; shape (...)."""
        return np.asarray(self.distance > MOVED)


class Shield:
    """Admits gains for one gain map and one set of nominal gains, shape (m,).

    `enforcement='count'` is for simulation studies only: the proposal passes, kept inside the box,
    and the decision reports what the shield would have done. No node can ask for it.
    """

    def __init__(
        self, gain_map: GainMap, nominal: Array, enforcement: Enforcement = 'enforce'
    ) -> None:
        self._map = gain_map
        self._nominal = nominal
        self._enforcement = enforcement

    def admit(self, proposal: Array, half_space: HalfSpace) -> ShieldDecision:
        """Return admissible gains nearest to a proposal in action space, shape (..., m)."""
        normal = half_space.normal * self._map.half_width
        offset = -half_space.excess(self._map.middle)
        project = project_one if proposal.ndim == 1 else project_all
        action, reason, distance = project(proposal, normal, offset)
        gains: Gains
        if self._enforcement == 'count':
            passed = np.clip(np.nan_to_num(proposal), -1.0, 1.0)
            gains = CountedGains(self._map.gains(passed))
        else:
            is_found = reason <= Reason.PROJECTED
            theta = self._map.gains(action)
            if not is_all(is_found):
                theta = where_arms(is_found, theta, self._nominal)
            gains = AdmissibleGains(theta)
        return ShieldDecision(gains, reason, half_space, half_space.excess(gains.theta), distance)


def project_all(
    proposal: Array, normal: Array, offset: Array
) -> tuple[Array, NDArray[np.int64], Array]:
    """Return the point of {|a_i| <= 1, normal . a <= offset} nearest to each proposal of a batch.

    Shapes (..., m), (..., m) and (...). With it come a `Reason` and the distance to the proposal.
    Where there is no such point, or something is not finite, the distance is infinite.
    """
    with np.errstate(over='ignore', invalid='ignore'):
        length = np.sqrt(np.sum(normal * normal, axis=-1))
        scale = 1.0 / np.where(length > 0.0, length, 1.0)
        normal, offset = normal * scale[..., np.newaxis], offset * scale
        is_sound = np.isfinite(length + offset)
        has_numbers = (np.abs(proposal) <= LARGEST_PROPOSAL).all(axis=-1)
        is_feasible = -np.sum(np.abs(normal), axis=-1) <= offset
        usable = is_sound & has_numbers & is_feasible
        keep = usable[..., np.newaxis]
        wanted = np.where(keep, proposal, 0.0)
        action = _project(wanted, np.where(keep, normal, 0.0), np.where(usable, offset, 0.0))
        is_sound &= ~(usable & (np.sum(normal * action, axis=-1) - offset > TOLERANCE))
    usable = usable & is_sound
    distance = np.where(usable, np.sqrt(np.sum(np.square(action - wanted), axis=-1)), np.inf)
    reason = np.where(distance == 0.0, int(Reason.ADMITTED), int(Reason.PROJECTED))
    reason = np.where(is_feasible, reason, int(Reason.EMPTY_SET))
    reason = np.where(has_numbers, reason, int(Reason.NOT_FINITE))
    return action, np.where(is_sound, reason, int(Reason.NUMERICAL)), distance


def _project(proposal: Array, normal: Array, offset: Array) -> Array:
    """Return the nearest points of a batch; normals have length one or zero, no set is empty."""
    action = _to_box(proposal)
    is_beyond = np.sum(normal * action, axis=-1) > offset
    action[is_beyond] = _to_plane(proposal[is_beyond], normal[is_beyond], offset[is_beyond])
    return action


def _to_plane(proposal: Array, normal: Array, offset: Array) -> Array:
    """Return the nearest points of those proposals that the half-space excludes, shape (k, m)."""
    # Knots: the mu at which entry i of p - mu n is at +1 or -1. Where n_i = 0 any number will do,
    # for a needless knot only splits a segment.
    slope = np.where(normal == 0.0, 1.0, normal)
    knots = np.concatenate(((proposal - 1.0) / slope, (proposal + 1.0) / slope), axis=-1)
    at_knots = proposal[..., np.newaxis, :] - knots[..., np.newaxis] * normal[..., np.newaxis, :]
    level = np.sum(_to_box(at_knots) * normal[..., np.newaxis, :], axis=-1)  # (..., 2 m)
    # The segment that holds mu: from the last knot beyond the half-space to the first within.
    is_above = level > offset[..., np.newaxis]
    low = np.maximum(np.where(is_above, knots, 0.0).max(axis=-1), 0.0)
    high = np.where(is_above, np.inf, knots).min(axis=-1)
    between = 0.5 * (low + np.where(high < np.inf, high, low))
    middle = proposal - between[..., np.newaxis] * normal
    is_free = np.abs(middle) < 1.0
    fixed = np.where(is_free, proposal, np.sign(middle))
    steepness = np.sum(np.where(is_free, normal * normal, 0.0), axis=-1)
    surplus = np.sum(normal * fixed, axis=-1) - offset
    mu = np.where(steepness > 0.0, surplus / np.where(steepness > 0.0, steepness, 1.0), low)
    mu = np.minimum(np.maximum(mu, low), high)
    return _to_box(proposal - mu[..., np.newaxis] * normal)


def project_one(
    proposal: Array, normal: Array, offset: Array
) -> tuple[Array, NDArray[np.int64], Array]:
    """Do the same as `project_all` for one arm on plain floats, sweeping the knots in order.

    A robot has one arm and ten milliseconds: on arrays this short, NumPy's cost per call would be
    most of the control step. A test holds the two against each other and against a QP solver.
    """
    action, reason, distance = _project_one(proposal.tolist(), normal.tolist(), float(offset))
    return np.array(action), np.asarray(int(reason)), np.asarray(distance)


def _project_one(
    proposal: list[float], normal: list[float], offset: float
) -> tuple[list[float], Reason, float]:
    length = math.sqrt(sum([n * n for n in normal]))
    if not (math.isfinite(length) and math.isfinite(offset)):
        return [0.0] * len(proposal), Reason.NUMERICAL, math.inf
    if not all([abs(p) <= LARGEST_PROPOSAL for p in proposal]):
        return [0.0] * len(proposal), Reason.NOT_FINITE, math.inf
    if length > 0.0:
        normal, offset = [n / length for n in normal], offset / length
    if -sum(map(abs, normal)) > offset:
        return [0.0] * len(proposal), Reason.EMPTY_SET, math.inf
    inside = [min(max(p, -1.0), 1.0) for p in proposal]
    level = sum(map(mul, normal, inside)) - offset  # of a(mu), at mu = 0, then from knot to knot
    if level <= 0.0:
        action = inside
    else:
        mu = _crossing(proposal, normal, level)
        action = [min(max(p - mu * n, -1.0), 1.0) for p, n in zip(proposal, normal, strict=True)]
        if sum(map(mul, normal, action)) - offset > TOLERANCE:
            return [0.0] * len(proposal), Reason.NUMERICAL, math.inf
    if action == proposal:
        return action, Reason.ADMITTED, 0.0
    return action, Reason.PROJECTED, math.dist(action, proposal)


def _crossing(proposal: list[float], normal: list[float], level: float) -> float:
    """Return the mu at which normal . clip(proposal - mu normal) has fallen by `level`."""
    knots = []  # (mu, change of steepness): an entry enters the open interval, and leaves it
    for p, n in zip(proposal, normal, strict=True):
        if n:
            side = 1.0 if n > 0.0 else -1.0
            leaves = (p + side) / n
            if leaves > 0.0:
                knots += [(max((p - side) / n, 0.0), n * n), (leaves, -n * n)]
    mu, steepness = 0.0, 0.0
    for knot, change in sorted(knots):
        fall = steepness * (knot - mu)
        if level <= fall:
            break
        level -= fall
        mu = knot
        steepness += change
    return mu + level / steepness if steepness > 0.0 else mu


def _to_box(action: Array) -> Array:
    return np.asarray(np.minimum(np.maximum(action, -1.0), 1.0))
