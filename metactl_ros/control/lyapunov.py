# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
r"""The Lyapunov function, and the half-space of gains that make it fall.

    xi = (e, s),   V = 1/2 xi^T P xi,   admissible:   V_dot + alpha (V - v_0) <= 0

M^ qdd + C^ qd + g^ + d = tau defines d, what the model lacks; d^ is its estimate, and |d - d^| is
at most rho in each joint. For all such d the condition is one half-space in
theta = (K_d, Lambda, K_p, eta). With u = P_e xi and w = P_s xi, the rows of P xi that belong to e
and s, and y = M^^-1 w,

    V_dot = u . e_dot + w . s_dot
    s_dot = Lambda_0 e_dot - K_d (.) s - Lambda (.) e_dot - K_p (.) e - M^^-1 (Phi eta - d)

    normal . theta + constant <= 0
    normal   = ( -w (.) s,  -w (.) e_dot,  -w (.) e,  -y (.) Phi )
    constant = u . e_dot + Lambda_0 w . e_dot + alpha (V - v_0) + y . d^ + sum_i rho_i |y_i|

The reference acceleration cancels. Without an estimator d^ and rho are zero, and the condition
speaks of the nominal arm alone. v_0 = 0 is the paper's condition; v_0 > 0 is a target level:
inside it V may grow, but no faster than alpha (v_0 - V), so that in continuous time

    V(t) <= v_0 + (V(0) - v_0) e^(-alpha t).

P is never free: it solves (A_0 + alpha/2 I)^T P + P (A_0 + alpha/2 I) = -Q with Q > 0, where A_0
is the error dynamics under the nominal gains and d^ = d. With rho = 0 these are then admissible at
every state, which is one eigenvalue test; with rho > 0 they are for the v_0 of `margin_level`. So
the admissible set is never empty. docs/theorem.md has the theorem and its proof.
"""

from dataclasses import dataclass, field
from itertools import product
from typing import Any, NamedTuple

import numpy as np

from metactl_ros.config import for_joints, LATER, PerJoint, require_not_negative, require_positive
from metactl_ros.control.law import Features, LawSettings, TrackingError
from metactl_ros.dynamics.rigid_body import Posture
from metactl_ros.errors import ConfigError
from metactl_ros.signals import Array, dot

