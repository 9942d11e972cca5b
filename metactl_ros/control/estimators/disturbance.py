# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""Estimators that know nothing of where a disturbance comes from: integral, momentum observer."""

from dataclasses import dataclass
import math

from metactl_ros.config import require_positive
from metactl_ros.control.estimators.estimator import Sight
from metactl_ros.dynamics.two_link import (
    apply_mass,
    gravity_torque,
    Inertia,
    mass_at,
    momentum_flow,
)
from metactl_ros.signals import choose, clamp, Component, Vector


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

    def __init__(
        self, settings: IntegralSettings, model: Inertia, largest_nm: tuple[float, ...]
    ) -> None:
        self._rate_per_s2 = settings.rate_per_s2
        self._model = model
        self._largest_nm = largest_nm
        self._sum: Vector | None = None

    def reset(self) -> None:
        """Forget the integral."""
        self._sum = None

    def update(self, sight: Sight) -> Vector:
        """Return the estimate after the last period."""
        before = self._sum or [0.0 * s for s in sight.error.s_radps]
        grown = [x + sight.passed_s * s for x, s in zip(before, sight.error.s_radps, strict=True)]
        mass = mass_at(self._model, sight.q_rad)
        most = [
            largest / (self._rate_per_s2 * inertia)
            for largest, inertia in zip(self._largest_nm, (mass.m11, mass.m22), strict=True)
        ]
        bounded = clamp(grown, [-x for x in most], most)
        self._sum = [
            choose(sight.may_learn | (abs(new) < abs(old)), [new], [old])[0]
            for new, old in zip(bounded, before, strict=True)
        ]
        return apply_mass(mass, [self._rate_per_s2 * x for x in self._sum])


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

    def __init__(
        self, settings: MomentumObserverSettings, model: Inertia, largest_nm: tuple[float, ...]
    ) -> None:
        self._bandwidth_radps = settings.bandwidth_radps
        self._model = model
        self._highest: Vector = largest_nm
        self._lowest: Vector = [-most for most in largest_nm]
        self._momentum: Vector | None = None
        self._flow: Vector = []
        self._estimate: list[Component] = []

    def reset(self) -> None:
        """Forget momentum and estimate."""
        self._momentum = None

    def update(self, sight: Sight) -> Vector:
        """Return the estimate after the last period; zero at first."""
        q, qd = sight.q_rad, sight.qd_radps
        momentum = apply_mass(mass_at(self._model, q), qd)
        gravity = gravity_torque(self._model, q)
        flow = [a - b for a, b in zip(momentum_flow(self._model, q, qd), gravity, strict=True)]
        if self._momentum is None:
            self._estimate = [0.0 * p for p in momentum]
        else:
            share = -math.expm1(-self._bandwidth_radps * sight.passed_s)
            rows = zip(
                self._estimate,
                sight.effort_nm,
                flow,
                self._flow,
                momentum,
                self._momentum,
                strict=True,
            )
            renewed = [
                d + share * (tau + 0.5 * (f + f_0) - (p - p_0) / sight.passed_s - d)
                for d, tau, f, f_0, p, p_0 in rows
            ]
            self._estimate = clamp(renewed, self._lowest, self._highest)
        self._momentum, self._flow = momentum, flow
        return self._estimate
