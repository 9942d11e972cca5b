# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
from dataclasses import fields, replace
from functools import cache

import numpy as np
import pytest

from metactl_ros.baselines import (
    BASELINES,
    Baselines,
    CLASSICAL,
    ConstantPolicy,
    ControllerSpec,
    load_baselines,
    load_classical,
    load_spec,
    make_classical,
    same_for_joints,
    truth_of,
)
from metactl_ros.control.estimators.choice import EstimatorSettings
from metactl_ros.control.gain_map import GainMap
from metactl_ros.control.loop import ControlLoop
from metactl_ros.errors import ConfigError
from metactl_ros.metrics import tracking_rmse
from metactl_ros.settings import load_settings
from metactl_ros.sim.plant import PlantStart
from metactl_ros.sim.rk4_arm import Rk4Arm
from metactl_ros.sim.rollout import run_episode, without_warmup
from metactl_ros.sim.task import draw_evaluation, Episode

SETTINGS = load_settings()
CONTROLLER = without_warmup(SETTINGS.controller)
PAYLOADS_KG = (0.0, 0.75, 1.5)


def test_every_baseline_has_a_name_and_every_name_a_baseline():
    assert [field.name for field in fields(Baselines)] == list(BASELINES)
    assert CLASSICAL[0] == 'ct'
    assert CLASSICAL[1:] == BASELINES


@pytest.mark.parametrize('name', CLASSICAL)
def test_every_classical_controller_loads_and_proposes_the_gains_of_its_file(name):
    controller, policy = load_classical(name, CONTROLLER, None, 0.4)
    if name == 'ct':
        assert (controller, policy) == (CONTROLLER, None)
        return
    loop, theta = ControlLoop(SETTINGS.arm, controller), getattr(load_baselines(), name).theta
    gains = loop.gain_map.gains(policy(np.zeros((50, 11))))
    np.testing.assert_allclose(gains, theta, rtol=1e-12)
    assert (controller.estimator is None) == (name == 'ct_best')
    columns = ('bias', 'coulomb') if name == 'ct_best' else ('estimate',)
    assert controller.gain_box.columns == columns
    own = {'gain_box': CONTROLLER.gain_box, 'lyapunov': CONTROLLER.lyapunov}
    assert replace(controller, **own, estimator=None) == CONTROLLER


def test_the_estimator_of_a_baseline_is_that_of_its_name():
    for name in ('momentum_observer', 'lugre_observer', 'slotine_li'):
        estimator = getattr(load_baselines(), name).estimator
        assert getattr(estimator, name) is not None
    assert load_baselines().ct_integral.estimator.integral is not None
    with_memory = load_baselines().slotine_li_memory.estimator.slotine_li
    assert with_memory.memory_horizons_s
    assert not load_baselines().slotine_li.estimator.slotine_li.memory_horizons_s


@pytest.mark.parametrize(
    'theta',
    [
        (60.0, 60.0, 10.0, 10.0, 1.0, 1.0),  # as of the time before K_p
        (60.0, 60.0, 10.0, 10.0, 0.0, 0.0, 1.0),
        (60.0, 60.0, 10.0, 10.0, 0.0, 0.0, 1.0, 1.0, 1.0),
        (),
        (61.0, 60.0, 10.0, 10.0, 0.0, 0.0, 1.0, 1.0),
        (60.0, 60.0, 0.5, 10.0, 0.0, 0.0, 1.0, 1.0),
        (60.0, 60.0, 10.0, 10.0, 901.0, 0.0, 1.0, 1.0),
        (60.0, 60.0, 10.0, 10.0, 0.0, 0.0, 1.0, -0.1),
        (60.0, np.nan, 10.0, 10.0, 0.0, 0.0, 1.0, 1.0),
    ],
)
def test_gains_outside_the_box_or_of_the_wrong_number_are_refused(theta):
    rival = replace(load_baselines().momentum_observer, theta=theta)
    message = (
        r'theta: expected 8 gains from \[10\.0, 10\.0, 1\.0, .* to \[60\.0, .*, found \[.*; state '
        r'kd_per_s, lambda_per_s, kp_per_s2, feed_forward\.estimate in this order'
    )
    with pytest.raises(ConfigError, match=message):
        make_classical(CONTROLLER, rival)


def test_the_oracle_is_told_the_truth_and_how_it_changes():
    sensing = replace(
        SETTINGS.plant.sensing,
        velocity_noise_radps=0.1,
        payload_step_at_s=1.5,
        payload_step_kg=0.3,
        tau_z_drift_to_s=4.0,
        tau_z_drift_over_s=2.5,
    )
    truth = truth_of(replace(SETTINGS.plant, sensing=sensing), 0.4, 3.0)
    assert truth.friction == SETTINGS.plant.friction
    assert (truth.payload_kg, truth.tau_z_s) == (0.4, 3.0)
    assert (truth.payload_step_at_s, truth.payload_step_kg) == (1.5, 0.3)
    assert (truth.tau_z_drift_to_s, truth.tau_z_drift_over_s) == (4.0, 2.5)
    classical = make_classical(CONTROLLER, load_baselines().oracle, truth)
    assert classical.controller.estimator == EstimatorSettings(oracle=truth)


