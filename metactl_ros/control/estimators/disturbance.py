# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""Estimators that know nothing of where a disturbance comes from: integral, momentum observer."""

from dataclasses import dataclass
import math

import numpy as np

from metactl_ros.config import require_positive
from metactl_ros.control.estimators.estimator import EstimatorInput
from metactl_ros.signals import Array


@dataclass(frozen=True, kw_only=True, slots=True)
class IntegralSettings:
    """Computed torque with integral action."""

    rate_per_s2: float
    """k_i, 1 / s^2."""

    def __post_init__(self) -> None:
        require_positive('IntegralSettings', rate_per_s2=self.rate_per_s2)


class Integral:
    """d^ = M^(q) k_i x,  x_dot = s.

    With Lambda = Lambda_0 the closed loop of each joint is s_ddot + K_d s_dot + k_i s = a_dot for
    an acceleration a = M^-1 d that the model lacks. A constant one leaves no error if K_d and k_i
    are positive: the roots of x^2 + K_d x + k_i are then stable. Slow ones remain by their rate
    over k_i. While limits cut the effort, or another than the policy acts, x may only shrink; and
    alone it never asks for more than a joint can give.
    """

    def __init__(self, settings: IntegralSettings, largest_nm: tuple[float, ...]) -> None:
        self._rate_per_s2 = settings.rate_per_s2
        self._largest_nm = np.array(largest_nm)
        self._sum: Array | None = None

    def reset(self) -> None:
        """Forget the integral."""
        self._sum = None

    def update(self, given: EstimatorInput) -> Array:
        """Return the estimate after the last period."""
        s = given.error.s_radps
        before = np.zeros(s.shape) if self._sum is None else self._sum
        most = self._largest_nm / (self._rate_per_s2 * given.posture.diagonal)
        grown = np.minimum(np.maximum(before + given.passed_s * s, -most), most)
        is_taken = given.may_learn[..., np.newaxis] | (np.abs(grown) < np.abs(before))
        self._sum = np.where(is_taken, grown, before)
        return given.posture.apply(self._rate_per_s2 * self._sum)


@dataclass(frozen=True, kw_only=True, slots=True)
class MomentumObserverSettings:
    """The generalised-momentum observer."""

    bandwidth_radps: float
    """Of the estimate, rad / s."""

    def __post_init__(self) -> None:
        require_positive('MomentumObserverSettings', bandwidth_radps=self.bandwidth_radps)


class MomentumObserver:
    """d^_dot = K (d - d^), without an acceleration being measured.

    The momentum p = M^ qd obeys p_dot = tau + C^T qd - g - d, so that over one period

        d = tau + (C^T qd - g) - (p - p_before) / dt          on average,
        d^ <- d^ + (1 - e^(-K dt)) (d - d^).

    The estimate is d through a first-order filter of bandwidth K, whatever the arm does; its error
    stays below |d_dot| / K. This needs the true effort and an exact model of what is not to count
    as d. With a delay of T in the loop it stays stable only well below 1 / T.
    """

    def __init__(self, settings: MomentumObserverSettings, largest_nm: tuple[float, ...]) -> None:
        self._bandwidth_radps = settings.bandwidth_radps
        self._largest = np.array(largest_nm)
        self._before: tuple[Array, Array] | None = None
        self._estimate = np.zeros(len(largest_nm))

    def reset(self) -> None:
        """Forget momentum and estimate."""
        self._before = None

    def update(self, given: EstimatorInput) -> Array:
        """Return the estimate after the last period; zero at first."""
        momentum = given.posture.apply(given.at.qd)
        flow = given.posture.momentum_flow - given.posture.gravity
        if self._before is None:
            self._estimate = np.zeros(momentum.shape)
        else:
            share = -math.expm1(-self._bandwidth_radps * given.passed_s)
            momentum_0, flow_0 = self._before
            d = given.effort_nm + 0.5 * (flow + flow_0) - (momentum - momentum_0) / given.passed_s
            renewed = self._estimate + share * (d - self._estimate)
            self._estimate = np.minimum(np.maximum(renewed, -self._largest), self._largest)
        self._before = (momentum, flow)
        return self._estimate
