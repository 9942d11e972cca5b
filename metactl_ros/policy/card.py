# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""The card of a bundle: one page for people, written from its contract and its results."""

from collections.abc import Mapping, Sequence
from typing import Any, cast

import numpy as np

from metactl_ros.control.gain_map import Ends, pairs_of
from metactl_ros.control.lyapunov import LyapunovSettings
from metactl_ros.policy.contract import Contract

TEMPLATE = """\
# {name}

A policy that reads the last {rows} observations of {an_arm}, {features} numbers each, and
proposes {proposes}, {rate:g} times a second. Deterministic; its
network is in `policy.onnx`, the normalisation of its input included.

| | |
|---|---|
| joints | {joints} |
{training}
| command | `{command}` |
{checked}

## Results

{results}

## Shield

A proposal is not a torque. Each goes through the shield of metactl_ros, which moves it to the
nearest gains with V_dot + {alpha:g} (V - v_0) <= 0 on {body} and within the gain box, and
takes the nominal gains where there are none. {level} K_d {kd} 1/s,
Lambda {slope} 1/s{kp}{columns}. Efforts are limited to {effort} N m.

## Limits

- Made for one arm (SHA-256 {arm}) and the settings in `contract.json`; a robot with any
  other masses, lengths, limits, law, gain box or Lyapunov function refuses it.
- {holds_for}
- {trained_for}
- Research-grade: not a safety-rated function.

## Check it

    sha256sum -c SHA256SUMS
    metactl inspect {name}
"""

LEARNED = """\
| model | {model}, {heads} heads, W = {rows}, tokens `{tokens}` |
| trained | preset `{preset}`, {steps} steps, seed {seed} |
| trained on | plant `{plant}`, tau_z = {tau_z:g} s, payload up to {payload:g} kg |"""
ADAPTED = """\
| model | {kind}, {heads} heads, W = {rows}, over the innovations of {delays} observers |
| trained | through random worlds, {updates} updates, seed {seed} |
| certified | tracks within {radius:.1f} mrad while the estimate is within rho, which held on \
{coverage:.1f} % of the ticks at tau_2 |"""
SIMULATED = """\
| certified | tracks within {radius:.1f} mrad while the estimate is within rho, which held on \
{coverage:.1f} % of the ticks of a **simulation** of this arm with the friction that arms get by \
default, not of the arm |"""
EXPORTED = (
    '| torch and onnxruntime | differ by at most {agreement:.1e} on {num_windows} windows of '
    'rollouts |'
)
TAKEN_OVER = """\
| for this arm | not trained: the network of the bundle with SHA-256 {source:.16}, whose weights \
all joints share |
| checked | joints that see the same act as in that bundle, to {agreement:.1e} on {num_windows} \
windows |"""
TRAINED = 'Beyond the payload, memory horizon and motions above it has not been trained.'
ADAPTED_FOR = 'States that come more than {late:g} ms late are beyond all of its observers.'
RESULTS_HEAD = """\
| plant | tau_z | RMSE | fixed gains | change | shield moved | rollouts | lost |
|---|---|---|---|---|---|---|---|
"""
RUN_FIELDS = ('model', 'heads', 'preset', 'steps', 'seed', 'plant', 'tau_z')
"""Of the options of `training.train`, what the card names."""
NOMINAL = (
    'The certificate holds for the nominal arm; friction and an unmodelled payload are not in it.'
)
ESTIMATED = (
    'The certificate counts on the estimate of friction and payload, and says nothing while that '
    'is further off than v_0 allows for.'
)
NO_RESULTS = 'No evaluation was given to the exporter.'


