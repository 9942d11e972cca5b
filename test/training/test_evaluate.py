# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
import json
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console
from support.trials import a_trial

from metactl_ros.baselines import CLASSICAL, load_baselines
from metactl_ros.files import write_json
from metactl_ros.settings import shipped_policy
from training import evaluate
from training.evaluate import main, parse_args
from training.judge.rollouts import Rollouts
from training.records import PAPER_BASELINE_RAD

ROOT = Path(__file__).resolve().parents[2]
# The first test evaluates both plants: a minute on a quiet machine, several on a busy one.
pytestmark = pytest.mark.timeout(900)


@pytest.fixture(scope='module')
def records(tmp_path_factory):
    """Evaluate the baseline on both plants as a user would, once.

    Eight rollouts of the phase lattice instead of twenty, and one horizon on PyBullet: the mean
    moves by 1 %, and results/baseline_*.json hold the full evaluation.
    """
    folder = tmp_path_factory.mktemp('evaluate')
    found = {}
    for plant, horizons in (('rk4', ['1', '2', '5']), ('bullet', ['2'])):
        target = folder / f'{plant}.json'
        command = ['--plant', plant, '--rollouts', '8', '--out', str(folder), '--tau-z', *horizons]
        assert main([*command, '--json', str(target)]) == 0
        found[plant] = json.loads(target.read_text())
    return folder, found


@pytest.fixture
def one_payload(tmp_path):
    """Return the option that makes an evaluation a fifth as long."""
    text = (ROOT / 'config' / 'plant.yaml').read_text()
    world = tmp_path / 'plant.yaml'
    world.write_text(text.replace('[0.0, 0.375, 0.75, 1.125, 1.5]', '[0.75]'))
    return ['--world', str(world)]


@pytest.mark.parametrize('plant', ['rk4', 'bullet'])
def test_the_kept_full_evaluation_is_the_papers_within_3_percent(plant):
    kept = json.loads((ROOT / 'results' / f'baseline_{plant}.json').read_text())
    assert {record['num_rollouts_per_payload'] for record in kept} == {20}
    for record in kept:
        assert record['rmse'] == pytest.approx(PAPER_BASELINE_RAD[record['tau_z']], rel=0.03)
        assert record['memory_share_percent'] >= 15.0


@pytest.mark.parametrize('plant', ['rk4', 'bullet'])
def test_baseline_rmse_is_the_papers_within_3_percent(records, plant):
    found = {record['tau_z']: record['rmse'] for record in records[1][plant]}
    expected = {tau_z: PAPER_BASELINE_RAD[tau_z] for tau_z in found}
    assert found == pytest.approx(expected, rel=0.03)


@pytest.mark.parametrize('plant', ['rk4', 'bullet'])
def test_baseline_rmse_grows_with_payload(records, plant):
    for record in records[1][plant]:
        assert np.all(np.diff(record['rmse_by_payload']) > 0)


@pytest.mark.parametrize('plant', ['rk4', 'bullet'])
def test_knowing_the_memory_is_worth_15_percent_at_every_horizon(records, plant):
    for record in records[1][plant]:
        assert record['memory_share_percent'] >= 15.0
        recovered = 100.0 * (1.0 - record['rmse_knowing_memory'] / record['rmse'])
        assert record['memory_share_percent'] == pytest.approx(recovered)
        assert record['rmse_without_memory'] < record['rmse']


def test_both_plants_report_the_same_rmse_within_a_thousandth(records):
    _, rk4, _ = records[1]['rk4']
    (bullet,) = records[1]['bullet']
    assert rk4['tau_z'] == bullet['tau_z']
    assert bullet['rmse'] == pytest.approx(rk4['rmse'], rel=1e-3)


def test_each_file_has_what_is_needed_to_repeat_the_run(records):
    folder, found = records
    for tau_z, record in zip((1, 2, 5), found['rk4'], strict=True):
        alone = json.loads((folder / f'ct_rk4_tau{tau_z}_seed42.json').read_text())
        assert alone == record
        assert alone['controller'] == 'ct'
        assert alone['num_parameters'] == 0
        assert alone['delta_percent'] == 0.0
        assert alone['num_lost'] == 0
        assert len(alone['rmse_std_by_payload']) == len(alone['payload_levels_kg']) == 5
        assert alone['num_rollouts_per_payload'] == 8
        assert alone['settings']['plant']['friction']['memory_gain_nmprad'] > 0
        assert 'numpy' in alone['versions']
        assert alone['command']
        assert alone['commit'] == alone['code']


def test_seeds_give_files_of_their_own_and_other_numbers(tmp_path, one_payload):
    command = ['--rollouts', '4', '--tau-z', '2', '--seed', '42', '43', '--out', str(tmp_path)]
    assert main([*command, *one_payload]) == 0
    one, two = (
        json.loads((tmp_path / f'ct_rk4_tau2_seed{seed}.json').read_text()) for seed in (42, 43)
    )
    assert one['rmse'] != two['rmse']


def rollouts(rmse_rad, is_lost):
    return Rollouts(np.array(rmse_rad), np.array(is_lost), np.ones((2, 2)), *[np.zeros(2)] * 3)


