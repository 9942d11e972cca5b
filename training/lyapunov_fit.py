# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""Fit the Lyapunov matrix P: to the true plant, or for the smallest error that can be certified.

    python -m training.lyapunov_fit                     # to the plant, friction and payload on
    python -m training.lyapunov_fit --rho 0.11 0.1      # for an estimate that is off by at most so

P is not free: it solves (A_0 + alpha/2 I)^T P + P (A_0 + alpha/2 I) = -Q, so the nominal gains
stay admissible at every state whatever is learned. What is learned is L of Q = L L^T + eps I, by a
hinge loss on the condition V_dot + alpha (V - v_0) <= 0 along rollouts of the plant that the model
does not know. tr P is fixed, or the loss would shrink P to nothing. The report goes to results/,
its p_matrix into config/controller.yaml.

With --rho, N m per joint, no plant is asked: v_0 follows from rho, and of all
P = [[1, b], [b, c]] (x) I with a fixed c, b and alpha are searched for with the least certified
error sqrt(2 v_0 lambda_max((P^-1)_ee)). More general matrices certify no less. p_matrix and
alpha are for a controller with that rho_nm; docs/theorem.md says what they promise.
"""

from collections.abc import Sequence
from dataclasses import replace
import math
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import track
from rich.table import Table
from scipy.optimize import minimize  # type: ignore[import-untyped]
import torch

from metactl_ros.control.law import tracking_error, TrackingState
from metactl_ros.control.loop import ControlLoop
from metactl_ros.control.lyapunov import (
    certificate_matrix,
    closed_loop_matrix,
    error_radius,
    kronecker_matrix,
    LyapunovFunction,
    margin_level,
    SPEED_S2,
)
from metactl_ros.control.shield import Enforcement
from metactl_ros.dynamics.friction import friction_torque
from metactl_ros.errors import ConfigError
from metactl_ros.files import write_json
from metactl_ros.settings import load_settings, provenance, Settings
from metactl_ros.signals import Array, seconds
from metactl_ros.sim.rk4_arm import Rk4Arm
from metactl_ros.sim.rollout import without_warmup
from metactl_ros.sim.task import draw_evaluation
from training.commands import command_parser, refusing

Q_FLOOR = 1.0
"""eps of Q = L L^T + eps I, where tr L L^T = 2 n: half of Q is the same in every direction.

