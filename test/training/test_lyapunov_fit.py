# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
from dataclasses import replace
import json

import numpy as np
import pytest
import torch

from training.lyapunov_fit import LyapunovFit, main, sample_motion


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
