# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""What an adaptive law certifies, from the run of its training to the bundle."""

from dataclasses import asdict, replace
import json
from pathlib import Path

import numpy as np
import pytest
import torch

from metactl_ros.baselines import Baseline, load_classical, load_learned, make_classical
from metactl_ros.control.estimators.choice import EstimatorSettings
from metactl_ros.control.estimators.disturbance import MomentumObserverSettings
from metactl_ros.control.loop import ControlLoop
from metactl_ros.errors import BundleError, MetactlError
from metactl_ros.files import read_yaml, write_json
from metactl_ros.settings import load_settings, provenance, shipped_policy
from metactl_ros.sim.rollout import without_warmup
from metactl_ros.sim.task import draw_evaluation
from training import export
from training.adaptive import finished
from training.adaptive.learner import AdaptConfig
from training.adaptive.network import Shape
from training.adaptive.segments import Adaptive
from training.calibrate import CALIBRATION, conformal_rho, run_true

ROOT = Path(__file__).resolve().parents[2]
SETTINGS = load_settings()
KEPT = json.loads((ROOT / 'results' / 'adaptive_calibration.json').read_text())
REGIMES = {row['regime']: row for row in KEPT['regimes']}


def made_run(folder, kind='attention', *, is_calibrated=True):
    """Return the folder of a run that has learned nothing."""
    folder.mkdir()
    config = AdaptConfig(shape=Shape(kind=kind))
    torch.manual_seed(1)
    write_json(folder / 'config.json', {'run': asdict(config), **provenance(SETTINGS)})
    torch.save(Adaptive(config.shape).state_dict(), folder / finished.BEST)
    if is_calibrated:
        write_json(folder / CALIBRATION, KEPT)
    return folder


@pytest.mark.parametrize('coverage', [0.9, 0.99])
def test_rho_holds_all_joints_on_the_share_of_ticks_that_is_asked_for(coverage):
    rng = np.random.default_rng(4)
    off_nm = rng.standard_t(3, (400, 50, 2)) * [3.0, 0.1]
    rho = conformal_rho(off_nm, coverage)
    new = rng.standard_t(3, (400, 50, 2)) * [3.0, 0.1]
    found = (np.abs(new) <= rho).all(axis=-1).mean()
    assert coverage - 0.003 < found < coverage + 0.6 * (1.0 - coverage) + 0.02
    assert rho[0] / rho[1] == pytest.approx(30.0, rel=0.1)
    assert (conformal_rho(off_nm, 1.0) == conformal_rho(off_nm, 0.999)).all()  # never beyond all


def test_the_condition_on_the_true_arm_is_how_v_really_changes():
    """V_dot of the run against the difference of V from tick to tick, under soft gains."""
    slow = EstimatorSettings(momentum_observer=MomentumObserverSettings(bandwidth_radps=5.0))
    soft = Baseline(theta=(20.0, 20.0, 5.0, 5.0, 0.0, 0.0, 1.0, 1.0), estimator=slow)
    controller, policy = make_classical(SETTINGS.controller, soft)
    episodes = draw_evaluation(SETTINGS.plant.task, 11, 0.75, 4, 2.0)
    run = run_true(SETTINGS, controller, policy, episodes, 200)
    lyapunov = ControlLoop(SETTINGS.arm, controller).lyapunov
    rise = run.excess - lyapunov.alpha_per_s * (run.value - lyapunov.target_level)
    middle, change = 0.5 * (rise[:-1] + rise[1:]), np.diff(run.value, axis=0) / 0.01
    assert np.corrcoef(middle.ravel(), change.ravel())[0, 1] > 0.98
    assert np.abs(run.off_nm[100:]).mean() < 2.0  # the observer is about right
    assert run.was_moved.shape == run.value.shape == (200, 4)


def test_what_motors_do_not_give_is_lacking():
    limit = (60.0, 15.0)
    sensing = replace(SETTINGS.plant.sensing, actuator_limit_nm=limit)
    weak = replace(SETTINGS, plant=replace(SETTINGS.plant, sensing=sensing))
    controller, policy = load_classical('momentum_observer', SETTINGS.controller, None, 1.5)
    episodes = draw_evaluation(SETTINGS.plant.task, 11, 1.5, 2, 2.0)
    worst = [
        np.abs(run_true(settings, controller, policy, episodes, 30).off_nm[5:]).max()
        for settings in (SETTINGS, weak)
    ]
    assert worst[1] > 2.0 * worst[0]


