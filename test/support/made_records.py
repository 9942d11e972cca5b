# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""Records as training.evaluate writes them, made from the kept ones of the fixed gains."""

import copy
import json
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
COMMIT = '0123456789ab'


def kept_baselines(plant):
    """The kept evaluation of the fixed-gain controller, by tau_z."""
    kept = json.loads((ROOT / 'results' / f'baseline_{plant}.json').read_text())
    return {record['tau_z']: record for record in kept}


def trained(baseline, delta, **changes):
    """Return the record of a run that changes the baseline's RMSE by delta percent."""
    record = copy.deepcopy(baseline)
    factor = 1.0 if delta is None else 1.0 + delta / 100.0
    record['rmse_by_payload'] = [factor * rmse for rmse in baseline['rmse_by_payload']]
    record |= {'controller': 'meta', 'delta_percent': delta, 'rmse': factor * baseline['rmse']}
    if delta is None:
        record |= {'rmse': None, 'num_lost': 20}
        record['rmse_by_payload'][-1] = record['rmse_std_by_payload'][-1] = None
    return record | changes


def cells(baselines, deltas, **changes):
    """Return a run per delta, seeds from 42 on; deltas by tau_z."""
    return [
        trained(baselines[tau_z], delta, seed=42 + number, **changes)
        for tau_z, own in deltas.items()
        for number, delta in enumerate(own)
    ]


def judgements(norms):
    """Return what a run was like on its way; gradient norms by judgement, layer and head."""
    return [
        {
            'step': 2500 * (number + 1),
            'payload_sensitivity': [0.1] * 8,
            'layers': [{'gradient_norm': heads, 'num_idle': 0} for heads in layers],
        }
        for number, layers in enumerate(norms)
    ]


def of_study(run, delta, **changes):
    """Return the record of a run of a study, made by one commit, with heads that all learn."""
    baselines = kept_baselines(run.plant)
    base = baselines.get(run.tau_z, baselines[2.0])
    depth = {'transformer': 2, 'attention_l2': 2, 'attention_l2_ffn': 2, 'attention_l3': 3}
    num_layers = 1 if run.model == 'incrt' else depth.get(run.model, 0)
    found = judgements([[[1.0] * run.heads] * num_layers] * 4)
    facts = {
        'commit': COMMIT,
        'code': COMMIT,
        'controller': run.model,
        'model': run.model,
        'heads': run.heads,
        'window': run.window,
        'preset': run.preset,
        'steps': run.steps,
        'lagrangian_rate': run.hyper.lagrangian_rate,
        'learned_on': run.controller,
        'tau_z': run.tau_z,
        'seed': run.seed,
        'num_parameters': 1_000 * run.heads * run.window,
        'head_report': {'step': run.steps, 'payload_sensitivity': [0.1] * 8, 'layers': []},
        'judgements': found,
    }
    return trained(base, delta, **facts | changes)


def record(**changes):
    """Return the smallest record that is one, without a file behind it."""
    settings = {
        'arm': {'gravity_mps2': 9.81},
        'plant': {'friction': {'coulomb_nm': 2.0}, 'task': {'tau_z_s': 2.0, 'omega': [1.0]}},
        'controller': {'law': {'rate_hz': 100.0, 'nominal_kd_per_s': 30.0}, 'gain_box': [10, 60]},
    }
    return {
        'controller': 'meta',
        'plant': 'rk4',
        'tau_z': 2.0,
        'seed': 42,
        'num_parameters': 100,
        'rmse': 0.06,
        'baseline_rmse': 0.12,
        'delta_percent': -50.0,
        'payload_levels_kg': [0.0, 1.5],
        'rmse_by_payload': [0.05, 0.07],
        'rmse_std_by_payload': [0.01, 0.01],
        'num_rollouts_per_payload': 20,
        'num_steps': 500,
        'num_lost': 0,
        'settings': settings,
    } | changes
