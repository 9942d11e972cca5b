# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""The adaptive law of a bundle on another arm, zero-shot: nothing is trained.

    metactl adapt --arm my_arm.yaml --out my_arm.metactl

Weights are shared over joints, tokens and gains are in units of the arm (friction as a share of
its effort limits, innovations as accelerations), and the rated payload is that of its arm file.

The margin rho of the shield is measured in a simulation of the arm with the friction that arms get
by default: the conformal quantile of how far the estimate is off, with payloads from none to the
rated one that nobody tells of. It says so on the card. On the arm itself friction may be other.
"""

from dataclasses import replace
import io
import json
from pathlib import Path
from typing import Any, cast, NamedTuple

import numpy as np

from metactl_ros.baselines import load_learned, on_bank
from metactl_ros.config import stated
from metactl_ros.control.estimators.bank import BankSettings
from metactl_ros.control.loop import ControlLoop
from metactl_ros.control.settings import ControllerSettings
from metactl_ros.control.window import feature_names
from metactl_ros.dynamics.urdf_arm import FromUrdf
from metactl_ros.errors import BundleError, ConfigError
from metactl_ros.metrics import conformal_rho, is_lost
from metactl_ros.policy.bundle import Bundle, read_sealed, sha256_of, write_sealed
from metactl_ros.policy.card import write_card
from metactl_ros.policy.contract import (
    action_size,
    CHAIN_SCHEMA,
    Contract,
    hash_of,
    parse_contract,
    token_scales,
)
from metactl_ros.policy.for_joints import like_action, like_windows, network_for
from metactl_ros.policy.network import (
    GOLDEN_TOLERANCE,
    INPUT,
    OnnxPolicy,
    OUTPUT,
    PolicyShape,
    read_golden,
)
from metactl_ros.policy.onnx_file import MisfitError
from metactl_ros.policy.onnx_graph import check_graph
from metactl_ros.settings import make_plant, Settings
from metactl_ros.signals import Array, seconds
from metactl_ros.sim.task import draw_evaluation

LEAST_RATED_KG = 0.1
"""What the bank takes an arm to be rated for that is rated for nothing."""
SEED, ROLLOUTS, PAYLOAD_SHARES = 9001, 2, (0.0, 0.5, 1.0)
"""Of the calibration: episodes of each payload, which is a share of the rated one."""
SETTLED_S, TAU_Z_S, COVERAGE = 1.0, 2.0, 0.99
"""Until then it warms up, as on a robot, and the estimate is not yet of this arm."""
NUM_MIXED = 8
"""Golden windows in which every joint sees something else."""


class AdaptedLaw(NamedTuple):
    """A law, ready for a loop of another arm."""

    controller: ControllerSettings
    policy: OnnxPolicy
    model: bytes
    """The network, as an ONNX file."""
    source: Contract
    """Of the bundle that it is from."""


def adapted_law(path: Path, arm: FromUrdf, robot: ControllerSettings) -> AdaptedLaw:
    """Return the law of a bundle for an arm, without a margin; see `calibrated`.

    Raises:
        BundleError: If the bundle is not sound, holds another law, or runs at another rate.
    """
    files = read_sealed(path)
    source = parse_contract(path / 'contract.json', files['contract.json'])
    bank = _bank_of(path, source)
    if source.law.rate_hz != robot.law.rate_hz or source.law.slope_per_s != robot.law.slope_per_s:
        raise BundleError(
            f'{path}: was trained at {source.law.rate_hz:g} Hz with slope '
            f'{source.law.slope_per_s:g} 1/s, this robot has {robot.law.rate_hz:g} Hz and '
            f'{robot.law.slope_per_s:g} 1/s; give the robot these, or take a classical controller.'
        )
    rated_kg = max(arm.checked.file.rated_payload_kg, LEAST_RATED_KG)
    num_rows, num_joints = source.context.num_rows, robot.num_joints
    controller = on_bank(robot, replace(bank, payload_max_kg=rated_kg))
    controller = replace(controller, context=replace(controller.context, num_rows=num_rows))
    try:
        model = network_for(
            files['policy.onnx'], len(source.made_for.joint_names), num_joints, bank.num_delays
        )
    except MisfitError as error:
        raise BundleError(
            f'{path}/policy.onnx: {error}; give the bundle of an adaptive law.'
        ) from None
    check_graph(path / 'policy.onnx', model)
    num_features = len(feature_names(arm.joint_names, controller.context.num_extra))
    shape = PolicyShape(num_rows, num_features, action_size(controller))
    return AdaptedLaw(controller, OnnxPolicy(model, shape), model, source)


def _bank_of(path: Path, source: Contract) -> BankSettings:
    bank = None if source.estimator is None else source.estimator.bank
    if bank is None or not bank.is_scheduled:
        raise BundleError(
            f'{path}: holds no adaptive law, the only one that fits other arms; take adaptive, or '
            'a classical controller.'
        )
    return bank


class Calibration(NamedTuple):
    """How far the estimate is off in a simulation, N m."""

    off_nm: Array
    """Shape (T, N, n)."""
    windows: Array
    """Some of what the policy saw, shape (N, W, F)."""


def simulate(law: AdaptedLaw, settings: Settings) -> Calibration:
    """Drive the simulated arm with ideal sensors, from warm-up on, the payload told to nobody.

    d is what the law's model lacks on average over a period, from positions and velocities at both
    of its ends.

    Raises:
        BundleError: If the law loses the arm.
    """
    levels = settings.plant.task.payload_max_kg * np.array(PAYLOAD_SHARES)
    drawn = draw_evaluation(settings.plant.task, SEED, 0.0, ROLLOUTS * len(levels), TAU_Z_S)
    payload_kg = np.repeat(levels, ROLLOUTS)
    start, reference = replace(drawn.start, payload_kg=payload_kg), drawn.reference
    plant = make_plant('pinocchio', settings)
    loop = ControlLoop(settings.arm, law.controller)
    state = plant.reset(start)
    loop.reset(state)
    rows, errors, windows, dt_s = [], [], [], 1.0 / law.controller.law.rate_hz
    for tick in range(settings.episode_steps):
        aim = reference.at(seconds(state.stamp_ns))
        window = loop.observe(state, aim, np.zeros(len(payload_kg)))
        step = loop.actuate(law.policy(window), state, aim, state.stamp_ns)
        later = plant.step(step.effort_nm)
        assert step.estimate is not None
        q, qd = 0.5 * (state.q_rad + later.q_rad), 0.5 * (state.qd_radps + later.qd_radps)
        posture = settings.arm.body(step.estimate.payload_kg).at(q, qd)
        qdd = (later.qd_radps - state.qd_radps) / dt_s
        lack = step.effort_nm - posture.apply(qdd) - posture.bias
        rows.append(lack - step.estimate.d_nm)
        errors.append(aim.q_rad - state.q_rad)
        if tick % (settings.episode_steps // NUM_MIXED) == 0:
            windows.append(window[tick % len(payload_kg)])
        state = later
    error = np.stack(errors)
    if is_lost(error, np.zeros_like(error)).any():
        raise BundleError(
            'the law loses this arm in a simulation, although sensors are ideal; take a classical '
            'controller, for example momentum_observer.'
        )
    return Calibration(np.stack(rows)[round(SETTLED_S / dt_s) :], np.stack(windows))


def adapt(source: Path, out: Path, settings: Settings, command: tuple[str, ...]) -> Bundle:
    """Write the bundle of an arm, and return it, loaded as a robot would.

    Raises:
        BundleError: If the source does not fit, the law loses the arm, or `out` is there.
        ConfigError: If the arm is not from a URDF.
    """
    arm = settings.arm
    if not isinstance(arm, FromUrdf):
        raise ConfigError(
            'arm: expected one from a URDF, found the two-link arm; the shipped '
            'bundle is for that.'
        )
    if out.suffix != '.metactl':
        raise BundleError(f'{out}: expected a name that ends in .metactl.')
    law = adapted_law(source, arm, settings.controller)
    seen = simulate(law, settings)
    rho = tuple(float(f'{x:.3g}') for x in conformal_rho(seen.off_nm, COVERAGE))
    controller = replace(law.controller, lyapunov=replace(law.controller.lyapunov, rho_nm=rho))
    certified = ControlLoop(arm, controller).lyapunov
    chain = arm.reduced()
    record: dict[str, Any] = {
        **cast('dict[str, Any]', law.source.training),
        'adapted_from': sha256_of(source),
        'command': list(command),
        'certified': {
            'error_radius_mrad': 1e3 * certified.error_radius_rad,
            'coverage_asked': COVERAGE,
            'coverage': float((np.abs(seen.off_nm) <= rho).all(axis=-1).mean()),
            'is_simulated': True,
        },
    }
    contract = Contract(
        schema_version=CHAIN_SCHEMA,
        arm=None,
        chain=chain,
        arm_sha256=hash_of(chain),
        law=controller.law,
        gain_box=controller.gain_box,
        lyapunov=controller.lyapunov,
        context=controller.context,
        features=feature_names(arm.joint_names, controller.context.num_extra),
        tokens=token_scales(law.source.tokens.kind),
        training=record,
        estimator=controller.estimator,
    )
    windows, actions, apart = _golden(source, law, seen.windows)
    arrays = io.BytesIO()
    contents: dict[str, Any] = {INPUT: windows.astype(np.float32), OUTPUT: actions}
    np.savez(arrays, **contents)
    card = write_card(out.name, contract, action_size(contract), (), apart, len(windows))
    table = json.dumps(stated(contract), indent=2, allow_nan=False)
    files = {
        'card.md': card.encode(),
        'contract.json': f'{table}\n'.encode(),
        'golden.npz': arrays.getvalue(),
        'policy.onnx': law.model,
    }
    return write_sealed(
        out, files, lambda path: load_learned(path, arm, settings.controller), may_replace=False
    )


def _golden(source: Path, law: AdaptedLaw, mixed: Array) -> tuple[Array, Array, float]:
    """Return golden windows and actions, and by how much the source differs where it can be asked.

    Where all joints see the same the source says what they do, and its word is kept.
    """
    files, before = read_sealed(source), len(law.source.made_for.joint_names)
    shape = PolicyShape(
        law.source.context.num_rows, len(law.source.features), action_size(law.source)
    )
    golden, _ = read_golden(files['golden.npz'], shape)
    bank = _bank_of(source, law.source)
    n = law.controller.num_joints
    asked, alike = like_windows(golden, before, n)
    said = like_action(OnnxPolicy(files['policy.onnx'], shape)(asked), before, n, bank.num_delays)
    apart = float(np.abs(law.policy(alike) - said).max())
    if not apart <= GOLDEN_TOLERANCE:
        raise BundleError(
            f'{source}/policy.onnx: joints that see the same act differently by {apart:.3g} with '
            f'{n} joints; give the bundle of an adaptive law.'
        )
    windows = np.concatenate((alike, mixed.astype(np.float32).astype(np.float64)))
    return windows, np.concatenate((said, law.policy(windows[len(alike) :]))), apart
