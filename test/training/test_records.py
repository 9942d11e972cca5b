# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
import math

import pytest
from support.made_records import record

from metactl_ros.errors import ConfigError
from training.judge.cells import cells_of
from training.records import run_from


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
