# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
r"""The arm, the law and its condition written a second time, for checking the first.

Nothing here is shared with the code that drives the arm but the settings. The arm is a planar
chain of rods in absolute angles a = T q, T lower triangular of ones, one row per tick:

    D = L^T diag(m) L        L_ij: how far the middle of rod i moves per turn of rod j
    M = T^T [ D (.) cos(a_j - a_k) + diag(m l^2 / 12) ] T
    C qd = T^T [ D (.) sin(a_j - a_k) ] (T qd)^2,    g = T^T [ g_0 L^T m (.) cos a ]

and V = 1/2 xi^T P xi with its half-space follows as quadratic forms. Each result comes with the
size of the terms it was summed from: two correct programs differ by rounding of that size.
"""

from typing import NamedTuple, TYPE_CHECKING

import numpy as np

from metactl_ros.errors import ConfigError
from metactl_ros.signals import Array

if TYPE_CHECKING:
    from metactl_ros.control.settings import ControllerSettings
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


class Sized(NamedTuple):
    """A result, and the size of the terms it is the sum of; of one shape."""

    value: Array
    size: Array


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
        value = np.einsum('tm,tm->t', self.normal.value, theta) + self.constant.value
        size = np.einsum('tm,tm->t', self.normal.size, np.abs(theta)) + self.constant.size
        return Sized(value, size)


class Chain:
    """The rigid-body terms of an arm without payload."""

    def __init__(self, arm: 'Arm') -> None:
        mass, length = np.array(arm.link_masses_kg), np.array(arm.link_lengths_m)
        n = len(mass)
        lever = np.tril(np.ones((n, n)), -1) * length + np.diag(length / 2.0)
        self._turn = np.tril(np.ones((n, n)))
        self._coupling = lever.T @ np.diag(mass) @ lever
        self._spin = np.diag(mass * length**2 / 12.0)
        self._weight = arm.gravity_mps2 * lever.T @ mass

    def mass_matrix(self, q_rad: Array) -> Array:
        """Return M, shape (T, n, n), kg m^2."""
        between = self._between(q_rad)
        absolute = self._coupling * np.cos(between) + self._spin
        return np.asarray(self._turn.T @ absolute @ self._turn)

    def gravity_nm(self, q_rad: Array) -> Array:
        """Return g, shape (T, n)."""
        return np.asarray((self._weight * np.cos(q_rad @ self._turn.T)) @ self._turn)

    def centrifugal_nm(self, q_rad: Array, qd_radps: Array) -> Array:
        """Return C qd, shape (T, n)."""
        squares = (qd_radps @ self._turn.T) ** 2
        absolute = np.einsum('tjk,tk->tj', self._coupling * np.sin(self._between(q_rad)), squares)
        return np.asarray(absolute @ self._turn)

    def _between(self, q_rad: Array) -> Array:
        angles = q_rad @ self._turn.T
        return np.asarray(angles[:, :, np.newaxis] - angles[:, np.newaxis, :])


