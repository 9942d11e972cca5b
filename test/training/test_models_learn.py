# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
from dataclasses import replace
from pathlib import Path
from typing import get_args

import numpy as np
import pytest
from support.bundles import small_run
import torch

from metactl_ros.settings import load_file
from training.learn.checkpoint import network_policy
from training.learn.networks import build_policy, Model, NetworkConfig, TRANSFORMER_HEADS
from training.learn.run import load_presets, make_env, make_model
from training.learn.shielded_sac import ShieldedSAC
from training.sweep import expand, Study

NIGHTLY = Path(__file__).resolve().parents[2] / 'config/studies/nightly.yaml'
LOSSES = ('actor_loss', 'critic_loss', 'ent_coef_loss', 'ent_coef', 'beta', 'distance')


@pytest.mark.parametrize('model', get_args(Model))
def test_a_model_learns_for_100_updates_and_comes_back_as_it_was_saved(model, settings, tmp_path):
    hyper = replace(load_presets().robust, buffer_size=200, learning_starts=150)
    run = small_run(150, model=model, heads=TRANSFORMER_HEADS, window=20, hyper=hyper)
    env = make_env(settings, run)
    learner = make_model(settings, run, env, tmp_path)
    learner.learn(150)
    before = {name: weight.clone() for name, weight in learner.policy.state_dict().items()}
    for _ in range(10):
        learner.train(gradient_steps=10, batch_size=32)
        losses = [learner.logger.name_to_value[f'train/{name}'] for name in LOSSES]
        assert np.isfinite(losses).all()
    after = learner.policy.state_dict()
    still = [name for name, weight in after.items() if torch.equal(weight, before[name])]
    assert all(name.endswith('token_map') for name in still)  # the one thing that is not learnt
    assert learner._n_updates == 100

    learner.save(tmp_path / 'model.zip')
    again = ShieldedSAC.load(tmp_path / 'model.zip', device='cpu')
    for name, weight in again.policy.state_dict().items():
        assert torch.equal(weight, after[name]), name
    windows = np.random.default_rng(0).normal(size=(5, 20, 11))
    np.testing.assert_array_equal(
        network_policy(again.policy)(windows), network_policy(learner.policy)(windows)
    )
    env.close()


def test_the_nightly_study_trains_every_network_and_none_twice():
    def network(model):
        named = build_policy(NetworkConfig(model, 4, 20)).state_dict().items()
        return tuple((name, tuple(values.shape)) for name, values in named)

    runs = expand(load_file(Study, NIGHTLY, ''))
    assert {(run.heads, run.window) for run in runs} == {(4, 20)}
    trained = [network(run.model) for run in runs]
    assert len(set(trained)) == len(trained)
    assert {network(model) for model in get_args(Model)} == set(trained)