def test_a_calibrated_run_becomes_a_bundle_with_its_rho_and_p(tmp_path):
    run = made_run(tmp_path / 'run')
    export.main(['--run', str(run), '--out', str(tmp_path / 'a.metactl')])
    bundle = load_learned(tmp_path / 'a.metactl', SETTINGS.arm, SETTINGS.controller)
    lyapunov = bundle.controller.lyapunov
    assert list(lyapunov.rho_nm) == KEPT['rho_nm']
    assert [list(row) for row in lyapunov.p_matrix] == KEPT['fitted']['p_matrix']
    loop = ControlLoop(SETTINGS.arm, without_warmup(bundle.controller))
    assert loop.lyapunov.error_radius_rad == pytest.approx(KEPT['fitted']['error_radius_rad'])
    trained = finished.read_adapted(run)
    windows = np.random.default_rng(1).normal(size=(3, 50, 11 + 2 * 47))
    theirs = trained.policy(2)(windows.astype(np.float32).astype(np.float64))
    np.testing.assert_allclose(bundle.policy(windows), theirs, atol=1e-6)
    assert theirs.shape == (3, loop.action_size)


def test_a_p_that_does_not_certify_is_refused(tmp_path):
    run = made_run(tmp_path / 'run')
    broken = json.loads((run / CALIBRATION).read_text())
    broken['fitted']['p_matrix'][0][0] = -1.0
    (run / CALIBRATION).write_text(json.dumps(broken))
    with pytest.raises(MetactlError, match='certify the nominal gains'):
        export.export_bundle(run, tmp_path / 'a.metactl')
    assert not (tmp_path / 'a.metactl').exists()


def test_a_slower_decay_than_the_robot_asks_for_is_refused(tmp_path):
    run = made_run(tmp_path / 'run')
    slow = json.loads((run / CALIBRATION).read_text())
    slow['fitted']['alpha_per_s'] = 0.5 * SETTINGS.controller.lyapunov.alpha_per_s
    (run / CALIBRATION).write_text(json.dumps(slow))
    export.export_bundle(run, tmp_path / 'a.metactl')
    with pytest.raises(MetactlError, match=r'lyapunov.alpha_per_s: this robot has 1.0'):
        load_learned(tmp_path / 'a.metactl', SETTINGS.arm, SETTINGS.controller)


def test_a_run_that_was_not_calibrated_is_refused_with_the_command(tmp_path, capsys):
    run = made_run(tmp_path / 'run', is_calibrated=False)
    assert export.main(['--run', str(run), '--out', str(tmp_path / 'a.metactl')]) == 2
    assert 'python -m training.calibrate --run' in ' '.join(capsys.readouterr().err.split())


def test_a_run_without_a_network_becomes_a_bank(tmp_path, capsys):
    run = made_run(tmp_path / 'none', 'none', is_calibrated=False)
    export.main(['--run', str(run), '--out', str(tmp_path / 'bank.yaml')])
    table = read_yaml(tmp_path / 'bank.yaml')
    assert table['correction'][:2] == [0.85, 0.03]  # where the schedule begins
    assert table['is_scheduled'] is False
    run = made_run(tmp_path / 'net')
    assert export.main(['--run', str(run), '--out', str(tmp_path / 'other.yaml')]) == 2
    assert 'has a network' in capsys.readouterr().err


def test_the_shipped_bundle_is_sealed_with_what_was_calibrated():
    bundle = load_learned(shipped_policy(), SETTINGS.arm, SETTINGS.controller)
    assert list(bundle.controller.lyapunov.rho_nm) == KEPT['rho_nm']
    assert bundle.contract.training['run'] == KEPT['run']['run']


@pytest.mark.parametrize('regime', ['tau_1', 'tau_2', 'tau_5', 'tau_drift'])
def test_on_the_true_arm_what_is_certified_holds(regime):
    row = REGIMES[regime]
    assert row['coverage'] >= 0.98
    assert row['condition_broken'] <= 0.02
    assert row['shield_activation'] <= 0.02


def test_nowhere_is_an_error_beyond_the_bound_while_the_estimate_is_within_rho():
    assert not [name for name, row in REGIMES.items() if row['beyond_bound_while_covered']]
    assert KEPT['fitted']['error_radius_rad'] <= 0.025  # 10 mrad were aimed at


def test_a_bank_in_a_bundle_for_another_arm_is_refused():
    heavier = replace(SETTINGS.arm, link_masses_kg=(7.0, 4.0))
    with pytest.raises(BundleError, match='link_masses_kg'):
        load_learned(shipped_policy(), heavier, SETTINGS.controller)