The true plant has errors that no Lyapunov function can talk away. With a small floor the fit makes
P nearly singular, so that V does not see them, and certifies nothing; the figures are in
results/lyapunov_floor.json (--floor 0.001).
"""
TRAINING_SEED, HELD_OUT_SEED = 1, 2
CERTIFIED_SHARE = 1e-3
"""Least eigenvalue of Q with --rho, as a share of their mean: P is written with six digits behind
the point, and must certify the nominal gains still."""
KINDS: tuple[Literal['nominal', 'random'], ...] = ('nominal', 'random')


class ErrorMotion(NamedTuple):
    """Error states and their true rates of change along rollouts."""

    xi: Array
    """(e, s), shape (N, 2 n)."""
    xi_dot: Array
    """Under the true plant, shape (N, 2 n)."""
    was_moved: NDArray[np.bool_]
    """Whether the shield moved the proposal, shape (N,)."""


def sample_motion(
    settings: Settings,
    seed: int,
    gains: Literal['nominal', 'random'],
    tau_z_s: float,
    enforcement: Enforcement = 'enforce',
) -> ErrorMotion:
    """Roll out the true plant and return error states with their true rates.

    Gains are those of the baseline, or a new random proposal at every step.
    """
    friction, law, task = settings.plant.friction, settings.controller.law, settings.plant.task
    rng = np.random.default_rng(seed)
    plant = Rk4Arm(settings.two_link, friction, law.rate_hz)
    loop = ControlLoop(settings.arm, without_warmup(settings.controller), enforcement)
    rows: list[tuple[Array, Array, NDArray[np.bool_]]] = []
    for payload in task.payload_levels_kg:
        episodes = draw_evaluation(task, seed, payload, 10, tau_z_s)
        body = settings.two_link.body(payload)
        state = plant.reset(episodes.start)
        loop.reset(state)
        for _ in range(settings.episode_steps):
            reference = episodes.reference.at(seconds(state.stamp_ns))
            action = np.broadcast_to(loop.nominal_action, (10, loop.gain_map.size))
            if gains == 'random':
                action = rng.uniform(-1.0, 1.0, action.shape)
            step = loop.actuate(action, state, reference, state.stamp_ns)
            net = step.effort_nm - friction_torque(friction, state.qd_radps, plant.memory_nm)
            qdd = body.forward_dynamics(state.q_rad, state.qd_radps, net)
            goal = (reference.q_rad, reference.qd_radps, reference.qdd_radps2)
            error = tracking_error(law, TrackingState(state.q_rad, state.qd_radps, *goal))
            s_dot = reference.qdd_radps2 - qdd + law.slope_per_s * error.e_dot_radps
            xi = np.concatenate([error.e_rad, error.s_radps], axis=-1)
            xi_dot = np.concatenate([error.e_dot_radps, s_dot], axis=-1)
            rows.append((xi, xi_dot, step.decision.was_moved))
            state = plant.step(step.effort_nm)
    return ErrorMotion(*(np.concatenate(column) for column in zip(*rows, strict=True)))


class LyapunovFit:
    """Q as a learnable matrix."""

    def __init__(
        self, settings: Settings, floor: float = Q_FLOOR, learning_rate: float = 0.02
    ) -> None:
        self._floor = floor
        lyapunov, law = settings.controller.lyapunov, settings.controller.law
        self._num_joints = settings.controller.num_joints
        size = 2 * self._num_joints
        self._alpha = lyapunov.alpha_per_s
        self._target_error_rad = lyapunov.target_error_rad
        shifted = closed_loop_matrix(law, self._num_joints) + 0.5 * self._alpha * np.eye(size)
        identity = np.eye(size)
        operator = np.kron(shifted.T, identity) + np.kron(identity, shifted.T)
        self._solve = torch.tensor(-np.linalg.inv(operator))
        self._factor = torch.eye(size, dtype=torch.float64, requires_grad=True)
        self._optimiser = torch.optim.Adam([self._factor], lr=learning_rate)

    def matrices(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return Q and P, scaled together so that tr P = 2 n."""
        lower = torch.tril(self._factor)
        size = lower.shape[0]
        learned = lower @ lower.T
        Q = size * learned / torch.trace(learned)
        Q = Q + self._floor * torch.eye(size, dtype=torch.float64)
        P = (self._solve @ Q.reshape(-1)).reshape(size, size)
        P = 0.5 * (P + P.T)
        scale = size / torch.trace(P)
        return scale * Q, scale * P

    def excess(self, P: torch.Tensor, xi: torch.Tensor, xi_dot: torch.Tensor) -> torch.Tensor:
        """Return (V_dot + alpha (V - v_0)) / (V + v_0), shape (N,): above 0 is a violation."""
        value = 0.5 * torch.einsum('ni,ij,nj->n', xi, P, xi)
        rate = torch.einsum('ni,ij,nj->n', xi, P, xi_dot)
        stiffest = torch.linalg.eigvalsh(P[: self._num_joints, : self._num_joints])[-1]
        level = 0.5 * stiffest * self._target_error_rad**2
        excess = rate + self._alpha * (value - level)
        relative: torch.Tensor = excess / (value + level + 1e-12)
        return relative

    def improve(self, xi: torch.Tensor, xi_dot: torch.Tensor) -> float:
        """Take one gradient step on the hinge loss and return it."""
        loss = torch.relu(self.excess(self.matrices()[1], xi, xi_dot)).mean()
        self._optimiser.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        self._optimiser.step()
        return float(loss.detach())

    def violation_rate(self, P: Array, motion: ErrorMotion) -> float:
        """Return the share of samples on which the condition fails for a matrix P."""
        tensors = (torch.tensor(x) for x in (P, motion.xi, motion.xi_dot))
        return float((self.excess(*tensors) > 0.0).double().mean())


