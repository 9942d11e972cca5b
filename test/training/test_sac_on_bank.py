# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""SAC that schedules a bank of observers: settings, first proposal, bundle."""

from dataclasses import replace

import numpy as np
import pytest
from support.bundles import finished_run, refusal
from support.trials import CASES, PLAIN

from metactl_ros.baselines import ControllerSpec, load_learned, load_spec, on_bank
from metactl_ros.control.estimators.bank import ObserverBank
from metactl_ros.control.estimators.bank_estimation import action_of, schedule_of
from metactl_ros.control.loop import ControlLoop
from metactl_ros.policy.bundle import load_bundle
from metactl_ros.settings import load_settings
from training.benchmark import draw_cases
from training.export import export_bundle
from training.judge.rollouts import evaluate_controller, prepare
from training.learn.run import first_action, load_presets, read_run, settings_of

SETTINGS = load_settings()
ON_BANK = replace(SETTINGS, controller=on_bank(SETTINGS.controller))
BANK = ON_BANK.controller.estimator.bank


@pytest.fixture(scope='module')
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp('bank') / 'run'
    hyper = replace(load_presets().bank, buffer_size=100)
    return finished_run(folder, ON_BANK, controller='bank', preset='bank', hyper=hyper)


@pytest.fixture(scope='module')
def bundle(run):
    path = run.parent / 'on_bank.metactl'
    export_bundle(run, path)
    return path


def test_an_action_can_be_the_schedule_that_a_bank_has_of_its_own():
    found = schedule_of(action_of(BANK, 2), BANK.num_delays, 2)
    bank = ObserverBank(BANK, SETTINGS.arm, 0.01)
    bank.begin(np.zeros(2), np.zeros(2), np.zeros(()), np.zeros(2))
    for name, wanted in bank.constant_schedule()._asdict().items():
        np.testing.assert_allclose(getattr(found, name), wanted, rtol=1e-9, err_msg=name)


def test_learning_begins_at_the_tuned_bank(run):
    controller, policy = prepare(ControllerSpec('run', learned=run), SETTINGS, None)
    loop = ControlLoop(SETTINGS.arm, controller)
    windows = np.random.default_rng(0).normal(0.0, 0.3, (50, 5, 11 + 2 * 47))
    found = policy(windows)
    wanted = np.clip(first_action(ON_BANK, loop), -0.99, 0.99)
    np.testing.assert_allclose(found, np.broadcast_to(wanted, found.shape), rtol=0, atol=0.05)


def test_a_run_remembers_what_it_learns_on(run):
    config = read_run(run)
    assert config.controller == 'bank'
    assert config.name.startswith('bank_bank_incrt')
    assert settings_of(SETTINGS, config) == ON_BANK
    plain = replace(config, controller='policy')
    assert settings_of(SETTINGS, plain) == SETTINGS
    prepared = prepare(ControllerSpec('run', learned=run), SETTINGS, None)
    assert prepared.controller.context.num_rows == 5


def test_its_bundle_is_for_robots_that_can_have_a_bank_and_for_no_others(bundle):
    found = load_learned(bundle, SETTINGS.arm, SETTINGS.controller)
    assert found.controller == replace(ON_BANK.controller, context=found.contract.context)
    message = refusal(lambda path: load_bundle(path, SETTINGS.arm, SETTINGS.controller), bundle)
    assert 'gain_box' in message


def test_before_any_training_it_tracks_like_the_bank_it_begins_at(bundle):
    episodes = draw_cases(SETTINGS, PLAIN, CASES)
    learned = evaluate_controller(
        ControllerSpec('learned', learned=bundle), SETTINGS, episodes, 200
    )
    rival = evaluate_controller(load_spec('adaptive_bank'), SETTINGS, episodes, 200)
    assert learned.rmse_rad.mean() == pytest.approx(rival.rmse_rad.mean(), rel=0.3)