CROSS_S, SPEED_S2 = 0.008054, 0.004
"""Of P = [[1, cross], [cross, speed]] for each joint, as `python -m training.lyapunov_fit --rho`
finds the cross term for a given weight of speed. The less speed weighs, the faster V lets an arm
return, and the less the shield has to move; the least certified error is at 0.0065."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LyapunovSettings:
    """The condition every gain must meet, as `config/controller.yaml` states it."""

    alpha_per_s: float
    """Rate of decay, 1 / s; below twice the slope Lambda_0."""
    target_error_rad: float
    """Position error that the target level v_0 allows, rad; zero is the paper's condition. Where
    `rho_nm` is given, v_0 follows from that instead."""
    disturbance_radps2: float
    """Margin: the condition must hold for any acceleration disturbance up to this, rad / s^2."""
    p_matrix: tuple[tuple[float, ...], ...]
    """P of V = 1/2 xi^T P xi, rows and columns ordered (e, s)."""
    rho_nm: PerJoint = field(default=0.0, metadata=LATER)
    """Margin: the condition must hold while the estimate is this close to what the model lacks,
    N m, for every joint or for each; not zero only with a column `estimate`."""

    def __post_init__(self) -> None:
        require_positive('LyapunovSettings', alpha_per_s=self.alpha_per_s)
        require_not_negative(
            'LyapunovSettings',
            target_error_rad=self.target_error_rad,
            disturbance_radps2=self.disturbance_radps2,
            rho_nm=self.rho_nm,
        )
        if self.has_margin and self.disturbance_radps2:
            raise ConfigError(
                'LyapunovSettings.rho_nm: expected one margin, found this and disturbance_radps2 '
                f'= {self.disturbance_radps2}; v_0 follows from rho_nm alone, so state that.'
            )

    @property
    def has_margin(self) -> bool:
        """Whether rho is not zero."""
        return bool(np.any(self.rho_nm))


class HalfSpace(NamedTuple):
    """The gains with normal . theta + constant <= 0."""

    normal: Array
    """Shape (..., m)."""
    constant: Array
    """Shape (...)."""
    value: Array
    """V, shape (...)."""
    Minv_w: Array
    """M^-1 w: what one N m of missing effort adds to V_dot, shape (..., n)."""

    def excess(self, theta: Array) -> Array:
        """Return normal . theta + constant, which is V_dot + alpha (V - v_0), shape (...)."""
        return dot(self.normal, theta) + self.constant

    def least_excess(self, lower: Array, upper: Array) -> Array:
        """Return the least excess over a box of gains; above 0 the admissible set is empty."""
        least = np.minimum(self.normal * lower, self.normal * upper)
        return np.asarray(self.constant + np.sum(least, axis=-1))


class LyapunovFunction:
    """V and its half-space for one control law; refuses a P that does not certify its gains."""

    def __init__(self, settings: LyapunovSettings, law: LawSettings, inertias: Array) -> None:
        """Check P and choose v_0.

        Args:
            settings: The condition.
            law: With the nominal gains.
            inertias: M of the nominal arm all over its workspace, kg m^2, shape (S, n, n).
        """
        num_joints = inertias.shape[-1]
        size = 2 * num_joints
        lengths = [len(row) for row in settings.p_matrix]
        if lengths != [size] * size or not np.isfinite(settings.p_matrix).all():
            raise ConfigError(
                f'LyapunovSettings.p_matrix: expected {size} rows and columns of finite numbers, '
                f'found rows of {lengths}.'
            )
        self.P = np.array(settings.p_matrix, dtype=np.float64)
        self.alpha_per_s = settings.alpha_per_s
        self._slope_per_s = law.slope_per_s
        self._disturbance_radps2 = settings.disturbance_radps2
        self._num_joints = num_joints
        slack = certificate_matrix(self.P, law, settings.alpha_per_s)
        least = min(np.linalg.eigvalsh(slack).min(), np.linalg.eigvalsh(self.P).min())
        if not (np.allclose(self.P, self.P.T, rtol=0, atol=1e-12) and least > 0.0):
            raise ConfigError(
                'LyapunovSettings.p_matrix: must be symmetric positive definite and certify the '
                f'nominal gains (least eigenvalue of P and Q above 0), found {least:.3g}; '
                'fit it again with: python -m training.lyapunov_fit'
            )
        self._rho_nm = for_joints(settings.rho_nm, num_joints) if settings.has_margin else None
        if self._rho_nm is None:
            stiffest = np.linalg.eigvalsh(self.P[:num_joints, :num_joints]).max()
            self.target_level = 0.5 * float(stiffest) * settings.target_error_rad**2
        else:
            inverse = np.asarray(np.linalg.inv(inertias), dtype=np.float64)
            self.target_level = margin_level(
                self.P, law, settings.alpha_per_s, self._rho_nm, inverse
            )
        self.error_radius_rad = error_radius(self.P, self.target_level)
        """Largest |e| within V <= v_0, where V ends up for as long as |d - d^| <= rho."""

    def half_space(
        self,
        posture: Posture,
        error: TrackingError,
        features: Features,
        estimate_nm: Array | None = None,
    ) -> HalfSpace:
        """Return the admissible half-space in theta.

        Args:
            posture: Of the nominal arm, without payload, at the measured state.
            error: Tracking error and sliding variable.
            features: What the gains multiply.
            estimate_nm: d^, shape (..., n), if theta has a weight for it.
        """
        n, e_dot = self._num_joints, error.e_dot_radps
        xi = np.concatenate([error.e_rad, error.s_radps], axis=-1)
        gradient = xi.dot(self.P)  # P is symmetric
        u, w = gradient[..., :n], gradient[..., n:]
        value = 0.5 * dot(xi, gradient)
        Minv_w = posture.solve(w)
        *lead, columns, _ = features.torque.shape
        num_gains = features.acceleration.shape[-2]
        normal = np.empty((*lead, num_gains + columns, n))
        normal[..., :num_gains, :] = -w[..., np.newaxis, :] * features.acceleration
        normal[..., num_gains:, :] = -Minv_w[..., np.newaxis, :] * features.torque
        drift = dot(u + self._slope_per_s * w, e_dot)
        constant = drift + self.alpha_per_s * (value - self.target_level)
        if self._disturbance_radps2:
            constant = constant + self._disturbance_radps2 * np.sum(np.abs(w), axis=-1)
        if estimate_nm is not None:
            constant = constant + dot(Minv_w, estimate_nm)
            if self._rho_nm is not None:
                constant = constant + dot(np.abs(Minv_w), self._rho_nm)
        return HalfSpace(normal.reshape(*lead, -1), constant, value, Minv_w)


def rate_bound(lyapunov: LyapunovFunction, value: Array) -> Array:
    """Return -alpha (V - v_0), which V_dot must not exceed."""
    return -lyapunov.alpha_per_s * (value - lyapunov.target_level)


def closed_loop_matrix(law: LawSettings, num_joints: int) -> Array:
    """Return A_0 of xi_dot = A_0 xi under the nominal gains, shape (2 n, 2 n), 1 / s.

    s_dot = Lambda_0 e_dot - Lambda e_dot - K_d s with e_dot = s - Lambda_0 e.
    """
    slope, kd = law.slope_per_s, for_joints(law.nominal_kd_per_s, num_joints)
    surplus = slope - for_joints(law.nominal_lambda_per_s, num_joints)
    one = np.eye(num_joints)
    return np.block([[-slope * one, one], [-slope * surplus * one, (surplus - kd) * one]])


def certificate_matrix(P: Array, law: LawSettings, alpha_per_s: float) -> Array:
    """Return Q = -(A^T P + P A) with A = A_0 + alpha/2 I; Q > 0 certifies the nominal gains.

    Under the nominal gains V_dot + alpha V = -1/2 xi^T Q xi.
    """
    A = closed_loop_matrix(law, len(P) // 2) + 0.5 * alpha_per_s * np.eye(len(P))
    return np.asarray(-(A.T @ P + P @ A))


def solve_lyapunov(Q: Array, law: LawSettings, alpha_per_s: float) -> Array:
    """Return the P that belongs to a symmetric positive definite Q, scaled to tr P = 2 n."""
    size = len(Q)
    if not 0.0 <= alpha_per_s < 2.0 * law.slope_per_s:
        raise ConfigError(
            f'alpha_per_s: expected 0 to below 2 Lambda_0 = {2.0 * law.slope_per_s} 1/s, '
            f'found {alpha_per_s}; a faster decay than the nominal gains have cannot be certified.'
        )
    A = closed_loop_matrix(law, size // 2) + 0.5 * alpha_per_s * np.eye(size)
    identity = np.eye(size)
    operator = np.kron(A.T, identity) + np.kron(identity, A.T)
    P = np.linalg.solve(operator, -Q.ravel()).reshape(size, size)
    P = 0.5 * (P + P.T)
    return np.asarray(P * (size / np.trace(P)))


def kronecker_matrix(cross_s: float, speed_s2: float, num_joints: int) -> Array:
    """Return P of V = sum over joints of e^2 / 2 + cross e s + speed s^2 / 2, with tr P = 2 n."""
    P = np.kron([[1.0, cross_s], [cross_s, speed_s2]], np.eye(num_joints))
    return np.asarray(P * (len(P) / np.trace(P)))


def for_each_joint(rows: Any, num_joints: int) -> Any:
    """Return the P of all joints if rows are one 2 x 2 block, [[ee, es], [es, ss]], of each joint.

    Everything else is returned as it is, for whoever checks P.
    """
    if num_joints == 1 or not isinstance(rows, (list, tuple)) or len(rows) != 2:
        return rows
    if any(not isinstance(row, (list, tuple)) or len(row) != 2 for row in rows):
        return rows
    return np.kron(np.array(rows, dtype=np.float64), np.eye(num_joints)).tolist()


def margin_level(
    P: Array, law: LawSettings, alpha_per_s: float, rho_nm: Array, inverse_inertias: Array
) -> float:
    """Return the least v_0 for which the nominal gains meet the condition with the margin rho.

    With d^ weighed by 1 they give V_dot + alpha V <= -1/2 xi^T Q xi + g . xi at worst, where
    g = P_s^T M^^-1 (rho (.) sign) for some signs. Its maximum over xi is 1/2 g^T Q^-1 g, so
    v_0 = max g^T Q^-1 g / (2 alpha) over signs and postures.

    Args:
        P: Of V, shape (2 n, 2 n).
        law: With the nominal gains.
        alpha_per_s: Rate of decay.
        rho_nm: How far the estimate may be off, shape (n,).
        inverse_inertias: M^^-1 all over the workspace, shape (S, n, n).
    """
    n = len(rho_nm)
    # One sign is free: -g gives what g gives.
    signs = np.array([(1.0, *rest) for rest in product((1.0, -1.0), repeat=n - 1)])
    g = np.einsum('sij,kj->ski', inverse_inertias, signs * rho_nm) @ P[n:]
    Q = certificate_matrix(P, law, alpha_per_s)
    each = g.reshape(-1, 2 * n)
    most = np.sum(each * np.linalg.solve(Q, each.T).T, axis=-1).max()
    return float(most) / (2.0 * alpha_per_s)


def error_radius(P: Array, level: float) -> float:
    """Return the largest |e| with V <= level, rad: sqrt(2 level lambda_max((P^-1)_ee))."""
    n = len(P) // 2
    softest = np.linalg.eigvalsh(np.linalg.inv(P)[:n, :n]).max()
    return float(np.sqrt(2.0 * level * softest))
