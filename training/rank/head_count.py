# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
r"""How many directions of an operator are worth a head: the paper's Algorithm 1, corrected.

    start    u_1 = leading eigenvector of A, R = A - lambda_1 u_1 u_1^T
    growth   u = leading eigenvector of R, kept if
             g = r_eff(A_{K+1}) - r_eff(A_K) > gamma_add,   A_K = sum_{k <= K} lambda_k u_k u_k^T
             unless pruning would drop it again; then R <- R - lambda u u^T
    pruning  the least u_k^T A u_k / ||A||_F is dropped if below gamma_prune
    gate     m <- rho m + (1 - rho) (grow - prune);  K moves when |m| > 1/2, then m = 0
    stop     K unchanged for n_stable iterations

with r_eff(M) = tr(M)^2 / ||M||_F^2, the participation ratio. As printed, the algorithm deflates
with u u^T, so that R depends on the unit of z; it prunes on R, where every kept direction scores
zero; and it proposes u_1 twice. It measures growth by the fall of r_eff(R), which is negative when
one eigenvalue dominates, because what remains is flatter; `signal='residual'` keeps that measure.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from metactl_ros.config import require_not_negative, require_positive
from metactl_ros.errors import ConfigError
from metactl_ros.signals import Array
from training.rank.temporal_operator import operator_of

Signal: TypeAlias = Literal['retained', 'residual']
NullDraw: TypeAlias = Callable[[Array, Array, np.random.Generator], Array]
"""From samples and a basis (d, r) to the coordinates of noise in that basis, shape (S, m, r)."""

ROUNDING = 1e-12
"""A residual below this share of ||A||_F is rounding, and has no shape worth measuring."""
GATE_LEVEL = 0.5


@dataclass(frozen=True, kw_only=True, slots=True)
class Thresholds:
    """When a direction is worth keeping; the defaults are the paper's, but for the gate."""

    gamma_add: float = 0.05
    gamma_prune: float = 0.01
    num_stable: int = 20
    gate_memory: float = 0.5
    """rho of the exponential average: two equal decisions in a row move K."""

    def __post_init__(self) -> None:
        require_positive('Thresholds', gamma_add=self.gamma_add, num_stable=self.num_stable)
        require_not_negative(
            'Thresholds', gamma_prune=self.gamma_prune, gate_memory=self.gate_memory
        )
        if self.gate_memory**self.num_stable >= 1.0 - GATE_LEVEL:
            raise ConfigError(
                f'Thresholds.gate_memory: a gate of {self.gate_memory} cannot open within '
                f'num_stable = {self.num_stable} iterations; lower it or raise num_stable.'
            )


class HeadCount(NamedTuple):
    """The fixed point of the algorithm."""

    directions: Array
    """Kept directions, orthonormal, shape (K, d)."""
    eigenvalues: Array
    """Their eigenvalues, shape (K,)."""
    growth: tuple[float, ...]
    """Growth signal of every proposal in order, kept or not."""
    num_iterations: int

    @property
    def k_star(self) -> int:
        """K*, the number of heads."""
        return len(self.directions)


def participation_ratio(eigenvalues: Array) -> float:
    """Return (sum lambda)^2 / sum lambda^2, between 1 and their number; 0 if all are zero."""
    largest = np.max(np.abs(eigenvalues), initial=0.0)
    if largest == 0.0:
        return 0.0
    scaled = eigenvalues / largest  # squares of tiny or huge numbers stay in range
    return float(np.sum(scaled) ** 2 / np.sum(scaled**2))


def spectrum(operator: Array) -> tuple[Array, Array]:
    """Return eigenvalues, largest first, shape (d,), and eigenvectors as rows, shape (d, d).

    The operator is symmetric positive semi-definite; what rounding left below zero is zero.
    """
    values, columns = np.linalg.eigh(operator)
    values, rows = values[::-1], columns.T[::-1]
    floor = ROUNDING * max(float(values[0]), 0.0)
    return np.where(values > floor, values, 0.0), rows


