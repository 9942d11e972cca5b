# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
r"""The arm, the law and its condition written a second time, for checking the first.

Nothing here is shared with the code that drives the arm but the settings. The arm is a planar
chain of rods in absolute angles a = T q, T lower triangular of ones, one row per tick:

    D = L^T diag(m) L        L_ij: how far the middle of rod i moves per turn of rod j
    M = T^T [ D (.) cos(a_j - a_k) + diag(m l^2 / 12) ] T
    C qd = T^T [ D (.) sin(a_j - a_k) ] (T qd)^2,    g = T^T [ g_0 L^T m (.) cos a ]

and V = 1/2 xi^T P xi with its half-space follows as quadratic forms. What the arm may do besides
is the estimate, and up to rho more or less of it in each joint: the worst corner of that box is
tried, not a formula for it. Each result comes with the size of the terms it was summed from: two
correct programs differ by rounding of that size.
"""

from dataclasses import dataclass
from itertools import product as combinations_of
from typing import cast, NamedTuple, TYPE_CHECKING

import numpy as np

from metactl_ros.check.chain_dynamics import ChainDynamics
from metactl_ros.dynamics.urdf_arm import FromUrdf
from metactl_ros.errors import ConfigError
from metactl_ros.signals import Array

if TYPE_CHECKING:
    from metactl_ros.control.settings import ControllerSettings
    from metactl_ros.dynamics.rigid_body import ArmModel
    from metactl_ros.dynamics.two_link import Arm


class Motion(NamedTuple):
    """Where the arm was and where it should have been, each of shape (T, n)."""

    q_rad: Array
    qd_radps: Array
    q_desired_rad: Array
    qd_desired_radps: Array
    qdd_desired_radps2: Array
    estimate_nm: Array | None
    """What the model was estimated to lack, as recorded: it is not computed a second time."""
    payload_kg: Array | float = 0.0
    """Of the model, shape (T,), as recorded."""


@dataclass(frozen=True, slots=True)
class Sized:
    """A result, and the size of the terms it is the sum of; of one shape."""

    value: Array
    size: Array

    def __add__(self, other: 'Sized') -> 'Sized':
        """Return the sum of two results."""
        return Sized(self.value + other.value, self.size + other.size)

    def columns(self, rows: slice) -> 'Sized':
        """Return some columns, shape (T, k)."""
        return Sized(self.value[:, rows], self.size[:, rows])


def product(subscripts: str, first: 'Sized | Array', second: 'Sized | Array') -> Sized:
    """Return the sum of products that `np.einsum` has these subscripts for."""
    one, other = (x if isinstance(x, Sized) else Sized(x, np.abs(x)) for x in (first, second))
    values = np.einsum(subscripts, one.value, other.value)
    return Sized(np.asarray(values), np.asarray(np.einsum(subscripts, one.size, other.size)))


def total(parts: list[Array]) -> Sized:
    """Return the sum of some arrays of one shape."""
    return Sized(np.sum(parts, axis=0), np.sum(np.abs(parts), axis=0))


class Condition(NamedTuple):
    """normal . theta + constant <= 0, and what it was made from."""

    normal: Sized
    """Shape (T, m)."""
    constant: Sized
    """Shape (T,)."""
    lyapunov_value: Sized
    """V, shape (T,)."""
    Minv_w: Sized
    """M^-1 w, shape (T, n): what one missing N m adds to V_dot."""

    def excess(self, theta: Array) -> Sized:
        """Return normal . theta + constant of gains, shape (T, m)."""
        return product('tm,tm->t', self.normal, theta) + self.constant


