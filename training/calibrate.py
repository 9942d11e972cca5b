# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""How far an adaptive law's estimate is off on the true arm, and what it certifies for that.

    python -m training.calibrate --run runs/adapt/seed1 --out results/adaptive_calibration.json

The arm is driven on episodes that are neither trained nor judged on, with ideal sensors. rho is
the conformal quantile of |d - d^| over them: of a new episode of the same kind, the estimate of
every joint is within rho on at least --coverage of the ticks, on average. For this rho the P with
the least certified error is searched for (training.lyapunov_fit). Both go into the bundle
(training.export), and every regime of the benchmark is then checked on the true arm: coverage, the
condition, and errors beyond the certified one.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from rich.console import Console

from metactl_ros.control.loop import ControlLoop
from metactl_ros.control.lyapunov import LyapunovSettings
from metactl_ros.control.settings import ControllerSettings
from metactl_ros.control.shield import Enforcement
from metactl_ros.dynamics.two_link import TwoLinkBody
from metactl_ros.files import write_json
from metactl_ros.metrics import conformal_rho, is_lost
from metactl_ros.settings import load_settings, make_true_arm, provenance, Settings
from metactl_ros.signals import Array, each_arm, Policy, seconds
from metactl_ros.sim.plant import SensedPlant
from metactl_ros.sim.rk4_arm import Rk4Arm
from metactl_ros.sim.rollout import without_warmup
from metactl_ros.sim.task import Episode
from training.adaptive.finished import adaptive_controller, read_adapted
from training.benchmark import (
    baseline_peak,
    Benchmark,
    draw_cases,
    load_benchmark,
    Regime,
    settings_in,
)
from training.commands import command_parser, refusing
from training.lyapunov_fit import fit_radius

CALIBRATION = 'calibration.json'
"""In the folder of a run, unless another place is given."""
WARMUP_S = 0.5
"""Until then the estimate is not yet of this arm, and on a robot the nominal gains act (WARMUP):
rho and its coverage are of what comes after."""
TRANSIENT_S = 0.1
"""From then on the condition is counted."""
CALIBRATED_IN = ('tau_1', 'tau_2', 'tau_5', 'tau_drift')
SEED, ROLLOUTS = 9001, 20
"""Of the calibration: neither those of tuning nor those of judging."""
CHECK_SEED, CHECK_ROLLOUTS = 9002, 6


class TrueRun(NamedTuple):
    """What really happened in a batch of episodes; time first, (T, N, n) unless stated."""

    off_nm: Array
    """d - d^: what the law's model lacks, less what was estimated; d is the mean of both ends of
    the period in which the effort acts."""
    error_rad: Array
    value: Array
    """V of the true state, (T, N)."""
    excess: Array
    """V_dot + alpha (V - v_0) of the true motion, (T, N)."""
    was_moved: NDArray[np.bool_]
    """(T, N)."""


def run_true(
    settings: Settings,
    controller: ControllerSettings,
    policy: Policy,
    episodes: Episode,
    num_steps: int,
    enforcement: Enforcement = 'enforce',
) -> TrueRun:
    """Drive a batch of simulated arms and look at what no sensor shows."""
    arm = make_true_arm(settings)
    plant = SensedPlant(arm, settings.plant.sensing, controller.law.rate_hz)
    loop = ControlLoop(settings.arm, without_warmup(controller), enforcement)
    limit = settings.plant.sensing.actuator_limit_nm
    state = plant.reset(episodes.start)
    loop.reset(state)
    rows = []
    for _ in range(num_steps):
        reference = episodes.reference.at(seconds(state.stamp_ns))
        window = loop.observe(state, reference, episodes.payload_estimate_kg)
        step = loop.actuate(policy(window), state, reference, state.stamp_ns)
        given = step.effort_nm
        if limit is not None:
            given = np.clip(given, -np.array(limit), limit)
        truth, qdd = arm.true_state, arm.acceleration(given)
        assert step.estimate is not None
        model = settings.two_link.body(step.estimate.payload_kg)
        lack = _lack(arm, model, step.effort_nm, given)
        e, e_dot = reference.q_rad - truth.q_rad, reference.qd_radps - truth.qd_radps
        slope = controller.law.slope_per_s
        xi = np.concatenate((e, e_dot + slope * e), axis=-1)
        xi_dot = np.concatenate((e_dot, reference.qdd_radps2 - qdd + slope * e_dot), axis=-1)
        gradient = xi @ loop.lyapunov.P
        value = 0.5 * np.sum(xi * gradient, axis=-1)
        rise = np.sum(xi_dot * gradient, axis=-1)
        excess = rise + loop.lyapunov.alpha_per_s * (value - loop.lyapunov.target_level)
        state = plant.step(step.effort_nm)
        mean = 0.5 * (lack + _lack(arm, model, step.effort_nm, given))
        rows.append((mean - step.estimate.d_nm, e, value, excess, step.decision.was_moved))
    return TrueRun(*(np.stack(column) for column in zip(*rows, strict=True)))


def _lack(arm: Rk4Arm, model: TwoLinkBody, sent_nm: Array, given_nm: Array) -> Array:
    """Return what of an effort a model does not explain now, N m; the motors gave another."""
    here = arm.true_state
    posture = model.at(here.q_rad, here.qd_radps)
    return sent_nm - posture.apply(arm.acceleration(given_nm)) - posture.bias


def episodes_of(
    settings: Settings, benchmark: Benchmark, regime: Regime, seed: int, rollouts: int
) -> Episode:
    """Return episodes with the payloads and references of judging, and a seed of their own."""
    cases = replace(benchmark.judging, seed=seed, rollouts=rollouts)
    return draw_cases(settings, regime, cases)