def count_heads(operator: Array, thresholds: Thresholds, signal: Signal = 'retained') -> HeadCount:
    """Return the heads of a symmetric positive semi-definite operator, shape (d, d).

    R - lambda u u^T has the eigenpairs of R except (lambda, u). The leading eigenvector of R is
    therefore the next one of A, and one decomposition serves all proposals.

    Always ends: a direction is only kept if pruning would spare it, and what pruning drops scores
    the same when proposed again. K thus only rises, by at most d - 1, or falls from 1 to 0 once.
    """
    values, directions = spectrum(operator)
    would_be_pruned = _contributions(values) < thresholds.gamma_prune
    k, gate, unchanged, num_iterations = 1, 0.0, 0, 0
    growth = [_growth(values, k, signal)]
    while unchanged < thresholds.num_stable:
        num_iterations += 1
        grows = growth[-1] > thresholds.gamma_add and not would_be_pruned[k]
        prunes = bool(would_be_pruned[:k].any())
        gate *= thresholds.gate_memory
        gate += (1.0 - thresholds.gate_memory) * (int(grows) - int(prunes))
        if abs(gate) <= GATE_LEVEL:
            unchanged += 1
            continue
        k += 1 if gate > 0.0 else -1  # the last direction is the one that contributes least
        growth.append(_growth(values, k, signal))
        gate, unchanged = 0.0, 0
    return HeadCount(directions[:k], values[:k], tuple(growth), num_iterations)


def _growth(values: Array, k: int, signal: Signal) -> float:
    """Return the growth signal of direction k + 1; zero if there is none."""
    if signal == 'residual':
        return participation_ratio(values[k:]) - participation_ratio(values[k + 1 :])
    return participation_ratio(values[: k + 1]) - participation_ratio(values[:k])


def _contributions(values: Array) -> Array:
    """Return u_k^T A u_k / ||A||_F = lambda_k / ||A||_F of each direction, shape (d,)."""
    largest = float(values[0])
    if largest == 0.0:
        return values
    scaled: Array = values / largest
    return scaled / np.linalg.norm(scaled)


def bootstrap_k_star(
    samples: Array, thresholds: Thresholds, num_draws: int, rng: np.random.Generator
) -> NDArray[np.int64]:
    """Return K* of operators from samples drawn again with replacement, shape (num_draws,)."""
    draws = (rng.integers(len(samples), size=len(samples)) for _ in range(num_draws))
    return np.array([count_heads(operator_of(samples[d]), thresholds).k_star for d in draws])


def isotropic_noise(samples: Array, basis: Array, rng: np.random.Generator) -> Array:
    """Return rows as long as the samples' in a basis, each pointing anywhere, (S, m, r)."""
    length = np.linalg.norm(samples @ basis, axis=-1, keepdims=True)
    anywhere = rng.standard_normal((*samples.shape[:-1], basis.shape[-1]))
    rows: Array = length * anywhere / np.linalg.norm(anywhere, axis=-1, keepdims=True)
    return rows


def regression_noise(covariance: Array) -> NullDraw:
    """Return draws of what least squares finds where the memory is noise, of its own covariance.

    Args:
        covariance: sigma^2 (X^T X)^-1 of every fit, shape (S, m, d, d).
    """
    factor = np.linalg.cholesky(covariance)

    def draw(samples: Array, basis: Array, rng: np.random.Generator) -> Array:
        rows: Array = factor @ rng.standard_normal((*samples.shape, 1))
        return rows[..., 0] @ basis

    return draw


def count_above_noise(
    samples: Array,
    heads: HeadCount,
    rng: np.random.Generator,
    draw: NullDraw = isotropic_noise,
    num_draws: int = 100,
) -> int:
    """Return how many kept directions, in order, carry more than noise would.

    Direction k counts if its eigenvalue exceeds the 95 % quantile of the leading eigenvalue of
    noise in the space that directions 1..k-1 leave; the first that does not ends the count. Fewer
    than K* means that noise, not memory, sets the rank.
    """
    for k, value in enumerate(heads.eigenvalues):
        basis = _complement(heads.directions[:k])
        noise = [spectrum(operator_of(draw(samples, basis, rng)))[0][0] for _ in range(num_draws)]
        if value <= np.quantile(noise, 0.95):
            return k
    return heads.k_star


def _complement(directions: Array) -> Array:
    """Return an orthonormal basis of what is orthogonal to (k, d) directions, shape (d, d - k)."""
    full, _ = np.linalg.qr(directions.T, mode='complete')
    return full[:, len(directions) :]