class Chain:
    """The rigid-body terms of an arm; a payload, shape (T,) or a number, is at its tip."""

    def __init__(self, arm: 'Arm') -> None:
        mass, length = np.array(arm.link_masses_kg), np.array(arm.link_lengths_m)
        n = len(mass)
        lever = np.tril(np.ones((n, n)), -1) * length + np.diag(length / 2.0)
        self._turn = np.tril(np.ones((n, n)))
        self._coupling = lever.T @ np.diag(mass) @ lever
        self._spin = np.diag(mass * length**2 / 12.0)
        self._weight = arm.gravity_mps2 * lever.T @ mass
        self._tip_coupling = np.outer(length, length)
        self._tip_weight = arm.gravity_mps2 * length

    def mass_matrix(self, q_rad: Array, payload_kg: Array | float = 0.0) -> Array:
        """Return M, shape (T, n, n), kg m^2."""
        absolute = self._couplings(payload_kg) * np.cos(self._between(q_rad)) + self._spin
        return np.asarray(self._turn.T @ absolute @ self._turn)

    def gravity_nm(self, q_rad: Array, payload_kg: Array | float = 0.0) -> Array:
        """Return g, shape (T, n)."""
        weight = self._weight + np.reshape(payload_kg, (-1, 1)) * self._tip_weight
        return np.asarray((weight * np.cos(q_rad @ self._turn.T)) @ self._turn)

    def centrifugal_nm(
        self, q_rad: Array, qd_radps: Array, payload_kg: Array | float = 0.0
    ) -> Array:
        """Return C qd, shape (T, n)."""
        squares = (qd_radps @ self._turn.T) ** 2
        lever = self._couplings(payload_kg) * np.sin(self._between(q_rad))
        absolute = np.einsum('tjk,tk->tj', lever, squares)
        return np.asarray(absolute @ self._turn)

    def _couplings(self, payload_kg: Array | float) -> Array:
        tip = np.reshape(payload_kg, (-1, 1, 1)) * self._tip_coupling
        return np.asarray(self._coupling + tip)

    def _between(self, q_rad: Array) -> Array:
        angles = q_rad @ self._turn.T
        return np.asarray(angles[:, :, np.newaxis] - angles[:, np.newaxis, :])


def chain_of(arm: 'ArmModel') -> 'Chain | ChainDynamics':
    """Return the rigid-body terms of an arm, written a second time."""
    if isinstance(arm, FromUrdf):
        return ChainDynamics(arm.checked.file, arm.checked.urdf)
    return Chain(cast('Arm', arm))


def _all_over(arm: 'ArmModel') -> Array:
    """Return the postures over which v_0 is the largest that any needs, shape (S, n)."""
    if isinstance(arm, FromUrdf):
        return arm.postures
    bends = np.linspace(0.0, np.pi, 181)[:, np.newaxis]  # M depends on the last joint alone
    return np.hstack([np.zeros((181, len(arm.joint_names) - 1)), bends])