class MatrixLaw:
    """The computed-torque law and its Lyapunov condition, for all ticks at once."""

    def __init__(self, arm: 'Arm', controller: 'ControllerSettings') -> None:
        columns = [entry.column for entry in controller.gain_box.feed_forward]
        self.chain = Chain(arm)
        self._columns = columns
        self._law, self._lyapunov = controller.law, controller.lyapunov
        self._p = np.array(controller.lyapunov.p_matrix)
        self._n = n = len(arm.joint_names)
        stiffest = np.linalg.eigvalsh(self._p[:n, :n])[-1]
        self._target_level = 0.5 * stiffest * controller.lyapunov.target_error_rad**2

    def condition(self, motion: Motion) -> Condition:
        """Return the half-space of admissible gains at every tick."""
        e, e_dot, s = self._errors(motion)
        xi = np.hstack([e, s])
        gradient = Sized(xi @ self._p, np.abs(xi) @ np.abs(self._p))
        w = Sized(gradient.value[:, self._n :], gradient.size[:, self._n :])
        drift = np.hstack([e_dot, self._law.slope_per_s * e_dot])
        inverse = np.linalg.inv(self.chain.mass_matrix(motion.q_rad))
        pull = Sized(
            np.einsum('tjk,tk->tj', inverse, w.value),
            np.einsum('tjk,tk->tj', np.abs(inverse), w.size),
        )
        phi = self._features(motion)
        level, margin = self._lyapunov.alpha_per_s, self._lyapunov.disturbance_radps2
        value = Sized(
            0.5 * np.einsum('ti,ti->t', xi, gradient.value),
            0.5 * np.einsum('ti,ti->t', np.abs(xi), gradient.size),
        )
        constant = np.einsum('ti,ti->t', gradient.value, drift)
        constant += level * (value.value - self._target_level)
        constant += margin * np.abs(w.value).sum(axis=1)
        size = np.einsum('ti,ti->t', gradient.size, np.abs(drift))
        size += level * (value.size + self._target_level) + margin * w.size.sum(axis=1)
        normal = [-w.value * s, -w.value * e_dot, *(-pull.value * column for column in phi)]
        sizes = [w.size * abs(s), w.size * abs(e_dot), *(pull.size * abs(c) for c in phi)]
        return Condition(
            Sized(np.hstack(normal), np.hstack(sizes)), Sized(constant, size), value, pull
        )

    def holding(self, motion: Motion, theta: Array) -> Array:
        """Return the effort of the law if it commanded no acceleration, shape (T, n), N m."""
        _, _, *eta = np.split(theta, 2 + len(self._columns), axis=1)
        feed_forward = zip(eta, self._features(motion), strict=True)
        rigid = self.chain.centrifugal_nm(motion.q_rad, motion.qd_radps)
        rigid = rigid + self.chain.gravity_nm(motion.q_rad)
        return np.asarray(rigid + sum(weight * column for weight, column in feed_forward))

    def effort(self, motion: Motion, theta: Array) -> Sized:
        """Return the effort of the law before any limit, shape (T, n), N m."""
        _, e_dot, s = self._errors(motion)
        kd, slope, *eta = np.split(theta, 2 + len(self._columns), axis=1)
        phi = self._features(motion)
        accelerations = [motion.qdd_desired_radps2, slope * e_dot, kd * s]
        torques = [
            self.chain.centrifugal_nm(motion.q_rad, motion.qd_radps),
            self.chain.gravity_nm(motion.q_rad),
            *(weight * column for weight, column in zip(eta, phi, strict=True)),
        ]
        mass = self.chain.mass_matrix(motion.q_rad)

        def total(parts: list[Array], others: list[Array], matrix: Array) -> Array:
            return np.asarray(np.einsum('tjk,tk->tj', matrix, sum(parts)) + sum(others))

        size = total([*map(np.abs, accelerations)], [*map(np.abs, torques)], np.abs(mass))
        return Sized(total(accelerations, torques, mass), size)

    def _errors(self, motion: Motion) -> tuple[Array, Array, Array]:
        e = motion.q_desired_rad - motion.q_rad
        e_dot = motion.qd_desired_radps - motion.qd_radps
        return e, e_dot, e_dot + self._law.slope_per_s * e

    def _features(self, motion: Motion) -> list[Array]:
        coulomb = np.tanh(motion.qd_desired_radps / self._law.coulomb_smoothing_radps)
        known = {'bias': np.ones_like(coulomb), 'coulomb': coulomb}
        if motion.estimate_nm is not None:
            known['estimate'] = motion.estimate_nm
        missing = [column for column in self._columns if column not in known]
        if missing:
            raise ConfigError(
                f'gain_box.feed_forward: has the column {missing[0]!r}, but ~/shield lacks '
                'estimate.JOINT; record again, or give the controller that was recorded.'
            )
        return [known[column] for column in self._columns]
