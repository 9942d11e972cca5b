# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
from dataclasses import replace
import json
from pathlib import Path

import numpy as np
import pytest
import torch

from metactl_ros.control.lyapunov import (
    certificate_matrix,
    kronecker_matrix,
    LyapunovFunction,
    SPEED_S2,
)
from metactl_ros.errors import ConfigError
from training import lyapunov_fit
from training.calibrate import certified_lyapunov
from training.lyapunov_fit import fit_radius, LyapunovFit, main, sample_motion

ROOT = Path(__file__).resolve().parents[2]


def test_the_true_rate_is_the_change_of_the_error_from_step_to_step(settings):
    law = replace(settings.controller.law, rate_hz=1000.0)
    context = replace(settings.controller.context, horizon_s=0.2)
    controller = replace(settings.controller, law=law, context=context)
    motion = sample_motion(replace(settings, controller=controller), 1, 'nominal', 2.0)
    rows = motion.xi.reshape(5, 200, 10, 4)
    rate = motion.xi_dot.reshape(rows.shape)
    change = np.diff(rows, axis=1) / 0.001
    # One-sided difference at 1 ms: off by half a step of the second derivative.
    assert np.abs(change - rate[:, :-1]).mean() < 0.02 * np.abs(rate).mean()
    assert not motion.was_moved.any()


def test_any_learned_matrix_certifies_the_nominal_gains(settings):
    learner = LyapunovFit(settings, learning_rate=0.5)
    generator = torch.Generator().manual_seed(0)
    for _ in range(20):
        xi, xi_dot = torch.randn((2, 64, 4), generator=generator, dtype=torch.float64)
        learner.improve(xi, xi_dot)
        q_matrix, p_matrix = (matrix.detach().numpy() for matrix in learner.matrices())
        assert np.linalg.eigvalsh(q_matrix).min() > 0.0
        assert np.linalg.eigvalsh(p_matrix).min() > 0.0
        assert np.trace(p_matrix) == pytest.approx(4.0)


def test_the_fit_lowers_the_loss_and_beats_the_identity_on_held_out_rollouts(tmp_path):
    path = tmp_path / 'lyapunov.json'
    assert main(['--steps', '100', '--out', str(path)]) == 0
    report = json.loads(path.read_text())
    assert report['loss_last'] < report['loss_first']
    for rate in report['violation_rate'].values():
        assert rate['fitted'] < rate['identity']
    assert report['shield_activation']['nominal'] == 0.0
    assert 0.05 < report['shield_activation']['random'] < 0.6


def test_the_training_data_do_not_depend_on_the_shipped_matrix(settings):
    other = tuple(tuple(row) for row in np.eye(4).tolist())
    lyapunov = replace(settings.controller.lyapunov, p_matrix=other)
    changed = replace(settings, controller=replace(settings.controller, lyapunov=lyapunov))
    one, two = (
        sample_motion(world, 1, 'random', 2.0, enforcement='count')
        for world in (settings, changed)
    )
    np.testing.assert_array_equal(one.xi, two.xi)


def test_a_search_for_a_margin_certifies_a_smaller_error_than_the_shipped_matrix(settings):
    report = fit_radius(settings, (0.11, 0.1))
    present, fitted = report['present'], report['fitted']
    assert present['error_radius_rad'] == pytest.approx(0.0429, abs=1e-4)
    assert fitted['error_radius_rad'] < 0.15 * present['error_radius_rad']
    stated = certified_lyapunov(settings.controller.lyapunov, report)
    law = settings.controller.law
    Q = certificate_matrix(np.array(stated.p_matrix), law, stated.alpha_per_s)
    assert np.linalg.eigvalsh(Q).min() > 0.0
    used = LyapunovFunction(stated, law, settings.arm.sample_inertias())
    assert used.target_level == pytest.approx(fitted['v_0'])
    assert used.error_radius_rad == pytest.approx(fitted['error_radius_rad'])


@pytest.mark.parametrize('alpha_per_s', [3.0, 5.0])
@pytest.mark.parametrize('cross', [-0.008, 0.008])
def test_no_other_matrix_of_its_kind_certifies_less(settings, alpha_per_s, cross):
    rho = np.array((0.11, 0.1))
    fitted = fit_radius(settings, (0.11, 0.1))['fitted']
    weight = fitted['p_matrix'][0][2] / fitted['p_matrix'][0][0]
    P = kronecker_matrix(weight + cross, SPEED_S2, 2)
    for alpha in (alpha_per_s, fitted['alpha_per_s']):
        slack = np.linalg.eigvalsh(certificate_matrix(P, settings.controller.law, alpha))
        assert slack.min() > 0.0
        found = lyapunov_fit.certified_by(settings, rho, P, alpha_per_s=alpha)
        assert found['error_radius_rad'] > fitted['error_radius_rad']


def test_the_kept_fit_for_a_margin_is_what_its_matrix_promises(settings):
    kept = json.loads((ROOT / 'results' / 'lyapunov_rho.json').read_text())
    rho, fitted = np.array(kept['rho_nm']), kept['fitted']
    P, alpha = np.array(fitted['p_matrix']), fitted['alpha_per_s']
    found = lyapunov_fit.certified_by(settings, rho, P, alpha_per_s=alpha)
    assert found['v_0'] == pytest.approx(fitted['v_0'])
    assert found['error_radius_rad'] == pytest.approx(fitted['error_radius_rad'])
    assert found['error_radius_rad'] < 0.0065


@pytest.mark.parametrize('rho', [(0.1,), (0.1, 0.1, 0.1), (0.1, 0.0), (0.1, float('nan'))])
def test_a_margin_that_is_not_one_number_above_zero_per_joint_is_refused(settings, rho):
    with pytest.raises(ConfigError, match=r'--rho: expected 2 numbers above 0, one per joint'):
        fit_radius(settings, rho)


def test_the_command_says_what_a_margin_certifies(tmp_path, capsys):
    path = tmp_path / 'rho.json'
    assert main(['--rho', '0.11', '0.1', '--out', str(path)]) == 0
    assert json.loads(path.read_text())['rho_nm'] == [0.11, 0.1]
    assert 'largest error' in ' '.join(capsys.readouterr().out.split())
    assert main(['--rho', '0.11', '--out', str(path)]) == 2