def fit(
    settings: Settings, num_steps: int, tau_z_s: float, floor: float, console: Console
) -> dict[str, Any]:
    """Fit P on training rollouts, judge it on held-out ones, and return the report."""
    # The shield only counts here, or the data would depend on the P that is to be fitted.
    training = [
        sample_motion(settings, TRAINING_SEED, kind, tau_z_s, enforcement='count')
        for kind in KINDS
    ]
    xi, xi_dot = (
        torch.tensor(np.concatenate([getattr(motion, name) for motion in training]))
        for name in ('xi', 'xi_dot')
    )
    learner, losses = LyapunovFit(settings, floor), []
    for _ in track(range(num_steps), 'fitting Q', console=console):
        losses.append(learner.improve(xi, xi_dot))
    Q, P = (np.round(matrix.detach().numpy(), 6) for matrix in learner.matrices())
    lyapunov = replace(settings.controller.lyapunov, p_matrix=tuple(map(tuple, P.tolist())))
    fitted = replace(settings, controller=replace(settings.controller, lyapunov=lyapunov))
    # Both matrices are judged on the same rollouts, which neither of them has shaped.
    held_out = {
        kind: sample_motion(fitted, HELD_OUT_SEED, kind, tau_z_s, 'count') for kind in KINDS
    }
    identity = np.eye(len(P))
    return {
        'tau_z': tau_z_s,
        'alpha_per_s': settings.controller.lyapunov.alpha_per_s,
        'p_matrix': P.tolist(),
        'q_matrix': Q.tolist(),
        'loss_first': losses[0],
        'loss_last': losses[-1],
        'violation_rate': {
            kind: {
                'fitted': learner.violation_rate(P, motion),
                'identity': learner.violation_rate(identity, motion),
            }
            for kind, motion in held_out.items()
        },
        'shield_activation': {k: float(m.was_moved.mean()) for k, m in held_out.items()},
        'q_floor': floor,
        'smallest_eigenvalue_of_p': float(np.linalg.eigvalsh(P).min()),
        'num_samples': len(xi),
        'num_steps': num_steps,
        **provenance(settings),
    }


def certified_by(
    settings: Settings,
    rho_nm: Array,
    P: Array,
    payload_max_kg: float = 0.0,
    alpha_per_s: float | None = None,
) -> dict[str, Any]:
    """Return what P, which must certify the nominal gains, promises on the arm of settings.

    That is for an estimate that is off by at most rho, and at the rate of the settings unless
    another is given.
    """
    alpha = settings.controller.lyapunov.alpha_per_s if alpha_per_s is None else alpha_per_s
    inertias = settings.arm.sample_inertias(payload_max_kg)
    inverse = np.asarray(np.linalg.inv(inertias), dtype=np.float64)
    level = margin_level(P, settings.controller.law, alpha, rho_nm, inverse)
    promised = {'v_0': level, 'error_radius_rad': error_radius(P, level)}
    return {'p_matrix': P.tolist(), 'alpha_per_s': alpha, **promised}


