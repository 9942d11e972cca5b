# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0

from dataclasses import asdict, fields
import json
from pathlib import Path

import pytest

from metactl_ros.baselines import BASELINES, Baselines, load_baselines, make_classical
from metactl_ros.settings import load_settings
from training import tune
from training.benchmark import load_benchmark, Sensors

ROOT = Path(__file__).resolve().parents[2]
SETTINGS = load_settings()
KEPT = json.loads((ROOT / 'results' / 'tuning.json').read_text())
RECORDS = {(record['tuned_for'], record['rival']): record for record in KEPT['rivals']}
KINDS = [field.name for field in fields(Sensors)]


@pytest.mark.parametrize('rival', BASELINES)
def test_a_search_begins_at_the_untuned_gains_and_covers_its_ranges(rival):
    space = tune.search_space(rival, SETTINGS)
    for parameter in space:
        assert parameter.at(0.0) == pytest.approx(parameter.least)
        assert parameter.at(1.0) == pytest.approx(parameter.most)
        assert 0.0 <= parameter.first <= 1.0
    first = {parameter.name: parameter.at(parameter.first) for parameter in space}
    theta = tune.baseline_of(rival, SETTINGS, first).theta
    assert theta[:4] == pytest.approx((30.0, 30.0, 5.0, 5.0))
    assert theta[4:] == pytest.approx([0.0] * 4 if rival == 'ct_best' else [0.0] * 2 + [1.0] * 2)


def test_a_short_search_is_repeatable_and_is_not_worse_than_where_it_began():
    first, again = (tune.tune('momentum_observer', 'nominal', 1, 2) for _ in range(2))
    assert first == again
    assert first['rmse'] < first['rmse_ct']
    assert first['evaluations'] <= 4 + 8 + 1
    assert {p['name'] for p in first['searched']} == first['found'].keys()


def test_what_was_found_is_written_beside_the_rivals_that_were_there(tmp_path):
    def found_for(rival, sensors):
        space = tune.search_space(rival, SETTINGS)
        found = {parameter.name: parameter.at(0.25) for parameter in space}
        record = {
            'rival': rival,
            'tuned_for': sensors,
            'found': found,
            'rmse': 1.0,
            'rmse_ct': 2.0,
        }
        return record

    records = [found_for(rival, 'noisy') for rival in BASELINES]
    tune.write_baselines(tmp_path, records, SETTINGS)
    rivals = load_baselines(tmp_path / 'noisy.yaml')
    assert rivals.momentum_observer.theta[:4] == pytest.approx((22.5, 22.5, 3.25, 3.25))
    changed = found_for('ct_integral', 'noisy')
    changed['found']['kd_per_s'] = 44.0
    tune.write_baselines(tmp_path, [changed], SETTINGS)
    after = load_baselines(tmp_path / 'noisy.yaml')
    assert after.ct_integral.theta[0] == 44.0
    assert after.momentum_observer == rivals.momentum_observer


def test_every_rival_was_tuned_for_every_kind_of_sensors_with_the_stated_budget():
    assert KEPT['cases'] == json.loads(json.dumps(asdict(load_benchmark().tuning)))
    assert RECORDS.keys() == {(kind, rival) for kind in KINDS for rival in BASELINES}
    for record in RECORDS.values():
        num_parameters = len(record['searched'])
        assert record['evaluations'] <= (tune.DRAWN + tune.REFINED) * num_parameters + 1
        assert record['rmse'] <= record['rmse_ct']


@pytest.mark.parametrize('kind', KINDS)
def test_the_shipped_rivals_are_those_that_were_found(kind):
    rivals = load_baselines(ROOT / 'config' / 'classical' / f'{kind}.yaml')
    for field in fields(Baselines):
        found = tune.baseline_of(field.name, SETTINGS, RECORDS[kind, field.name]['found'])
        shipped = getattr(rivals, field.name)
        assert shipped.theta == pytest.approx(found.theta, rel=1e-5, abs=1e-5)
        assert tune._plain(asdict(shipped)) == tune._plain(asdict(found))
        if field.name != 'oracle':
            assert make_classical(SETTINGS.controller, shipped).policy is not None


@pytest.mark.parametrize(('bandwidth_radps', 'is_kept'), [(150.0, True), (2.0, False)])
def test_what_an_earlier_search_found_stays_if_it_is_better(bandwidth_radps, is_kept):
    before = {'kd_per_s': 60.0, 'lambda_per_s': 2.6, 'kp_per_s2': 600.0}
    before['bandwidth_radps'] = bandwidth_radps
    record = tune.tune('momentum_observer', 'nominal', 1, 1, before)
    assert (record['found'] == before) == is_kept
    other = {name: value for name, value in before.items() if name != 'kp_per_s2'}
    assert tune.tune('momentum_observer', 'nominal', 1, 1, other)['found'].keys() == before.keys()
