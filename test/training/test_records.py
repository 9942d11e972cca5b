# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
import math

import numpy as np
import pytest
from support.made_records import judgements, record

from metactl_ros.errors import ConfigError
from training.judge.analysis import cells_of
from training.records import head_verdict, is_flat, label_of, num_silent, Run, run_from


def changed(section, name, value):
    settings = record()['settings']
    settings[section][name] = value
    return {'settings': settings}


@pytest.mark.parametrize(
    ('changes', 'said'),
    [
        ({'plant': 'bullet'}, "plant: expected 'rk4', as in a.json, found 'bullet'"),
        ({'num_steps': 400}, 'num_steps: expected 500, as in a.json, found 400'),
        ({'num_rollouts_per_payload': 8}, 'num_rollouts_per_payload: expected 20'),
        ({'payload_levels_kg': [0.0, 1.0]}, 'payload_levels_kg: expected [0.0, 1.5]'),
        (changed('plant', 'friction', {'coulomb_nm': 1}), 'settings.plant.friction.coulomb_nm: '),
        (changed('plant', 'task', {'omega': [2.0]}), 'settings.plant.task.omega: expected [1.0]'),
        (changed('arm', 'gravity_mps2', 1.6), 'settings.arm.gravity_mps2: expected 9.81'),
        (
            changed('controller', 'law', {'rate_hz': 50}),
            'settings.controller.law.nominal_kd_per_s: expected 30.0, as in a.json, found None',
        ),
    ],
)
def test_runs_of_different_protocols_are_refused_with_file_field_and_way_out(changes, said):
    runs = [run_from(record(), 'a.json'), run_from(record(seed=43, **changes), 'b.json')]
    with pytest.raises(ConfigError) as refusal:
        cells_of(runs)
    assert str(refusal.value).startswith('b.json: ')
    assert said in str(refusal.value)
    assert 'evaluate them again under one protocol, or report them' in str(refusal.value)


@pytest.mark.parametrize(
    'changes',
    [
        changed('controller', 'gain_box', [1, 2]),
        changed('plant', 'task', {'tau_z_s': 5.0, 'omega': [1.0]}),
    ],
)
def test_what_a_controller_may_choose_is_no_protocol(changes):
    runs = [run_from(record(), 'a.json'), run_from(record(seed=43, **changes), 'b.json')]
    assert [len(cell.runs) for cell in cells_of(runs).values()] == [2]


@pytest.mark.parametrize(
    ('bad', 'message'),
    [
        ([1, 2], 'expected records of training.evaluate'),
        ({'controller': 'ct'}, 'a record lacks plant, tau_z'),
        (record(tau_z=None), 'tau_z: expected a finite number, found None'),
        (record(delta_percent=math.nan), 'delta_percent: expected a finite number or null'),
        (record(seed='42'), "seed: expected a finite number, found '42'"),
        (record(heads='seven'), "heads: expected a finite number or null, found 'seven'"),
        (record(rmse_by_payload=[0.1]), 'rmse_by_payload: expected one number per payload'),
        (record(rmse_by_payload=[0.1, 'x']), 'rmse_by_payload: expected finite numbers or null'),
        (record(settings=None), 'settings: expected the resolved settings'),
        (record(steps='many'), "steps: expected a finite number or null, found 'many'"),
        (record(judgements=3), 'judgements: expected a list or nothing, found 3'),
    ],
)
def test_what_is_no_record_is_refused_with_file_and_field(bad, message):
    with pytest.raises(ConfigError) as refusal:
        run_from(bad, 'a.json')
    assert str(refusal.value).startswith(f'a.json: {message}')


def test_a_place_names_the_controller_its_size_and_its_horizon():
    run = run_from(record(model='incrt', heads=7, window=50), 'a.json')
    assert str(run.place) == 'incrt K=7 W=50, tau_z = 2 s'
    assert str(run_from(record(controller='ct'), 'a.json').place) == 'ct, tau_z = 2 s'


VARIED, FLAT = [0.10, 0.12, 0.15], [0.10, 0.102, 0.105]


def run(delta, *, by_payload=VARIED, num_lost=0):
    return Run({'delta_percent': delta, 'num_lost': num_lost, 'rmse_by_payload': by_payload}, '')


@pytest.mark.parametrize(
    ('candidate', 'label'),
    [
        (run(10.01), 'diverged'),
        (run(10.0), 'weak'),
        (run(-90.0, num_lost=1), 'diverged'),
        (run(None, by_payload=[0.1, None, None], num_lost=40), 'diverged'),
        (run(None), 'diverged'),
        (run(-39.99), 'weak'),
        (run(-40.0), 'healthy'),
        (run(-6.5, by_payload=FLAT), 'payload-invariant'),
        # 9.99 and 10 percent of a mean of 1.
        (run(-6.5, by_payload=[0.95005, 1.0, 1.04995]), 'payload-invariant'),
        (run(-6.5, by_payload=[0.95, 1.0, 1.05001]), 'weak'),
        # Good at every payload is adaptation, not blindness.
        (run(-85.0, by_payload=FLAT), 'healthy'),
    ],
)
def test_labels_follow_the_stated_bounds(candidate, label):
    found, reason = label_of(candidate, VARIED)
    assert found == label
    assert reason


def test_a_flat_run_is_excused_only_by_a_baseline_known_to_be_flat():
    flat = run(-6.5, by_payload=FLAT)
    assert label_of(flat, FLAT)[0] == 'weak'
    assert label_of(flat, None)[0] == 'payload-invariant'


def test_a_flat_profile_is_the_papers_signature_whatever_the_error():
    assert is_flat(FLAT)
    assert not is_flat(VARIED)
    assert not is_flat([0.1, None, 0.1])


@pytest.mark.parametrize(
    ('norms', 'expected'),
    [
        ([[1.0, 1.0, 1.0]] * 4, 0),
        # The mean is 0.7 with a head of 0.1, and 0.6767 with one of 0.03.
        ([[1.0, 1.0, 0.1]] * 4, 0),
        ([[1.0, 1.0, 0.03]] * 4, 1),
        # One that falls silent half way is; one that is loud again is not.
        ([[1.0, 1.0]] * 2 + [[1.0, 0.01]] * 2, 1),
        ([[1.0, 0.01]] * 2 + [[1.0, 1.0]] * 2, 0),
        # A single judgement in which it is silent is noise.
        ([[1.0, 1.0]] * 3 + [[1.0, 0.01]] + [[1.0, 1.0]] * 2, 0),
        # A layer that stops as a whole, the only way for one head.
        ([[1.0]] * 2 + [[0.02]] * 2, 0),
        ([[1.0]] * 2 + [[0.009]] * 2, 1),
    ],
)
def test_a_head_is_silent_beside_its_layer_or_beside_what_its_layer_was(norms, expected):
    assert num_silent(np.array(norms)) == expected


def judged(norms):
    return Run({'judgements': judgements(norms)}, 'a.json')


def test_the_heads_of_all_layers_are_counted_from_the_first_update_on():
    loud, quiet = [1.0, 1.0], [1.0, 0.01]
    found = head_verdict(judged([[[None, None]] * 2, *[[loud, quiet]] * 3]))
    assert (found.num_heads, found.num_silent, found.num_idle) == (4, 1, 0)


@pytest.mark.parametrize('norms', [[], [[]] * 3, [[[None]]] * 3])
def test_without_judged_heads_there_is_no_verdict_on_them(norms):
    assert head_verdict(judged(norms)) is None
    assert head_verdict(Run({}, 'a.json')) is None