def fit_radius(
    settings: Settings, rho_nm: Sequence[float], payload_max_kg: float = 0.0
) -> dict[str, Any]:
    """Search for the P and alpha with the least certified error; return the report.

    Args:
        settings: With the present P.
        rho_nm: Of each joint.
        payload_max_kg: The heaviest payload that the law's model may have.

    Raises:
        ConfigError: If there is not one rho above zero for each joint.
    """
    controller, rho, num_joints = settings.controller, np.array(rho_nm), len(rho_nm)
    if num_joints != controller.num_joints or not (np.isfinite(rho) & (rho > 0.0)).all():
        raise ConfigError(
            f'--rho: expected {controller.num_joints} numbers above 0, one per joint, N m, found '
            f'{list(rho_nm)}.'
        )
    law, most = controller.law, math.sqrt(SPEED_S2)

    def cost(entries: Array) -> float:
        alpha, cross = float(entries[0]), float(entries[1])
        if not (0.0 < alpha < 2.0 * law.slope_per_s and abs(cross) < most):
            return math.inf
        P = kronecker_matrix(cross, SPEED_S2, num_joints)
        slack = np.linalg.eigvalsh(certificate_matrix(P, law, alpha))
        if slack.min() <= CERTIFIED_SHARE * slack.mean():
            return math.inf
        found = certified_by(settings, rho, P, payload_max_kg, alpha)
        return float(found['error_radius_rad'])

    simplex = np.array([[2.0, 0.0], [4.0, 0.0], [2.0, 0.2 * most]])
    options = {'initial_simplex': simplex, 'xatol': 1e-4, 'fatol': 1e-9}
    best = minimize(cost, simplex[0], method='Nelder-Mead', options=options).x
    alpha = round(float(best[0]), 2)
    fitted: Array = kronecker_matrix(best[1], SPEED_S2, num_joints).round(6)
    stated = replace(
        controller.lyapunov,
        alpha_per_s=alpha,
        p_matrix=tuple(map(tuple, fitted.tolist())),
        rho_nm=tuple(rho.tolist()),
    )
    inertias = settings.arm.sample_inertias(payload_max_kg)
    LyapunovFunction(stated, law, inertias)  # refuses what is none
    present = np.array(controller.lyapunov.p_matrix)
    return {
        'rho_nm': rho.tolist(),
        'present': certified_by(settings, rho, present, payload_max_kg),
        'fitted': certified_by(settings, rho, fitted, payload_max_kg, alpha),
        **provenance(settings),
    }


def _print_radius(console: Console, report: dict[str, Any]) -> None:
    rho = ' and '.join(f'{x:g}' for x in report['rho_nm'])
    title = f'certified while the estimate is off by at most {rho} N m'
    table = Table('P', 'alpha [1/s]', 'v_0', 'largest error [mrad]', title=title)
    for name in ('present', 'fitted'):
        row = report[name]
        radius = f'{1e3 * row["error_radius_rad"]:.2f}'
        table.add_row(name, f'{row["alpha_per_s"]:g}', f'{row["v_0"]:.3g}', radius)
    console.print(table)
    console.print('p_matrix:', report['fitted']['p_matrix'])


@refusing
def main(arguments: Sequence[str] | None = None) -> int:
    """Fit, print a table and write the report."""
    parser = command_parser('lyapunov_fit', __doc__)
    add = parser.add_argument
    text = 'N m per joint: fit for the least certified error'
    add('--rho', type=float, nargs='+', help=text)
    add('--steps', type=int, default=600, help='gradient steps (%(default)s)')
    add('--tau-z', type=float, default=2.0, help='s (%(default)s)')
    add('--floor', type=float, default=Q_FLOOR, help='eps of Q (%(default)s)')
    text = '(results/lyapunov.json, with --rho results/lyapunov_rho.json)'
    add('--out', type=Path, help=text)
    args = parser.parse_args(arguments)
    console = Console()
    if args.rho is not None:
        report = fit_radius(load_settings(), args.rho)
        write_json(args.out or Path('results/lyapunov_rho.json'), report)
        _print_radius(console, report)
        return 0
    torch.set_num_threads(1)
    torch.manual_seed(0)
    report = fit(load_settings(), args.steps, args.tau_z, args.floor, console)
    write_json(args.out or Path('results/lyapunov.json'), report)
    title = 'share of held-out samples that violate V_dot + alpha (V - v_0) <= 0'
    table = Table('gains', 'fitted P', 'P = I', 'shield activation', title=title)
    for kind, rate in report['violation_rate'].items():
        moved = report['shield_activation'][kind]
        table.add_row(kind, f'{rate["fitted"]:.3f}', f'{rate["identity"]:.3f}', f'{moved:.3f}')
    console.print(table)
    console.print('p_matrix:', report['p_matrix'])
    return 0


if __name__ == '__main__':
    raise SystemExit(main())