class MatrixLaw:
    """The computed-torque law and its Lyapunov condition, for all ticks at once."""

    def __init__(self, arm: 'ArmModel', controller: 'ControllerSettings') -> None:
        self.chain = chain_of(arm)
        self._postures = _all_over(arm)
        self._columns = [entry.column for entry in controller.gain_box.feed_forward]
        self._has_kp = controller.gain_box.kp_per_s2 is not None
        self._law, self._lyapunov = controller.law, controller.lyapunov
        self._p = np.array(controller.lyapunov.p_matrix)
        self._n = n = len(arm.joint_names)
        off = np.broadcast_to(controller.lyapunov.rho_nm, n)
        self._corners = np.array([*combinations_of(*zip(off, -off, strict=True))])
        bank = None if controller.estimator is None else controller.estimator.bank
        self._payload_max_kg = 0.0 if bank is None else bank.payload_max_kg
        self._target_level = self._level()

    def _level(self) -> float:
        """Return v_0: that of the stated error, or the least that the nominal gains can keep."""
        n = self._n
        if not self._corners.any():
            stiffest = np.linalg.eigvalsh(self._p[:n, :n])[-1]
            return float(0.5 * stiffest * self._lyapunov.target_error_rad**2)
        kd, damping = (
            np.diag(np.broadcast_to(gain, n))
            for gain in (self._law.nominal_kd_per_s, self._law.nominal_lambda_per_s)
        )
        # e_dot = s - L e and s_dot = (L - Lambda) e_dot - K_d s, with L the fixed slope.
        fixed, one = self._law.slope_per_s * np.eye(n), np.eye(n)
        e_dot = np.hstack([-fixed, one])
        s_dot = (fixed - damping) @ e_dot - kd @ np.hstack([np.zeros((n, n)), one])
        drift = np.vstack([e_dot, s_dot]) + 0.5 * self._lyapunov.alpha_per_s * np.eye(2 * n)
        half = -self._p @ drift  # V_dot + alpha V = -xi^T half xi under the nominal gains
        loads = np.linspace(0.0, self._payload_max_kg, 5)
        masses = np.concatenate([self.chain.mass_matrix(self._postures, load) for load in loads])
        moved = np.einsum('tjk,ck->tcj', np.linalg.inv(masses), self._corners)
        pulls = (moved @ self._p[n:]).reshape(-1, 2 * n)
        # The worst error state of each corner, and by how much V_dot + alpha V is above 0 there.
        states = np.linalg.solve(half + half.T, pulls.T).T
        gained = np.einsum('ti,ti->t', states, pulls)
        gained -= np.einsum('ti,ij,tj->t', states, half, states)
        return float(gained.max() / self._lyapunov.alpha_per_s)

    def condition(self, motion: Motion) -> Condition:
        """Return the half-space of admissible gains at every tick."""
        e, e_dot, s = self._errors(motion)
        xi, drift = np.hstack([e, s]), np.hstack([e_dot, self._law.slope_per_s * e_dot])
        gradient = product('ti,ij->tj', xi, self._p)
        w = gradient.columns(slice(self._n, None))
        mass = self.chain.mass_matrix(motion.q_rad, motion.payload_kg)
        inverse = np.asarray(np.linalg.inv(mass), dtype=np.float64)
        pull = product('tjk,tk->tj', inverse, w)
        phi = self._features(motion)
        value = product('ti,ti->t', 0.5 * xi, gradient)
        alpha, v_0 = self._lyapunov.alpha_per_s, self._target_level
        margin = self._lyapunov.disturbance_radps2
        # What the model may lack at each tick, N m: corners of a box, (T, corners, n).
        lacks = np.zeros((len(e), 1, self._n))
        if motion.estimate_nm is not None and 'estimate' in self._columns:
            lacks = motion.estimate_nm[:, np.newaxis, :] + self._corners
        pulled = product('tj,tcj->tc', pull, lacks)
        constant = product('ti,ti->t', gradient, drift)
        constant += Sized(alpha * (value.value - v_0), alpha * (value.size + v_0))
        constant += Sized(margin * np.abs(w.value).sum(axis=1), margin * w.size.sum(axis=1))
        constant += Sized(pulled.value.max(axis=1), pulled.size.max(axis=1))
        driven = [s, e_dot, e] if self._has_kp else [s, e_dot]
        normal = [product('tj,tj->tj', w, -x) for x in driven]
        normal += [product('tj,tj->tj', pull, -column) for column in phi]
        values, sizes = ([part.value for part in normal], [part.size for part in normal])
        return Condition(Sized(np.hstack(values), np.hstack(sizes)), constant, value, pull)

    def holding(self, motion: Motion, theta: Array) -> Array:
        """Return the effort of the law if it commanded no acceleration, shape (T, n), N m."""
        feed_forward = zip(self._parts(theta)[1], self._features(motion), strict=True)
        rigid = self.chain.centrifugal_nm(motion.q_rad, motion.qd_radps, motion.payload_kg)
        rigid = rigid + self.chain.gravity_nm(motion.q_rad, motion.payload_kg)
        return np.asarray(rigid + sum(weight * column for weight, column in feed_forward))

    def effort(self, motion: Motion, theta: Array) -> Sized:
        """Return the effort of the law before any limit, shape (T, n), N m."""
        e, e_dot, s = self._errors(motion)
        gains, eta = self._parts(theta)
        phi = self._features(motion)
        driven = zip(gains, (s, e_dot, e), strict=False)
        accelerations = [motion.qdd_desired_radps2, *(gain * x for gain, x in driven)]
        torques = [
            self.chain.centrifugal_nm(motion.q_rad, motion.qd_radps, motion.payload_kg),
            self.chain.gravity_nm(motion.q_rad, motion.payload_kg),
            *(weight * column for weight, column in zip(eta, phi, strict=True)),
        ]
        mass = self.chain.mass_matrix(motion.q_rad, motion.payload_kg)
        return product('tjk,tk->tj', mass, total(accelerations)) + total(torques)

    def _parts(self, theta: Array) -> tuple[list[Array], list[Array]]:
        """Return (K_d, Lambda and any K_p) and the weights of theta, each of shape (T, n)."""
        num_gains = 3 if self._has_kp else 2
        parts = np.split(theta, num_gains + len(self._columns), axis=1)
        return parts[:num_gains], parts[num_gains:]

    def _errors(self, motion: Motion) -> tuple[Array, Array, Array]:
        e = motion.q_desired_rad - motion.q_rad
        e_dot = motion.qd_desired_radps - motion.qd_radps
        return e, e_dot, e_dot + self._law.slope_per_s * e

    def _features(self, motion: Motion) -> list[Array]:
        coulomb = np.tanh(motion.qd_desired_radps / self._law.coulomb_smoothing_radps)
        known = {'bias': np.ones_like(coulomb), 'coulomb': coulomb}
        if motion.estimate_nm is not None:
            known['estimate'] = motion.estimate_nm
        if missing := [column for column in self._columns if column not in known]:
            raise ConfigError(
                f'gain_box.feed_forward: has the column {missing[0]!r}, but ~/shield lacks '
                'estimate.JOINT; record again, or give the controller that was recorded.'
            )
        return [known[column] for column in self._columns]