def check(
    settings: Settings,
    benchmark: Benchmark,
    controller: ControllerSettings,
    policy: Policy,
    peak_nm: tuple[float, ...],
) -> list[dict[str, Any]]:
    """Return, for every regime, how often what was certified holds on the true arm."""
    loop = ControlLoop(settings.arm, controller)
    rho = np.array(controller.lyapunov.rho_nm)
    rows = []
    for regime in benchmark.regimes:
        world = settings_in(settings, regime, peak_nm)
        episodes = episodes_of(world, benchmark, regime, CHECK_SEED, CHECK_ROLLOUTS)
        num_steps = round(regime.duration_s * controller.law.rate_hz)
        run = run_true(world, controller, policy, episodes, num_steps)
        later, settled = (
            round(time_s * controller.law.rate_hz) for time_s in (TRANSIENT_S, WARMUP_S)
        )
        is_covered = each_arm(np.abs(run.off_nm) <= rho)
        error = np.linalg.norm(run.error_rad, axis=-1)
        # From what V is when the warm-up ends it falls to v_0 by (6) of docs/theorem.md.
        ticks = np.arange(num_steps - settled)[:, np.newaxis]
        fall = np.exp(-controller.lyapunov.alpha_per_s / controller.law.rate_hz * ticks)
        level, radius = loop.lyapunov.target_level, loop.lyapunov.error_radius_rad
        bound = level + np.maximum(run.value[settled] - level, 0.0) * fall
        allowed = radius * np.sqrt(bound / level)
        has_held = np.minimum.accumulate(is_covered[settled:], axis=0)
        outside = run.value[later:] > loop.lyapunov.target_level
        rows.append(
            {
                'regime': regime.name,
                'coverage': float(is_covered[settled:].mean()),
                'condition_broken': float((outside & (run.excess[later:] > 0.0)).mean()),
                'condition_broken_covered': float(
                    (outside & (run.excess[later:] > 0.0) & is_covered[later:]).mean()
                ),
                'beyond_radius': float((error[settled:] > radius).mean()),
                'beyond_bound_while_covered': int(((error[settled:] > allowed) & has_held).sum()),
                'shield_activation': float(run.was_moved.mean()),
                'num_lost': int(is_lost(run.error_rad, np.zeros_like(run.error_rad)).sum()),
                'num_arms': run.error_rad.shape[1],
                'rmse_mrad': 1e3 * float(np.sqrt(np.mean(error**2, axis=0)).mean()),
            }
        )
    return rows


def certified_lyapunov(robot: LyapunovSettings, found: Mapping[str, Any]) -> LyapunovSettings:
    """Return a robot's condition with rho, P and alpha of a calibration, or of `fit_radius`."""
    fitted = found['fitted']
    return replace(
        robot,
        rho_nm=tuple(found['rho_nm']),
        alpha_per_s=fitted['alpha_per_s'],
        p_matrix=tuple(map(tuple, fitted['p_matrix'])),
    )


def calibrate(run: Path, coverage: float, console: Console) -> dict[str, Any]:
    """Return the calibration of a finished run."""
    settings, benchmark = load_settings(), load_benchmark()
    trained = read_adapted(run)
    controller = adaptive_controller(settings.controller, trained)
    policy = trained.policy(settings.controller.num_joints)
    settled = round(WARMUP_S * controller.law.rate_hz)
    offs = []
    for name in CALIBRATED_IN:
        regime = benchmark.regime(name)
        world = settings_in(settings, regime, ())
        episodes = episodes_of(world, benchmark, regime, SEED, ROLLOUTS)
        offs.append(run_true(world, controller, policy, episodes, settings.episode_steps).off_nm)
    off = np.concatenate(offs, axis=1)[settled:]
    rho = np.array([float(f'{x:.3g}') for x in conformal_rho(off, coverage)])
    loaded = controller.payload_max_kg
    fit = fit_radius(settings, rho.tolist(), payload_max_kg=loaded)
    certified = replace(controller, lyapunov=certified_lyapunov(controller.lyapunov, fit))
    console.print(
        f'rho {rho.tolist()} N m: {1e3 * fit["fitted"]["error_radius_rad"]:.2f} mrad',
        highlight=False,
    )
    return {
        'run': trained.record,
        'coverage_asked': coverage,
        'rho_nm': rho.tolist(),
        'quantiles_nm': {
            f'{level:g}': np.quantile(np.abs(off), level, axis=(0, 1)).tolist()
            for level in (0.5, 0.9, 0.99)
        },
        **{key: fit[key] for key in ('present', 'fitted')},
        'regimes': check(settings, benchmark, certified, policy, baseline_peak(benchmark)),
        **provenance(settings),
    }


@refusing
def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code: 0 done, 2 wrong use."""
    console = Console(stderr=True)
    parser = command_parser('calibrate', __doc__)
    add = parser.add_argument
    add('--run', type=Path, required=True, help='a finished run of training.adapt')
    add('--out', type=Path, help='write it here, too, besides RUN/calibration.json')
    add('--coverage', type=float, default=0.99, help='share of ticks (%(default)s)')
    args = parser.parse_args(arguments)
    found = calibrate(args.run, args.coverage, console)
    for out in (args.run / CALIBRATION, args.out):
        if out is not None:
            write_json(out, found)
            console.print(f'done: {out}', highlight=False)
    return 0


if __name__ == '__main__':
    raise SystemExit(main())