def test_rollouts_that_diverge_are_counted_and_leave_no_mean_that_flatters(settings):
    trial = a_trial()
    whole, half = (rollouts([0.1, x], is_lost=[False, x > 1.0]) for x in (0.2, np.inf))
    record = evaluate.summarise(settings, [trial, trial], [whole, half])
    assert record['num_lost'] == 1
    assert record['rmse_by_payload'] == [pytest.approx(0.15), None]
    assert record['rmse_std_by_payload'][1] is None
    assert record['rmse'] is None
    assert record['delta_percent'] is None
    evaluate.print_table([record], Console(quiet=True))


def test_a_lost_rollout_counts_as_lost_though_its_rmse_is_finite(settings):
    result = rollouts([0.1, 0.7], is_lost=[False, True])
    record = evaluate.summarise(settings, [a_trial()], [result])
    assert record['num_lost'] == 1
    assert record['rmse'] == pytest.approx(0.4)


def test_a_bad_settings_file_ends_with_its_message_and_code_2(tmp_path, capsys):
    bad = tmp_path / 'arm.yaml'
    bad.write_text('joint_name: [a, b]\n')
    assert main(['--arm', str(bad), '--out', str(tmp_path)]) == 2
    assert "did you mean 'joint_names'?" in capsys.readouterr().err


def test_the_papers_protocol_is_the_default():
    args = parse_args([])
    assert (args.tau_z, args.rollouts, args.seed) == ([1.0, 2.0, 5.0], 20, [42])


@pytest.mark.parametrize('words', [['--tau-z', '0'], ['--tau-z', 'nan'], ['--rollouts', '0']])
def test_a_number_out_of_range_is_refused(words, capsys):
    with pytest.raises(SystemExit):
        parse_args(words)
    assert 'above 0' in capsys.readouterr().err


def test_a_result_that_is_not_finite_is_not_written(tmp_path):
    path = tmp_path / 'result.json'
    write_json(path, {'rmse': 1.0})
    with pytest.raises(ValueError, match='not JSON compliant'):
        write_json(path, {'rmse': float('nan')})
    assert json.loads(path.read_text()) == {'rmse': 1.0}
    assert [p.name for p in tmp_path.iterdir()] == ['result.json']


def test_the_shipped_bundle_is_evaluated_like_a_run_and_only_under_its_own_shield(
    tmp_path, capsys, one_payload
):
    bundle = shipped_policy()
    command = ['--run', str(bundle), '--tau-z', '2', '--rollouts', '2', '--jobs', '1']
    command += one_payload
    assert main([*command, '--out', str(tmp_path)]) == 0
    record = json.loads((tmp_path / f'{bundle.stem}_rk4_tau2_seed42.json').read_text())
    assert record['controller'] == bundle.stem
    assert len(record['bundle_sha256']) == 64
    assert record['delta_percent'] < -80.0
    assert main([*command, '--target-error', '0', '--out', str(tmp_path)]) == 2
    assert 'target_error_rad' in capsys.readouterr().err


def test_rivals_are_evaluated_by_name_beside_the_baseline_and_without_memory(
    tmp_path, one_payload
):
    command = ['--controller', 'ct_integral', 'oracle', '--tau-z', '5', '--rollouts', '1']
    command += ['--jobs', '1', '--out', str(tmp_path)]
    assert main([*command, *one_payload]) == 0
    for name in ('ct_integral', 'oracle'):
        record = json.loads((tmp_path / f'{name}_rk4_tau5_seed42.json').read_text())
        assert record['controller'] == name
        assert record['rival']['theta'] == list(getattr(load_baselines(), name).theta)
        assert record['rmse'] < record['baseline_rmse']
        assert record['rmse_without_memory'] not in (None, record['rmse'])
        assert record['rmse_knowing_memory'] < record['baseline_rmse']


def test_an_unknown_controller_is_refused_with_the_names_there_are(capsys):
    with pytest.raises(SystemExit):
        parse_args(['--controller', 'nobody'])
    said = capsys.readouterr().err
    assert all(name in said for name in CLASSICAL)


def test_gains_may_come_from_another_file(tmp_path, capsys):
    text = (ROOT / 'config' / 'classical' / 'nominal.yaml').read_text()
    (tmp_path / 'other.yaml').write_text(text.replace('ct_best:', 'ct_bets:'))
    command = ['--controller', 'ct_best', '--classical-file', str(tmp_path / 'other.yaml')]
    assert main([*command, '--out', str(tmp_path)]) == 2
    assert "did you mean 'ct_best'?" in capsys.readouterr().err


def test_the_shield_may_be_made_strict(tmp_path, one_payload):
    command = ['--tau-z', '2', '--rollouts', '1', '--jobs', '1', '--target-error', '0']
    assert main([*command, '--out', str(tmp_path), *one_payload]) == 0
    record = json.loads((tmp_path / 'ct_target0_rk4_tau2_seed42.json').read_text())
    assert record['target_error_rad'] == 0.0
    assert record['settings']['controller']['lyapunov']['target_error_rad'] == 0.0
