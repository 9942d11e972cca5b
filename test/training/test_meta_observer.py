# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""Learned gains on top of the momentum observer: settings, first proposal, bundle."""

from dataclasses import replace

import numpy as np
import pytest
from support.bundles import finished_run, refusal
from support.trials import CASES, PLAIN

from metactl_ros.baselines import (
    ControllerSpec,
    load_baselines,
    load_learned,
    load_spec,
    observer_gains,
    on_observer,
)
from metactl_ros.control.loop import ControlLoop
from metactl_ros.policy.bundle import load_bundle
from metactl_ros.settings import load_settings
from training.benchmark import draw_cases
from training.export import export_bundle
from training.judge.rollouts import evaluate_controller, prepare
from training.learn.run import load_presets, read_run, settings_of

SETTINGS = load_settings()
ON_OBSERVER = replace(SETTINGS, controller=on_observer(SETTINGS.controller))


@pytest.fixture(scope='module')
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp('meta') / 'run'
    hyper = replace(load_presets().observer, buffer_size=100)
    return finished_run(
        folder, ON_OBSERVER, controller='meta_observer', preset='observer', hyper=hyper
    )


@pytest.fixture(scope='module')
def bundle(run):
    path = run.parent / 'on_observer.metactl'
    export_bundle(run, path)
    return path


def test_the_estimate_is_a_column_of_the_law_and_two_more_features():
    controller = ON_OBSERVER.controller
    assert controller.gain_box.columns[-1] == 'estimate'
    assert controller.context.num_extra == 2
    assert controller.estimator.momentum_observer is not None
    assert (
        replace(
            controller,
            gain_box=SETTINGS.controller.gain_box,
            estimator=None,
            context=SETTINGS.controller.context,
        )
        == SETTINGS.controller
    )


def test_learning_begins_at_the_tuned_observer(run):
    controller, policy = prepare(ControllerSpec('run', learned=run), SETTINGS, None)
    wanted = ControlLoop(SETTINGS.arm, controller).gain_map.action(
        observer_gains(ON_OBSERVER.controller)
    )
    windows = np.random.default_rng(0).normal(0.0, 0.3, (50, 5, 13))
    found = policy(windows)
    np.testing.assert_allclose(found, np.broadcast_to(wanted, found.shape), rtol=0, atol=0.05)
    tuned = load_baselines().momentum_observer.theta
    theta = observer_gains(ON_OBSERVER.controller)
    assert (*theta[:4], *theta[-2:]) == (*tuned[:4], 1.0, 1.0)


def test_a_run_remembers_what_it_learns_on(run):
    config = read_run(run)
    assert config.controller == 'meta_observer'
    assert config.name.startswith('meta_observer_observer_incrt')
    assert settings_of(SETTINGS, config) == ON_OBSERVER
    plain = replace(config, controller='policy')
    assert settings_of(SETTINGS, plain) == SETTINGS
    prepared = prepare(ControllerSpec('run', learned=run), SETTINGS, None)
    assert prepared.controller.context.num_rows == 5


def test_its_bundle_is_for_robots_that_have_the_observer_and_for_no_others(bundle):
    found = load_learned(bundle, SETTINGS.arm, SETTINGS.controller)
    assert found.controller == replace(ON_OBSERVER.controller, context=found.contract.context)
    assert found.contract.estimator == ON_OBSERVER.controller.estimator
    message = refusal(lambda path: load_bundle(path, SETTINGS.arm, SETTINGS.controller), bundle)
    assert 'gain_box' in message
    other = replace(ON_OBSERVER.controller, estimator=load_baselines().ct_integral.estimator)
    assert 'estimator' in refusal(lambda path: load_bundle(path, SETTINGS.arm, other), bundle)


def test_before_any_training_it_tracks_like_the_observer_it_begins_at(bundle):
    episodes = draw_cases(SETTINGS, PLAIN, CASES)
    learned = evaluate_controller(
        ControllerSpec('learned', learned=bundle), SETTINGS, episodes, 200
    )
    rival = evaluate_controller(load_spec('momentum_observer'), SETTINGS, episodes, 200)
    assert learned.rmse_rad.mean() == pytest.approx(rival.rmse_rad.mean(), rel=0.3)