def write_card(
    name: str,
    contract: Contract,
    num_actions: int,
    results: Sequence[Mapping[str, Any]],
    agreement: float,
    num_windows: int,
) -> str:
    """Return the card as Markdown.

    Args:
        name: Of the bundle's directory.
        contract: Whose record of the training the exporter wrote.
        num_actions: m.
        results: Records of training.evaluate of this very policy; may be empty.
        agreement: Largest difference between torch and onnxruntime.
        num_windows: On so many windows.
    """
    training = cast('Mapping[str, Any]', contract.training)
    box, num_joints = contract.gain_box, len(contract.made_for.joint_names)
    rows = [_result_row(result) for result in results]
    bank = None if contract.estimator is None else contract.estimator.bank
    return TEMPLATE.format(
        name=name,
        rows=contract.context.num_rows,
        features=len(contract.features),
        proposes=_proposes(num_actions, num_joints * len(box.named_ends())),
        rate=contract.law.rate_hz,
        joints=', '.join(contract.made_for.joint_names),
        training=_training(contract, training),
        command=' '.join(training['command']),
        an_arm='a two-link arm' if contract.chain is None else f'an arm with {num_joints} joints',
        checked=(EXPORTED if contract.chain is None else TAKEN_OVER).format(
            agreement=agreement, num_windows=num_windows, source=training.get('adapted_from')
        ),
        results=RESULTS_HEAD + '\n'.join(rows) if rows else NO_RESULTS,
        alpha=contract.lyapunov.alpha_per_s,
        body='the nominal arm' + ' with what is estimated' * box.layout.counts_on_estimate,
        level=_level(contract.lyapunov),
        holds_for=ESTIMATED if box.layout.counts_on_estimate else NOMINAL,
        kd=_range(box.kd_per_s),
        slope=_range(box.lambda_per_s),
        kp='' if box.kp_per_s2 is None else f', K_p {_range(box.kp_per_s2)} 1/s^2',
        columns=''.join(f', {entry.column} {_range(entry.ends)}' for entry in box.feed_forward),
        effort=' and '.join(f'{limit:g}' for limit in contract.made_for.limits.effort_nm),
        arm=contract.arm_sha256[:16],
        trained_for=TRAINED
        if bank is None
        else ADAPTED_FOR.format(late=1e3 * (bank.num_delays - 1) / contract.law.rate_hz),
    )


def _proposes(num_actions: int, num_gains: int) -> str:
    """Return what an action is."""
    text = f'{num_gains} gains for its computed-torque law'
    if num_actions == num_gains:
        return text
    return f'{text}, and the {num_actions - num_gains} numbers that correct its observers'


def _training(contract: Contract, training: Mapping[str, Any]) -> str:
    """Return the rows of the table that tell of the training."""
    run, rows = training['run'], contract.context.num_rows
    bank = None if contract.estimator is None else contract.estimator.bank
    if bank is None or 'certified' not in training:  # SAC, on a bank or not
        return LEARNED.format(
            rows=rows,
            tokens=contract.tokens.kind,
            payload=training['plant']['task']['payload_max_kg'],
            **{name: run[name] for name in RUN_FIELDS},
        )
    form = ADAPTED
    if contract.chain is not None:
        form = f'{ADAPTED[: ADAPTED.index("| certified")]}{SIMULATED}'
    return form.format(
        rows=rows,
        kind=run['shape']['kind'],
        heads=run['shape']['heads'],
        updates=run['updates'],
        seed=run['seed'],
        delays=bank.num_delays,
        radius=training['certified']['error_radius_mrad'],
        coverage=100.0
        * training['certified']['coverage_tau_2' if contract.chain is None else 'coverage'],
    )


def _level(lyapunov: LyapunovSettings) -> str:
    """Return what v_0 allows for, as a sentence."""
    if not lyapunov.has_margin:
        return f'v_0 allows an error of {lyapunov.target_error_rad:g} rad.'
    off = ' and '.join(f'{rho:g}' for rho in np.atleast_1d(lyapunov.rho_nm).tolist())
    return f'v_0 allows for an estimate that is off by {off} N m.'


def _range(ends: Ends) -> str:
    return ' and '.join(f'{least:g} to {largest:g}' for least, largest in pairs_of(ends))


def _result_row(result: Mapping[str, Any]) -> str:
    """Return a record of training.evaluate as a row; of a lost rollout there may be no RMSE."""
    rollouts = result['num_rollouts_per_payload'] * len(result['payload_levels_kg'])
    cells = [
        result['plant'],
        f'{result["tau_z"]:g} s',
        _number(result['rmse'], '.4f', ' rad'),
        _number(result['baseline_rmse'], '.4f', ' rad'),
        _number(result['delta_percent'], '+.1f', ' %'),
        _number(100.0 * result['shield_activation'], '.1f', ' %'),
        str(rollouts),
        str(result.get('num_lost', result.get('num_diverged', '-'))),  # its older name
    ]
    return f'| {" | ".join(cells)} |'


def _number(value: float | None, form: str, unit: str) -> str:
    return '-' if value is None else f'{value:{form}}{unit}'