def test_the_oracle_of_a_robot_knows_its_payload_and_the_shipped_plant():
    classical = load_classical('oracle', CONTROLLER, None, 1.1)
    truth = truth_of(SETTINGS.plant, 1.1, SETTINGS.plant.task.tau_z_s)
    assert classical.controller.estimator == EstimatorSettings(oracle=truth)


def test_only_the_oracle_knows_its_plant_and_not_a_run_of_that_name(tmp_path):
    assert [name for name in CLASSICAL if load_spec(name).knows_plant] == ['oracle']
    assert not ControllerSpec('oracle', learned=tmp_path / 'oracle').knows_plant


def test_a_file_of_baselines_is_read_in_place_of_the_shipped_one(tmp_path):
    path = tmp_path / 'mine.yaml'
    entry = '{theta: [20, 20, 2, 2, 0, 0, 0, 0]}'
    path.write_text('\n'.join(f'{name}: {entry}' for name in BASELINES))
    _, policy = load_classical('ct_best', CONTROLLER, path, 0.0)
    gains = GainMap(CONTROLLER.gain_box, 2).gains(policy(np.zeros((50, 11))))
    assert gains == pytest.approx([20, 20, 2, 2, 0, 0, 0, 0], abs=1e-12)
    path.write_text('\n'.join(f'{name}: {entry}' for name in BASELINES[1:]))
    with pytest.raises(ConfigError, match="missing key 'ct_best'"):
        load_baselines(path)


@pytest.mark.parametrize('lead', [(), (4,), (3, 2)])
def test_a_constant_policy_proposes_the_same_for_every_window(lead):
    action = np.array([0.1, -0.2, 0.3])
    found = ConstantPolicy(action)(np.zeros((*lead, 50, 11)))
    np.testing.assert_array_equal(found, np.broadcast_to(action, (*lead, 3)))


def test_gains_that_are_the_same_for_every_joint_are_in_the_order_of_theta():
    assert same_for_joints([30, 5.0, 1], 2) == (30.0, 30.0, 5.0, 5.0, 1.0, 1.0)
    assert same_for_joints([30, 5.0], 3) == (30.0, 30.0, 30.0, 5.0, 5.0, 5.0)


EPISODES = [draw_evaluation(SETTINGS.plant.task, 7, p, 2, 2.0) for p in PAYLOADS_KG]


def joined(episodes):
    """Return a batch of batches."""
    starts = [episode.start for episode in episodes]
    start = PlantStart(
        *(np.concatenate([getattr(x, f.name) for x in starts]) for f in fields(PlantStart))
    )
    phase = np.concatenate([episode.reference.phase_rad for episode in episodes])
    estimate = np.concatenate([episode.payload_estimate_kg for episode in episodes])
    return Episode(replace(episodes[0].reference, phase_rad=phase), start, estimate)


def errors(rival, truth, episode):
    """Return the RMSE of each rollout, and that from 1 s on, when the first error is gone."""
    controller, policy = make_classical(CONTROLLER, rival, truth)
    loop = ControlLoop(SETTINGS.arm, controller)
    plant = Rk4Arm(SETTINGS.arm, SETTINGS.plant.friction, 100.0)
    policy = policy or ConstantPolicy(loop.nominal_action)
    log = run_episode(plant, episode, policy, loop, 300)
    return [tracking_rmse(log.q_desired_rad[k:], log.q_rad[k:]) for k in (0, 100)]


@cache
def errors_of(name):
    """Return the RMSE of two short rollouts at each payload, whole and from 1 s on, (2, 6)."""
    if name == 'oracle':  # it knows one payload
        truths = [truth_of(SETTINGS.plant, payload_kg, 2.0) for payload_kg in PAYLOADS_KG]
        rows = zip(truths, EPISODES, strict=True)
        return np.concatenate([errors(load_baselines().oracle, *row) for row in rows], axis=1)
    rival = None if name == 'ct' else getattr(load_baselines(), name)
    return np.array(errors(rival, None, joined(EPISODES)))


@pytest.mark.parametrize('name', BASELINES)
def test_every_baseline_beats_the_fixed_gains_of_the_paper(name):
    assert np.all(errors_of(name) < errors_of('ct'))


def test_nobody_beats_the_oracle_at_any_payload_once_the_first_error_is_gone():
    """Before, an integral acts as a position gain of its own, which no estimate is."""
    limit = np.reshape(errors_of('oracle')[1], (3, 2)).mean(axis=1)
    for name in BASELINES[:-1]:
        assert np.all(limit < np.reshape(errors_of(name)[1], (3, 2)).mean(axis=1))
